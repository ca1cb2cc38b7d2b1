//! Passes handshakes through, so that both connections of a pair have the same addresses and numbers: the identity case
//! (papers' section III-F; docs/decisions/0016).
//!
//! A forwarder that accepts first and connects then has told the client a number of its own before it knows the server's.
//! Here the client's SYN is sent on as it came. The server's answer is kept until both sockets are built from the two
//! segments, each with the numbers, the clock and the windows of the far end; then it is sent on, too. Both sockets are
//! ordinary ones: to be read, relayed, spliced.
//!
//! The handler sets [`rules`], routes the packets that they mark to this host ([`Routing`](crate::transparent::intercept::Routing)),
//! and passes each of the [`Splicer::rule_packets`] that they ask about to [`Handshakes::take`].

mod answer;
mod following;
mod known_servers;
mod opening;
mod overdue;
mod pending;
mod reach;
mod sockets;
mod step;
mod table;
mod unconfirmed;
mod unheard;

use std::{
    io,
    net::{SocketAddr, TcpStream as StdStream},
    time::{Duration, Instant},
};

use longsplice_dataplane::{Side, monotonic};
use longsplice_repair::close_silently;
use tokio::net::TcpStream;

use self::{
    following::Following,
    opening::{ACK, Opening, SYN},
    overdue::Overdue,
    pending::{Answered, Ends, Pending, Stage, leg_of},
    reach::Looks,
    sockets::toward_client,
    table::Table,
};
use crate::{
    FlowHandle, Splicer,
    kernel::announce::Announcer,
    services::rules::{Action, Match, Network, Ports, Rule, RulePacket},
};
pub use known_servers::KnownServers;
pub use step::{Admission, Confirmed, EarlyClient, Opened, Step, StepAnswer, Taken};

/// Maximum number of handshakes without an answer; further ones go on untouched.
const MOST_UNANSWERED: usize = 4_096;

/// Maximum number of handshakes that are remembered.
const MOST: usize = 65_536;

/// Time that a handshake is remembered: a client that has not heard the answer repeats its SYN after 1, 3, 7 and 15 s.
const PATIENCE: Duration = Duration::from_secs(20);

/// Time between two searches for old handshakes.
const SWEEP: Duration = Duration::from_secs(1);

/// Returns the rules for handshakes that come from interface `clients` to these networks and ports, which answer on
/// interface `servers`. Place them in front of other rules, or behind those that make exceptions.
pub fn rules(clients: &str, servers: &str, to: &[Network], ports: &[Ports]) -> Vec<Rule> {
    let forth = Match {
        interface: Some(clients.to_owned()),
        to: to.to_vec(),
        to_ports: ports.to_vec(),
        ..Match::default()
    };
    let back = Match {
        interface: Some(servers.to_owned()),
        from: to.to_vec(),
        from_ports: ports.to_vec(),
        ..Match::default()
    };
    let answer = Match {
        flags: "syn,ack".parse().unwrap_or_default(),
        ..back.clone()
    };
    let rule = |name: String, matching, action| Rule {
        name,
        matching,
        action,
    };
    vec![
        rule(format!("{clients} opens"), forth.clone(), Action::AskOrPass),
        rule(format!("{servers} answers"), answer, Action::Ask),
        rule(format!("{clients} toward the server"), forth, Action::Follow),
        rule(format!("{servers} toward the client"), back, Action::Follow),
    ]
}

/// Holds the handshakes that pass through a splicer. The client and the server time their own retransmissions, which are
/// sent on again.
#[derive(Debug)]
pub struct Handshakes {
    splicer: Splicer,
    pending: Table,
    servers: KnownServers,
    /// Those whose client may have its answer from elsewhere.
    overdue: Overdue,
    /// Looks at sockets that have not received what their client has sent.
    looks: Looks,
    /// Time of the last look at those whose client has not acknowledged the answer.
    tended: Instant,
    /// Time of the last search for old ones.
    swept: Instant,
    /// Time at which a handshake was last not remembered.
    overflowed: Option<Instant>,
}

impl Handshakes {
    /// Returns an empty set of handshakes.
    pub fn new(splicer: &Splicer) -> Handshakes {
        Handshakes {
            splicer: splicer.clone(),
            pending: Table::default(),
            servers: KnownServers::default(),
            overdue: Overdue::new(splicer),
            looks: Looks::default(),
            tended: Instant::now(),
            swept: Instant::now(),
            overflowed: None,
        }
    }

    /// Returns the servers that have accepted connections lately.
    pub fn known_servers(&self) -> &KnownServers {
        &self.servers
    }

    /// Returns the number of clients that were answered early, and have not acknowledged the answer, as far as that is known
    /// yet. Walks over all handshakes that are remembered.
    pub fn unheard_early(&self) -> usize {
        let is_unheard = |known: &Pending| matches!(&known.stage, Stage::Answered(answered) if answered.is_early() && answered.sent_at.is_some());
        self.pending.iter().filter(|(_, known)| is_unheard(known)).count()
    }

