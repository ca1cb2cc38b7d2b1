//! Family of addresses in which the tests run, and `ip` with addresses of that family.

use std::net::IpAddr;

use longsplice_lab::{Family, Namespace};

/// Returns the family for a test that does not require IPv6: the value of the environment variable `LONGSPLICE_FAMILY`,
/// `4` or `6`; without it IPv4.
pub fn family() -> Family {
    match std::env::var("LONGSPLICE_FAMILY") {
        Ok(text) => text.parse().unwrap_or_else(|e| panic!("LONGSPLICE_FAMILY: {e}")),
        Err(_) => Family::V4,
    }
}

/// Converts an IPv4 address of the laboratory to that family.
pub fn addr(v4: &str) -> IpAddr {
    family().addr(v4.parse().unwrap())
}

/// Converts the addresses and networks of the laboratory in a line of words to that family.
pub fn line(text: &str) -> String {
    line_in(family(), text)
}

fn line_in(family: Family, text: &str) -> String {
    let word = |word: &str| {
        let (host, length) = match word.split_once('/') {
            Some((host, length)) => (host, Some(length)),
            None => (word, None),
        };
        let Ok(host) = host.parse::<IpAddr>() else {
            return word.to_owned();
        };
        let length = length.map(|length| match (family, host, length) {
            (Family::V6, IpAddr::V4(_), "32") => "128",
            (Family::V6, IpAddr::V4(_), _) => "64",
            _ => length,
        });
        let host = family.addr(host);
        length.map_or(host.to_string(), |length| format!("{host}/{length}"))
    };
    text.split_whitespace().map(word).collect::<Vec<_>>().join(" ")
}

/// Runs `ip` in a namespace with these words, and returns what it prints; IPv4 addresses of the laboratory are converted to
/// the family of the tests. Fails unless it succeeds.
pub fn ip(namespace: &Namespace, words: &str) -> String {
    ip_in(family(), namespace, words)
}

/// Runs `ip` as [`ip()`] does, with addresses of this family.
pub fn ip_in(family: Family, namespace: &Namespace, words: &str) -> String {
    let line = line_in(family, words);
    let command = namespace.command("ip").args(line.split(' '));
    let done = command.output().unwrap();
    assert!(done.status.success(), "ip {line}: {done:?}");
    String::from_utf8(done.stdout).unwrap()
}

/// Returns the word that makes an added address usable at once: a route cannot name a tentative IPv6 address.
pub fn nodad(family: Family) -> &'static str {
    match family {
        Family::V4 => "",
        Family::V6 => "nodad",
    }
}
