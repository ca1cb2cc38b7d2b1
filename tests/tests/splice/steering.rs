//! Packets that another processor than the sender's hands to the sockets: a queue separates the programs from the
//! sockets.

use std::{process::Command, thread::available_parallelism};

use longsplice_tests::{Bed, Pair, Policy, soon};

/// Makes the last processor handle the packets that come in on a device of the forwarder.
fn steer(bed: &Bed, device: &str) {
    let last = available_parallelism().unwrap().get() - 1;
    let mask = format!("{:x}", 1u64 << last.min(31));
    // `ip netns exec` runs it in a mount namespace of its own, where /sys shows the namespace's devices.
    let write = "for queue in /sys/class/net/$0/queues/rx-*; do echo $1 >$queue/rps_cpus || exit 1; done";
    let status = Command::new("ip")
        .args([
            "netns",
            "exec",
            bed.net.forwarder.name(),
            "sh",
            "-c",
            write,
            device,
            &mask,
        ])
        .status()
        .unwrap();
    assert!(
        status.success(),
        "cannot steer the packets of {device}: CONFIG_RPS?"
    );
}

/// An acknowledgement that the programs have seen before the flow was registered may reach its socket afterwards.
#[test]
fn connections_that_fall_silent_at_once_are_spliced() {
    const CONNECTIONS: usize = 150;
    let bed = Bed::new("steered", Policy::DETACHED);
    for device in ["f0", "f1"] {
        steer(&bed, device);
    }
    let mut pairs: Vec<Pair> = (0..CONNECTIONS)
        .map(|_| {
            let mut pair = bed.connect();
            pair.exchange(1024);
            pair
        })
        .collect();
    soon("all to be detached", || {
        let flows = bed.daemon.flows();
        flows.len() == CONNECTIONS && flows.iter().all(|flow| flow.state == "detached")
    });
    for pair in &mut pairs {
        pair.exchange(1024);
        pair.close();
    }
    assert_eq!(bed.daemon.status().segments("aborted"), 0);
}
