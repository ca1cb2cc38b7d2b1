//! A held packet is injected, and reaches a real socket.

use std::{
    io::Read,
    net::{TcpListener, TcpStream},
    time::Duration,
};

use longsplice_dataplane::{Framing, Leg, Mode, PerSide, Seq, Side, Slot};

use crate::support::{
    choose,
    flow::{Plan, leg},
    net::{Net, OUR_MAC, PEER_MAC},
    options::{read, usual},
    packet::*,
    plane::Plane,
    tap::{Offload, Tap},
};

const LOOPBACK: u32 = 1;

/// Holds a flow whose client leg is a real connection; no connection exists for the server's.
struct Connected {
    socket: TcpStream,
    slot: Slot,
    plane: Plane,
    leg: Leg,
    /// Next segment of the client, which was not sent yet.
    next: Packet,
    _net: Net,
}

impl Connected {
    /// Registers the flow of a connection, and goes to FINAL.
    fn new(net: Net, socket: TcpStream, leg: Leg, blank: Packet) -> Connected {
        socket
            .set_read_timeout(Some(Duration::from_secs(5)))
            .expect("a timeout");
        let plane = Plane::open();
        let inspection = plane.inspect(leg).expect("a connection");
        let plan = Plan {
            peer: [inspection.rcv_nxt.raw(), 5000],
            local: [inspection.snd_nxt.raw(), 9000],
            ..Plan::default()
        };
        let mut starts = plan.starts();
        (starts.client.leg, starts.client.inspection) = (leg, inspection);
        let slot = plane.take_slot().expect("a free slot");
        plane
            .register(&slot, plane.next_serial(), false, &starts)
            .expect("the flow is new");
        assert!(slot.transition(Mode::Track, Mode::Drain));
        let cuts = PerSide::from_fn(|side| plane.leg(&slot, side).cut);
        assert_eq!(plane.finish(&slot, cuts, false).expect("it runs"), Mode::Final);
        let next = Packet {
            src: leg.peer,
            dst: leg.local,
            seq: inspection.rcv_nxt.raw(),
            ack: inspection.snd_nxt.raw(),
            flags: ACK | PSH,
            window: 500,
            payload: b"hello".to_vec(),
            ..blank
        };
        Connected {
            socket,
            slot,
            plane,
            leg,
            next,
            _net: net,
        }
    }

    /// Injects the held segment twice after the pair is awake; its socket reads it once.
    fn inject(mut self, ifindex: u32, frame: &[u8]) {
        self.slot.set_wakeable(true);
        assert_eq!(self.plane.wake(&self.slot).expect("it runs"), Mode::Undrain);
        let before = self.plane.verdicts()["delivered"];
        for _ in 0..2 {
            self.plane.inject(ifindex, frame).expect("injected");
        }
        let mut read = [0; 5];
        self.socket.read_exact(&mut read).expect("it comes in");
        assert_eq!(&read, b"hello");
        let after = Seq::new(self.next.end());
        while self.plane.verdicts()["delivered"] < before + 2 {
            std::thread::yield_now();
        }
        let inspection = self.plane.inspect(self.leg).expect("a connection");
        assert_eq!(
            (inspection.rcv_nxt, inspection.copied_seq),
            (after, after),
            "once"
        );
    }
}

/// Returns a frame on the wire, to be filled in.
fn blank(dst_mac: [u8; 6], src_mac: [u8; 6]) -> Packet {
    Packet {
        dst_mac,
        src_mac,
        flags: 0,
        window: 500,
        ..Packet::blank()
    }
}

/// Holds a connection on a wire, whose client is this test and sends TSval from here on; `None`: it has no timestamps.
struct OnWire {
    tap: Tap,
    ifindex: u32,
    connected: Connected,
}

impl OnWire {
    fn new(tsval: Option<u32>) -> OnWire {
        let net = Net::new();
        let leg = leg(Side::Client);
        let listener = TcpListener::bind(leg.local).expect("a listener");
        let tap = Tap::new(net.ifindex("a1"));
        let frame = Packet {
            options: tsval.map(|tsval| usual(tsval, 0)).unwrap_or_default(),
            ..blank(OUR_MAC[0], PEER_MAC[0])
        };
        let syn = Packet {
            src: leg.peer,
            dst: leg.local,
            seq: 70_000,
            flags: SYN,
            ..frame.clone()
        };
        tap.send(&syn.bytes(), Offload::default());
        let answer = tap.only();
        assert_eq!(answer[L4 + 13], SYN | ACK);
        assert_eq!(read(&answer[BODY..]).len() >= 3, tsval.is_some(), "timestamps");
        let ack = Packet {
            seq: 70_001,
            ack: u32::from_be_bytes(answer[L4 + 4..L4 + 8].try_into().expect("four bytes")) + 1,
            flags: ACK,
            ..syn
        };
        tap.send(&ack.bytes(), Offload::default());
        let (socket, _) = listener.accept().expect("a connection");
        let ifindex = net.ifindex("a0");
        let connected = Connected::new(net, socket, leg, frame);
        connected
            .plane
            .attach(ifindex, Framing::Ethernet)
            .expect("attached");
        OnWire {
            tap,
            ifindex,
            connected,
        }
    }
}

#[test]
fn on_the_interface_where_it_came_in() {
    let OnWire {
        tap,
        ifindex,
        connected,
    } = OnWire::new(None);
    // It meets a trap, and there is no socket for it yet.
    connected
        .slot
        .set_trap(Side::Client, Some(Seq::new(connected.next.seq)));
    let mut events = connected.plane.events().expect("the ring");
    tap.send(&connected.next.bytes(), Offload::default());
    // The veth delivers within the call.
    let held = events.take().expect("the ring").pop().expect("it is held");
    assert_eq!(held.ifindex, ifindex);
    connected.inject(held.ifindex, &held.packet);
}

#[test]
fn although_its_socket_has_seen_a_later_timestamp() {
    const HELD: u32 = 0x3000_0000;
    let OnWire {
        tap,
        ifindex,
        connected,
    } = OnWire::new(Some(HELD));
    connected.slot.set_wakeable(true);
    assert_eq!(
        connected.plane.wake(&connected.slot).expect("it runs"),
        Mode::Undrain
    );
    // An acknowledgement overtakes it: without payload, it goes to the socket at once.
    let later = Packet {
        flags: ACK,
        options: usual(HELD + 1000, 0),
        payload: Vec::new(),
        ..connected.next.clone()
    };
    tap.send(&later.bytes(), Offload::default());
    let latest = || {
        connected
            .plane
            .inspect(connected.leg)
            .expect("a connection")
            .ts_recent
    };
    while latest() != HELD + 1000 {
        std::thread::yield_now();
    }
    let frame = connected.next.bytes();
    connected.inject(ifindex, &frame);
}

#[test]
fn on_the_loopback_where_its_peer_is_on_this_host() {
    for address in [
        choose("127.0.0.1:80", "[::1]:80").parse().expect("an address"),
        leg(Side::Client).local,
    ] {
        let net = Net::new();
        let listener = TcpListener::bind(address).expect("a listener");
        let client = TcpStream::connect(address).expect("a connection");
        let (socket, _) = listener.accept().expect("a connection");
        let leg = Leg::new(client.local_addr().expect("an address"), address);
        let connected = Connected::new(net, socket, leg, blank([0; 6], [0; 6]));
        connected
            .plane
            .attach(LOOPBACK, Framing::Ethernet)
            .expect("attached");
        // The client has not sent it, so it can only come by injection.
        let frame = connected.next.bytes();
        connected.inject(LOOPBACK, &frame);
    }
}
