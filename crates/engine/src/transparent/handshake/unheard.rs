//! Holds sockets that neither end has heard of.

use std::{io, os::fd::OwnedFd};

use longsplice_dataplane::PerSide;
use longsplice_repair::{State, close_silently, options, tcp_info, unread};
use socket2::{SockFilter, SockRef};

use super::{opening::Opening, sockets::build};
use crate::Splicer;

/// Classic BPF: `ret #0`, which discards a segment before the socket sees it.
const DISCARD: SockFilter = SockFilter::new(6, 0, 0, 0);

/// Sockets of both legs that neither end has heard of. If they are dropped they are closed in silence, and a router is left
/// of the node; a client that has said something to its socket is reset.
#[derive(Debug, Default)]
pub(super) struct Unheard(Option<PerSide<OwnedFd>>);

impl Unheard {
    /// Builds the sockets of both legs, and awaits what the client says. A killed process resets both ends.
    pub(super) fn build(
        splicer: &Splicer,
        syn: &Opening,
        answer: &Opening,
        is_timed: bool,
    ) -> io::Result<Unheard> {
        let unheard = Unheard(Some(build(syn, answer, is_timed)?));
        if let Some(both) = &unheard.0 {
            for socket in both.as_ref() {
                options::set_reset_on_close(socket, true)?;
            }
            splicer.context.rules.await_segments(&both.client)?;
        }
        Ok(unheard)
    }

    /// Returns false if the client's socket has received nothing so far.
    pub(super) fn are_reached(&self) -> bool {
        let segments = |both: &PerSide<OwnedFd>| tcp_info(&both.client).map(|info| info.segs_in());
        // A socket that cannot be asked is trusted.
        let has_none = |both| segments(both).is_ok_and(|segments| segments == 0);
        !self.0.as_ref().is_some_and(has_none)
    }

    /// Takes both sockets out, which are the caller's then.
    pub(super) fn take(&mut self) -> Option<PerSide<OwnedFd>> {
        self.0.take()
    }

    /// Closes both sockets in silence. Returns true if it keeps them, because the client's has acknowledged something of its
    /// client.
    pub(super) fn withdraw(&mut self) -> bool {
        let Some(both) = &self.0 else {
            return false;
        };
        // The server acknowledges all that comes from now on.
        let deaf = SockRef::from(&both.client).attach_filter(&[DISCARD]);
        if has_said_something(&both.client) {
            if deaf.is_ok()
                && let Err(error) = SockRef::from(&both.client).detach_filter()
            {
                tracing::warn!(%error, "a client is not heard: it will be reset");
            }
            return true;
        }
        for socket in self.0.take().into_iter().flatten() {
            if let Err(error) = close_silently(socket) {
                tracing::warn!(%error, "an end of a connection that was not taken over is reset");
            }
        }
        false
    }
}

impl Drop for Unheard {
    fn drop(&mut self) {
        // The kernel resets the ends of those that it keeps: bytes were acknowledged.
        self.withdraw();
    }
}

fn has_said_something(client: &OwnedFd) -> bool {
    unread(client).is_ok_and(|bytes| bytes > 0)
        || tcp_info(client).is_ok_and(|info| info.state() == State::CloseWait)
}
