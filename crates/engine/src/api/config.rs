//! Configuration of a splicer.

use std::{ops::RangeInclusive, time::Duration};

use longsplice_dataplane::XdpMode;

/// Configures a [`crate::Splicer`].
#[derive(Debug, Clone)]
pub struct SplicerConfig {
    /// Name of the pins (`/sys/fs/bpf/longsplice-NAME`): instances with different names do not disturb each other.
    /// Allowed is what a file name may have, without a dot. Run one process for each name at a time.
    pub instance: String,
    /// Interfaces to watch. `None` watches all that are up, with routes or without, and follows changes.
    pub interfaces: Option<Vec<String>>,
    /// Watched interfaces on which detached flows are translated in XDP, before the IP stack (papers' IP/FWD). A flow
    /// gains if both its interfaces are listed here. An interface without XDP support is left to tc, with a warning.
    pub xdp: Vec<String>,
    /// Mode in which the kernel runs XDP on the interfaces of `xdp`: it is never another mode than this.
    pub xdp_mode: XdpMode,
    /// Maximum number of flows that are spliced at once (1 to 2^26). Fixed while pins of the instance live; about 250
    /// bytes each, allocated at once.
    pub max_flows: u32,
    /// Maximum number of flows that have sockets at once: in transition, dormant, or just come back (1 to 2^20). The rest
    /// must be detached, and come back only when there is room. Fixed while pins of the instance live; about 600 bytes
    /// each, allocated at once.
    pub max_dormant: u32,
    /// Source ports of the legs to the targets, 1 to 65535. `None` takes a range that the kernel does not hand out itself
    /// (outside `net.ipv4.ip_local_port_range`).
    pub source_ports: Option<RangeInclusive<u16>>,
    /// Ends a detached flow in which nothing passed for this long: its records are removed, and its ends are reset by
    /// their next segment. Checked once a second; a tick of the records is about 1.1 s.
    pub idle_timeout: Duration,
    /// Time that the record of a flow outlives its close (2 MSL, RFC 9293 section 3.6.1).
    pub record_ttl: Duration,
}

impl Default for SplicerConfig {
    fn default() -> Self {
        SplicerConfig {
            instance: "default".into(),
            interfaces: None,
            xdp: Vec::new(),
            xdp_mode: XdpMode::default(),
            max_flows: 65_536,
            max_dormant: 4_096,
            source_ports: None,
            idle_timeout: Duration::from_secs(24 * 3600),
            record_ttl: Duration::from_secs(60),
        }
    }
}
