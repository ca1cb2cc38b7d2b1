//! Clients without a kernel: they acknowledge a part of the stream, and then fall silent: no acknowledgement, no reset.

use std::{
    collections::BTreeMap,
    io::Read,
    net::{IpAddr, SocketAddr},
    time::{Duration, Instant},
};

use longsplice_lab::topology::Nodes;
use socket2::{Domain, Socket, Type};

use crate::{
    ip, ip_in, patient,
    raw::{self, ACK, Outlet, PSH, RST, SYN, TCP},
    rng,
};

/// Host of these clients; no kernel has its address.
const HOST: &str = "198.18.1.77";
/// Port of the first client.
const FIRST_PORT: u16 = 40_000;
/// Window that they offer, times 2^7.
const WINDOW: u16 = 4_096;
/// MSS 1460, SACK permitted, and the window scale 7 that follows the timestamps.
const SYN_OPTIONS: [u8; 6] = [2, 4, 5, 0xb4, 4, 2];
const SCALE_OPTION: [u8; 4] = [1, 3, 3, 7];
/// Longest packet that a device without BIG TCP delivers.
const MOST: usize = 1 << 16;

/// State of a client's connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Connecting,
    Open,
    Reset,
}

/// Connection of one client.
#[derive(Debug, Clone)]
struct Connection {
    state: State,
    /// Next sequence number to send, and highest one that it has acknowledged.
    next: u32,
    acknowledged: u32,
    /// Timestamp that it echoes.
    heard: u32,
    /// Number of payload bytes that it has acknowledged, and those bytes if they are kept.
    taken: u64,
    content: Vec<u8>,
}

/// Host of such clients, in the place of the client's node.
#[derive(Debug)]
pub struct Silent {
    outlet: Outlet,
    /// Socket that receives all packets of the family that come to the node.
    inlet: Socket,
    address: IpAddr,
    to: SocketAddr,
    connections: BTreeMap<u16, Connection>,
    keeps: bool,
    rng: fastrand::Rng,
    began: Instant,
}

/// TCP segment that came.
struct Segment<'p> {
    from: SocketAddr,
    to: SocketAddr,
    sequence: u32,
    flags: u8,
    timestamp: Option<u32>,
    payload: &'p [u8],
}

impl Silent {
    /// Sets up the host beside the client of a laboratory, as a neighbor of the forwarder; its clients connect to
    /// `to`.
    pub fn new(net: &Nodes, to: SocketAddr) -> Silent {
        let address = net.family().addr(HOST.parse().unwrap());
        let link = ip(&net.client, "-j link show dev c0");
        let link: serde_json::Value = serde_json::from_str(&link).unwrap();
        let mac = link[0]["address"].as_str().unwrap();
        let neighbour = format!("neigh replace {address} lladdr {mac} dev f0");
        ip_in(net.family(), &net.forwarder, &neighbour);
        let kind: u16 = match address {
            IpAddr::V4(_) => 0x0800,
            IpAddr::V6(_) => 0x86dd,
        };
        let open = || Socket::new(Domain::PACKET, Type::DGRAM, Some(i32::from(kind.to_be()).into()));
        let inlet: Socket = net.client.run(open).unwrap().unwrap();
        // A system with a lower limit gives a smaller buffer.
        let _ = inlet.set_recv_buffer_size(16 << 20);
        Silent {
            outlet: Outlet::open(&net.client, to.ip()),
            inlet,
            address,
            to,
            connections: BTreeMap::new(),
            keeps: false,
            rng: rng(),
            began: Instant::now(),
        }
    }

    /// Opens `n` connections, each of which sends `request` and takes `most` bytes of the reply. Then they fall silent.
    /// Returns the number of connections that took so much; the others were reset, or did not get it within a minute
    /// ([`patient`]).
    pub fn ask(&mut self, n: u16, request: &[u8], most: u64) -> usize {
        self.knock(n);
        self.take(request, most)
    }

    /// Sends the SYNs of `n` connections, and nothing more.
    pub fn knock(&mut self, n: u16) {
        let first = FIRST_PORT + self.connections.len() as u16;
        for port in first..first + n {
            let connection = Connection {
                state: State::Connecting,
                next: self.rng.u64(..) as u32,
                acknowledged: 0,
                heard: 0,
                taken: 0,
                content: Vec::new(),
            };
            self.connections.insert(port, connection);
            self.say(port, SYN, &[]);
        }
    }

