//! ICMP errors about a spliced flow: their receivers, their numbers, and those that are dropped.

use longsplice_dataplane::{Context, Family, Hook, Mode, Side};

use crate::support::{
    FAMILY, choose,
    flow::{Flow, OK, Plan, REDIRECT, SHOT, leg},
    icmp::*,
    packet::*,
};

/// Address of a router on the way to the far end.
const ROUTER: &str = choose("198.18.2.99", "2001:db8:2::99");

/// Returns the error of a router behind `side`'s leg about a segment that our leg sent there.
pub(crate) fn error(flow: &Flow, side: Side, kind: (u8, u8), about: Packet) -> IcmpError {
    let mut outer = flow.peer_segment(side);
    outer.src.set_ip(ROUTER.parse().expect("an address"));
    outer.dst = about.src;
    IcmpError {
        outer,
        kind,
        rest: 1400,
        about,
        quoted: WHOLE_QUOTE,
    }
}

/// Returns the error for the other end: `sent` is the quoted segment as that end sent it.
pub(crate) fn translated(flow: &Flow, side: Side, error: &IcmpError, sent: &Packet) -> IcmpError {
    let there = flow.peer_segment(side.other());
    IcmpError {
        outer: Packet {
            dst_mac: there.src_mac,
            src_mac: there.dst_mac,
            src: there.dst,
            dst: there.src,
            ttl: error.outer.ttl - 1,
            ..error.outer.clone()
        },
        about: Packet {
            // The hops in the quoted header are the router's.
            ttl: error.about.ttl,
            // A window and options are quoted as they came.
            window: error.about.window,
            ..sent.clone()
        },
        ..error.clone()
    }
}

/// Forwards a segment of `side`. Returns it as it was sent, and as the far end got it.
pub(crate) fn forwarded(flow: &Flow, side: Side) -> (Packet, Packet) {
    let sent = Packet {
        payload: pattern(600),
        ..flow.peer_segment(side)
    };
    let got = flow.reference(side).translate(&sent);
    flow.forwards(side, &sent, &mut flow.reference(side));
    (sent, got)
}

fn each(test: impl Fn(&Flow, Side)) {
    for make in [Flow::dormant, Flow::detached] {
        for side in Side::BOTH {
            test(&make(Plan::default()), side);
        }
    }
}

#[test]
fn an_error_reaches_the_sender_in_its_own_numbers() {
    each(|flow, far| {
        let (sent, got) = forwarded(flow, far.other());
        for kind in ALL_ERRORS {
            // The quote of an ICMPv6 error always has room for the whole header.
            for quoted in [WHOLE_QUOTE, choose(LEAST_QUOTE, WHOLE_QUOTE), WHOLE_QUOTE + 64] {
                let error = IcmpError {
                    quoted,
                    ..error(flow, far, kind, got.clone())
                };
                let expected = translated(flow, far, &error, &sent).bytes();
                flow.ingress_gives(far, &error.bytes(), (REDIRECT, "icmp_translated", &expected));
            }
        }
    });
}

#[test]
fn a_sum_of_the_device_stays_right() {
    each(|flow, far| {
        let (_, got) = forwarded(flow, far.other());
        let context = Context {
            ifindex: flow.ifindex(far),
            summed: true,
            ..Context::default()
        };
        let frame = error(flow, far, TOO_BIG, got).bytes();
        let ran = flow.plane.run_in(Hook::Ingress, &frame, context, 1);
        assert_eq!(ran.expect("the sum is right").verdict, REDIRECT);
    });
}

#[test]
fn an_error_about_nothing_on_its_way_is_not_believed() {
    each(|flow, far| {
        let (_, got) = forwarded(flow, far.other());
        for seq in [
            got.seq.wrapping_sub(1),
            got.end().wrapping_add(1),
            got.seq.wrapping_add(1 << 31),
        ] {
            let frame = error(flow, far, TOO_BIG, Packet { seq, ..got.clone() }).bytes();
            flow.ingress_gives(far, &frame, (SHOT, "drop_icmp", &frame));
        }
        // Nor one with an acknowledgement that was not sent, or is long known.
        let window = flow.plan.granted[far];
        for ack in [
            got.ack.wrapping_add(1),
            got.ack.wrapping_sub(window + 1),
            got.ack.wrapping_add(1 << 31),
        ] {
            let frame = error(flow, far, TOO_BIG, Packet { ack, ..got.clone() }).bytes();
            flow.ingress_gives(far, &frame, (SHOT, "drop_icmp", &frame));
        }
        let unsaid = Packet {
            flags: PSH,
            ..got.clone()
        };
        let frame = error(flow, far, TOO_BIG, unsaid).bytes();
        flow.ingress_gives(far, &frame, (SHOT, "drop_icmp", &frame));
        if FAMILY == Family::V6 {
            let short = IcmpError {
                quoted: LEAST_QUOTE,
                ..error(flow, far, TOO_BIG, got.clone())
            };
            let frame = short.bytes();
            flow.ingress_gives(far, &frame, (SHOT, "drop_icmp", &frame));
        }
        // Acknowledged bytes are not in flight any more.
        let acknowledgement = Packet {
            ack: got.end(),
            ..flow.peer_segment(far)
        };
        flow.forwards(far, &acknowledgement, &mut flow.reference(far));
        let frame = error(flow, far, PORT_UNREACHABLE, got).bytes();
        flow.ingress_gives(far, &frame, (SHOT, "drop_icmp", &frame));
    });
}

