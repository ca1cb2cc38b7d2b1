//! Limits how long a relay may be idle, and probes its ends meanwhile.

use std::{future::poll_fn, io, mem, os::fd::AsFd, pin::Pin, task::Poll, time::Duration};

use longsplice_core::idle::{IdlePolicy, Keepalive};
use longsplice_dataplane::PerSide;
use longsplice_repair::unacknowledged;
use socket2::{SockRef, TcpKeepalive};
use tokio::{
    net::TcpStream,
    time::{Instant, Sleep, sleep_until},
};

/// Idle time after which keep-alive is switched on: shorter or busy connections do not pay for it.
const QUIET: Duration = Duration::from_secs(1);

/// Makes the kernel probe the other end of an idle connection.
///
/// # Errors
/// None is known for a TCP socket.
pub fn keep_alive(socket: impl AsFd, keepalive: &Keepalive) -> io::Result<()> {
    let parameters = TcpKeepalive::new()
        .with_time(keepalive.idle)
        .with_interval(keepalive.interval)
        .with_retries(keepalive.probes.into());
    SockRef::from(&socket).set_tcp_keepalive(&parameters)
}

/// Measures how long a relay has been idle.
#[derive(Debug)]
pub(crate) struct Idleness {
    policy: IdlePolicy,
    /// Time of the last activity.
    last: Instant,
    /// Bytes that the ends had not acknowledged when the limit was last reached.
    queued: PerSide<u32>,
    /// True if keep-alive is on, or is not wanted.
    probes: bool,
    /// True while a relay is under way.
    counts: bool,
    /// Timer, made at the first wait. It may fire too early, and is moved then: most waits end long before it.
    sleep: Option<Pin<Box<Sleep>>>,
}

impl Idleness {
    pub(crate) fn new(policy: IdlePolicy, now: Instant) -> Idleness {
        Idleness {
            policy,
            last: now,
            queued: PerSide::default(),
            probes: policy.keepalive.is_none(),
            counts: false,
            sleep: None,
        }
    }

    /// Returns the policy.
    pub(crate) fn policy(&self) -> IdlePolicy {
        self.policy
    }

    /// Notes activity.
    pub(crate) fn note(&mut self, now: Instant) {
        self.last = now;
    }

    /// Begins a relay, with sockets in an unknown state.
    pub(crate) fn begin(&mut self, now: Instant) {
        self.last = now;
        self.counts = true;
        self.probes = self.policy.keepalive.is_none();
    }

    /// Ends the relay: it is over, or makes way for a splice.
    pub(crate) fn end(&mut self) {
        self.counts = false;
    }

    /// Switches keep-alive on when it is due. Returns true if the relay has been idle for too long.
    ///
    /// A socket takes no more bytes until much of its send queue is acknowledged, which a slow reader may not do within the
    /// limit. So a queue that is another one than a limit ago is activity, and an end that reads nothing is given two limits.
    pub(crate) fn is_over(&mut self, now: Instant, sockets: PerSide<&TcpStream>) -> bool {
        let idle = now.duration_since(self.last);
        if let (false, Some(keepalive)) = (self.probes, self.policy.keepalive)
            && idle >= QUIET
        {
            self.probes = true;
            for socket in sockets {
                if let Err(error) = keep_alive(socket, &keepalive) {
                    tracing::debug!(%error, "an end of an idle connection is not probed");
                }
            }
        }
        if self.policy.limit.is_none_or(|limit| idle < limit) {
            return false;
        }
        // An end whose queue cannot be read has none.
        let queued = PerSide::from_fn(|side| unacknowledged(sockets[side]).unwrap_or(0));
        let has_moved = mem::replace(&mut self.queued, queued) != queued;
        if has_moved {
            self.last = now;
        }
        !has_moved
    }

    /// Waits until [`Idleness::is_over`] is to be called again. Cancel-safe.
    pub(crate) async fn wait(&mut self) {
        let next = [(!self.probes).then_some(QUIET), self.policy.limit];
        let Some(after) = next.into_iter().flatten().min().filter(|_| self.counts) else {
            return std::future::pending().await;
        };
        let at = self.last + after;
        let sleep = self.sleep.get_or_insert_with(|| Box::pin(sleep_until(at)));
        poll_fn(|cx| {
            if sleep.deadline() > at {
                sleep.as_mut().reset(at);
            }
            while sleep.as_mut().poll(cx).is_ready() {
                if sleep.deadline() >= at {
                    return Poll::Ready(());
                }
                sleep.as_mut().reset(at);
            }
            Poll::Pending
        })
        .await;
    }
}

#[cfg(test)]
mod tests {
    use longsplice_core::policy::SplicePolicy;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;
    use crate::{Ended, OpenError, Pair, Splicer, SplicerConfig, Until, relay::loopback::connection};

    #[tokio::test]
    async fn a_pair_in_which_nothing_passes_is_reset_and_one_that_talks_is_kept() {
        let why = OpenError::Unsupported("a test".into());
        let splicer = Splicer::relay_only(SplicerConfig::default(), why);
        let ([mut client, a], [mut server, b]) = (connection().await, connection().await);
        let limit = Duration::from_millis(600);
        let pair = Pair::new(a, b)
            .with_splice(SplicePolicy::Never)
            .with_idle(IdlePolicy {
                limit: Some(limit),
                keepalive: None,
            });
        let call = tokio::spawn(async move { splicer.splice(pair, Until::closed()).await });
        let mut last = Instant::now();
        for _ in 0..8 {
            tokio::time::sleep(limit / 4).await;
            // On a busy machine the test itself may be too late.
            let before = Instant::now();
            let passed = client.write_all(b"x").await.and(server.read_u8().await);
            match passed {
                Ok(_) => last = before,
                Err(_) => assert!(last.elapsed() >= limit, "it had said something in time"),
            }
        }
        let Ended::Closed(summary) = call.await.unwrap().unwrap() else {
            panic!("it has no condition under which it would come back");
        };
        assert!(summary.idle && summary.reset, "{summary:?}");
        assert!(last.elapsed() >= limit);
        for end in [&mut client, &mut server] {
            let error = end.read_u8().await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
        }
    }

    #[tokio::test]
    async fn probes_are_switched_on_when_nothing_has_passed_for_a_while() {
        let ([_far, a], [_other, b]) = (connection().await, connection().await);
        let keepalive: Keepalive = "idle=7s,interval=3s,probes=2".parse().unwrap();
        let policy = IdlePolicy {
            limit: None,
            keepalive: Some(keepalive),
        };
        let now = Instant::now();
        let mut idle = Idleness::new(policy, now);
        idle.begin(now);
        assert!(!idle.is_over(now, PerSide::new(&a, &b)));
        assert!(!SockRef::from(&a).keepalive().unwrap());
        assert!(!idle.is_over(now + QUIET, PerSide::new(&a, &b)));
        for socket in PerSide::new(&a, &b) {
            let socket = SockRef::from(socket);
            let times = (
                socket.tcp_keepalive_time().unwrap(),
                socket.tcp_keepalive_interval().unwrap(),
            );
            assert_eq!(times, (Duration::from_secs(7), Duration::from_secs(3)));
            assert!(socket.keepalive().unwrap() && socket.tcp_keepalive_retries().unwrap() == 2);
        }
        // There is nothing more to wait for.
        assert!(tokio::time::timeout(2 * QUIET, idle.wait()).await.is_err());
    }
}
