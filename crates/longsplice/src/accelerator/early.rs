//! Answers clients before their servers, as long as answers of servers are known to come back to this node.

use std::{
    io::ErrorKind,
    sync::Arc,
    time::{Duration, Instant},
};

use longsplice_engine::{
    Keepalive, Pair, Side, SourceAddress,
    handshake::{EarlyClient, KnownServers, Opened},
};
use longsplice_repair::options::set_traffic_class;
use parking_lot::Mutex;
use tokio::sync::Semaphore;

use super::Accelerator;

/// Largest number of clients that were answered early, and whose server has not answered yet: each may be a forged
/// address.
const MOST: usize = 1_024;

/// Longest time for a server to answer whose client was answered early.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Number of clients that are answered early while it is not known that answers come back. They do not where this node
/// translates addresses, or where another way leads back: each of these clients waits in vain, and is reset.
const MOST_UNPROVEN: u32 = 16;

/// Time for which the answer of a server counts as a proof that answers come back.
const PROVEN: Duration = Duration::from_secs(60);

/// Longest time for which a replaced daemon answers clients again that have not acknowledged an early answer: their SYN comes
/// again after one second and after three, and each may be a forged address.
const REPEATS: Duration = Duration::from_secs(4);

/// Time between two looks at them.
const LOOK: Duration = Duration::from_millis(50);

/// Limits how many clients are answered early.
#[derive(Debug)]
pub(super) struct EarlyAnswers {
    /// Number of clients that have not acknowledged the answer, once the daemon shuts down; `None` before.
    pub(super) unheard: Mutex<Option<usize>>,
    /// Permits for clients whose server has not answered yet.
    permits: Semaphore,
    way: Mutex<Way>,
}

/// Way of the answers of servers to this node.
#[derive(Debug, Default)]
struct Way {
    /// Time of the last answer.
    proven_at: Option<Instant>,
    /// Number of clients answered early since.
    unproven: u32,
}

impl Way {
    /// Counts a client that is answered early. Returns false if it must not be.
    fn admits(&mut self, now: Instant) -> bool {
        let is_proven = self
            .proven_at
            .is_some_and(|at| now.saturating_duration_since(at) < PROVEN);
        if !is_proven && self.unproven >= MOST_UNPROVEN {
            return false;
        }
        self.unproven += 1;
        if !is_proven && self.unproven == MOST_UNPROVEN {
            tracing::warn!(
                clients = MOST_UNPROVEN,
                "no server has answered since so many clients were answered early: others wait for their server's answer, until \
                 one comes (docs/accelerator.md#early-answers)"
            );
        }
        true
    }

    fn prove(&mut self, now: Instant) {
        *self = Way {
            proven_at: Some(now),
            unproven: 0,
        };
    }
}

impl EarlyAnswers {
    pub(super) fn new() -> EarlyAnswers {
        EarlyAnswers {
            unheard: Mutex::default(),
            permits: Semaphore::new(MOST),
            way: Mutex::default(),
        }
    }

    /// Counts a client that is to be answered early. Returns false if it must not be.
    pub(super) fn admits(&self) -> bool {
        self.permits.available_permits() > 0 && self.way.lock().admits(Instant::now())
    }

    /// Notes that the answer of a server has come to this node.
    pub(super) fn prove(&self) {
        self.way.lock().prove(Instant::now());
    }

    /// Returns the number of clients whose server has not answered yet.
    pub(super) fn connecting(&self) -> usize {
        MOST - self.permits.available_permits()
    }
}

impl Accelerator {
    /// Waits until clients that were answered early have acknowledged the answer, which only this process can repeat, for a
    /// few seconds at most. Call [`Accelerator::close`] at that time.
    pub(crate) async fn early_answers_are_heard(&self) {
        let until = Instant::now() + REPEATS;
        while *self.early.unheard.lock() != Some(0) && Instant::now() < until {
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Connects a client that was answered early to its server, in the client's name. If that fails, the client is reset.
    pub(super) async fn connect_early(self: Arc<Self>, early: EarlyClient, known: KnownServers) {
        let EarlyClient {
            client,
            step,
            handle,
            class,
        } = early;
        let permit = self.early.permits.try_acquire();
        let began = Instant::now();
        let connected = self
            .splicer()
            .connect_from(SourceAddress::ClientAndPort, step.server, &client, TIMEOUT)
            .await;
        let server = match connected {
            Ok(server) => server,
            Err(error) => {
                known.forget(step.server);
                // A refusal is an answer, too.
                if matches!(
                    error.kind(),
                    ErrorKind::ConnectionRefused | ErrorKind::ConnectionReset
                ) {
                    self.early.prove();
                }
                self.counts.note_early_failure();
                return tracing::debug!(client = %step.client, server = %step.server, %error, "answered early, and reset");
            }
        };
        let round_trip = began.elapsed();
        if let Err(error) = set_traffic_class(&server, class) {
            tracing::debug!(%error, "segments to a server have no DSCP");
        }
        handle.note_round_trip(Side::Server, round_trip);
        let pair = Pair::new(client, server);
        // A forged client is found by probes only.
        self.open(Opened { pair, step, handle }, Some(Keepalive::default()));
        drop(permit);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_are_answered_early_without_a_limit_while_answers_come_back() {
        let (mut way, start) = (Way::default(), Instant::now());
        for _ in 0..MOST_UNPROVEN {
            assert!(way.admits(start));
        }
        assert!(!way.admits(start));
        way.prove(start);
        for _ in 0..2 * MOST_UNPROVEN {
            assert!(way.admits(start + PROVEN / 2));
        }
        assert!(!way.admits(start + PROVEN), "so many have had no answer");
        way.prove(start + PROVEN);
        assert!(way.admits(start + 3 * PROVEN));
    }
}
