//! Toward the identity case (papers' section III-F): leg B with the address, the port and the initial sequence number of the
//! client, so that the client's stream has the same numbers on both legs.

use std::{io, net::SocketAddr, os::fd::BorrowedFd};

use longsplice_dataplane::{Dataplane, Leg};
use longsplice_repair::tcp_info;
use tokio::net::TcpStream;

use crate::{
    legs,
    ports::{Origin, connect_from, is_taken},
};

/// Bytes may come between two questions about a socket.
const ATTEMPTS: u32 = 8;

/// Connects to `target` with all that can be the client's. `None` where its port cannot be had: another flow to the target
/// lives on it, or another socket of this host has it.
pub(crate) async fn connect(
    plane: &Dataplane,
    client: BorrowedFd<'_>,
    target: SocketAddr,
    max_segment: Option<u32>,
) -> Option<io::Result<TcpStream>> {
    let addresses = legs::addresses(client).ok()?;
    let local = addresses.peer;
    if plane.in_use(Leg::new(target, local)) {
        return None;
    }
    let origin = Origin {
        local,
        foreign: true,
        initial_sequence: initial_sequence(plane, client, Leg::new(addresses.peer, addresses.local)),
    };
    match connect_from(origin, target, max_segment).await {
        Err(e) if is_taken(&e) => None,
        done => Some(done),
    }
}

/// The sequence number of the client's SYN; `None` where it cannot be told. `leg` is the client's.
fn initial_sequence(plane: &Dataplane, client: BorrowedFd<'_>, leg: Leg) -> Option<u32> {
    let received = || tcp_info(client).ok().map(|info| info.bytes_received());
    (0..ATTEMPTS).find_map(|_| {
        let before = received()?;
        let next = plane.peek(leg).ok()?.rcv_nxt;
        // The SYN takes a number itself; payload and FIN are counted in `bytes_received`.
        let syn = next.wrapping_sub(before as u32).wrapping_sub(1);
        (received()? == before).then_some(syn)
    })
}
