//! Reads packets that rules send to a program.

use crate::{abi::Pod, skel::rule_types::ls_rule_packet};

/// Holds a packet that matched a rule whose action is `ask` or `copy`, or that a socket awaited
/// ([`Rules::await_segment`](super::Rules::await_segment)).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RulePacket {
    /// Index of the rule in its set, from 0. The set may have been replaced since.
    pub rule: usize,
    /// True if the packet went on; otherwise only the program has it.
    pub copy: bool,
    /// Interface at which it came in.
    pub ifindex: u32,
    /// Time at which it came in, in nanoseconds ([`monotonic`](crate::monotonic)).
    pub at: u64,
    /// Packet from its Ethernet header on.
    pub packet: Vec<u8>,
}

impl RulePacket {
    pub(super) fn from_sample(sample: &[u8]) -> Option<RulePacket> {
        let head = ls_rule_packet::from_bytes(sample)?;
        let packet = sample
            .get(size_of::<ls_rule_packet>()..)?
            .get(..head.len as usize)?;
        Some(RulePacket {
            rule: head.rule as usize,
            copy: head.copy != 0,
            ifindex: head.ifindex,
            at: head.at,
            packet: packet.to_vec(),
        })
    }
}
