//! Tests the properties of a thawed socket.

use std::{
    fs,
    io::{self, Read},
    net::{Ipv6Addr, TcpListener, TcpStream},
    os::fd::{AsRawFd, OwnedFd},
    time::{Duration, Instant},
};

use longsplice_repair::{State, close_silently, options, tcp_info, thaw};

use crate::common::{Made, Random, carry, pair, settle, thawed};

/// Returns the flags of a descriptor, those of `open(2)`.
fn flags(fd: &OwnedFd) -> i32 {
    let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", fd.as_raw_fd())).unwrap();
    let flags = info.lines().find_map(|l| l.strip_prefix("flags:")).unwrap();
    i32::from_str_radix(flags.trim(), 8).unwrap()
}

#[test]
fn it_is_established_non_blocking_and_close_on_exec() {
    let made = Made::new(1000, 2000, 100_000);
    let fd = thaw(&made.a).unwrap();
    assert_eq!(flags(&fd) & libc::O_CLOEXEC, libc::O_CLOEXEC);
    assert_eq!(flags(&fd) & libc::O_NONBLOCK, libc::O_NONBLOCK);
    assert_eq!(tcp_info(&fd).unwrap().state(), State::Established);
    assert!(options::reuse_address(&fd).unwrap());
    let mut socket = TcpStream::from(fd);
    assert_eq!(
        socket.read(&mut [0]).unwrap_err().kind(),
        io::ErrorKind::WouldBlock
    );
    assert_eq!(
        (socket.local_addr().unwrap(), socket.peer_addr().unwrap()),
        (made.a.local, made.a.peer)
    );
    close_silently(socket.into()).unwrap();
}

#[test]
fn it_sends_segments_of_the_peers_size_from_the_first_on() {
    let mut made = Made::new(1, 2, 100_000);
    for (announced, used) in [
        (1460, 1448),
        (536, 524),
        (100, 88),
        (9000, 8988),
        (60_000, 32_755),
    ] {
        made.a.options.mss = announced;
        let socket = thawed(&made.a);
        assert_eq!(
            tcp_info(&socket).unwrap().snd_mss(),
            used,
            "less the timestamps, and bounded"
        );
        close_silently(socket.into()).unwrap();
    }
}

#[test]
fn its_timestamp_clock_goes_on_and_counts_milliseconds() {
    let mut made = Made::new(1, 2, 100_000);
    // Set the clock a quarter of its range apart, so that it cannot be the system's own.
    for (last, next) in [
        (7, 8),
        (1 << 30, (1 << 30) + 2),
        (1 << 31, (1 << 31) + 2),
        (u32::MAX, 0),
    ] {
        made.a.timestamp_clock = last;
        let socket = thawed(&made.a);
        let passed = options::timestamp_clock(&socket).unwrap().wrapping_sub(next);
        assert!(passed < 10_000, "{passed} ms");
        assert!(!tcp_info(&socket).unwrap().usec_timestamps());
        close_silently(socket.into()).unwrap();
    }
}

#[test]
fn it_works_without_scaling_sack_and_timestamps() {
    let mut made = Made::new(10, 20, 60_000);
    for image in [&mut made.a, &mut made.b] {
        let options = &mut image.options;
        (options.send_scale, options.receive_scale) = (0, 0);
        (options.sack, options.timestamps) = (false, false);
    }
    let (a, b) = made.thaw();
    let info = tcp_info(&a).unwrap();
    assert!(!info.sack() && !info.timestamps());
    carry(&a, &b, &Random::new(3).bytes(300_000));
    settle([&a, &b]);
    let offered = tcp_info(&a).unwrap().snd_wnd().unwrap();
    assert!(offered > 10_000, "B offers {offered}: not scaled by anything");
}

#[test]
fn it_works_over_ipv6() {
    let (a, b) = Made::at(Ipv6Addr::LOCALHOST.into(), 10, 20, 60_000).thaw();
    carry(&a, &b, &Random::new(4).bytes(300_000));
    carry(&b, &a, b"back");
}

#[test]
fn a_connection_that_has_a_socket_is_not_built_again() {
    let (client, server) = pair();
    let mut image = Made::new(1, 2, 3000).a;
    (image.local, image.peer) = (server.local_addr().unwrap(), server.peer_addr().unwrap());
    let error = thaw(&image).unwrap_err();
    assert_eq!(
        (error.call(), error.raw_os_error()),
        ("connect", Some(libc::EADDRNOTAVAIL))
    );
    carry(&client, &server, b"unharmed");
    // Addresses of two families are refused, too.
    image.local = (Ipv6Addr::LOCALHOST, 1).into();
    assert_eq!(thaw(&image).unwrap_err().call(), "connect");
}

#[test]
fn a_connection_of_another_host_s_address_is_built() {
    let mut image = Made::new(1, 2, 3000).a;
    image.local = "198.18.255.1:1".parse().unwrap();
    let socket = TcpStream::from(thaw(&image).unwrap());
    assert_eq!(socket.local_addr().unwrap(), image.local);
    close_silently(socket.into()).unwrap();
}

#[test]
fn what_cannot_be_is_refused() {
    let made = Made::new(1, 2, 3000);
    let mut image = made.a;
    image.options.send_scale = 15;
    let error = thaw(&image).unwrap_err();
    assert_eq!(
        (error.call(), error.raw_os_error()),
        ("setsockopt(TCP_REPAIR_OPTIONS)", Some(libc::EFBIG))
    );
    image = made.a;
    image.window.send_wl1 = image.receive_next + image.window.receive + 1;
    let error = thaw(&image).unwrap_err();
    assert_eq!(
        (error.call(), error.raw_os_error()),
        ("setsockopt(TCP_REPAIR_WINDOW)", Some(libc::EINVAL))
    );
    image = made.a;
    image.peer.set_ip(Ipv6Addr::LOCALHOST.into());
    let error = thaw(&image).unwrap_err();
    assert_eq!(error.call(), "connect", "two families: {error}");
    image = Made::at(Ipv6Addr::LOCALHOST.into(), 1, 2, 3000).a;
    image.peer.set_ip("fe80::1".parse().unwrap());
    let error = thaw(&image).unwrap_err();
    assert_eq!(
        (error.call(), error.raw_os_error()),
        ("connect", Some(libc::EINVAL)),
        "on which link?"
    );
}

/// Prints the cost of a thaw; checks nothing. `cargo test --release -p longsplice-repair cost -- --nocapture`
#[test]
fn cost_of_a_thaw() {
    let made = Made::new(1, 2, 1 << 20);
    let _listener = TcpListener::bind(made.a.local).unwrap();
    let mut took: Vec<Duration> = (0..1000)
        .map(|_| {
            let start = Instant::now();
            let socket = thaw(&made.a).unwrap();
            let took = start.elapsed();
            close_silently(socket).unwrap();
            took
        })
        .collect();
    took.sort();
    println!("thaw: median {:?}, p99 {:?}", took[500], took[990]);
}
