//! Packets that rules have for a program.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
};

use libbpf_rs::MapHandle;

use crate::{abi::Pod, ring::Ring, skel::rule_types::ls_rule_packet};

/// A packet that met a rule whose action is `ask` or `copy`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RulePacket {
    /// The place of the rule in its set, from 0. The set may have been replaced since.
    pub rule: usize,
    /// Whether the packet went on; else nobody has it but the program.
    pub copy: bool,
    /// The interface where it came in.
    pub ifindex: u32,
    /// From its Ethernet header on.
    pub packet: Vec<u8>,
}

impl RulePacket {
    fn from_sample(sample: &[u8]) -> Option<RulePacket> {
        let head = ls_rule_packet::from_bytes(sample)?;
        let packet = sample
            .get(size_of::<ls_rule_packet>()..)?
            .get(..head.len as usize)?;
        Some(RulePacket {
            rule: head.rule as usize,
            copy: head.copy != 0,
            ifindex: head.ifindex,
            packet: packet.to_vec(),
        })
    }
}

/// Their reader. Its descriptor is readable when there are some.
#[derive(Debug)]
pub struct Packets(Ring<RulePacket>);

impl Packets {
    pub(super) fn open(map: &MapHandle) -> io::Result<Packets> {
        Ring::open(map, RulePacket::from_sample).map(Packets)
    }

    /// What has come since the last call.
    ///
    /// # Errors
    /// The ring cannot be read.
    pub fn take(&mut self) -> io::Result<Vec<RulePacket>> {
        self.0.take()
    }
}

impl AsFd for Packets {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
