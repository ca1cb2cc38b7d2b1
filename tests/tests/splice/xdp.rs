//! IP/FWD: detached flows in XDP. Both ends check the bytes; the counters tell on which path they passed.

use longsplice_lab::{Family, LineOptions, Namespace};
use longsplice_tests::{Bed, Config, Pair, Policy, soon, veth_line};

const BYTES: u64 = 4 << 20;

fn tool(namespace: &Namespace, line: &str) -> String {
    let mut words = line.split_whitespace();
    let done = namespace
        .command(words.next().unwrap())
        .args(words)
        .output()
        .unwrap();
    assert!(done.status.success(), "{line}: {done:?}");
    String::from_utf8(done.stdout).unwrap()
}

/// Makes links like those between machines: checksums are complete, no segments are merged before they leave; and both
/// ends accept frames that XDP redirects.
fn wires(name: &str, family: Family) -> longsplice_lab::Line {
    let net = veth_line(
        name,
        LineOptions {
            family,
            offloads: false,
            ..LineOptions::default()
        },
    );
    take_frames(&net, true);
    net
}

fn take_frames(net: &longsplice_lab::Line, on: bool) {
    let gro = if on { "on" } else { "off" };
    tool(&net.client, &format!("ethtool -K c0 gro {gro}"));
    tool(&net.server, &format!("ethtool -K s0 gro {gro}"));
}

fn in_xdp(config: Config) -> Config {
    config.set("xdp = [\"f0\", \"f1\"]")
}

/// Returns the mode of XDP on the forwarder's interface toward the server, as the system reports it: "xdp",
/// "xdpgeneric", or an empty string.
fn xdp_on(bed: &Bed) -> String {
    let shown = tool(&bed.net.forwarder, "ip link show f1");
    let word = shown
        .split_whitespace()
        .find(|word| ["xdp", "xdpgeneric"].contains(word));
    word.unwrap_or_default().to_owned()
}

/// Returns the number of segments with these verdicts.
fn counts<const N: usize>(bed: &Bed, names: [&str; N]) -> [u64; N] {
    let status = bed.daemon.status();
    names.map(|name| status.segments(name))
}

/// Passes bytes in both directions, and checks that most of their segments pass in XDP.
#[track_caller]
fn passes_in_xdp(bed: &Bed, pair: &mut Pair) {
    let before = counts(bed, ["forwarded_xdp", "forwarded"]);
    pair.exchange(BYTES);
    let after = counts(bed, ["forwarded_xdp", "forwarded"]);
    let [xdp, tc] = [after[0] - before[0], after[1] - before[1]];
    // Segments have at most 1,460 bytes each.
    assert!(
        xdp > 2 * BYTES / 1500 / 2 && xdp > 4 * tc,
        "{xdp} in XDP, {tc} at tc"
    );
}

#[test]
fn a_transfer_passes_in_xdp_comes_back_and_passes_there_again() {
    for family in [Family::V4, Family::V6] {
        let net = wires("xdp-passes", family);
        let bed = Bed::on(net, Policy::ON_DEMAND, in_xdp);
        assert_eq!(bed.daemon.status().health.xdp, ["f0", "f1"]);
        assert_eq!(xdp_on(&bed), "xdp");
        let mut pair = bed.connect();
        pair.exchange(100_000);
        assert_eq!(counts(&bed, ["forwarded_xdp"]), [0], "it is relayed");
        for _ in 0..2 {
            bed.splice(&pair, "detached");
            passes_in_xdp(&bed, &mut pair);
            let flow = bed.daemon.wait_state(pair.client_port(), &["detached"]);
            assert!(flow.to_server.bytes >= BYTES && flow.to_client.bytes >= BYTES);
            bed.daemon.unsplice(flow.id).unwrap();
            bed.daemon.wait_state(pair.client_port(), &["relay"]);
            pair.exchange(100_000);
        }
        bed.splice(&pair, "detached");
        passes_in_xdp(&bed, &mut pair);
        pair.close();
        bed.daemon.wait_reaped();
    }
}

/// Traps fire in a stream that passes in XDP: the connection comes back exactly there, each time.
#[test]
fn a_trap_ends_what_passes_in_xdp() {
    for family in [Family::V4, Family::V6] {
        let net = wires("xdp-trap", family);
        let bed = Bed::on(net, Policy::DETACHED, |c| {
            in_xdp(c).with("unsplice = \"bytes=client:300000\"")
        });
        let mut pair = bed.connect();
        for _ in 0..10 {
            pair.exchange(250_000);
        }
        pair.close();
        let status = bed
            .daemon
            .wait_status("the end", |s| s.listeners.iter().all(|l| l.open == 0));
        assert!(status.returned("client") >= 2, "{status:?}");
        assert!(status.segments("forwarded_xdp") > 0, "{status:?}");
        assert_eq!(status.segments("aborted"), 0, "{status:?}");
    }
}

