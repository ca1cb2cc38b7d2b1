//! A flow with one leg of each version of IP: the leg of the client has this binary's, that of the server the other one.

use std::net::SocketAddr;

use longsplice_dataplane::{Context, Family, Hook, Leg, Mode, PerSide, Side, Slot};

use super::fragments::{pieces, with_id};
use crate::support::{
    FAMILY, choose,
    flow::{OK, Plan, REDIRECT, SHOT},
    icmp::{IcmpError, WHOLE_QUOTE},
    net::{Net, OUR_MAC, PEER_MAC},
    options::usual,
    packet::{ACK, DESTINATIONS, ETH, FIN, Packet, assert_frame, internet_checksum, pattern},
    plane::Plane,
    reference::{self, Reference},
};

use Side::{Client, Server};

const SERIAL: u32 = 77;

/// Holds a detached flow.
struct Across {
    plane: Plane,
    net: Net,
    plan: Plan,
    legs: PerSide<Leg>,
}

fn address(text: &str) -> SocketAddr {
    text.parse().expect("an address")
}

impl Across {
    fn new(depth: Mode) -> (Across, Option<Slot>) {
        let net = Net::new();
        let (peer, local) = choose(
            ("2001:db8:3::2", "2001:db8:3::1/64"),
            ("198.18.3.2", "198.18.3.1/24"),
        );
        let (other, nodad) = choose((Family::V6, "nodad"), (Family::V4, ""));
        net.ip_of(
            other,
            &format!(
                "address add {local} dev b0 {nodad}
                 neighbour replace {peer} lladdr 02:00:00:00:02:02 dev b0"
            ),
        );
        let plane = Plane::open();
        let plan = Plan::default();
        let mut starts = plan.starts();
        starts.server.leg = Leg {
            peer: address(choose("[2001:db8:3::2]:8080", "198.18.3.2:8080")),
            local: address(choose("[2001:db8:3::1]:50000", "198.18.3.1:50000")),
        };
        let legs = PerSide::from_fn(|side| starts[side].leg);
        let slot = plane.take_slot().expect("a free slot");
        plane
            .register(&slot, SERIAL, true, &starts)
            .expect("the flow is new");
        let across = Across {
            plane,
            net,
            plan,
            legs,
        };
        if depth == Mode::Track {
            return (across, Some(slot));
        }
        assert!(slot.transition(Mode::Track, Mode::Drain));
        let cuts = PerSide::from_fn(|side| across.plane.leg(&slot, side).cut);
        assert_eq!(
            across.plane.finish(&slot, cuts, false).expect("it runs"),
            Mode::Final
        );
        if depth == Mode::Final {
            return (across, Some(slot));
        }
        let toward = PerSide::new(across.ifindex(Server), across.ifindex(Client));
        across
            .plane
            .demote(&slot, legs, toward)
            .expect("the records are there");
        (across, None)
    }

    fn ifindex(&self, side: Side) -> u32 {
        self.net.ifindex(["a0", "b0"][side])
    }

    /// Returns the next segment of a peer.
    fn segment(&self, side: Side) -> Packet {
        Packet {
            dst_mac: OUR_MAC[side],
            src_mac: PEER_MAC[side],
            src: self.legs[side].peer,
            dst: self.legs[side].local,
            seq: self.plan.peer[side],
            ack: self.plan.local[side],
            window: 500,
            tos: 0xba,
            ..Packet::blank()
        }
    }

    /// Returns a peer's segment as the far end gets it.
    fn translated(&self, side: Side, packet: &Packet) -> Packet {
        let (o, plan) = (side.other(), &self.plan);
        let mut reference = Reference {
            src: self.legs[o].local,
            dst: self.legs[o].peer,
            src_mac: OUR_MAC[o],
            dst_mac: PEER_MAC[o],
            seq: plan.seq_off(side).raw(),
            far_seq: plan.seq_off(o).raw(),
            ts: plan.ts[side],
            far_ts: plan.ts[o],
            scale_in: plan.scale_in[side],
            scale_out: plan.scale_out[side],
            blank_sack: plan.blank_sack[side],
            ts_high: plan.clock[side].wrapping_add(plan.ts[side]),
        };
        reference::across(reference.translate(packet), SERIAL)
    }

    /// Runs ingress over a frame that the device may have summed up.
    fn ingress(&self, side: Side, frame: &[u8], summed: bool) -> (u32, Vec<u8>) {
        let context = Context {
            ifindex: self.ifindex(side),
            summed,
            ..Context::default()
        };
        let ran = self
            .plane
            .run_in(Hook::Ingress, frame, context, 1)
            .expect("it runs");
        (ran.verdict, ran.packet)
    }
}

