//! Acknowledgements go to the ends that wait for them, and never go back.

use longsplice_dataplane::Seq;

use longsplice_dataplane::Side::{Client, Server};

use super::{Drained, OLD, data, plans, trimmed};
use crate::support::{
    flow::{REDIRECT, SHOT},
    options::{Opt, read, usual, usual_with_sack, write},
    packet::*,
};

#[test]
fn a_socket_is_not_shown_an_acknowledgement_of_what_it_did_not_send() {
    for plan in plans() {
        let mut d = Drained::waiting(plan.clone());
        let new = Packet {
            payload: pattern(30),
            seq: d.flow.plan.peer[1] + OLD,
            ..d.flow.peer_segment(Server)
        };
        assert_eq!(d.flow.ingress(Server, &new.bytes()).verdict, REDIRECT);
        let mut packet = data(&d.flow, 10);
        packet.ack += OLD + 30;
        let local = Packet {
            ack: d.flow.plan.local[0] + OLD,
            ..trimmed(&packet)
        };
        d.shared(&packet, &local);
    }
}

/// A blind guess of any old number says nothing about what its end has received.
#[test]
fn a_forged_acknowledgement_is_not_passed_on_by_later_segments() {
    for plan in plans() {
        let d = Drained::idle(plan.clone());
        let sent = Packet {
            payload: pattern(1000),
            ..d.flow.peer_segment(Server)
        };
        assert_eq!(d.flow.ingress(Server, &sent.bytes()).verdict, REDIRECT);
        let before = d.flow.raw_leg(Server);
        for (seq, flags) in [
            (1 << 30, ACK),
            (1 << 30, ACK | PSH),
            (1 << 24, ACK),
            (1, ACK),
            (1, ACK | RST),
        ] {
            let mut forged = data(&d.flow, usize::from(flags & PSH != 0));
            forged.flags = flags;
            forged.seq = forged.seq.wrapping_sub(seq);
            forged.ack += 500;
            forged.options = usual(
                d.flow.plan.clock[0] + 5,
                d.flow.plan.clock[1].wrapping_add(1 << 30),
            );
            d.flow.ingress(Client, &forged.bytes());
            let after = d.flow.raw_leg(Server);
            assert_eq!(
                (after.tx_ack, after.tx_edge),
                (before.tx_ack, before.tx_edge),
                "{seq} {flags}"
            );
        }
        let mut honest = data(&d.flow, 0);
        honest.flags = ACK;
        honest.ack += 500;
        d.flow.ingress(Client, &honest.bytes());
        assert_eq!(d.flow.raw_leg(Server).tx_ack, before.tx_ack.wrapping_add(500));
    }
}

/// Numbers further on would seem to be below the cut.
#[test]
fn a_stream_pauses_1_gib_beyond_the_socket_that_it_passes() {
    const ROOM: u32 = 1000;
    for plan in plans() {
        let d = Drained::waiting(plan.clone());
        let end = plan.peer[1] + OLD;
        d.flow.edit(|slot| {
            let leg = &mut slot.leg[Server as usize];
            leg.cut = end.wrapping_sub((1 << 30) - ROOM);
            leg.tx_edge = end;
        });
        let packet = Packet {
            window: 65_535,
            ..data(&d.flow, 10)
        };
        d.flow.ingress(Client, &packet.bytes());
        assert_eq!(d.flow.raw_leg(Server).tx_edge, end + ROOM);
    }
}

#[test]
fn a_far_end_that_has_the_acknowledgement_is_not_told_less() {
    for plan in plans() {
        for (acked, window) in [(0, 500), (49, 500), (50, 500), (0, 0), (20, 65_535), (0, 1)] {
            let mut d = Drained::waiting(plan.clone());
            let mut packet = data(&d.flow, 10);
            packet.ack += acked;
            packet.window = window;
            d.shared(&packet, &trimmed(&packet));
        }
    }
}

