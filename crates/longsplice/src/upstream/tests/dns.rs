//! A name server for tests, on the loopback.

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv4Addr},
    str::FromStr,
};

use hickory_resolver::proto::{
    op::{Message, ResponseCode},
    rr::{
        Name, RData, Record, RecordType,
        rdata::{A, AAAA, SRV},
    },
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UdpSocket,
};

use super::*;

/// Limits an answer over UDP, in bytes; a longer one is asked for again over TCP (RFC 1035).
const MOST_OVER_UDP: usize = 512;

type Question = (String, RecordType);

/// Holds what the name server knows, and what it has been asked for.
#[derive(Default)]
pub(super) struct Zone {
    pub(super) records: HashMap<Question, Vec<RData>>,
    /// Answers these questions with an error; `None` leaves them without an answer.
    pub(super) faults: HashMap<Question, Option<ResponseCode>>,
    /// Makes it leave every question without an answer.
    pub(super) mute: bool,
    /// Answers other questions with this, in place of NXDOMAIN.
    pub(super) otherwise: Option<ResponseCode>,
    /// Limits the validity of its answers, in seconds.
    pub(super) ttl: u32,
    pub(super) asked: HashMap<Question, usize>,
    /// Counts the answers; each one has its records in another order.
    answers: usize,
}

/// Answers questions from its zone, over UDP and TCP.
pub(super) struct NameServer {
    pub(super) address: SocketAddr,
    pub(super) zone: Arc<Mutex<Zone>>,
    _tasks: [AbortOnDropHandle<()>; 2],
}

impl NameServer {
    pub(super) async fn new() -> NameServer {
        let (listener, socket) = loop {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            // Another test may have this port over UDP.
            if let Ok(socket) = UdpSocket::bind(listener.local_addr().unwrap()).await {
                break (listener, socket);
            }
        };
        let address = socket.local_addr().unwrap();
        let zone = Arc::new(Mutex::new(Zone {
            ttl: 1,
            ..Zone::default()
        }));
        let (over_udp, over_tcp) = (Arc::clone(&zone), Arc::clone(&zone));
        let udp = AbortOnDropHandle::new(tokio::spawn(async move {
            let mut bytes = vec![0; 4096];
            while let Ok((n, from)) = socket.recv_from(&mut bytes).await {
                let answer = over_udp.lock().answer(&bytes[..n], MOST_OVER_UDP);
                if let Some(answer) = answer {
                    let _ = socket.send_to(&answer, from).await;
                }
            }
        }));
        let tcp = AbortOnDropHandle::new(tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                while let Ok(len) = stream.read_u16().await {
                    let mut bytes = vec![0; len.into()];
                    stream.read_exact(&mut bytes).await.unwrap();
                    let answer = over_tcp.lock().answer(&bytes, usize::MAX);
                    if let Some(answer) = answer {
                        stream.write_u16(answer.len() as u16).await.unwrap();
                        stream.write_all(&answer).await.unwrap();
                    }
                }
            }
        }));
        NameServer {
            address,
            zone,
            _tasks: [udp, tcp],
        }
    }

    pub(super) fn set(&self, name: &str, addresses: &[IpAddr]) {
        let mut zone = self.zone.lock();
        let of = |v4: bool| {
            addresses
                .iter()
                .filter(move |a| a.is_ipv4() == v4)
                .map(|a| match a {
                    IpAddr::V4(ip) => RData::A(A(*ip)),
                    IpAddr::V6(ip) => RData::AAAA(AAAA(*ip)),
                })
        };
        zone.records
            .insert(question(name, RecordType::A), of(true).collect());
        zone.records
            .insert(question(name, RecordType::AAAA), of(false).collect());
    }

    pub(super) fn set_service(&self, name: &str, records: &[(u16, u16, u16, &str)]) {
        let srv = |&(priority, weight, port, target): &(u16, u16, u16, &str)| {
            RData::SRV(SRV::new(priority, weight, port, Name::from_str(target).unwrap()))
        };
        let records = records.iter().map(srv).collect();
        self.zone
            .lock()
            .records
            .insert(question(name, RecordType::SRV), records);
    }

    /// Answers questions for this name's addresses of these kinds with an error, or leaves them without an answer.
    pub(super) fn spoil(&self, name: &str, kinds: &[RecordType], fault: Option<ResponseCode>) {
        let mut zone = self.zone.lock();
        let of_each = kinds.iter().map(|kind| (question(name, *kind), fault));
        zone.faults.extend(of_each);
    }

    /// Returns how often it was asked for this.
    pub(super) fn asked(&self, name: &str, kind: RecordType) -> usize {
        let zone = self.zone.lock();
        zone.asked.get(&question(name, kind)).copied().unwrap_or(0)
    }
}

impl Zone {
    fn answer(&mut self, bytes: &[u8], most: usize) -> Option<Vec<u8>> {
        let message = Message::from_vec(bytes).unwrap();
        let query = message.queries[0].clone();
        let question = (query.name().to_string().to_lowercase(), query.query_type());
        *self.asked.entry(question.clone()).or_default() += 1;
        if self.mute {
            return None;
        }
        self.answers += 1;
        let mut answer = Message::response(message.metadata.id, message.metadata.op_code);
        answer.add_query(query.clone());
        match (self.faults.get(&question), self.records.get(&question)) {
            (Some(fault), _) => answer.metadata.response_code = (*fault)?,
            (None, Some(records)) => {
                let turn = self.answers % records.len().max(1);
                let (first, last) = records.split_at(turn);
                for data in last.iter().chain(first) {
                    answer.add_answer(Record::from_rdata(query.name().clone(), self.ttl, data.clone()));
                }
            }
            (None, None) => {
                answer.metadata.response_code = self.otherwise.unwrap_or(ResponseCode::NXDomain);
            }
        }
        let bytes = answer.to_vec().unwrap();
        if bytes.len() <= most {
            return Some(bytes);
        }
        answer.answers.clear();
        answer.metadata.truncation = true;
        Some(answer.to_vec().unwrap())
    }
}

fn question(name: &str, kind: RecordType) -> Question {
    (format!("{name}."), kind)
}

pub(super) fn ip(n: u8) -> IpAddr {
    Ipv4Addr::new(127, 0, 0, n).into()
}
