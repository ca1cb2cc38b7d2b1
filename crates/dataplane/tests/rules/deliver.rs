//! Delivery to a local listener, whatever the destination.

use std::{
    collections::BTreeSet,
    net::{SocketAddr, TcpListener},
};

use longsplice_core::{
    rules::{Action, Match},
    terms::Terms,
};
use longsplice_dataplane::Withheld;
use socket2::{Domain, Socket, Type};

use crate::{
    frames::frame,
    support::{
        flow::OK,
        icmp::{IcmpError, TOO_BIG, WHOLE_QUOTE},
        options::{Opt, read, write},
        packet::{ACK, FRAGMENT, Packet, RST, SYN, tagged},
        tap::{Offload, Tap},
    },
    ways::{MARK, Ways, rule, to},
};

/// Addresses of each family: a client, a destination beyond `b0`, our own address, the listener's.
const WAYS: [[&str; 4]; 2] = [
    [
        "198.18.1.2:40000",
        "198.18.2.2:80",
        "198.18.1.1:80",
        "127.0.0.1:8080",
    ],
    [
        "[2001:db8:1::2]:40000",
        "[2001:db8:2::2]:80",
        "[2001:db8:1::1]:80",
        "[::1]:8080",
    ],
];

fn deliver() -> Action {
    Action::Deliver {
        to: WAYS.iter().map(|w| w[3].parse().unwrap()).collect(),
    }
}

/// Returns a socket that may have any address.
fn transparent(local: &str) -> Socket {
    let local: SocketAddr = local.parse().unwrap();
    let socket = Socket::new(Domain::for_address(local), Type::STREAM, None).unwrap();
    match local {
        SocketAddr::V4(_) => socket.set_ip_transparent_v4(true).unwrap(),
        SocketAddr::V6(_) => socket.set_ip_transparent_v6(true).unwrap(),
    }
    socket.set_reuse_address(true).unwrap();
    socket.bind(&local.into()).unwrap();
    socket
}

fn listener(at: &str) -> TcpListener {
    let socket = transparent(at);
    socket.listen(8).unwrap();
    socket.into()
}

#[test]
fn without_a_listener_nothing_is_taken() {
    let ways = Ways::new(&[rule(Match::default(), deliver())]);
    for [client, to, own, _] in WAYS {
        ways.leaves(&frame(client, to, SYN).bytes(), "no_listener");
        ways.leaves(&frame(client, own, SYN).bytes(), "own_address");
    }
}

#[test]
fn only_what_opens_a_connection_is_new() {
    let ways = Ways::new(&[rule(Match::default(), deliver())]);
    let _listeners = WAYS.map(|w| listener(w[3]));
    for [client, to, own, _] in WAYS {
        for flags in [0, ACK, SYN | ACK, RST, RST | ACK, SYN | RST, SYN | 1] {
            ways.leaves(&frame(client, to, flags).bytes(), "foreign");
            ways.leaves(&frame(client, own, flags).bytes(), "foreign");
        }
        ways.leaves(&frame(client, own, SYN).bytes(), "own_address");
    }
    let [client, to, ..] = WAYS[0];
    let first = Packet {
        fragment: 0x2000,
        ..frame(client, to, SYN)
    };
    ways.leaves(&first.bytes(), "odd");
}

#[test]
fn a_socket_at_the_place_that_does_not_listen_takes_nothing() {
    let ways = Ways::new(&[rule(Match::default(), deliver())]);
    for [client, to, _, at] in WAYS {
        let _bound = transparent(at);
        ways.leaves(&frame(client, to, SYN).bytes(), "no_listener");
    }
}

#[test]
fn the_host_s_own_connections_are_not_touched() {
    let ways = Ways::new(&[rule(Match::default(), deliver())]);
    ways.net.ip("address add 198.18.9.1/32 dev lo");
    ways.net.ip_v6("address add 2001:db8:9::1/128 dev lo nodad");
    for [listen, from] in [
        ["198.18.1.1:80", "198.18.9.1:0"],
        ["[2001:db8:1::1]:80", "[2001:db8:9::1]:0"],
    ] {
        let listener = listener(listen);
        let client = transparent(from);
        client.connect(&listener.local_addr().unwrap().into()).unwrap();
        let local = client.local_addr().unwrap().as_socket().unwrap();
        for flags in [SYN, ACK, RST] {
            let packet = frame(&local.to_string(), listen, flags);
            ways.leaves(&packet.bytes(), "own_address");
        }
    }
}

