//! Measures on this machine from which length on a splice pays.

use std::{
    io,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use longsplice_engine::{Ended, FlowHandle, Pair, Side, Splicer, Until, policy::SplicePolicy};
use rustix::time::{ClockId, clock_gettime};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    time::{Instant, timeout_at},
};

/// Length that is used until it is measured, or if it cannot be measured.
const UNMEASURED: u64 = 64 << 10;
/// Bounds of the result. A shorter reply arrives with its head; a larger result is noise, because no known machine is
/// that slow to splice.
const BOUNDS: (u64, u64) = (16 << 10, 512 << 10);

/// Length of a short reply, which costs what any reply costs, …
const SHORT: usize = 4 << 10;
/// … and of a long one, which costs what its bytes cost.
const LONG: usize = 1 << 20;
/// Number of rounds; the median counts.
const ROUNDS: usize = 7;
/// Number of rounds that are discarded: the first splices of a process meet cold caches.
const WARM_UP: usize = 2;
/// Longest delay of readiness by the measurement. Unfinished rounds are left out.
const PATIENCE: Duration = Duration::from_millis(100);

/// Number of bytes from which on a splice pays, if the configuration does not set it.
#[derive(Debug, Default)]
pub(crate) struct Threshold(
    /// Holds 0 if it is not measured.
    AtomicU64,
);

/// Costs of a splice and of the relay on this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Measured {
    /// CPU time of a splice and of the way back.
    pub splice: Duration,
    /// CPU time that a relayed mebibyte costs more than a spliced one.
    pub relay_mebibyte: Duration,
    /// Length in bytes from which on a splice pays; 16 KiB to 512 KiB.
    pub bytes: u64,
    /// Number of rounds that count.
    pub rounds: usize,
}

impl Threshold {
    /// Returns the length, in bytes; 64 KiB if it is not measured.
    pub(crate) fn bytes(&self) -> u64 {
        match self.0.load(Ordering::Relaxed) {
            0 => UNMEASURED,
            bytes => bytes,
        }
    }

    /// Measures the length once with a few real splices over the loopback, in at most 100 ms. If that fails, the length
    /// stays unchanged, and the log tells why.
    pub(crate) async fn measure(&self, splicer: &Splicer) {
        let health = splicer.health();
        if self.0.load(Ordering::Relaxed) != 0 || !health.splice_available {
            return;
        }
        let measured = match health.interfaces.iter().any(|name| name == "lo") {
            true => measure(splicer, PATIENCE).await,
            false => Err(io::Error::other(
                "the loopback is not among the interfaces that are watched",
            )),
        };
        match measured {
            Ok(measured) => {
                self.0.store(measured.bytes, Ordering::Relaxed);
                tracing::info!(
                    bytes = measured.bytes,
                    splice_us = measured.splice.as_micros() as u64,
                    relay_mebibyte_us = measured.relay_mebibyte.as_micros() as u64,
                    rounds = measured.rounds,
                    "a splice pays for replies of which this much goes past the sockets"
                );
            }
            Err(error) => tracing::info!(
                %error, bytes = self.bytes(),
                "what a splice costs here could not be measured: it is taken to pay from this length on (splice_min sets it)"
            ),
        }
    }
}

/// Measures for no longer than `patience`. Fails if no splice is possible over the loopback, a socket failed, or not
/// even one round ended in time (`TimedOut`).
pub(crate) async fn measure(splicer: &Splicer, patience: Duration) -> io::Result<Measured> {
    let deadline = Instant::now() + patience;
    let late = || io::Error::new(io::ErrorKind::TimedOut, "the machine is too busy");
    let mut bench = timeout_at(deadline, Bench::new()).await.map_err(|_| late())??;
    let mut rounds: Vec<Round> = Vec::with_capacity(WARM_UP + ROUNDS);
    while rounds.len() < WARM_UP + ROUNDS {
        match timeout_at(deadline, bench.round(splicer)).await {
            Ok(Ok((back, round))) => {
                bench = back;
                rounds.push(round);
            }
            Ok(Err(error)) if rounds.is_empty() => return Err(error),
            Err(_) if rounds.is_empty() => return Err(late()),
            _ => break,
        }
    }
    rounds.drain(..WARM_UP.min(rounds.len().saturating_sub(1)));
    let median = |of: fn(&Round) -> Duration| {
        let mut all: Vec<Duration> = rounds.iter().map(of).collect();
        all.sort_unstable();
        all.get(all.len() / 2).copied().unwrap_or_default()
    };
    let typical = Round {
        relayed: [median(|r| r.relayed[0]), median(|r| r.relayed[1])],
        spliced: [median(|r| r.spliced[0]), median(|r| r.spliced[1])],
    };
    Ok(Measured::of(&typical, rounds.len()))
}

