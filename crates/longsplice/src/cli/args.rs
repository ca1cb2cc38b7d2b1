//! Defines the command line.

use std::{net::IpAddr, path::PathBuf};

use clap::{Args, Parser, Subcommand};
use longsplice_core::{
    limit::RateLimit,
    policy::{DetachPolicy, SplicePolicy},
};
use longsplice_engine::{
    FlowId, Until, XdpMode,
    rules::{Network, Ports},
};

use crate::{
    address::{ListenAddr, PortRange, Target},
    config::{EarlyAccept, KeepaliveSetting, LogFormat, MemoryLimit, OnShutdown, Period, StandingQueue},
    instance::InstanceName,
};

/// Forwards TCP connections, and takes itself out of them: once nothing has to be read any more, an eBPF program
/// translates the segments of the one connection into those of the other, and the sockets are gone.
#[derive(Debug, Parser)]
#[command(
    name = "longsplice",
    version,
    after_help = "\
Try it:  longsplice forward --listen 0.0.0.0:8080 --to 127.0.0.1:8000
Examine this machine:  longsplice doctor"
)]
pub(super) struct Cli {
    /// Command to run.
    #[command(subcommand)]
    pub command: Command,
    /// Options of every command.
    #[command(flatten)]
    pub common: Common,
}

/// Holds the options that every command takes.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "With every command")]
pub(super) struct Common {
    /// Which daemon of this machine; each has its own name [default: default]
    #[arg(long, global = true, value_name = "NAME")]
    pub instance: Option<InstanceName>,
    /// The form of log lines [default: text]
    #[arg(long, global = true, value_enum, value_name = "FORM")]
    pub log_format: Option<LogFormat>,
    /// Log each connection (-v) or each step (-vv)
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub verbose: u8,
    /// Log warnings and errors only (-q) or errors only (-qq)
    #[arg(short, long, global = true, action = clap::ArgAction::Count, conflicts_with = "verbose")]
    pub quiet: u8,
}

/// Names what to do.
#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Run the daemon as a file says
    #[command(after_help = "Example: longsplice run --config /etc/longsplice.toml")]
    Run(Run),
    /// Run a daemon with one listener, without a file
    #[command(after_help = "\
Example: longsplice forward --listen 0.0.0.0:8080 --to 127.0.0.1:8000
         longsplice forward --listen 8080 --to web.example:80 --splice after=1MiB --detach now
         longsplice forward --listen 8080 --to web.example:80 --splice now --unsplice data=client,idle=10s")]
    Forward(Box<Forward>),
    /// Run a transparent TCP accelerator on a router, without a file
    #[command(after_help = "\
Example: longsplice accelerate --inside eth1 --outside eth0
         longsplice accelerate --inside eth1 --outside eth0 --outside-congestion bbr --except 192.0.2.0/24
Stopped in order, it releases its connections; they live on.")]
    Accelerate(Box<Accelerate>),
    /// Check configuration files and say what was understood
    #[command(after_help = "\
Example: longsplice check /etc/longsplice.toml
         longsplice check examples/switch.toml --explain 'GET http://127.0.0.1:8081/a.gif'
         longsplice check web.toml --explain 'https://www.example/basket?id=7' --header 'Cookie: session=1'")]
    Check(Box<Check>),
    /// List the connections of a running daemon, relayed and spliced
    #[command(
        after_help = "Not listed, as they have no number: sessions of HTTP but for their spliced replies, and connections whose TLS ends here.
Example: longsplice flows --json | jq '.[] | select(.state == \"relay\") | .reason'"
    )]
    Flows(Ask),
    /// Show what a running daemon does and has done
    #[command(after_help = "Example: longsplice status --json | jq .relayed_reasons")]
    Status(Ask),
    /// Load the configuration of a running daemon again; with an error in it nothing changes
    #[command(after_help = "\
Example: longsplice check /etc/longsplice.toml && longsplice reload
Exit code 1 if nothing was changed; the reason is told.")]
    Reload {
        /// Where the daemon's admin socket is, if not at the usual place
        #[arg(long, value_name = "PATH")]
        admin: Option<PathBuf>,
    },
    /// Show or replace the rules of a running daemon for packets that come in
    #[command(after_help = "\
Example: longsplice rules load /etc/longsplice-rules.toml
         longsplice rules list --json | jq '.rules[] | select(.packets > 0)'")]
    Rules {
        /// Command to run on them.
        #[command(subcommand)]
        what: Rules,
    },
    /// List the servers of a running daemon: their state, connections and checks
    #[command(
        after_help = "Example: longsplice servers --json | jq '.[].servers[] | select(.state != \"up\")'"
    )]
    Servers {
        /// Command to run on one of them; without one they are listed.
        #[command(subcommand)]
        what: Option<Servers>,
        /// How to list them.
        #[command(flatten)]
        ask: Ask,
    },
    /// Say what this machine can do, what is missing, and how to mend it
    #[command(after_help = "\