    /// Takes a packet that [`rules`] have asked about, and asks `admit` about each SYN and each answer. Returns the
    /// connection when its handshake is complete. A packet that it cannot use, or that `admit` passes through, goes on
    /// untouched ([`Splicer::let_in`]).
    ///
    /// # Errors
    /// Returns the system's error if it refuses a socket or a packet. The two ends try again, until they give up.
    ///
    /// # Panics
    /// Panics outside of a tokio runtime.
    pub fn take(
        &mut self,
        packet: &RulePacket,
        admit: impl FnMut(&Step) -> Admission,
    ) -> io::Result<Option<Taken>> {
        self.forget_old();
        // The packet itself has passed: let in, its copy would come back as another copy, without end.
        if packet.copy {
            return self.take_awaited(packet);
        }
        match Opening::read(&packet.packet) {
            Some(syn) if syn.flags == SYN => self.take_syn(packet, syn, admit),
            Some(answer) if answer.flags == SYN | ACK => self.take_answer(packet, answer, admit),
            _ => self.splicer.let_in(packet).map(|()| None),
        }
    }

    /// Waits until [`Handshakes::look`] is due. Cancel-safe.
    pub async fn due(&self) {
        tokio::select! {
            () = self.overdue.due() => {}
            () = self.looks.due() => {}
            () = self.unconfirmed_are_due() => {}
        }
    }

    /// Looks for SYNs that have had no answer for a while: the next acknowledgement of their client shows that it has an
    /// answer, which takes another way ([`Taken::HalfSeen`]). Lets connections pass through whose client has not
    /// acknowledged the answer ([`Taken::Unconfirmed`]), and those whose client's segments do not reach its socket
    /// ([`Taken::Undelivered`]).
    #[must_use]
    pub fn look(&mut self) -> Vec<Taken> {
        let is_unanswered = |ends: &Ends| self.pending.get(ends).is_some_and(Pending::is_unanswered);
        self.overdue.look(is_unanswered);
        let mut seen = self.look_at_sockets();
        seen.extend(self.tend_unconfirmed());
        seen
    }

    /// Forgets handshakes that were begun too long ago, at most once a second.
    fn forget_old(&mut self) {
        if self.swept.elapsed() >= SWEEP {
            self.pending.forget_old();
            self.overdue.retain(|ends| self.pending.get(ends).is_some());
            self.swept = Instant::now();
        }
    }

    fn take_syn(
        &mut self,
        packet: &RulePacket,
        syn: Opening,
        mut admit: impl FnMut(&Step) -> Admission,
    ) -> io::Result<Option<Taken>> {
        let ends = (syn.from, syn.to);
        if let Some(known) = self.pending.get_mut(&ends).filter(|p| p.syn.seq == syn.seq) {
            known.repeated = true;
            match &mut known.stage {
                _ if syn.only_passes => self.splicer.let_in(packet)?,
                Stage::Passed => self.splicer.let_in(packet)?,
                Stage::Answered(answered) => {
                    let again = answered.again();
                    self.send_marked(ends.0, &again)?;
                }
                Stage::Unconfirmed(waiting) => {
                    let again = waiting.answered.again();
                    self.send_marked(ends.0, &again)?;
                }
                Stage::Asked => {
                    // The server compares all that follows with the TSval of the SYN that it has accepted: later
                    // segments must begin at the latest one (RFC 7323 section 5.3).
                    let again = syn.onward.clone();
                    known.syn = syn;
                    if let Err(error) = self.send_on(ends.1, &again) {
                        return self.refuse(packet, ends, error).map(Some);
                    }
                }
            }
            return Ok(None);
        }
        if self.challenge(packet, ends)? {
            return Ok(None);
        }
        let is_beyond_limit = self.pending.unanswered() >= MOST_UNANSWERED || self.pending.len() >= MOST;
        let step = Step {
            client: ends.0,
            server: ends.1,
            client_interface: packet.ifindex,
            answer: None,
            has_unknown_options: syn.has_unknown(),
            is_known_server: self.servers.contains(ends.1),
            unconfirmed: self.pending.unconfirmed(),
            window: syn.window,
            is_beyond_limit,
        };
        let admission = match admit(&step) {
            _ if is_beyond_limit || syn.only_passes => Admission::PassThrough,
            admission => admission,
        };
        let mut taken = None;
        // The answer may come in while the segment is being sent, on a link without delay.
        let sent_at = monotonic();
        let begun = match admission {
            Admission::PassThrough => Ok(Stage::Passed),
            Admission::TakeOver => self.send_on(ends.1, &syn.onward).map(|()| {
                self.overdue.note(ends);
                Stage::Asked
            }),
            Admission::AnswerEarly => self.answer_early(ends, &syn).map(|(client, answered)| {
                let handle = answered.handle.clone();
                let class = syn.offer.class;
                taken = Some(Taken::Early(EarlyClient {
                    client,
                    step,
                    handle,
                    class,
                }));
                Stage::Answered(answered)
            }),
        };
        let (stage, error) = match begun {
            Ok(stage) => (stage, None),
            Err(error) => (Stage::Passed, Some(error)),
        };
        let is_passed = matches!(stage, Stage::Passed);
        if self.pending.len() < MOST {
            let pending = Pending {
                syn,
                interface: packet.ifindex,
                since: Instant::now(),
                sent_at,
                repeated: false,
                stage,
            };
            self.pending.insert(ends, pending);
        } else {
            self.overflowed = Some(Instant::now());
        }
        match error {
            // The kernel forwards the SYN, or tells the client why it cannot; a repeated one would meet the same error.
            Some(error) => self.refuse(packet, ends, error).map(Some),
            None if is_passed => self.splicer.let_in(packet).map(|()| None),
            None => Ok(taken),
        }
    }