/// On veth pairs, as between containers, sockets leave the checksum to a device that does not exist. XDP cannot
/// complete it, tc can.
#[test]
fn unfinished_checksums_pass_at_tc() {
    let net = veth_line("xdp-unsummed", LineOptions::default());
    take_frames(&net, true);
    let bed = Bed::on(net, Policy::DETACHED, in_xdp);
    let mut pair = bed.connect_spliced("detached");
    pair.exchange(BYTES);
    let [xdp, unsummed, tc] = counts(&bed, ["forwarded_xdp", "csum_partial_xdp", "forwarded"]);
    assert!(unsummed > 0 && tc >= unsummed, "{unsummed}, {tc}");
    assert!(xdp < unsummed / 100, "{xdp} of {unsummed} looked finished");
    pair.close();
}

/// A driver that accepts no redirected frames would lose them: their segments pass at tc as soon as the daemon notices.
#[test]
fn an_end_that_takes_no_frames_gets_them_from_tc() {
    let bed = Bed::on(wires("xdp-exits", Family::V4), Policy::DETACHED, in_xdp);
    let mut pair = bed.connect_spliced("detached");
    passes_in_xdp(&bed, &mut pair);
    take_frames(&bed.net, false);
    soon("the daemon to notice", || {
        bed.daemon.log().matches("takes no frames from XDP").count() == 2
    });
    let [before] = counts(&bed, ["forwarded_xdp"]);
    pair.exchange(BYTES);
    assert_eq!(counts(&bed, ["forwarded_xdp"]), [before]);
    take_frames(&bed.net, true);
    soon("the daemon to notice", || {
        bed.daemon.log().matches("takes frames from XDP").count() == 4
    });
    passes_in_xdp(&bed, &mut pair);
    pair.close();
}

#[test]
fn it_outlives_the_daemon_and_its_successor_decides() {
    let mut bed = Bed::on(wires("xdp-kill", Family::V4), Policy::DETACHED, in_xdp);
    let mut pair = bed.connect_spliced("detached");
    pair.exchange(BYTES);
    bed.daemon.kill();
    assert_eq!(xdp_on(&bed), "xdp");
    pair.exchange(BYTES);
    bed.daemon.start(&bed.net.forwarder);
    assert_eq!(xdp_on(&bed), "xdp");
    passes_in_xdp(&bed, &mut pair);
    // A daemon without that setting removes it.
    bed.daemon.kill();
    let plain = Config::new().listener(bed.front(), bed.target(), "now", "now");
    bed.daemon.reconfigure(&plain);
    bed.daemon.start(&bed.net.forwarder);
    assert_eq!(xdp_on(&bed), "");
    assert_eq!(bed.daemon.status().health.xdp, Vec::<String>::new());
    let [before] = counts(&bed, ["forwarded_xdp"]);
    pair.exchange(BYTES);
    assert_eq!(counts(&bed, ["forwarded_xdp"]), [before]);
    // A daemon with the other mode sets that.
    bed.daemon.kill();
    bed.daemon
        .reconfigure(&in_xdp(plain).set("xdp_mode = \"generic\""));
    bed.daemon.start(&bed.net.forwarder);
    assert_eq!(xdp_on(&bed), "xdpgeneric");
    pair.exchange(BYTES);
    assert!(counts(&bed, ["forwarded_xdp"])[0] > before);
    pair.close();
    bed.daemon.wait_reaped();
    bed.daemon.terminate();
    assert_eq!(bed.daemon.join(), Some(0));
    assert_eq!(xdp_on(&bed), "");
}

#[test]
fn an_interface_that_is_not_there_or_cannot_is_told() {
    let net = wires("xdp-none", Family::V4);
    let bed = Bed::on(net, Policy::DETACHED, |c| c);
    let mut other = longsplice_tests::Daemon::of(&Config::new().set("xdp = [\"f0\", \"f7\"]").listener(
        "127.0.0.1:9".parse().unwrap(),
        bed.target(),
        "now",
        "now",
    ));
    let exit = other.start_in_vain(&bed.net.forwarder);
    assert_eq!(exit.code, Some(1), "{}", exit.says);
    assert!(
        exit.says.contains("there is no interface `f7` for xdp"),
        "{}",
        exit.says
    );
    drop((bed, other));

    // The program of another instance is on one of them: it stays, and the flow passes at tc.
    let net = wires("xdp-taken", Family::V4);
    let first = Bed::on(net, Policy::DETACHED, in_xdp);
    let mut second = longsplice_tests::Daemon::of(&in_xdp(Config::new()).listener(
        (first.net.forwarder_client_addr, 8081).into(),
        first.target(),
        "now",
        "now",
    ));
    second.start(&first.net.forwarder);
    assert_eq!(second.status().health.xdp, Vec::<String>::new());
    assert!(second.log().contains("another XDP program is on it already"));
    let mut pair = first.connect_spliced("detached");
    passes_in_xdp(&first, &mut pair);
    pair.close();
    // Connections of the second instance bypass that program.
    let front = (first.net.forwarder_client_addr, 8081).into();
    let mut pair = Pair::connect(&first.net.client, front, &first.listener);
    second.wait_state(pair.client_port(), &["detached"]);
    pair.exchange(BYTES);
    pair.close();
}
