//! Features of IPv6 alone: link-local addresses, IPv4 over IPv6 sockets, routes that a router
//! advertises. The tests of other files run over IPv6 with `LONGSPLICE_FAMILY=6` (scripts/test.sh lists them).

use std::{
    fs,
    net::{Ipv6Addr, SocketAddrV6},
};

use longsplice_engine::{Side, Until, policy::SplicePolicy};
use longsplice_lab::{Family, Line, LineOptions, Namespace};
use longsplice_tests::{
    Bed, Pair, Policy, SOON, eventually, ip_in,
    library::{Depth, Desk, at_once},
    soon, veth_line,
};
use socket2::{Domain, Protocol, Socket, Type};

const BYTES: u64 = 1 << 20;

/// Makes nodes with addresses of both families, known by those of IPv6.
fn net(name: &str) -> Line {
    let options = LineOptions {
        family: Family::V6,
        ..LineOptions::default()
    };
    veth_line(name, options)
}

fn ip(node: &Namespace, words: &str) -> String {
    ip_in(Family::V6, node, words)
}

/// Returns the link-local address of a device.
fn link_local(node: &Namespace, device: &str) -> Ipv6Addr {
    let addresses = ip(node, &format!("-o -6 address show dev {device} scope link"));
    let words: Vec<&str> = addresses.split_whitespace().collect();
    let (address, _) = words[3].split_once('/').unwrap();
    address.parse().unwrap()
}

/// Returns the number of a device.
fn index(node: &Namespace, device: &str) -> u32 {
    let link = ip(node, &format!("-o link show dev {device}"));
    link.split_once(':').unwrap().0.parse().unwrap()
}

fn sysctl(node: &Namespace, path: &str) -> String {
    let file = format!("/proc/sys/net/ipv6/{path}");
    let text = node.run(|| fs::read_to_string(file)).unwrap().unwrap();
    text.trim().to_owned()
}

/// A connection goes from relay to each depth and back, with bytes at each stage, and past the death of the
/// daemon.
#[test]
fn a_connection_is_spliced_and_comes_back() {
    for (policy, state) in Policy::BOTH_ON_DEMAND {
        let mut bed = Bed::on(net("v6-splice"), policy, |c| c);
        let mut pair = bed.connect();
        for _ in 0..3 {
            pair.exchange(BYTES);
            bed.splice(&pair, state);
            pair.exchange(BYTES);
            let flow = bed.daemon.wait_state(pair.client_port(), &[state]);
            assert_eq!(
                (flow.client.peer, flow.client.local),
                (pair.client.stream.local_addr().unwrap(), bed.front())
            );
            assert_eq!(
                (flow.server.peer, flow.server.local),
                (bed.target(), pair.server.stream.peer_addr().unwrap())
            );
            bed.daemon.unsplice(flow.id).unwrap();
            bed.daemon
                .wait_state(pair.client_port(), &["relay", "undraining"]);
        }
        pair.exchange(BYTES);
        bed.splice(&pair, state);
        bed.daemon.kill();
        pair.exchange(BYTES);
        bed.daemon.start(&bed.net.forwarder);
        assert_eq!(bed.daemon.status().adopted_total, 1);
        pair.exchange(BYTES);
        pair.close();
        bed.daemon.wait_reaped();
        assert_eq!(bed.daemon.status().ended("closed"), 1);
    }
}

/// A handler that listens for both families has IPv6 sockets for IPv4 clients. Such a leg is treated as the IPv4 one
/// that it is on the wire, and its socket comes back as an IPv4 one.
#[test]
fn an_ipv4_client_of_an_ipv6_socket_is_spliced_as_ipv4() {
    for depth in Depth::BOTH {
        let front = Ipv6Addr::UNSPECIFIED.into();
        let desk = Desk::at(Line::new("v6-mapped", LineOptions::default()).unwrap(), front);
        let (mut pair, near) = desk.connect();
        let local = near.client.local_addr().unwrap().ip();
        assert!(local.is_ipv6() && local.to_canonical().is_ipv4(), "{local}");
        let mut near = at_once(near, depth);
        for _ in 0..3 {
            let call = desk
                .library
                .splice(near, Until::bytes_from(Side::Client, BYTES + 1));
            let flow = desk.library.wait_state(pair.client_port(), &[depth.state()]);
            assert_eq!(flow.client.peer, pair.client.stream.local_addr().unwrap());
            pair.exchange(BYTES);
            pair.client.send(2);
            pair.server.receive(1);
            let mut returned = call.returned();
            let byte = desk.library.read(&mut returned.client, 1);
            pair.server.vouch(&byte);
            near = at_once(returned, depth);
        }
        near.splice = SplicePolicy::Never;
        let call = desk.library.splice(near, Until::closed());
        pair.exchange(BYTES);
        pair.close();
        assert!(!call.closed().reset);
    }
}

