//! A cell of the matrix: connections of a client of one profile to a server of another, by a listener of their own.

use std::{
    fmt,
    net::{SocketAddr, TcpListener, TcpStream},
    sync::Arc,
    time::Duration,
};

use longsplice_engine::{FlowState, Pair as Near, Side, Until, reason::RelayReason};
use longsplice_lab::Namespace;
use longsplice_repair::tcp_info;
use longsplice_tests::{
    Pair, SOON, eventually_or,
    library::{Depth, Library, at_once, close_both},
    patient,
};
use tokio::net::TcpListener as NearListener;

/// Payload of each direction between two returns.
const BYTES: u64 = 120_000;

/// Number of returns of each connection that is spliced.
const RETURNS: u32 = 2;

/// Outcome of a cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The first connection was spliced.
    First,
    /// The first connection was relayed, for this reason, and the second one was spliced.
    Second(RelayReason),
    /// Both were relayed, the second one for this reason.
    Relayed(RelayReason),
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Outcome::First => f.write_str("1"),
            Outcome::Second(reason) => write!(f, "2 ({reason})"),
            Outcome::Relayed(reason) => write!(f, "relayed ({reason})"),
        }
    }
}

/// Client, forwarder and server of a cell.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cell<'a> {
    /// Splicer in the forwarder.
    pub(super) library: &'a Library,
    /// Node of the client.
    pub(super) client: &'a Namespace,
    /// Address at which the forwarder listens for it.
    pub(super) front: SocketAddr,
    /// Node of the server.
    pub(super) server: &'a Namespace,
    /// Address at which it listens.
    pub(super) target: SocketAddr,
    /// Depth of the splices.
    pub(super) depth: Depth,
}

impl Cell<'_> {
    /// Makes up to two connections, with [`RETURNS`] returns each, and compares every byte.
    pub(super) fn run(&self) -> Outcome {
        let listener = self
            .server
            .run(|| TcpListener::bind(self.target))
            .unwrap()
            .unwrap();
        let front = self.front;
        let bind = self.library.spawn(async move { NearListener::bind(front).await });
        let near = Arc::new(self.library.run(bind).unwrap().unwrap());
        let prepare = || {
            let (splicer, near, target) = (self.library.splicer().clone(), near.clone(), self.target);
            let prepared = self
                .library
                .spawn(async move { splicer.prepare_listener(&*near, target) });
            self.library.run(prepared).unwrap().unwrap();
        };
        prepare();
        let Err(reason) = self.connection(&near, &listener) else {
            return Outcome::First;
        };
        // The daemon does so when it is told.
        prepare();
        match self.connection(&near, &listener) {
            Ok(()) => Outcome::Second(reason),
            Err(reason) => Outcome::Relayed(reason),
        }
    }

    /// Carries a connection from its beginning to its end. Returns the reason if it was relayed.
    fn connection(&self, near: &NearListener, listener: &TcpListener) -> Result<(), RelayReason> {
        let connect = || TcpStream::connect_timeout(&self.front, patient(SOON));
        let far = self.client.run(connect).unwrap().unwrap();
        let (client, _) = self.library.run(near.accept()).unwrap();
        self.library.splicer().prepare_client(&client).unwrap();
        let (server, far_server) = self.library.connect(&client, listener);
        let mut pair = Pair::of(far, far_server);
        let mut next: Near = at_once(Near::new(client, server), self.depth);
        for _ in 0..RETURNS {
            let until = Until::bytes_from(Side::Client, BYTES);
            let call = self.library.splice(next, until);
            // A rebuilt socket would have no ECN: the sockets are kept for a return.
            let keeps = tcp_info(&pair.client.stream).unwrap().ecn();
            let spliced = self.wait(&pair, if keeps { Depth::Dormant } else { self.depth });
            pair.exchange_unevenly(BYTES - 1, BYTES);
            pair.client.send(1);
            pair.server.receive(1);
            let returned = call.returned();
            assert_eq!(returned.passed.client, BYTES);
            assert_eq!(returned.spliced, spliced.is_ok(), "{self:?}: {spliced:?}");
            if let Err(reason) = spliced {
                assert_eq!(returned.relay_reason, Some(reason));
                close_both(returned);
                pair.client.expect_end();
                pair.server.expect_end();
                return Err(reason);
            }
            next = at_once(returned, self.depth);
        }
        let call = self.library.splice(next, Until::closed());
        let spliced = self.wait(&pair, self.depth);
        assert_eq!(spliced, Ok(()), "after {RETURNS} returns: {self:?}");
        pair.exchange(BYTES);
        self.sees_no_loss(&pair);
        pair.close();
        drop(call);
        Ok(())
    }

    /// Waits until the connection is spliced to a depth, or relayed for good.
    fn wait(&self, pair: &Pair, depth: Depth) -> Result<(), RelayReason> {
        let client = pair.client.stream.local_addr().unwrap();
        let find = || {
            let mut flows = self.library.splicer().flows();
            // A client has the same port toward several listeners.
            flows.find(|flow| (flow.client.peer, flow.client.local) == (client, self.front))
        };
        let what = || format!("{depth:?}, or a refusal: {:?}", find());
        eventually_or(what, SOON, || {
            let flow = find()?;
            match (flow.state, flow.reason) {
                (state, _) if state == depth.state() => Some(Ok(())),
                (FlowState::Relay, Some(reason)) if is_for_good(reason) => Some(Err(reason)),
                _ => None,
            }
        })
    }

    /// Checks that no segment with more than a byte had to be sent again: a window or a SACK block that was translated wrongly
    /// shows there. Where a processor is taken away, the kernel repeats a single byte of an exchange.
    fn sees_no_loss(&self, pair: &Pair) {
        for end in [&pair.client, &pair.server] {
            let info = tcp_info(&end.stream).unwrap();
            let is_spared = info.total_lost() < 3 || info.bytes_retrans() <= info.total_retrans().into();
            assert!(is_spared, "{self:?}: {info:?}");
            assert!(Duration::from_micros(info.rto_us().into()) < SOON);
        }
    }
}

fn is_for_good(reason: RelayReason) -> bool {
    matches!(
        reason,
        RelayReason::Timestamps | RelayReason::Ecn | RelayReason::Mss | RelayReason::SocketOption
    )
}
