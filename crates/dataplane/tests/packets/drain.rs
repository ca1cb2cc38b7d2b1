//! DRAIN: new payload is forwarded, old payload is delivered, and acknowledgements go where they are waited for.
//!
//! In all of these the client's leg is x and the server's is o. The program writes the far copy, sends it (it is captured
//! at the server's end), and the packet itself becomes the local copy.

use longsplice_dataplane::{Mode, Side};

use Side::{Client, Server};

use crate::support::{
    flow::{Flow, OK, Plan, REDIRECT, SHOT},
    options::{Opt, read, usual, usual_with_sack, write},
    packet::*,
    reference::Reference,
    tap::Tap,
};

/// Bytes of the server that its socket has acknowledged and the client has not.
const OLD: u32 = 50;

/// The server sent OLD bytes before the drain; its socket took them and acknowledged them, and the client's socket has sent
/// them on. The client has not acknowledged them: its socket waits.
fn waiting() -> Flow {
    let flow = Flow::track(Plan::default());
    old_bytes_of_the_server(&flow);
    flow.switch(Mode::Track, Mode::Drain);
    flow
}

fn old_bytes_of_the_server(flow: &Flow) {
    let data = Packet {
        payload: pattern(OLD as usize),
        ..flow.peer_segment(Server)
    };
    assert_eq!(flow.ingress(Server, &data.bytes()).verdict, OK);
    let ack = Packet {
        ack: data.end(),
        ..flow.local_segment(Server)
    };
    assert_eq!(flow.egress(Server, &ack.bytes()).verdict, OK);
    let sent = Packet {
        payload: pattern(OLD as usize),
        ..flow.local_segment(Client)
    };
    assert_eq!(flow.egress(Client, &sent.bytes()).verdict, OK);
}

/// What the server is to see of a client's segment, when it has been told of an acknowledgement `high` already.
fn far(reference: &mut Reference, packet: &Packet, high: u32, scales: (u8, u8)) -> Packet {
    let plain = reference.clone().translate(packet);
    let short = high.wrapping_sub(plain.ack) as i32;
    if short <= 0 {
        return reference.translate(packet);
    }
    reference.blank_sack = true;
    let mut raised = reference.translate(packet);
    reference.blank_sack = false;
    raised.ack = high;
    let room = (i64::from(packet.window) << scales.0) - i64::from(short);
    raised.window = (room.max(0) >> scales.1).min(65_535) as u16;
    raised
}

struct Drained {
    flow: Flow,
    tap: Tap,
    reference: Reference,
    /// Highest acknowledgement that the server was sent.
    high: u32,
}

impl Drained {
    fn new(flow: Flow, high: u32) -> Drained {
        let tap = Tap::new(flow.net.ifindex("b1"));
        let reference = flow.reference(Client);
        Drained {
            flow,
            tap,
            reference,
            high,
        }
    }

    fn waiting() -> Drained {
        let flow = waiting();
        let high = flow.plan.peer[1] + OLD;
        Drained::new(flow, high)
    }

    fn idle() -> Drained {
        let flow = Flow::drain(Plan::default());
        let high = flow.plan.peer[1];
        Drained::new(flow, high)
    }

    fn far(&mut self, packet: &Packet) -> Packet {
        let scales = (self.flow.plan.scale_in[0], self.flow.plan.scale_out[0]);
        far(&mut self.reference, packet, self.high, scales)
    }

    /// The segment is forwarded, and its local copy is this.
    #[track_caller]
    fn shared(&mut self, packet: &Packet, local: &Packet) {
        let expected = self.far(packet).bytes();
        self.flow
            .ingress_gives(Client, &packet.bytes(), (OK, "shared", &local.bytes()));
        assert_frame(&self.tap.only(), &expected, "the far copy");
    }

    #[track_caller]
    fn forwarded(&mut self, packet: &Packet) {
        let expected = self.far(packet).bytes();
        self.flow
            .ingress_gives(Client, &packet.bytes(), (REDIRECT, "forwarded", &expected));
        self.tap.nothing();
    }

    #[track_caller]
    fn local_only(&mut self, packet: &Packet, local: &Packet) {
        self.flow
            .ingress_gives(Client, &packet.bytes(), (OK, "local_only", &local.bytes()));
        self.tap.nothing();
    }
}

/// Payload of the client, with a timestamp.
fn data(flow: &Flow, len: usize) -> Packet {
    Packet {
        payload: pattern(len),
        flags: ACK | PSH,
        options: usual(flow.plan.clock[0] + 5, flow.plan.clock[1]),
        ..flow.peer_segment(Client)
    }
}

/// The same without payload, FIN and PSH.
fn trimmed(packet: &Packet) -> Packet {
    Packet {
        payload: vec![],
        padding: vec![],
        flags: packet.flags & !(FIN | PSH),
        ..packet.clone()
    }
}

