//! Defines the states of a call. Each owns the pair, and its transition consumes it.

use std::sync::Arc;

use longsplice_core::{patience::Retry, seq::Seq};
use longsplice_dataplane::{Leg, PerSide};
use tokio::time::Instant;

use super::pair::Session;
use crate::{
    api::Ended,
    flow::Flow,
    kernel::{Kernel, held::HoldGuard},
};

/// State of a call. A relayed pair keeps room for the largest of them: what is large is in a box.
pub(super) enum State<'a> {
    Relaying(Relaying<'a>),
    Coupling(Coupling<'a>),
    Draining(Box<Draining<'a>>),
    Dormant(Box<Dormant<'a>>),
    Detached(Box<Detached<'a>>),
    Resuming(Box<Resuming<'a>>),
    /// The call is over.
    Over(Box<Ended>),
}

impl<'a> State<'a> {
    /// Delivers what the sockets hold.
    pub(super) fn draining(session: Box<Session<'a>>, flow: Flow) -> Self {
        State::Draining(Box::new(Draining { session, flow }))
    }

    /// Goes on with sockets that are awake.
    pub(super) fn resuming(session: Box<Session<'a>>, flow: Flow) -> Self {
        State::Resuming(Box::new(Resuming { session, flow }))
    }

    /// Ends the call.
    pub(super) fn over(ended: Ended) -> Self {
        State::Over(Box::new(ended))
    }
}

/// The process moves the bytes.
pub(super) struct Relaying<'a> {
    pub(super) session: Box<Session<'a>>,
}

/// A splice is due: the flow is registered, and its windows are coupled.
pub(super) struct Coupling<'a> {
    pub(super) session: Box<Session<'a>>,
}

/// Mode Drain: new segments pass, and the sockets deliver what they hold.
pub(super) struct Draining<'a> {
    pub(super) session: Box<Session<'a>>,
    pub(super) flow: Flow,
}

/// All segments pass, and the sockets are parked.
pub(super) struct Dormant<'a> {
    pub(super) session: Box<Session<'a>>,
    pub(super) flow: Flow,
    /// Numbers at which the sockets were parked.
    pub(super) cuts: PerSide<Seq>,
    /// Time at which the sockets are closed; `None`: only under pressure.
    pub(super) until: Option<Instant>,
    /// True if new sockets could not take the place of these.
    pub(super) keeps: bool,
    pub(super) retry: Retry,
}

/// All segments pass, the sockets are closed, and the call waits for a trap.
pub(super) struct Detached<'a> {
    pub(super) session: Box<Session<'a>>,
    pub(super) kernel: &'a Arc<Kernel>,
    pub(super) hold: HoldGuard,
    pub(super) serial: u32,
    pub(super) legs: PerSide<Leg>,
    /// Last byte that the pump had read, by side. A socket that had no room for data it was shown stays behind its cut:
    /// the two ends handle that part themselves.
    pub(super) copied: PerSide<Seq>,
    /// Bytes counted beyond that: sequence numbers tell no more than 2 GiB.
    pub(super) past: PerSide<u64>,
}

/// The sockets are awake, in mode Undrain or Track.
pub(super) struct Resuming<'a> {
    pub(super) session: Box<Session<'a>>,
    pub(super) flow: Flow,
}
