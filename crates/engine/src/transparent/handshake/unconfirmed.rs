//! Keeps the sockets of connections whose client has not acknowledged the answer yet. The server hears of such a connection
//! when the client does, as without the node: a SYN with a forged source gets no further than to a server alone, which
//! may keep no state for it (SYN cookies, RFC 4987 section 3.6).

use std::{
    io,
    net::{SocketAddr, TcpStream as StdStream},
    os::fd::OwnedFd,
    time::{Duration, Instant},
};

use longsplice_core::seq::Seq;
use longsplice_dataplane::Side;
use tokio::net::TcpStream;

use super::{
    Handshakes, PATIENCE, SWEEP,
    following::Following,
    pending::{Ends, Pending, Stage, Unconfirmed},
    step::{Opened, Taken},
};
use crate::{
    Pair,
    kernel::packet::{FLAG_RST, Segment},
};

/// Maximum number of connections whose client has not acknowledged the answer.
pub(super) const MOST_UNCONFIRMED: usize = 4_096;

impl Handshakes {
    /// Returns the number of connections whose client has not acknowledged the answer yet.
    pub fn unconfirmed(&self) -> usize {
        self.pending.unconfirmed()
    }

    /// Takes a segment of a client that has not acknowledged the answer yet.
    pub(super) fn take_unconfirmed(&mut self, segment: &Following, at: u64) -> io::Result<Option<Taken>> {
        let began = Instant::now();
        let ends = segment.ends;
        let Some(Stage::Unconfirmed(waiting)) = self.pending.get_mut(&ends).map(|known| &mut known.stage)
        else {
            return Ok(None);
        };
        if waiting.is_reset_by(segment) {
            let reset = reset_of(ends, waiting.seq);
            self.pending.remove(&ends);
            self.send_marked(ends.1, &reset)?;
            return Ok(None);
        }
        if !waiting.is_confirmed_by(segment) {
            return Ok(None);
        }
        let sent_at = waiting.answered.sent_at.take().filter(|_| segment.is_bare);
        let round_trip = sent_at.and_then(|sent| at.checked_sub(sent));
        if let Some(time) = round_trip {
            let time = Duration::from_nanos(time);
            waiting.answered.handle.note_round_trip(Side::Client, time);
        }
        if !waiting.sockets.are_reached() {
            if waiting.acknowledged_at.is_none() {
                waiting.acknowledged_at = Some(began);
                self.looks.begin(ends);
            }
            return Ok(None);
        }
        self.confirm(ends, began)
    }

    /// Tells the server of a client that has acknowledged the answer, and returns the connection. `began`: the moment of
    /// the look at that.
    pub(super) fn confirm(&mut self, ends: Ends, began: Instant) -> io::Result<Option<Taken>> {
        let Some(Stage::Unconfirmed(waiting)) = self.pending.get(&ends).map(|known| &known.stage) else {
            return Ok(None);
        };
        let acknowledgement = waiting.answered.acknowledgement.clone();
        let built_in = waiting.built_in;
        // If it cannot be sent, the server repeats its answer, and the client this segment.
        self.send_marked(ends.1, &acknowledgement.unwrap_or_default())?;
        self.splicer
            .context
            .stats
            .take_over
            .add(built_in + began.elapsed());
        self.open(ends)
    }

    /// Returns a connection whose client has acknowledged the answer.
    fn open(&mut self, ends: Ends) -> io::Result<Option<Taken>> {
        let Some(Stage::Unconfirmed(waiting)) = self.pending.set_stage(&ends, Stage::Passed) else {
            return Ok(None);
        };
        let Unconfirmed {
            mut answered,
            mut sockets,
            step,
            ..
        } = *waiting;
        answered.sent_at = None;
        let handle = answered.handle.clone();
        self.pending.set_stage(&ends, Stage::Answered(answered));
        if let Some(known) = self.pending.get_mut(&ends) {
            known.since = Instant::now();
        }
        let Some(both) = sockets.take() else {
            return Ok(None);
        };
        self.splicer.context.rules.forget_segments(&both.client);
        let stream = |fd: OwnedFd| TcpStream::from_std(StdStream::from(fd));
        let pair = Pair::new(stream(both.client)?, stream(both.server)?).with_one_clock();
        self.splicer.prepare_client(&pair.client)?;
        Ok(Some(Taken::Opened(Opened { pair, step, handle })))
    }

    /// Waits until a client that has not acknowledged the answer has had its time. Cancel-safe.
    pub(super) async fn unconfirmed_are_due(&self) {
        match self.pending.unconfirmed() {
            0 => std::future::pending().await,
            _ => tokio::time::sleep_until((self.tended + SWEEP).into()).await,
        }
    }

    /// Lets connections pass through whose client has not acknowledged the answer for a while.
    pub(super) fn tend_unconfirmed(&mut self) -> Vec<Taken> {
        if self.tended.elapsed() < SWEEP {
            return Vec::new();
        }
        self.tended = Instant::now();
        self.pass_if(|waiting| waiting.answered.built_at.elapsed() >= PATIENCE)
    }

    /// Lets all connections pass through whose client has not acknowledged the answer yet: each of them returns as
    /// [`Taken::Unconfirmed`], or is open, if its client has just said something.
    pub fn pass_unconfirmed(&mut self) -> Vec<Taken> {
        self.pass_if(|_| true)
    }

    fn pass_if(&mut self, is_over: impl Fn(&Unconfirmed) -> bool) -> Vec<Taken> {
        let is_over = |known: &Pending| matches!(&known.stage, Stage::Unconfirmed(w) if is_over(w));
        let over: Vec<Ends> = self
            .pending
            .iter()
            .filter(|(_, known)| is_over(known))
            .map(|(ends, _)| *ends)
            .collect();
        over.into_iter().filter_map(|ends| self.pass(ends)).collect()
    }

    /// Lets a connection pass through whose client has not acknowledged the answer; opens it if the client has.
    pub(super) fn pass(&mut self, ends: Ends) -> Option<Taken> {
        let known = self.pending.get_mut(&ends)?;
        let Stage::Unconfirmed(waiting) = &mut known.stage else {
            return None;
        };
        if waiting.sockets.withdraw() {
            let acknowledgement = waiting.answered.acknowledgement.clone().unwrap_or_default();
            let opened = self
                .send_marked(ends.1, &acknowledgement)
                .and_then(|()| self.open(ends));
            return opened.unwrap_or_else(|error| {
                tracing::debug!(%error, "a connection could not be opened");
                None
            });
        }
        known.since = Instant::now();
        self.pending.set_stage(&ends, Stage::Passed);
        let (client, server) = ends;
        Some(Taken::Unconfirmed { client, server })
    }
}

/// Returns the reset by which a client refuses the answer of a server.
fn reset_of((client, server): (SocketAddr, SocketAddr), seq: Seq) -> Vec<u8> {
    let reset = Segment {
        from: client,
        to: server,
        seq,
        ack: Seq::new(0),
        flags: FLAG_RST,
        window: 0,
        timestamps: None,
        class: 0,
    };
    reset.bytes()
}
