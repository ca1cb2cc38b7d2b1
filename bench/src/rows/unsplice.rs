//! Row 3.1: time from the arrival of a segment that fires a trap until a protocol handler has its bytes, on idle pairs.
//!
//! The handler is a user of the library in this process. The segment's arrival is the kernel's time stamp at the
//! forwarder's device, before the programs at tc see it; its bytes are there when the first read after the return has
//! them.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener as StdListener, TcpStream as StdStream};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use longsplice_engine::{Ended, Pair, Side, Splicer, TransitionTimes, Until, policy::SplicePolicy};
use longsplice_lab::topology::{F0, Nodes};
use longsplice_lab::{Line, LineOptions, monotonic_ns};
use socket2::SockRef;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::time::sleep;

use super::Scope;
use super::depth::Depth;
use crate::capture::Capture;
use crate::inside::{PATIENCE, in_time, inside};
use crate::report::{Comparison, Finding, Results, Series, Statistic, Target};
use crate::row::Row;
use crate::stats::Spread;

/// Length of a request, and of an answer.
const MESSAGE: usize = 200;
/// Time without traffic before a request.
const IDLE: Duration = Duration::from_millis(20);
/// Number of requests on a pair before it is replaced.
const PER_PAIR: usize = 50;

/// One return.
#[derive(Debug, Clone, Copy)]
struct Sample {
    /// Time from the arrival at the forwarder's device to the bytes in the handler, in microseconds.
    from_arrival_us: f64,
    /// Time from the call of the client's `write` to the bytes in the handler, the wire included, in
    /// microseconds.
    from_write_us: f64,
}

/// Results of one depth.
#[derive(Debug)]
struct Run {
    samples: Vec<Sample>,
    /// Engine's times for rebuilding the sockets.
    rebuild: TransitionTimes,
}

/// Orders to the client's thread.
enum Order {
    Connect,
    Ask,
    Close,
}

/// Measures row 3.1, for both depths.
pub(super) fn run(scope: &Scope<'_>) -> Result<Results> {
    let net = Line::new("bench", LineOptions::default())?;
    let wanted = scope.count(400, 20);
    let figure = "arrival to bytes in the handler, µs";
    let plain = measure(scope, &net, None, wanted)?.samples;
    let never = plain.iter().map(|sample| sample.from_arrival_us);
    let never = Series::new("longsplice, never spliced", figure, never).by(Statistic::Median);
    let mut all = Results::of([never]);
    let plain = Spread::of(plain.iter().map(|s| s.from_arrival_us)).context("no samples")?;
    for (depth, must, aim) in [(Depth::Dormant, 60.0, 20.0), (Depth::Detached, 200.0, 60.0)] {
        let Run { samples, rebuild } = measure(scope, &net, Some(depth), wanted)?;
        let of = |of: fn(&Sample) -> f64| Spread::of(samples.iter().map(of)).context("no samples");
        let (arrival, write) = (of(|s| s.from_arrival_us)?, of(|s| s.from_write_us)?);
        let detail = format!(
            "µs from the arrival at the forwarder's device to the read that has the bytes: {}, p99 {:.0}, max {:.0}; from \
             the client's write on: {}; {} returns of idle pairs; a socket that was never spliced, in the same handler: \
             {}{}",
            arrival.show(),
            arrival.p99,
            arrival.max,
            write.show(),
            arrival.n,
            plain.show(),
            match depth {
                Depth::Dormant => String::new(),
                Depth::Detached => format!(
                    "; of it, building two sockets and waking them, by the engine: {:.0}",
                    rebuild.median_ns as f64 / 1e3
                ),
            }
        );
        eprintln!("   {}: {detail}", depth.title());
        let series = |figure, of: fn(&Sample) -> f64| {
            let series =
                Series::new("longsplice, spliced", figure, samples.iter().map(of)).case(depth.title());
            series.by(Statistic::Median).splices(samples.len() as f64)
        };
        let target = Target::AtMost { must, aim };
        let comparison = Comparison::of(target, "longsplice, spliced", figure).worst([depth.title()]);
        let series = [
            series(figure, |sample| sample.from_arrival_us),
            series("client's write to bytes in the handler, µs", |sample| {
                sample.from_write_us
            }),
        ];
        all = all.join(Results::of(series).find(Finding::new(
            Row::back(1),
            format!(
                "unsplice, trap to readable in the handler, median, {}, µs",
                depth.title()
            ),
            comparison,
            detail,
        )));
    }
    Ok(all)
}

