//! FINAL: the constant translation, with and without sockets, in both directions.

use longsplice_dataplane::Side;
use proptest::{
    prelude::*,
    test_runner::{Config, RngAlgorithm, TestRng, TestRunner},
};

use crate::support::{
    flow::{Flow, Plan, SHOT, legs},
    options::{Opt, write},
    packet::*,
};

/// Runs a test on dormant and detached flows, in both directions.
fn each(plan: Plan, test: impl Fn(&Flow, Side)) {
    for make in [Flow::dormant, Flow::detached] {
        let flow = make(plan.clone());
        for side in Side::BOTH {
            test(&flow, side);
        }
    }
}

#[test]
fn a_segment_without_options() {
    each(Plan::default(), |flow, side| {
        let packet = Packet {
            payload: pattern(100),
            flags: ACK | PSH,
            ..flow.peer_segment(side)
        };
        flow.forwards(side, &packet, &mut flow.reference(side));
    });
}

#[test]
fn payload_of_any_length_is_unchanged() {
    each(Plan::default(), |flow, side| {
        let full = 1514 - BODY;
        for len in [0, 1, 2, 3, 5, 536, full - 13, full - 12, full] {
            let packet = Packet {
                payload: pattern(len),
                ..flow.peer_segment(side)
            };
            flow.forwards(side, &packet, &mut flow.reference(side));
        }
    });
}

#[test]
fn control_flags_and_the_urgent_pointer_are_kept() {
    each(Plan::default(), |flow, side| {
        for flags in (0..=255u8).filter(|f| f & SYN == 0 && f & (ACK | RST) != 0) {
            let packet = Packet {
                flags,
                urgent: 0x0123,
                reserved: flags & 1,
                payload: pattern(7),
                ..flow.peer_segment(side)
            };
            flow.forwards(side, &packet, &mut flow.reference(side));
        }
    });
}

#[test]
fn dscp_ecn_id_and_dont_fragment_are_kept() {
    each(Plan::default(), |flow, side| {
        for (tos, id, fragment) in [
            (0b1011_1010, 0, 0x4000),
            (0b1011_1011, 0xffff, 0),
            (1, 1, 0x8000),
            (2, 0x8000, 0xc000),
        ] {
            let packet = Packet {
                tos,
                id,
                fragment,
                ..flow.peer_segment(side)
            };
            flow.forwards(side, &packet, &mut flow.reference(side));
        }
    });
}

#[test]
fn hops_are_counted_and_few_are_renewed() {
    each(Plan::default(), |flow, side| {
        for ttl in [0, 1, 2, 32, 33, 64, 255] {
            let packet = Packet {
                ttl,
                ..flow.peer_segment(side)
            };
            flow.forwards(side, &packet, &mut flow.reference(side));
        }
    });
}

#[test]
fn the_padding_of_a_short_frame_is_no_payload() {
    each(Plan::default(), |flow, side| {
        let mut payload = 0;
        for (len, padding) in [(0, 6), (1, 5), (5, 1), (0, 20)] {
            let packet = Packet {
                payload: pattern(len),
                padding: vec![0xa5; padding],
                ..flow.peer_segment(side)
            };
            flow.forwards(side, &packet, &mut flow.reference(side));
            payload += len as u64;
            let mut counted = 0;
            flow.plane
                .scan(|d| counted += if d.side == side { d.bytes } else { 0 })
                .expect("a scan");
            if let Some(slot) = &flow.slot {
                counted = flow.plane.directions(slot, legs())[side].bytes;
            }
            assert_eq!(counted, payload);
        }
    });
}

#[test]
fn windows_are_rescaled_for_every_pair_of_scales() {
    let mut flow = Flow::dormant(Plan::default());
    // A leg's scales are constants of its flow: use another flow for each pair.
    for (scale_in, scale_out) in (0..=14).flat_map(|i| (0..=14).map(move |o| (i, o))) {
        flow.again(Plan {
            scale_in: [scale_in, scale_out],
            scale_out: [scale_out, scale_in],
            ..Plan::default()
        });
        for side in Side::BOTH {
            for window in [0, 1, 3, 255, 256, 500, 4095, 32_768, 65_535] {
                let packet = Packet {
                    window,
                    ..flow.peer_segment(side)
                };
                flow.forwards(side, &packet, &mut flow.reference(side));
            }
        }
    }
}

#[test]
fn sequence_numbers_wrap_around() {
    for (peer, local) in [
        ([u32::MAX - 2, 5], [u32::MAX, 0x7fff_ffff]),
        ([0x7fff_fff0, 0xffff_fff0], [0, u32::MAX - 50]),
    ] {
        let plan = Plan {
            peer,
            local,
            ..Plan::default()
        };
        each(plan, |flow, side| {
            let mut reference = flow.reference(side);
            let mut packet = flow.peer_segment(side);
            // The acknowledged bytes were sent.
            let far = flow.later(side.other(), 0, 90, 0);
            flow.forwards(side.other(), &far, &mut flow.reference(side.other()));
            for len in [3, 1, 100, 1] {
                packet.payload = pattern(len);
                flow.forwards(side, &packet, &mut reference);
                packet.seq = packet.end();
                packet.ack = packet.ack.wrapping_add(30);
            }
        });
    }
}

