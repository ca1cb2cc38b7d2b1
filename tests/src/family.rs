//! Family of addresses in which the tests run.

use std::net::IpAddr;

use longsplice_lab::Family;

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

/// Converts the IPv4 addresses and networks of the laboratory in a line of words to that family.
pub fn line(text: &str) -> String {
    let word = |word: &str| match word.split_once('/') {
        _ if word.parse::<IpAddr>().is_ok() => addr(word).to_string(),
        Some((host, length)) if host.parse::<IpAddr>().is_ok() => {
            let length = match (family(), length) {
                (Family::V4, _) => length,
                (Family::V6, "32") => "128",
                (Family::V6, _) => "64",
            };
            format!("{}/{length}", addr(host))
        }
        _ => word.to_owned(),
    };
    text.split_whitespace().map(word).collect::<Vec<_>>().join(" ")
}
