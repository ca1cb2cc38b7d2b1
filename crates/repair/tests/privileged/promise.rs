//! Tests that a socket accepts all promised bytes while its process does not read.

use std::{
    fs,
    io::Read,
    net::TcpStream,
    thread,
    time::{Duration, Instant},
};

use longsplice_repair::{
    Image, close_silently, fit_receive_buffer, grow_receive_buffer, options, set_receive_window, tcp_info,
    unread,
};
use socket2::SockRef;

use crate::common::{Made, Random, expect, pair, until, write};

/// Sends `len` bytes while the receiving process does not read, and checks that none is refused.
fn fill(from: &TcpStream, to: &TcpStream, len: u32) {
    let bytes = Random::new(u64::from(len)).bytes(len as usize);
    thread::scope(|scope| {
        scope.spawn(|| write(from, &bytes));
        until("all is there", || unread(to).unwrap() == len);
    });
    // A sender that the host stopped retransmits some segments needlessly, and learns of that a moment later.
    until("all but a probe or two to have been repeated in vain", || {
        tcp_info(from).unwrap().total_lost() <= 3
    });
    let info = tcp_info(from).unwrap();
    let (repeated, lacking) = (info.total_retrans(), info.total_lost());
    println!("{len} bytes promised: {repeated} segments repeated, {lacking} of them not in vain");
    // Segments without a gap have overtaken each other on their way between processors.
    let gaps = tcp_info(to).unwrap().rcv_ooopack();
    assert!(
        lacking == 0 || gaps == Some(0),
        "{lacking} were lacking, {gaps:?} behind a gap"
    );
    expect(to, &bytes);
}

#[test]
fn a_thawed_socket_accepts_what_was_promised() {
    for window in [50_000, 300_000, 3_000_000] {
        let (a, b) = Made::new(u32::MAX - 1000, 2000, window).thaw();
        assert!(options::receive_buffer(&b).unwrap() >= window);
        fill(&a, &b, window);
    }
}

#[test]
fn a_live_socket_accepts_what_is_promised_later() {
    let window = 2_000_000;
    let mut made = Made::new(u32::MAX - 1000, 2000, window);
    made.b.window.receive = 20_000;
    let (a, b) = made.thaw();
    let before = tcp_info(&a).unwrap().segs_in();
    assert_eq!(grow_receive_buffer(&b, window).unwrap(), window);
    set_receive_window(&b, window).unwrap();
    assert_eq!(Image::of(&b).unwrap().window.receive, window);
    set_receive_window(&b, 1000).unwrap();
    assert_eq!(Image::of(&b).unwrap().window.receive, window, "never taken back");
    assert_eq!(tcp_info(&a).unwrap().segs_in(), before, "nothing is sent");
    fill(&a, &b, window);
}

/// Returns the largest buffer that the system gives by itself.
fn largest() -> u32 {
    fs::read_to_string("/proc/sys/net/ipv4/tcp_rmem")
        .unwrap()
        .split_whitespace()
        .nth(2)
        .unwrap()
        .parse()
        .unwrap()
}

#[test]
fn what_exceeds_the_systems_limit_is_accepted_when_it_was_promised() {
    let window = 2 * largest();
    let mut made = Made::new(7, 2000, window);
    let (a, b) = made.thaw();
    fill(&a, &b, window);
    for socket in [a, b] {
        close_silently(socket.into()).unwrap();
    }
    made.b.window.receive = 20_000;
    let (a, b) = made.thaw();
    fit_receive_buffer(&b, window).unwrap();
    set_receive_window(&b, window).unwrap();
    fill(&a, &b, window);
}

