//! Legs that agreed on different options: spliced where the difference can be translated, relayed where it cannot, with
//! the reason in `status` and `flows`. A splice never switches an option off.

use longsplice_lab::{
    ConnectionSpec, Direction, Line, LineOptions, LinkSpec, Namespace, Traffic, TrafficServer, TrafficSpec,
};
use longsplice_repair::{TcpInfo, tcp_info};
use longsplice_tests::{Bed, Config, Daemon, End, Policy, assert_all_ok, emulated, ip, rng, soon, veth_line};

const BYTES: u64 = 4 << 20;

fn set(namespace: &Namespace, option: &str, value: &str) {
    namespace.sysctl(&format!("net.ipv4.{option}"), value).unwrap();
}

/// Changes nodes, then connects and checks bytes before and after the attempt to splice, at both depths.
fn attempt(
    name: &str,
    options: LineOptions,
    change: impl Fn(&Line),
    mut then: impl FnMut(&Bed, &mut longsplice_tests::Pair, Result<(), String>),
) {
    for policy in [Policy::ON_DEMAND, Policy::ON_DEMAND_DORMANT] {
        let net = veth_line(name, options.clone());
        change(&net);
        let bed = Bed::on(net, policy, |c| c);
        let mut pair = bed.connect();
        pair.exchange(BYTES);
        let flow = bed.daemon.wait_state(pair.client_port(), &["relay"]);
        let asked = bed.daemon.splice(flow.id);
        then(&bed, &mut pair, asked);
        pair.exchange(BYTES);
        pair.close();
    }
}

fn spliced(name: &str, options: LineOptions, change: impl Fn(&Line)) {
    attempt(name, options, change, |bed, pair, asked| {
        asked.unwrap();
        bed.daemon
            .wait_state(pair.client_port(), &["dormant", "detached"]);
        pair.exchange(BYTES);
        soon("each end to know the other's window", || {
            // Look behind a new byte of each: a retransmission, of a tail that was only late, tells of a window that its
            // receiver ignores, as its number is an old one (RFC 9293 section 3.10.7.4, SND.WL1).
            pair.exchange(1);
            sees_window_of(&pair.client, &pair.server) && sees_window_of(&pair.server, &pair.client)
        });
    });
}

/// Returns whether the sender has the right value of the receiver's window, as far as its header can tell. (A wrong one
/// would still let the bytes arrive: too slowly, or after drops.)
fn sees_window_of(sender: &End, receiver: &End) -> bool {
    let (sender, receiver) = (
        tcp_info(&sender.stream).unwrap(),
        tcp_info(&receiver.stream).unwrap(),
    );
    let scale = |info: &TcpInfo, scale: u8| if info.window_scaling() { scale } else { 0 };
    let applied = scale(&sender, sender.snd_wscale());
    let used = scale(&receiver, receiver.rcv_wscale());
    let meant = receiver.rcv_wnd().unwrap().min(65_535 << used.min(applied));
    // The remainder below a unit of either scale is lost.
    let unit = 1 << used.max(applied);
    sender.snd_wnd().unwrap().abs_diff(meant) <= unit
}

fn relayed(name: &str, reason: &str, change: impl Fn(&Line)) {
    attempt(name, LineOptions::default(), change, |bed, pair, asked| {
        let said = asked.unwrap_err();
        assert!(said.contains(&format!("stays relayed ({reason})")), "{said}");
        let what = format!("the refusal, {reason}");
        let flow = bed
            .daemon
            .wait_flow(&what, |f| f.reason.as_deref() == Some(reason));
        assert_eq!(flow.state, "relay");
        pair.exchange(BYTES);
        pair.close();
        let status = bed.daemon.wait_status("its end", |s| s.relayed_total == 1);
        assert_eq!(
            (status.relayed(reason), status.spliced_total),
            (1, 0),
            "{status:?}"
        );
        // The caller closes this connection.
        *pair = bed.connect();
    });
}

#[test]
fn timestamps_at_the_client_only() {
    relayed("opt-ts-c", "timestamps", |net| {
        set(&net.server, "tcp_timestamps", "0")
    });
}

#[test]
fn timestamps_at_the_server_only() {
    spliced("opt-ts-s", LineOptions::default(), |net| {
        set(&net.client, "tcp_timestamps", "0")
    });
}

