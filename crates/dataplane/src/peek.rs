//! What a socket knows of its connection and no option tells (bpf/sockets.bpf.c).

use std::{io, os::fd::BorrowedFd};

use crate::{
    abi::{Leg, Pod, ls_peek},
    run::{self, Context},
};

const ETH_HLEN: usize = 14;

/// Sequence numbers, windows and route of a connection, read in one system call without stopping the socket.
#[derive(Debug, Clone, Copy)]
pub struct Peek {
    /// Next sequence number expected from the peer.
    pub rcv_nxt: u32,
    /// Next one that the process will read.
    pub copied_seq: u32,
    /// Next one to be sent.
    pub snd_nxt: u32,
    /// Oldest one unacknowledged.
    pub snd_una: u32,
    /// End of what the process has written.
    pub write_seq: u32,
    /// Right edge of the window offered to the peer.
    pub offered_edge: u32,
    /// Right edge of the window that the peer offers.
    pub peer_edge: u32,
    /// The peer's timestamp to be echoed (RFC 7323 section 4.3).
    pub ts_recent: u32,
    /// The MSS that the peer offered (RFC 9293 section 3.7.1), or less where the socket was told so.
    pub mss_clamp: u32,
    /// Interface of the route to the peer; 1, the loopback, where the peer is local; 0 where there is none.
    pub ifindex: u32,
}

/// Looks at the connection of this leg. An error of kind `NotFound` if there is none.
pub(crate) fn peek(program: BorrowedFd<'_>, leg: Leg) -> io::Result<Peek> {
    let question = ls_peek {
        key: leg.tuple(),
        ..Default::default()
    };
    let mut packet = [0; ETH_HLEN + size_of::<ls_peek>()];
    packet[ETH_HLEN..].copy_from_slice(question.bytes());
    let answer = run::over_packet(program, &packet, Context::default(), 1)?;
    if answer.verdict != 0 || answer.packet.len() != packet.len() {
        return Err(io::Error::other("the peek program could not answer"));
    }
    let p = ls_peek::from_bytes(&answer.packet[ETH_HLEN..]).filter(|p| p.found == 1);
    let p = p.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "no such connection"))?;
    Ok(Peek {
        rcv_nxt: p.rcv_nxt,
        copied_seq: p.copied_seq,
        snd_nxt: p.snd_nxt,
        snd_una: p.snd_una,
        write_seq: p.write_seq,
        offered_edge: p.rcv_wup.wrapping_add(p.rcv_wnd),
        peer_edge: p.snd_una.wrapping_add(p.snd_wnd),
        ts_recent: p.ts_recent,
        mss_clamp: p.mss_clamp,
        ifindex: p.ifindex,
    })
}