    /// Refuses the answers to the SYNs, as a host does that has sent none.
    pub fn refuse(&mut self) {
        for port in self.ports() {
            let mut connection = self.connections[&port].clone();
            connection.next = connection.next.wrapping_add(1);
            self.send(port, &connection, self.clock(), RST, &[]);
        }
    }

    /// Makes all of them say that they open another connection from their port: a SYN with another number, and one that
    /// acknowledges something, too.
    pub fn open_again(&mut self) {
        for port in self.ports() {
            let mut connection = self.connections[&port].clone();
            for flags in [SYN, SYN | ACK] {
                connection.next = connection.next.wrapping_add(1 << 20);
                self.send(port, &connection, self.clock(), flags, &[]);
            }
        }
    }

    /// Makes all of them take more, up to `most` bytes each; returns the number of those that have so much.
    pub fn take_more(&mut self, most: u64) -> usize {
        for port in self.ports() {
            self.say(port, ACK, &[]);
        }
        self.take(&[], most)
    }

    /// Keeps what the clients take from now on, for [`Silent::content`].
    pub fn keep_content(&mut self) {
        self.keeps = true;
    }

    /// Returns what the `n`-th client has taken.
    pub fn content(&self, n: usize) -> &[u8] {
        &self.connections.values().nth(n).unwrap().content
    }

    /// Makes all of them acknowledge `bytes` more than they have taken, in segments that their peer's socket must not
    /// accept: the timestamp is older than that of the last segment (RFC 7323 section 5.3).
    pub fn acknowledge_too_late(&mut self, bytes: u32) {
        for port in self.ports() {
            let mut connection = self.connections[&port].clone();
            connection.acknowledged = connection.acknowledged.wrapping_add(bytes);
            self.send(port, &connection, self.clock().wrapping_sub(10_000), ACK, &[]);
        }
    }

    /// Makes all of them send the same payload so many times, at full speed.
    pub fn repeat(&mut self, payload: &[u8], times: usize) {
        for _ in 0..times {
            for port in self.ports() {
                self.say(port, PSH | ACK, payload);
            }
        }
    }

    /// Makes all of them reset their connections.
    pub fn reset(&mut self) {
        for port in self.ports() {
            self.say(port, RST | ACK, &[]);
            self.connections.get_mut(&port).unwrap().state = State::Reset;
        }
    }