#[test]
fn new_payload_is_forwarded_when_the_socket_waits_for_nothing() {
    let mut d = Drained::idle();
    for (offset, len) in [(0, 100), (100, 1), (5000, 10), (0, 100)] {
        let mut packet = data(&d.flow, len);
        packet.seq += offset;
        d.forwarded(&packet);
    }
    let mut fin = data(&d.flow, 0);
    fin.flags = ACK | FIN;
    fin.seq += 101;
    d.forwarded(&fin);
    assert!(
        d.flow
            .plane
            .directions(d.flow.slot(), crate::support::flow::legs())[0]
            .fin
    );
}

#[test]
fn of_new_payload_a_waiting_socket_gets_the_acknowledgement() {
    for len in [1, 2, 3, 100, 1448] {
        for offset in [0, 1, 300] {
            let mut d = Drained::waiting();
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

#[test]
fn a_socket_is_not_shown_an_acknowledgement_of_what_it_did_not_send() {
    let mut d = Drained::waiting();
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

#[test]
fn a_far_end_that_has_the_acknowledgement_is_not_told_less() {
    for (acked, window) in [(0, 500), (49, 500), (50, 500), (0, 0), (20, 65_535), (0, 1)] {
        let mut d = Drained::waiting();
        let mut packet = data(&d.flow, 10);
        packet.ack += acked;
        packet.window = window;
        d.shared(&packet, &trimmed(&packet));
    }
}

#[test]
fn a_fin_or_a_reset_beyond_the_cut() {
    let mut d = Drained::waiting();
    for len in [0, 10] {
        let mut fin = data(&d.flow, len);
        fin.flags = ACK | FIN | PSH;
        d.shared(&fin, &trimmed(&fin));
    }
    let mut reset = data(&d.flow, 0);
    reset.flags = RST | ACK;
    d.shared(&reset, &reset);
    let mut d = Drained::idle();
    // A socket that waits for nothing gets a reset all the same: it must not outlive the flow.
    reset.seq = d.flow.plan.peer[0];
    reset.ack = d.flow.plan.local[0];
    d.shared(&reset, &reset);
}

#[test]
fn old_payload_goes_to_both_as_it_is() {
    let mut d = Drained::waiting_after_client_sent(100);
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

impl Drained {
    /// The client sent so much before the drain; its socket has not acknowledged it.
    fn waiting_after_client_sent(len: usize) -> Drained {
        let flow = Flow::track(Plan::default());
        let early = Packet {
            payload: pattern(len),
            ..flow.peer_segment(Client)
        };
        assert_eq!(flow.ingress(Client, &early.bytes()).verdict, OK);
        old_bytes_of_the_server(&flow);
        flow.switch(Mode::Track, Mode::Drain);
        let high = flow.plan.peer[1] + OLD;
        Drained::new(flow, high)
    }
}

#[test]
fn a_segment_across_the_cut_goes_to_both_and_moves_it() {
    let mut d = Drained::waiting_after_client_sent(100);
    let mut packet = data(&d.flow, 60);
    packet.seq += 80;
    d.shared(&packet, &packet);
    let leg = d.flow.plane.leg(d.flow.slot(), Client);
    assert_eq!((leg.cut, leg.rx_end), (packet.end(), packet.end()));
    // What was new a moment ago is old now.
    let mut again = data(&d.flow, 40);
    again.seq += 100;
    d.shared(&again, &again);
    // And what lies behind it is new.
    let mut next = data(&d.flow, 40);
    next.seq += 140;
    d.shared(&next, &trimmed(&next));
}

#[test]
fn an_acknowledgement_goes_to_whom_it_tells_something() {
    let mut d = Drained::waiting();
    let mut ack = data(&d.flow, 0);
    ack.flags = ACK;
    // The window is at its edge already, so that nothing but the acknowledgement counts.
    ack.window = 0;
    ack.ack += 20;
    d.local_only(&ack, &ack);
    // All that the socket waits for: the server knew that, but not less, and is told.
    ack.ack += OLD - 20;
    d.shared(&ack, &ack);
    // Now the socket waits for nothing. Less than the server knows is nothing to anybody.
    let old = Packet {
        ack: ack.ack - 1,
        ..ack.clone()
    };
    d.flow
        .ingress_gives(Client, &old.bytes(), (SHOT, "absorbed", &old.bytes()));
    d.tap.nothing();
    // More than the server knew, once it has sent more.
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

#[test]
fn an_acknowledgement_that_opens_the_window_is_forwarded_raised() {
    let mut d = Drained::waiting();
    let mut ack = data(&d.flow, 0);
    ack.flags = ACK;
    ack.window = 60_000;
    d.shared(&ack, &ack);
    // Once more, it opens nothing.
    d.local_only(&ack, &ack);
}

#[test]
fn selective_acknowledgements_are_clipped_for_the_socket_and_blanked_for_a_server_that_knows_more() {
    let local = Plan::default().local[0];
    // Blocks, and what the socket is to see: nothing above what it sent, nothing below the acknowledgement.
    for (from, to, clipped_from, clipped_to) in [
        (10, 30, 10, 30),
        (10, 80, 10, 50),
        (60, 80, 50, 50),
        (0, 50, 5, 50),
        (0, 3, 5, 5),
    ] {
        let mut d = Drained::waiting();
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

#[test]
fn selective_acknowledgements_are_translated_for_a_server_that_knows_no_more() {
    // The server's socket has not acknowledged the old bytes, and the client has them all.
    let mut d = Drained::idle();
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

#[test]
fn the_time_to_live_ends_here() {
    let d = Drained::waiting();
    let mut packet = data(&d.flow, 10);
    packet.ttl = 1;
    d.flow
        .ingress_gives(Client, &packet.bytes(), (SHOT, "drop_ttl", &packet.bytes()));
    d.tap.nothing();
}

#[test]
fn what_is_out_of_the_window_is_left_to_the_socket() {
    let d = Drained::waiting();
    let next = data(&d.flow, 10);
    let beyond = Packet {
        seq: next.seq + d.flow.plan.offered[0],
        ..next.clone()
    };
    let unsent = Packet {
        ack: next.ack + OLD + 1,
        ..next.clone()
    };
    for packet in [beyond, unsent] {
        d.flow
            .ingress_gives(Client, &packet.bytes(), (OK, "delivered", &packet.bytes()));
    }
    d.tap.nothing();
}

#[test]
fn an_emission_acknowledges_what_the_far_end_has() {
    // The client sent a hundred new bytes, which the server has acknowledged.
    let d = Drained::waiting();
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
    d.flow
        .egress_gives(Client, &packet.bytes(), (OK, "clamped", &expected.bytes()));
}

#[test]
fn an_emission_that_needs_no_change_passes() {
    let d = Drained::idle();
    let window = d.flow.plan.granted[1] >> d.flow.plan.scale_out[1];
    let packet = Packet {
        window: window as u16,
        payload: pattern(3),
        ..d.flow.local_segment(Client)
    };
    d.flow
        .egress_gives(Client, &packet.bytes(), (OK, "emitted", &packet.bytes()));
}

/// What a socket's reset becomes, and that the kernel answers for itself from then on.
#[track_caller]
fn aborts(flow: &Flow, side: Side, reset: &Packet, expected: &Packet) {
    flow.egress_gives(side, &reset.bytes(), (OK, "aborted", &expected.bytes()));
    assert_eq!(flow.slot().mode(), Mode::Aborted);
    for s in Side::BOTH {
        flow.ignores(s, &flow.peer_segment(s).bytes());
        let local = flow.local_segment(s).bytes();
        flow.egress_gives(s, &local, (OK, "", &local));
    }
}

#[test]
fn the_reset_of_a_socket_aborts_the_flow_at_the_end_of_what_its_peer_was_sent() {
    // By its socket.
    let flow = waiting();
    let reset = Packet {
        seq: flow.local_segment(Client).seq + 7,
        flags: RST | ACK,
        options: usual(1, 2),
        ..flow.local_segment(Client)
    };
    let at = |seq: u32| Packet { seq, ..reset.clone() };
    aborts(&flow, Client, &reset, &at(flow.plan.local[0] + OLD));
    // Past its socket.
    let flow = waiting();
    let new = Packet {
        payload: pattern(30),
        seq: flow.plan.peer[1] + OLD,
        ..flow.peer_segment(Server)
    };
    assert_eq!(flow.ingress(Server, &new.bytes()).verdict, REDIRECT);
    aborts(&flow, Client, &reset, &at(flow.plan.local[0] + OLD + 30));
}

#[test]
fn a_reset_without_acknowledgement_answers_a_segment_and_is_in_place() {
    let flow = waiting();
    let reset = Packet {
        seq: 77,
        ack: 0,
        flags: RST,
        ..flow.local_segment(Server)
    };
    aborts(&flow, Server, &reset, &reset);
}

#[test]
fn a_socket_that_is_reset_before_the_drain_says_so_itself() {
    let flow = Flow::track(Plan::default());
    let reset = Packet {
        flags: RST,
        ..flow.local_segment(Client)
    };
    flow.egress_gives(Client, &reset.bytes(), (OK, "emitted", &reset.bytes()));
    assert_eq!(flow.slot().mode(), Mode::Track);
}

#[test]
fn syns_are_the_sockets_business() {
    let d = Drained::waiting();
    for flags in [SYN, SYN | ACK] {
        let mut packet = data(&d.flow, 0);
        packet.flags = flags;
        d.flow
            .ingress_gives(Client, &packet.bytes(), (OK, "delivered", &packet.bytes()));
    }
    d.tap.nothing();
}