/// A routing loop brings back the SYN of the connection that the daemon makes for an intercepted one. Accepted, it would be
/// connected in its turn.
#[test]
fn a_syn_of_the_host_itself_that_comes_back_is_not_taken() {
    let ways = Ways::new(&[rule(Match::default(), deliver())]);
    let _listeners = WAYS.map(|w| listener(w[3]));
    for [_, to, own, _] in WAYS {
        let mut from: SocketAddr = own.parse().unwrap();
        from.set_port(0);
        let socket = transparent(&from.to_string());
        socket.set_nonblocking(true).unwrap();
        // It waits for an answer that never comes.
        socket
            .connect(&to.parse::<SocketAddr>().unwrap().into())
            .unwrap_err();
        let local = socket.local_addr().unwrap().as_socket().unwrap();
        ways.leaves(&frame(&local.to_string(), to, SYN).bytes(), "looped");
    }
}

/// Sends a frame on the wire of `a0`.
fn send(ways: &Ways, tap: &Tap, frame: &[u8]) -> std::collections::BTreeMap<String, u64> {
    let before = ways.rules.verdicts();
    tap.send(frame, Offload::default());
    let mut after = ways.rules.verdicts();
    after.retain(|name, n| {
        *n -= before[name];
        *n > 0
    });
    after
}

/// Puts the rules on `a0`, with routes that lead to this host by the mark. Returns the wire.
fn watch(ways: &Ways) -> Tap {
    let delivery = "rule add priority 10 iif a0 fwmark 0x4c000000/0xff000000 lookup 77
         route add local default dev lo table 77";
    ways.net.ip(delivery);
    ways.net.ip_v6(delivery);
    ways.net
        .ip_v6("neighbour replace 2001:db8:1::2 lladdr 02:00:00:00:01:02 dev a0");
    let a0 = ways.net.ifindex("a0");
    let failed = ways.rules.watch(&BTreeSet::from([a0]));
    assert!(failed.is_empty(), "{failed:?}");
    Tap::new(ways.net.ifindex("a1"))
}

const SACK_PERMITTED: Opt = Opt::Other(4, Vec::new());

#[test]
fn a_listener_is_asked_for_no_more_than_it_may_agree_to() {
    let ways = Ways::new(&[rule(Match::default(), deliver())]);
    let listeners = WAYS.map(|w| listener(w[3]));
    let tap = watch(&ways);
    for (terms, port) in [(Terms::default(), 40_001), (Terms::ALL, 40_002)] {
        let withheld = Withheld {
            terms,
            ..Withheld::default()
        };
        for ([client, to, ..], listener) in WAYS.into_iter().zip(&listeners) {
            ways.plane.withhold(listener, withheld).unwrap();
            let client = SocketAddr::new(client.parse::<SocketAddr>().unwrap().ip(), port).to_string();
            let syn = Packet {
                options: write(&[SACK_PERMITTED, Opt::Nop, Opt::Nop]),
                ..frame(&client, to, SYN)
            };
            let opened = send(&ways, &tap, &syn.bytes());
            assert_eq!(opened.get("opened"), Some(&1), "{opened:?}");
            let answer = reply(&tap, &client);
            let agreed = read(&answer[20..]).contains(&SACK_PERMITTED);
            assert_eq!(agreed, !terms.sack, "{client}");
        }
    }
}