/// CPU times of one round, for a short and a long transfer.
#[derive(Debug, Clone, Copy)]
struct Round {
    relayed: [Duration; 2],
    spliced: [Duration; 2],
}

impl Measured {
    fn of(round: &Round, rounds: usize) -> Measured {
        let length = (LONG - SHORT) as u128;
        let splice = round.spliced[0].saturating_sub(round.relayed[0]);
        let bytes_of = |[short, long]: [Duration; 2]| long.saturating_sub(short);
        // The work of the two ends is in both values, and cancels out.
        let saved = bytes_of(round.relayed).saturating_sub(bytes_of(round.spliced));
        // The result errs toward the relay: between interfaces a relayed byte costs twice as much as over the loopback.
        let bytes = splice.as_nanos() * length / saved.as_nanos().max(1);
        Measured {
            splice,
            relay_mebibyte: saved.mul_f64((1 << 20) as f64 / length as f64),
            bytes: u64::try_from(bytes).unwrap_or(u64::MAX).clamp(BOUNDS.0, BOUNDS.1),
            rounds,
        }
    }
}

/// Two connections over the loopback, with both their ends.
struct Bench {
    client: TcpStream,
    far_client: TcpStream,
    server: TcpStream,
    far_server: TcpStream,
}

impl Bench {
    async fn new() -> io::Result<Bench> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let there = listener.local_addr()?;
        let connection = async || {
            let near = TcpStream::connect(there).await?;
            let (far, peer) = listener.accept().await?;
            match near.local_addr()? == peer {
                true => Ok((near, far)),
                false => Err(io::Error::other("another process connected to the measurement")),
            }
        };
        let ((far_client, client), (server, far_server)) = (connection().await?, connection().await?);
        Ok(Bench {
            client,
            far_client,
            server,
            far_server,
        })
    }

    async fn round(mut self, splicer: &Splicer) -> io::Result<(Bench, Round)> {
        let relayed = [self.relay(SHORT).await?, self.relay(LONG).await?];
        let mut spliced = [Duration::ZERO; 2];
        for (time, length) in spliced.iter_mut().zip([SHORT, LONG]) {
            (self, *time) = self.splice(splicer, length).await?;
        }
        Ok((self, Round { relayed, spliced }))
    }

    /// Relays `length` bytes from server to client as a session does. Returns the CPU time of all four ends.
    async fn relay(&mut self, length: usize) -> io::Result<Duration> {
        let (bytes, mut got) = (vec![0; length], vec![0; length]);
        let before = cpu_time();
        let (sent, passed, read) = tokio::join!(
            self.far_server.write_all(&bytes),
            pass(&mut self.server, &mut self.client, length),
            self.far_client.read_exact(&mut got),
        );
        let time = cpu_time().saturating_sub(before);
        sent?;
        passed?;
        read?;
        Ok(time)
    }

    /// Splices the pair, sends `length` bytes past the sockets, and takes the pair back. Returns the CPU time.
    async fn splice(mut self, splicer: &Splicer, length: usize) -> io::Result<(Bench, Duration)> {
        let (bytes, mut got) = (vec![0; length], vec![0; length]);
        let handle = FlowHandle::default();
        let before = cpu_time();
        let pair = Pair::new(self.client, self.server)
            .with_splice(SplicePolicy::Now)
            .with_length(length as u64)
            .with_handle(&handle)
            .for_trial();
        let carried = splicer.splice(pair, Until::bytes_from(Side::Server, length as u64));
        let far = async {
            // Send only after the splice is made: earlier bytes would be relayed.
            handle.spliced().await;
            let (sent, read) = tokio::join!(
                self.far_server.write_all(&bytes),
                self.far_client.read_exact(&mut got)
            );
            sent.and(read.map(drop))
        };
        let (ended, far) = tokio::join!(carried, far);
        let time = cpu_time().saturating_sub(before);
        far?;
        match ended? {
            // Do not check how many bytes were spliced: the last segment meets the trap, and is relayed. That may be
            // all of a short reply.
            Ended::Returned(back) if back.spliced => {
                let (client, server) = (back.client, back.server);
                Ok((
                    Bench {
                        client,
                        server,
                        ..self
                    },
                    time,
                ))
            }
            _ => Err(io::Error::other(
                "connections over the loopback cannot be spliced",
            )),
        }
    }
}