    /// Lets a packet in whose handshake met an error of the system. The connection passes through.
    fn refuse(&mut self, packet: &RulePacket, ends: Ends, error: io::Error) -> io::Result<Taken> {
        self.let_pass(packet, ends)?;
        let (client, server) = ends;
        Ok(Taken::Refused {
            client,
            server,
            error,
        })
    }

    /// Lets a packet in, and the connection pass through.
    fn let_pass(&mut self, packet: &RulePacket, ends: Ends) -> io::Result<()> {
        self.pending.set_stage(&ends, Stage::Passed);
        self.splicer.let_in(packet)
    }

    /// Builds the socket toward a client, and answers its SYN in the name of the server.
    fn answer_early(&self, ends: Ends, syn: &Opening) -> io::Result<(TcpStream, Answered)> {
        let offer = self.servers.offer(ends.1).toward(syn.offer);
        let answer = Opening::answer(syn, offer, self.servers.initial_sequence(ends), u16::MAX);
        let client = TcpStream::from_std(StdStream::from(toward_client(syn, &answer)?))?;
        // Have the client's first segment told. Without that the socket measures the round-trip time, later.
        if let Err(error) = self.splicer.context.rules.await_segment(&client) {
            tracing::debug!(%error, "a client's acknowledgement is not timed");
        }
        let told = self
            .splicer
            .prepare_client(&client)
            .and_then(|()| self.send_marked(ends.0, &answer.onward));
        if let Err(error) = told {
            // The client has not heard of its socket.
            let _ = close_silently(client.into_std()?.into());
            return Err(error);
        }
        let answered = Answered {
            onward: answer.onward,
            acknowledgement: None,
            built_at: Instant::now(),
            sent_at: Some(monotonic()),
            handle: FlowHandle::default(),
        };
        Ok((client, answered))
    }

    /// Takes an awaited segment of a client. The first one after an early answer tells the round-trip time, if it is the bare
    /// acknowledgement of an answer that was sent once. One without an answer shows that the answer took another way.
    fn take_awaited(&mut self, packet: &RulePacket) -> io::Result<Option<Taken>> {
        let Some(segment) = Following::read(&packet.packet) else {
            return Ok(None);
        };
        let ends = segment.ends;
        self.overdue.forget(ends);
        let (client, server) = ends;
        let Some(known) = self.pending.get_mut(&ends) else {
            return Ok(None);
        };
        let answered = match &mut known.stage {
            Stage::Unconfirmed(_) => return self.take_unconfirmed(&segment, packet.at),
            Stage::Answered(answered) if segment.is_bare => answered,
            Stage::Asked => {
                self.pending.set_stage(&ends, Stage::Passed);
                return Ok(Some(Taken::HalfSeen { client, server }));
            }
            Stage::Answered(_) | Stage::Passed => return Ok(None),
        };
        let sent_at = answered.sent_at.take();
        Ok(sent_at.and_then(|sent| packet.at.checked_sub(sent)).map(|time| {
            let round_trip = Duration::from_nanos(time);
            answered.handle.note_round_trip(Side::Client, round_trip);
            Taken::Confirmed(Confirmed {
                client,
                server,
                round_trip,
            })
        }))
    }

    /// Lets a SYN in on a connection that has a socket here. That socket answers it with an acknowledgement, no more often than
    /// the kernel allows; a client that does not know the connection resets it (RFC 5961 sections 4 and 7).
    fn challenge(&self, packet: &RulePacket, ends: Ends) -> io::Result<bool> {
        let plane = self.splicer.context.plane();
        let has_socket = plane.is_some_and(|plane| plane.inspect(leg_of(ends)).is_ok());
        if has_socket {
            self.splicer.let_in(packet)?;
        }
        Ok(has_socket)
    }

    /// Sends a SYN on. It is tracked, since the connection may still pass through.
    fn send_on(&self, to: SocketAddr, syn: &[u8]) -> io::Result<()> {
        self.announcer()?.send(to.ip(), syn)
    }

    /// Sends a segment in the name of a socket of ours.
    fn send_marked(&self, to: SocketAddr, packet: &[u8]) -> io::Result<()> {
        self.announcer()?.send_marked(to.ip(), packet)
    }

    fn announcer(&self) -> io::Result<&Announcer> {
        let kernel = self.splicer.context.kernel.as_ref();
        let kernel = kernel.ok_or(io::ErrorKind::Unsupported)?;
        Ok(&kernel.announcer)
    }
}
