//! Reads packets that the kernel half hands to user space through a ring: those that met a trap while there was no socket
//! for them, and copies of forwarded ones.

use longsplice_core::seq::Seq;

use crate::{
    abi::{Pod, Side, ls_event},
    skel::types::ls_event_kind,
};

/// Reason that user space gets a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventKind {
    /// It was not forwarded, and must be injected once there is a socket for it.
    Held,
    /// It was forwarded; this is a copy.
    Copy,
    /// There is none: an acknowledgement came for which [`Slot::watch`](crate::Slot::watch) was called.
    News,
}

/// Holds a packet of a flow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// Reason that we have it.
    pub kind: EventKind,
    /// Serial number of the flow.
    pub serial: u32,
    /// Side whose peer sent it.
    pub side: Side,
    /// Interface at which it came in.
    pub ifindex: u32,
    /// Sequence number of its payload.
    pub seq: Seq,
    /// Offset of its TCP header in `packet`: behind IP options or extension headers.
    pub tcp: usize,
    /// Range of its payload in `packet`; shorter than the rest if the frame was padded.
    pub payload: std::ops::Range<usize>,
    /// Packet from its Ethernet header on.
    pub packet: Vec<u8>,
}

impl Event {
    pub(crate) fn from_sample(sample: &[u8]) -> Option<Event> {
        let head = ls_event::from_bytes(sample)?;
        let kind = match ls_event_kind(head.kind) {
            ls_event_kind::LS_E_COPY => EventKind::Copy,
            ls_event_kind::LS_E_NEWS => EventKind::News,
            _ => EventKind::Held,
        };
        let packet = sample.get(size_of::<ls_event>()..)?.get(..head.len as usize)?;
        let start = head.offset as usize;
        let payload = start..start.checked_add(head.payload as usize)?;
        packet.get(payload.clone())?;
        let tcp = Some(head.tcp as usize).filter(|&tcp| tcp < start || kind == EventKind::News)?;
        Some(Event {
            kind,
            serial: head.serial,
            side: if head.side == 0 {
                Side::Client
            } else {
                Side::Server
            },
            ifindex: head.ifindex,
            seq: Seq::new(head.seq),
            tcp,
            payload,
            packet: packet.to_vec(),
        })
    }
}