fn any_option() -> impl Strategy<Value = Opt> {
    let block = (any::<u32>(), any::<u32>());
    prop_oneof![
        3 => Just(Opt::Nop),
        2 => proptest::collection::vec(block, 1..=4).prop_map(Opt::Sack),
        1 => (9u8..=254, proptest::collection::vec(any::<u8>(), 0..6)).prop_map(|(k, b)| Opt::Other(k, b)),
        1 => proptest::collection::vec(any::<u8>(), 1..4).prop_map(|mut b| { b[0] = 0; Opt::Rest(b) }),
        1 => proptest::collection::vec(any::<u8>(), 3..6).prop_map(|mut b| { b[..2].copy_from_slice(&[99, 1]); Opt::Rest(b) }),
    ]
}

/// Returns options with at most one timestamp, at any place, as many as fit.
fn any_options() -> impl Strategy<Value = Vec<u8>> {
    let ts = proptest::option::of((0u32..1 << 20, any::<u32>(), 0usize..4));
    (proptest::collection::vec(any_option(), 0..6), ts).prop_map(|(mut list, ts)| {
        if let Some((value, echo, place)) = ts {
            list.insert(place.min(list.len()), Opt::Timestamps(value, echo));
        }
        let len = |list: &[Opt]| -> usize {
            list.iter()
                .map(|o| match o {
                    Opt::Nop => 1,
                    Opt::Timestamps(..) => 10,
                    Opt::Sack(b) => 2 + 8 * b.len(),
                    Opt::Other(_, b) => 2 + b.len(),
                    Opt::Rest(b) => b.len(),
                })
                .sum()
        };
        while len(&list) > 40 {
            list.remove(0);
        }
        write(&list)
    })
}

prop_compose! {
    fn any_segment()(
        seq in any::<u32>(), ack in any::<u32>(), flags in any::<u8>(), window in any::<u16>(), urgent in any::<u16>(),
        tos in any::<u8>(), id in any::<u16>(), ttl in any::<u8>(), reserved in 0u8..16, options in any_options(),
        payload in proptest::collection::vec(any::<u8>(), 0..300),
    ) -> Packet {
        Packet {
            tos, id, ttl, seq, ack, reserved, flags: flags & !SYN, window, urgent, options, payload,
            flow_label: seq >> 12,
            ..Packet::blank()
        }
    }
}

#[test]
fn whatever_the_headers_the_bytes_are_those_of_the_reference() {
    let seed: [u8; 32] = match std::env::var("LONGSPLICE_SEED") {
        Ok(hex) => {
            std::array::from_fn(|i| u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).expect("64 hex digits"))
        }
        Err(_) => std::fs::read("/proc/sys/kernel/random/uuid").expect("randomness")[..32]
            .try_into()
            .expect("36 characters"),
    };
    let hex: String = seed.iter().map(|b| format!("{b:02x}")).collect();
    println!("LONGSPLICE_SEED={hex}");
    for (make, blank_sack) in [
        (Flow::dormant as fn(Plan) -> Flow, [false, true]),
        (Flow::detached, [true, false]),
    ] {
        let flow = make(Plan {
            blank_sack,
            ..Plan::default()
        });
        let references = std::cell::RefCell::new(Side::BOTH.map(|side| flow.reference(side)));
        // Payload of each side that has passed.
        let sent = std::cell::RefCell::new([0u32; 2]);
        let config = Config {
            cases: 400,
            failure_persistence: None,
            // The history matters (TSval never goes back): a shorter packet alone has another one.
            max_shrink_iters: 0,
            ..Config::default()
        };
        let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &seed));
        runner
            .run(
                &(any_segment(), any::<bool>(), 0..1000u32, 0..4),
                |(mut segment, client, offset, place)| {
                    let side = Side::BOTH[usize::from(client)];
                    let ends = flow.peer_segment(side);
                    // All but a reset acknowledge something.
                    if segment.flags & RST == 0 {
                        segment.flags |= ACK;
                    }
                    segment.ack = ends.ack;
                    let sent = &mut sent.borrow_mut()[side];
                    match place {
                        // Behind the window, or beyond it: nothing is learned from it.
                        0 => segment.seq = ends.seq.wrapping_sub((1 << 29) + (segment.seq >> 3)),
                        1 => segment.seq = ends.seq.wrapping_add((1 << 30) + (segment.seq >> 3)),
                        // A segment behind a gap would need the right time.
                        _ => {
                            let offset = offset % (*sent + 1);
                            segment.seq = ends.seq + offset;
                            let end = offset + segment.payload.len() as u32;
                            // The FIN at the end of the stream would let no payload follow.
                            if end >= *sent {
                                segment.flags &= !FIN;
                            }
                            if segment.flags & RST == 0 {
                                *sent = (*sent).max(end);
                            }
                        }
                    }
                    let packet = Packet {
                        dst_mac: ends.dst_mac,
                        src_mac: ends.src_mac,
                        src: ends.src,
                        dst: ends.dst,
                        ..segment
                    };
                    let reference = &mut references.borrow_mut()[side];
                    match place {
                        0 | 1 => {
                            let frame = packet.bytes();
                            flow.ingress_gives(side, &frame, (SHOT, "drop_window", &frame));
                        }
                        _ => flow.forwards(side, &packet, reference),
                    }
                    Ok(())
                },
            )
            .unwrap_or_else(|e| panic!("LONGSPLICE_SEED={hex}: {e}"));
    }
}
