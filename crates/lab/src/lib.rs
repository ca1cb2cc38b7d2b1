//! Topologies of network namespaces, emulated links and verified traffic, for tests and benchmarks.
//!
//! A test asks for a topology, runs the product in the middle of it, sends traffic whose every byte is
//! checked, and drops everything again:
//!
//! ```no_run
//! use longsplice_lab::{ConnectionSpec, Line, LineOptions, Traffic, TrafficServer, TrafficSpec};
//!
//! # fn main() -> Result<(), longsplice_lab::Error> {
//! let net = Line::new("my-test", LineOptions::router())?;
//! let server = TrafficServer::start(&net.server, (net.server_addr, 7000).into())?;
//! let spec = TrafficSpec::same(10, ConnectionSpec::both_ways(1 << 20));
//! let outcome = Traffic::run(&net.client, server.addr(), &spec)?;
//! assert!(outcome.all_ok(), "{outcome:#?}");
//! # Ok(())
//! # }
//! ```
//!
//! Links are emulated where a test wants them long or bad, and described as text ([`LinkSpec`] has the syntax, and
//! `longsplice-lab links` shows it). A run in which the emulator was late does not count, and is repeated:
//!
//! ```no_run
//! # use longsplice_lab::{ConnectionSpec, Emulated, Exchanges, Traffic, TrafficServer, TrafficSpec};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let net = Emulated::new("my-test", "rtt100".parse()?, "bad,seed=7".parse()?)?;
//! let server = TrafficServer::start(&net.server, (net.server_addr, 7000).into())?;
//! // Ten requests of 200 bytes on each connection, each answered by 20,000.
//! let spec = TrafficSpec::same(4, ConnectionSpec::exchanges(Exchanges::new(10, 200, 20_000)));
//! let outcome = net.emulator().counted(5, || Traffic::run(&net.client, server.addr(), &spec))??;
//! assert!(outcome.all_ok(), "{outcome}");
//! # Ok(())
//! # }
//! ```
//!
//! [`topology`] has the nodes and their connections, [`emulator`] explains when a run counts, [`traffic`] has the
//! verified connections and their reports.
//!
//! Everything here needs root, except [`pattern`], [`link`], [`emulator::schedule`] and [`Traffic::drive`].
//! Each guard removes what it created when it is dropped, when the process panics, and, after [`cleanup::install`],
//! when the process is interrupted. [`cleanup::sweep`] removes what a process killed with SIGKILL left behind
//! (`longsplice-lab clean`).

#![forbid(unsafe_code)]

pub mod cleanup;
mod clock;
mod command;
pub mod cores;
pub mod emulator;
mod error;
pub mod link;
pub mod netns;
pub mod pattern;
mod process;
mod random;
mod registry;
mod snmp;
mod sockets;
mod tool;
pub mod topology;
pub mod traffic;
mod tunnel;
mod unable;

pub use clock::monotonic_ns;
pub use command::NsCommand;
pub use emulator::{Emulator, LinkReport, Report, Verdict};
pub use error::Error;
pub use link::{Burst, Direction, Distribution, LinkError, LinkSpec, Queue, Red};
pub use netns::Namespace;
pub use process::Process;
pub use snmp::{Counters, Tally};
pub use topology::{
    Emulated, Family, Graph, GraphLink, GraphSpec, Leg, Line, LineOptions, MultiServer, MultiServerOptions,
};
pub use traffic::{ConnectionSpec, Exchanges, Outcome, Traffic, TrafficServer, TrafficSpec};
pub use tunnel::{Tunnel, TunnelEnd};
pub use unable::not_run;