    /// Returns their addresses.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        let at = |port| SocketAddr::new(self.address, port);
        self.connections.keys().copied().map(at).collect()
    }

    fn ports(&self) -> Vec<u16> {
        self.connections.keys().copied().collect()
    }

    fn take(&mut self, request: &[u8], most: u64) -> usize {
        let deadline = Instant::now() + patient(Duration::from_secs(60));
        let mut packet = vec![0; MOST];
        loop {
            let is_done = |c: &Connection| c.taken >= most || c.state == State::Reset;
            let left = deadline.saturating_duration_since(Instant::now());
            if self.connections.values().all(is_done) || left.is_zero() {
                return self.connections.values().filter(|c| c.taken >= most).count();
            }
            self.inlet.set_read_timeout(Some(left)).unwrap();
            let Ok(n) = self.inlet.read(&mut packet) else {
                continue;
            };
            if let Some(segment) = Segment::read(&packet[..n], self.address.is_ipv4()) {
                self.hear(&segment, request, most);
            }
        }
    }

    fn hear(&mut self, segment: &Segment<'_>, request: &[u8], most: u64) {
        let is_ours = segment.from == self.to && segment.to.ip() == self.address;
        let port = segment.to.port();
        let Some(connection) = self.connections.get_mut(&port).filter(|_| is_ours) else {
            return;
        };
        if segment.flags & RST != 0 {
            connection.state = State::Reset;
            return;
        }
        match connection.state {
            State::Connecting if segment.flags & SYN != 0 => {
                connection.state = State::Open;
                connection.acknowledged = segment.sequence.wrapping_add(1);
                connection.heard = segment.timestamp.unwrap_or_default();
                connection.next = connection.next.wrapping_add(1);
                self.say(port, ACK, &[]);
                self.say(port, PSH | ACK, request);
                let connection = self.connections.get_mut(&port).unwrap();
                connection.next = connection.next.wrapping_add(request.len() as u32);
            }
            State::Open if !segment.payload.is_empty() => {
                let known = connection.acknowledged.wrapping_sub(segment.sequence) as i32;
                let new = segment.payload.len() as i64 - i64::from(known);
                let new = new.min(most.saturating_sub(connection.taken) as i64);
                if known >= 0 && new > 0 {
                    if self.keeps {
                        let new = &segment.payload[known as usize..][..new as usize];
                        connection.content.extend(new);
                    }
                    connection.taken += new as u64;
                    connection.acknowledged = connection.acknowledged.wrapping_add(new as u32);
                    connection.heard = segment.timestamp.unwrap_or_default();
                }
                // Until it is silent, it acknowledges its bytes, also at a gap.
                if new > 0 || connection.taken < most {
                    self.say(port, ACK, &[]);
                }
            }
            _ => {}
        }
    }

    /// Returns the time of their timestamps, in milliseconds.
    fn clock(&self) -> u32 {
        (self.began.elapsed().as_millis() as u32).wrapping_add(1)
    }

    /// Sends a segment of the connection of this port.
    fn say(&mut self, port: u16, flags: u8, payload: &[u8]) {
        let Some(connection) = self.connections.get(&port).cloned() else {
            return;
        };
        self.send(port, &connection, self.clock(), flags, payload);
    }

    fn send(&mut self, port: u16, connection: &Connection, clock: u32, flags: u8, payload: &[u8]) {
        let from = SocketAddr::new(self.address, port);
        let numbers = [connection.next, connection.acknowledged];
        let mut tcp = raw::header(from, self.to, numbers, flags, WINDOW);
        let [clock, heard] = [clock, connection.heard].map(u32::to_be_bytes);
        let timestamps = [&[1, 1, 8, 10], &clock[..], &heard[..]].concat();
        let options = match flags & SYN {
            0 => timestamps,
            _ => [&SYN_OPTIONS[..], &timestamps[2..], &SCALE_OPTION[..]].concat(),
        };
        raw::add_options(&mut tcp, &options);
        tcp.extend(payload);
        raw::seal(&mut tcp, self.address, self.to.ip());
        let id = self.rng.u64(..) as u32;
        let packet = raw::ip(self.address, self.to.ip(), TCP, &tcp, id, None);
        self.outlet.send(&packet, self.to.ip());
    }
}

impl Segment<'_> {
    /// Reads a packet that begins with its IP header; `None` if it is no whole segment.
    fn read(packet: &[u8], v4: bool) -> Option<Segment<'_>> {
        let address = |at: usize| -> Option<IpAddr> {
            Some(match v4 {
                true => <[u8; 4]>::try_from(packet.get(at..at + 4)?).ok()?.into(),
                false => <[u8; 16]>::try_from(packet.get(at..at + 16)?).ok()?.into(),
            })
        };
        let word =
            |bytes: &[u8], at: usize| Some(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?));
        let (protocol, addresses, header, end) = match v4 {
            true => {
                let header = usize::from(packet.first()? & 15) * 4;
                (packet.get(9)?, [12, 16], header, usize::from(word(packet, 2)?))
            }
            false => (packet.get(6)?, [8, 24], 40, 40 + usize::from(word(packet, 4)?)),
        };
        let tcp = packet.get(header..end).filter(|_| *protocol == TCP)?;
        let payload = usize::from(tcp.get(12)? >> 4) * 4;
        let port = |at| word(tcp, at);
        Some(Segment {
            from: SocketAddr::new(address(addresses[0])?, port(0)?),
            to: SocketAddr::new(address(addresses[1])?, port(2)?),
            sequence: u32::from_be_bytes(tcp.get(4..8)?.try_into().ok()?),
            flags: *tcp.get(13)?,
            timestamp: timestamp(tcp.get(20..payload)?),
            payload: tcp.get(payload..)?,
        })
    }
}

/// Finds the TSval among options (RFC 7323 section 3.2).
fn timestamp(mut options: &[u8]) -> Option<u32> {
    loop {
        match *options {
            [1, ..] => options = &options[1..],
            [8, 10, a, b, c, d, ..] => return Some(u32::from_be_bytes([a, b, c, d])),
            [kind, length, ..] if kind > 1 && length > 1 => options = options.get(usize::from(length)..)?,
            _ => return None,
        }
    }
}
