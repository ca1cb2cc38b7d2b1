//! How a splicer is set up.

use std::{ops::RangeInclusive, time::Duration};

use longsplice_dataplane::XdpMode;

/// How a [`crate::Splicer`] is set up.
#[derive(Debug, Clone)]
pub struct SplicerConfig {
    /// Names the pins (`/sys/fs/bpf/longsplice-NAME`): instances with different names do not disturb each other. What a file
    /// name may have, without a dot; one process at a time.
    pub instance: String,
    /// Only these interfaces are watched; `None`: all that routes use, and the loopback, followed when they change.
    pub interfaces: Option<Vec<String>>,
    /// On these of them, detached flows are translated in XDP, before the IP stack (papers' IP/FWD). A flow gains where both
    /// its interfaces are among them. An interface that cannot is left to tc, with a warning.
    pub xdp: Vec<String>,
    /// Where in the kernel XDP runs on them: it is never another mode than this.
    pub xdp_mode: XdpMode,
    /// How many flows may be spliced at once (1 to 2^26). Fixed while pins of the instance live; about 250 bytes each,
    /// allocated at once.
    pub max_flows: u32,
    /// How many of them may have sockets at once: in transition, dormant, or just come back (1 to 2^20). The rest must be
    /// detached, and comes back only when there is room. Fixed likewise; about 600 bytes each, likewise.
    pub max_dormant: u32,
    /// Source ports of the legs to the targets, 1 to 65535; `None`: a range that the kernel does not hand out itself
    /// (outside `net.ipv4.ip_local_port_range`).
    pub source_ports: Option<RangeInclusive<u16>>,
    /// A detached flow in which nothing passed for this long is ended: its records go, and its ends are reset by their next
    /// segment. Looked at once a second; a tick of the records is about 1.1 s.
    pub idle_timeout: Duration,
    /// How long the record of a flow outlives its close (2 MSL, RFC 9293 section 3.6.1).
    pub linger: Duration,
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
            linger: Duration::from_secs(60),
        }
    }
}
