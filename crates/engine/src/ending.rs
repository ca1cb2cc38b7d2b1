//! How a call ends: the sockets are closed, or given back.

use std::io;

use longsplice_core::reason::RelayReason;
use longsplice_dataplane::Side;
use longsplice_repair::options;
use tokio::time::Instant;

use crate::{
    api::{Before, Ended, Returned, Summary},
    driver::{Driver, Over, Woken},
    flow::Flow,
    pair::cookies,
    until::Trap,
};

impl Driver<'_> {
    /// Gives the sockets to the caller, once what was read is written.
    pub(crate) async fn give_back(mut self, why: Trap) -> io::Result<Ended> {
        for side in Side::BOTH {
            let bytes = self.pump.bytes(side);
            self.pump.set_limit(side, Some(bytes));
            self.pump.set_end(side, Some(bytes));
        }
        while !self.pump.is_empty() {
            if let Err(over) = self.step() {
                return Ok(self.conclude(over, None));
            }
            if !self.pump.is_empty() && self.wait(None).await == Woken::Stop {
                return Ok(self.conclude(Over::stopped(), None));
            }
            if self.entry.is_to_end() {
                return Ok(self.conclude(Over::asked(), None));
            }
        }
        // Counts what was relayed.
        let _ = self.summary(self.spliced, false);
        if self.spliced_here {
            self.stats().returned(why);
        }
        let passed = self.traps.passed(&self.pump);
        let [client, server] = self.pump.take_sockets();
        if let Some(flow) = self.flow.take() {
            self.splicer.mapped.keep(flow, [&client, &server], Instant::now());
        }
        let before = Before {
            id: self.id(),
            legs: self.legs,
            spliced: self.spliced,
            paid: self.throttle.paid(),
            cookies: match self.cookies {
                Some(known) => known,
                None => cookies(&client, &server)?,
            },
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
            rate_limit: self.throttle.limit(),
            handle: self.handle,
            is_trial: self.is_trial,
            before,
        }))
    }

    /// Closes both sockets as the connection ended, then lets go of the flow, if it was registered.
    pub(crate) fn conclude(mut self, over: Over, flow: Option<Flow>) -> Ended {
        let flow = flow.or(self.flow.take());
        let reset = match &over {
            // A socket that the streams went past, FINs and all, said something more to an end that was gone.
            Over::Broken(_) if flow.as_ref().is_some_and(Flow::is_complete) => false,
            Over::Broken(error) => {
                tracing::debug!(flow = %self.id(), %error, "connection broken: both ends are reset");
                true
            }
            _ => false,
        };
        let summary = self.summary(self.spliced, reset);
        let sockets = self.pump.take_sockets();
        if !reset {
            for socket in &sockets {
                if let Err(error) = options::set_reset_on_close(socket, false) {
                    tracing::debug!(%error, "cannot close in order");
                }
            }
        }
        match flow {
            // The sockets still have to say goodbye.
            Some(flow) if !reset && flow.is_mapped() => {
                self.splicer
                    .mapped
                    .keep(flow, [&sockets[0], &sockets[1]], Instant::now());
                drop(sockets);
            }
            flow => {
                // While the flow is registered its egress program puts the resets in place.
                drop(sockets);
                drop(flow);
            }
        }
        if let Some(reason) = summary.relay_reason {
            self.stats().relayed(reason);
        }
        Ended::Closed(summary)
    }

    pub(crate) fn summary(&self, spliced: bool, reset: bool) -> Summary {
        let relayed = self.pump.bytes(Side::Client) + self.pump.bytes(Side::Server);
        self.stats().relay_bytes.add(relayed);
        let [to_server, to_client] = self.traps.passed(&self.pump);
        let reason = self.entry.reason().unwrap_or(RelayReason::EndedBeforePolicy);
        Summary {
            id: self.id(),
            bytes_to_server: to_server,
            bytes_to_client: to_client,
            bytes_spliced: self.traps.past(),
            spliced,
            relay_reason: (!spliced).then_some(reason),
            reset,
        }
    }
}
