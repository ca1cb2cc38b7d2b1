//! DRAIN, and a trap: the sockets carry on at once if they can. Otherwise the socket gets the payload while it still has
//! its stream to itself, and user space holds it if it has not.

use longsplice_dataplane::{EventKind, Mode, Seq, Side};

use crate::support::{
    flow::{Flow, OK, Plan, REDIRECT, SHOT},
    packet::*,
    woken::Behind,
};

/// Payload before the drain, from each peer: its socket has it, and the far socket has sent it on.
const OLD: u32 = 40;
/// Payload that bypassed the sockets since the drain began.
const NEW: u32 = 300;

/// Returns a flow in DRAIN. Each peer sent OLD bytes, which went through the sockets; `acknowledged` are the sides whose
/// peers have acknowledged the bytes that came to them that way.
fn draining(acknowledged: &[Side]) -> Flow {
    let flow = Flow::track(Plan::default());
    for side in Side::BOTH {
        let data = flow.later(side, 0, OLD, 0);
        assert_eq!(flow.ingress(side, &data.bytes()).verdict, OK);
    }
    for side in Side::BOTH {
        let sent = flow.local_later(side, 0, OLD, OLD);
        assert_eq!(flow.egress(side, &sent.bytes()).verdict, OK);
    }
    flow.transition(Mode::Track, Mode::Drain);
    for &side in acknowledged {
        assert_eq!(
            flow.ingress(side, &flow.later(side, OLD, 0, OLD).bytes()).verdict,
            OK
        );
    }
    flow
}

/// Sends NEW bytes of a side's peer past the sockets.
fn past(flow: &Flow, side: Side) {
    let verdict = flow.ingress(side, &flow.later(side, OLD, NEW, 0).bytes()).verdict;
    assert!(verdict == REDIRECT || verdict == OK);
    assert_eq!(
        flow.plane.leg(flow.slot(), side).rx_end,
        start(flow, side) + OLD + NEW
    );
}

fn start(flow: &Flow, side: Side) -> Seq {
    Seq::new(flow.plan.peer[side])
}

/// Notes that user space has read all that the socket of a side had.
fn read_all(flow: &Flow, side: Side) {
    flow.slot().set_delivered(side, start(flow, side) + OLD);
}

fn arm(flow: &Flow, side: Side) {
    let end = flow.plane.leg(flow.slot(), side).rx_end;
    flow.slot().set_trap(side, Some(end + 1));
}

#[test]
fn sockets_that_are_through_with_everything_go_on_at_once() {
    for side in Side::BOTH {
        for ways in [&[side][..], &[side.other()], &Side::BOTH, &[]] {
            let flow = draining(&Side::BOTH);
            let mut sent = [0; 2];
            for &way in ways {
                past(&flow, way);
                sent[way] = NEW;
            }
            // A socket that nothing bypassed may still hold bytes.
            for &way in ways {
                read_all(&flow, way);
            }
            arm(&flow, side);
            let (mine, theirs) = (sent[side], sent[side.other()]);
            let packet = flow.timed(side, 3, flow.later(side, OLD + mine, 77, OLD + theirs));
            let expected = Behind::of(side, sent).to_socket(&packet);
            flow.ingress_gives(side, &packet.bytes(), (OK, "woken delivered", &expected.bytes()));
            assert_eq!(flow.slot().mode(), Mode::Undrain);
            for s in Side::BOTH {
                let leg = flow.plane.leg(flow.slot(), s);
                assert_eq!(leg.bypassed, sent[s] > 0, "{s:?} {ways:?}");
            }
        }
    }
}

