//! Requests and replies by turns, slow readers, and the reports on them. Needs root.

use std::net::SocketAddr;
use std::time::Duration;

use crate::common::{emulated, linked, one_at_a_time, veth_line};
use longsplice_lab::emulator::schedule::{Fate, Schedule};
use longsplice_lab::topology::Nodes;
use longsplice_lab::traffic::{Close, EndReport, Pause, Transfer};
use longsplice_lab::{
    ConnectionSpec, Exchanges, LineOptions, LinkSpec, Outcome, Traffic, TrafficServer, TrafficSpec,
};

const MS: Duration = Duration::from_millis(1);

fn run(net: &Nodes, spec: &TrafficSpec) -> Outcome {
    let server = TrafficServer::start(&net.server, SocketAddr::from((net.server_addr, 7000))).unwrap();
    Traffic::run(&net.client, server.addr(), spec).unwrap()
}

/// Returns the shortest time until the first byte of a reply.
fn shortest(client: &EndReport) -> Duration {
    let times = client.exchanges.iter().map(|exchange| exchange.first_byte_ns);
    Duration::from_nanos(times.min().expect("an exchange"))
}

#[test]
fn an_exchange_takes_a_round_trip_and_the_work() {
    let _turn = one_at_a_time();
    let net = linked("lab-exchange", "10ms", "wire");
    let exchanges = Exchanges {
        think: 100 * MS,
        work: 7 * MS,
        ..Exchanges::new(5, 300, 1000)
    };
    let spec = TrafficSpec::same(2, ConnectionSpec::exchanges(exchanges));
    let mut runs = (0..10).map(|_| {
        let outcome = net.emulator().counted(100, || run(&net, &spec)).unwrap();
        assert!(outcome.all_ok(), "{outcome}");
        outcome
    });
    // The client's own pause does not count for its longest gap.
    let in_time = |client: &EndReport| shortest(client) < 30 * MS && client.longest_gap_us < 100_000;
    // The threads of both ends have no priority, and may be stopped in each exchange of a run: take a run in which they were not.
    let outcome = runs.find(|outcome| {
        let clients = outcome.connections.iter().map(|one| &one.client);
        let late: Vec<_> = clients.filter(|client| !in_time(client)).collect();
        println!("late: {late:?}");
        late.is_empty()
    });
    let outcome = outcome.expect("no run was in time");
    assert_eq!(outcome.exchange_times().count(), 10);
    for connection in &outcome.connections {
        let (client, server) = (&connection.client, connection.server.as_ref().unwrap());
        assert_eq!((client.received, server.received), (5000, 1500));
        for exchange in &client.exchanges {
            assert!(exchange.last_byte_ns >= exchange.first_byte_ns, "{exchange:?}");
        }
        assert!(shortest(client) >= 27 * MS, "{client:?}");
        for pair in client.exchanges.windows(2) {
            let between = pair[1].begin_ns - pair[0].begin_ns - pair[0].last_byte_ns;
            assert!(between >= 100_000_000, "it thinks: {pair:?}");
        }
        assert!(client.longest_gap_us >= 27_000, "{client:?}");
        // The server waits for the client's pause, and for the way there and back.
        assert!(server.longest_gap_us >= 120_000, "{}", server.longest_gap_us);
    }
}

#[test]
fn exchanges_of_any_size_end_in_either_order() {
    let net = veth_line("lab-sizes", LineOptions::router());
    let sizes = [
        (1, 1),
        (200, 3_000_000),
        (3_000_000, 200),
        (1_000_000, 1_000_000),
        (0, 500),
        (500, 0),
    ];
    let spec = TrafficSpec::same(18, ConnectionSpec::both_ways(0)).vary(|number, each| {
        let (request, reply) = sizes[number % 6];
        *each = ConnectionSpec::exchanges(Exchanges::new(5, request, reply));
        each.close = [Close::Both, Close::ClientFirst, Close::ServerFirst][number / 6];
        each.to_client.chunk = 100_000;
    });
    let outcome = run(&net, &spec);
    assert!(outcome.all_ok(), "{outcome}");
    for (number, connection) in outcome.connections.iter().enumerate() {
        let (request, reply) = sizes[number % 6];
        assert_eq!(connection.client.received, 5 * reply, "{number}");
        assert_eq!(
            connection.server.as_ref().unwrap().received,
            5 * request,
            "{number}"
        );
        // Times need both: a request to begin at, and a reply to end with.
        let timed = if request > 0 && reply > 0 { 5 } else { 0 };
        assert_eq!(connection.client.exchanges.len(), timed, "{number}");
    }
}

#[test]
fn a_reader_that_pauses_holds_the_sender_up_and_loses_nothing() {
    let net = veth_line("lab-pauses", LineOptions::router());
    let pause = |after_bytes| Pause {
        after_bytes,
        length: 300 * MS,
    };
    let to_client = Transfer {
        read_pauses: vec![pause(12_000_000), pause(100_000)],
        ..Transfer::of(40_000_000)
    };
    let outcome = run(
        &net,
        &TrafficSpec::same(1, ConnectionSpec::new(Transfer::of(0), to_client)),
    );
    assert!(outcome.all_ok(), "{outcome}");
    let connection = &outcome.connections[0];
    assert!(connection.client.duration_us >= 600_000, "{connection:?}");
    assert!(
        connection.client.longest_gap_us < 250_000,
        "its own pauses do not count: {connection:?}"
    );
    let sender = connection.server.as_ref().unwrap();
    assert!(
        sender.duration_us >= 600_000,
        "40 MB do not fit into buffers: {connection:?}"
    );
}

#[test]
fn retransmission_timeouts_are_counted() {
    let _turn = one_at_a_time();
    // A seed that loses the very first packet, the SYN: only a timeout can bring it back.
    let loses_the_first = |link: &LinkSpec| Schedule::new(link.to_server.clone()).offer(0, 74) == Fate::Lost;
    let mut links = (0..).map(|seed| format!("1ms,loss=1%,seed={seed}").parse::<LinkSpec>().unwrap());
    let link = links.find(loses_the_first).unwrap();
    let net = emulated("lab-timeouts", link, LinkSpec::default());
    let before = net.client.snmp().unwrap();
    let spec = TrafficSpec::same(1, ConnectionSpec::exchanges(Exchanges::new(3, 100, 100)));
    let outcome = run(&net, &spec);
    assert!(outcome.all_ok(), "{outcome}");
    assert!(outcome.connections[0].connect_us > 900_000, "{outcome}");
    let tally = net.client.snmp().unwrap().diff(&before).tally();
    assert!(
        tally.timeouts > 0 && tally.sent_again >= tally.timeouts,
        "{tally}"
    );
    // Since Linux 6.7 each socket reports it, too.
    let told = outcome.timeouts();
    let possible = tally.timeouts.unsigned_abs()..10;
    assert!(
        told.is_none_or(|told| possible.contains(&told)),
        "{told:?}, {tally}"
    );
}
