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
use longsplice_dataplane::{PerSide, Side};
use longsplice_repair::{State, close_silently, options, tcp_info, unread};
use socket2::{SockFilter, SockRef};
use tokio::net::TcpStream;

use super::{
    Handshakes, PATIENCE, SWEEP,
    following::Following,
    opening::{Opening, RST},
    pending::{Answered, Ends, Pending, Stage},
    sockets::build,
    step::{Opened, Step, Taken},
};
use crate::{
    Pair, Splicer,
    kernel::packet::{FLAG_RST, Segment},
};

/// Maximum number of connections whose client has not acknowledged the answer.
pub(super) const MOST_UNCONFIRMED: usize = 4_096;

/// Classic BPF: `ret #0`, which discards a segment before the socket sees it.
const DISCARD: SockFilter = SockFilter::new(6, 0, 0, 0);

/// Sockets of both legs that neither end has heard of. If they are dropped they are closed in silence, and a router is left
/// of the node; a client that has said something to its socket is reset.
#[derive(Debug)]
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

    /// Closes both sockets in silence, unless the client's has acknowledged something of its client: then it returns both.
    fn withdraw(&mut self) -> Option<PerSide<OwnedFd>> {
        let both = self.0.take()?;
        // What comes from now on is acknowledged by the server.
        let deaf = SockRef::from(&both.client).attach_filter(&[DISCARD]);
        if has_said_something(&both.client) {
            if deaf.is_ok()
                && let Err(error) = SockRef::from(&both.client).detach_filter()
            {
                tracing::warn!(%error, "a client is not heard: it will be reset");
            }
            return Some(both);
        }
        for socket in both {
            if let Err(error) = close_silently(socket) {
                tracing::warn!(%error, "an end of a connection that was not taken over is reset");
            }
        }
        None
    }
}

impl Drop for Unheard {
    fn drop(&mut self) {
        // What it returns is reset: it has acknowledged bytes.
        drop(self.withdraw());
    }
}

fn has_said_something(client: &OwnedFd) -> bool {
    unread(client).is_ok_and(|bytes| bytes > 0)
        || tcp_info(client).is_ok_and(|info| info.state() == State::CloseWait)
}

/// A connection whose client has not acknowledged the answer yet.
#[derive(Debug)]
pub(super) struct Unconfirmed {
    pub(super) answered: Answered,
    pub(super) sockets: Unheard,
    pub(super) step: Step,
    /// Time in which the sockets were built, and the answer sent on.
    pub(super) built_in: Duration,
    /// Number of the client's first byte.
    pub(super) seq: Seq,
    /// Number by which it acknowledges the answer.
    pub(super) ack: Seq,
}

impl Unconfirmed {
    /// Returns true if a segment acknowledges the answer, and nothing beyond.
    fn is_confirmed_by(&self, segment: &Following) -> bool {
        segment.is_acknowledgement() && segment.ack == self.ack
    }

    /// Returns true if a segment has reset the client's socket.
    fn is_reset_by(&self, segment: &Following) -> bool {
        segment.flags & RST != 0 && segment.seq == self.seq
    }
}

impl Handshakes {
    /// Returns the number of connections whose client has not acknowledged the answer yet.
    pub fn unconfirmed(&self) -> usize {
        self.unconfirmed
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
            self.unconfirmed -= 1;
            self.send_marked(ends.1, &reset)?;
            return Ok(None);
        }
        if !waiting.is_confirmed_by(segment) {
            return Ok(None);
        }
        let acknowledgement = waiting.answered.acknowledgement.clone();
        let sent_at = waiting.answered.sent_at.filter(|_| segment.is_bare);
        let round_trip = sent_at.and_then(|sent| at.checked_sub(sent));
        if let Some(time) = round_trip {
            let time = Duration::from_nanos(time);
            waiting.answered.handle.note_round_trip(Side::Client, time);
        }
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
        let Some(known) = self.pending.get_mut(&ends) else {
            return Ok(None);
        };
        let Stage::Unconfirmed(waiting) = std::mem::replace(&mut known.stage, Stage::Passed) else {
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
        known.stage = Stage::Answered(answered);
        known.since = Instant::now();
        self.unconfirmed -= 1;
        let Some(both) = sockets.0.take() else {
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
        match self.unconfirmed {
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
    fn pass(&mut self, ends: Ends) -> Option<Taken> {
        let known = self.pending.get_mut(&ends)?;
        let Stage::Unconfirmed(waiting) = &mut known.stage else {
            return None;
        };
        if let Some(both) = waiting.sockets.withdraw() {
            waiting.sockets.0 = Some(both);
            let acknowledgement = waiting.answered.acknowledgement.clone().unwrap_or_default();
            let opened = self
                .send_marked(ends.1, &acknowledgement)
                .and_then(|()| self.open(ends));
            return opened.unwrap_or_else(|error| {
                tracing::debug!(%error, "a connection could not be opened");
                None
            });
        }
        known.stage = Stage::Passed;
        known.since = Instant::now();
        self.unconfirmed -= 1;
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
    };
    reset.bytes()
}
