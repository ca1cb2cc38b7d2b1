//! Keeps idle connections to an upstream's servers, and closes them.

use std::{
    sync::{Arc, Weak, atomic::Ordering},
    time::Duration,
};

use tokio::{net::TcpStream, time};

use super::Roster;
use crate::upstream::{
    crew::Member,
    idle::{Owner, Settles},
    server::{Server, State},
};

/// Longest interval between two sweeps over idle connections.
const SWEEP: Duration = Duration::from_secs(1);

impl Roster {
    /// Keeps an idle connection, if its server still belongs to the upstream and is up.
    pub(in super::super) fn keep(
        self: &Arc<Self>,
        server: &Arc<Server>,
        stream: TcpStream,
        owner: Owner,
        settles: Option<Settles>,
    ) {
        let config = self.config();
        let present = {
            let inner = self.inner();
            inner.crew.members.iter().any(|m| Arc::ptr_eq(&m.server, server))
        };
        if !present || server.state(self.now()).0 != State::Up {
            return;
        }
        server.idle.put(stream, owner, settles, config.keep_idle);
        if !self.sweeping.swap(true, Ordering::SeqCst) {
            tokio::spawn(sweep(Arc::downgrade(self)));
        }
    }

    /// Closes idle connections of the server, so that a new one stays within `max_connections`.
    pub(in super::super) fn make_room(&self, server: &Server) {
        let inner = self.inner();
        let member = inner.crew.members.iter().find(|m| m.server.id() == server.id());
        if let Some(most) = member.and_then(|m| m.max_connections) {
            let open = server.open.load(Ordering::Relaxed);
            server.idle.shrink(most.saturating_sub(open) as usize);
        }
    }
}

/// Closes idle connections that are too old or were closed by their servers. Returns when none is left.
async fn sweep(roster: Weak<Roster>) {
    let mut pause = Duration::ZERO;
    loop {
        time::sleep(pause).await;
        let Some(roster) = roster.upgrade() else { return };
        let config = roster.config();
        pause = config.idle_timeout.clamp(Duration::from_millis(1), SWEEP);
        let idle = || {
            let inner = roster.inner();
            let count = |m: &Member| {
                m.server.idle.sweep(config.idle_timeout, config.keep_idle);
                m.server.idle.len() + m.server.idle.aside()
            };
            inner.crew.members.iter().map(count).sum::<usize>()
        };
        if idle() > 0 {
            continue;
        }
        roster.sweeping.store(false, Ordering::SeqCst);
        // Check again: a connection may have arrived before the flag was cleared.
        if idle() == 0 || roster.sweeping.swap(true, Ordering::SeqCst) {
            return;
        }
    }
}
