//! Emissions of the local sockets during a drain.

use longsplice_dataplane::Side::{Client, Server};

use super::{Drained, OLD, data, plans};
use crate::support::{
    flow::{OK, Plan},
    options::{usual, usual_with_sack},
    packet::*,
};

#[test]
fn an_emission_acknowledges_what_the_far_end_has() {
    for plan in plans() {
        // The client sent a hundred new bytes, which the server has acknowledged.
        let d = Drained::waiting(plan.clone());
        let new = data(&d.flow, 100);
        assert_eq!(d.flow.ingress(Client, &new.bytes()).verdict, OK);
        let ack = Packet {
            seq: d.flow.plan.peer[1] + OLD,
            ack: d.flow.plan.local[1] + 100,
            window: 400,
            options: usual(d.flow.plan.clock[1] + 9, 3),
            ..d.flow.peer_segment(Server)
        };
        let mut back = d.flow.reference(Server);
        d.flow.forwards(Server, &ack, &mut back);
        // The client's socket retransmits, and knows nothing of that.
        let peer = d.flow.plan.peer[0];
        let packet = Packet {
            payload: pattern(OLD as usize),
            flags: ACK | PSH,
            window: 3,
            options: usual_with_sack(back.ts_high - 40, 77, &[(peer + 10, peer + 20)]),
            ..d.flow.local_segment(Client)
        };
        let edge = 400u32 << d.flow.plan.scale_in[1];
        let granted = d.flow.plan.granted[1].max(100 + edge) - 100;
        let expected = Packet {
            ack: peer + 100,
            window: (granted >> d.flow.plan.scale_out[1]) as u16,
            options: [usual(back.ts_high, 77), vec![1; 12]].concat(),
            ..packet.clone()
        };
        d.emits(&packet, "clamped", &expected);
    }
}

#[test]
fn an_acknowledgement_is_put_where_it_is_heard_and_a_probe_is_not() {
    for plan in plans() {
        let d = Drained::idle(plan.clone());
        // The server sent something past the client's socket.
        let past = Packet {
            payload: pattern(300),
            flags: ACK | PSH,
            ..d.flow.peer_segment(Server)
        };
        d.flow.forwards(Server, &past, &mut d.flow.reference(Server));
        let says = Packet {
            window: (d.flow.plan.granted[1] >> d.flow.plan.scale_out[1]) as u16,
            ..d.flow.local_segment(Client)
        };
        let heard = Packet {
            seq: says.seq + 300,
            ..says.clone()
        };
        d.emits(&says, "clamped", &heard);
        // The client answers a probe because it is old.
        let probe = Packet {
            seq: says.seq - 1,
            ..says
        };
        let mapped = plan.mapping != Plan::default().mapping;
        d.emits(&probe, if mapped { "clamped" } else { "emitted" }, &probe);
    }
}

#[test]
fn an_emission_that_needs_no_change_passes() {
    for plan in plans() {
        let d = Drained::idle(plan.clone());
        let window = d.flow.plan.granted[1] >> d.flow.plan.scale_out[1];
        let packet = Packet {
            window: window as u16,
            payload: pattern(3),
            ..d.flow.local_segment(Client)
        };
        // The frame of a socket with an offset is rewritten.
        let mapped = plan.mapping != Plan::default().mapping;
        d.emits(&packet, if mapped { "clamped" } else { "emitted" }, &packet);
    }
}
