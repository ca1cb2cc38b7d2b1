//! Traffic classes of taken-over connections: each end gets the DSCP that the other one's SYN had (RFC 2474), as behind a router.

use std::net::TcpStream;

use longsplice_lab::{Emulated, Family, Namespace};
use longsplice_tests::{Pair, SOON, nft, soon};
use socket2::{Domain, SockRef, Socket, Type};

use crate::{
    accelerate::Node,
    accelerate_firewall::{packets, tracks},
    accelerate_semantics::Depth,
};

/// Traffic classes of the ends: EF, and AF21 (RFC 3246, RFC 2597).
const CLIENT: u32 = 0xb8;
const SERVER: u32 = 0x48;

/// Sets the traffic class of what a socket sends.
fn set_class(socket: &SockRef<'_>, family: Family, class: u32) {
    match family {
        Family::V4 => socket.set_tos_v4(class),
        Family::V6 => socket.set_tclass_v6(class),
    }
    .unwrap();
}

/// Counts the segments with payload that come in with this traffic class, and those that come in with another one.
fn count(end: &Namespace, family: Family, class: u32) {
    let ip = match family {
        Family::V4 => "ip",
        Family::V6 => "ip6",
    };
    let dscp = class >> 2;
    let table = format!(
        "table inet count {{
            counter kept {{ }}
            counter changed {{ }}
            chain in {{ type filter hook input priority 0
                meta l4proto tcp meta length > 200 {ip} dscp {dscp} counter name kept
                meta l4proto tcp meta length > 200 {ip} dscp != {dscp} counter name changed
            }}
        }}"
    );
    nft(end, &table);
}

/// Connects with this traffic class.
fn connect(node: &Node<Emulated>, family: Family) -> Pair {
    let server = node.listener.local_addr().unwrap();
    let client = node.net.client.run(|| {
        let socket = Socket::new(Domain::for_address(server), Type::STREAM, None)?;
        set_class(&SockRef::from(&socket), family, CLIENT);
        socket.connect_timeout(&server.into(), SOON)?;
        Ok::<_, std::io::Error>(TcpStream::from(socket))
    });
    Pair::accept(client.unwrap().unwrap(), &node.listener)
}

/// Carries a connection in this way, and sees what comes in at its ends.
fn class_is_kept(family: Family, depth: Depth, more: &[&str]) {
    let link = || "rtt20".parse().unwrap();
    let node = Node::new(Emulated::of(family, "acc-class", link(), link()).unwrap(), more);
    set_class(&SockRef::from(&node.listener), family, SERVER);
    // An early answer has the class of the server's last one.
    connect(&node, family).close();
    let ends = [(&node.net.server, CLIENT), (&node.net.client, SERVER)];
    for (end, class) in ends {
        count(end, family, class);
    }
    let mut pair = connect(&node, family);
    depth.reach(&node, &mut pair);
    pair.exchange(100_000);
    for (end, _) in ends {
        soon("segments of this class", || packets(end, "count", "kept") > 0);
        assert_eq!(
            packets(end, "count", "changed"),
            0,
            "{family:?} {depth:?} {more:?}"
        );
    }
    pair.close();
}

#[test]
fn the_traffic_class_of_the_handshake_stays() {
    if !tracks() {
        return;
    }
    for family in [Family::V4, Family::V6] {
        for depth in [Depth::TakenOver, Depth::Released] {
            class_is_kept(family, depth, &[]);
        }
        class_is_kept(family, Depth::TakenOver, &["--early-accept", "known"]);
    }
}