#[test]
fn a_connection_is_opened_and_followed() {
    let ways = Ways::new(&[
        rule(Match::default(), deliver()),
        rule(to(&["0.0.0.0/0"]), Action::Follow),
    ]);
    let listeners = WAYS.map(|w| listener(w[3]));
    let tap = watch(&ways);
    for ([client, to, ..], listener) in WAYS.into_iter().zip(&listeners) {
        let opened = send(&ways, &tap, &frame(client, to, SYN).bytes());
        assert_eq!(opened.get("opened"), Some(&1), "{opened:?}");
        // Send it again: the connection is known by now.
        let again = send(&ways, &tap, &frame(client, to, SYN).bytes());
        assert_eq!(again.get("followed"), Some(&1), "{again:?}");
        let ran = ways.gives(&frame(client, to, ACK).bytes(), "followed", OK);
        assert_eq!(ran.mark, MARK.value);
        let piece = |offset, id| fragment(frame(client, to, ACK), offset, id).bytes();
        ways.ignores(&piece(24, 9));
        for offset in [0, 24, 48] {
            let ran = ways.gives(&piece(offset, 9), "followed", OK);
            assert_eq!(ran.mark, MARK.value, "at {offset}");
        }
        ways.ignores(&piece(24, 10));
        let mut ack = frame(client, to, ACK).bytes();
        complete_handshake(&mut ack, &reply(&tap, client));
        tap.send(&ack, Offload::default());
        let (accepted, peer) = listener.accept().unwrap();
        assert_eq!(
            (peer.to_string(), accepted.local_addr().unwrap().to_string()),
            (client.into(), to.into())
        );
    }
    let [client, to, ..] = WAYS[0];
    let error = IcmpError {
        outer: frame("198.18.1.99:0", to, 0),
        kind: TOO_BIG,
        rest: 1400,
        about: frame(to, client, ACK),
        quoted: WHOLE_QUOTE,
    };
    // A tag without a number is only a priority.
    for (number, expected) in [(0, Some(&1)), (7, None)] {
        let got = send(&ways, &tap, &tagged(&error.bytes(), 5, number));
        assert_eq!(got.get("followed"), expected, "{got:?}");
    }
    ways.rules.watch(&BTreeSet::new());
    assert!(ways.rules.watched().is_empty());
    let alone = send(&ways, &tap, &frame("198.18.1.2:40001", WAYS[0][1], SYN).bytes());
    assert!(alone.is_empty(), "{alone:?}");
}

/// Makes a packet a fragment at an offset in bytes, behind which others come.
fn fragment(packet: Packet, offset: u16, id: u8) -> Packet {
    let [high, low] = (offset | 1).to_be_bytes();
    Packet {
        id: id.into(),
        fragment: 0x2000 | (offset / 8),
        extensions: match packet.src {
            SocketAddr::V4(_) => Vec::new(),
            SocketAddr::V6(_) => vec![(FRAGMENT, vec![0, high, low, 0, 0, 0, id])],
        },
        ..packet
    }
}

/// Returns the SYN-ACK that the listener sends to the client.
fn reply(tap: &Tap, client: &str) -> Vec<u8> {
    let offset = if client.starts_with('[') { 54 } else { 34 };
    let port = client.parse::<SocketAddr>().unwrap().port().to_be_bytes();
    loop {
        let frame = tap.any().expect("a SYN-ACK");
        let ours =
            frame.len() > offset + 13 && frame[12..14] == if offset == 54 { [0x86, 0xdd] } else { [8, 0] };
        // An earlier client's is sent again.
        if ours && frame[offset + 13] == SYN | ACK && frame[offset + 2..offset + 4] == port {
            return frame[offset..].to_vec();
        }
    }
}

/// Acknowledges a SYN-ACK: sets the client's numbers, and updates the checksum for them (RFC 1624).
fn complete_handshake(ack: &mut [u8], syn_ack: &[u8]) {
    let tcp = if ack[12] == 0x86 { 54 } else { 34 };
    let seq = u32::from_be_bytes(syn_ack[8..12].try_into().unwrap());
    let theirs = u32::from_be_bytes(syn_ack[4..8].try_into().unwrap()).wrapping_add(1);
    let mut sum = u64::from(!u16::from_be_bytes([ack[tcp + 16], ack[tcp + 17]]));
    for (at, value) in [(tcp + 4, seq), (tcp + 8, theirs)] {
        for half in 0..2 {
            let at = at + half * 2;
            let old = u16::from_be_bytes([ack[at], ack[at + 1]]);
            let new = value.to_be_bytes()[half * 2..half * 2 + 2].to_vec();
            sum += u64::from(!old) + u64::from(u16::from_be_bytes([new[0], new[1]]));
            ack[at..at + 2].copy_from_slice(&new);
        }
    }
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    ack[tcp + 16..tcp + 18].copy_from_slice(&(!(sum as u16)).to_be_bytes());
}
