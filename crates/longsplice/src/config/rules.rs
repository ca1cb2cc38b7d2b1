//! What must not be, whether it stands in a file or on the command line. Each rule answers with its complaint.

use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use longsplice_core::policy::SplicePolicy;
pub use longsplice_core::rules::is_interface_name;
use longsplice_engine::Until;

use super::Period;
use crate::address::{PortRange, Target};

/// With less, a connection would do little else than come back.
const LEAST_UNSPLICE_TIME: Duration = Duration::from_millis(1);

/// What is wrong, and what to do about it.
#[derive(Debug)]
pub struct Complaint {
    /// The message.
    pub message: String,
    /// The remedy.
    pub help: &'static str,
}

/// A token (RFC 9110 section 5.6.2): what the name of a header field or of a cookie is made of.
pub fn is_token(text: &str) -> bool {
    let tchar = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
    !text.is_empty() && text.bytes().all(tchar)
}

/// An interface that segments cannot be translated on in XDP: it has no driver, or is none of those that are watched.
pub fn xdp(name: &str, watched: Option<&[String]>) -> Option<Complaint> {
    let complaint = |what: &str, help| {
        Some(Complaint {
            message: format!("`{name}` {what}"),
            help,
        })
    };
    if !is_interface_name(name) {
        return complaint("cannot be the name of an interface", "`ip -br link` lists them");
    }
    if name == "lo" {
        return complaint(
            "has no driver that XDP could run in",
            "leave it out: what goes over the loopback is translated at tc",
        );
    }
    if watched.is_some_and(|all| !all.iter().any(|one| one == name)) {
        return complaint(
            "is not among `interfaces`, so nothing is spliced over it",
            "add it there, or leave it out here",
        );
    }
    None
}

/// Conditions of coming back that could never be met by a spliced connection, or would be met all the time.
pub fn unsplice(splice: SplicePolicy, until: Until) -> Option<Complaint> {
    let complaint = |message, help| Some(Complaint { message, help });
    if until.is_closed() {
        return None;
    }
    for (time, name) in [(until.time(), "after"), (until.idleness(), "idle")] {
        if let Some(time) = time.filter(|t| *t < LEAST_UNSPLICE_TIME) {
            let message = format!("unsplice {name}={} is too short", Period(time));
            return complaint(message, "use 1ms or more");
        }
    }
    match (splice, until.time()) {
        (SplicePolicy::Never, _) => complaint(
            format!("unsplice {until} is useless: with splice never there is nothing to come back from"),
            "leave unsplice out, or splice: auto, now or after=…",
        ),
        (SplicePolicy::AfterTime(begin), Some(end)) if end <= begin => complaint(
            format!(
                "unsplice after={} comes before splice after={}: the connection would never be spliced",
                Period(end),
                Period(begin)
            ),
            "both count from the beginning, and again from each return: let unsplice come later",
        ),
        _ => None,
    }
}

/// Two listeners may not take the same port of the same address.
pub fn overlap(new: SocketAddr, earlier: SocketAddr) -> Option<String> {
    let same = new.ip() == earlier.ip() || new.ip().is_unspecified() || earlier.ip().is_unspecified();
    let clash = new.port() != 0 && new.port() == earlier.port() && new.is_ipv4() == earlier.is_ipv4() && same;
    clash.then(|| match new == earlier {
        true => format!("{new} is listened on twice"),
        false => format!("{new} includes or is included in {earlier}, which is listened on already"),
    })
}

/// A listener whose target is itself would connect to itself until the descriptors are gone.
pub fn connects_to_itself(listen: SocketAddr, to: &Target) -> Option<String> {
    let to = to.literal()?;
    let local = |ip: IpAddr| ip.is_loopback() || ip.is_unspecified();
    let same_host = to.ip() == listen.ip() || (listen.ip().is_unspecified() && local(to.ip()));
    (to.port() == listen.port() && same_host).then(|| format!("{listen} would forward to itself ({to})"))
}

/// The kernel would refuse a source port that a listener holds.
pub fn in_source_ports(listen: SocketAddr, source_ports: PortRange) -> Option<String> {
    source_ports
        .contains(listen.port())
        .then(|| format!("port {} lies in source_ports ({source_ports})", listen.port()))
}
