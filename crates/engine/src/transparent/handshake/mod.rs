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

mod known_servers;
mod opening;

use std::{
    collections::HashMap,
    io,
    net::{SocketAddr, TcpStream as StdStream},
    os::fd::OwnedFd,
    time::{Duration, Instant},
};

use longsplice_dataplane::Leg;
use longsplice_repair::{Image, ImageOptions, Window, close_silently, thaw};
use tokio::net::TcpStream;

use self::opening::{ACK, Opening, SYN};
use crate::{
    Pair, Splicer,
    kernel::packet::{FLAG_ACK, Segment},
    services::rules::{Action, Match, Network, Ports, Rule, RulePacket},
};
pub use known_servers::KnownServers;

/// Maximum number of handshakes without an answer; further ones go on untouched.
const MOST_UNANSWERED: usize = 4_096;

/// Maximum number of handshakes that are remembered.
const MOST: usize = 65_536;

/// Time that a handshake is remembered: a client that has not heard the answer repeats its SYN after 1, 3, 7 and 15 s.
const PATIENCE: Duration = Duration::from_secs(20);

/// Time between two searches for old handshakes.
const SWEEP: Duration = Duration::from_secs(1);

/// Returns the MSS of an end that sends none (RFC 9293 section 3.7.1).
const fn default_mss(v4: bool) -> u16 {
    if v4 { 536 } else { 1_220 }
}

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
        rule(format!("{clients} opens"), forth.clone(), Action::Ask),
        rule(format!("{servers} answers"), answer, Action::Ask),
        rule(format!("{clients} toward the server"), forth, Action::Follow),
        rule(format!("{servers} toward the client"), back, Action::Follow),
    ]
}

/// Addresses of a connection's ends: the client, the server.
type Ends = (SocketAddr, SocketAddr);

/// Describes a segment of a handshake, before it is decided whether the connection is taken over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    /// Address of the end that opens the connection.
    pub client: SocketAddr,
    /// Address of the other end.
    pub server: SocketAddr,
    /// Interface at which the SYN came in.
    pub client_interface: u32,
    /// Answer to the SYN; `None` while the SYN is decided.
    pub answer: Option<StepAnswer>,
    /// True if the segment has options that a built socket does not support, such as those of MPTCP or TCP-AO.
    pub has_unknown_options: bool,
    /// True if the server has accepted a connection lately ([`KnownServers`]).
    pub is_known_server: bool,
    /// Largest window that the ends have offered so far, in bytes; never scaled in a handshake.
    pub window: u16,
}

/// Describes the answer to a SYN.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepAnswer {
    /// Interface at which the answer came in.
    pub interface: u32,
    /// Time from the SYN to its answer: the round-trip time to the server. `None` if the SYN was sent more than once.
    pub round_trip: Option<Duration>,
}

/// Decision about a handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// The segment goes on untouched, and the connection is none of ours.
    PassThrough,
    /// The connection is taken over once the server has answered.
    TakeOver,
    /// The client is answered at once, before the server is asked (paper 004, algorithm 1); only for a SYN. If the server
    /// refuses then, the client sees a connection that is reset.
    AnswerEarly,
}

/// Result of a segment that completes a handshake.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "made once, and taken apart at once")]
pub enum Taken {
    /// Both legs are connected.
    Opened(Opened),
    /// The client is connected, and the server is to be asked.
    Early(EarlyClient),
}

/// Holds a client that was answered in the name of its server.
#[derive(Debug)]
pub struct EarlyClient {
    /// Socket toward the client; connect to the server with [`Splicer::connect_as_client_and_port`].
    pub client: TcpStream,
    /// Handshake.
    pub step: Step,
}

/// Holds a connection that was taken over at its handshake.
#[derive(Debug)]
pub struct Opened {
    /// Sockets of both legs.
    pub pair: Pair,
    /// Handshake, with its answer.
    pub step: Step,
}

/// State of a handshake under way.
#[derive(Debug)]
struct Pending {
    syn: Opening,
    interface: u32,
    since: Instant,
    /// True if the client sent its SYN again: the answer belongs to either.
    repeated: bool,
    answered: Option<Answered>,
}

/// Holds the segments to send again if they are lost.
#[derive(Debug)]
struct Answered {
    /// Segment to the client.
    onward: Vec<u8>,
    /// Segment to the server; `None` if the kernel's own socket connects to it.
    acknowledgement: Option<Vec<u8>>,
}

