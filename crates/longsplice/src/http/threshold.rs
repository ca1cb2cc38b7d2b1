//! From which length on a reply is worth a splice: measured on this machine.

use std::{
    io,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use longsplice_engine::{Ended, Pair, Side, Splicer, Until, policy::SplicePolicy};
use nix::time::{ClockId, clock_gettime};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    time::timeout,
};

/// Until it is measured, and where it cannot be.
const UNMEASURED: u64 = 64 << 10;
/// Below, a reply is there with its head; above, no machine is that slow to splice.
const BOUNDS: (u64, u64) = (16 << 10, 1 << 20);

/// A reply of this length costs what any reply costs, …
const SHORT: usize = 4 << 10;
/// … and one of this length what its bytes cost.
const LONG: usize = 256 << 10;
/// How often each is carried; the median counts.
const ROUNDS: usize = 9;
/// More than all of it takes on a slow machine.
const PATIENCE: Duration = Duration::from_secs(5);

/// From which length on replies are spliced where the configuration does not say it.
#[derive(Debug, Default)]
pub struct Threshold(
    /// 0: not measured.
    AtomicU64,
);

/// What a splice and the relay cost here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Measured {
    /// Of a splice and the way back, in CPU time.
    pub splice: Duration,
    /// To relay a mebibyte, in CPU time.
    pub relay_mebibyte: Duration,
    /// The length at which both cost the same; 16 KiB to 1 MiB.
    pub bytes: u64,
}

impl Threshold {
    /// The length, in bytes; 64 KiB where it is not measured.
    pub fn bytes(&self) -> u64 {
        match self.0.load(Ordering::Relaxed) {
            0 => UNMEASURED,
            bytes => bytes,
        }
    }

    /// Measures it once, with a few real splices over the loopback, which takes some 50 ms. Where that is not possible it stays as
    /// it is.
    pub async fn measure(&self, splicer: &Splicer) {
        if self.0.load(Ordering::Relaxed) != 0 || !splicer.health().can_splice {
            return;
        }
        match timeout(PATIENCE, measure(splicer)).await {
            Ok(Ok(measured)) => {
                self.0.store(measured.bytes, Ordering::Relaxed);
                tracing::info!(
                    bytes = measured.bytes,
                    splice_us = measured.splice.as_micros() as u64,
                    relay_mebibyte_us = measured.relay_mebibyte.as_micros() as u64,
                    "replies are spliced from this length on"
                );
            }
            Ok(Err(error)) => tracing::info!(
                %error, bytes = self.bytes(),
                "what a splice costs here could not be measured: replies are spliced from this length on (splice_from sets it)"
            ),
            Err(_) => tracing::warn!(
                bytes = self.bytes(),
                "measuring what a splice costs took too long"
            ),
        }
    }
}

/// Measures.
///
/// # Errors
/// No splice is possible over the loopback, or a socket failed.
pub async fn measure(splicer: &Splicer) -> io::Result<Measured> {
    let mut bench = Bench::new().await?;
    let mut costs = Vec::with_capacity(3);
    for (policy, length) in [
        (SplicePolicy::Never, SHORT),
        (SplicePolicy::Never, LONG),
        (SplicePolicy::Now, SHORT),
    ] {
        let mut times = Vec::with_capacity(ROUNDS);
        for _ in 0..ROUNDS {
            let time;
            (bench, time) = bench.carry(splicer, policy, length).await?;
            times.push(time);
        }
        times.sort_unstable();
        costs.push(times[ROUNDS / 2]);
    }
    Ok(Measured::of(costs[0], costs[1], costs[2]))
}

impl Measured {
    /// `short` and `long` are relayed, `spliced` is as long as `short`.
    fn of(short: Duration, long: Duration, spliced: Duration) -> Measured {
        let splice = spliced.saturating_sub(short);
        // Half of it is the two ends': they copy as often as the relay does.
        let relay = long.saturating_sub(short) / 2;
        let length = (LONG - SHORT) as u128;
        let bytes = splice.as_nanos() * length / relay.as_nanos().max(1);
        Measured {
            splice,
            relay_mebibyte: relay.mul_f64((1 << 20) as f64 / length as f64),
            bytes: u64::try_from(bytes).unwrap_or(u64::MAX).clamp(BOUNDS.0, BOUNDS.1),
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
                false => Err(io::Error::other("somebody else connected to the measurement")),
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

    /// Carries so many bytes from server to client; the CPU time that takes, of all four ends.
    async fn carry(
        mut self,
        splicer: &Splicer,
        policy: SplicePolicy,
        length: usize,
    ) -> io::Result<(Bench, Duration)> {
        let bytes = vec![0; length];
        let mut got = vec![0; length];
        let before = cpu_time()?;
        let pair = Pair::new(self.client, self.server).with_splice(policy);
        // In this order: the bytes come when the splice has begun.
        let (ended, sent, read) = tokio::join!(
            splicer.splice(pair, Until::bytes_from(Side::Server, length as u64)),
            self.far_server.write_all(&bytes),
            self.far_client.read_exact(&mut got),
        );
        let time = cpu_time()?.saturating_sub(before);
        sent?;
        read?;
        match ended? {
            Ended::Returned(back) if back.spliced == (policy == SplicePolicy::Now) => {
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

fn cpu_time() -> io::Result<Duration> {
    Ok(clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID)?.into())
}

#[cfg(test)]
mod tests {
    use longsplice_engine::{OpenError, SplicerConfig};

    use super::*;

    #[test]
    fn both_cost_the_same_at_the_threshold() {
        let us = Duration::from_micros;
        // 100 µs for a splice, 126 µs for 252 KiB, of which the ends have half.
        let measured = Measured::of(us(10), us(10 + 252), us(110));
        assert_eq!(measured.splice, us(100));
        assert_eq!(measured.bytes, 100 * (252 << 10) / 126);
        assert_eq!(
            Measured::of(us(10), us(10), us(20)).bytes,
            BOUNDS.1,
            "a relay for nothing"
        );
        assert_eq!(
            Measured::of(us(10), us(20), us(5)).bytes,
            BOUNDS.0,
            "a splice for nothing"
        );
    }

    #[tokio::test]
    async fn where_nothing_can_be_spliced_it_stays_as_it_is() {
        let why = OpenError::Unsupported("a test".into());
        let splicer = Splicer::relay_only(SplicerConfig::default(), why);
        let threshold = Threshold::default();
        assert!(measure(&splicer).await.is_err());
        threshold.measure(&splicer).await;
        assert_eq!(threshold.bytes(), UNMEASURED);
    }
}