/// The buffers of an end never take two full segments of the other one: each would wait for a timer, of its sender or its receiver.
#[test]
fn windows_below_two_segments() {
    for buffer in [2304, 4608] {
        let narrow = |end: &Namespace| set(end, "tcp_rmem", &format!("{buffer} {buffer} {buffer}"));
        relayed("opt-window-c", "small_window", |net| narrow(&net.client));
        relayed("opt-window-s", "small_window", |net| narrow(&net.server));
    }
}

#[test]
fn timestamps_nowhere() {
    spliced("opt-ts-no", LineOptions::default(), |net| {
        set(&net.client, "tcp_timestamps", "0");
        set(&net.server, "tcp_timestamps", "0");
    });
}

#[test]
fn sack_at_the_client_only() {
    spliced("opt-sack-c", LineOptions::default(), |net| {
        set(&net.server, "tcp_sack", "0")
    });
}

#[test]
fn sack_at_the_server_only() {
    spliced("opt-sack-s", LineOptions::default(), |net| {
        set(&net.client, "tcp_sack", "0")
    });
}

/// One end sends SACK blocks, the other one does not know them.
#[test]
fn one_sided_sack_with_losses() {
    let mut rng = rng();
    let mut lossy = || {
        LinkSpec::symmetric(Direction {
            loss: 0.005,
            delay: std::time::Duration::from_millis(1),
            seed: rng.u64(..),
            ..Direction::default()
        })
    };
    let net = emulated("opt-sack-loss", lossy(), lossy());
    set(&net.server, "tcp_sack", "0");
    let server = TrafficServer::start(&net.server, (net.server_addr, 7000).into()).unwrap();
    let front = (net.forwarder_client_addr, 8080).into();
    let mut daemon = Daemon::of(&Config::new().listener(front, server.addr(), "now", "now"));
    daemon.start(&net.forwarder);
    let spec = TrafficSpec::same(4, ConnectionSpec::both_ways(4 << 20));
    assert_all_ok(&Traffic::run(&net.client, front, &spec).unwrap());
    let status = daemon.status();
    assert_eq!(status.spliced_total, 4, "{status:?}");
}

#[test]
fn window_scaling_at_the_client_only() {
    spliced("opt-ws-c", LineOptions::default(), |net| {
        set(&net.server, "tcp_window_scaling", "0");
    });
}

#[test]
fn window_scaling_at_the_server_only() {
    spliced("opt-ws-s", LineOptions::default(), |net| {
        set(&net.client, "tcp_window_scaling", "0");
    });
}

#[test]
fn ecn_at_the_client_only() {
    // Value 1 requests ECN; by default a node only accepts it; with 0 it refuses it.
    relayed("opt-ecn-c", "ecn", |net| {
        set(&net.client, "tcp_ecn", "1");
        set(&net.server, "tcp_ecn", "0");
    });
}

/// The forwarder asks only because the client did.
#[test]
fn ecn_at_the_client_and_wherever_it_is_asked_for() {
    spliced("opt-ecn-ask", LineOptions::default(), |net| {
        set(&net.client, "tcp_ecn", "1")
    });
}

#[test]
fn ecn_at_the_server_only() {
    // The forwarder would ask unasked.
    spliced("opt-ecn-s", LineOptions::default(), |net| {
        set(&net.forwarder, "tcp_ecn", "1")
    });
}

#[test]
fn ecn_on_both_legs() {
    spliced("opt-ecn", LineOptions::default(), |net| {
        set(&net.client, "tcp_ecn", "1");
        set(&net.forwarder, "tcp_ecn", "1");
    });
}

#[test]
fn long_packets_at_the_client() {
    let options = LineOptions {
        mtu_client: 9000,
        ..LineOptions::default()
    };
    spliced("opt-mtu-c", options, |_| {});
}

#[test]
fn long_packets_at_the_server() {
    let options = LineOptions {
        mtu_server: 9000,
        ..LineOptions::default()
    };
    spliced("opt-mtu-s", options, |_| {});
}

/// The packets are as on a wire: one that is too long would not pass.
#[test]
fn long_packets_at_either_end_without_offloads() {
    for (mtu_client, mtu_server) in [(9000, 1500), (1500, 9000)] {
        let options = LineOptions {
            mtu_client,
            mtu_server,
            offloads: false,
            ..LineOptions::default()
        };
        spliced("opt-mtu-wire", options, |_| {});
    }
}

/// The server accepts shorter segments than its path promised, after the client got its MSS.
#[test]
fn a_server_that_takes_only_short_segments() {
    relayed("opt-mss", "mss", |net| {
        ip(&net.server, "route replace 198.18.2.2/32 dev s0 advmss 536");
    });
}
