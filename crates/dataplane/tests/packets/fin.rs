//! A FIN is not part of the payload. It is noted by itself, and after its segment is claimed, so that a wake on another
//! CPU finds the right place for the sockets, whichever of the two it sees.

use longsplice_dataplane::{Mode, Offset, Seq, Side};

use crate::support::{
    flow::{Flow, OK, Plan, REDIRECT, legs},
    packet::*,
    woken::{Behind, Past},
};

const SENT: [u32; 2] = [700, 90];

fn fin(flow: &Flow, side: Side, offset: u32, len: u32) -> Packet {
    Packet {
        flags: ACK | FIN,
        ..flow.later(side, offset, len, 0)
    }
}

#[test]
fn a_record_has_the_end_of_the_payload_and_of_the_stream() {
    for side in Side::BOTH {
        for (len, apart) in [(0, false), (100, false), (100, true)] {
            let flow = Flow::dormant(Plan::default());
            let mut reference = flow.reference(side);
            if apart {
                flow.forwards(side, &flow.later(side, 0, len, 0), &mut reference);
                flow.forwards(side, &fin(&flow, side, len, 0), &mut reference);
            } else {
                flow.forwards(side, &fin(&flow, side, 0, len), &mut reference);
            }
            let end = Seq::new(flow.plan.peer[side]) + len;
            let d = &flow.plane.directions(flow.slot(), legs())[side];
            assert_eq!((d.end, d.fin), (end, true));
            assert_eq!(d.end_at_far, end + flow.plan.seq_off(side) + 1);
            let leg = flow.plane.leg(flow.slot(), side);
            assert_eq!((leg.rx_end, leg.end()), (end, end + 1));
        }
    }
}

#[test]
fn a_wake_that_does_not_see_the_fin_yet_stands_where_the_fin_does() {
    for side in Side::BOTH {
        let flow = Flow::dormant(Plan::default());
        let mut ends = [false; 2];
        ends[side] = true;
        flow.pass(Past {
            sent: SENT,
            fin: ends,
            acked: [0; 2],
        });
        // Another CPU has claimed the segment, and has not yet marked its FIN.
        flow.edit(|slot| slot.leg[side].rec.seen = 0);
        flow.wake();
        let leg = flow.plane.leg(flow.slot(), side);
        let base = Seq::new(flow.plan.peer[side]) + SENT[side];
        assert_eq!((leg.base, leg.bypassed, leg.bypassed_fin), (base, true, false));
        assert_eq!(leg.mapping.seq, -Offset::new(SENT[side]));
        // It marks the FIN now; the FIN comes again, and is the socket's.
        flow.edit(|slot| slot.leg[side].rec.seen = 1);
        let again = fin(&flow, side, SENT[side], 0);
        let socket = Behind::of(side, SENT).to_socket(&again);
        // It acknowledges no byte that the far end sent; for the socket that is the beginning of its stream.
        let scale = flow.plan.scale_in[side];
        let far = SENT[side.other()];
        let expected = Packet {
            ack: flow.plan.local[side],
            window: (((500u32 << scale) - far) >> scale) as u16,
            ..socket
        };
        let ran = flow.ingress(side, &again.bytes());
        assert_eq!(ran.verdict, OK);
        assert_frame(&ran.packet, &expected.bytes(), "the FIN");
    }
}

#[test]
fn an_end_that_the_socket_knows_did_not_go_past_it() {
    // The peer's FIN was passed on before the pair was registered: the socket has it.
    for side in Side::BOTH {
        let flow = {
            let mut flow = Flow::track(Plan::default());
            flow.plane.end(legs());
            let mut starts = flow.plan.starts();
            starts[side].ended = true;
            let slot = flow.plane.take_slot().expect("a free slot");
            flow.plane
                .register(&slot, flow.plane.next_serial(), true, &starts)
                .expect("the flow is new");
            flow.slot = Some(slot);
            flow
        };
        let leg = flow.plane.leg(flow.slot(), side);
        let next = Seq::new(flow.plan.peer[side]);
        assert_eq!((leg.cut, leg.rx_end, leg.end()), (next, next - 1, next));
        flow.transition(Mode::Track, Mode::Drain);
        // The other end sends on, past the sockets.
        let far = side.other();
        flow.slot().set_delivered(far, Seq::new(flow.plan.peer[far]));
        let packet = flow.later(far, 0, 50, 0);
        assert_eq!(flow.ingress(far, &packet.bytes()).verdict, REDIRECT);
        flow.finish();
        flow.wake();
        let leg = flow.plane.leg(flow.slot(), side);
        assert_eq!(
            (leg.bypassed, leg.bypassed_fin, leg.mapping.seq.raw()),
            (false, false, 0)
        );
        assert_eq!((leg.cut, leg.end()), (next, next));
    }
}