Example: longsplice doctor
         longsplice doctor --accelerate
Exit code 1 if this machine cannot splice (with --accelerate: not accelerate).")]
    Doctor(Doctor),
    /// Splice a relayed connection now, whatever its policy
    #[command(after_help = "Example: longsplice splice 17     (`longsplice flows` shows the numbers)")]
    Splice(Connection),
    /// Take a spliced connection back into the relay, where it stays until `splice` is asked for; a spliced reply of HTTP, into its session
    #[command(after_help = "Example: longsplice unsplice 17     (`longsplice flows` shows the numbers)")]
    Unsplice(Connection),
    /// End a connection, relayed or spliced: both its ends are reset
    #[command(after_help = "Example: longsplice kill 17     (`longsplice flows` shows the numbers)")]
    Kill(Connection),
}

/// `splice`, `unsplice` and `kill`.
#[derive(Debug, Args)]
pub(super) struct Connection {
    /// The connection's number.
    pub id: FlowId,
    /// Where the daemon's admin socket is, if not at the usual place
    #[arg(long, value_name = "PATH")]
    pub admin: Option<PathBuf>,
}

/// `check`.
#[derive(Debug, Args)]
pub(super) struct Check {
    /// The files
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Say which route a request would take, and why: 'METHOD URL', or a URL for a GET
    #[arg(long, value_name = "REQUEST")]
    pub explain: Option<String>,
    /// A header field of that request; can be given again
    #[arg(long, value_name = "NAME: VALUE", requires = "explain")]
    pub header: Vec<String>,
    /// The address that it comes from
    #[arg(long, value_name = "IP", requires = "explain", default_value = "127.0.0.1")]
    pub client: IpAddr,
    /// The server's name in its ClientHello [default: the host of an https URL]
    #[arg(long, value_name = "NAME", requires = "explain")]
    pub sni: Option<String>,
    /// A protocol that its ClientHello offers, such as h2; can be given again
    #[arg(long, value_name = "PROTOCOL", requires = "explain")]
    pub alpn: Vec<String>,
    /// The listener that it comes to [default: the one with the port of the URL]
    #[arg(long, value_name = "NAME", requires = "explain")]
    pub listener: Option<String>,
    /// The explanation for programs
    #[arg(long, requires = "explain")]
    pub json: bool,
}

/// `run`.
#[derive(Debug, Args)]
pub(super) struct Run {
    /// The configuration (docs/configuration.md)
    #[arg(long, short, value_name = "FILE")]
    pub config: PathBuf,
    /// End at once where splicing is out of reach [default: relay every connection, and say why]
    #[arg(long)]
    pub require_splice: bool,
    /// Spliced flows at a clean shutdown: keep them running, or end them [default: keep]
    #[arg(long, value_enum, value_name = "WHAT")]
    pub on_shutdown: Option<OnShutdown>,
    /// Where to put the admin socket [default: /run/longsplice/INSTANCE.sock, or in a directory of the user]
    #[arg(long, value_name = "PATH")]
    pub admin: Option<PathBuf>,
    /// Take the place of the running daemon of this instance: it hands over its listening sockets once this one serves, and ends
    /// when its relayed connections have, or after its shutdown timeout
    #[arg(long)]
    pub replace: bool,
}

