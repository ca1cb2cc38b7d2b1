//! Ends a call: closes the sockets, or gives them back.

use std::io;

use longsplice_core::reason::RelayReason;
use longsplice_dataplane::{Mode, PerSide, Side};
use longsplice_repair::options;
use tokio::{net::TcpStream, time::Instant};

use super::{
    exit::Exit,
    looks::Look,
    pair::{Session, Woken},
};
use crate::{
    api::{Before, Ended, Returned, Summary, until::Trap},
    flow::Flow,
    kernel::socket::{close_in_silence, cookies},
};

impl Session<'_> {
    /// Gives the sockets to the caller, once all that was read is written.
    pub(super) async fn give_back(mut self: Box<Self>, why: Trap) -> io::Result<Ended> {
        // An end may have no room for these bytes until its own data is read: forward its payload as long as bytes are
        // held, but no end of a stream.
        self.pump.hold_nothing();
        for side in Side::BOTH {
            self.pump.set_end(side, Some(0));
        }
        let mut look = Look::returned();
        self.idle.begin(Instant::now());
        while !self.pump.is_empty() {
            let now = Instant::now();
            if self
                .idle
                .is_over(now, PerSide::from_fn(|side| self.pump.socket(side)))
            {
                return Ok(self.conclude(Exit::Idle, None));
            }
            if self.entry.is_asked() {
                self.entry.refuse(RelayReason::EndedBeforePolicy);
            }
            let settled = self.step().and_then(|_| self.try_resolve(now));
            let until = match settled {
                Ok(settled) => (!settled).then(|| look.next(now)),
                Err(exit) => return Ok(self.conclude(exit, None)),
            };
            if !self.pump.is_empty() && self.wait(until).await == Woken::Stop {
                return Ok(self.conclude(Exit::stopped(), None));
            }
            if self.entry.is_to_end() {
                return Ok(self.conclude(Exit::asked(), None));
            }
        }
        // Called for its side effect: it counts the relayed bytes.
        let _ = self.summary(self.spliced, false);
        if self.spliced_here {
            self.stats().returned(why);
        }
        let passed = self.traps.passed(&self.pump);
        let half_closed = PerSide::from_fn(|side| self.half_closed[side] || self.pump.passed_eof(side));
        let PerSide { client, server } = self.pump.take_sockets();
        if let Some(flow) = self.flow.take() {
            self.context
                .unpaired
                .keep(flow, PerSide::new(&client, &server), Instant::now());
        }
        let (earlier, shown) = (self.entry.earlier(), self.entry.info());
        let shown = PerSide::new(shown.to_server.bytes, shown.to_client.bytes);
        let before = Before {
            id: self.id(),
            legs: self.legs,
            since: self.entry.since(),
            // The records count retransmitted bytes, too.
            counted: PerSide::from_fn(|side| shown[side].max(earlier[side] + passed[side])),
            spliced: self.spliced,
            rate_limit: self.throttle.limit(),
            paid: self.throttle.paid(),
            half_closed,
            cookies: match self.cookies {
                Some(known) => known,
                None => cookies(&client, &server)?,
            },
            // Whatever else brings a pair back is activity.
            active: match why {
                Trap::Idle | Trap::Elapsed => self.active,
                _ => Instant::now(),
            },
            returned: Instant::now(),
            round_trips: self.round_trips,
        };
        Ok(Ended::Returned(Returned {
            client,
            server,
            why,
            passed,
            bytes_spliced: self.traps.past(),
            spliced: self.spliced_here,
            relay_reason: (!self.spliced_here)
                .then(|| self.entry.reason().unwrap_or(RelayReason::EndedBeforePolicy)),
            id: self.id(),
            splice: self.splice,
            detach: self.detach,
            outstanding: self.outstanding,
            idle: self.idle.policy(),
            handle: self.handle,
            is_trial: self.is_trial,
            acceleration: self.acceleration,
            splice_min: self.splice_min,
            before,
        }))
    }

    /// Closes both sockets as the connection ended, then releases the flow, if it was registered.
    pub(super) fn conclude(mut self: Box<Self>, exit: Exit, flow: Option<Flow>) -> Ended {
        let flow = flow.or(self.flow.take());
        let reset = match &exit {
            // Both FINs bypassed this socket and were acknowledged; its error only answers a late segment, so this is no
            // reset.
            Exit::Broken(_) if flow.as_ref().is_some_and(Flow::is_complete) => false,
            Exit::Broken(error) => {
                tracing::debug!(flow = %self.id(), %error, "connection broken: both ends are reset");
                true
            }
            Exit::Idle => {
                tracing::debug!(flow = %self.id(), "nothing has passed for too long: both ends are reset");
                true
            }
            _ => false,
        };
        let mut summary = self.summary(self.spliced, reset);
        summary.idle = matches!(exit, Exit::Idle);
        let sockets = self.pump.take_sockets();
        let flow = match flow {
            Some(flow) if !reset && flow.went_by() => {
                self.leave(flow, sockets);
                return self.concluded(summary);
            }
            other => other,
        };
        if !reset {
            for socket in &sockets {
                if let Err(error) = options::set_reset_on_close(socket, false) {
                    tracing::debug!(%error, "cannot close in order");
                }
            }
        }
        match flow {
            // The sockets still have to send their FINs.
            Some(flow) if !reset && flow.is_mapped() => {
                self.context.unpaired.keep(flow, sockets.as_ref(), Instant::now());
                drop(sockets);
            }
            flow => {
                // Close the sockets first: while the flow is registered, its egress program translates their resets.
                drop(sockets);
                match flow {
                    Some(flow) if reset => flow.end_by_reset(),
                    other => drop(other),
                }
            }
        }
        self.concluded(summary)
    }

    fn concluded(&self, summary: Summary) -> Ended {
        if let Some(reason) = summary.relay_reason {
            self.stats().relayed(reason);
        }
        Ended::Closed(summary)
    }

    /// Leaves a finished flow to its records, which answer retransmissions. The sockets are closed in silence: the
    /// streams bypassed them, and a FIN of theirs would come too early.
    fn leave(&self, flow: Flow, sockets: PerSide<TcpStream>) {
        if flow.mode() != Mode::Replaced {
            // If a packet has just woken the sockets, they carry on where the streams ended.
            if let Err(flow) = flow.release_finished() {
                return self
                    .context
                    .unpaired
                    .keep(*flow, sockets.as_ref(), Instant::now());
            }
        }
        for socket in sockets {
            close_in_silence(socket);
        }
    }

    pub(super) fn summary(&self, spliced: bool, reset: bool) -> Summary {
        let relayed = self.pump.bytes(Side::Client) + self.pump.bytes(Side::Server);
        self.stats().relay_bytes.add(relayed);
        let passed = self.traps.passed(&self.pump);
        let reason = self.entry.reason().unwrap_or(RelayReason::EndedBeforePolicy);
        Summary {
            id: self.id(),
            bytes_to_server: passed.client,
            bytes_to_client: passed.server,
            bytes_spliced: self.traps.past(),
            idle: false,
            replaced: false,
            spliced,
            relay_reason: (!spliced).then_some(reason),
            reset,
        }
    }
}
