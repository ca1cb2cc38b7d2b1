//! Prepares the identity case (papers' section III-F): connects leg B from the address, the port and the initial sequence
//! number of the client, so that the client's stream has the same numbers on both legs.

use std::{io, net::SocketAddr, os::fd::BorrowedFd};

use longsplice_core::seq::Seq;
use longsplice_dataplane::{Dataplane, Leg};
use longsplice_repair::tcp_info;
use socket2::SockRef;
use tokio::net::TcpStream;

use crate::{
    flow::assess as legs,
    services::{
        ports::{Origin, connect_from, is_refused, is_taken},
        targets::Request,
    },
};

/// Attempts to read a socket's state: bytes may come between two reads.
const ATTEMPTS: u32 = 8;

/// Connects to `target` with as much of the client's identity as possible, and with the mark of its socket. Returns `None` if
/// the client's port is not free: another flow to the target uses it, or another socket of this host has it.
pub(crate) async fn connect(
    plane: &Dataplane,
    client: BorrowedFd<'_>,
    target: SocketAddr,
    request: Request<'_>,
) -> Option<io::Result<TcpStream>> {
    let addresses = legs::addresses(client).ok()?;
    let local = addresses.peer;
    let tuple = Leg::new(target, local);
    if plane.in_use(tuple) {
        return None;
    }
    let origin = Origin {
        initial_sequence: initial_sequence(plane, client, Leg::new(addresses.peer, addresses.local)),
        mark: SockRef::from(&client).mark().unwrap_or_default(),
        ..Origin::new(local, true)
    };
    match connect_from(origin, target, request).await {
        Err(e) if is_taken(&e) => None,
        // A flow took that port meanwhile: the refusal is not the target's.
        Err(e) if is_refused(&e) && plane.in_use(tuple) => None,
        done => Some(done),
    }
}

/// Returns the sequence number of the client's SYN; `None` if it cannot be determined. `leg` is the client's.
fn initial_sequence(plane: &Dataplane, client: BorrowedFd<'_>, leg: Leg) -> Option<Seq> {
    let received = || tcp_info(client).ok().map(|info| info.bytes_received());
    (0..ATTEMPTS).find_map(|_| {
        let before = received()?;
        let next = plane.inspect(leg).ok()?.rcv_nxt;
        // The SYN takes a number itself; payload and FIN are counted in `bytes_received`.
        let syn = next - before as u32 - 1;
        (received()? == before).then_some(syn)
    })
}
