//! Options are withheld from the SYNs that come to a listening socket of ours, from no other packet, and with checksums
//! that stay right.

use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener};

use longsplice_core::terms::Terms;
use longsplice_dataplane::{Context, Hook, Withheld};
use socket2::{Domain, SockRef, Socket, Type};

use crate::support::{
    choose,
    flow::OK,
    net::{Net, OUR_MAC},
    options::{Opt, write},
    packet::*,
    plane::Plane,
};

/// Bit of AccECN beside the data offset (RFC 9768 section 3.1).
const AE: u8 = 1;

fn here() -> IpAddr {
    choose("127.0.0.1", "::1").parse().expect("an address")
}

fn listener() -> TcpListener {
    TcpListener::bind((here(), 0)).expect("a free port")
}

/// Returns a socket with a port of its own that does not listen: beside it, this test's listeners may have that port one after
/// the other, and no other test is given it.
fn reserve_port() -> Socket {
    let socket = Socket::new(Domain::for_address((here(), 0).into()), Type::STREAM, None).expect("a socket");
    socket.set_reuse_address(true).expect("an option");
    socket
        .bind(&SocketAddr::from((here(), 0)).into())
        .expect("a free port");
    socket
}

/// Returns the options of a Linux client's SYN, and of a Windows client's, in their layouts.
fn layouts() -> [Vec<Opt>; 4] {
    let (mss, scale) = (Opt::Other(2, vec![5, 0xb4]), Opt::Other(3, vec![7]));
    let (sack, time) = (Opt::Other(4, vec![]), Opt::Timestamps(4711, 0));
    [
        vec![mss.clone(), sack.clone(), time.clone(), Opt::Nop, scale.clone()],
        vec![
            mss.clone(),
            Opt::Nop,
            scale.clone(),
            Opt::Nop,
            Opt::Nop,
            sack.clone(),
        ],
        // An unknown option, and a cookie request of Fast Open (RFC 7413).
        vec![
            Opt::Other(254, vec![0xf9, 0x89]),
            time,
            Opt::Other(34, vec![]),
            sack,
            scale,
        ],
        vec![mss],
    ]
}

/// Returns the options with NOPs in place of those that are withheld.
fn without(options: &[Opt], terms: Terms) -> Vec<u8> {
    let blank = |bytes: usize| vec![Opt::Nop; bytes];
    let left = options.iter().flat_map(|option| match option {
        Opt::Timestamps(..) if terms.timestamps => blank(10),
        Opt::Other(4, _) if terms.sack => blank(2),
        Opt::Other(3, _) if terms.window_scaling => blank(3),
        other => vec![other.clone()],
    });
    write(&left.collect::<Vec<_>>())
}

fn syn(to: SocketAddr, options: Vec<u8>) -> Packet {
    Packet {
        src: (here(), 4711).into(),
        dst: to,
        seq: 99,
        flags: SYN,
        window: 64_240,
        options,
        ..Packet::blank()
    }
}

/// Runs ingress over a frame, in each state that its checksum may be in.
#[track_caller]
fn expect(plane: &Plane, sent: &Packet, expected: &Packet) {
    for summed in [false, true] {
        let context = Context {
            summed,
            ..Context::default()
        };
        let ran = plane
            .run_in(Hook::Ingress, &sent.bytes(), context, 1)
            .expect("a packet of this kind");
        assert_eq!(ran.verdict, OK);
        assert_frame(&ran.packet, &expected.bytes(), "the SYN");
    }
}

fn every_choice() -> impl Iterator<Item = Terms> {
    (0..16).map(|n| Terms {
        timestamps: n & 1 != 0,
        sack: n & 2 != 0,
        window_scaling: n & 4 != 0,
        ecn: n & 8 != 0,
    })
}

#[test]
fn a_listener_is_asked_for_no_more_than_it_may_agree_to() {
    let (plane, listener) = (Plane::open(), listener());
    let to = listener.local_addr().expect("an address");
    for terms in every_choice() {
        let withheld = Withheld {
            terms,
            ..Withheld::default()
        };
        plane.withhold(&listener, withheld).expect("an element");
        for options in layouts() {
            let sent = Packet {
                flags: SYN | ECE | CWR,
                ..syn(to, write(&options))
            };
            let expected = Packet {
                options: without(&options, terms),
                flags: if terms.ecn { SYN } else { sent.flags },
                ..sent.clone()
            };
            expect(&plane, &sent, &expected);
        }
    }
}

#[test]
fn a_request_for_accurate_ecn_becomes_a_classic_one_or_none() {
    let (plane, listener) = (Plane::open(), listener());
    let to = listener.local_addr().expect("an address");
    let sent = Packet {
        flags: SYN | ECE | CWR,
        reserved: AE,
        ..syn(to, write(&layouts()[0]))
    };
    let ecn = Terms {
        ecn: true,
        ..Terms::default()
    };
    for (terms, accurate_ecn, flags, reserved) in [
        (Terms::default(), false, SYN | ECE | CWR, AE),
        (Terms::default(), true, SYN | ECE | CWR, 0),
        (ecn, false, SYN, 0),
    ] {
        let withheld = Withheld {
            terms,
            accurate_ecn,
            ect: false,
        };
        plane.withhold(&listener, withheld).expect("an element");
        let expected = Packet {
            flags,
            reserved,
            ..sent.clone()
        };
        expect(&plane, &sent, &expected);
    }
}

