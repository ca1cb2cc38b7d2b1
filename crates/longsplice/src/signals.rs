//! Receives the signals that a daemon handles.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Request by a signal.
pub(crate) enum Request {
    Stop,
    Reload,
    Reopen,
}

/// Signals that a daemon handles.
#[derive(Debug)]
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
    user1: Signal,
}

impl Signals {
    /// Handles the signals from now on.
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Signals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
            user1: signal(SignalKind::user_defined1())?,
        })
    }

    /// Returns the next request. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Request {
        tokio::select! {
            _ = self.terminate.recv() => Request::Stop,
            _ = self.interrupt.recv() => Request::Stop,
            _ = self.hangup.recv() => Request::Reload,
            _ = self.user1.recv() => Request::Reopen,
        }
    }

    /// Returns at SIGTERM or SIGINT; leaves the other signals to [`Signals::next`]. Cancel-safe.
    pub(crate) async fn stop_requested(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }

    /// Returns at once, with true if SIGTERM or SIGINT has come since the last look.
    pub(crate) async fn is_stop_requested(&mut self) -> bool {
        tokio::select! {
            biased;
            () = self.stop_requested() => true,
            () = std::future::ready(()) => false,
        }
    }
}
