//! Parts the life of a pair into periods in which it streams, and others in which it carries little.

use std::time::Duration;

use super::LegSample;

/// Holds the present period of a pair: it streams, or it carries no more than an initial window in each round trip. A stream
/// behind a pause is judged like one of a new connection, for little is known of it, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Period {
    streams: bool,
    /// Age of the pair when the period began, and the bytes relayed before.
    began: Duration,
    before: u64,
}

impl Default for Period {
    /// Begins with a stream: most connections that ever stream do so at once.
    fn default() -> Self {
        Period {
            streams: true,
            began: Duration::ZERO,
            before: 0,
        }
    }
}

impl Period {
    /// Returns true if the pair streams.
    #[must_use]
    pub fn streams(&self) -> bool {
        self.streams
    }

    /// Notes the samples of a pair of this age, with `bytes` relayed in both directions together. Returns the age of its
    /// present period, and the bytes relayed in it.
    pub fn note(
        &mut self,
        client: &LegSample,
        server: &LegSample,
        age: Duration,
        bytes: u64,
    ) -> (Duration, u64) {
        let path = client.base_rtt().saturating_add(server.base_rtt());
        let streams = client.sends_bulk(path) || server.sends_bulk(path);
        if streams != self.streams {
            *self = Period {
                streams,
                began: age,
                before: bytes,
            };
        }
        (age.saturating_sub(self.began), bytes.saturating_sub(self.before))
    }
}
