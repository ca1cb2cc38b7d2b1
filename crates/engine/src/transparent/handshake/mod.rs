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

/// Maximum number of handshakes under way; further ones go on untouched.
const MOST: usize = 4_096;

/// Time that a handshake is remembered: its SYN or the answer may be retransmitted for so long.
const PATIENCE: Duration = Duration::from_secs(60);

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
        rule(format!("{clients} follows"), forth, Action::Follow),
        rule(format!("{servers} follows"), back, Action::Follow),
    ]
}

/// Addresses of a connection's ends: the client, the server.
type Ends = (SocketAddr, SocketAddr);

/// State of a handshake under way.
#[derive(Debug)]
struct Pending {
    syn: Opening,
    since: Instant,
    answered: Option<Answered>,
}

/// Holds the segments to send again if they are lost.
#[derive(Debug)]
struct Answered {
    /// Segment to the client.
    onward: Vec<u8>,
    /// Segment to the server.
    acknowledgement: Vec<u8>,
}

/// Holds the handshakes that pass through a splicer. The client and the server time their own retransmissions, which are
/// sent on again.
#[derive(Debug)]
pub struct Handshakes {
    splicer: Splicer,
    pending: HashMap<Ends, Pending>,
}

impl Handshakes {
    /// Returns an empty set of handshakes.
    pub fn new(splicer: &Splicer) -> Handshakes {
        Handshakes {
            splicer: splicer.clone(),
            pending: HashMap::new(),
        }
    }

    /// Takes a packet that [`rules`] have asked about. Returns the pair when it has completed a handshake. A packet that
    /// it cannot use goes on untouched ([`Splicer::let_in`]).
    ///
    /// # Errors
    /// Returns the system's error if it refuses a socket or a packet. The two ends try again, until they give up.
    ///
    /// # Panics
    /// Panics outside of a tokio runtime.
    pub fn take(&mut self, packet: &RulePacket) -> io::Result<Option<Pair>> {
        self.pending.retain(|_, p| p.since.elapsed() < PATIENCE);
        let opening = Opening::read(&packet.packet);
        let done = match opening {
            Some(syn) if syn.flags == SYN => self.take_syn(syn),
            Some(answer) if answer.flags == SYN | ACK => return self.take_answer(packet, answer),
            _ => Ok(false),
        };
        if !done? {
            self.splicer.let_in(packet)?;
        }
        Ok(None)
    }

    /// Handles a SYN. Returns false if it is to go on untouched.
    fn take_syn(&mut self, syn: Opening) -> io::Result<bool> {
        let ends = (syn.from, syn.to);
        if let Some(known) = self.pending.get(&ends).filter(|p| p.syn.seq == syn.seq) {
            match &known.answered {
                Some(answered) => self.send(ends.0, &answered.onward)?,
                None => self.send(ends.1, &syn.onward)?,
            }
            return Ok(true);
        }
        if self.challenge(ends)? {
            return Ok(true);
        }
        if self.pending.len() >= MOST {
            return Ok(false);
        }
        self.send(syn.to, &syn.onward)?;
        let pending = Pending {
            syn,
            since: Instant::now(),
            answered: None,
        };
        self.pending.insert(ends, pending);
        Ok(true)
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

    fn take_answer(&mut self, packet: &RulePacket, answer: Opening) -> io::Result<Option<Pair>> {
        let ends = (answer.to, answer.from);
        let known = self.pending.get_mut(&ends);
        let Some(known) = known.filter(|p| answer.ack == p.syn.seq.wrapping_add(1)) else {
            self.splicer.let_in(packet)?;
            return Ok(None);
        };
        if let Some(answered) = &known.answered {
            let again = answered.acknowledgement.clone();
            self.send(ends.1, &again)?;
            return Ok(None);
        }
        let pair = build(&known.syn, &answer)?;
        self.splicer.prepare_client(&pair.client)?;
        let answered = Answered {
            acknowledgement: acknowledgement(&known.syn, &answer).bytes(),
            onward: answer.onward,
        };
        let (to_client, to_server) = (answered.onward.clone(), answered.acknowledgement.clone());
        known.answered = Some(answered);
        self.send(ends.1, &to_server)?;
        self.send(ends.0, &to_client)?;
        Ok(Some(pair))
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
        seq: syn.seq.wrapping_add(1),
        ack: answer.seq.wrapping_add(1),
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
        send_next: ours.seq.wrapping_add(1),
        receive_next: theirs.seq.wrapping_add(1),
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
            send_wl1: theirs.seq.wrapping_add(1),
            largest: u16::MAX.into(),
            receive: ours.window.into(),
        },
    }
}
