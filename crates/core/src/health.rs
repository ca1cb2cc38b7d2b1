//! Judges the health of a server by checks and by its connections, and readmits it.
//!
//! Times are spans since an origin that the caller keeps.

use std::{collections::VecDeque, net::IpAddr, time::Duration};

use crate::balance::FULL_SHARE;

/// State of a server by active checks (one every so often, on connections of their own).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Active {
    rise: u32,
    fall: u32,
    up: bool,
    checked: bool,
    /// Checks in a row that contradict `up`.
    against: u32,
}

impl Active {
    /// Makes the state of a server that is up, until the first check, which alone decides. Then `fall` checks in a row
    /// must fail to take it down, and `rise` must succeed to bring it up; each is taken to be at least 1.
    pub fn new(rise: u32, fall: u32) -> Active {
        Active {
            rise,
            fall,
            up: true,
            checked: false,
            against: 0,
        }
    }

    /// Returns the state of the same server under other rules.
    #[must_use]
    pub fn with_rules(self, rise: u32, fall: u32) -> Active {
        Active { rise, fall, ..self }
    }

    /// Notes a check; returns whether it took the server up or down.
    pub fn checked(&mut self, good: bool) -> bool {
        let first = !std::mem::replace(&mut self.checked, true);
        if good == self.up {
            self.against = 0;
            return false;
        }
        self.against = self.against.saturating_add(1);
        let needed = if self.up { self.fall } else { self.rise };
        if self.against < needed && !first {
            return false;
        }
        self.up = good;
        self.against = 0;
        true
    }

    /// Returns whether the server is up.
    pub fn is_up(&self) -> bool {
        self.up
    }
}

/// Rules by which failed connections take a server out, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PassiveRules {
    /// Number of failures in a row that take the server out; 0: never. Those of one client alone must go on for `period`.
    pub failures: u32,
    /// Time within which all of them must happen.
    pub period: Duration,
    /// Time for which the server is out the first time.
    pub ejection_time: Duration,
}

/// Limit of the doublings of the time out: to 32 times the first.
const MAX_DOUBLINGS: u32 = 5;

/// State of a server by its connections and requests.
///
/// A success ends a row of failures: a busy server with few failures among many requests stays. After its time out a server is on
/// trial: its first success clears it, its first failure takes it out for twice as long.
///
/// A failure may be the doing of the client that met it. Those of one client alone take the server out only once they have
/// gone on for a whole `period`, and on trial they never double its time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Passive {
    rules: PassiveRules,
    /// Times of the last failures in a row, at most `failures` of them, with the clients that may have caused them.
    row: VecDeque<(Duration, Option<IpAddr>)>,
    /// Time at which the row began; earlier failures than those of `row` may belong to it.
    since: Duration,
    out_until: Option<Duration>,
    doublings: u32,
}

impl Passive {
    /// Makes the state of a server that has not failed yet.
    pub fn new(rules: PassiveRules) -> Passive {
        Passive {
            rules,
            row: VecDeque::new(),
            since: Duration::ZERO,
            out_until: None,
            doublings: 0,
        }
    }

    /// Returns the state of the same server under other rules; if they differ, it is not out.
    #[must_use]
    pub fn with_rules(self, rules: PassiveRules) -> Passive {
        match rules == self.rules {
            true => self,
            false => Passive::new(rules),
        }
    }

    /// Notes a failure; returns for how long it takes the server out. `client` is the client that may have caused it; `None`
    /// if no client can.
    pub fn failed(&mut self, now: Duration, client: Option<IpAddr>) -> Option<Duration> {
        // A request that was under way when the server went out tells nothing new.
        if self.rules.failures == 0 || self.is_out(now) {
            return None;
        }
        let (on_trial, period) = (self.out_until.is_some(), self.rules.period);
        let is_old = |(then, _): &(Duration, _)| !on_trial && now.saturating_sub(*then) > period;
        while self.row.front().is_some_and(is_old) {
            self.row.pop_front();
        }
        if self.row.is_empty() {
            self.since = now;
        }
        self.row.push_back((now, client));
        let is_long_enough = self.row.len() >= self.rules.failures as usize;
        let goes_out = match self.is_of_one_client() {
            true => is_long_enough && now.saturating_sub(self.since) >= period,
            false => is_long_enough || on_trial,
        };
        if goes_out {
            if on_trial && !self.is_of_one_client() {
                self.doublings = (self.doublings + 1).min(MAX_DOUBLINGS);
            }
            return Some(self.put_out(now));
        }
        if self.row.len() > self.rules.failures as usize {
            self.row.pop_front();
        }
        None
    }

