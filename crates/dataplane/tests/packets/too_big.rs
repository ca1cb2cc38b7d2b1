//! A segment that is too long for its route: its sender is told the MTU.

use longsplice_dataplane::{Context, Hook, Side};

use crate::support::{
    choose,
    flow::{Flow, Plan, REDIRECT, SHOT},
    icmp::*,
    options::usual,
    packet::*,
};

use Side::Client;

/// MTU of the narrow link; IPv6 requires at least 1280.
const MTU: u16 = 1300;

/// Runs a test on spliced flows whose route to the server is narrow.
fn each(test: impl Fn(&Flow)) {
    for make in [Flow::dormant, Flow::detached] {
        let flow = make(Plan::default());
        flow.net.ip(&format!("link set b0 mtu {MTU}"));
        test(&flow);
    }
}

/// Returns a segment of the client that makes an IP packet of so many bytes.
fn of_length(flow: &Flow, len: usize) -> Packet {
    let options = usual(flow.plan.clock[0] + 1, 2);
    Packet {
        payload: pattern(ETH + len - BODY - options.len()),
        options,
        ..flow.peer_segment(Client)
    }
}

/// Returns the error for the client.
fn answer(about: &Packet) -> IcmpError {
    IcmpError {
        outer: Packet {
            dst_mac: about.src_mac,
            src_mac: about.dst_mac,
            src: about.dst,
            dst: about.src,
            tos: choose(0xc0, 0),
            flow_label: 0,
            id: 0,
            ..Packet::blank()
        },
        kind: TOO_BIG,
        rest: u32::from(MTU),
        about: about.clone(),
        quoted: WHOLE_QUOTE,
    }
}

#[test]
fn its_sender_is_told() {
    each(|flow| {
        let fits = of_length(flow, usize::from(MTU));
        flow.forwards(Client, &fits, &mut flow.reference(Client));
        for more in [1, 200] {
            let packet = of_length(flow, usize::from(MTU) + more);
            let expected = answer(&packet).bytes();
            flow.ingress_gives(
                Client,
                &packet.bytes(),
                (REDIRECT, "drop_too_big too_big_told", &expected),
            );
        }
    });
}

#[test]
fn a_super_packet_is_as_long_as_its_segments() {
    each(|flow| {
        let packet = of_length(flow, 3000);
        let headers = BODY - ETH + 12;
        for (size, passes) in [
            (usize::from(MTU) - headers, true),
            (usize::from(MTU) - headers + 1, false),
        ] {
            let context = Context {
                ifindex: flow.ifindex(Client),
                gso_size: size as u32,
                gso_segs: 3,
                ..Context::default()
            };
            let (ran, counted) =
                flow.counted(|| flow.plane.run_in(Hook::Ingress, &packet.bytes(), context, 1));
            let ran = ran.expect("the program runs");
            assert_eq!(ran.verdict, REDIRECT);
            assert_eq!(counted.contains_key("forwarded"), passes, "{counted:?}");
            if !passes {
                assert_frame(&ran.packet, &answer(&packet).bytes(), "the answer");
            }
        }
    });
}

#[test]
fn extension_headers_are_quoted_too() {
    each(|flow| {
        let packet = Packet {
            ip_options: vec![1; 8],
            extensions: vec![(DESTINATIONS, vec![0, 1, 4, 0, 0, 0, 0])],
            ..of_length(flow, 1400)
        };
        let expected = IcmpError {
            quoted: WHOLE_QUOTE + 8,
            ..answer(&packet)
        };
        flow.ingress_gives(
            Client,
            &packet.bytes(),
            (REDIRECT, "drop_too_big too_big_told", &expected.bytes()),
        );
    });
}

#[test]
fn a_forged_segment_is_not_answered() {
    each(|flow| {
        let frame = Packet {
            seq: flow.plan.peer[0].wrapping_sub(1 << 24),
            ..of_length(flow, 1400)
        }
        .bytes();
        flow.ingress_gives(Client, &frame, (SHOT, "drop_too_big", &frame));
    });
}

#[test]
fn there_are_few_answers_at_a_time() {
    each(|flow| {
        let frame = of_length(flow, 1400).bytes();
        let context = Context {
            ifindex: flow.ifindex(Client),
            ..Context::default()
        };
        // It comes as fast as the kernel repeats it: many in one tick. The packet is its own answer after the first time.
        let (_, counted) = flow.counted(|| {
            for _ in 0..2000 {
                flow.plane
                    .run_in(Hook::Ingress, &frame, context, 1)
                    .expect("the program runs");
            }
        });
        assert_eq!(counted["drop_too_big"], 2000);
        assert!(counted["too_big_told"] < 2000, "{counted:?}");
    });
}

#[test]
fn a_way_that_is_known_is_measured_as_well() {
    each(|flow| {
        // The kernel looks for the neighbor, and checks no length.
        flow.net.del_neighbour(Side::Server);
        let short = of_length(flow, 600);
        flow.ingress(Client, &short.bytes());
        let packet = of_length(flow, 1400);
        let expected = answer(&packet).bytes();
        flow.ingress_gives(
            Client,
            &packet.bytes(),
            (REDIRECT, "drop_too_big too_big_told", &expected),
        );
    });
}