/// Holds the handshakes that pass through a splicer. The client and the server time their own retransmissions, which are
/// sent on again.
#[derive(Debug)]
pub struct Handshakes {
    splicer: Splicer,
    pending: HashMap<Ends, Pending>,
    /// Number of those without an answer.
    unanswered: usize,
    servers: KnownServers,
    /// Time of the last search for old ones.
    swept: Instant,
}

impl Handshakes {
    /// Returns an empty set of handshakes.
    pub fn new(splicer: &Splicer) -> Handshakes {
        Handshakes {
            splicer: splicer.clone(),
            pending: HashMap::new(),
            unanswered: 0,
            servers: KnownServers::default(),
            swept: Instant::now(),
        }
    }

    /// Returns the servers that have accepted connections lately.
    pub fn known_servers(&self) -> &KnownServers {
        &self.servers
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
        match Opening::read(&packet.packet) {
            Some(syn) if syn.flags == SYN => self.take_syn(packet, syn, admit),
            Some(answer) if answer.flags == SYN | ACK => self.take_answer(packet, answer, admit),
            _ => self.splicer.let_in(packet).map(|()| None),
        }
    }

    /// Forgets handshakes that were begun too long ago, at most once a second.
    fn forget_old(&mut self) {
        if self.swept.elapsed() >= SWEEP {
            self.pending.retain(|_, p| p.since.elapsed() < PATIENCE);
            self.unanswered = self.pending.values().filter(|p| p.answered.is_none()).count();
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
            let (to, packet) = match &known.answered {
                Some(answered) => (ends.0, answered.onward.clone()),
                None => {
                    // The server compares all that follows with the TSval of the SYN that it has accepted: later
                    // segments must begin at the latest one (RFC 7323 section 5.3).
                    known.syn = syn;
                    (ends.1, known.syn.onward.clone())
                }
            };
            self.send(to, &packet)?;
            return Ok(None);
        }
        if self.challenge(ends)? {
            return Ok(None);
        }
        let step = Step {
            client: ends.0,
            server: ends.1,
            client_interface: packet.ifindex,
            answer: None,
            has_unknown_options: syn.offer.has_unknown,
            is_known_server: self.servers.contains(ends.1),
            window: syn.window,
        };
        let has_room = self.unanswered < MOST_UNANSWERED && self.pending.len() < MOST;
        let admission = match has_room {
            true => admit(&step),
            false => Admission::PassThrough,
        };
        let mut pending = Pending {
            syn,
            interface: packet.ifindex,
            since: Instant::now(),
            repeated: false,
            answered: None,
        };
        let taken = match admission {
            Admission::PassThrough => return self.splicer.let_in(packet).map(|()| None),
            Admission::TakeOver => {
                self.send(ends.1, &pending.syn.onward)?;
                self.unanswered += 1;
                None
            }
            Admission::AnswerEarly => {
                let (client, answered) = self.answer_early(ends, &pending.syn)?;
                pending.answered = Some(answered);
                Some(Taken::Early(EarlyClient { client, step }))
            }
        };
        self.pending.insert(ends, pending);
        Ok(taken)
    }

    /// Builds the socket toward a client, and answers its SYN in the name of the server.
    fn answer_early(&self, ends: Ends, syn: &Opening) -> io::Result<(TcpStream, Answered)> {
        let offer = self.servers.offer(ends.1).toward(syn.offer);
        let answer = Opening::answer(syn, offer, self.servers.initial_sequence(ends), u16::MAX);
        let client = TcpStream::from_std(StdStream::from(thaw(&image(&answer, syn))?))?;
        self.splicer.prepare_client(&client)?;
        self.send(ends.0, &answer.onward)?;
        let answered = Answered {
            onward: answer.onward,
            acknowledgement: None,
        };
        Ok((client, answered))
    }

    /// Answers a SYN on a connection that has a socket here with an acknowledgement; a client that does not know the
    /// connection resets it (RFC 5961 section 4).
    fn challenge(&self, (client, server): Ends) -> io::Result<bool> {
        let Some(plane) = self.splicer.context.plane() else {
            return Ok(false);
        };
        let leg = Leg {
            peer: client,
            local: server,
        };
        let Ok(inspection) = plane.inspect(leg) else {
            return Ok(false);
        };
        let challenge = Segment {
            from: server,
            to: client,
            seq: inspection.snd_nxt,
            ack: inspection.rcv_nxt,
            flags: FLAG_ACK,
            window: 0,
            timestamps: None,
        };
        self.send(client, &challenge.bytes())?;
        Ok(true)
    }

