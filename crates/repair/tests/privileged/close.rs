//! Tests repair mode, and closing without a segment.

use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    os::fd::OwnedFd,
    time::Duration,
};

use longsplice_core::seq::Seq;
use longsplice_repair::{
    State, close_silently, enter, options, set_initial_sequence, tcp_info, unacknowledged, unread,
};
use socket2::{Domain, Socket, Type};

use crate::common::{kernel_state, pair, pairs, settle};

#[test]
fn a_silent_close_is_not_noticed_by_the_peer() {
    pairs().for_each(closed_in_silence);
}

fn closed_in_silence((mut client, server): (TcpStream, TcpStream)) {
    let (c, s) = (client.local_addr().unwrap(), server.local_addr().unwrap());
    // Unread bytes would make an ordinary close reset the connection.
    client.write_all(b"never read").unwrap();
    settle([&client, &server]);
    let before = tcp_info(&client).unwrap().segs_in();
    close_silently(OwnedFd::from(server)).unwrap();
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(kernel_state(s, c), None, "nothing is left, no TIME-WAIT either");
    assert_eq!(
        kernel_state(c, s).as_deref(),
        Some("01"),
        "the peer is ESTABLISHED"
    );
    let info = tcp_info(&client).unwrap();
    assert_eq!((info.state(), info.segs_in()), (State::Established, before));
    close_silently(OwnedFd::from(client)).unwrap();
}

#[test]
fn leaving_restores_reuse_address() {
    let (client, _server) = pair();
    for reuse in [false, true] {
        options::set_reuse_address(&client, reuse).unwrap();
        enter(&client).unwrap().leave_silently().unwrap();
        assert_eq!(options::reuse_address(&client).unwrap(), reuse);
        drop(enter(&client).unwrap());
        assert_eq!(options::reuse_address(&client).unwrap(), reuse, "dropped");
    }
}

#[test]
fn leaving_emits_no_segment() {
    let (client, server) = pair();
    let before = tcp_info(&server).unwrap().segs_in();
    enter(&client).unwrap().leave_silently().unwrap();
    drop(enter(&client).unwrap());
    assert_eq!(tcp_info(&server).unwrap().segs_in(), before);
}

#[test]
fn a_connection_works_on_after_repair() {
    let (mut client, mut server) = pair();
    enter(&client).unwrap().leave_silently().unwrap();
    enter(&server).unwrap().leave_silently().unwrap();
    client.write_all(b"ping").unwrap();
    let mut got = [0; 4];
    server.read_exact(&mut got).unwrap();
    server.write_all(b"pong").unwrap();
    client.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"pong");
    assert_eq!(unacknowledged(&client).unwrap(), 0);
}

#[test]
fn sequence_numbers_count_what_was_written_and_received() {
    let (mut client, server) = pair();
    let numbers = |s: &TcpStream| {
        let repair = enter(s).unwrap();
        let n = (
            repair.send_sequence().unwrap(),
            repair.receive_sequence().unwrap(),
        );
        repair.leave_silently().unwrap();
        n
    };
    let (c0, s0) = (numbers(&client), numbers(&server));
    assert_eq!(c0, (s0.1, s0.0), "the ends agree");
    client.write_all(&[0; 1000]).unwrap();
    while unread(&server).unwrap() < 1000 {}
    assert_eq!(numbers(&client).0, c0.0 + 1000);
    // Not read yet, and counted all the same.
    assert_eq!(numbers(&server).1, s0.1 + 1000);
}

/// Checks that both ends count from the chosen number, across the wrap, too, and that the kernel chooses for 0.
#[test]
fn the_number_of_the_syn_can_be_chosen() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    for iss in [1, 0x8765_4321, u32::MAX].map(Seq::new) {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        set_initial_sequence(&socket, iss).unwrap();
        socket.connect(&address.into()).unwrap();
        let (peer, _) = listener.accept().unwrap();
        let ours = enter(&socket).unwrap().send_sequence().unwrap();
        let theirs = enter(&peer).unwrap().receive_sequence().unwrap();
        assert_eq!([ours, theirs], [iss + 1; 2]);
        let late = set_initial_sequence(&socket, iss).unwrap_err();
        assert_eq!(late.raw_os_error(), Some(libc::EPERM), "it is connected");
    }
}

#[test]
fn what_cannot_be_closed_in_silence_is_given_back() {
    drop(pair());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let error = close_silently(OwnedFd::from(listener)).unwrap_err();
    assert_eq!(error.source.raw_os_error(), Some(libc::EPERM));
    assert_eq!(
        error.to_string(),
        "the socket was left open: setsockopt(TCP_REPAIR): Operation not permitted (os error 1)"
    );
    TcpStream::connect(address).expect("the listener still listens");
    drop(error.fd);
}