/// Measures returns. Without a depth the pair is never spliced: the result is the machine's own time to wake a
/// handler.
fn measure(scope: &Scope<'_>, net: &Nodes, depth: Option<Depth>, wanted: usize) -> Result<Run> {
    let front = SocketAddr::from((net.forwarder_client_addr, 5200));
    let target = SocketAddr::from((net.server_addr, 5201));
    let pairs = wanted.div_ceil(PER_PAIR);
    let echo = net.server.run(|| listen(target))??;
    let (orders, todo) = mpsc::channel();
    let (tell, mut written) = unbounded_channel();
    let mut capture = Capture::open(&net.forwarder, F0)?;
    thread::scope(|threads| {
        let server = threads.spawn(|| answer(&echo, pairs));
        let client = threads.spawn(move || net.client.run(move || ask(front, todo, tell)));
        let run = inside(scope.room, &net.forwarder, async move |splicer| {
            let listener = TcpListener::bind(front).await?;
            splicer.prepare_listener(&listener, target)?;
            let mut samples = Vec::with_capacity(wanted);
            for _ in 0..pairs {
                orders.send(Order::Connect).context("the client has given up")?;
                let (stream, _) = in_time("the client", listener.accept()).await??;
                splicer.prepare_client(&stream)?;
                let server = splicer.connect(target, &stream, PATIENCE).await?;
                let (readable, mut returns) = unbounded_channel();
                let handler = match depth {
                    Some(depth) => {
                        let pair = Pair::new(stream, server)
                            .with_splice(SplicePolicy::Now)
                            .with_detach(depth.policy());
                        tokio::spawn(handle(splicer.clone(), pair, readable))
                    }
                    None => tokio::spawn(handle_plain(stream, server, readable)),
                };
                for _ in 0..PER_PAIR.min(wanted - samples.len()) {
                    parked(&splicer, depth).await?;
                    capture.take()?;
                    orders.send(Order::Ask).context("the client has given up")?;
                    let readable_ns = in_time("the pair to come back", returns.recv()).await?;
                    let readable_ns = readable_ns.ok_or_else(|| anyhow!("the handler has given up"))?;
                    let write_ns: Option<u64> = in_time("the answer", written.recv()).await?;
                    let write_ns = write_ns.ok_or_else(|| anyhow!("the client has given up"))?;
                    let arrival = capture
                        .take()?
                        .into_iter()
                        .find(|seen| !seen.outgoing && seen.segment.payload > 0);
                    let arrival_ns = arrival.context("the segment was not seen")?.at_ns;
                    let since = |ns: u64| (readable_ns as f64 - ns as f64) / 1e3;
                    samples.push(Sample {
                        from_arrival_us: since(arrival_ns),
                        from_write_us: since(write_ns),
                    });
                }
                orders.send(Order::Close).context("the client has given up")?;
                in_time("the pair to end", handler).await???;
            }
            let rebuild = splicer.counters().rebuild;
            Ok(Run { samples, rebuild })
        });
        // An error in the middle ends both ends, and is the one to report.
        let client = client.join().map_err(|_| anyhow!("the client's thread panicked"));
        let server = server.join().map_err(|_| anyhow!("the server's thread panicked"));
        let run = run?;
        client???;
        server??;
        Ok(run)
    })
}

