//! Limits the rate of a pair while its sockets carry it. While it is spliced, the kernel half keeps the same account
//! (bpf/limit.h). The account moves with the pair in both directions: a splice is no burst.

use std::time::Duration;

use longsplice_core::limit::{Rate, RateLimit};
use longsplice_dataplane::{PerSide, Side, Slot, monotonic};

use crate::relay::pump::Pump;

/// Account of one direction.
#[derive(Debug, Clone, Copy)]
struct Account {
    rate: Rate,
    /// Time at which all that passed is allowed: see [`Rate`].
    paid: u64,
    /// Number of the pump's bytes that are charged already.
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

/// Holds both accounts of a pair.
#[derive(Debug)]
pub(crate) struct Throttle {
    accounts: PerSide<Option<Account>>,
}

impl Throttle {
    /// Returns the accounts for a new pump. `paid` comes from an earlier call.
    pub(crate) fn new(limit: RateLimit, paid: PerSide<u64>) -> Throttle {
        let account = |(rate, paid): (Option<Rate>, u64)| {
            rate.map(|rate| Account {
                rate,
                paid,
                charged: 0,
            })
        };
        Throttle {
            accounts: PerSide::new(limit.client, limit.server).zip(paid).map(account),
        }
    }

    /// Returns the configured limits.
    pub(crate) fn limit(&self) -> RateLimit {
        let PerSide { client, server } = self.accounts.map(|account| account.map(|a| a.rate));
        RateLimit { client, server }
    }

    /// Returns the time at which the limit has allowed all that has passed, by side.
    pub(crate) fn paid(&self) -> PerSide<u64> {
        self.accounts.map(|account| account.map_or(0, |a| a.paid))
    }

    /// Lets the pump read the bytes that may pass now.
    pub(crate) fn allow(&self, pump: &mut Pump) {
        for (side, account) in self.of_sides() {
            pump.set_allowance(side, account.allowance(monotonic()));
        }
    }

    /// Charges the bytes that the pump has read; to the slot, while the kernel half forwards on the same account.
    pub(crate) fn charge(&mut self, pump: &Pump, slot: Option<&Slot>) {
        for side in Side::BOTH {
            let Some(account) = &mut self.accounts[side] else {
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

    /// Returns the time until a pump that is held back may read on: zero if it may by now and was not told yet.
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

    /// Returns the time that so many bytes of a side take under its limit; at most a minute.
    pub(crate) fn time_for(&self, side: Side, bytes: impl FnOnce() -> u32) -> Duration {
        let rate = self.accounts[side].map(|account| account.rate);
        let seconds = rate.map_or(0.0, |rate| f64::from(bytes()) / f64::from(rate.per_second()));
        Duration::from_secs_f64(seconds.min(60.0))
    }

    /// Returns the rate limit of a side's data, in bytes per second, if it has one.
    pub(crate) fn rate_of(&self, side: Side) -> Option<u64> {
        self.accounts[side].map(|account| account.rate.per_second().into())
    }

    /// Hands the accounts to the kernel half, which keeps them from now on.
    pub(crate) fn hand_over(&self, slot: &Slot) {
        for side in Side::BOTH {
            let account = self.accounts[side];
            slot.set_rate(side, account.map(|a| a.rate), account.map_or(0, |a| a.paid));
        }
    }

    /// Takes the accounts back.
    pub(crate) fn take_back(&mut self, slot: &Slot) {
        for side in Side::BOTH {
            if let Some(account) = &mut self.accounts[side] {
                account.paid = slot.paid(side);
            }
        }
    }

    fn of_sides(&self) -> impl Iterator<Item = (Side, &Account)> {
        Side::BOTH
            .into_iter()
            .filter_map(|side| Some((side, self.accounts[side].as_ref()?)))
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;

    use super::*;
    use crate::relay::loopback::connection;

    #[tokio::test]
    async fn a_pump_that_is_held_back_is_told_when_to_go_on() {
        let ([mut client, near], [far, _server]) = (connection().await, connection().await);
        client.write_all(&[7; 5_000]).await.unwrap();
        near.readable().await.unwrap();
        let mut pump = Pump::new(near, far);
        let rate = Rate::new(1_000_000).unwrap().with_burst(1_000);
        let mut throttle = Throttle::new(RateLimit::each(rate), PerSide::both(0));
        throttle.allow(&mut pump);
        assert_eq!(throttle.wait(&pump), None, "it may read");
        pump.step(1).unwrap();
        throttle.charge(&pump, None);
        assert_eq!(pump.bytes(Side::Client), 1_000);
        let wait = throttle.wait(&pump).expect("it may not");
        assert!(wait <= Duration::from_millis(1), "{wait:?}");
        // However late the call is, the pump still has to be told that it may read.
        std::thread::sleep(2 * wait);
        assert_eq!(throttle.wait(&pump), Some(Duration::ZERO));
        throttle.allow(&mut pump);
        assert!(!pump.is_held_back(Side::Client));
        // The account goes along with a pair that comes back.
        let again = Throttle::new(throttle.limit(), throttle.paid());
        assert_eq!((again.limit(), again.paid()), (throttle.limit(), throttle.paid()));
    }
}
