//! Looks whether the segments of a client reach its socket. A firewall of this host may drop them on input, behind the rules
//! that have seen them: connection tracking does not know them. Then the connection passes through, before its server has
//! heard of a client.

use std::{
    cmp::Reverse,
    collections::BinaryHeap,
    time::{Duration, Instant},
};

use super::{
    Handshakes,
    pending::{Ends, Stage},
    step::Taken,
};

/// Time from a client's acknowledgement to the first look: the segment is on its way from the rules to the socket.
const FIRST: Duration = Duration::from_millis(1);

/// Time after which a socket that has received nothing is given up. A processor that others take away, too, is back by then.
const LONGEST: Duration = Duration::from_secs(1);

/// Looks at sockets that have not received what their client has sent, the next one first.
#[derive(Debug, Default)]
pub(super) struct Looks(BinaryHeap<Reverse<Look>>);

/// Plans a look. Looks are in the order of their time.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Look {
    at: Instant,
    /// Time since the look before.
    wait: Duration,
    ends: Ends,
}

impl Looks {
    /// Plans the first look at a socket.
    pub(super) fn begin(&mut self, ends: Ends) {
        self.plan(ends, FIRST);
    }

    fn plan(&mut self, ends: Ends, wait: Duration) {
        let at = Instant::now() + wait;
        self.0.push(Reverse(Look { at, wait, ends }));
    }

    /// Waits until the next look is due. Cancel-safe.
    pub(super) async fn due(&self) {
        match self.0.peek() {
            Some(Reverse(next)) => tokio::time::sleep_until(next.at.into()).await,
            None => std::future::pending().await,
        }
    }

    /// Takes a look that is due.
    fn next(&mut self) -> Option<Look> {
        let is_due = self
            .0
            .peek()
            .is_some_and(|Reverse(next)| next.at <= Instant::now());
        let next = is_due.then(|| self.0.pop()).flatten();
        next.map(|Reverse(look)| look)
    }
}

impl Handshakes {
    /// Looks at the sockets that have received nothing yet: opens the connections of those that have received something, and
    /// passes those through that were given up ([`Taken::Undelivered`]).
    pub(super) fn look_at_sockets(&mut self) -> Vec<Taken> {
        let mut seen = Vec::new();
        while let Some(look) = self.looks.next() {
            seen.extend(self.look_at(&look));
        }
        seen
    }

    fn look_at(&mut self, look: &Look) -> Option<Taken> {
        let Some(Stage::Unconfirmed(waiting)) = self.pending.get(&look.ends).map(|known| &known.stage) else {
            return None;
        };
        let acknowledged_at = waiting.acknowledged_at?;
        if waiting.sockets.are_reached() {
            return self.confirm(look.ends, Instant::now()).unwrap_or_else(|error| {
                tracing::debug!(%error, "a server has not heard of its client: the ends try again");
                None
            });
        }
        if acknowledged_at.elapsed() < LONGEST {
            self.looks.plan(look.ends, 2 * look.wait);
            return None;
        }
        let answer = waiting.packet.clone();
        match self.pass(look.ends)? {
            Taken::Unconfirmed { client, server } => {
                // The client acknowledges the answer once more, and the server hears that. Connection tracking sees both.
                if let Err(error) = self.splicer.let_in(&answer) {
                    tracing::debug!(%error, "the server repeats its answer itself");
                }
                Some(Taken::Undelivered { client, server })
            }
            opened => Some(opened),
        }
    }
}