/// Handles the protocol: passes requests on, and lets answers pass spliced.
async fn handle(splicer: Splicer, mut pair: Pair, readable: UnboundedSender<u64>) -> Result<()> {
    let mut message = [0; MESSAGE];
    loop {
        match splicer.splice(pair, Until::data_from(Side::Client)).await? {
            Ended::Closed(_) => return Ok(()),
            Ended::Detached(id) => bail!("flow {id} was left alone"),
            Ended::Returned(mut returned) => {
                let read = returned.client.read(&mut message).await?;
                let now = monotonic_ns();
                ensure!(
                    read == MESSAGE,
                    "{read} of {MESSAGE} bytes were readable at the return"
                );
                ensure!(returned.spliced, "the pair was not spliced");
                // The receiver is gone after another error.
                let _ = readable.send(now);
                returned.server.write_all(&message).await?;
                pair = returned.into();
            }
        }
    }
}

/// Handles the protocol without a splicer.
async fn handle_plain(
    mut client: TcpStream,
    mut server: TcpStream,
    readable: UnboundedSender<u64>,
) -> Result<()> {
    let mut message = [0; MESSAGE];
    server.set_nodelay(true)?;
    loop {
        let read = client.read(&mut message).await?;
        let now = monotonic_ns();
        if read == 0 {
            // The connection was made to reset where the process dies.
            SockRef::from(&server).set_linger(None)?;
            return Ok(());
        }
        ensure!(read == MESSAGE, "{read} of {MESSAGE} bytes were read at once");
        // The receiver is gone after another error.
        let _ = readable.send(now);
        server.write_all(&message).await?;
        server.read_exact(&mut message).await?;
        client.write_all(&message).await?;
    }
}

/// Waits until the only pair is spliced, if a depth is given, and idle.
async fn parked(splicer: &Splicer, depth: Option<Depth>) -> Result<()> {
    let start = Instant::now();
    loop {
        let flows: Vec<_> = splicer.flows().collect();
        if depth.is_none_or(|depth| flows.iter().any(|flow| flow.state == depth.state())) {
            sleep(IDLE).await;
            return Ok(());
        }
        ensure!(
            start.elapsed() < PATIENCE,
            "the pair was not spliced again: {flows:?}"
        );
        sleep(Duration::from_millis(2)).await;
    }
}

fn listen(at: SocketAddr) -> io::Result<StdListener> {
    let listener = StdListener::bind(at)?;
    // This applies to accept(2), too.
    SockRef::from(&listener).set_read_timeout(Some(PATIENCE))?;
    Ok(listener)
}

/// Echoes, as the server.
fn answer(listener: &StdListener, pairs: usize) -> Result<()> {
    let mut message = [0; MESSAGE];
    for _ in 0..pairs {
        let (mut stream, _) = listener.accept().context("the server waited for the forwarder")?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_nodelay(true)?;
        loop {
            match stream.read(&mut message).context("the server reads")? {
                0 => break,
                read => stream.write_all(&message[..read])?,
            }
        }
    }
    Ok(())
}

/// Follows the orders, as the client; sends the time of each request once it is answered.
fn ask(to: SocketAddr, todo: mpsc::Receiver<Order>, tell: UnboundedSender<u64>) -> Result<()> {
    let mut open: Option<StdStream> = None;
    let mut message = [b'?'; MESSAGE];
    // The loop ends when the sender of orders is gone.
    for order in todo {
        match (order, &mut open) {
            (Order::Connect, open) => {
                let stream = StdStream::connect_timeout(&to, PATIENCE).context("the client connects")?;
                stream.set_read_timeout(Some(PATIENCE))?;
                stream.set_nodelay(true)?;
                *open = Some(stream);
            }
            (Order::Close, open) => *open = None,
            (Order::Ask, None) => bail!("the client is not connected"),
            (Order::Ask, Some(stream)) => {
                let now = monotonic_ns();
                stream.write_all(&message)?;
                stream.read_exact(&mut message).context("the client reads")?;
                // The receiver is gone after another error.
                let _ = tell.send(now);
            }
        }
    }
    Ok(())
}
