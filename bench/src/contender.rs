//! Contenders between client and server, and the throughput of one stream through each.

use std::env;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use longsplice::admin::Status;
use longsplice_lab::cores::Pinned;
use longsplice_lab::topology::Nodes;

use crate::cores;
use crate::daemon::{DETACH, Daemon, Instance, Policy};
use crate::diversion::Diversion;
use crate::filter::{self, Filter};
use crate::holder::Held;
use crate::iperf::{self, Bulk};
use crate::peers::{self, Bytes, Peer};
use crate::stats::Spread;
use crate::supervise::Room;
use crate::wait;

/// Environment variable that names the program of an earlier version.
pub(crate) const BEFORE: &str = "LONGSPLICE_BEFORE";

/// Options under which an accelerator keeps every connection, on the shortest path.
pub(crate) const KEEP: &[&str] = &["--min-rtt", "0s", "--min-gain", "1", "--standing-queue", "keep"];

/// Longest time until quiet ones are detached: an acknowledgement is delayed by 40 ms.
const QUIET: Duration = Duration::from_millis(500);

/// Path from client to server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Contender {
    /// The kernel forwards packets; no program is attached.
    Router,
    /// The kernel forwards packets through a packet filter.
    FilteringRouter,
    /// Longsplice, every connection spliced at once and detached.
    Spliced,
    /// Longsplice, every connection spliced at once; its sockets stay parked.
    Parked,
    /// Longsplice, no connection spliced.
    Relay,
    /// Earlier version of Longsplice ([`BEFORE`]), every connection spliced at once and detached.
    SplicedBefore,
    /// Earlier version of Longsplice, no connection spliced.
    RelayBefore,
    /// HAProxy, which chooses whether to splice(2).
    HaProxy,
    /// HAProxy with splice(2) for every byte.
    HaProxySplice,
    /// HAProxy without it, with large buffers.
    HaProxyCopy,
    /// nginx's stream module, with large buffers.
    Nginx,
    /// nginx's stream module, with its default buffers: slower, and smaller.
    NginxDefault,
    /// nginx's stream module as a transparent relay of every connection, the design of PEPsal.
    NginxTransparent,
    /// Longsplice's accelerator on the way, for other ports.
    PassedThrough,
    /// Longsplice's accelerator, which decides on each connection.
    Accelerated,
    /// Longsplice's accelerator, which answers clients before their servers do.
    AnsweredEarly,
    /// Longsplice's accelerator, which keeps each connection taken over.
    TakenOver,
}

impl Contender {
    /// Returns its name in a table.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Contender::Router => "kernel router",
            Contender::FilteringRouter => "filtering kernel router",
            Contender::Spliced => "longsplice, spliced",
            Contender::Parked => "longsplice, spliced and parked",
            Contender::Relay => "longsplice, relay",
            Contender::SplicedBefore => "longsplice before, spliced",
            Contender::RelayBefore => "longsplice before, relay",
            Contender::HaProxy => "HAProxy, splice-auto",
            Contender::HaProxySplice => "HAProxy, splicing",
            Contender::HaProxyCopy => "HAProxy, copying",
            Contender::Nginx => "nginx stream",
            Contender::NginxDefault => "nginx stream, 16 KiB",
            Contender::NginxTransparent => "nginx stream, transparent",
            Contender::PassedThrough => "longsplice, passed through",
            Contender::Accelerated => "longsplice, accelerator",
            Contender::AnsweredEarly => "longsplice, early answers",
            Contender::TakenOver => "longsplice, taken over",
        }
    }
}

/// Common ground of contenders: the same namespaces and ports for each.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rig<'a> {
    /// Directory of files.
    pub(crate) room: &'a Room,
    /// Namespaces.
    pub(crate) nodes: &'a Nodes,
}

/// Contender that is ready. Dropping it ends it.
#[derive(Debug)]
pub(crate) struct Standing<'a> {
    /// Address to which the client connects.
    pub(crate) at: SocketAddr,
    /// Daemon, if it is Longsplice.
    pub(crate) daemon: Option<Daemon>,
    /// Peer, if it is one.
    pub(crate) peer: Option<Peer>,
    /// True if connections are spliced and detached.
    pub(crate) splices: bool,
    /// Rules that the router compares packets with.
    _filter: Option<Filter<'a>>,
    /// Rules that bring connections to a transparent relay.
    _diversion: Option<Diversion<'a>>,
}

