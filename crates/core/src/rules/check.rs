//! Finds errors in rules, and names their remedies.

use std::net::SocketAddr;

use super::{Action, Flags, MAX_TEXT, Rule, Translation};

/// Limit of the entries of a set: a packet is compared with each until one fits.
pub const MAX_ENTRIES: usize = 256;
/// Limit of the listeners and translations that a set can name.
pub const MAX_TARGETS: usize = 64;

/// Error for which rules cannot be a set.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("rule {number} (`{name}`): {what}")]
pub struct CompileError {
    /// Number of the rule, from 0.
    pub index: usize,
    pub(super) number: usize,
    pub(super) name: String,
    /// Error of the rule, with its remedy.
    pub what: Wrong,
}

/// Error of a rule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Wrong {
    /// The set has more than [`MAX_ENTRIES`].
    #[error(
        "with it the set has {0} entries, and {MAX_ENTRIES} is the most: a rule is one for each combination of its \
         networks and ports, so join networks, or leave rules out"
    )]
    TooMany(usize),
    /// The set has more than [`MAX_TARGETS`].
    #[error(
        "it is the {0}th listener or translation, and {MAX_TARGETS} is the most: join rules that have the same one"
    )]
    TooManyTargets(usize),
    /// A name or reason cannot be shown.
    #[error("{0} must have 1 to {MAX_TEXT} bytes and no control characters")]
    Text(&'static str),
    /// Two rules have the same name.
    #[error("another rule has this name: counters could not be told apart, so give each its own")]
    Twice,
    /// Source and destination are always of different families.
    #[error(
        "no packet has an IPv4 address and an IPv6 address: name networks of one family in `from` and `to`"
    )]
    Families,
    /// The interface is the loopback.
    #[error("this is for packets that come from outside, not for those on `lo`: name another interface")]
    Loopback,
    /// The kernel does not take the name of the interface.
    #[error("`{0}` cannot be the name of an interface: `ip -br link` lists them")]
    Interface(String),
    /// The rule has flags, although its action selects the packets.
    #[error("deliver and follow take every packet of a connection: leave `flags` out")]
    Flags,
    /// There is no listener to deliver to.
    #[error("there is no listener to deliver to")]
    NoListener,
    /// Two listeners are of the same family.
    #[error("{0} and {1} are two listeners of one family: name one")]
    TwoListeners(SocketAddr, SocketAddr),
    /// A network is of a family that has no listener.
    #[error(
        "{0} is of another family than what it is given to: name a listener of its family, too, or leave it out"
    )]
    NoFamily(String),
    /// The port is 0.
    #[error("{0} has no port: write one from 1 to 65535")]
    Port(SocketAddr),
    /// The interfaces of a flow can change.
    #[error(
        "the packets of a spliced flow may come in on any interface: leave `interface` out, and name networks in `from` \
         or `to`"
    )]
    SplicedInterface,
    /// The flags change from segment to segment.
    #[error(
        "a rule is decided once for a spliced flow, whatever its segments' flags: leave `flags` out, or write any"
    )]
    SplicedFlags,
    /// The action is one for packets that come to the stack.
    #[error(
        "`{0}` is not possible for spliced flows: use pass, drop, count or limit, or leave `spliced` out"
    )]
    SplicedAction(&'static str),
    /// The action is one for spliced flows.
    #[error("`limit` is for spliced flows: write spliced = true, or limit a listener by its `rate_limit`")]
    LimitOfPackets,
    /// The addresses are of two families.
    #[error("a translation is from and to addresses of one family")]
    Mixed,
}

/// Checks a rule by itself.
pub(super) fn check(rule: &Rule) -> Result<(), Wrong> {
    let text = |what, text: &str| match (1..=MAX_TEXT).contains(&text.len())
        && !text.chars().any(char::is_control)
    {
        true => Ok(()),
        false => Err(Wrong::Text(what)),
    };
    text("the name", &rule.name)?;
    check_spliced(rule)?;
    let m = &rule.matching;
    if let Some(name) = &m.interface {
        check_interface(name)?;
    }
    // Each value is an entry at least; this check bounds the combinations below.
    let longest = [m.from.len(), m.to.len(), m.from_ports.len(), m.to_ports.len()]
        .into_iter()
        .max();
    if let Some(longest) = longest.filter(|n| *n > MAX_ENTRIES) {
        return Err(Wrong::TooMany(longest));
    }
    match &rule.action {
        Action::Drop { reason } => text("the reason", reason),
        Action::Deliver { .. } | Action::Follow if rule.matching.flags != Flags::default() => {
            Err(Wrong::Flags)
        }
        Action::Deliver { to } => check_listeners(to),
        Action::Translate(t) => check_translation(t),
        _ => Ok(()),
    }
}

/// Checks that a rule for spliced flows can be decided for a flow as a whole.
fn check_spliced(rule: &Rule) -> Result<(), Wrong> {
    let m = &rule.matching;
    match &rule.action {
        Action::Limit { .. } if !m.spliced => return Err(Wrong::LimitOfPackets),
        Action::Pass | Action::Drop { .. } | Action::Count | Action::Limit { .. } => {}
        action if m.spliced => return Err(Wrong::SplicedAction(action.as_str())),
        _ => {}
    }
    match m.spliced {
        true if m.interface.is_some() => Err(Wrong::SplicedInterface),
        true if m.flags != Flags::default() && m.flags != Flags::ANY => Err(Wrong::SplicedFlags),
        _ => Ok(()),
    }
}

/// Returns whether the kernel takes this name for a network interface.
pub fn is_interface_name(name: &str) -> bool {
    let good = |b: u8| b.is_ascii_graphic() && b != b'/' && b != b':';
    (1..=15).contains(&name.len()) && name != "." && name != ".." && name.bytes().all(good)
}

fn check_interface(name: &str) -> Result<(), Wrong> {
    match is_interface_name(name) {
        _ if name == "lo" => Err(Wrong::Loopback),
        true => Ok(()),
        false => Err(Wrong::Interface(name.escape_default().to_string())),
    }
}

fn check_listeners(to: &[SocketAddr]) -> Result<(), Wrong> {
    let none = to.iter().find(|a| a.port() == 0);
    match (none, to) {
        (Some(a), _) => Err(Wrong::Port(*a)),
        (_, []) => Err(Wrong::NoListener),
        (_, [_]) => Ok(()),
        (_, [a, b]) if a.is_ipv4() != b.is_ipv4() => Ok(()),
        (_, [a, b, ..]) => Err(Wrong::TwoListeners(*a, *b)),
    }
}

fn check_translation(t: &Translation) -> Result<(), Wrong> {
    match (t.from, t.to) {
        (SocketAddr::V4(_), SocketAddr::V4(_)) | (SocketAddr::V6(_), SocketAddr::V6(_)) => Ok(()),
        _ => Err(Wrong::Mixed),
    }
}
