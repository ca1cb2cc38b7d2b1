//! Flows from the client to the server: every byte is compared, and only those count that arrive within the time.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use longsplice_lab::pattern::Pattern;
use longsplice_lab::{Graph, GraphSpec, Namespace};
use serde::Serialize;
use socket2::{Domain, SockRef, Socket, Type};

/// Longest time for a transfer of a given size, or for a connection to be established.
const PATIENCE: Duration = Duration::from_secs(60);

/// Bytes of one read or write.
const PIECE: usize = 1 << 16;

/// Flow of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) struct FlowSpec {
    /// Port of the server.
    pub(crate) port: u16,
    /// True if the nodes are to take it over.
    pub(crate) is_accelerated: bool,
    /// Places of its client and its server among the hosts.
    pub(crate) hosts: [usize; 2],
    /// Time from the start of the run to its SYN.
    pub(crate) after: Duration,
}

/// End of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) enum Load {
    /// All flows send until this time is over, which begins with the first SYN.
    Time(Duration),
    /// Each flow sends so many bytes.
    Bytes(u64),
}

/// Result of a flow.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(crate) struct FlowOutcome {
    pub(crate) port: u16,
    pub(crate) is_accelerated: bool,
    /// Bytes that arrived within the time.
    pub(crate) bytes: u64,
    /// Time from the client's SYN to the last of these bytes, or to the end of the run.
    pub(crate) seconds: f64,
    /// Bytes that arrived in each interval from the start of the run on, where they are sampled.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) samples: Vec<u64>,
    /// Reason why it does not count.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) failure: Option<String>,
}

impl FlowOutcome {
    /// Returns the goodput in Mbit/s.
    pub(crate) fn goodput(&self) -> f64 {
        if self.seconds > 0.0 {
            self.bytes as f64 * 8e-6 / self.seconds
        } else {
            0.0
        }
    }
}

impl Load {
    /// Returns the longest time that it may take.
    pub(crate) fn time(self) -> Duration {
        match self {
            Load::Time(time) => time,
            Load::Bytes(_) => PATIENCE,
        }
    }

    /// Runs all flows between the hosts of a graph, and counts their bytes in intervals of `every`, if there is one.
    pub(crate) fn run(
        self,
        graph: &Graph,
        spec: &GraphSpec,
        flows: &[FlowSpec],
        every: Option<Duration>,
        seed: u64,
    ) -> anyhow::Result<Vec<FlowOutcome>> {
        let place = |host: usize| {
            let name = spec.hosts.get(host).context("a flow needs two hosts")?;
            let namespace = graph.namespace(name).context("a host has a namespace")?;
            let addr = graph.address(name).context("a host has an address")?;
            Ok::<_, anyhow::Error>((namespace, addr))
        };
        let mut runs = Vec::new();
        for flow in flows {
            let [(client, _), (server, addr)] = [place(flow.hosts[0])?, place(flow.hosts[1])?];
            let to = SocketAddr::from((addr, flow.port));
            let listener = server.run(|| TcpListener::bind(to))?;
            runs.push(Run {
                load: self,
                flow: *flow,
                client,
                to,
                listener: listener.with_context(|| format!("cannot listen at {to}"))?,
                pattern: Pattern::new(seed ^ u64::from(flow.port)),
                every,
            });
        }
        let start = Instant::now();
        let over = AtomicBool::new(false);
        let outcomes = thread::scope(|scope| {
            let (mut receivers, over) = (Vec::new(), &over);
            for run in &runs {
                receivers.push(scope.spawn(move || run.receive(start)));
                scope.spawn(move || {
                    let sent = run.client.run(|| run.send(start, over));
                    if let Err(error) | Ok(Err(error)) = sent.map_err(anyhow::Error::from) {
                        // Go on: the receiver reports what is missing.
                        eprintln!("longsplice-lab: port {}: {error:#}", run.to.port());
                    }
                });
            }
            let outcomes: Vec<_> = receivers
                .into_iter()
                .map(thread::ScopedJoinHandle::join)
                .collect();
            over.store(true, Ordering::Relaxed);
            outcomes
        });
        let outcome = |(flow, outcome): (&FlowSpec, thread::Result<FlowOutcome>)| {
            Ok(FlowOutcome {
                port: flow.port,
                is_accelerated: flow.is_accelerated,
                ..outcome.ok().context("a thread has panicked")?
            })
        };
        flows.iter().zip(outcomes).map(outcome).collect()
    }
}

/// Flow with everything that it needs.
struct Run<'a> {
    load: Load,
    flow: FlowSpec,
    client: &'a Namespace,
    to: SocketAddr,
    listener: TcpListener,
    pattern: Pattern,
    every: Option<Duration>,
}