    fn take_answer(
        &mut self,
        packet: &RulePacket,
        answer: Opening,
        mut admit: impl FnMut(&Step) -> Admission,
    ) -> io::Result<Option<Taken>> {
        let ends = (answer.to, answer.from);
        let known = self.pending.get_mut(&ends);
        let Some(known) = known.filter(|p| answer.ack == p.syn.seq + 1) else {
            self.splicer.let_in(packet)?;
            return Ok(None);
        };
        if let Some(answered) = &known.answered {
            match answered.acknowledgement.clone() {
                Some(again) => self.send(ends.1, &again)?,
                // The socket that connects in the client's name waits for it.
                None => {
                    self.servers.note(ends.1, answer.offer);
                    self.splicer.let_in(packet)?;
                }
            }
            return Ok(None);
        }
        let step = Step {
            client: ends.0,
            server: ends.1,
            client_interface: known.interface,
            answer: Some(StepAnswer {
                interface: packet.ifindex,
                round_trip: (!known.repeated).then(|| known.since.elapsed()),
            }),
            has_unknown_options: answer.offer.has_unknown,
            is_known_server: self.servers.contains(ends.1),
            window: known.syn.window.max(answer.window),
        };
        if admit(&step) == Admission::PassThrough {
            self.pending.remove(&ends);
            self.unanswered = self.unanswered.saturating_sub(1);
            self.splicer.let_in(packet)?;
            return Ok(None);
        }
        let began = Instant::now();
        let pair = build(&known.syn, &answer)?;
        self.splicer.prepare_client(&pair.client)?;
        self.servers.note(ends.1, answer.offer);
        let to_server = acknowledgement(&known.syn, &answer).bytes();
        let to_client = answer.onward;
        self.unanswered = self.unanswered.saturating_sub(1);
        known.answered = Some(Answered {
            acknowledgement: Some(to_server.clone()),
            onward: to_client.clone(),
        });
        self.send(ends.1, &to_server)?;
        self.send(ends.0, &to_client)?;
        self.splicer.context.stats.take_over.add(began.elapsed());
        Ok(Some(Taken::Opened(Opened { pair, step })))
    }

    fn send(&self, to: SocketAddr, packet: &[u8]) -> io::Result<()> {
        let kernel = self.splicer.context.kernel.as_ref();
        let kernel = kernel.ok_or(io::ErrorKind::Unsupported)?;
        kernel.announcer.send(to.ip(), packet)
    }
}

/// Returns the client's acknowledgement of the server's answer.
fn acknowledgement(syn: &Opening, answer: &Opening) -> Segment {
    let scale = if answer.offer.scale.is_some() {
        syn.offer.scale
    } else {
        None
    };
    Segment {
        from: syn.from,
        to: syn.to,
        seq: syn.seq + 1,
        ack: answer.seq + 1,
        flags: FLAG_ACK,
        window: syn.window >> scale.unwrap_or(0),
        timestamps: syn.offer.clock.zip(answer.offer.clock),
    }
}

/// Builds both sockets: toward the client as the server, toward the server as the client.
fn build(syn: &Opening, answer: &Opening) -> io::Result<Pair> {
    let client = thaw(&image(answer, syn))?;
    let server = match thaw(&image(syn, answer)) {
        Ok(server) => server,
        Err(e) => {
            // Close it in silence: its peer has not heard of it yet.
            let _ = close_silently(client);
            return Err(e.into());
        }
    };
    let stream = |fd: OwnedFd| TcpStream::from_std(StdStream::from(fd));
    Ok(Pair::new(stream(client)?, stream(server)?).with_one_clock())
}

/// Returns the image of the connection in which we have sent `ours` and the peer `theirs`.
fn image(ours: &Opening, theirs: &Opening) -> Image {
    let (mine, other) = (ours.offer, theirs.offer);
    let (receive_scale, send_scale) = mine.scale.zip(other.scale).unwrap_or_default();
    Image {
        local: ours.from,
        peer: theirs.from,
        send_next: ours.seq + 1,
        receive_next: theirs.seq + 1,
        options: ImageOptions {
            mss: other.mss.unwrap_or(default_mss(theirs.from.is_ipv4())),
            send_scale,
            receive_scale,
            sack: mine.sack && other.sack,
            timestamps: mine.clock.is_some() && other.clock.is_some(),
        },
        timestamp_clock: mine.clock.unwrap_or_default(),
        window: Window {
            send: theirs.window.into(),
            send_wl1: theirs.seq + 1,
            largest: u16::MAX.into(),
            receive: ours.window.into(),
        },
    }
}
