//! Unsplices where an end, or both, are on the forwarder's own host: injected packets take another path there.

use std::{
    net::{IpAddr, SocketAddr, TcpListener},
    time::Instant,
};

use longsplice_lab::Line;
use longsplice_tests::{Config, Daemon, Flow, Pair, SOON, eventually_or, veth_line};

use crate::unsplice::LEAST_RTO;

/// Position of the client.
#[derive(Clone, Copy, PartialEq)]
enum Client {
    Remote,
    Local,
}

/// Positions of all parts.
#[derive(Clone, Copy)]
struct Places {
    client: Client,
    front: fn(&Line) -> IpAddr,
    target: fn(&Line) -> IpAddr,
}

const REMOTE_TO_LOOPBACK: Places = Places {
    client: Client::Remote,
    front: |net| net.forwarder_client_addr,
    target: |net| net.family().loopback(),
};
const REMOTE_TO_OWN: Places = Places {
    client: Client::Remote,
    front: |net| net.forwarder_client_addr,
    target: |net| net.forwarder_server_addr,
};
const LOOPBACK: Places = Places {
    client: Client::Local,
    front: |net| net.family().loopback(),
    target: |net| net.family().loopback(),
};
const OWN: Places = Places {
    client: Client::Local,
    front: |net| net.forwarder_client_addr,
    target: |net| net.forwarder_server_addr,
};
const LOCAL_TO_REMOTE: Places = Places {
    client: Client::Local,
    front: |net| net.forwarder_server_addr,
    target: |net| net.server_addr,
};

struct Here {
    daemon: Daemon,
    listener: TcpListener,
    net: Line,
    places: Places,
}

impl Here {
    fn new(name: &str, places: Places, splice: &str, detach: &str, more: &str) -> Here {
        let net = veth_line(name, Default::default());
        let target = SocketAddr::from(((places.target)(&net), 7000));
        let host = if target.ip() == net.server_addr {
            &net.server
        } else {
            &net.forwarder
        };
        let listener = host.run(|| TcpListener::bind(target)).unwrap().unwrap();
        let front = SocketAddr::from(((places.front)(&net), 8080));
        let config = Config::new().listener(front, target, splice, detach).with(more);
        let mut daemon = Daemon::of(&config);
        daemon.start(&net.forwarder);
        Here {
            daemon,
            listener,
            net,
            places,
        }
    }

    fn connect(&self) -> Pair {
        let namespace = match self.places.client {
            Client::Remote => &self.net.client,
            Client::Local => &self.net.forwarder,
        };
        let front = SocketAddr::from(((self.places.front)(&self.net), 8080));
        Pair::connect(namespace, front, &self.listener)
    }
}

const DEPTHS: [(&str, &str); 2] = [("never", "dormant"), ("now", "detached")];

fn by_command(name: &str, places: Places) {
    for (detach, state) in DEPTHS {
        let here = Here::new(name, places, "never", detach, "");
        let mut pair = here.connect();
        for _ in 0..3 {
            let flow = here.daemon.wait_state(pair.client_port(), &["relay"]);
            here.daemon.request_splice(flow.id).unwrap();
            here.daemon.wait_state(pair.client_port(), &[state]);
            pair.exchange(500_000);
            here.daemon.unsplice(flow.id).unwrap();
            here.daemon
                .wait_state(pair.client_port(), &["relay", "undraining"]);
            pair.exchange(500_000);
        }
        pair.close();
        let status = here.daemon.status();
        assert_eq!((status.spliced_total, status.resumed_total), (3, 3), "{status:?}");
        here.daemon.wait_reaped();
    }
}

const BUDGETS: &str = "bytes=client:150kB,bytes=server:200kB";

/// Returns whether so little is left of a budget that the pair is relayed up to its trap.
fn is_nearly_used_up(flow: &Flow) -> bool {
    const LAST: u64 = 64 << 10;
    flow.to_server.bytes + LAST >= 150_000 || flow.to_client.bytes + LAST >= 200_000
}

fn by_trap(name: &str, places: Places) {
    for (detach, state) in DEPTHS {
        for trap in ["data=client", "data=server", BUDGETS] {
            let here = Here::new(name, places, "now", detach, &format!("unsplice = \"{trap}\""));
            let mut pair = here.connect();
            // A budget may be used up before the pair is spliced again: that round has no return.
            let (mut round, mut in_time) = (0, 0);
            while in_time < 5 || here.daemon.status().resumed_total < 5 {
                assert!(
                    round < 50,
                    "{trap}, {state}: no five returns, {in_time} rounds in time"
                );
                // The trap fires in silence first, and then under load.
                here.daemon
                    .wait_flow(&format!("{trap}: {state}, or nearly used up"), |f| {
                        f.state == state || (trap == BUDGETS && is_nearly_used_up(f))
                    });
                let before = pair.lost();
                let took = [(1_000, 0), (0, 1_000)].map(|(to_server, to_client)| {
                    let start = Instant::now();
                    pair.exchange_unevenly(to_server, to_client);
                    start.elapsed()
                });
                // A sender that was stopped for as long as its timer takes repeats what is held; its receiver sees that once.
                if took.iter().all(|took| *took < LEAST_RTO) {
                    in_time += 1;
                    eventually_or(
                        || {
                            let now = pair.lost();
                            format!(
                                "nothing to be lost: {trap}, {state}, round {round}: {before} before, {now} now"
                            )
                        },
                        SOON,
                        || (pair.lost() <= before).then_some(()),
                    );
                }
                pair.exchange(300_000);
                round += 1;
            }
            pair.close();
            let status = here
                .daemon
                .wait_status("the end", |s| s.listeners.iter().all(|l| l.open == 0));
            assert_eq!(status.segments("aborted"), 0, "{status:?}");
        }
    }
}

#[test]
fn a_target_on_the_loopback_by_command() {
    by_command("lu-lo", REMOTE_TO_LOOPBACK);
}

#[test]
fn a_target_on_the_loopback_by_trap() {
    by_trap("lu-lo-t", REMOTE_TO_LOOPBACK);
}

#[test]
fn a_target_at_an_own_address_by_command() {
    by_command("lu-own", REMOTE_TO_OWN);
}

#[test]
fn a_target_at_an_own_address_by_trap() {
    by_trap("lu-own-t", REMOTE_TO_OWN);
}

#[test]
fn both_on_the_loopback_by_command() {
    by_command("lu-both", LOOPBACK);
}

#[test]
fn both_on_the_loopback_by_trap() {
    by_trap("lu-both-t", LOOPBACK);
}

#[test]
fn both_at_own_addresses_by_command() {
    by_command("lu-addrs", OWN);
}

#[test]
fn both_at_own_addresses_by_trap() {
    by_trap("lu-addrs-t", OWN);
}

#[test]
fn a_local_client_of_a_remote_target_by_command() {
    by_command("lu-client", LOCAL_TO_REMOTE);
}

#[test]
fn a_local_client_of_a_remote_target_by_trap() {
    by_trap("lu-client-t", LOCAL_TO_REMOTE);
}
