//! Verified traffic on the command line.

use std::time::Duration;

use longsplice_lab::traffic::{Close, Exchanges, Pause, Transfer};
use longsplice_lab::{ConnectionSpec, TrafficSpec};

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum CloseArg {
    Both,
    ClientFirst,
    ServerFirst,
}

#[derive(Debug, clap::Args)]
pub(crate) struct DriveArgs {
    /// Number of connections
    #[arg(long, default_value_t = 1)]
    connections: usize,
    /// Number of connections at a time; all, if it is not given
    #[arg(long)]
    parallel: Option<usize>,
    /// Number of bytes that each connection sends in both directions
    #[arg(long, default_value_t = 1 << 20)]
    bytes: u64,
    /// Number of bytes to the server, if it differs from --bytes
    #[arg(long)]
    to_server: Option<u64>,
    /// Number of bytes to the client, if it differs from --bytes
    #[arg(long)]
    to_client: Option<u64>,
    /// Number of requests and replies by turns on each connection, in place of a stream
    #[arg(long, value_name = "COUNT")]
    exchanges: Option<u32>,
    /// The bytes of a request
    #[arg(long, default_value_t = 200, requires = "exchanges")]
    request: u64,
    /// The bytes of a reply
    #[arg(long, default_value_t = 10_000, requires = "exchanges")]
    reply: u64,
    /// Pause of a client between a reply and its next request, in milliseconds
    #[arg(long, default_value_t = 0, requires = "exchanges")]
    think_ms: u64,
    /// Pause of a server between a request and its reply, in milliseconds
    #[arg(long, default_value_t = 0, requires = "exchanges")]
    work_ms: u64,
    /// The rate of the senders, in byte/s
    #[arg(long)]
    send_rate: Option<u64>,
    /// The rate of the receivers, in byte/s
    #[arg(long)]
    receive_rate: Option<u64>,
    /// The most bytes in one write
    #[arg(long, default_value_t = longsplice_lab::pattern::MAX_PIECE)]
    chunk: usize,
    /// Number of bytes after which each sender pauses
    #[arg(long, requires = "pause_ms")]
    pause_after: Option<u64>,
    /// Length of that pause, in milliseconds
    #[arg(long, requires = "pause_after")]
    pause_ms: Option<u64>,
    /// Number of bytes after which each receiver stops reading for a while; may be given several times
    #[arg(long, value_name = "BYTES", requires = "read_pause_ms")]
    read_pause_after: Vec<u64>,
    /// Length of each of those pauses, in milliseconds
    #[arg(long, requires = "read_pause_after")]
    read_pause_ms: Option<u64>,
    /// End that closes first
    #[arg(long, default_value = "both")]
    close: CloseArg,
    /// The congestion control
    #[arg(long)]
    congestion: Option<String>,
    /// Compute the SHA-256 of what is received
    #[arg(long)]
    sha256: bool,
    /// The seconds without progress after which a connection has failed
    #[arg(long, default_value_t = 10)]
    stall: u64,
    /// The seed of the patterns
    #[arg(long, default_value_t = 1)]
    pattern_seed: u64,
}

impl DriveArgs {
    pub(crate) fn spec(&self) -> TrafficSpec {
        let exchanges = self.exchanges.map(|count| Exchanges {
            think: Duration::from_millis(self.think_ms),
            work: Duration::from_millis(self.work_ms),
            ..Exchanges::new(count, self.request, self.reply)
        });
        let each = ConnectionSpec {
            exchanges,
            close: match self.close {
                CloseArg::Both => Close::Both,
                CloseArg::ClientFirst => Close::ClientFirst,
                CloseArg::ServerFirst => Close::ServerFirst,
            },
            congestion: self.congestion.clone(),
            sha256: self.sha256,
            stall: Duration::from_secs(self.stall.max(1)),
            ..ConnectionSpec::new(self.transfer(self.to_server), self.transfer(self.to_client))
        };
        let parallel = self.parallel.unwrap_or(self.connections);
        TrafficSpec {
            seed: self.pattern_seed,
            ..TrafficSpec::same(self.connections, each).parallel(parallel)
        }
    }

    fn transfer(&self, bytes: Option<u64>) -> Transfer {
        let pause = |after_bytes, ms| Pause {
            after_bytes,
            length: Duration::from_millis(ms),
        };
        let read_ms = self.read_pause_ms.unwrap_or(0);
        Transfer {
            bytes: bytes.unwrap_or(self.bytes),
            send_rate: self.send_rate,
            receive_rate: self.receive_rate,
            chunk: self.chunk,
            pause: self
                .pause_after
                .zip(self.pause_ms)
                .map(|(after, ms)| pause(after, ms)),
            read_pauses: self
                .read_pause_after
                .iter()
                .map(|after| pause(*after, read_ms))
                .collect(),
        }
    }
}
