//! Sets what a new namespace would inherit from the machine: a measurement must not depend on it.

use std::net::IpAddr;

use super::Family;
use crate::{Error, Namespace, tool};

/// Makes the settings common to all nodes; with `large_buffers` sockets may use up to 32 MiB for each direction.
pub(super) fn common(namespace: &Namespace, family: Family, large_buffers: bool) -> Result<(), Error> {
    allow_cubic()?;
    ipv6(namespace, family)?;
    namespace.sysctl("net.ipv4.tcp_congestion_control", "cubic")?;
    // Otherwise the second connection would begin with the metrics of the first one.
    namespace.sysctl("net.ipv4.tcp_no_metrics_save", "1")?;
    namespace.sysctl("net.ipv4.conf.all.rp_filter", "0")?;
    namespace.sysctl("net.ipv4.conf.default.rp_filter", "0")?;
    let (read, write) = if large_buffers {
        (32 << 20, 32 << 20)
    } else {
        (6 << 20, 4 << 20)
    };
    namespace.sysctl("net.ipv4.tcp_rmem", &format!("4096 131072 {read}"))?;
    namespace.sysctl("net.ipv4.tcp_wmem", &format!("4096 16384 {write}"))
}

/// Sets up IPv6. Call it before there are devices, which inherit these settings.
fn ipv6(namespace: &Namespace, family: Family) -> Result<(), Error> {
    if family == Family::V4 && !std::fs::exists("/proc/sys/net/ipv6").unwrap_or(false) {
        return Ok(());
    }
    let off = if family == Family::V4 { "1" } else { "0" };
    for of in ["all", "default"] {
        // Keep router solicitations out of the packets that a test counts.
        namespace.sysctl(&format!("net.ipv6.conf.{of}.disable_ipv6"), off)?;
        // Duplicate detection of link-local addresses.
        namespace.sysctl(&format!("net.ipv6.conf.{of}.accept_dad"), "0")?;
        namespace.sysctl(&format!("net.ipv6.conf.{of}.accept_ra"), "0")?;
        namespace.sysctl(&format!("net.ipv6.conf.{of}.router_solicitations"), "0")?;
    }
    Ok(())
}

/// Enables or disables routing in the node's kernel.
pub(super) fn forward(namespace: &Namespace, family: Family, forward: bool) -> Result<(), Error> {
    let value = if forward { "1" } else { "0" };
    for family in family.present() {
        namespace.sysctl(
            match family {
                Family::V4 => "net.ipv4.ip_forward",
                Family::V6 => "net.ipv6.conf.all.forwarding",
            },
            value,
        )?;
    }
    Ok(())
}

/// Adds a default route via the node with this address, in each family that is present.
pub(super) fn default_route(namespace: &Namespace, via: IpAddr) -> Result<(), Error> {
    for family in Family::of(via).present() {
        let via = family.addr(via);
        tool::ip(&format!(
            "-n {} -{family} route add default via {via}",
            namespace.name()
        ))?;
    }
    Ok(())
}

/// Lets namespaces choose CUBIC. On a machine whose default is another algorithm it is "restricted", and only the
/// machine's own namespace may have it as a default. This is the only setting that is changed on the machine itself.
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
