//! What was promised is accepted, in full, while nobody reads.

use std::{fs, net::TcpStream, thread};

use longsplice_repair::{Image, grow_receive_buffer, options, set_receive_window, tcp_info, unread};

use crate::common::{Made, Random, expect, pair, until, write};

/// Sends `len` bytes while nobody reads, and sees that none is refused.
fn fill(from: &TcpStream, to: &TcpStream, len: u32) {
    let bytes = Random::new(u64::from(len)).bytes(len as usize);
    thread::scope(|scope| {
        scope.spawn(|| write(from, &bytes));
        until("all is there", || unread(to).unwrap() == len);
    });
    let repeated = tcp_info(from).unwrap().total_retrans();
    println!("{len} bytes promised: {repeated} segments repeated");
    assert!(
        repeated <= 3,
        "{repeated}: more than a probe for an ACK that is late"
    );
    assert_eq!(tcp_info(to).unwrap().rcv_ooopack(), Some(0), "a gap was left");
    expect(to, &bytes);
}

#[test]
fn a_thawed_socket_accepts_what_was_promised() {
    for window in [50_000, 300_000, 3_000_000] {
        let (a, b) = Made::new(1000, 2000, window).thaw();
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

#[test]
fn a_grown_buffer_goes_on_growing_by_itself() {
    let largest: u32 = fs::read_to_string("/proc/sys/net/ipv4/tcp_rmem")
        .unwrap()
        .split_whitespace()
        .nth(2)
        .unwrap()
        .parse()
        .unwrap();
    let (client, server) = pair();
    let before = options::receive_buffer(&client).unwrap();
    assert_eq!(grow_receive_buffer(&client, 1000).unwrap(), 1000);
    assert_eq!(options::receive_buffer(&client).unwrap(), before, "large enough");
    assert_eq!(grow_receive_buffer(&client, 1_000_000).unwrap(), 1_000_000);
    let grown = options::receive_buffer(&client).unwrap();
    assert!(grown >= 1_000_000 && grown <= largest, "{grown}");
    // The kernel bounds by half of the buffer where that is fixed, and by the system's limit where it is not.
    assert_eq!(grow_receive_buffer(&client, u32::MAX).unwrap(), largest / 2);
    options::set_receive_buffer(&server, 100_000).unwrap();
    assert_eq!(grow_receive_buffer(&server, u32::MAX).unwrap(), 100_000);
    assert_eq!(options::receive_buffer(&server).unwrap(), 200_000, "fixed");
}

#[test]
fn a_grown_buffer_leaves_the_reader_awake() {
    let (client, server) = pair();
    grow_receive_buffer(&server, 500_000).unwrap();
    write(&client, b"short");
    // Blocks until SO_RCVLOWAT bytes are there.
    expect(&server, b"short");
}
