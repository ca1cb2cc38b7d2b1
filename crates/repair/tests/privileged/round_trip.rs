//! Tests that a connection goes on while its socket is taken away and built again, over and over, unnoticed by its
//! other end.

use std::{
    io::ErrorKind,
    net::{IpAddr, Shutdown, TcpListener, TcpStream},
    thread,
    time::Duration,
};

use longsplice_repair::{Image, State, Window, canonical, close_silently, tcp_info, thaw, unread};

use crate::common::{
    LOOPBACKS, Made, Random, carry, kernel_state, pair, pair_of, pairs, replaced, settle, thawed, until,
    write,
};

/// Sends random amounts both ways, and replaces one end or both, `cycles` times.
fn go_round(
    cycles: u32,
    (mut a, mut b): (TcpStream, TcpStream),
    random: &mut Random,
) -> (TcpStream, TcpStream) {
    for cycle in 0..cycles {
        for (from, to) in [(&a, &b), (&b, &a)] {
            let len = 1 + random.below(60_000) as usize;
            carry(from, to, &random.bytes(len));
        }
        settle([&a, &b]);
        let which = random.below(3);
        if which != 0 {
            a = replaced(a);
        }
        if which != 1 {
            b = replaced(b);
        }
        // Segments may be retransmitted needlessly if a processor was stopped for so long.
        let lost = |socket: &TcpStream| tcp_info(socket).unwrap().total_lost();
        until(&format!("nothing to be lost in cycle {cycle}"), || {
            lost(&a) + lost(&b) == 0
        });
    }
    carry(&a, &b, b"to the end");
    carry(&b, &a, b"and back");
    (a, b)
}

#[test]
fn a_connection_survives_a_hundred_cycles_beside_its_listener() {
    for ip in LOOPBACKS {
        survive_beside_a_listener(ip);
    }
}

fn survive_beside_a_listener(ip: IpAddr) {
    let mut random = Random::new(20_260_101);
    let listener = TcpListener::bind((ip, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let (client, server) = go_round(100, pair_of(&listener), &mut random);

    // The listener takes connections beside the thawed socket, and so does its successor.
    let (c, s) = pair_of(&listener);
    carry(&c, &s, b"a new one");
    let server = replaced(server);
    drop(listener);
    let listener =
        TcpListener::bind(address).expect("a thawed socket does not keep the port from a listener");
    let (c, s) = pair_of(&listener);
    carry(&s, &c, b"another");
    carry(&client, &server, b"undisturbed");
}

#[test]
fn sequence_numbers_and_timestamps_wrap() {
    let mut random = Random::new(7);
    for start in [u32::MAX, u32::MAX - 30_000, u32::MAX - 100_000] {
        let mut made = Made::new(start, start.wrapping_add(10_000), 500_000);
        made.a.timestamp_clock = u32::MAX;
        made.b.timestamp_clock = u32::MAX - 10;
        let (a, b) = go_round(10, made.thaw(), &mut random);
        for image in [Image::of(&a).unwrap(), Image::of(&b).unwrap()] {
            assert!(
                image.send_next.raw() < start && image.timestamp_clock < u32::MAX / 2,
                "wrapped: {image:?}"
            );
        }
    }
}

#[test]
fn the_image_of_a_thawed_socket_is_the_image() {
    pairs().for_each(image_is_kept);
}

fn image_is_kept((client, server): (TcpStream, TcpStream)) {
    carry(&client, &server, &[1; 5000]);
    carry(&server, &client, &[2; 7000]);
    settle([&client, &server]);
    let mut kept = Vec::new();
    for socket in [client, server] {
        let before = Image::of(&socket).unwrap();
        assert!(before.options.sack && before.options.timestamps && before.options.mss > 500);
        assert!(before.window.largest >= before.window.send && before.window.receive > 0);
        // Keep it open, so that the other one stays ESTABLISHED.
        kept.push(replaced(socket));
        let after = Image::of(kept.last().unwrap()).unwrap();
        let passed = after.timestamp_clock.wrapping_sub(before.timestamp_clock);
        assert!((1..10_000).contains(&passed), "{passed} ms");
        let clock = before.timestamp_clock;
        assert_eq!(
            Image {
                timestamp_clock: clock,
                ..after
            },
            before
        );
    }
}

#[test]
fn both_ends_agree_on_what_is_in_their_images() {
    pairs().for_each(images_agree);
}

fn images_agree((client, server): (TcpStream, TcpStream)) {
    carry(&client, &server, &[1; 5000]);
    settle([&client, &server]);
    let (c, s) = (Image::of(&client).unwrap(), Image::of(&server).unwrap());
    assert_eq!((c.local, c.peer), (s.peer, s.local));
    assert_eq!(
        (c.local, c.peer),
        (
            canonical(client.local_addr().unwrap()),
            canonical(client.peer_addr().unwrap())
        )
    );
    assert_eq!((c.send_next, c.receive_next), (s.receive_next, s.send_next));
    assert_eq!(
        (c.options.send_scale, c.options.receive_scale),
        (s.options.receive_scale, s.options.send_scale)
    );
    // The other end knows the promises, except for the bytes that scaling rounds off.
    for (promised, known) in [
        (c.window.receive, s.window.send),
        (s.window.receive, c.window.send),
    ] {
        assert!(
            promised.abs_diff(known) < 1 << c.options.receive_scale,
            "{c:?} {s:?}"
        );
    }
}

#[test]
fn what_was_not_read_is_not_in_the_socket_afterwards() {
    let (client, server) = pair();
    carry(&client, &server, b"read");
    write(&client, b"never read");
    until("received", || unread(&server).unwrap() == 10);
    settle([&client, &server]);
    let server = replaced(server);
    assert_eq!(unread(&server).unwrap(), 0);
    carry(&client, &server, b"what follows");
}

#[test]
fn what_is_not_established_has_no_image() {
    let (client, server) = pair();
    client.shutdown(Shutdown::Write).unwrap();
    until("FIN", || tcp_info(&server).unwrap().state() == State::CloseWait);
    let error = Image::of(&server).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotConnected);
    // The socket must not be left in repair mode, either.
    carry(&server, &client, b"half-closed");
}

#[test]
fn thawing_emits_no_segment() {
    pairs().for_each(thawed_in_silence);
}

fn thawed_in_silence((client, server): (TcpStream, TcpStream)) {
    carry(&client, &server, b"x");
    settle([&client, &server]);
    let before = tcp_info(&client).unwrap().segs_in();
    let server = replaced(server);
    let image = Image::of(&server).unwrap();
    // A thaw that fails half-way is silent, too, and leaves nothing behind.
    close_silently(server.into()).unwrap();
    let window = Window {
        largest: 0,
        ..image.window
    };
    let error = thaw(&Image { window, ..image }).unwrap_err();
    assert_eq!(
        (error.call(), error.raw_os_error()),
        ("setsockopt(TCP_REPAIR_WINDOW)", Some(libc::EINVAL))
    );
    assert_eq!(kernel_state(image.local, image.peer), None);
    let server = thawed(&image);
    thread::sleep(Duration::from_millis(50));
    assert_eq!(tcp_info(&client).unwrap().segs_in(), before);
    carry(&server, &client, b"y");
}