/// Reads and writes `length` bytes, in pieces as large as a session's.
async fn pass(from: &mut TcpStream, to: &mut TcpStream, length: usize) -> io::Result<()> {
    let mut piece = vec![0; 64 << 10];
    let mut left = length;
    while left > 0 {
        let n = from.read(&mut piece).await?;
        if n == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        to.write_all(piece.get(..n).unwrap_or_default()).await?;
        left = left.saturating_sub(n);
    }
    Ok(())
}

/// Returns the CPU time of this process, including the kernel's work for it.
fn cpu_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ProcessCPUTime)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use longsplice_engine::{OpenError, SplicerConfig};

    use super::*;

    fn round(relayed: [u64; 2], spliced: [u64; 2]) -> Round {
        Round {
            relayed: relayed.map(Duration::from_micros),
            spliced: spliced.map(Duration::from_micros),
        }
    }

    #[test]
    fn a_splice_saves_what_it_costs_at_the_threshold() {
        // A splice costs 100 µs; 1,020 KiB cost 600 µs relayed, and 90 µs spliced.
        let measured = Measured::of(&round([10, 610], [110, 200]), 5);
        assert_eq!(measured.splice, Duration::from_micros(100));
        assert_eq!(measured.bytes, 100 * (1020 << 10) / 510);
        assert_eq!(measured.relay_mebibyte, Duration::from_micros(512));
        assert_eq!(measured.rounds, 5);
        let for_nothing = Measured::of(&round([10, 10], [20, 20]), 1);
        assert_eq!(for_nothing.bytes, BOUNDS.1, "a relay for nothing");
        let slower = Measured::of(&round([10, 100], [20, 200]), 1);
        assert_eq!(slower.bytes, BOUNDS.1, "spliced bytes that cost more");
        let free = Measured::of(&round([10, 100], [5, 5]), 1);
        assert_eq!(free.bytes, BOUNDS.0, "a splice for nothing");
    }

    #[tokio::test]
    async fn where_nothing_can_be_spliced_or_in_time_it_stays_as_it_is() {
        let why = OpenError::Unsupported("a test".into());
        let splicer = Splicer::relay_only(SplicerConfig::default(), why);
        let threshold = Threshold::default();
        // This splicer relays forever, so the splice is never made in time, as on a busy machine.
        let began = Instant::now();
        let error = measure(&splicer, Duration::from_millis(20)).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut, "{error}");
        assert!(began.elapsed() < Duration::from_secs(5));
        assert!(measure(&splicer, Duration::ZERO).await.is_err());
        threshold.measure(&splicer).await;
        assert_eq!(threshold.bytes(), UNMEASURED);
    }

    #[tokio::test]
    async fn what_a_session_would_pass_is_passed() {
        let mut bench = Bench::new().await.unwrap();
        for length in [1, SHORT, LONG] {
            bench.relay(length).await.unwrap();
        }
    }
}