/// `forward`.
#[derive(Debug, Args)]
pub(super) struct Forward {
    /// Where to listen: ADDR:PORT, [V6ADDR]:PORT, :PORT or PORT; can be given again
    #[arg(long, required = true, value_name = "ADDR")]
    pub listen: Vec<ListenAddr>,
    /// Where to connect: IP:PORT, [V6ADDR]:PORT or NAME:PORT; further ones are tried in order
    #[arg(long, required = true, value_name = "HOST:PORT")]
    pub to: Vec<Target>,
    /// When to splice: auto, now, never, after=BYTES or after=DURATION
    #[arg(long, default_value_t, value_name = "POLICY")]
    pub splice: SplicePolicy,
    /// When to close the sockets of a spliced connection: now, never or after=DURATION
    #[arg(long, default_value_t, value_name = "POLICY")]
    pub detach: DetachPolicy,
    /// When to take a spliced connection back into the relay: data, data=SIDE, data=SIDE:BYTES, bytes=SIDE:BYTES,
    /// after=DURATION or idle=DURATION, joined by commas; SIDE is client or server [default: when it is asked for]
    #[arg(long, value_name = "CONDITIONS")]
    pub unsplice: Option<Until>,
    /// How fast each connection's payload may pass, relayed or spliced: RATE for each direction, or client=RATE and
    /// server=RATE for what they send; burst=BYTES; joined by commas. A RATE is such as 10MB/s [default: no limit]
    #[arg(long, value_name = "LIMIT")]
    pub rate_limit: Option<RateLimit>,
    /// End a relayed connection in which nothing passed for this long [default: 1h]
    #[arg(long, value_name = "DURATION")]
    pub relay_idle_timeout: Option<Period>,
    /// How to probe the ends of an idle relayed connection: off, or idle=DURATION, interval=DURATION and probes=COUNT, joined by
    /// commas [default: idle=2m,interval=15s,probes=4]
    #[arg(long, value_name = "PROBES")]
    pub keepalive: Option<KeepaliveSetting>,
    /// Splice only over this interface; can be given again [default: all that are up]
    #[arg(long, value_name = "NAME", value_parser = interface)]
    pub interface: Vec<String>,
    /// Translate detached connections in XDP on this interface; can be given again [default: at tc everywhere]
    #[arg(long, value_name = "NAME")]
    pub xdp: Vec<String>,
    /// Where XDP runs: native (in the driver) or generic
    #[arg(long, default_value_t, value_name = "MODE", requires = "xdp")]
    pub xdp_mode: XdpMode,
    /// The source ports of connections to the target [default: outside the kernel's own range]
    #[arg(long, value_name = "LO-HI")]
    pub source_ports: Option<PortRange>,
    /// End a spliced connection in which nothing passed for this long [default: 1d]
    #[arg(long, value_name = "DURATION")]
    pub idle_timeout: Option<Period>,
    /// How many connections can be spliced at once [default: 65536]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1 << 26))]
    pub max_flows: Option<u32>,
    /// How long an address of the target may take to answer [default: 5s]
    #[arg(long, value_name = "DURATION")]
    pub connect_timeout: Option<Period>,
    /// Congestion control of the legs to the clients, such as bbr [default: the kernel's]
    #[arg(long, value_name = "NAME")]
    pub congestion: Option<String>,
    /// How much memory it may take before connections are refused: auto (as the control group allows), none, or a size such as
    /// 512MiB [default: auto]
    #[arg(long, value_name = "SIZE")]
    pub memory: Option<MemoryLimit>,
    /// End at once where splicing is out of reach [default: relay every connection, and say why]
    #[arg(long)]
    pub require_splice: bool,
    /// Spliced connections at a clean shutdown: keep them running, or end them
    #[arg(long, value_enum, default_value_t, value_name = "WHAT")]
    pub on_shutdown: OnShutdown,
    /// How long others may go on at a shutdown [default: 10s]
    #[arg(long, value_name = "DURATION")]
    pub shutdown_timeout: Option<Period>,
    /// Where to put the admin socket [default: /run/longsplice/INSTANCE.sock, or in a directory of the user]
    #[arg(long, value_name = "PATH")]
    pub admin: Option<PathBuf>,
    /// Take the place of the running daemon of this instance: it hands over its listening sockets once this one serves, and ends
    /// when its relayed connections have, or after its shutdown timeout
    #[arg(long)]
    pub replace: bool,
}