impl Standing<'_> {
    /// Returns the process in the middle, if there is one.
    pub(crate) fn pid(&self) -> Option<u32> {
        let daemon = self.daemon.as_ref().map(Daemon::pid);
        daemon.or(self.peer.as_ref().map(Peer::pid))
    }

    /// Returns the state of the daemon in the middle.
    pub(crate) fn status(&self) -> Result<Status> {
        self.daemon
            .as_ref()
            .context("no daemon is in the middle")?
            .status()
    }

    /// Checks that all of so many connections are taken over and stay so, if that is the contender's work.
    pub(crate) fn all_kept(&self, contender: Contender, connections: usize) -> Result<()> {
        if contender != Contender::TakenOver {
            return Ok(());
        }
        let status = self.status()?.accelerator.context("it is an accelerator")?;
        ensure!(
            status.taken_over_total as usize >= connections && status.released_total == 0,
            "{connections} connections should be taken over and stay so: {status:?}"
        );
        Ok(())
    }

    /// Returns the number of connections of the stream that were spliced, if the contender splices: none where only one
    /// of iperf3's two was, which may be that without the bytes.
    pub(crate) fn splices(&self) -> Result<Option<u64>> {
        let Some(daemon) = self.daemon.as_ref().filter(|_| self.splices) else {
            return Ok(None);
        };
        let detached = daemon.status()?.counters.detached_total;
        Ok(Some(if detached < 2 { 0 } else { detached }))
    }

    /// Waits until so many connections have been detached, if the contender splices.
    pub(crate) fn detached(&self, connections: usize) -> Result<()> {
        let lacking = self.lacking(connections, DETACH)?;
        ensure!(
            lacking == 0,
            "{lacking} of {connections} connections were not detached in {DETACH:?}"
        );
        Ok(())
    }

    /// Waits until open, quiet connections have been detached. Sends one more exchange over all of them if some stay
    /// undetached for long; returns the number of those.
    pub(crate) fn detached_or_nudged(&self, held: &mut Held, connections: usize) -> Result<usize> {
        let lacking = self.lacking(connections, QUIET)?;
        if lacking > 0 {
            eprintln!("   {lacking} quiet connections are STUCK in their drain until more passes");
            held.exchange(1, b'!')?;
            self.detached(connections)?;
        }
        Ok(lacking)
    }

    /// Returns the number of connections that are still undetached after `patience`, or earlier when it is 0.
    fn lacking(&self, connections: usize, patience: Duration) -> Result<usize> {
        let Some(daemon) = self.daemon.as_ref().filter(|_| self.splices) else {
            return Ok(0);
        };
        let start = Instant::now();
        wait::until("connections to be detached", DETACH, || {
            let counters = daemon.status()?.counters;
            ensure!(
                counters.relayed_total == 0,
                "some connections ended: {:?}",
                counters.relayed_reasons
            );
            let lacking = connections.saturating_sub(counters.detached_total as usize);
            Ok((lacking == 0 || start.elapsed() > patience).then_some(lacking))
        })
    }
}

impl<'a> Rig<'a> {
    /// Returns the address at which the server listens.
    pub(crate) fn server(&self) -> SocketAddr {
        (self.nodes.server_addr, 5201).into()
    }

    /// Returns the address at which forwarders listen.
    pub(crate) fn front(&self) -> SocketAddr {
        (self.nodes.forwarder_client_addr, 5200).into()
    }

