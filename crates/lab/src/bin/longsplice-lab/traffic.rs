//! Verified traffic over a topology.

use std::net::SocketAddr;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use longsplice_lab::{
    Counters, Emulator, LinkReport, MultiServer, Namespace, Outcome, Process, Tally, Traffic, TrafficServer,
    TrafficSpec, Verdict,
};
use serde::Serialize;

use crate::args::TrafficArgs;
use crate::{command, net, print_json};

/// Longest time until the command in the forwarder listens.
const PATIENCE: Duration = Duration::from_secs(10);

/// Exit status of a run that does not count.
const LATE: u8 = 3;

/// Result of a run.
#[derive(Debug, Serialize)]
struct Run {
    /// Outcome for each address that was connected to.
    traffic: Vec<(SocketAddr, Outcome)>,
    /// TCP counters of each node.
    nodes: Vec<(String, Tally)>,
    links: Vec<LinkReport>,
    verdict: Verdict,
}

pub(crate) fn run(args: &TrafficArgs) -> Result<ExitCode> {
    let net = MultiServer::new(&args.net.name, args.net.options())?;
    let start = |server: &longsplice_lab::topology::Server| {
        TrafficServer::start(&server.namespace, (server.addr, args.port).into())
    };
    let servers = net.servers.iter().map(start).collect::<Result<Vec<_>, _>>()?;
    let _beside = beside(&net, args)?;
    let to = match args.front {
        Some(port) => vec![(net.forwarder_client_addr, port).into()],
        None => servers.iter().map(TrafficServer::addr).collect(),
    };
    let spec = args.drive.spec();
    let mut attempt = 1;
    loop {
        let run = once(&net, &to, &spec)?;
        let is_ok = run.traffic.iter().all(|(_, outcome)| outcome.all_ok());
        let is_last = !is_ok || run.verdict.counts() || attempt >= args.attempts;
        if is_last {
            show(&run, args.json)?;
            return Ok(match (is_ok, run.verdict.counts()) {
                (false, _) => ExitCode::FAILURE,
                (true, false) => ExitCode::from(LATE),
                (true, true) => ExitCode::SUCCESS,
            });
        }
        eprintln!("attempt {attempt} of {}: {}", args.attempts, run.verdict);
        attempt += 1;
    }
}

/// Starts the command in the forwarder, if one was given, and waits until it listens at the address of the traffic.
fn beside(net: &MultiServer, args: &TrafficArgs) -> Result<Option<Process>> {
    if args.command.is_empty() {
        return Ok(None);
    }
    let mut command = command(&args.command)?;
    command.envs(net::variables(net));
    let process = net.forwarder.run(|| Process::spawn(&mut command))??;
    let Some(port) = args.front else {
        return Ok(Some(process));
    };
    let since = Instant::now();
    while !net.forwarder.listens_at(port)? {
        ensure!(
            process.is_running(),
            "the command ended before it listened at port {port}"
        );
        ensure!(
            since.elapsed() < PATIENCE,
            "the command does not listen at port {port}"
        );
        // Poll: the kernel sends no event for a new listener.
        thread::sleep(Duration::from_millis(5));
    }
    Ok(Some(process))
}

/// Runs the traffic to all addresses at once.
fn once(net: &MultiServer, to: &[SocketAddr], spec: &TrafficSpec) -> Result<Run> {
    let before = counters(net)?;
    if let Some(emulator) = net.emulator() {
        Emulator::reset(emulator);
    }
    let outcomes = thread::scope(|scope| {
        let drive = |to: &SocketAddr| {
            let to = *to;
            (to, scope.spawn(move || Traffic::run(&net.client, to, spec)))
        };
        let running: Vec<_> = to.iter().map(drive).collect();
        let joined = running.into_iter().map(|(to, thread)| {
            let outcome = thread.join().ok().context("a thread has panicked")??;
            Ok((to, outcome))
        });
        joined.collect::<Result<Vec<_>>>()
    })?;
    let nodes = counters(net)?.into_iter().zip(before);
    Ok(Run {
        traffic: outcomes,
        nodes: nodes
            .map(|((node, after), (_, before))| (node, after.diff(&before).tally()))
            .collect(),
        links: net.link_reports(),
        verdict: net.verdict(),
    })
}

fn counters(net: &MultiServer) -> Result<Vec<(String, Counters)>> {
    let of = |(node, namespace): (String, &Namespace)| Ok((node, namespace.snmp()?));
    net.nodes().into_iter().map(of).collect()
}

fn show(run: &Run, json: bool) -> Result<()> {
    if json {
        return print_json(run);
    }
    for (to, outcome) in &run.traffic {
        println!("to {to}, {outcome}");
    }
    for (node, tally) in run.nodes.iter().filter(|(_, tally)| *tally != Tally::default()) {
        println!("{node}: {tally}");
    }
    for link in &run.links {
        println!("link of the {link}");
    }
    if !run.links.is_empty() {
        println!("{}", run.verdict);
    }
    Ok(())
}
