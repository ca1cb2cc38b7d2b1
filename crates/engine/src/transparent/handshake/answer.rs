//! Takes the answers of servers: the sockets of both legs are built from it and its SYN.

use std::{
    io,
    time::{Duration, Instant},
};

use longsplice_dataplane::{Side, monotonic};

use super::{
    Admission, Handshakes, PATIENCE, Step, StepAnswer, Taken,
    opening::Opening,
    pending::{Answered, Stage, Unconfirmed},
    sockets::{acknowledgement, confirmation},
    unconfirmed::MOST_UNCONFIRMED,
    unheard::Unheard,
};
use crate::{FlowHandle, services::rules::RulePacket};

impl Handshakes {
    pub(super) fn take_answer(
        &mut self,
        packet: &RulePacket,
        answer: Opening,
        mut admit: impl FnMut(&Step) -> Admission,
    ) -> io::Result<Option<Taken>> {
        let ends = (answer.to, answer.from);
        self.overdue.forget(ends);
        let unconfirmed = self.pending.unconfirmed();
        let Some(known) = self.pending.get_mut(&ends) else {
            self.splicer.let_in(packet)?;
            let (client, server) = ends;
            let is_alone = self.overflowed.is_none_or(|at| at.elapsed() >= PATIENCE);
            return Ok(is_alone.then_some(Taken::HalfSeen { client, server }));
        };
        if answer.ack != known.syn.seq + 1 {
            self.splicer.let_in(packet)?;
            return Ok(None);
        }
        match &mut known.stage {
            // The client has not heard the answer, or its acknowledgement is lost.
            Stage::Unconfirmed(waiting) => {
                let again = waiting.answered.again();
                self.send_marked(ends.0, &again)?;
                return Ok(None);
            }
            Stage::Answered(answered) => {
                match answered.acknowledgement.clone() {
                    Some(again) => self.send_marked(ends.1, &again)?,
                    // The socket that connects in the client's name waits for it.
                    None => {
                        self.servers.note(ends.1, answer.offer);
                        self.splicer.let_in(packet)?;
                    }
                }
                return Ok(None);
            }
            Stage::Asked | Stage::Passed => {}
        }
        let round_trip = packet.at.checked_sub(known.sent_at).map(Duration::from_nanos);
        let round_trip = round_trip.filter(|_| !known.repeated);
        // A further answer would be the repetition of this one.
        known.repeated = true;
        let step = Step {
            client: ends.0,
            server: ends.1,
            client_interface: known.interface,
            answer: Some(StepAnswer {
                interface: packet.ifindex,
                round_trip,
            }),
            has_unknown_options: answer.has_unknown(),
            is_known_server: self.servers.contains(ends.1),
            unconfirmed,
            window: known.syn.window.max(answer.window),
            is_beyond_limit: unconfirmed >= MOST_UNCONFIRMED,
        };
        if matches!(known.stage, Stage::Passed) {
            self.splicer.let_in(packet)?;
            return Ok(Some(Taken::Passed(step)));
        }
        if admit(&step) == Admission::PassThrough || step.is_beyond_limit || answer.only_passes {
            self.let_pass(packet, ends)?;
            return Ok(None);
        }
        let began = Instant::now();
        let confirmed = round_trip.and_then(|time| confirmation(packet, &known.syn, &answer, time));
        let sockets = match Unheard::build(&self.splicer, &known.syn, &answer, confirmed.is_some()) {
            Ok(sockets) => sockets,
            // The next answer would meet the same error: the client would wait in vain.
            Err(error) => return self.refuse(packet, ends, error).map(Some),
        };
        let handle = FlowHandle::default();
        if let Some(time) = round_trip {
            handle.note_round_trip(Side::Server, time);
        }
        self.servers.note(ends.1, answer.offer);
        let (seq, ack) = (known.syn.seq + 1, answer.seq + 1);
        let waiting = Stage::Unconfirmed(Box::new(Unconfirmed {
            answered: Answered {
                acknowledgement: Some(acknowledgement(&known.syn, &answer).bytes()),
                onward: answer.onward.clone(),
                built_at: began,
                sent_at: Some(monotonic()),
                handle,
            },
            sockets,
            step,
            packet: packet.clone(),
            acknowledged_at: None,
            built_in: Duration::ZERO,
            seq,
            ack,
        }));
        self.pending.set_stage(&ends, waiting);
        match self.send_marked(ends.0, &answer.onward) {
            // A firewall drops it on output (`nf_hook_slow`).
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                self.let_pass(packet, ends)?;
                let (client, server) = ends;
                return Ok(Some(Taken::Undelivered { client, server }));
            }
            sent => sent?,
        }
        if let Some(Stage::Unconfirmed(waiting)) = self.pending.get_mut(&ends).map(|known| &mut known.stage) {
            waiting.built_in = began.elapsed();
        }
        // Confirm the socket last: the ends need not wait for that.
        if let Some(confirmed) = confirmed
            && let Err(error) = self.splicer.let_in(&confirmed)
        {
            tracing::debug!(%error, "a socket toward a server does not know its round-trip time");
        }
        Ok(None)
    }
}
