//! Checks that apply to the file and to the command line. Each check returns its complaint.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    ops::RangeInclusive,
    time::Duration,
};

use longsplice_core::policy::SplicePolicy;
pub(crate) use longsplice_core::rules::is_interface_name;
use longsplice_engine::Until;

use super::period::Period;
use crate::address::{PortRange, Target};

/// Range of `connect_timeout`.
pub(crate) const CONNECT_TIMEOUT: RangeInclusive<Duration> =
    Duration::from_millis(1)..=Duration::from_secs(600);

/// Range of an accelerator's `min_rtt`.
pub(crate) const MIN_RTT: RangeInclusive<Duration> = Duration::ZERO..=Duration::from_secs(60);

/// Range of an accelerator's `queue`.
pub(crate) const QUEUE: RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_secs(10);

/// Shortest time until an unsplice: with less, a connection would do little but come back.
const LEAST_UNSPLICE_TIME: Duration = Duration::from_millis(1);

/// Error in a setting, with the remedy.
#[derive(Debug)]
pub(crate) struct Complaint {
    pub message: String,
    /// Remedy.
    pub help: &'static str,
}

/// Returns whether the text is a token, as the names of header fields and cookies are (RFC 9110 section 5.6.2).
pub(crate) fn is_token(text: &str) -> bool {
    let tchar = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
    !text.is_empty() && text.bytes().all(tchar)
}

/// Complains about text that cannot be the name of a congestion control. Only the attempt to set it shows whether the
/// kernel has it: it may load a module by the name.
pub(crate) fn congestion(name: &str) -> Option<Complaint> {
    let is_name = !name.is_empty()
        && name.len() < 16
        && name
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-');
    (!is_name).then(|| Complaint {
        message: format!("`{name}` cannot be the name of a congestion control"),
        help: "net.ipv4.tcp_available_congestion_control lists them, such as cubic and bbr",
    })
}

/// Returns whether an interface of this name is there now.
pub(crate) fn is_there(interface: &str) -> bool {
    nix::net::if_::if_nametoindex(interface).is_ok()
}

/// Complains about an interface on which XDP cannot translate segments: it has no driver, or is not watched.
pub(crate) fn xdp(name: &str, watched: Option<&[String]>) -> Option<Complaint> {
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
    unwatched(name, watched, "add it there, or leave it out here")
}

/// Complains about an interface that is not among the watched ones; `None` watches all that are up.
pub(crate) fn unwatched(name: &str, watched: Option<&[String]>, help: &'static str) -> Option<Complaint> {
    let is_unwatched = watched.is_some_and(|all| !all.iter().any(|one| one == name));
    is_unwatched.then(|| Complaint {
        message: format!("`{name}` is not among `interfaces`, so nothing is spliced over it"),
        help,
    })
}

/// Complains about unsplice conditions that a spliced connection could never meet, or would meet all the time.
pub(crate) fn unsplice(splice: SplicePolicy, until: Until) -> Option<Complaint> {
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

/// Complains about two listeners on one port of the same address.
pub(crate) fn overlap(new: SocketAddr, earlier: SocketAddr) -> Option<String> {
    let same = new.ip() == earlier.ip() || new.ip().is_unspecified() || earlier.ip().is_unspecified();
    let clash = new.port() != 0 && new.port() == earlier.port() && new.is_ipv4() == earlier.is_ipv4() && same;
    clash.then(|| match new == earlier {
        true => format!("{new} is listened on twice"),
        false => format!("{new} includes or is included in {earlier}, which is listened on already"),
    })
}

/// Complains about a listener whose target is itself: it would connect to itself until the descriptors are used up.
pub(crate) fn connects_to_itself(listen: SocketAddr, to: &Target) -> Option<String> {
    let to = to.literal()?;
    // The kernel takes the unspecified address for the loopback's.
    let reached = match to.ip() {
        IpAddr::V4(Ipv4Addr::UNSPECIFIED) => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(Ipv6Addr::UNSPECIFIED) => Ipv6Addr::LOCALHOST.into(),
        other => other,
    };
    let same_host = reached == listen.ip() || (listen.ip().is_unspecified() && reached.is_loopback());
    (to.port() == listen.port() && same_host).then(|| format!("{listen} would forward to itself ({to})"))
}

/// Complains about a listener on a source port: the kernel could not use it for connections.
pub(crate) fn in_source_ports(listen: SocketAddr, source_ports: PortRange) -> Option<String> {
    source_ports
        .contains(listen.port())
        .then(|| format!("port {} lies in source_ports ({source_ports})", listen.port()))
}
