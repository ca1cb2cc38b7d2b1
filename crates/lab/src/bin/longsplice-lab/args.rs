//! The command line.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use longsplice_lab::traffic::{Close, Pause, Transfer};
use longsplice_lab::{ConnectionSpec, Direction, LinkSpec, Queue, ThreeOptions, TrafficSpec};

/// Topologies of network namespaces, emulated links and verified traffic.
#[derive(Debug, clap::Parser)]
#[command(version)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Subcommand,
}

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Subcommand {
    /// Run a command beside three namespaces in a row, connected by veth pairs
    Three(ThreeArgs),
    /// Run a command beside three namespaces in a row, connected by emulated links, and report on the links
    Link(LinkArgs),
    /// Serve verified traffic
    Serve(ServeArgs),
    /// Drive verified traffic to a server, and print the outcome as JSON
    Drive(DriveArgs),
    /// Remove what runs of this program, or of tests, left behind when they were killed
    Sweep {
        /// What the names of the namespaces begin with
        #[arg(default_value = "")]
        prefix: String,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Switch {
    On,
    Off,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ThreeArgs {
    /// What the names of the namespaces begin with
    #[arg(long, default_value = "lab")]
    pub(crate) name: String,
    /// Segmentation and checksum offloads of the devices
    #[arg(long, default_value = "on")]
    offloads: Switch,
    /// Whether the forwarder's kernel routes
    #[arg(long, default_value = "on")]
    router: Switch,
    /// The MTU between client and forwarder
    #[arg(long, default_value_t = 1500)]
    mtu_client: u16,
    /// The MTU between forwarder and server
    #[arg(long, default_value_t = 1500)]
    mtu_server: u16,
    /// Let sockets use up to 32 MiB
    #[arg(long)]
    large_buffers: bool,
    /// The command; it finds names and addresses in variables that begin with LAB_
    #[arg(last = true, required = true)]
    pub(crate) command: Vec<String>,
}

impl ThreeArgs {
    pub(crate) fn options(&self) -> ThreeOptions {
        ThreeOptions {
            router: self.router == Switch::On,
            offloads: self.offloads == Switch::On,
            mtu_client: self.mtu_client,
            mtu_server: self.mtu_server,
            large_buffers: self.large_buffers,
        }
    }
}

#[derive(Debug, clap::Args)]
pub(crate) struct LinkArgs {
    /// What the names of the namespaces begin with
    #[arg(long, default_value = "lab")]
    pub(crate) name: String,
    /// The delay of the client's link, one way, in milliseconds
    #[arg(long, default_value_t = 0.0)]
    client_delay_ms: f64,
    /// The delay of the server's link, one way, in milliseconds
    #[arg(long, default_value_t = 0.0)]
    server_delay_ms: f64,
    /// The rate of both links in Mbit/s
    #[arg(long)]
    rate_mbit: Option<f64>,
    /// The queues of both links in bytes
    #[arg(long, default_value_t = 256 << 10)]
    queue: u64,
    /// The probability of a loss on the client's link, each way, in percent
    #[arg(long, default_value_t = 0.0)]
    client_loss: f64,
    /// The probability of a loss on the server's link, each way, in percent
    #[arg(long, default_value_t = 0.0)]
    server_loss: f64,
    /// What is added to the delay at most, on both links, in milliseconds
    #[arg(long, default_value_t = 0.0)]
    jitter_ms: f64,
    /// The probability that a packet is held back, on both links, in percent
    #[arg(long, default_value_t = 0.0)]
    reorder: f64,
    /// How long it is held back, in milliseconds
    #[arg(long, default_value_t = 5.0)]
    reorder_ms: f64,
    /// The probability that a packet arrives twice, on both links, in percent
    #[arg(long, default_value_t = 0.0)]
    duplicate: f64,
    /// The seed of all luck
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The command; it finds names and addresses in variables that begin with LAB_
    #[arg(last = true, required = true)]
    pub(crate) command: Vec<String>,
}

impl LinkArgs {
    pub(crate) fn client_link(&self) -> LinkSpec {
        self.link(self.client_delay_ms, self.client_loss, self.seed)
    }

    pub(crate) fn server_link(&self) -> LinkSpec {
        self.link(self.server_delay_ms, self.server_loss, self.seed.rotate_left(32))
    }

    fn link(&self, delay_ms: f64, loss_percent: f64, seed: u64) -> LinkSpec {
        LinkSpec::symmetric(Direction {
            delay: milliseconds(delay_ms),
            jitter: milliseconds(self.jitter_ms),
            loss: loss_percent / 100.0,
            reorder: self.reorder / 100.0,
            reorder_delay: milliseconds(self.reorder_ms),
            duplicate: self.duplicate / 100.0,
            rate: self.rate_mbit.map(|rate| (rate * 1e6) as u64),
            queue: Queue::Bytes(self.queue),
            seed,
        })
    }
}

fn milliseconds(ms: f64) -> Duration {
    Duration::from_secs_f64(ms.max(0.0) / 1000.0)
}

#[derive(Debug, clap::Args)]
pub(crate) struct ServeArgs {
    /// The address to listen at
    #[arg(long, default_value_t = IpAddr::V4(Ipv4Addr::UNSPECIFIED))]
    pub(crate) addr: IpAddr,
    /// The port to listen at
    #[arg(long)]
    pub(crate) port: u16,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum CloseArg {
    Both,
    ClientFirst,
    ServerFirst,
}

#[derive(Debug, clap::Args)]
pub(crate) struct DriveArgs {
    /// Where the server is, or what stands before it
    pub(crate) to: SocketAddr,
    /// How many connections
    #[arg(long, default_value_t = 1)]
    connections: usize,
    /// How many of them at a time; all, if it is not given
    #[arg(long)]
    parallel: Option<usize>,
    /// How many bytes each sends in both directions
    #[arg(long, default_value_t = 1 << 20)]
    bytes: u64,
    /// How many bytes each sends to the server, if not as many
    #[arg(long)]
    to_server: Option<u64>,
    /// How many bytes each sends to the client, if not as many
    #[arg(long)]
    to_client: Option<u64>,
    /// The rate of the senders, in byte/s
    #[arg(long)]
    send_rate: Option<u64>,
    /// The rate of the receivers, in byte/s
    #[arg(long)]
    receive_rate: Option<u64>,
    /// The most bytes in one write
    #[arg(long, default_value_t = longsplice_lab::pattern::MAX_PIECE)]
    chunk: usize,
    /// After how many bytes each sender pauses
    #[arg(long, requires = "pause_ms")]
    pause_after: Option<u64>,
    /// How long it pauses, in milliseconds
    #[arg(long, requires = "pause_after")]
    pause_ms: Option<u64>,
    /// Who closes first
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
    seed: u64,
}

impl DriveArgs {
    pub(crate) fn spec(&self) -> TrafficSpec {
        let pause = self.pause_after.zip(self.pause_ms);
        let transfer = |bytes: Option<u64>| Transfer {
            bytes: bytes.unwrap_or(self.bytes),
            send_rate: self.send_rate,
            receive_rate: self.receive_rate,
            chunk: self.chunk,
            pause: pause.map(|(after_bytes, ms)| Pause {
                after_bytes,
                length: Duration::from_millis(ms),
            }),
        };
        let each = ConnectionSpec {
            close: match self.close {
                CloseArg::Both => Close::Both,
                CloseArg::ClientFirst => Close::ClientFirst,
                CloseArg::ServerFirst => Close::ServerFirst,
            },
            congestion: self.congestion.clone(),
            sha256: self.sha256,
            stall: Duration::from_secs(self.stall.max(1)),
            ..ConnectionSpec::new(transfer(self.to_server), transfer(self.to_client))
        };
        let parallel = self.parallel.unwrap_or(self.connections);
        TrafficSpec {
            seed: self.seed,
            ..TrafficSpec::same(self.connections, each).parallel(parallel)
        }
    }
}
