//! DRAIN: new payload is forwarded, old payload is delivered, and acknowledgements go to the ends that wait for them.
//!
//! In all of these the client's leg is x and the server's is o. The program writes the far copy, sends it (it is captured
//! at the server's end), and the packet itself becomes the local copy.

//!
//! Each table is run for sockets with the numbers of the wire, and for those of a pair that was spliced before.

mod acknowledgements;
mod emissions;
mod payload;
mod resets;

use longsplice_dataplane::{Mode, Side};

use Side::{Client, Server};

use crate::support::{
    flow::{Flow, OK, Plan, REDIRECT},
    options::usual,
    packet::*,
    reference::Reference,
    tap::Tap,
};

/// Bytes of the server that its socket has acknowledged and the client has not.
const OLD: u32 = 50;

fn plans() -> [Plan; 2] {
    [Plan::default(), Plan::mapped()]
}

/// Returns a flow in DRAIN. The server sent OLD bytes before the drain; its socket took them and acknowledged them, and
/// the client's socket has sent them on. The client has not acknowledged them: its socket waits.
fn waiting(plan: Plan) -> Flow {
    let flow = Flow::track(plan);
    old_bytes_of_the_server(&flow);
    flow.transition(Mode::Track, Mode::Drain);
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
    let emit = |side: Side, p: &Packet| flow.egress(side, &flow.behind(side).by_socket(p).bytes()).verdict;
    assert_eq!(emit(Server, &ack), OK);
    let sent = Packet {
        payload: pattern(OLD as usize),
        ..flow.local_segment(Client)
    };
    assert_eq!(emit(Client, &sent), OK);
}

/// Returns a client's segment for the server, when the server has been told of an acknowledgement `high` already.
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

    fn waiting(plan: Plan) -> Drained {
        let flow = waiting(plan);
        let high = flow.plan.peer[1] + OLD;
        Drained::new(flow, high)
    }

    fn idle(plan: Plan) -> Drained {
        let flow = Flow::drain(plan);
        let high = flow.plan.peer[1];
        Drained::new(flow, high)
    }

    fn far(&mut self, packet: &Packet) -> Packet {
        let scales = (self.flow.plan.scale_in[0], self.flow.plan.scale_out[0]);
        far(&mut self.reference, packet, self.high, scales)
    }

    /// Asserts the counter of a client's segment, and its local copy (in the wire's numbers).
    #[track_caller]
    fn delivers(&self, packet: &Packet, counter: &str, local: &Packet) {
        let local = self.flow.behind(Client).to_socket(local).bytes();
        self.flow
            .ingress_gives(Client, &packet.bytes(), (OK, counter, &local));
    }

    /// Asserts the segment that the client sees of its socket's (both in the wire's numbers).
    #[track_caller]
    fn emits(&self, packet: &Packet, counter: &str, seen: &Packet) {
        let frame = self.flow.behind(Client).by_socket(packet).bytes();
        self.flow
            .egress_gives(Client, &frame, (OK, counter, &seen.bytes()));
    }

    /// Asserts that the segment is forwarded, with this local copy.
    #[track_caller]
    fn shared(&mut self, packet: &Packet, local: &Packet) {
        let expected = self.far(packet).bytes();
        self.delivers(packet, "duplicated", local);
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
        self.delivers(packet, "local_only", local);
        self.tap.nothing();
    }
}

/// Returns payload of the client, with a timestamp.
fn data(flow: &Flow, len: usize) -> Packet {
    Packet {
        payload: pattern(len),
        flags: ACK | PSH,
        options: usual(flow.plan.clock[0] + 5, flow.plan.clock[1]),
        ..flow.peer_segment(Client)
    }
}

/// Returns the packet without payload, FIN and PSH.
fn trimmed(packet: &Packet) -> Packet {
    Packet {
        payload: vec![],
        padding: vec![],
        flags: packet.flags & !(FIN | PSH),
        ..packet.clone()
    }
}

impl Drained {
    /// Sends so many bytes of the client before the drain; its socket has not acknowledged them.
    fn waiting_after_client_sent(plan: Plan, len: usize) -> Drained {
        let flow = Flow::track(plan);
        let early = Packet {
            payload: pattern(len),
            ..flow.peer_segment(Client)
        };
        assert_eq!(flow.ingress(Client, &early.bytes()).verdict, OK);
        old_bytes_of_the_server(&flow);
        flow.transition(Mode::Track, Mode::Drain);
        let high = flow.plan.peer[1] + OLD;
        Drained::new(flow, high)
    }
}
