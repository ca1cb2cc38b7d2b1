//! Settings that a new namespace would take over from the machine: a measurement must not depend on them.

use crate::{Error, Namespace};

/// Sets up what is common to all nodes; with `large_buffers` sockets may use up to 32 MiB for each direction.
pub(super) fn common(namespace: &Namespace, large_buffers: bool) -> Result<(), Error> {
    allow_cubic()?;
    namespace.sysctl("net.ipv4.tcp_congestion_control", "cubic")?;
    // Or the second connection would begin with what the first one learned.
    namespace.sysctl("net.ipv4.tcp_no_metrics_save", "1")?;
    namespace.sysctl("net.ipv4.conf.all.rp_filter", "0")?;
    namespace.sysctl("net.ipv4.conf.default.rp_filter", "0")?;
    if std::fs::exists("/proc/sys/net/ipv6").unwrap_or(false) {
        // No router solicitations among the packets that a test counts.
        namespace.sysctl("net.ipv6.conf.all.disable_ipv6", "1")?;
        namespace.sysctl("net.ipv6.conf.default.disable_ipv6", "1")?;
    }
    let (read, write) = if large_buffers {
        (32 << 20, 32 << 20)
    } else {
        (6 << 20, 4 << 20)
    };
    namespace.sysctl("net.ipv4.tcp_rmem", &format!("4096 131072 {read}"))?;
    namespace.sysctl("net.ipv4.tcp_wmem", &format!("4096 16384 {write}"))
}

/// Whether the node's kernel routes.
pub(super) fn forward(namespace: &Namespace, forward: bool) -> Result<(), Error> {
    namespace.sysctl("net.ipv4.ip_forward", if forward { "1" } else { "0" })
}

/// Lets namespaces choose CUBIC. On a machine whose default is another algorithm it is "restricted", and only
/// the machine's own namespace may have it as a default. This is the one setting of the machine that changes.
fn allow_cubic() -> Result<(), Error> {
    const ALLOWED: &str = "/proc/sys/net/ipv4/tcp_allowed_congestion_control";
    let allowed =
        std::fs::read_to_string(ALLOWED).map_err(Error::io("read the allowed congestion controls"))?;
    if allowed.split_whitespace().any(|name| name == "cubic") {
        return Ok(());
    }
    std::fs::write(ALLOWED, format!("{} cubic", allowed.trim()))
        .map_err(Error::io("allow the congestion control cubic"))
}
