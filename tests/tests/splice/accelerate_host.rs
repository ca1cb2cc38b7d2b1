//! The host of an accelerator: what its limits and settings do to connections that pass it.

use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};

use crate::accelerate::{Node, long_path, passed_through};

/// A node that gets no further socket is a router for the connection.
#[test]
fn a_connection_whose_sockets_are_refused_passes_through() {
    let node = Node::new(long_path("acc-refused-sockets"), &[]);
    let pid = Pid::from_raw(node.daemon.pid() as i32);
    let maximum = getrlimit(Resource::Nofile).maximum;
    let limit = |current| prlimit(pid, Resource::Nofile, Rlimit { current, maximum }).unwrap();
    let passed = |reason| passed_through(&node.daemon.status(), reason);
    // The node knows its interfaces for a second, without a descriptor: on a busy machine that may be over too soon.
    for attempts in 0..10 {
        let mut pairs = vec![node.connect()];
        let before = limit(Some(0));
        pairs.push(node.connect());
        pairs[1].exchange(100_000);
        limit(before.current);
        for pair in &mut pairs {
            pair.exchange(100_000);
            pair.close();
        }
        if passed("system") > 0 {
            // Its answer was not said again.
            return assert_eq!((passed("system"), passed("one_side")), (1, attempts));
        }
    }
    panic!("{:?}", node.daemon.status().accelerator);
}
