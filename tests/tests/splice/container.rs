//! A client that is root of its own network namespace on this host, as in a container: a veth device brings its packets
//! with all that it has written into their `sk_buff`.

use std::{net::TcpStream, time::Duration};

use longsplice_tests::{Bed, Policy, ip};

/// Values of `skb->tc_index` around those of bpf/tags.h.
const TAGS: std::ops::RangeInclusive<u16> = 0x4c50..=0x4c5f;

/// The namespace's packets pass the forwarder, which is no router, with none of its tags.
#[test]
fn its_tags_bring_no_packet_across() {
    let bed = Bed::new("container-tags", Policy::DETACHED);
    ip(
        &bed.net.client,
        &format!("route replace default via {}", bed.net.forwarder_client_addr),
    );
    let tc = |words: &str| {
        let run = bed.net.client.command("tc").args(words.split(' '));
        let done = run.output().unwrap();
        assert!(done.status.success(), "tc {words}: {done:?}");
    };
    tc("qdisc add dev c0 clsact");
    let received = || bed.net.server.snmp().unwrap().get("Tcp.InSegs");
    let before = received();
    let target = bed.listener.local_addr().unwrap();
    for tag in TAGS {
        // The class of a filter becomes the index of the packet.
        tc(&format!(
            "filter replace dev c0 egress prio 1 handle 800::800 protocol all u32 match u32 0 0 classid 1:{tag:x}"
        ));
        let connect = || TcpStream::connect_timeout(&target, Duration::from_millis(100));
        bed.net.client.run(connect).unwrap().unwrap_err();
        assert_eq!(received(), before, "{tag:x}");
    }
    tc("qdisc del dev c0 clsact");
    let mut pair = bed.connect_spliced("detached");
    pair.exchange(100_000);
    pair.close();
}
