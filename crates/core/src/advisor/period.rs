//! Parts the life of a pair into periods: a stream behind a lull is judged like one of a new connection, for little is known of
//! it, too.

use std::time::Duration;

use super::LegSample;

/// Time for which a pair carries little before a stream that follows is another one.
const LULL: Duration = Duration::from_secs(3);

/// Holds the present period of a pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Period {
    began: Mark,
    /// Begin of the present lull: the pair carries no more than an initial window in each round trip.
    lull: Option<Mark>,
}

/// Age of a pair, and the bytes relayed by then.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Mark {
    age: Duration,
    bytes: u64,
}

impl Period {
    /// Notes the samples of a pair of this age, with `bytes` relayed in both directions together. Returns the age of its
    /// present period, and the bytes relayed in it: of a lull that is long enough, or else of the stream with its pauses.
    pub fn note(
        &mut self,
        client: &LegSample,
        server: &LegSample,
        age: Duration,
        bytes: u64,
    ) -> (Duration, u64) {
        let now = Mark { age, bytes };
        let is_over = |lull: &Mark| age.saturating_sub(lull.age) >= LULL;
        let path = client.base_rtt().saturating_add(server.base_rtt());
        if client.sends_bulk(path) || server.sends_bulk(path) {
            if self.lull.take().as_ref().is_some_and(is_over) {
                self.began = now;
            }
        } else {
            self.lull.get_or_insert(now);
        }
        let began = self.lull.filter(is_over).unwrap_or(self.began);
        (age.saturating_sub(began.age), bytes.saturating_sub(began.bytes))
    }
}
