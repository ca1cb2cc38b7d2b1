//! Keeps connections to servers that one client has authenticated: all that is sent over them is that client's (RFC 4559).

use longsplice_engine::Tie;
use tokio::{net::TcpStream, time::Instant};

use super::{Lease, Tenure, Upstream, idle::is_quiet};
use crate::resources::{IdleDescriptor, Resources};

/// Idle connections of one client's session, which no other session gets: one for each upstream at most. When it is dropped,
/// they are closed.
#[derive(Debug, Default)]
pub(crate) struct Private(Vec<Held>);

#[derive(Debug)]
struct Held {
    stream: TcpStream,
    tenure: Tenure,
    tie: Option<Tie>,
    since: Instant,
    /// `None` while the session, whose share has one for a server, has no other connection to a server.
    descriptor: Option<IdleDescriptor>,
}

impl Private {
    /// Keeps a connection until the next request. The conditions are those of [`Tenure::give_back`]. It still counts as
    /// one of its server's connections, and has that place for the next request.
    pub(crate) fn keep(&mut self, tenure: Tenure, stream: TcpStream, tie: Option<Tie>) {
        self.0.push(Held {
            stream,
            tenure,
            tie,
            since: Instant::now(),
            descriptor: None,
        });
    }

    /// Returns the connection to a server of this upstream, or, without an upstream, to the client's original destination.
    /// Closes those that serve no more, and those for which no descriptor can be spared beside the session's next
    /// connection.
    pub(crate) fn take(&mut self, upstream: Option<&Upstream>) -> Option<Lease> {
        self.0.retain(Held::serves);
        let nth = self.0.iter().position(|held| held.tenure.is_of(upstream));
        let lease = nth.map(|nth| self.0.swap_remove(nth).lease());
        self.0.retain_mut(|held| {
            if held.descriptor.is_none() {
                held.descriptor = Resources::of_this_process().try_idle();
            }
            held.descriptor.is_some()
        });
        lease
    }
}

impl Held {
    /// Returns whether it may serve another request: its server takes some, and it is open and quiet.
    fn serves(&self) -> bool {
        let timeout = self.tenure.idle_timeout();
        self.tenure.is_welcome()
            && timeout.is_none_or(|timeout| self.since.elapsed() < timeout)
            && is_quiet(&self.stream)
    }

    fn lease(mut self) -> Lease {
        self.tenure.use_again();
        Lease {
            stream: self.stream,
            reused: true,
            tie: self.tie.filter(|tie| !tie.is_gone()),
            is_private: true,
            tenure: self.tenure,
            tried: Vec::new(),
        }
    }
}
