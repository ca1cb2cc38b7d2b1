//! An end was offered a window of the other end's size, and then the pair comes back to a host whose own sockets may
//! have less room (a small `tcp_rmem`): the sockets still take in all of the offered window while no task reads, and no
//! segment is retransmitted.

use std::{fs, thread};

use longsplice_engine::{Returned, Side, Trap, Until};
use longsplice_lab::{LineOptions, Namespace};
use longsplice_repair::{tcp_info, unread};
use longsplice_tests::{
    End, Pair, family,
    library::{Depth, Desk, near},
    soon, veth_line,
};

/// `tcp_rmem` of the host in the middle, and of the ends.
const SMALL: &str = "4096 65536 262144";
const LARGE: &str = "4096 8388608 16777216";
/// Most that the small buffers can take.
const LITTLE: u64 = 256 << 10;

fn desk(name: &str) -> Desk {
    // Set this before there are sockets: a buffer begins with the default of its time, and grows by chance where
    // processors are busy.
    let net = veth_line(name, LineOptions::default());
    let set = |node: &Namespace, key: &str, value| node.sysctl(&format!("net.ipv4.{key}"), value).unwrap();
    set(&net.forwarder, "tcp_rmem", SMALL);
    for end in [&net.client, &net.server] {
        set(end, "tcp_rmem", LARGE);
        // The sender's own side must not limit what it sends at once.
        set(end, "tcp_wmem", LARGE);
        set(end, "tcp_slow_start_after_idle", "0");
    }
    Desk::at(net, family().unspecified())
}

/// Returns the number of segments that a host has refused because a buffer was full.
fn refused(node: &Namespace) -> u64 {
    let text = node
        .run(|| fs::read_to_string("/proc/thread-self/net/netstat").unwrap())
        .unwrap();
    let lines: Vec<&str> = text.lines().filter(|l| l.starts_with("TcpExt:")).collect();
    let [names, values] = lines[..] else {
        panic!("{text}")
    };
    let all = names.split_whitespace().zip(values.split_whitespace()).skip(1);
    all.filter(|(name, _)| ["TCPRcvQDrop", "RcvPruned", "OfoPruned", "TCPOFODrop"].contains(name))
        .map(|(_, value)| value.parse::<u64>().unwrap())
        .sum()
}

/// Returns the window offered to an end, in bytes.
fn offered(end: &End) -> u64 {
    tcp_info(&end.stream).unwrap().snd_wnd().unwrap().into()
}

/// Makes a pair that is spliced to this depth, has had a stream from `by` in which the other end's window has grown,
/// and is unspliced.
fn woken(desk: &Desk, depth: Depth, by: Side) -> (Pair, Returned) {
    let (mut pair, call) = desk.spliced(depth, Until::closed());
    let id = desk.library.wait_state(pair.client_port(), &[depth.state()]).id;
    let mut streams = 0;
    while offered(pair.ends(by)[0]) < 4 * LITTLE {
        assert!(streams < 30, "the window does not grow");
        streams += 1;
        match by {
            Side::Client => pair.exchange_unevenly(16 << 20, 1000),
            Side::Server => pair.exchange_unevenly(1000, 16 << 20),
        }
    }
    let returned = desk.library.unsplice(id);
    (pair, returned.unwrap_or_else(|| call.returned()))
}

/// Fills the offered window while no task reads: all of it is taken in, and no segment is retransmitted.
#[track_caller]
fn takes_all_that_was_promised(desk: &Desk, pair: &mut Pair, returned: &mut Returned, by: Side, what: &str) {
    let refused_before = refused(&desk.net.forwarder);
    let [from, to] = pair.ends(by);
    let promised = offered(from);
    assert!(
        promised >= 4 * LITTLE,
        "{what}: {promised} bytes: too few to tell"
    );
    let lost_before = from.lost();
    from.send(promised);
    let socket = near(returned, by);
    let there = || u64::from(unread(&*socket).unwrap());
    soon("all that was promised to be there", || there() == promised);
    let refused = refused(&desk.net.forwarder) - refused_before;
    assert_eq!(refused, 0, "{what}: {promised} bytes promised");
    soon(&format!("nothing to be lost: {what}"), || {
        from.lost() <= lost_before
    });
    let bytes = desk.library.read(near(returned, by), promised as usize);
    to.vouch(&bytes);
}

#[test]
fn a_woken_socket_takes_what_was_promised() {
    for depth in Depth::BOTH {
        let desk = desk("promises");
        for by in Side::BOTH {
            let (mut pair, mut returned) = woken(&desk, depth, by);
            takes_all_that_was_promised(&desk, &mut pair, &mut returned, by, &format!("{depth:?}, {by:?}"));
        }
    }
}

/// A pair that pauses behind a gigabyte may have a full window under way. Its socket has room for the little that a
/// splice leaves.
#[test]
fn one_that_is_woken_before_its_trap_takes_what_was_promised_up_to_there() {
    let desk = desk("promises-trap");
    let (mut pair, near) = desk.connect_for(Depth::Dormant);
    let all = 1 << 30;
    let until = Until::bytes_from(Side::Server, all).or(Until::data_from(Side::Client));
    let call = desk.library.splice(near.with_length(all), until);
    desk.library
        .wait_state(pair.client_port(), &[Depth::Dormant.state()]);
    let mut streams = 0;
    while offered(&pair.server) < 4 * LITTLE {
        assert!(streams < 30, "the window does not grow");
        streams += 1;
        thread::scope(|scope| {
            scope.spawn(|| pair.server.send(16 << 20));
            pair.client.receive(16 << 20);
        });
    }
    pair.client.send(100);
    let mut returned = call.returned();
    assert_eq!(returned.why, Trap::Client);
    takes_all_that_was_promised(&desk, &mut pair, &mut returned, Side::Server, "before its trap");
}
