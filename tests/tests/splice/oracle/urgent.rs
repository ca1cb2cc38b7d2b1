//! Urgent data passes inline, with its mark where that is possible.

use std::{
    io::{Read, Write},
    net::TcpStream,
};

use longsplice_engine::{PerSide, Side, Trap, Until};
use longsplice_lab::pattern::Pattern;
use longsplice_tests::{
    Bed, Policy, SOON,
    library::{Depth, Desk},
};
use socket2::SockRef;

/// Sends a stream with an urgent byte in it, to a peer that reads urgent data inline, and checks it.
fn urgent(client: &mut TcpStream, server: &mut TcpStream, seed: u64) {
    SockRef::from(&*server).set_out_of_band_inline(true).unwrap();
    let text = Pattern::new(seed);
    client.write_all(text.at(0, 1_000)).unwrap();
    assert_eq!(
        SockRef::from(&*client)
            .send_out_of_band(text.at(1_000, 1))
            .unwrap(),
        1
    );
    client.write_all(text.at(1_001, 999)).unwrap();
    let mut there = vec![0; 2_000];
    server.set_read_timeout(Some(SOON)).unwrap();
    server
        .read_exact(&mut there)
        .unwrap_or_else(|e| panic!("with an urgent byte: {e}"));
    assert_eq!(text.mismatch(0, &there), None);
}

/// Spliced, an urgent byte is a byte like the others, with its mark; the stream stays whole.
#[test]
fn urgent_data_passes_a_splice() {
    for depth in Depth::BOTH {
        let desk = Desk::new("or-urgent");
        let (mut pair, call) = desk.spliced(depth, Until::bytes_from(Side::Server, 100));
        for round in 0..5 {
            urgent(&mut pair.client.stream, &mut pair.server.stream, round);
        }
        pair.server.send(101);
        pair.client.receive(100);
        let returned = call.returned();
        assert_eq!(returned.passed, PerSide::new(10_000, 100));
    }
}

/// Relayed, the byte must not be lost either, also around a return and the next splice.
#[test]
fn urgent_data_passes_a_relay() {
    for (policy, state) in Policy::BOTH_ON_DEMAND {
        let bed = Bed::new("or-urgent-relay", policy);
        let mut pair = bed.connect();
        urgent(&mut pair.client.stream, &mut pair.server.stream, 1);
        bed.splice(&pair, state);
        urgent(&mut pair.client.stream, &mut pair.server.stream, 2);
        let id = bed.daemon.wait_state(pair.client_port(), &[state]).id;
        bed.daemon.unsplice(id).unwrap();
        bed.daemon
            .wait_state(pair.client_port(), &["relay", "undraining"]);
        urgent(&mut pair.client.stream, &mut pair.server.stream, 3);
        pair.close();
    }
}

/// Urgent data is data: it fires a trap, and is read inline.
#[test]
fn urgent_data_is_trapped() {
    for depth in Depth::BOTH {
        let desk = Desk::new("or-urgent-trap");
        let (pair, near_pair) = desk.connect_for(depth);
        let call = desk.library.splice(near_pair, Until::data_from(Side::Client));
        desk.library.wait_state(pair.client_port(), &[depth.state()]);
        assert_eq!(
            SockRef::from(&pair.client.stream).send_out_of_band(b"!").unwrap(),
            1
        );
        let mut returned = call.returned();
        assert_eq!((returned.why, returned.passed), (Trap::Client, PerSide::both(0)));
        // A rebuilt socket lacks this option.
        SockRef::from(&returned.client)
            .set_out_of_band_inline(true)
            .unwrap();
        assert_eq!(desk.library.read(&mut returned.client, 1), b"!");
    }
}