#[test]
fn what_is_no_syn_of_a_prepared_listener_stays_as_it_is() {
    let (plane, reserved, other) = (Plane::open(), reserve_port(), listener());
    let to = reserved
        .local_addr()
        .expect("an address")
        .as_socket()
        .expect("IP");
    let ours = TcpListener::bind(to).expect("the reserved port");
    let withheld = Withheld {
        terms: Terms::ALL,
        accurate_ecn: true,
        ect: true,
    };
    plane.withhold(&ours, withheld).expect("an element");
    let options = write(&layouts()[0]);
    let plain = syn(to, options.clone());
    for packet in [
        syn(other.local_addr().expect("an address"), options.clone()),
        // No socket is there.
        syn((here(), 1).into(), options.clone()),
        Packet {
            flags: SYN | ACK,
            ..plain.clone()
        },
        Packet {
            flags: ACK,
            ..plain.clone()
        },
        Packet {
            flags: SYN | RST,
            ..plain.clone()
        },
        // An option without a length, and one that is longer than its header.
        Packet {
            options: vec![8, 0, 0, 0],
            ..plain.clone()
        },
        Packet {
            options: vec![8, 10, 0, 0],
            ..plain.clone()
        },
        // Lengths that these options do not have.
        Packet {
            options: vec![4, 3, 0, 3, 4, 0, 0, 0],
            ..plain.clone()
        },
    ] {
        expect(&plane, &packet, &packet);
    }
    // A listener that is gone leaves nothing behind at its address. Closing alone would end it only once the children of
    // other tests, which have its descriptor until they run their programs, have closed it, too.
    SockRef::from(&ours).shutdown(Shutdown::Both).expect("a listener");
    drop(ours);
    let again = TcpListener::bind(to).expect("the address");
    expect(&plane, &plain, &plain);
    drop(again);
}

/// Names the interface where frames come in, their sender, a host beyond the other link, and this host.
const DEVICE: &str = "a0";
const CLIENT: &str = choose("198.18.1.2:4711", "[2001:db8:1::2]:4711");
const BEYOND: &str = choose("198.18.2.2", "2001:db8:2::2");
const OURS: &str = choose("198.18.1.1", "2001:db8:1::1");
/// Network of which every address is this host's (AnyIP), and one of them.
const ANY_IP: &str = choose("198.18.9.0/24", "2001:db8:9::/64");
const ONE_OF_ANY: &str = choose("198.18.9.7", "2001:db8:9::7");

/// A listener at the wildcard address is found for any destination, and gets the SYNs only that are for this host.
#[test]
fn a_syn_that_this_host_forwards_stays_as_it_is() {
    let (net, plane) = (Net::new(), Plane::open());
    net.ip(&format!("route add local {ANY_IP} dev lo"));
    let listener = TcpListener::bind((choose("0.0.0.0", "::"), 0)).expect("a free port");
    let port = listener.local_addr().expect("an address").port();
    let withheld = Withheld {
        terms: Terms::ALL,
        accurate_ecn: true,
        ect: false,
    };
    let to = |address: &str| {
        let address: IpAddr = address.parse().expect("an address");
        Packet {
            dst_mac: OUR_MAC[0],
            src: CLIENT.parse().expect("an address"),
            flags: SYN | ECE | CWR,
            reserved: AE,
            ..syn((address, port).into(), write(&layouts()[0]))
        }
    };
    for forwards in ["0", "1"] {
        let family = choose("ipv4", "ipv6");
        net.sysctl(&format!("{family}/conf/{DEVICE}/forwarding"), forwards);
        plane.withhold(&listener, withheld).expect("an element");
        let context = Context {
            ifindex: net.ifindex(DEVICE),
            ..Context::default()
        };
        for (address, is_ours) in [(OURS, true), (ONE_OF_ANY, true), (BEYOND, false)] {
            let sent = to(address);
            let changed = Packet {
                flags: SYN,
                reserved: 0,
                options: without(&layouts()[0], Terms::ALL),
                ..sent.clone()
            };
            let expected = if is_ours { &changed } else { &sent };
            let ran = plane.run_in(Hook::Ingress, &sent.bytes(), context, 1);
            let ran = ran.expect("a packet of this kind");
            assert_eq!(ran.verdict, OK);
            assert_frame(
                &ran.packet,
                &expected.bytes(),
                &format!("{address}, forwarding {forwards}"),
            );
        }
    }
}

#[test]
fn what_is_withheld_can_be_given_back() {
    let (plane, listener) = (Plane::open(), listener());
    let sent = syn(listener.local_addr().expect("an address"), write(&layouts()[0]));
    let all = Withheld {
        terms: Terms::ALL,
        ..Withheld::default()
    };
    plane.withhold(&listener, all).expect("an element");
    let expected = Packet {
        options: without(&layouts()[0], Terms::ALL),
        ..sent.clone()
    };
    expect(&plane, &sent, &expected);
    plane
        .withhold(&listener, Withheld::default())
        .expect("an element");
    expect(&plane, &sent, &sent);
}