#[test]
fn a_link_local_client_is_relayed() {
    let bed = Bed::on(net("v6-link"), Policy::DETACHED, |c| c);
    let address = link_local(&bed.net.forwarder, "f0");
    let front = SocketAddrV6::new(address, 8080, 0, index(&bed.net.client, "c0"));
    let mut pair = Pair::connect(&bed.net.client, front.into(), &bed.listener);
    let flow = bed
        .daemon
        .wait_flow("the refusal", |f| f.reason.as_deref() == Some("link_local"));
    assert_eq!(flow.state, "relay");
    pair.exchange(BYTES);
    pair.close();
    let status = bed.daemon.wait_status("its end", |s| s.relayed_total == 1);
    assert_eq!(status.relayed("link_local"), 1, "{status:?}");
}

/// Each interface that is up has routes to link-local and multicast addresses, even the ports of a bridge: these have none of
/// their own.
#[test]
fn an_interface_is_watched_once_it_is_up_unless_it_is_a_port() {
    let bed = Bed::on(net("v6-watch"), Policy::DETACHED, |c| c);
    let forwarder = &bed.net.forwarder;
    let watches = |name: &str| bed.daemon.status().health.interfaces.contains(&name.to_owned());
    ip(forwarder, "link add d0 type veth peer name d1");
    ip(forwarder, "link set d0 up");
    soon("an interface without an address to be watched", || watches("d0"));
    assert!(!watches("d1"), "it is down");
    ip(forwarder, "link add b0 type bridge");
    ip(forwarder, "link set d0 master b0");
    ip(forwarder, "link set b0 up");
    soon("the bridge to be watched", || watches("b0"));
    soon("its port to be let go of", || !watches("d0"));
}

/// Sends a router advertisement (RFC 4861 section 4.2) for 30 minutes, from the client's device to all nodes there.
fn advertise(net: &Line) {
    const MESSAGE: [u8; 16] = [134, 0, 0, 0, 64, 0, 0x07, 0x08, 0, 0, 0, 0, 0, 0, 0, 0];
    let scope = index(&net.client, "c0");
    let send = || {
        let socket = Socket::new(Domain::IPV6, Type::RAW, Some(Protocol::ICMPV6))?;
        // A host ignores advertisements with another hop limit (section 6.1.2).
        socket.set_multicast_hops_v6(255)?;
        socket.set_multicast_if_v6(scope)?;
        let all = SocketAddrV6::new("ff02::1".parse().unwrap(), 0, 0, scope);
        socket.send_to(&MESSAGE, &all.into())
    };
    assert_eq!(net.client.run(send).unwrap().unwrap(), MESSAGE.len());
}

/// The kernel deletes all advertised default routes when forwarding is switched on for any interface; a host with a
/// daemon keeps them.
#[test]
fn an_advertised_default_route_stays() {
    let net = net("v6-ra");
    let forwarder = &net.forwarder;
    forwarder.sysctl("net/ipv6/conf/f0/accept_ra", "1").unwrap();
    let routes = || ip(forwarder, "-6 route show default proto ra");
    eventually("the advertised route", SOON, || {
        advertise(&net);
        routes().contains("dev f0").then_some(())
    });
    assert_eq!(sysctl(forwarder, "conf/lo/forwarding"), "0");
    let bed = Bed::on(net, Policy::DETACHED, |c| c.set("shutdown = \"end\""));
    let forwarder = &bed.net.forwarder;
    assert_eq!(sysctl(forwarder, "conf/lo/forwarding"), "1");
    assert_eq!(sysctl(forwarder, "conf/f0/forwarding"), "0", "and no other");
    assert_eq!(sysctl(forwarder, "conf/f0/accept_ra"), "1", "as it was");
    assert!(ip(forwarder, "-6 route show default proto ra").contains("dev f0"));
}
