//! Tests functions that need no privilege, over connections on the loopback.
#![expect(clippy::unwrap_used, reason = "a helper of a test may fail as the test does")]

use std::{
    io::{Read, Write},
    net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket},
    time::{Duration, Instant},
};

use longsplice_repair::{State, TcpInfo, options, tcp_info, unacknowledged, unread, unsent};
use socket2::SockRef;

fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (client, listener.accept().unwrap().0)
}

/// Reads the state until it satisfies the condition, as ACKs may be delayed.
fn eventually(socket: &TcpStream, what: impl Fn(&TcpInfo) -> bool) -> TcpInfo {
    let end = Instant::now() + Duration::from_secs(5);
    loop {
        let info = tcp_info(socket).unwrap();
        if what(&info) {
            return info;
        }
        assert!(Instant::now() < end, "not within 5 s: {info:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn info_counts_what_was_written() {
    let (mut client, server) = pair();
    client.write_all(&[7; 10_000]).unwrap();
    let received = eventually(&server, |i| i.bytes_received() == 10_000);
    assert_eq!(received.state(), State::Established);
    assert_eq!(
        received.bytes_acked(),
        0,
        "the side that accepted does not count its SYN"
    );
    // The side that connected counts its SYN.
    let sent = eventually(&client, |i| i.bytes_acked() == 10_001);
    assert_eq!(
        (sent.bytes_sent(), sent.bytes_retrans(), sent.total_retrans()),
        (10_000, 0, 0)
    );
    assert_eq!((sent.unacked(), sent.lost(), sent.notsent_bytes()), (0, 0, 0));
    assert!(sent.rtt_us() > 0 && sent.rto_us() >= sent.rtt_us());
    assert!(sent.min_rtt_us().is_some_and(|m| m <= sent.rtt_us() * 8 + 1000));
    assert!(sent.snd_cwnd() >= 10 && sent.snd_mss() > 500 && u32::from(sent.rcv_wscale()) <= 14);
    assert!(sent.snd_wnd().is_some_and(|w| w > 0) && sent.data_segs_out() >= 1);
    assert!(!sent.ca_state().is_recovering());
    assert_eq!(sent.snd_wscale(), received.rcv_wscale());
}

#[test]
fn a_fin_is_counted_as_received_but_is_not_unread() {
    let (mut client, server) = pair();
    client.write_all(b"abc").unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    let info = eventually(&server, |i| i.state() == State::CloseWait);
    assert_eq!(info.bytes_received(), 4);
    assert_eq!(unread(&server).unwrap(), 3);
    eventually(&client, |i| i.state() == State::FinWait2);
    assert_eq!(unacknowledged(&client).unwrap(), 0);
}

#[test]
fn queues_hold_what_is_not_read() {
    let (mut client, mut server) = pair();
    client.set_nonblocking(true).unwrap();
    let mut written = 0;
    while let Ok(n) = client.write(&[1; 65_536]) {
        written += n as u32;
    }
    // The receiver's window is full: its bytes and those that the sender keeps make up the whole.
    let end = Instant::now() + Duration::from_secs(5);
    while unread(&server).unwrap() + unacknowledged(&client).unwrap() != written {
        assert!(Instant::now() < end);
    }
    let waiting = unsent(&client).unwrap();
    assert!(waiting > 0 && waiting <= unacknowledged(&client).unwrap());
    server.read_exact(&mut vec![0; written as usize]).unwrap();
    eventually(&client, |i| i.unacked() == 0);
    assert_eq!((unread(&server).unwrap(), unsent(&client).unwrap()), (0, 0));
}

#[test]
fn a_listener_has_no_queues() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let e = unread(&listener).unwrap_err();
    assert_eq!(
        (e.call(), e.raw_os_error()),
        ("ioctl(SIOCINQ)", Some(libc::EINVAL))
    );
    assert_eq!(
        std::io::Error::from(e).to_string(),
        "ioctl(SIOCINQ): Invalid argument (os error 22)"
    );
}

#[test]
fn bbr_tells_of_its_startup() {
    let (client, _server) = pair();
    match options::set_congestion_control(&client, "bbr") {
        Ok(()) => assert!(options::is_in_bbr_startup(&client).unwrap()),
        // There is none to tell of.
        Err(e) => assert_eq!(e.raw_os_error(), Some(libc::ENOENT)),
    }
}

#[test]
fn options_read_back_what_was_set() {
    let (client, _server) = pair();
    options::set_keepalive(&client, true).unwrap();
    assert!(options::keepalive(&client).unwrap());
    options::set_reuse_address(&client, true).unwrap();
    assert!(options::reuse_address(&client).unwrap());
    SockRef::from(&client).set_recv_buffer_size(50_000).unwrap();
    SockRef::from(&client).set_send_buffer_size(60_000).unwrap();
    let buffers = (
        options::receive_buffer(&client).unwrap(),
        options::send_buffer(&client).unwrap(),
    );
    assert_eq!(buffers, (100_000, 120_000));
    options::set_congestion_control(&client, "reno").unwrap();
    assert_eq!(options::congestion_control(&client).unwrap(), "reno");
    assert!(!options::is_in_bbr_startup(&client).unwrap());
    let e = options::set_congestion_control(&client, "nonesuch").unwrap_err();
    assert_eq!(
        (e.call(), e.raw_os_error()),
        ("setsockopt(TCP_CONGESTION)", Some(libc::ENOENT))
    );
    options::set_notsent_lowat(&client, 16_384).unwrap();
    options::set_nodelay(&client, true).unwrap();
    assert!(client.nodelay().unwrap());
    assert!(options::max_segment(&client).unwrap() > 500);
}

#[test]
fn the_timestamp_clock_runs_in_milliseconds() {
    let (client, _server) = pair();
    let (start, before) = (Instant::now(), options::timestamp_clock(&client).unwrap());
    std::thread::sleep(Duration::from_millis(50));
    let passed = options::timestamp_clock(&client).unwrap().wrapping_sub(before);
    assert!(!tcp_info(&client).unwrap().usec_timestamps());
    assert!(
        (48..=start.elapsed().as_millis() as u32 + 2).contains(&passed),
        "{passed}"
    );
}

#[test]
fn closing_with_reset_is_seen_by_the_peer() {
    let (client, mut server) = pair();
    options::set_reset_on_close(&client, true).unwrap();
    drop(client);
    let e = server.read(&mut [0]).unwrap_err();
    assert_eq!(e.kind(), std::io::ErrorKind::ConnectionReset);
}

#[test]
fn the_mtu_of_a_route_is_known_in_both_families() {
    // Packets of IPv4 are one byte shorter than the loopback would take.
    for (ip, mtu) in [
        ("127.0.0.1", 65_535),
        ("::1", 65_536),
        ("::ffff:127.0.0.1", 65_535),
    ] {
        let at: SocketAddr = (ip.parse::<IpAddr>().unwrap(), 9).into();
        let probe = UdpSocket::bind((at.ip(), 0)).unwrap();
        assert_eq!(
            options::path_mtu(&probe).unwrap_err().raw_os_error(),
            Some(libc::ENOTCONN)
        );
        probe.connect(at).unwrap();
        assert_eq!(options::path_mtu(&probe).unwrap(), mtu, "{ip}: the loopback's");
    }
}
