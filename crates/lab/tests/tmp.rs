mod common;
use longsplice_lab::traffic::Transfer;
use longsplice_lab::*;
#[test]
fn numbers() {
    for (a, b, bytes) in [
        ("rtt20", "rtt100", 20_000_000),
        ("rtt1", "rtt1", 20_000_000),
        ("rtt1", "rtt300", 20_000_000),
        ("rtt20", "rtt20", 20_000_000),
    ] {
        let net = common::emulated("lab-tmp", a.parse().unwrap(), b.parse().unwrap());
        let server = TrafficServer::start(&net.server, (net.server_addr, 7000).into()).unwrap();
        let spec = TrafficSpec::same(1, ConnectionSpec::new(Transfer::of(0), Transfer::of(bytes)));
        let o = Traffic::run(&net.client, server.addr(), &spec).unwrap();
        eprintln!(
            "== {a} {b} ok {} {:.1} Mbit/s retrans {} gap {} ms",
            o.all_ok(),
            o.bits_per_second() / 1e6,
            o.total_retrans(),
            o.longest_gap_us() / 1000
        );
        for r in net.link_reports() {
            eprintln!("{r}");
        }
        eprintln!("{}", net.verdict());
    }
}