#[test]
fn an_acknowledgement_goes_to_whom_it_tells_something() {
    for plan in plans() {
        let mut d = Drained::waiting(plan.clone());
        let mut ack = data(&d.flow, 0);
        ack.flags = ACK;
        // The window is at its edge already, so that only the acknowledgement counts.
        ack.window = 0;
        ack.ack += 20;
        d.local_only(&ack, &ack);
        // It covers all that the socket waits for: the server knew that, but not less, and is told.
        ack.ack += OLD - 20;
        d.shared(&ack, &ack);
        // Now the socket waits for nothing. Less than the server knows is news to neither.
        let old = Packet {
            ack: ack.ack - 1,
            ..ack.clone()
        };
        d.flow
            .ingress_gives(Client, &old.bytes(), (SHOT, "consumed", &old.bytes()));
        d.tap.nothing();
        // It is more than the server knew, once the server has sent more.
        let more = Packet {
            payload: pattern(30),
            ack: d.flow.plan.local[1],
            seq: d.flow.plan.peer[1] + OLD,
            ..d.flow.peer_segment(Server)
        };
        assert_eq!(d.flow.ingress(Server, &more.bytes()).verdict, REDIRECT);
        ack.ack += 30;
        d.forwarded(&ack);
    }
}

#[test]
fn an_acknowledgement_that_the_socket_did_not_take_comes_to_it_again() {
    for plan in plans() {
        let mut d = Drained::waiting(plan.clone());
        let una = plan.local[0];
        let mut ack = data(&d.flow, 0);
        (ack.flags, ack.window) = (ACK, 0);
        ack.ack += OLD;
        d.shared(&ack, &ack);
        d.forwarded(&ack);
        // It refused that one, for any reason. A repetition of it is waited for again.
        d.flow.slot().disbelieve(Client, Seq::new(una));
        assert_eq!(d.flow.raw_leg(Client).rec.rx_ack, una);
        d.shared(&ack, &ack);
        assert_eq!(d.flow.raw_leg(Client).loc_acked, una + OLD);
        // A socket that has taken more than that is not made to wait for it.
        d.flow.slot().disbelieve(Client, Seq::new(una + OLD + 1));
        assert_eq!(d.flow.raw_leg(Client).loc_acked, una + OLD);
        d.forwarded(&ack);
    }
}

#[test]
fn an_acknowledgement_that_opens_the_window_is_forwarded_raised() {
    for plan in plans() {
        let mut d = Drained::waiting(plan.clone());
        let mut ack = data(&d.flow, 0);
        ack.flags = ACK;
        ack.window = 60_000;
        d.shared(&ack, &ack);
        // It opens nothing a second time.
        d.local_only(&ack, &ack);
    }
}

#[test]
fn selective_acknowledgements_are_clipped_for_the_socket_and_blanked_for_a_server_that_knows_more() {
    for plan in plans() {
        let local = plan.local[0];
        // Blocks, and those that the socket is shown: nothing above what it sent, nothing below the acknowledgement.
        for (from, to, clipped_from, clipped_to) in [
            (10, 30, 10, 30),
            (10, 80, 10, 50),
            (60, 80, 50, 50),
            (0, 50, 5, 50),
            (0, 3, 5, 5),
        ] {
            let mut d = Drained::waiting(plan.clone());
            let mut packet = data(&d.flow, 10);
            packet.ack = local + 5;
            let clock = d.flow.plan.clock;
            packet.options = usual_with_sack(clock[0] + 5, clock[1], &[(local + from, local + to)]);
            let mut copy = trimmed(&packet);
            let clipped = [(local + clipped_from, local + clipped_to)];
            copy.options = usual_with_sack(clock[0] + 5, clock[1], &clipped);
            d.shared(&packet, &copy);
            assert!(
                read(&d.far(&packet).options)
                    .iter()
                    .all(|o| !matches!(o, Opt::Sack(_)))
            );
        }
    }
}

#[test]
fn selective_acknowledgements_are_translated_for_a_server_that_knows_no_more() {
    for plan in plans() {
        // The server's socket has not acknowledged the old bytes, and the client has them all.
        let mut d = Drained::idle(plan.clone());
        let more = Packet {
            payload: pattern(200),
            ..d.flow.peer_segment(Server)
        };
        assert_eq!(d.flow.ingress(Server, &more.bytes()).verdict, REDIRECT);
        let local = d.flow.plan.local[0];
        let mut packet = data(&d.flow, 10);
        packet.options = write(&[Opt::Sack(vec![
            (local + 100, local + 150),
            (local + 180, local + 200),
        ])]);
        d.forwarded(&packet);
    }
}