#[test]
fn a_buffer_that_is_made_to_fit_stays_fixed_or_not() {
    let largest = largest();
    let (client, server) = pair();
    fit_receive_buffer(&client, 2 * largest).unwrap();
    assert_eq!(options::receive_buffer(&client).unwrap(), 4 * largest);
    // The system's limit bounds a buffer that is not fixed and grows by itself. It does not shrink.
    assert_eq!(grow_receive_buffer(&client, u32::MAX).unwrap(), largest / 2);
    fit_receive_buffer(&client, largest).unwrap();
    assert_eq!(options::receive_buffer(&client).unwrap(), 4 * largest);
    SockRef::from(&server).set_recv_buffer_size(100_000).unwrap();
    fit_receive_buffer(&server, 100_000).unwrap();
    assert_eq!(options::receive_buffer(&server).unwrap(), 200_000, "large enough");
    fit_receive_buffer(&server, 300_000).unwrap();
    assert_eq!(options::receive_buffer(&server).unwrap(), 600_000);
    assert_eq!(grow_receive_buffer(&server, u32::MAX).unwrap(), 300_000, "fixed");
}

#[test]
fn a_grown_buffer_goes_on_growing_by_itself() {
    let largest = largest();
    let (client, server) = pair();
    let before = options::receive_buffer(&client).unwrap();
    assert_eq!(grow_receive_buffer(&client, 1000).unwrap(), 1000);
    assert_eq!(options::receive_buffer(&client).unwrap(), before, "large enough");
    assert_eq!(grow_receive_buffer(&client, 1_000_000).unwrap(), 1_000_000);
    let grown = options::receive_buffer(&client).unwrap();
    assert!(grown >= 1_000_000 && grown <= largest, "{grown}");
    // The kernel bounds a fixed buffer by half of its size, and one that grows by the system's limit.
    assert_eq!(grow_receive_buffer(&client, u32::MAX).unwrap(), largest / 2);
    SockRef::from(&server).set_recv_buffer_size(100_000).unwrap();
    assert_eq!(grow_receive_buffer(&server, u32::MAX).unwrap(), 100_000);
    assert_eq!(options::receive_buffer(&server).unwrap(), 200_000, "fixed");
}

#[test]
fn a_grown_buffer_leaves_the_reader_awake() {
    let (client, mut server) = pair();
    grow_receive_buffer(&server, 500_000).unwrap();
    write(&client, b"short");
    // A read waits for SO_RCVLOWAT bytes, or its time is over.
    server.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let start = Instant::now();
    assert_eq!(server.read(&mut [0; 100]).unwrap(), 5);
    assert!(start.elapsed() < Duration::from_secs(10));
}

/// Returns whether B keeps a segment of 1000 bytes that ends `end` bytes behind its RCV.NXT.
fn keeps(made: &mut Made, end: u32, prepare: impl FnOnce(&TcpStream)) -> bool {
    let old = made.a.send_next;
    made.a.send_next = old + (end - 1000);
    let (a, b) = made.thaw();
    made.a.send_next = old;
    prepare(&b);
    let before = tcp_info(&b).unwrap().segs_in();
    write(&a, &[0; 1000]);
    until("a segment", || tcp_info(&b).unwrap().segs_in() > before);
    // The segment is not the next one in order, so B keeps it aside if it lies in the window.
    let kept = tcp_info(&b).unwrap().rcv_ooopack() == Some(1);
    for socket in [a, b] {
        close_silently(socket.into()).unwrap();
    }
    kept
}

#[test]
fn the_promise_is_the_edge_of_what_is_accepted() {
    for window in [5000, 100_000, 10_000_000] {
        let mut made = Made::new(u32::MAX - 3000, 2000, window);
        assert!(
            keeps(&mut made, window, |_| ()),
            "{window}: the last segment of the window"
        );
        assert!(!keeps(&mut made, window + 1001, |_| ()), "{window}: the next one");
        let promise = |b: &TcpStream| set_receive_window(b, 3 * window).unwrap();
        assert!(keeps(&mut made, 3 * window, promise), "{window}: promised later");
        assert!(
            !keeps(&mut made, 3 * window + 1001, promise),
            "{window}: not promised"
        );
    }
}