    /// Returns whether one client alone may have caused all failures of the row.
    fn is_of_one_client(&self) -> bool {
        let first = self.row.front().and_then(|(_, client)| *client);
        first.is_some() && self.row.iter().all(|(_, client)| *client == first)
    }

    /// Notes a success.
    pub fn succeeded(&mut self, now: Duration) {
        if !self.is_out(now) {
            self.row.clear();
            self.out_until = None;
            self.doublings = 0;
        }
    }

    /// Forgets all failures: another source says that the server works again.
    pub fn clear(&mut self) {
        *self = Passive::new(self.rules);
    }

    /// Returns whether the server is out.
    pub fn is_out(&self, now: Duration) -> bool {
        self.out_until(now).is_some()
    }

    /// Returns the end of the server's time out, if it is out.
    pub fn out_until(&self, now: Duration) -> Option<Duration> {
        self.out_until.filter(|until| now < *until)
    }

    /// Returns the time at which the server came back on trial, if it is on trial.
    pub fn on_trial_since(&self, now: Duration) -> Option<Duration> {
        self.out_until.filter(|until| *until <= now)
    }

    fn put_out(&mut self, now: Duration) -> Duration {
        self.row.clear();
        let time = self.rules.ejection_time.saturating_mul(1 << self.doublings);
        self.out_until = Some(now.saturating_add(time));
        time
    }
}

