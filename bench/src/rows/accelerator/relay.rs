//! Row 15.5: the accelerator beside a transparent relay of every connection, the design of PEPsal, in whose place nginx
//! stands: connections per second, and goodput over the same links.

use std::time::Duration;

use anyhow::{Context, Result};
use longsplice_lab::traffic::Transfer;
use longsplice_lab::{
    ConnectionSpec, Direction, LineOptions, LinkSpec, Queue, Traffic, TrafficServer, TrafficSpec, Verdict,
};

use super::super::Scope;
use super::super::middle::all_ok;
use super::super::rate;
use crate::contender::{Contender, Rig};
use crate::cores;
use crate::report::{Comparison, Finding, PASSED_RATE, Results, Series, Target};
use crate::row::Row;

/// Those of the rate: one lets connections on a short path pass through, one takes each over.
const CONTENDERS: [Contender; 3] = [
    Contender::Accelerated,
    Contender::TakenOver,
    Contender::NginxTransparent,
];

/// Those of the goodput: the relay answers a client before its server has.
const SENDERS: [Contender; 3] = [
    Contender::Accelerated,
    Contender::AnsweredEarly,
    Contender::NginxTransparent,
];

const RATE: &str = "connections for each busy second of the middle's core";
const GOODPUT: &str = "goodput, Mbit/s";

/// Uploads over a path of 40 + 40 ms, 100 Mbit/s.
#[derive(Debug, Clone, Copy)]
struct Upload {
    case: &'static str,
    bytes: u64,
    /// Share of the segments that the link behind the middle loses.
    loss: f64,
    /// Connections at the same time.
    parallel: usize,
}

const UPLOADS: [Upload; 3] = [
    Upload {
        case: "32 MiB",
        bytes: 32 << 20,
        loss: 0.0,
        parallel: 1,
    },
    Upload {
        case: "4 MiB, 1 % loss",
        bytes: 4 << 20,
        loss: 0.01,
        parallel: 1,
    },
    Upload {
        case: "16 x 100 KB",
        bytes: 100_000,
        loss: 0.0,
        parallel: 16,
    },
];

/// Measures both.
pub(in crate::rows) fn run(scope: &Scope<'_>) -> Result<Results> {
    let row = Row::accelerator(5);
    let rates = scope.found(row, "connections per second", connections(scope));
    let goodputs = scope.found(row, "goodput over the same links", goodputs(scope));
    Ok(rates.join(goodputs))
}

fn target() -> Target {
    Target::AtLeast { must: 1.0, aim: 2.0 }
}

fn connections(scope: &Scope<'_>) -> Result<Results> {
    let (connections, rounds) = scope.count((2000, 5), (200, 1));
    let mut all = [const { Vec::new() }; CONTENDERS.len()];
    for _ in 0..rounds {
        for (contender, batches) in CONTENDERS.into_iter().zip(&mut all) {
            let batch = rate::measure(scope, LineOptions::router(), contender, connections)?;
            eprintln!(
                "   {:<26} {:6.0} connections for each busy second",
                contender.title(),
                batch.rate()
            );
            batches.push(batch);
        }
    }
    let of = |(contender, batches): (Contender, &Vec<rate::Batch>)| {
        [
            Series::new(contender.title(), RATE, batches.iter().map(rate::Batch::rate)),
            Series::new(
                contender.title(),
                "connections per second until all were open",
                batches.iter().map(rate::Batch::by_the_clock),
            ),
        ]
    };
    let [passed, taken_over, theirs] = CONTENDERS.map(Contender::title);
    let finding = |measure, target, ours| {
        let comparison = Comparison::of(target, ours, RATE).to([theirs]);
        Finding::new(Row::accelerator(5), measure, comparison, "")
    };
    Ok(Results::of(CONTENDERS.into_iter().zip(&all).flat_map(of))
        .find(finding(PASSED_RATE, Target::Shown { aim: 2.0 }, passed))
        .find(finding(
            "the same, connections that are taken over, each of them",
            target(),
            taken_over,
        )))
}

fn goodputs(scope: &Scope<'_>) -> Result<Results> {
    let rounds = scope.count(5, 1);
    let (mut series, mut discarded) = (Vec::new(), 0);
    for upload in UPLOADS {
        let mut all = [const { Vec::new() }; SENDERS.len()];
        for _ in 0..rounds {
            for (contender, rates) in SENDERS.into_iter().zip(&mut all) {
                let mbps = loop {
                    let (mbps, verdict) = send(scope, contender, upload)?;
                    if scope.counts(&verdict, &mut discarded)? {
                        break mbps;
                    }
                };
                eprintln!("   {:<26} {mbps:6.1} Mbit/s, {}", contender.title(), upload.case);
                rates.push(mbps);
            }
        }
        let of = |(contender, rates): (Contender, Vec<f64>)| {
            Series::new(contender.title(), GOODPUT, rates).case(upload.case)
        };
        series.extend(SENDERS.into_iter().zip(all).map(of));
    }
    let [ours, early, theirs] = SENDERS.map(Contender::title);
    let finding = |name: &str, ours| {
        Finding::new(
            Row::accelerator(5),
            name,
            Comparison::of(target(), ours, GOODPUT)
                .to([theirs])
                .worst(UPLOADS.map(|upload| upload.case)),
            format!("{discarded} runs made again, since the emulator was late"),
        )
    };
    Ok(Results::of(series)
        .find(finding(
            "goodput over the same links, cubic everywhere / nginx as a transparent relay",
            ours,
        ))
        .find(finding(
            "the same, clients answered early (`early_accept`), as that relay does",
            early,
        )))
}

/// Sends once; returns the goodput in Mbit/s from the client's SYN to the server's last byte, and the verdict on its
/// links.
fn send(scope: &Scope<'_>, contender: Contender, upload: Upload) -> Result<(f64, Verdict)> {
    let link = |loss| {
        LinkSpec::symmetric(Direction {
            delay: Duration::from_millis(20),
            rate: Some(100_000_000),
            queue: Queue::Bytes(1 << 20),
            loss,
            ..Direction::default()
        })
    };
    let net = cores::emulated(link(0.0), link(upload.loss))?;
    for space in [&net.client, &net.forwarder, &net.server] {
        space.sysctl("net.ipv4.tcp_congestion_control", "cubic")?;
    }
    let rig = Rig {
        room: scope.room,
        nodes: &net,
    };
    let _server = TrafficServer::start(&net.server, rig.server())?;
    let standing = rig.start(contender)?;
    net.emulator().reset();
    let spec = ConnectionSpec::new(Transfer::of(upload.bytes), Transfer::of(0));
    let spec = TrafficSpec::same(upload.parallel, spec).parallel(upload.parallel);
    let outcome = Traffic::run(&net.client, standing.at, &spec)?;
    all_ok(&outcome)?;
    let times = outcome.connections.iter().map(|end| end.one_way());
    let times = times
        .collect::<Option<Vec<_>>>()
        .context("the server knows of each")?;
    let longest = times.into_iter().max().unwrap_or_default();
    let bits = (upload.bytes * 8 * upload.parallel as u64) as f64;
    Ok((bits / 1e6 / longest.as_secs_f64(), net.verdict()))
}
