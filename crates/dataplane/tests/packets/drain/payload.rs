//! Payload in a drain: old payload goes to the sockets and to the far end; new payload goes to the far end.

use longsplice_dataplane::Seq;

use longsplice_dataplane::Side::Client;

use super::{Drained, OLD, data, plans, trimmed};
use crate::support::{flow::legs, packet::*};

#[test]
fn new_payload_is_forwarded_when_the_socket_waits_for_nothing() {
    for plan in plans() {
        let mut d = Drained::idle(plan.clone());
        for (offset, len) in [(0, 100), (100, 1), (5000, 10), (0, 100)] {
            let mut packet = data(&d.flow, len);
            packet.seq += offset;
            d.forwarded(&packet);
        }
        let mut fin = data(&d.flow, 0);
        fin.flags = ACK | FIN;
        fin.seq += 5_010;
        d.forwarded(&fin);
        assert!(d.flow.plane.directions(d.flow.slot(), legs()).client.fin);
    }
}

#[test]
fn of_new_payload_a_waiting_socket_gets_the_acknowledgement() {
    for plan in plans() {
        for len in [1, 2, 3, 100, 1514 - BODY - 12] {
            for offset in [0, 1, 300] {
                let mut d = Drained::waiting(plan.clone());
                let cut = d.flow.plan.peer[0];
                let mut packet = data(&d.flow, len);
                packet.seq += offset;
                packet.ack += 20;
                packet.urgent = 5;
                let local = Packet {
                    seq: cut,
                    ..trimmed(&packet)
                };
                d.shared(&packet, &local);
                // Its acknowledgement told the socket something; the next one with all of them is the last it waits for.
                let mut last = packet.clone();
                last.seq = packet.end();
                last.ack = d.flow.plan.local[0] + OLD;
                d.shared(
                    &last,
                    &Packet {
                        seq: cut,
                        ..trimmed(&last)
                    },
                );
                let mut next = last.clone();
                next.seq = last.end();
                d.forwarded(&next);
            }
        }
    }
}

#[test]
fn a_fin_or_a_reset_beyond_the_cut() {
    for plan in plans() {
        let mut d = Drained::waiting(plan.clone());
        for len in [0, 10] {
            let mut fin = data(&d.flow, len);
            fin.flags = ACK | FIN | PSH;
            d.shared(&fin, &trimmed(&fin));
        }
        let mut reset = data(&d.flow, 0);
        reset.flags = RST | ACK;
        d.shared(&reset, &reset);
        let mut d = Drained::idle(plan.clone());
        // A socket that waits for nothing gets a reset all the same: it must not outlive the flow.
        reset.seq = d.flow.plan.peer[0];
        reset.ack = d.flow.plan.local[0];
        d.shared(&reset, &reset);
    }
}

#[test]
fn old_payload_goes_to_both_as_it_is() {
    for plan in plans() {
        let mut d = Drained::waiting_after_client_sent(plan.clone(), 100);
        for (offset, len, flags) in [
            (0, 100, ACK | PSH),
            (0, 10, ACK),
            (90, 10, ACK | PSH),
            (99, 1, ACK | FIN),
        ] {
            let mut packet = data(&d.flow, len);
            packet.seq += offset;
            packet.flags = flags;
            d.shared(&packet, &packet);
        }
    }
}

#[test]
fn a_segment_across_the_cut_goes_to_both_and_moves_it() {
    for plan in plans() {
        let mut d = Drained::waiting_after_client_sent(plan.clone(), 100);
        let mut packet = data(&d.flow, 60);
        packet.seq += 80;
        d.shared(&packet, &packet);
        let leg = d.flow.plane.leg(d.flow.slot(), Client);
        assert_eq!([leg.cut, leg.rx_end], [Seq::new(packet.end()); 2]);
        // Payload that was new a moment ago is old now.
        let mut again = data(&d.flow, 40);
        again.seq += 100;
        d.shared(&again, &again);
        // Payload behind it is new.
        let mut next = data(&d.flow, 40);
        next.seq += 140;
        d.shared(&next, &trimmed(&next));
    }
}

#[test]
fn few_hops_are_renewed() {
    for plan in plans() {
        let mut d = Drained::idle(plan.clone());
        let mut packet = data(&d.flow, 10);
        packet.ttl = 1;
        d.forwarded(&packet);
    }
}

#[test]
fn what_is_out_of_the_window_is_left_to_the_socket() {
    for plan in plans() {
        let d = Drained::waiting(plan.clone());
        let next = data(&d.flow, 10);
        let beyond = Packet {
            seq: next.seq + d.flow.plan.offered[0] + 2,
            ..next.clone()
        };
        let unsent = Packet {
            ack: next.ack + OLD + 1,
            ..next.clone()
        };
        d.delivers(&beyond, "delivered", &trimmed(&beyond));
        d.delivers(&unsent, "delivered", &unsent);
        d.tap.nothing();
    }
}

#[test]
fn syns_are_the_sockets_business() {
    for plan in plans() {
        let d = Drained::waiting(plan.clone());
        for flags in [SYN, SYN | ACK] {
            let mut packet = data(&d.flow, 0);
            packet.flags = flags;
            d.delivers(&packet, "delivered", &packet);
        }
        d.tap.nothing();
    }
}