    /// Starts a contender.
    pub(crate) fn start(&self, contender: Contender) -> Result<Standing<'a>> {
        self.start_between(contender, self.front(), self.server())
    }

    /// Starts a contender on the core of the middle, and keeps this thread on that of the ends.
    pub(crate) fn start_apart(&self, contender: Contender) -> Result<(Standing<'a>, Pinned)> {
        self.start_apart_between(contender, self.front(), self.server())
    }

    /// Does so with a contender that listens at `at`, if it is no router, toward a server at `to`.
    pub(crate) fn start_apart_between(
        &self,
        contender: Contender,
        at: SocketAddr,
        to: SocketAddr,
    ) -> Result<(Standing<'a>, Pinned)> {
        let standing = {
            let _middle = Pinned::to(cores::MIDDLE)?;
            self.start_between(contender, at, to)?
        };
        Ok((standing, Pinned::to(cores::ENDS)?))
    }

    /// Starts a contender that listens at `at`, if it is no router, toward a server at `to`.
    fn start_between(&self, contender: Contender, at: SocketAddr, to: SocketAddr) -> Result<Standing<'a>> {
        let (room, middle) = (self.room, &self.nodes.forwarder);
        let start = |instance, splice, detach| -> Result<_> {
            let policy = Policy::new(splice, detach);
            let daemon = Daemon::forward(&instance, middle, at, to, policy)?;
            Ok((Some(daemon), None))
        };
        let longsplice = |splice, detach| start(Instance::new(room)?, splice, detach);
        let before = |splice, detach| {
            let program = env::var_os(BEFORE).with_context(|| format!("{BEFORE} names no program"))?;
            start(Instance::of(room, program.into()), splice, detach)
        };
        let haproxy = |bytes| -> Result<_> { Ok((None, Some(peers::haproxy(room, middle, at, to, bytes)?))) };
        let (daemon, peer) = match contender {
            Contender::Router | Contender::FilteringRouter => {
                let filters = contender == Contender::FilteringRouter;
                return Ok(Standing {
                    at: to,
                    daemon: None,
                    peer: None,
                    splices: false,
                    _filter: filters.then(|| filter::start(room, middle)).transpose()?,
                    _diversion: None,
                });
            }
            Contender::PassedThrough => return self.accelerate(to, &["--port", "9"]),
            Contender::Accelerated => return self.accelerate(to, &[]),
            Contender::AnsweredEarly => return self.accelerate(to, &["--early-accept", "always"]),
            Contender::TakenOver => return self.accelerate(to, KEEP),
            Contender::NginxTransparent => {
                return Ok(Standing {
                    at: to,
                    daemon: None,
                    peer: Some(peers::nginx_transparent(room, middle, at, to, peers::SMALL)?),
                    splices: false,
                    _filter: None,
                    _diversion: Some(Diversion::start(room, middle, to, at)?),
                });
            }
            Contender::Spliced => longsplice("now", "now")?,
            Contender::Parked => longsplice("now", "never")?,
            Contender::Relay => longsplice("never", "now")?,
            Contender::SplicedBefore => before("now", "now")?,
            Contender::RelayBefore => before("never", "now")?,
            Contender::HaProxy => haproxy(Bytes::Auto)?,
            Contender::HaProxySplice => haproxy(Bytes::Splice)?,
            Contender::HaProxyCopy => haproxy(Bytes::Copy)?,
            Contender::Nginx => (
                None,
                Some(peers::nginx_stream(room, middle, at, to, peers::FAST)?),
            ),
            Contender::NginxDefault => (
                None,
                Some(peers::nginx_stream(room, middle, at, to, peers::SMALL)?),
            ),
        };
        Ok(Standing {
            at,
            daemon,
            peer,
            splices: contender == Contender::Spliced,
            _filter: None,
            _diversion: None,
        })
    }

    /// Starts an accelerator in the router before a server.
    fn accelerate(&self, at: SocketAddr, options: &[&str]) -> Result<Standing<'a>> {
        let daemon = Daemon::accelerate(&Instance::new(self.room)?, &self.nodes.forwarder, options)?;
        Ok(Standing {
            at,
            daemon: Some(daemon),
            peer: None,
            splices: false,
            _filter: None,
            _diversion: None,
        })
    }

    /// Measures one stream through a contender, which has the machine for itself.
    pub(crate) fn bulk(&self, contender: Contender, seconds: u32) -> Result<Bulk> {
        self.bulk_between(contender, self.front(), self.server(), seconds)
    }

    /// Measures one stream through a contender that listens at `at`, if it is no router, to a server at `to`.
    pub(crate) fn bulk_between(
        &self,
        contender: Contender,
        at: SocketAddr,
        to: SocketAddr,
        seconds: u32,
    ) -> Result<Bulk> {
        let standing = self.start_between(contender, at, to)?;
        let (client, server) = (&self.nodes.client, &self.nodes.server);
        let mut measured = iperf::bulk(client, server, to, standing.at, seconds)?;
        measured.splices = standing.splices()?;
        Ok(measured)
    }

    /// Measures each contender in turn, for so many rounds.
    pub(crate) fn in_turn(
        &self,
        contenders: &[Contender],
        rounds: u32,
        seconds: u32,
        mut tell: impl FnMut(Contender, &Bulk),
    ) -> Result<Vec<Rounds>> {
        let mut series: Vec<_> = contenders
            .iter()
            .map(|&contender| Rounds::new(contender))
            .collect();
        for _ in 0..rounds {
            for one in &mut series {
                let measured = self.bulk(one.contender, seconds)?;
                tell(one.contender, &measured);
                one.rounds.push(measured);
            }
        }
        Ok(series)
    }
}

/// Rounds of one contender.
#[derive(Debug, Clone)]
pub(crate) struct Rounds {
    /// Contender.
    pub(crate) contender: Contender,
    /// Result of each round.
    pub(crate) rounds: Vec<Bulk>,
}

impl Rounds {
    fn new(contender: Contender) -> Self {
        Rounds {
            contender,
            rounds: Vec::new(),
        }
    }

    /// Returns its throughput.
    pub(crate) fn gbps(&self) -> Option<Spread> {
        Spread::of(self.rounds.iter().map(|round| round.gbps))
    }

    /// Returns its cost.
    pub(crate) fn cpu(&self) -> Option<Spread> {
        Spread::of(self.rounds.iter().map(|round| round.cpu_s_per_gb))
    }

    /// Returns the least number of splices in a round, if it splices.
    pub(crate) fn splices(&self) -> Option<f64> {
        self.rounds
            .iter()
            .filter_map(|round| round.splices)
            .min()
            .map(|splices| splices as f64)
    }
}
