//! Resets of a socket that held bytes.

use longsplice_dataplane::{
    Mapping, Mode,
    Side::{self, Client, Server},
};

use super::{OLD, plans, waiting};
use crate::support::{
    flow::{Flow, OK, Plan, REDIRECT, SHOT},
    options::usual,
    packet::*,
};

/// Asserts the peer's view of a socket's reset, and that the kernel answers for itself from then on.
#[track_caller]
fn aborts(flow: &Flow, side: Side, reset: &Packet, expected: &Packet) {
    let emitted = flow.behind(side).by_socket(reset).bytes();
    flow.egress_gives(side, &emitted, (OK, "aborted", &expected.bytes()));
    assert_eq!(flow.slot().mode(), Mode::Aborted);
    for s in Side::BOTH {
        flow.ignores(s, &flow.peer_segment(s).bytes());
        // Segments in numbers that the peer would not understand are dropped.
        let local = flow.local_segment(s).bytes();
        let mapped = flow.plan.mapping[s] != Mapping::default();
        let fate = if mapped { (SHOT, "drop_parked") } else { (OK, "") };
        flow.egress_gives(s, &local, (fate.0, fate.1, &local));
        // The answer to an untranslated segment is in that segment's numbers.
        let answer = Packet {
            flags: RST,
            ..flow.local_segment(s)
        }
        .bytes();
        flow.egress_gives(s, &answer, (OK, "aborted", &answer));
    }
}

#[test]
fn the_reset_of_a_socket_aborts_the_flow_at_the_end_of_what_its_peer_was_sent() {
    for plan in plans() {
        // Reset through its socket.
        let flow = waiting(plan.clone());
        let reset = Packet {
            seq: flow.local_segment(Client).seq + 7,
            flags: RST | ACK,
            options: usual(1, 2),
            ..flow.local_segment(Client)
        };
        let at = |seq: u32| Packet { seq, ..reset.clone() };
        aborts(&flow, Client, &reset, &at(flow.plan.local[0] + OLD));
        // Reset past its socket.
        let flow = waiting(plan.clone());
        let new = Packet {
            payload: pattern(30),
            seq: flow.plan.peer[1] + OLD,
            ..flow.peer_segment(Server)
        };
        assert_eq!(flow.ingress(Server, &new.bytes()).verdict, REDIRECT);
        aborts(&flow, Client, &reset, &at(flow.plan.local[0] + OLD + 30));
    }
}

#[test]
fn a_reset_without_acknowledgement_answers_a_segment_and_is_in_place() {
    for plan in plans() {
        let flow = waiting(plan.clone());
        let reset = Packet {
            seq: 77,
            ack: 0,
            flags: RST,
            ..flow.local_segment(Server)
        };
        aborts(&flow, Server, &reset, &reset);
    }
}

#[test]
fn a_socket_that_is_reset_before_the_drain_says_so_itself() {
    for plan in plans() {
        let flow = Flow::track(plan.clone());
        let reset = Packet {
            flags: RST,
            ..flow.local_segment(Client)
        };
        let counter = if plan.mapping == Plan::default().mapping {
            "emitted"
        } else {
            "clamped"
        };
        let emitted = flow.behind(Client).by_socket(&reset).bytes();
        flow.egress_gives(Client, &emitted, (OK, counter, &reset.bytes()));
        assert_eq!(flow.slot().mode(), Mode::Track);
    }
}
