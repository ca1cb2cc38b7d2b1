//! Tests that a thawed socket retransmits bytes that its predecessor sent and the peer lacks.

use std::{fs, net::TcpStream, thread, time::Instant};

use longsplice_core::seq::Seq;
use longsplice_repair::{enter, fit_send_buffer, options, seed_send_queue, tcp_info, unacknowledged, unsent};
use socket2::SockRef;

use crate::common::{Made, Random, carry, expect, settle, write};

fn seed(socket: &TcpStream, bytes: &[u8]) -> usize {
    let repair = enter(socket).unwrap();
    let taken = seed_send_queue(&repair, bytes).unwrap();
    let end = repair.send_sequence().unwrap();
    repair.leave_silently().unwrap();
    assert_eq!(end, Seq::new(START) + taken as u32);
    taken
}

const START: u32 = u32::MAX - 2000;

#[test]
fn what_the_peer_lacks_is_repeated_until_it_is_acknowledged() {
    let bytes = Random::new(11).bytes(40_000);
    let (a, b) = Made::new(START, 5, 1_000_000).thaw();
    assert_eq!(seed(&a, &bytes), bytes.len());
    assert_eq!((unacknowledged(&a).unwrap(), unsent(&a).unwrap()), (40_000, 0));
    assert_eq!(tcp_info(&b).unwrap().segs_in(), 0, "nothing is sent at once");
    let start = Instant::now();
    expect(&b, &bytes);
    println!("40 kB by the timer: {:?}", start.elapsed());
    settle([&a, &b]);
    carry(&a, &b, b"and on");
    carry(&b, &a, b"and back");
}

#[test]
fn what_the_peer_has_in_part_is_repeated_from_there() {
    let bytes = Random::new(12).bytes(9000);
    let mut made = Made::new(START, 5, 1_000_000);
    // B has received 4000 of them from another socket.
    made.b.receive_next = Seq::new(START) + 4000;
    let (a, b) = made.thaw();
    assert_eq!(seed(&a, &bytes), bytes.len());
    // B's segment acknowledges bytes that A never sent itself.
    carry(&b, &a, b"data with an ACK");
    assert_eq!(unacknowledged(&a).unwrap(), 5000);
    expect(&b, &bytes[4000..]);
    settle([&a, &b]);
}

#[test]
fn bytes_written_afterwards_make_the_peer_ask_for_what_it_lacks() {
    let bytes = Random::new(13).bytes(6000);
    let carry = || {
        let (a, b) = Made::new(START, 5, 1_000_000).thaw();
        options::set_nodelay(&a, true).unwrap();
        assert_eq!(seed(&a, &bytes[..5000]), 5000);
        let start = Instant::now();
        write(&a, &bytes[5000..]);
        expect(&b, &bytes);
        let took = start.elapsed();
        println!("6 kB by SACK: {took:?}");
        took
    };
    // A thread without a processor shows nothing: the next connection is timed anew.
    let mut times = (0..10).map(|_| carry());
    assert!(
        times.any(|took| took.as_millis() < 100),
        "the timer, 200 ms or more, was not needed"
    );
}

#[test]
fn what_does_not_fit_is_left_for_an_ordinary_write() {
    let bytes = Random::new(14).bytes(2_000_000);
    let (a, b) = Made::new(START, 5, 4_000_000).thaw();
    let taken = seed(&a, &bytes);
    println!("{taken} fit");
    assert!((50_000..1_000_000).contains(&taken), "{taken}");
    thread::scope(|scope| {
        scope.spawn(|| write(&a, &bytes[taken..]));
        expect(&b, &bytes);
    });
}

/// Compares a buffer that `net.core.wmem_max` bounds with one that it does not.
#[test]
fn a_buffer_that_was_fitted_takes_more_than_the_system_lets_programs_have() {
    let most: usize = fs::read_to_string("/proc/sys/net/core/wmem_max")
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    let bytes = Random::new(12).bytes(2 * most + (1 << 20));
    let open = || Made::new(START, 5, 1_000_000).thaw();
    let (a, _b) = open();
    SockRef::from(&a).set_send_buffer_size(2 * bytes.len()).unwrap();
    assert!(seed(&a, &bytes) < bytes.len(), "set");
    let (a, b) = open();
    fit_send_buffer(&a, u32::try_from(bytes.len()).unwrap()).unwrap();
    assert_eq!(seed(&a, &bytes), bytes.len(), "fitted");
    expect(&b, &bytes);
    carry(&a, &b, b"and on");
}
