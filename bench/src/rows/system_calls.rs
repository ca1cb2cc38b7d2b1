//! Row 14.3: system calls of the forwarder's process for a connection, a short one and a long one.
//!
//! Connections come one after the other, while strace counts the calls of all threads. The count of an equally long idle
//! time is subtracted. strace slows the process, so that a read finds more bytes than without it: the counts of long
//! connections are lower bounds.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use longsplice_lab::topology::Nodes;
use longsplice_lab::{Line, LineOptions};
use socket2::SockRef;

use super::Scope;
use crate::contender::{Contender, Rig, Standing};
use crate::cores;
use crate::memory;
use crate::report::{Comparison, Finding, Results, Series, Target};
use crate::row::Row;
use crate::strace::{Calls, Strace};

const CONTENDERS: [Contender; 6] = [
    Contender::Relay,
    Contender::Parked,
    Contender::Spliced,
    Contender::HaProxy,
    Contender::HaProxySplice,
    Contender::Nginx,
];

/// Figures of each case.
const CALLS: &str = "system calls for a connection";
const SPLICES: &str = "splices for a connection";

/// Length of a request.
const REQUEST: usize = 100;
/// Time for the forwarder to finish with closed connections: the daemon looks after its records once a second.
const SETTLE: Duration = Duration::from_secs(2);
/// Longest time for one step of a connection.
const PATIENCE: Duration = Duration::from_secs(10);

/// Kind of connection.
#[derive(Debug, Clone, Copy)]
struct Case {
    name: &'static str,
    /// Length of the reply.
    reply: usize,
    /// Number of counted connections, and of those in a shortened run.
    connections: (usize, usize),
}

const CASES: [Case; 2] = [
    Case {
        name: "1 kB",
        reply: 1000,
        connections: (200, 50),
    },
    Case {
        name: "10 MB",
        reply: 10_000_000,
        connections: (40, 10),
    },
];

/// One contender in one round of a case.
#[derive(Debug)]
struct Round {
    contender: Contender,
    case: &'static str,
    /// Calls for one connection.
    calls: Calls,
    /// Splices for one connection, if it splices.
    splices: Option<f64>,
}

/// Measures row 14.3.
pub(super) fn run(scope: &Scope<'_>) -> Result<Results> {
    let net = Line::new("bench", LineOptions::default())?;
    cores::part(&net)?;
    let rig = Rig {
        room: scope.room,
        nodes: &net,
    };
    let mut all = Vec::new();
    for _ in 0..scope.count(3, 1) {
        for contender in CONTENDERS {
            let (standing, _ends) = rig.start_apart(contender)?;
            for case in &CASES {
                let round = measure(scope, &rig, contender, &standing, case)
                    .with_context(|| format!("{}, {}", contender.title(), case.name))?;
                eprintln!("   {:<6} {}", case.name, tell(contender, &round.calls));
                all.push(round);
            }
        }
    }
    Ok(judge(&all))
}

fn measure(
    scope: &Scope<'_>,
    rig: &Rig<'_>,
    contender: Contender,
    standing: &Standing<'_>,
    case: &Case,
) -> Result<Round> {
    let connections = scope.count(case.connections.0, case.connections.1);
    let pids = memory::family(standing.pid().context("a forwarder is a process")?)?;
    let pass = |connections| pass(rig.nodes, rig.server(), standing.at, case.reply, connections);
    // The daemon's calls for an answer to this program must not be counted: ask before and afterwards.
    let before = spliced(contender, standing)?;
    // The first connections allocate what later ones use again.
    let first = connections.div_ceil(10);
    pass(first)?;
    thread::sleep(SETTLE);
    let strace = Strace::attach(scope.room, &pids)?;
    let start = Instant::now();
    pass(connections)?;
    thread::sleep(SETTLE);
    let took = start.elapsed();
    let busy = strace.stop()?;
    let strace = Strace::attach(scope.room, &pids)?;
    thread::sleep(took);
    let idle = strace.stop()?;
    let after = spliced(contender, standing)?;
    let splices = before.zip(after).map(|(before, after)| after - before);
    Ok(Round {
        contender,
        case: case.name,
        calls: busy.less(&idle, connections),
        splices: splices.map(|splices| splices as f64 / (first + connections) as f64),
    })
}

