//! Addresses of a leg that netfilter translates on the forwarder (NAT): the connection is relayed, and loses nothing.

use std::net::Ipv4Addr;

use longsplice_tests::{Bed, Pair, Policy, ip, nft, veth_line};

const BYTES: u64 = 1 << 20;

/// Port to which clients connect that are redirected to the listener.
const PUBLISHED: u16 = 80;

/// Port of the listener toward the service.
const TO_SERVICE: u16 = 8081;

/// Address without a host, in the network of the server.
const SERVICE: Ipv4Addr = Ipv4Addr::new(198, 18, 2, 100);

/// Second address of the forwarder in that network.
const SOURCE: Ipv4Addr = Ipv4Addr::new(198, 18, 2, 50);

/// Connects to a port of a forwarder with this rule of a chain, and exchanges data, with policies that splice at once and later.
fn is_relayed(name: &str, chain: &str, rule: &str, port: u16) {
    let auto = Policy {
        splice: "auto",
        detach: "now",
    };
    for (policy, which) in [
        (Policy::DETACHED, "now"),
        (Policy::DORMANT, "park"),
        (auto, "auto"),
    ] {
        let net = veth_line(&format!("{name}-{which}"), Default::default());
        ip(&net.forwarder, &format!("addr add {SOURCE}/24 dev f1"));
        nft(
            &net.forwarder,
            &format!(
                "add table ip nat
                 add chain ip nat rewrite {{ type nat hook {chain}; }}
                 add rule ip nat rewrite {rule}"
            ),
        );
        let listen = ([0, 0, 0, 0], TO_SERVICE).into();
        let bed = Bed::on(net, policy, |config| {
            config.listener(listen, (SERVICE, 80).into(), policy.splice, policy.detach)
        });
        let mut front = bed.front();
        front.set_port(port);
        let mut pair = Pair::connect(&bed.net.client, front, &bed.listener);
        // Long enough for `auto` to splice it.
        pair.exchange(BYTES);
        let port = pair.client_port();
        let flow = bed.daemon.wait_flow("the refusal", |flow| {
            flow.client.peer.port() == port && flow.reason.as_deref() == Some("nat")
        });
        assert_eq!(flow.state, "relay");
        pair.exchange(BYTES);
        pair.close();
    }
}

#[test]
fn a_connection_to_a_service_whose_address_is_translated_is_relayed() {
    let rule = format!("ip daddr {SERVICE} tcp dport 80 dnat to 198.18.2.1:7000");
    is_relayed("nat-service", "output priority -100", &rule, TO_SERVICE);
}

#[test]
fn a_connection_to_a_published_port_is_relayed() {
    let rule = format!("tcp dport {PUBLISHED} redirect to :8080");
    is_relayed("nat-port", "prerouting priority -100", &rule, PUBLISHED);
}

#[test]
fn a_connection_from_a_source_that_is_translated_is_relayed() {
    let rule = format!("tcp dport 7000 snat to {SOURCE}");
    is_relayed("nat-source", "postrouting priority 100", &rule, 8080);
}