impl Run<'_> {
    /// Sends until all is sent, the time is over, or the receiver has ended.
    fn send(&self, start: Instant, over: &AtomicBool) -> anyhow::Result<()> {
        thread::sleep((start + self.flow.after).saturating_duration_since(Instant::now()));
        let socket = Socket::new(Domain::for_address(self.to), Type::STREAM, None)?;
        socket.connect_timeout(&self.to.into(), self.load.time())?;
        let mut stream = TcpStream::from(socket);
        stream.set_nodelay(true)?;
        // Wake a write that waits for room, to look at the clock.
        stream.set_write_timeout(Some(Duration::from_millis(100)))?;
        let until = start + self.load.time();
        let mut sent = 0;
        while Instant::now() < until && !over.load(Ordering::Relaxed) {
            let left = match self.load {
                Load::Time(_) => PIECE,
                Load::Bytes(all) => usize::try_from(all - sent).map_or(PIECE, |left| left.min(PIECE)),
            };
            if left == 0 {
                stream.shutdown(Shutdown::Write)?;
                break;
            }
            match stream.write(self.pattern.at(sent, left)) {
                Ok(len) => sent += len as u64,
                Err(error) if is_timeout(&error) => {}
                // Expect a reset at the end: the receiver closes with bytes on their way.
                Err(_) if Instant::now() >= until || over.load(Ordering::Relaxed) => break,
                Err(error) => return Err(error.into()),
            }
        }
        // Keep the connection until the receiver has ended.
        while !over.load(Ordering::Relaxed) && Instant::now() < until {
            thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Receives one connection, and compares every byte.
    fn receive(&self, start: Instant) -> FlowOutcome {
        let mut outcome = FlowOutcome::default();
        let ended = self.receive_until(start, &mut outcome);
        let most = self.load.time() - self.flow.after.min(self.load.time());
        outcome.seconds = match (self.load, &ended) {
            (Load::Bytes(_), Ok(at)) => (*at - start - self.flow.after).as_secs_f64(),
            _ => most.as_secs_f64(),
        };
        outcome.failure = match (self.load, ended) {
            (_, Err(failure)) => Some(format!("{failure:#}")),
            (Load::Bytes(all), Ok(_)) if outcome.bytes < all => {
                Some(format!("{} of {all} bytes arrived in {most:?}", outcome.bytes))
            }
            (Load::Time(_), Ok(_)) if outcome.bytes == 0 => Some("no byte arrived".to_owned()),
            _ => None,
        };
        outcome
    }

    /// Receives until the time is over, or until all bytes are there; returns the time of the last one.
    fn receive_until(&self, start: Instant, outcome: &mut FlowOutcome) -> anyhow::Result<Instant> {
        let until = start + self.load.time();
        let (most, received) = match self.load {
            Load::Time(_) => (u64::MAX, &mut outcome.bytes),
            Load::Bytes(all) => (all, &mut outcome.bytes),
        };
        let Some(left) = time_left(until) else {
            return Ok(until);
        };
        // Limit accept(2): it obeys the timeout for reads.
        SockRef::from(&self.listener).set_read_timeout(Some(left))?;
        let mut stream = match self.listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) if is_timeout(&error) => return Ok(until),
            Err(error) => return Err(error.into()),
        };
        let mut buffer = vec![0; PIECE];
        let mut last = Instant::now();
        while *received < most {
            let Some(left) = time_left(until) else { break };
            stream.set_read_timeout(Some(left))?;
            let len = match stream.read(&mut buffer) {
                Ok(0) => anyhow::bail!("the stream ended after {received} bytes"),
                Ok(len) => len,
                Err(error) if is_timeout(&error) => break,
                Err(error) => return Err(error).with_context(|| format!("after {received} bytes")),
            };
            let now = Instant::now();
            if now > until {
                break;
            }
            let bytes = &buffer[..len];
            if let Some(at) = self.pattern.mismatch(*received, bytes) {
                anyhow::bail!("the byte at {} is wrong", *received + at as u64);
            }
            *received += len as u64;
            last = now;
            if let Some(every) = self.every {
                let interval = (now - start).as_nanos() / every.as_nanos().max(1);
                let interval = usize::try_from(interval).unwrap_or_default();
                if interval >= outcome.samples.len() {
                    outcome.samples.resize(interval + 1, 0);
                }
                outcome.samples[interval] += len as u64;
            }
        }
        Ok(last)
    }
}

/// Returns the time left, if any.
fn time_left(until: Instant) -> Option<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    (!left.is_zero()).then_some(left)
}

fn is_timeout(error: &std::io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goodput_is_of_the_bytes_that_arrived() {
        let flow = FlowOutcome {
            bytes: 2_500_000,
            seconds: 2.0,
            ..FlowOutcome::default()
        };
        assert!((flow.goodput() - 10.0).abs() < 1e-9);
        assert!(FlowOutcome::default().goodput().abs() < 1e-9);
    }

    #[test]
    fn a_time_is_left_or_over() {
        assert_eq!(time_left(Instant::now()), None);
        assert!(time_left(Instant::now() + PATIENCE).is_some());
        assert_eq!(Load::Bytes(1).time(), PATIENCE);
    }
}