#[test]
fn what_is_no_error_about_ours_is_not_touched() {
    each(|flow, far| {
        let (_, got) = forwarded(flow, far.other());
        let fine = error(flow, far, TOO_BIG, got.clone());
        let mut to_another = fine.clone();
        to_another.outer.dst.set_ip(leg(far.other()).local.ip());
        let other_port = Packet {
            src: std::net::SocketAddr::new(got.src.ip(), got.src.port() + 1),
            ..got.clone()
        };
        let short = IcmpError {
            quoted: LEAST_QUOTE - 1,
            ..fine.clone()
        };
        let request = IcmpError {
            kind: choose((8, 0), (128, 0)),
            ..fine.clone()
        };
        let later = error(flow, far, TOO_BIG, got.fragment_at(100, true));
        let backwards = error(flow, far, TOO_BIG, flow.peer_segment(far));
        for error in [
            to_another,
            error(flow, far, TOO_BIG, other_port),
            short,
            request,
            later,
            backwards,
        ] {
            flow.ignores(far, &error.bytes());
        }
        let mut cut = fine.bytes();
        cut.truncate(L4 + 8 + 10);
        flow.ignores(far, &cut);
    });
}

#[test]
fn an_error_at_the_end_of_its_hops_is_dropped() {
    each(|flow, far| {
        let (_, got) = forwarded(flow, far.other());
        let mut error = error(flow, far, TOO_BIG, got);
        error.outer.ttl = 1;
        let frame = error.bytes();
        flow.ingress_gives(far, &frame, (SHOT, "drop_ttl", &frame));
    });
}

#[test]
fn in_control_mode_it_is_the_sockets() {
    for side in Side::BOTH {
        let flow = Flow::track(Plan::default());
        let frame = error(&flow, side, TOO_BIG, flow.local_segment(side)).bytes();
        flow.ingress_gives(side, &frame, (OK, "icmp_delivered", &frame));
        drop(flow);

        let flow = Flow::track(Plan::mapped());
        let about = flow.local_segment(side);
        let mapping = flow.plan.mapping[side];
        let own = Packet {
            seq: about.seq.wrapping_add(mapping.ack.raw()),
            ack: about.ack.wrapping_add(mapping.seq.raw()),
            ..about.clone()
        };
        let error = error(&flow, side, TOO_BIG, about);
        let expected = IcmpError {
            about: own,
            ..error.clone()
        };
        flow.ingress_gives(side, &error.bytes(), (OK, "icmp_delivered", &expected.bytes()));
    }
}

#[test]
fn in_the_drain_the_cut_decides() {
    for far in Side::BOTH {
        let flow = Flow::track(Plan::default());
        let from = far.other();
        // The socket has sent data of its own, and other data was forwarded behind it.
        let old = Packet {
            payload: pattern(100),
            ..flow.peer_segment(from)
        };
        flow.ingress(from, &old.bytes());
        let own = Packet {
            payload: pattern(100),
            ..flow.local_segment(far)
        };
        flow.egress(far, &own.bytes());
        flow.transition(Mode::Track, Mode::Drain);
        let sent = Packet {
            seq: old.end(),
            payload: pattern(200),
            ..flow.peer_segment(from)
        };
        let mut got = flow.reference(from).translate(&sent);
        flow.ingress(from, &sent.bytes());
        let frame = error(&flow, far, TOO_BIG, own).bytes();
        flow.ingress_gives(far, &frame, (OK, "icmp_delivered", &frame));
        got.payload = sent.payload.clone();
        let error = error(&flow, far, TOO_BIG, got);
        let expected = translated(&flow, far, &error, &sent).bytes();
        flow.ingress_gives(far, &error.bytes(), (REDIRECT, "icmp_translated", &expected));
    }
}