/// `accelerate`.
#[derive(Debug, Args)]
pub(super) struct Accelerate {
    /// Take the place of the running daemon of this instance: it releases its connections once this one serves, and ends
    #[arg(long)]
    pub replace: bool,
    /// Interface on one side of the router, such as a site's; can be given again
    #[arg(long, required = true, value_name = "NAME")]
    pub inside: Vec<String>,
    /// Interface on the other side, such as that of a long link; can be given again
    #[arg(long, required = true, value_name = "NAME")]
    pub outside: Vec<String>,
    /// Congestion control of the legs on the inside [default: the kernel's]
    #[arg(long, value_name = "NAME")]
    pub inside_congestion: Option<String>,
    /// Congestion control of the legs on the outside, such as bbr [default: the kernel's]
    #[arg(long, value_name = "NAME")]
    pub outside_congestion: Option<String>,
    /// Accelerate only connections to this network; can be given again [default: all]
    #[arg(long, value_name = "NETWORK")]
    pub to: Vec<Network>,
    /// Accelerate only connections to this port, or range of ports; can be given again [default: all]
    #[arg(long, value_name = "PORTS")]
    pub port: Vec<Ports>,
    /// Leave connections from and to this network alone; can be given again
    #[arg(long, value_name = "NETWORK")]
    pub except: Vec<Network>,
    /// Customers that are served first when there is no room for all; can be given again
    #[arg(long, value_name = "NETWORK")]
    pub prefer: Vec<Network>,
    /// Release connections whose round trip, both legs together, is not longer than this [default: 10ms]
    #[arg(long, value_name = "DURATION")]
    pub min_rtt: Option<Period>,
    /// Release connections that the node makes faster by less than this factor, 1 to 100; 1 keeps them however near one end is [default: 1.15]
    #[arg(long, value_name = "FACTOR", value_parser = gain)]
    pub min_gain: Option<f64>,
    /// Longest time that a byte shall wait inside the node [default: 75ms]
    #[arg(long, value_name = "DURATION")]
    pub queue: Option<Period>,
    /// Release connections in which nothing has passed for this long, 1s or more [default: 1h]
    #[arg(long, value_name = "DURATION")]
    pub idle_timeout: Option<Period>,
    /// How many connections are taken over at once [default: 16384]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    pub max_connections: Option<u32>,
    /// Connections whose client is answered before the server is: short transfers gain most; a server that refuses looks like one that
    /// accepts and resets. `known` are servers that have accepted a connection in the last ten minutes
    #[arg(long, value_enum, default_value_t, value_name = "WHICH")]
    pub early_accept: EarlyAccept,
    /// Treatment of connections that keep the queue of a bottleneck filled: a node gains nothing for them, and their shorter
    /// round trip takes the share of others
    #[arg(long, value_enum, default_value_t, value_name = "WHAT")]
    pub standing_queue: StandingQueue,
    /// How much memory it may take before connections pass through: auto (as the control group allows), none, or a size such as
    /// 512MiB [default: auto]
    #[arg(long, value_name = "SIZE")]
    pub memory: Option<MemoryLimit>,
    /// How long a shutdown may take to release its connections [default: 10s]
    #[arg(long, value_name = "DURATION")]
    pub shutdown_timeout: Option<Period>,
    /// Where to put the admin socket [default: /run/longsplice/INSTANCE.sock, or in a directory of the user]
    #[arg(long, value_name = "PATH")]
    pub admin: Option<PathBuf>,
}

/// `flows`, `status`, `servers` and `rules list`.
#[derive(Debug, Args)]
pub(super) struct Ask {
    /// For programs
    #[arg(long)]
    pub json: bool,
    /// Where the daemon's admin socket is, if not at the usual place
    #[arg(long, value_name = "PATH")]
    pub admin: Option<PathBuf>,
}

/// `rules`.
#[derive(Debug, Subcommand)]
pub(super) enum Rules {
    /// Show each rule and what it has seen
    List(Ask),
    /// Replace all rules by those of a file, at once; a file with an error changes nothing
    Load {
        /// The rules (docs/rules.md)
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// Where the daemon's admin socket is, if not at the usual place
        #[arg(long, value_name = "PATH")]
        admin: Option<PathBuf>,
    },
    /// Remove all rules, but for those of listeners that intercept
    Clear {
        /// Where the daemon's admin socket is, if not at the usual place
        #[arg(long, value_name = "PATH")]
        admin: Option<PathBuf>,
    },
}

/// `servers drain` and `servers ready`.
#[derive(Debug, Subcommand)]
pub(super) enum Servers {
    /// Let a server take no new connections and requests; those under way go on, sticky clients move to others
    #[command(after_help = "\
Example: longsplice servers drain images/192.0.2.1:80     (`longsplice servers` shows the names)
It lasts until `servers ready` or a restart of the daemon; a reload does not end it.")]
    Drain(Server),
    /// Let a drained server take connections and requests again
    #[command(after_help = "Example: longsplice servers ready images/192.0.2.1:80")]
    Ready(Server),
}

/// The server of `servers drain` and `servers ready`.
#[derive(Debug, Args)]
pub(super) struct Server {
    /// The server's name or address, behind that of its upstream (of a listener with `to`, the listener's name)
    #[arg(value_name = "UPSTREAM/SERVER")]
    pub name: String,
    /// Where the daemon's admin socket is, if not at the usual place
    #[arg(long, value_name = "PATH")]
    pub admin: Option<PathBuf>,
}

/// `doctor`.
#[derive(Debug, Args)]
pub(super) struct Doctor {
    /// For programs
    #[arg(long)]
    pub json: bool,
    /// Examine what a transparent accelerator needs, too
    #[arg(long)]
    pub accelerate: bool,
    /// The source ports that are to be used, to be compared with the kernel's
    #[arg(long, value_name = "LO-HI")]
    pub source_ports: Option<PortRange>,
}

/// Reads the factor by which a connection must gain.
fn gain(text: &str) -> Result<f64, String> {
    let gain = text.parse().ok().filter(|gain| (1.0..=100.0).contains(gain));
    gain.ok_or_else(|| format!("`{text}` is no factor from 1 to 100"))
}

fn interface(name: &str) -> Result<String, String> {
    match crate::config::rules::is_interface_name(name) {
        true => Ok(name.to_owned()),
        false => Err("this cannot be the name of an interface; `ip -br link` lists them".into()),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }
}
