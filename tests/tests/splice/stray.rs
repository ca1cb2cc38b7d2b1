//! A parked socket receives a stray packet: it had passed the programs before its flow was registered, on a processor
//! that was stopped then, and its sender retransmits it meanwhile. Such a socket cannot go on: the next bytes would be
//! mistaken for the ones that bypassed it. New sockets are built, and every byte arrives unchanged.

use std::os::fd::{AsFd, OwnedFd};

use longsplice_engine::{Pair as Near, Returned, Side, Until};
use longsplice_repair::{enter, seed_receive_queue};
use longsplice_tests::{
    Pair,
    library::{Call, Depth, Desk, at_once, near, trap_of},
};

const STRAY: &[u8] = b"a stray packet";

/// Makes a dormant pair, and gives the near socket of one side a stray packet.
fn strayed(desk: &Desk, side: Side, until: Until) -> (Pair, Call<'_>) {
    let (mut pair, near) = desk.connect_for(Depth::Dormant);
    let socket = also(&near, side);
    let call = desk.library.splice(near, until);
    desk.library
        .wait_state(pair.client_port(), &[Depth::Dormant.state()]);
    pair.exchange_unevenly(0, 100_000);
    let repair = enter(&socket).unwrap();
    assert_eq!(seed_receive_queue(&repair, STRAY).unwrap(), STRAY.len());
    repair.leave_silently().unwrap();
    (pair, call)
}

/// Duplicates the descriptor of a near socket.
fn also(near: &Near, side: Side) -> OwnedFd {
    let socket = match side {
        Side::Client => &near.client,
        Side::Server => &near.server,
    };
    socket.as_fd().try_clone_to_owned().unwrap()
}

/// Splices the pair once more, to its end.
fn goes_on(desk: &Desk, mut pair: Pair, returned: Returned) {
    let again = at_once(returned, Depth::Dormant);
    let call = desk.library.splice(again, Until::closed());
    pair.exchange(100_000);
    pair.close();
    drop(call);
}

#[test]
fn asked_back() {
    for side in Side::BOTH {
        let desk = Desk::new("stray-asked");
        let (pair, call) = strayed(&desk, side, Until::closed());
        let flow = desk
            .library
            .wait_state(pair.client_port(), &[Depth::Dormant.state()]);
        let returned = desk.library.unsplice(flow.id);
        let returned = returned.unwrap_or_else(|| call.returned());
        assert_eq!(desk.library.splicer().counters().detached_total, 1);
        goes_on(&desk, pair, returned);
    }
}

#[test]
fn woken_by_a_packet() {
    for side in Side::BOTH {
        let desk = Desk::new("stray-woken");
        let (mut pair, call) = strayed(&desk, side, Until::data_from(Side::Client));
        pair.client.send(1000);
        let mut returned = call.returned();
        assert_eq!(returned.why, trap_of(Side::Client));
        assert_eq!(desk.library.splicer().counters().detached_total, 1);
        let request = desk.library.read(near(&mut returned, Side::Client), 1000);
        desk.library.write(near(&mut returned, Side::Server), &request);
        pair.server.receive(1000);
        goes_on(&desk, pair, returned);
    }
}
