//! Switches between HTTP clients and a file server, and that server.

use std::fs;
use std::net::SocketAddr;

use anyhow::{Context, Result};
use longsplice_lab::cores::Pinned;
use longsplice_lab::topology::Nodes;
use longsplice_lab::{Line, LineOptions, Namespace};

use crate::cores;
use crate::daemon::{Daemon, Instance};
use crate::peers::{self, Bytes, Peer};
use crate::supervise::Room;

/// Switch, or its substitute.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Switch {
    /// Kernel router in place of a switch. It shows the most that both ends can do.
    Direct,
    /// Longsplice by its own choice: it splices replies where that pays.
    Splicing,
    /// Longsplice, every reply with a length or chunks spliced: all those that `Splicing` chooses from.
    Eager,
    /// Longsplice, no reply spliced.
    Relaying,
    /// HAProxy in HTTP mode with splice(2).
    HaProxyHttp,
    /// HAProxy in TCP mode with splice(2): it reads no request.
    HaProxyTcp,
    /// nginx as an HTTP proxy.
    Nginx,
}

impl Switch {
    /// Returns its name in a table.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Switch::Direct => "no switch (kernel router)",
            Switch::Splicing => "longsplice, splice = auto",
            Switch::Eager => "longsplice, splice = now",
            Switch::Relaying => "longsplice, splice = never",
            Switch::HaProxyHttp => "HAProxy, HTTP mode",
            Switch::HaProxyTcp => "HAProxy, TCP mode",
            Switch::Nginx => "nginx",
        }
    }

    /// Returns its listener's setting for splices.
    fn policy(self) -> Option<&'static str> {
        match self {
            Switch::Splicing => Some("splice = \"auto\""),
            Switch::Eager => Some("splice = \"now\"\nsplice_min = \"1\""),
            Switch::Relaying => Some("splice = \"never\""),
            _ => None,
        }
    }
}

/// Switch that is ready. Dropping it ends it.
#[derive(Debug)]
pub(crate) struct Standing {
    /// Address to which clients connect.
    pub(crate) at: SocketAddr,
    daemon: Option<Daemon>,
    peer: Option<Peer>,
}

impl Standing {
    /// Returns the process in the middle, if there is one.
    pub(crate) fn pid(&self) -> Option<u32> {
        let daemon = self.daemon.as_ref().map(Daemon::pid);
        daemon.or(self.peer.as_ref().map(Peer::pid))
    }

    /// Returns the number of splices so far; 0 for a peer.
    pub(crate) fn splices(&self) -> Result<u64> {
        let Some(daemon) = &self.daemon else { return Ok(0) };
        Ok(daemon.status()?.counters.spliced_total)
    }

    /// Returns, in one line, the reasons why connections were relayed, if it is Longsplice.
    pub(crate) fn reasons(&self) -> Result<Option<String>> {
        let Some(daemon) = &self.daemon else {
            return Ok(None);
        };
        let counters = daemon.status()?.counters;
        Ok(Some(format!(
            "{} splices; relayed: {:?}",
            counters.spliced_total, counters.relayed_reasons
        )))
    }

    /// Waits until so many connections have been detached, if it is Longsplice.
    pub(crate) fn detached(&self, connections: usize) -> Result<()> {
        let Some(daemon) = &self.daemon else { return Ok(()) };
        daemon.detached(connections)
    }
}

/// Switch with namespaces of its own, a core for itself, and nginx behind it; the ends have another core. Dropping it
/// ends all.
#[derive(Debug)]
pub(crate) struct Apart {
    // Fields are in the order of their ends.
    _files: Peer,
    /// Switch in the middle.
    pub(crate) standing: Standing,
    net: Line,
}

impl Apart {
    /// Starts a switch, with files of these lengths.
    pub(crate) fn start(room: &Room, switch: Switch, lengths: &[u64]) -> Result<Self> {
        let net = Line::new("bench", LineOptions::router())?;
        cores::part(&net)?;
        let rig = Rig { room, nodes: &net };
        let standing = {
            let _middle = Pinned::to(cores::MIDDLE)?;
            rig.start(switch)?
        };
        let files = {
            let _ends = Pinned::to(cores::ENDS)?;
            rig.files(lengths)?
        };
        Ok(Apart {
            _files: files,
            standing,
            net,
        })
    }

    /// Returns the client's namespace; a client there should be [`Pinned`] to the ends' core.
    pub(crate) fn client(&self) -> &Namespace {
        &self.net.client
    }
}

/// Common ground of switches: the same namespaces and ports for each.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rig<'a> {
    /// Directory of files.
    pub(crate) room: &'a Room,
    /// Namespaces. Their forwarder must be a router for [`Switch::Direct`].
    pub(crate) nodes: &'a Nodes,
}

impl Rig<'_> {
    /// Returns the address at which the server listens.
    pub(crate) fn server(&self) -> SocketAddr {
        (self.nodes.server_addr, 8000).into()
    }

    /// Starts nginx as the server, with a file of each of these lengths, named by it.
    fn files(&self, lengths: &[u64]) -> Result<Peer> {
        let root = self.room.file("files");
        fs::create_dir_all(&root).context("make the directory of files")?;
        for length in lengths {
            let file = root.join(length.to_string());
            let content = vec![b'x'; usize::try_from(*length)?];
            fs::write(&file, content).with_context(|| format!("write {}", file.display()))?;
        }
        peers::nginx_files(self.room, &self.nodes.server, self.server(), &root)
    }

    /// Starts a switch.
    pub(crate) fn start(&self, switch: Switch) -> Result<Standing> {
        let (room, to, middle) = (self.room, self.server(), &self.nodes.forwarder);
        let at = (self.nodes.forwarder_client_addr, 8080).into();
        let peer = |peer| (None, Some(peer));
        let (daemon, peer) = match switch {
            Switch::Direct => {
                return Ok(Standing {
                    at: to,
                    daemon: None,
                    peer: None,
                });
            }
            Switch::Splicing | Switch::Eager | Switch::Relaying => (Some(self.longsplice(switch, at)?), None),
            Switch::HaProxyHttp => peer(peers::haproxy_http(room, middle, at, to)?),
            Switch::HaProxyTcp => peer(peers::haproxy(room, middle, at, to, Bytes::Splice)?),
            Switch::Nginx => peer(peers::nginx_proxy(room, middle, at, to)?),
        };
        Ok(Standing { at, daemon, peer })
    }

    fn longsplice(&self, switch: Switch, at: SocketAddr) -> Result<Daemon> {
        let policy = switch.policy().context("it is no daemon")?;
        let instance = Instance::new(self.room)?;
        let config = format!(
            "instance = \"{}\"\n\
             [[upstream]]\nname = \"files\"\nservers = \"{}\"\nmax_idle = 256\nidle_timeout = \"1h\"\n\
             [[listener]]\nname = \"web\"\nlisten = \"{at}\"\nprotocol = \"http\"\nupstream = \"files\"\n\
             {policy}\n\
             [listener.http]\nmax_requests = 100000000\n",
            instance.name(),
            self.server()
        );
        Daemon::run(&instance, &self.nodes.forwarder, &config)
    }
}