/// Returns the parts of its weight, 1 to [`FULL_SHARE`], that a server gets which came back at `since` and takes
/// `period` to warm up. It begins with a tenth: with nothing at all it would never warm up.
pub fn slow_start(since: Duration, now: Duration, period: Duration) -> u32 {
    let age = now.saturating_sub(since);
    if age >= period {
        return FULL_SHARE;
    }
    let part = u128::from(FULL_SHARE) * age.as_nanos() / period.as_nanos().max(1);
    u32::try_from(part)
        .unwrap_or(FULL_SHARE)
        .clamp(FULL_SHARE / 10, FULL_SHARE)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn s(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    #[test]
    fn the_first_check_decides_and_then_rows_do() {
        let mut server = Active::new(2, 3);
        assert!(server.is_up());
        assert!(server.checked(false) && !server.is_up());
        assert!(!server.checked(true) && !server.checked(false));
        assert!(!server.checked(true) && server.checked(true) && server.is_up());
        assert!(!server.checked(false) && !server.checked(false) && !server.checked(true));
        assert!(!server.checked(false) && !server.checked(false));
        assert!(server.checked(false) && !server.is_up());
    }

    const RULES: PassiveRules = PassiveRules {
        failures: 3,
        period: Duration::from_secs(10),
        ejection_time: Duration::from_secs(5),
    };

    #[test]
    fn failures_in_a_row_within_the_period_take_it_out() {
        let mut server = Passive::new(RULES);
        // The failures are too far apart.
        for t in [0, 6, 12, 18] {
            assert_eq!(server.failed(s(t), None), None);
        }
        server.succeeded(s(19));
        assert_eq!(server.failed(s(20), None), None);
        assert_eq!(server.failed(s(20), None), None);
        assert_eq!(server.failed(s(20), None), Some(s(5)));
        assert!(server.is_out(s(24)) && !server.is_out(s(25)));
        assert_eq!(
            [s(20), s(24), s(25)].map(|now| server.out_until(now)),
            [Some(s(25)), Some(s(25)), None]
        );
    }

    #[test]
    fn on_trial_one_failure_doubles_and_one_success_clears() {
        let mut server = Passive::new(RULES);
        let mut now = s(0);
        for _ in 0..3 {
            server.failed(now, None);
        }
        let mut times = Vec::new();
        for _ in 0..7 {
            // Failures of requests that were under way do not count.
            assert_eq!(server.failed(now, None), None);
            server.succeeded(now);
            assert!(server.is_out(now));
            now += s(1000);
            assert!(server.on_trial_since(now).is_some(), "{times:?}");
            times.push(server.failed(now, None).unwrap());
        }
        assert_eq!(times, [10, 20, 40, 80, 160, 160, 160].map(s));
        server.clear();
        assert!(!server.is_out(now));
        for _ in 0..3 {
            server.failed(now, None);
        }
        now += s(1000);
        server.succeeded(now);
        assert_eq!(server.on_trial_since(now), None);
        assert_eq!(server.failed(now, None), None);
    }

    #[test]
    fn no_failures_asked_for_means_never_out() {
        let mut server = Passive::new(PassiveRules { failures: 0, ..RULES });
        for t in 0..100 {
            assert_eq!(server.failed(s(t), None), None);
        }
    }

    fn client(n: u8) -> Option<IpAddr> {
        Some(IpAddr::from([192, 0, 2, n]))
    }

    #[test]
    fn failures_that_one_client_may_have_caused_need_a_second_client_or_a_whole_period() {
        let mut server = Passive::new(RULES);
        for t in [0, 1, 2, 3, 4, 5, 6, 7, 8, 9] {
            assert_eq!(server.failed(s(t), client(1)), None, "{t}");
        }
        assert!(server.row.len() <= 3, "{:?}", server.row);
        assert_eq!(server.failed(s(9), client(2)), Some(s(5)));
        // On trial, one client cannot double the time, and two can.
        for t in [14, 15, 16] {
            assert_eq!(server.failed(s(t), client(1)), None, "{t}");
        }
        assert_eq!(server.failed(s(16), client(2)), Some(s(10)));
        // On trial, one client's failures do take it out for the same time after a period.
        for t in [30, 31, 39] {
            assert_eq!(server.failed(s(t), client(1)), None, "{t}");
        }
        assert_eq!(server.failed(s(40), client(1)), Some(s(10)));
        server.clear();
        // A failure that no client can have caused is as good as a second client.
        assert_eq!(server.failed(s(60), client(1)), None);
        assert_eq!(server.failed(s(60), client(1)), None);
        assert_eq!(server.failed(s(60), None), Some(s(5)));
    }

    #[test]
    fn one_clients_failures_must_go_on_without_a_success_or_a_pause() {
        let mut server = Passive::new(RULES);
        for t in [0, 4, 8] {
            assert_eq!(server.failed(s(t), client(1)), None);
        }
        server.succeeded(s(9));
        for t in [10, 12, 14, 16, 18] {
            assert_eq!(server.failed(s(t), client(1)), None, "{t}");
        }
        // The row ends with a pause that is longer than the period.
        for t in [29, 30, 31, 32, 38] {
            assert_eq!(server.failed(s(t), client(1)), None, "{t}");
        }
        assert_eq!(server.failed(s(39), client(1)), Some(s(5)));
    }

    #[test]
    fn one_failure_that_is_asked_for_needs_two_clients_too() {
        let mut server = Passive::new(PassiveRules { failures: 1, ..RULES });
        for t in 0..5 {
            assert_eq!(server.failed(s(t), client(1)), None);
        }
        assert_eq!(server.failed(s(5), client(2)), Some(s(5)));
    }

    #[test]
    fn a_slow_start_grows_to_the_full_weight() {
        let share = |at: u64| slow_start(s(100), s(at), s(10));
        assert_eq!(share(100), FULL_SHARE / 10);
        assert_eq!(share(105), FULL_SHARE / 2);
        assert_eq!(share(110), FULL_SHARE);
        assert_eq!(share(99), FULL_SHARE / 10);
        assert_eq!(slow_start(s(0), s(0), s(0)), FULL_SHARE);
        for at in 100..110 {
            assert!(share(at) <= share(at + 1));
        }
    }
}
