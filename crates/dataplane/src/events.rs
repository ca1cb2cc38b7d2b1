//! Packets that the kernel half hands to user space, through a ring: those that met a trap while there was no socket for
//! them, and copies of what passes.

use std::{
    fmt, io,
    os::fd::{AsFd, BorrowedFd},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use libbpf_rs::{MapCore, MapHandle, RingBuffer, RingBufferBuilder};

use crate::{
    abi::{Pod, Side, ls_event},
    flows::to_io,
    skel::types::ls_event_kind,
};

/// Why user space has a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventKind {
    /// It was not forwarded, and must be injected once there is a socket for it.
    Held,
    /// It was forwarded; this is a copy.
    Copy,
}

/// A packet of a flow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// Why we have it.
    pub kind: EventKind,
    /// The flow's serial number.
    pub serial: u32,
    /// Whose packet it is.
    pub side: Side,
    /// The interface where it came in.
    pub ifindex: u32,
    /// Sequence number of its payload.
    pub seq: u32,
    /// Where its TCP header begins in `packet`: behind IP options or extension headers.
    pub tcp: usize,
    /// Where its payload stands in `packet`; shorter than the rest where a frame was padded.
    pub payload: std::ops::Range<usize>,
    /// The packet from its Ethernet header on.
    pub packet: Vec<u8>,
}

impl Event {
    fn from_sample(sample: &[u8]) -> Option<Event> {
        let head = ls_event::from_bytes(sample)?;
        let packet = sample.get(size_of::<ls_event>()..)?.get(..head.len as usize)?;
        let start = head.offset as usize;
        let payload = start..start.checked_add(head.payload as usize)?;
        packet.get(payload.clone())?;
        let tcp = Some(head.tcp as usize).filter(|&tcp| tcp < start)?;
        Some(Event {
            kind: match ls_event_kind(head.kind) {
                ls_event_kind::LS_E_COPY => EventKind::Copy,
                _ => EventKind::Held,
            },
            serial: head.serial,
            side: if head.side == 0 {
                Side::Client
            } else {
                Side::Server
            },
            ifindex: head.ifindex,
            seq: head.seq,
            tcp,
            payload,
            packet: packet.to_vec(),
        })
    }
}

/// The reader of the ring. Its descriptor is readable when there is something.
pub struct Events {
    ring: RingBuffer<'static>,
    read: Arc<Mutex<Vec<Event>>>,
    _map: MapHandle,
}

impl fmt::Debug for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Events").finish_non_exhaustive()
    }
}

impl Events {
    pub(crate) fn open(map: &MapHandle) -> io::Result<Events> {
        let map = MapHandle::try_from(map).map_err(to_io)?;
        let read = Arc::new(Mutex::new(Vec::new()));
        let into = read.clone();
        let mut builder = RingBufferBuilder::new();
        builder
            .add(&map as &dyn MapCore, move |sample| {
                if let Some(event) = Event::from_sample(sample) {
                    into.lock().unwrap_or_else(PoisonError::into_inner).push(event);
                }
                0
            })
            .map_err(to_io)?;
        Ok(Events {
            ring: builder.build().map_err(to_io)?,
            read,
            _map: map,
        })
    }

    /// What has come since the last call.
    pub fn take(&mut self) -> io::Result<Vec<Event>> {
        self.ring.poll(Duration::ZERO).map_err(to_io)?;
        Ok(std::mem::take(
            &mut *self.read.lock().unwrap_or_else(PoisonError::into_inner),
        ))
    }
}

impl AsFd for Events {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the ring's epoll descriptor lives as long as the ring, which self owns.
        unsafe { BorrowedFd::borrow_raw(self.ring.epoll_fd()) }
    }
}