#[test]
fn a_segment_becomes_one_of_the_other_version() {
    for depth in [Mode::Final, Mode::Moved] {
        let (across, _slot) = Across::new(depth);
        for side in Side::BOTH {
            let mut now = 60_000;
            for summed in [false, true] {
                for (len, timestamps) in [(0, false), (1, true), (1400, true)] {
                    now += 1;
                    let sent = Packet {
                        payload: pattern(len),
                        options: if timestamps { usual(now, 4) } else { Vec::new() },
                        ..across.segment(side)
                    };
                    let expected = across.translated(side, &sent).bytes();
                    let (verdict, got) = across.ingress(side, &sent.bytes(), summed);
                    assert_eq!(verdict, REDIRECT, "{side:?} {len}");
                    assert_frame(&got, &expected, &format!("{side:?} {len} {summed}"));
                }
            }
        }
    }
}

/// Returns the packet with options of IP, or an extension header.
fn with_extras(packet: Packet) -> Packet {
    match Family::of(packet.src.ip()) {
        Family::V4 => Packet {
            ip_options: vec![1; 8],
            ..packet
        },
        Family::V6 => Packet {
            extensions: vec![(DESTINATIONS, vec![0, 1, 4, 0, 0, 0, 0])],
            ..packet
        },
    }
}

/// Options of IP and extension headers stay behind.
#[test]
fn what_stands_between_ip_and_tcp_is_left_out() {
    let (across, _) = Across::new(Mode::Moved);
    for side in Side::BOTH {
        let sent = with_extras(Packet {
            payload: pattern(300),
            ..across.segment(side)
        });
        let expected = across.translated(side, &sent).bytes();
        let (verdict, got) = across.ingress(side, &sent.bytes(), false);
        assert_eq!(verdict, REDIRECT, "{side:?}");
        assert_frame(&got, &expected, &format!("{side:?}"));
    }
}

/// In the drain, the copy for the socket is made of the packet that became the far end's: they are left out of it, too.
#[test]
fn a_copy_for_the_socket_is_whole_without_them() {
    for side in Side::BOTH {
        let (across, slot) = Across::new(Mode::Track);
        let slot = slot.expect("a slot");
        // Each socket waits for an acknowledgement of what the other one has received.
        let old = PerSide::from_fn(|side| {
            let old = Packet {
                payload: pattern(50),
                ..across.segment(side)
            };
            assert_eq!(across.ingress(side, &old.bytes(), false).0, OK);
            old
        });
        assert!(slot.transition(Mode::Track, Mode::Drain));
        let new = Packet {
            seq: old[side].end(),
            payload: pattern(300),
            ..old[side].clone()
        };
        let trimmed = Packet {
            payload: Vec::new(),
            ..new.clone()
        };
        // The kernel forgets the device's sum of a packet that it trims.
        for (sent, local, summed) in [
            (&old[side], &old[side], false),
            (&old[side], &old[side], true),
            (&new, &trimmed, false),
        ] {
            let (verdict, got) = across.ingress(side, &with_extras(sent.clone()).bytes(), summed);
            assert_eq!(verdict, OK, "{side:?}");
            assert_frame(&got, &local.bytes(), &format!("{side:?} {summed}"));
        }
    }
}

/// Fragments keep their place (RFC 7915 sections 4.1 and 5.1.1); IPv6 has it in an extension header.
#[test]
fn fragments_become_those_of_the_other_version() {
    for depth in [Mode::Final, Mode::Moved] {
        let (across, _slot) = Across::new(depth);
        let mut id = 0x1000;
        for side in Side::BOTH {
            for summed in [false, true] {
                id += 1;
                let whole = Packet {
                    id,
                    flags: ACK | FIN,
                    options: usual(60_000 + u32::from(id), 4),
                    payload: pattern(688),
                    ..across.segment(side)
                };
                let sent = pieces(&whole);
                let expected = pieces(&across.translated(side, &whole));
                assert_eq!(sent.len(), 3);
                let mut first = None;
                for i in 0..sent.len() {
                    let (verdict, got) = across.ingress(side, &sent[i], summed);
                    let told = format!("{depth:?} {side:?} {summed} piece {i}");
                    assert_eq!(verdict, REDIRECT, "{told}");
                    let like = first.get_or_insert_with(|| got.clone());
                    assert_frame(&got, &with_id(&expected[i], like), &told);
                }
            }
        }
    }
}

