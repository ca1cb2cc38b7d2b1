//! The command line.

mod drive;
mod net;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

pub(crate) use drive::DriveArgs;
pub(crate) use net::NetArgs;

use crate::experiment::RunArgs;

/// Topologies of network namespaces, emulated links, verified traffic, and experiments.
///
/// A topology is a client, a forwarder and one or more servers, each a network namespace, and lives as long as the command
/// that made it. Links are emulated where they are described, and veth pairs elsewhere; `links` says how to describe them.
#[derive(Debug, clap::Parser)]
#[command(version)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Subcommand,
}

#[derive(Debug, clap::Subcommand)]
#[allow(clippy::large_enum_variant, reason = "there is one of them")]
pub(crate) enum Subcommand {
    /// Bring up a topology around a command, or until interrupted, and report on its links
    Up(UpArgs),
    /// Run a command in a namespace of a topology that is up
    Exec(ExecArgs),
    /// Bring up a topology, run verified traffic over it, and report
    ///
    /// Ends with status 0 when every byte arrived and 1 when some did not. Ends with status 3 when every byte arrived
    /// but the emulator was late in every attempt, so that the run does not count.
    Traffic(TrafficArgs),
    /// Show how links are described, and what descriptions mean
    Links {
        /// Descriptions, as `rtt20,loss=1%`
        links: Vec<String>,
    },
    /// Serve verified traffic
    Serve(ServeArgs),
    /// Drive verified traffic to a server, and report
    Drive {
        /// Address of the server, or of the forwarder before it
        to: SocketAddr,
        #[command(flatten)]
        drive: DriveArgs,
        /// Report as JSON
        #[arg(long)]
        json: bool,
    },
    /// List the experiments
    List,
    /// Run experiments with the accelerator, and write their results and pictures
    ///
    /// Ends with status 3 when points do not count: the emulator was late in every attempt, or a flow failed or was not
    /// taken over.
    Run(RunArgs),
    /// Remove what killed runs of this program, or of tests, left behind
    #[command(alias = "sweep")]
    Clean {
        /// Prefix of the names of the namespaces; those of experiments begin with `lab-exp`
        #[arg(default_value = "")]
        prefix: String,
    },
}

#[derive(Debug, clap::Args)]
pub(crate) struct UpArgs {
    #[command(flatten)]
    pub(crate) net: NetArgs,
    /// Graph to bring up in place of client, forwarder and servers: a file with `hosts`, `nodes`, `routers` and `[[links]]`
    /// (docs/lab.md)
    #[arg(long, value_name = "FILE", conflicts_with_all = ["client_link", "router_link", "server_link", "servers", "no_routing"])]
    pub(crate) graph: Option<PathBuf>,
    /// Report on the links as JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// The command; it finds names and addresses in variables that begin with LAB_
    #[arg(last = true)]
    pub(crate) command: Vec<String>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ExecArgs {
    /// Prefix of the names of the namespaces
    #[arg(long, default_value = "lab")]
    pub(crate) name: String,
    /// The node: client, router, forwarder, server, server2…; or the full name of a namespace
    pub(crate) node: String,
    /// The command
    #[arg(last = true, required = true)]
    pub(crate) command: Vec<String>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct TrafficArgs {
    #[command(flatten)]
    pub(crate) net: NetArgs,
    #[command(flatten)]
    pub(crate) drive: DriveArgs,
    /// Connect to this port of the forwarder, at which the command must listen; without it, connect to the servers, to
    /// which the forwarder's kernel routes
    #[arg(long)]
    pub(crate) front: Option<u16>,
    /// The port of the servers
    #[arg(long, default_value_t = 7000)]
    pub(crate) port: u16,
    /// Highest number of runs; they end when the emulator was in time
    #[arg(long, default_value_t = 3)]
    pub(crate) attempts: u32,
    /// Report as JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// A command to run in the forwarder meanwhile; it finds names and addresses in variables that begin with LAB_
    #[arg(last = true)]
    pub(crate) command: Vec<String>,
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
