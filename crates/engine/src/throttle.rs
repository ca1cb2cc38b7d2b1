//! The rate limit of a pair while its sockets carry it. Spliced, the kernel half keeps the same account (bpf/rate.h), and it
//! goes there and back with the pair: a splice is no burst.

use std::time::Duration;

use longsplice_core::limit::{Rate, RateLimit};
use longsplice_dataplane::{Side, Slot, monotonic};

use crate::pump::Pump;

/// The account of one direction.
#[derive(Debug, Clone, Copy)]
struct Account {
    rate: Rate,
    /// See [`Rate`].
    paid: u64,
    /// Of the bytes that the pump has read.
    charged: u64,
}

impl Account {
    fn allowance(&self, now: u64) -> u64 {
        let free = self.rate.allowance(self.paid, now);
        if free < self.rate.worthwhile().into() {
            0
        } else {
            free
        }
    }
}

/// Both accounts of a pair.
#[derive(Debug)]
pub(crate) struct Throttle {
    accounts: [Option<Account>; 2],
}

impl Throttle {
    /// For a new pump. `paid` is of an earlier call.
    pub(crate) fn new(limit: RateLimit, paid: [u64; 2]) -> Throttle {
        let account = |(rate, paid): (Option<Rate>, u64)| {
            rate.map(|rate| Account {
                rate,
                paid,
                charged: 0,
            })
        };
        Throttle {
            accounts: [(limit.client, paid[0]), (limit.server, paid[1])].map(account),
        }
    }

    /// The limits, as they were given.
    pub(crate) fn limit(&self) -> RateLimit {
        let [client, server] = self.accounts.map(|account| account.map(|a| a.rate));
        RateLimit { client, server }
    }

    /// When what has passed is worth its time, by side.
    pub(crate) fn paid(&self) -> [u64; 2] {
        self.accounts.map(|account| account.map_or(0, |a| a.paid))
    }

    /// Lets the pump read what may pass now.
    pub(crate) fn allow(&self, pump: &mut Pump) {
        for (side, account) in self.of_sides() {
            pump.set_allowance(side, account.allowance(monotonic()));
        }
    }

    /// Charges what the pump has read; to the slot, while the kernel half forwards on the same account.
    pub(crate) fn charge(&mut self, pump: &Pump, slot: Option<&Slot>) {
        for side in Side::BOTH {
            let Some(account) = &mut self.accounts[side.index()] else {
                continue;
            };
            let bytes = pump.bytes(side) - account.charged;
            account.charged += bytes;
            match slot {
                None => account.paid = account.rate.charge(account.paid, monotonic(), bytes),
                Some(slot) => {
                    slot.charge(side, account.rate, monotonic(), bytes);
                    account.paid = slot.paid(side);
                }
            }
        }
    }

    /// In what time the pump may read on where it does not: at once, if what it waits for has become free since it was told.
    pub(crate) fn wait(&self, pump: &Pump) -> Option<Duration> {
        self.of_sides()
            .filter(|(side, _)| pump.is_held_back(*side))
            .map(|(_, account)| {
                account
                    .rate
                    .wait(account.paid, monotonic(), account.rate.worthwhile())
            })
            .min()
            .map(Duration::from_nanos)
    }

    /// How long so many bytes of a side take, where it is limited; at most a minute.
    pub(crate) fn time_for(&self, side: Side, bytes: impl FnOnce() -> u32) -> Duration {
        let rate = self.accounts[side.index()].map(|account| account.rate);
        let seconds = rate.map_or(0.0, |rate| f64::from(bytes()) / f64::from(rate.per_second()));
        Duration::from_secs_f64(seconds.min(60.0))
    }

    /// Whether there is a rate for what a side sends, and which, in bytes per second.
    pub(crate) fn rate_of(&self, side: Side) -> Option<u64> {
        self.accounts[side.index()].map(|account| account.rate.per_second().into())
    }

    /// From now on the kernel half keeps the accounts.
    pub(crate) fn hand_over(&self, slot: &Slot) {
        for side in Side::BOTH {
            let account = self.accounts[side.index()];
            slot.set_rate(side, account.map(|a| a.rate), account.map_or(0, |a| a.paid));
        }
    }

    /// Takes the accounts back.
    pub(crate) fn take_back(&mut self, slot: &Slot) {
        for side in Side::BOTH {
            if let Some(account) = &mut self.accounts[side.index()] {
                account.paid = slot.paid(side);
            }
        }
    }

    fn of_sides(&self) -> impl Iterator<Item = (Side, &Account)> {
        Side::BOTH
            .into_iter()
            .filter_map(|side| Some((side, self.accounts[side.index()].as_ref()?)))
    }
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::AsyncWriteExt,
        net::{TcpListener, TcpStream},
    };

    use super::*;

    /// Both ends of a connection over the loopback.
    async fn connection() -> [TcpStream; 2] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        [near, listener.accept().await.unwrap().0]
    }

    #[tokio::test]
    async fn a_pump_that_is_held_back_is_told_when_to_go_on() {
        let ([mut client, near], [far, _server]) = (connection().await, connection().await);
        client.write_all(&[7; 5_000]).await.unwrap();
        near.readable().await.unwrap();
        let mut pump = Pump::new(near, far);
        let rate = Rate::new(1_000_000).unwrap().with_burst(1_000);
        let mut throttle = Throttle::new(RateLimit::each(rate), [0; 2]);
        throttle.allow(&mut pump);
        assert_eq!(throttle.wait(&pump), None, "it may read");
        pump.step(1).unwrap();
        throttle.charge(&pump, None);
        assert_eq!(pump.bytes(Side::Client), 1_000);
        let wait = throttle.wait(&pump).expect("it may not");
        assert!(wait <= Duration::from_millis(1), "{wait:?}");
        // However late the question comes: nobody has told the pump that it may.
        std::thread::sleep(2 * wait);
        assert_eq!(throttle.wait(&pump), Some(Duration::ZERO));
        throttle.allow(&mut pump);
        assert!(!pump.is_held_back(Side::Client));
        // What was paid for goes with a pair that comes back.
        let again = Throttle::new(throttle.limit(), throttle.paid());
        assert_eq!((again.limit(), again.paid()), (throttle.limit(), throttle.paid()));
    }
}