/// Errors on the client's leg about segments of the server become errors of the server's version (RFC 7915 sections 4.2
/// and 5.2).
#[test]
fn an_error_becomes_one_of_the_other_version() {
    let v4 = [
        ((3, 0), 0, Some(((1, 0), 0))),
        ((3, 1), 0, Some(((1, 0), 0))),
        ((3, 2), 0, Some(((4, 1), 6))),
        ((3, 3), 0, Some(((1, 4), 0))),
        ((3, 4), 1400, Some(((2, 0), 1420))),
        ((3, 4), 0, Some(((2, 0), 1280))),
        ((3, 13), 0, Some(((1, 1), 0))),
        ((3, 14), 0, None),
        ((11, 0), 0, Some(((3, 0), 0))),
        ((12, 0), 8 << 24, Some(((4, 0), 7))),
        ((12, 0), 4 << 24, None),
    ];
    let v6 = [
        ((1, 0), 0, Some(((3, 1), 0))),
        ((1, 1), 0, Some(((3, 10), 0))),
        ((1, 3), 0, Some(((3, 1), 0))),
        ((1, 4), 0, Some(((3, 3), 0))),
        ((2, 0), 1400, Some(((3, 4), 1380))),
        ((2, 0), 1279, None),
        ((3, 0), 0, Some(((11, 0), 0))),
        ((4, 0), 7, Some(((12, 0), 8 << 24))),
        ((4, 0), 2, None),
        ((4, 1), 6, Some(((3, 2), 0))),
        ((4, 2), 0, None),
    ];
    let (across, _) = Across::new(Mode::Moved);
    let sent = Packet {
        payload: pattern(600),
        ..across.segment(Server)
    };
    let got = across.translated(Server, &sent);
    assert_eq!(across.ingress(Server, &sent.bytes(), false).0, REDIRECT);
    let router = address(choose("198.18.1.99:0", "[2001:db8:1::99]:0"));
    for (kind, rest, expected) in choose(v4, v6) {
        let outer = Packet {
            src: router,
            dst: got.src,
            ..across.segment(Client)
        };
        let error = IcmpError {
            outer,
            kind,
            rest,
            about: got.clone(),
            quoted: WHOLE_QUOTE,
        };
        let (verdict, frame) = across.ingress(Client, &error.bytes(), false);
        let Some((kind, rest)) = expected else {
            assert_eq!(verdict, SHOT, "{kind:?} {rest}");
            continue;
        };
        assert_eq!(verdict, REDIRECT, "{kind:?}");
        // The other version's: headers of IP, ICMP, the quote's IP, and 20 bytes of TCP.
        let header = choose(40, 20);
        let icmp = ETH + header;
        assert_eq!(frame.len(), icmp + 8 + header + 20);
        assert_eq!((frame[icmp], frame[icmp + 1]), kind);
        assert_eq!(frame[icmp + 4..icmp + 8], u32::to_be_bytes(rest), "{kind:?}");
        let quote = &frame[icmp + 8..];
        let about = Packet {
            ttl: got.ttl,
            ..sent.clone()
        };
        let quoted = Packet {
            id: 0,
            flow_label: SERIAL.wrapping_mul(0x9e37_79b1) >> 12,
            ..about
        };
        let quoted = quoted.bytes();
        // All but the window and the checksum of TCP, which are quoted as they were on the way.
        assert_eq!(quote[..header + 14], quoted[ETH..ETH + header + 14], "{kind:?}");
        let pseudo = match FAMILY {
            Family::V4 => [
                &frame[22..54],
                &[0, 0, 0, (frame.len() - icmp) as u8, 0, 0, 0, 58],
            ]
            .concat(),
            Family::V6 => Vec::new(),
        };
        assert_eq!(internet_checksum(&[&pseudo, &frame[icmp..]]), 0, "{kind:?}");
        let to = match across.legs[Server].peer {
            SocketAddr::V4(peer) => peer.ip().octets().to_vec(),
            SocketAddr::V6(peer) => peer.ip().octets().to_vec(),
        };
        assert_eq!(frame[icmp - to.len()..icmp], to);
    }
    // One that is corrupted is not sealed anew.
    let outer = Packet {
        src: router,
        dst: got.src,
        ..across.segment(Client)
    };
    let error = IcmpError {
        outer,
        kind: choose((3, 4), (2, 0)),
        rest: 1400,
        about: got,
        quoted: WHOLE_QUOTE,
    };
    let mut frame = error.bytes();
    let last = frame.len() - 1;
    frame[last] ^= 1;
    assert_eq!(across.ingress(Client, &frame, false).0, SHOT);
}