#[test]
fn a_socket_that_has_its_stream_to_itself_gets_the_payload() {
    // The other direction bypassed the sockets, and they have not finished it: nothing can be woken.
    for side in Side::BOTH {
        let flow = draining(&[]);
        past(&flow, side.other());
        arm(&flow, side);
        let packet = flow.timed(side, 3, flow.later(side, OLD, 77, OLD));
        flow.ingress_gives(side, &packet.bytes(), (OK, "local_only", &packet.bytes()));
        assert_eq!(flow.slot().mode(), Mode::Drain);
        let leg = flow.plane.leg(flow.slot(), side);
        assert_eq!([leg.cut, leg.rx_end], [Seq::new(packet.end()); 2]);
        // An acknowledgement of bytes that the socket did not send is not shown to it; the payload is, whole.
        let next = Packet {
            flags: ACK | PSH | FIN,
            ..flow.later(side, OLD + 77, 10, OLD + NEW)
        };
        let expected = Packet {
            ack: flow.plan.local[side] + OLD,
            ..next.clone()
        };
        flow.ingress_gives(side, &next.bytes(), (OK, "local_only", &expected.bytes()));
        let leg = flow.plane.leg(flow.slot(), side);
        let end = Seq::new(next.end());
        assert_eq!((leg.cut, leg.rx_end), (end, end - 1));
        assert!(leg.fin, "its end is noted as well");
    }
}

#[test]
fn behind_payload_that_went_past_its_socket_it_is_held() {
    // The obstacle to a wake: bytes that user space has not read, or that the far end has not acknowledged.
    for side in Side::BOTH {
        for (acknowledged, read) in [(&[][..], true), (&[side][..], true), (&Side::BOTH[..], false)] {
            let flow = draining(acknowledged);
            past(&flow, side);
            if read {
                read_all(&flow, side);
            }
            arm(&flow, side);
            let mut events = flow.plane.events().expect("the ring");
            let packet = flow.later(side, OLD + NEW, 77, OLD);
            flow.ingress_gives(side, &packet.bytes(), (SHOT, "queued", &packet.bytes()));
            assert_eq!(flow.slot().mode(), Mode::Drain);
            let found = events.take().expect("the ring");
            assert_eq!((found.len(), found[0].kind), (1, EventKind::Held));
            assert_frame(&found[0].packet, &packet.bytes(), "queued");
            let leg = flow.plane.leg(flow.slot(), side);
            assert_eq!(leg.cut, start(&flow, side) + OLD);
            assert_eq!(
                leg.rx_end,
                start(&flow, side) + OLD + NEW,
                "nothing was learnt from it"
            );
            // It makes no difference that a part of it was forwarded.
            let across = flow.later(side, OLD + NEW - 5, 77, OLD);
            flow.ingress_gives(side, &across.bytes(), (SHOT, "queued", &across.bytes()));
        }
    }
}

#[test]
fn its_acknowledgement_is_from_before_the_sockets_went_on() {
    for side in Side::BOTH {
        let flow = draining(&[side]);
        past(&flow, side.other());
        read_all(&flow, side.other());
        arm(&flow, side);
        assert_eq!(
            flow.plane.leg(flow.slot(), side).acked,
            Seq::new(flow.plan.local[side]) + OLD
        );
        let packet = flow.later(side, OLD, 5, OLD);
        let sent = if side == Side::Client { [0, NEW] } else { [NEW, 0] };
        // It acknowledges only the socket's own bytes; the window's edge stays.
        let scale = flow.plan.scale_in[side];
        let expected = Packet {
            ack: flow.plan.local[side] + OLD,
            window: (((500 << scale) - NEW) >> scale) as u16,
            ..Behind::of(side, sent).to_socket(&packet)
        };
        flow.ingress_gives(side, &packet.bytes(), (OK, "woken delivered", &expected.bytes()));
    }
}

#[test]
fn payload_below_the_cut_goes_to_the_socket_that_waits_for_it() {
    for side in Side::BOTH {
        let flow = draining(&[]);
        past(&flow, side);
        // Set the trap below the cut, for any reason.
        flow.slot().set_trap(side, Some(start(&flow, side)));
        let packet = flow.later(side, 0, OLD, 0);
        flow.ingress_gives(side, &packet.bytes(), (OK, "local_only", &packet.bytes()));
        assert_eq!(flow.plane.leg(flow.slot(), side).cut, start(&flow, side) + OLD);
    }
}

#[test]
fn what_ends_before_the_trap_passes() {
    for side in Side::BOTH {
        let flow = draining(&Side::BOTH);
        past(&flow, side);
        flow.slot()
            .set_trap(side, Some(start(&flow, side) + OLD + NEW + 10));
        let packet = flow.later(side, OLD + NEW, 9, OLD);
        flow.forwards(side, &packet, &mut flow.reference(side));
        assert_eq!(flow.slot().mode(), Mode::Drain);
    }
}
