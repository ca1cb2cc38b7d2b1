//! The handle through which everything is asked.

use std::{io, net::SocketAddr, time::Duration};

use tokio::net::TcpStream;

use crate::api::{Counters, Ended, FlowId, FlowInfo, Health, Pair, RequestError, Shutdown, SplicerConfig};

/// Joins pairs of connections; cheap to clone.
#[derive(Debug, Clone)]
pub struct Splicer {}

/// Why a splicer could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The process may not load programs, attach them or use TCP_REPAIR: a relay is still possible.
    #[error("{0}")]
    Privileges(String),
    /// The kernel cannot do it: a relay is still possible.
    #[error("{0}")]
    Unsupported(String),
    /// What a predecessor pinned is of another version, or belongs to another namespace: starting would harm it.
    #[error("{0}")]
    Incompatible(String),
    /// Anything else.
    #[error("{0}")]
    System(String),
}

impl Splicer {
    /// Loads or adopts the kernel half, and starts to watch interfaces and flows.
    pub async fn open(_config: SplicerConfig) -> Result<Splicer, OpenError> {
        Err(OpenError::Unsupported("not built yet".into()))
    }

    /// A splicer that only relays, and says why.
    pub fn relay_only(_config: SplicerConfig, _why: String) -> Splicer {
        Splicer {}
    }

    /// Counts an accepted connection, and prepares its socket (buffers, linger) for control mode.
    pub fn prepare_client(&self, _client: &TcpStream) -> io::Result<()> {
        Ok(())
    }

    /// Sets on a listening socket what makes its connections fit for splicing towards `target` (the MSS offered).
    pub fn prepare_listener(
        &self,
        _listener: &tokio::net::TcpListener,
        _target: SocketAddr,
    ) -> io::Result<()> {
        Ok(())
    }

    /// Connects leg B from a source port that this instance owns, with an MSS that fits leg A.
    pub async fn connect(
        &self,
        target: SocketAddr,
        _client: &TcpStream,
        timeout: Duration,
    ) -> io::Result<TcpStream> {
        tokio::time::timeout(timeout, TcpStream::connect(target)).await?
    }

    /// Relays, splices when the policy says so, and returns when the pair has ended or was detached.
    pub async fn splice(&self, _pair: Pair) -> io::Result<Ended> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Every flow there is, relayed ones too.
    pub fn flows(&self) -> Vec<FlowInfo> {
        Vec::new()
    }

    /// The counters.
    pub fn counters(&self) -> Counters {
        Counters::default()
    }

    /// What this splicer can do.
    pub fn health(&self) -> Health {
        Health {
            can_splice: false,
            why_not: None,
            interfaces: Vec::new(),
            flows: 0,
            max_flows: 0,
            source_ports: String::new(),
        }
    }

    /// Asks for a relayed pair to be spliced now, whatever its policy; returns once that is under way.
    pub async fn request_splice(&self, _id: FlowId) -> Result<(), RequestError> {
        Ok(())
    }

    /// Ends what is in control mode after `grace`, and leaves or ends what is spliced.
    pub async fn shutdown(&self, _how: Shutdown, _grace: Duration) {}
}