/// Returns the number of connections that have reached the contender's last state so far, if it splices.
fn spliced(contender: Contender, standing: &Standing<'_>) -> Result<Option<u64>> {
    let Some(daemon) = &standing.daemon else {
        return Ok(None);
    };
    let counters = daemon.status()?.counters;
    Ok(match contender {
        Contender::Parked => Some(counters.spliced_total),
        Contender::Spliced => Some(counters.detached_total),
        _ => None,
    })
}

/// Makes so many connections to `to` one after the other; they arrive at `at` in the server.
fn pass(nodes: &Nodes, at: SocketAddr, to: SocketAddr, reply: usize, connections: usize) -> Result<()> {
    let listener = nodes.server.run(|| TcpListener::bind(at))?.context("listen")?;
    // This applies to accept(2), too.
    SockRef::from(&listener).set_read_timeout(Some(PATIENCE))?;
    nodes.client.run(|| {
        thread::scope(|scope| {
            let serving = scope.spawn(|| (0..connections).try_for_each(|_| serve(&listener, reply)));
            let asked = (0..connections).try_for_each(|_| ask(to, reply));
            let served = serving.join().map_err(|_| anyhow!("a thread panicked"))?;
            asked.context("the client")?;
            served.context("the server")
        })
    })?
}

/// Connects, sends a request and reads its reply; returns when both ends are closed.
fn ask(to: SocketAddr, reply: usize) -> Result<()> {
    let mut stream = TcpStream::connect_timeout(&to, PATIENCE).context("connect")?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(&[b'?'; REQUEST]).context("send a request")?;
    stream
        .read_exact(&mut vec![0; reply])
        .context("wait for a reply")?;
    stream.shutdown(Shutdown::Write)?;
    end_of(&mut stream)
}

fn serve(listener: &TcpListener, reply: usize) -> Result<()> {
    let (mut stream, _) = listener.accept().context("accept")?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream
        .read_exact(&mut [0; REQUEST])
        .context("wait for a request")?;
    stream.write_all(&vec![b'!'; reply]).context("send a reply")?;
    end_of(&mut stream)
}

/// Reads the end of a stream.
fn end_of(stream: &mut TcpStream) -> Result<()> {
    let read = stream.read(&mut [0]).context("read the end of a connection")?;
    ensure!(read == 0, "more came than was sent");
    Ok(())
}

fn judge(all: &[Round]) -> Results {
    let mut results = Results::default();
    for case in &CASES {
        let of = |contender| {
            let mine = all.iter().filter(|round| round.case == case.name);
            mine.filter(|round| round.contender == contender)
                .collect::<Vec<_>>()
        };
        for contender in CONTENDERS {
            results = results.join(Results::of(series(contender, case, &of(contender))));
        }
        let details = CONTENDERS.map(|contender| {
            let rounds = of(contender);
            tell(contender, &Calls::mean(rounds.iter().map(|round| &round.calls)))
        });
        let peers = [Contender::HaProxy, Contender::HaProxySplice, Contender::Nginx];
        let spliced = Contender::Spliced.title();
        results = results.find(Finding::new(
            Row::middle(3),
            format!(
                "system calls for a connection with a reply of {}: spliced and detached / HAProxy, nginx",
                case.name
            ),
            Comparison::of(Target::Shown { aim: 1.0 }, spliced, CALLS)
                .to(peers.map(Contender::title))
                .worst([case.name]),
            details.join("; "),
        ));
    }
    results
}

fn series(contender: Contender, case: &Case, rounds: &[&Round]) -> Vec<Series> {
    let calls = rounds.iter().map(|round| round.calls.total());
    let calls = Series::new(contender.title(), CALLS, calls).case(case.name);
    let splices = rounds.iter().filter_map(|round| round.splices);
    let Some(least) = splices.clone().reduce(f64::min) else {
        return vec![calls];
    };
    let splices = Series::new(contender.title(), SPLICES, splices).case(case.name);
    vec![calls.splices(least), splices]
}

fn tell(contender: Contender, calls: &Calls) -> String {
    format!("{} {:.1} ({})", contender.title(), calls.total(), calls.show())
}
