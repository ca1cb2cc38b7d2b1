//! Reads the state of a socket's connection that no socket option returns (bpf/inspect.bpf.c).

use std::{io, os::fd::BorrowedFd};

use longsplice_core::seq::Seq;

use crate::{
    abi::{Leg, Mapping, PerSide, ls_inspection, ls_inspections},
    run,
};

/// Sequence numbers, windows and route of a connection, read in one system call without stopping the socket.
#[derive(Debug, Clone, Copy)]
pub struct Inspection {
    /// Next sequence number expected from the peer.
    pub rcv_nxt: Seq,
    /// Next sequence number that the process will read.
    pub copied_seq: Seq,
    /// Next sequence number to be sent.
    pub snd_nxt: Seq,
    /// Oldest unacknowledged sequence number.
    pub snd_una: Seq,
    /// End of the data that the process has written.
    pub write_seq: Seq,
    /// Right edge of the window offered to the peer.
    pub offered_edge: Seq,
    /// Right edge of the window that the peer offers.
    pub peer_edge: Seq,
    /// Largest window that the peer has offered, in bytes.
    pub peer_window: u32,
    /// Timestamp of the peer to be echoed (RFC 7323 section 4.3).
    pub ts_recent: u32,
    /// MSS that the peer offered (RFC 9293 section 3.7.1), or less if the socket was told so.
    pub mss_clamp: u32,
    /// Interface of the route to the peer; 1, the loopback, if the peer is local; 0 if there is no route.
    pub ifindex: u32,
    /// True if the socket holds segments beyond a hole.
    pub out_of_order: bool,
    /// True if its bytes are not those on the wire: an upper layer is between (kTLS, MPTCP).
    pub layered: bool,
}

impl Inspection {
    /// Returns the state of a connection whose streams have come to these numbers, with all bytes read and acknowledged,
    /// and with these windows, the one offered to the peer first (bytes): for records of artificial flows. It has no
    /// route.
    pub fn at_rest(received: Seq, sent: Seq, [offered, granted]: [u32; 2]) -> Inspection {
        Inspection {
            rcv_nxt: received,
            copied_seq: received,
            snd_nxt: sent,
            snd_una: sent,
            write_seq: sent,
            offered_edge: received + offered,
            peer_edge: sent + granted,
            peer_window: granted,
            ts_recent: 0,
            mss_clamp: 1460,
            ifindex: 0,
            out_of_order: false,
            layered: false,
        }
    }

    /// Translates the state of a socket that was spliced before to the numbers of the wire.
    #[must_use]
    pub fn on_the_wire(self, map: Mapping) -> Inspection {
        Inspection {
            rcv_nxt: self.rcv_nxt - map.seq,
            copied_seq: self.copied_seq - map.seq,
            offered_edge: self.offered_edge - map.seq,
            snd_nxt: self.snd_nxt - map.ack,
            snd_una: self.snd_una - map.ack,
            write_seq: self.write_seq - map.ack,
            peer_edge: self.peer_edge - map.ack,
            ..self
        }
    }
}

/// Looks at the connection of this leg. An error of kind `NotFound` if there is none.
pub(crate) fn inspect(program: BorrowedFd<'_>, leg: Leg) -> io::Result<Inspection> {
    Inspection::from_answer(&run::question(program, &question(leg))?)
}

/// Looks at two connections in one system call; errors are those of [`inspect`].
pub(crate) fn both(program: BorrowedFd<'_>, legs: PerSide<Leg>) -> io::Result<PerSide<Inspection>> {
    let answer = run::question(
        program,
        &ls_inspections {
            leg: legs.map(question).into(),
        },
    )?;
    PerSide::try_from_fn(|side| Inspection::from_answer(&answer.leg[side]))
}

fn question(leg: Leg) -> ls_inspection {
    ls_inspection {
        key: leg.tuple(),
        ..Default::default()
    }
}

impl Inspection {
    fn from_answer(p: &ls_inspection) -> io::Result<Inspection> {
        if p.found != 1 {
            return Err(io::Error::new(io::ErrorKind::NotFound, "no such connection"));
        }
        Ok(Inspection {
            rcv_nxt: Seq::new(p.rcv_nxt),
            copied_seq: Seq::new(p.copied_seq),
            snd_nxt: Seq::new(p.snd_nxt),
            snd_una: Seq::new(p.snd_una),
            write_seq: Seq::new(p.write_seq),
            offered_edge: Seq::new(p.rcv_wup) + p.rcv_wnd,
            peer_edge: Seq::new(p.snd_una) + p.snd_wnd,
            peer_window: p.max_window,
            ts_recent: p.ts_recent,
            mss_clamp: p.mss_clamp,
            ifindex: p.ifindex,
            out_of_order: p.out_of_order != 0,
            layered: p.layered != 0,
        })
    }
}
