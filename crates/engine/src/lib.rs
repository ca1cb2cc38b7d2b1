//! The public library of Longsplice: [`Splicer`] takes a pair of connected TCP sockets, relays between them, and, when
//! its policy says so, splices them: the sockets leave the path and eBPF translates the segments of the one
//! connection into those of the other. When there is something to decide again, the sockets come back.
//!
//! # The heart
//!
//! A protocol handler is straight-line async code. It reads what it must, decides, and hands the pair over:
//!
//! ```no_run
//! use longsplice_engine::{Ended, OpenError, Pair, Side, Splicer, SplicerConfig, Until, policy::SplicePolicy};
//! use std::time::Duration;
//! use tokio::net::TcpListener;
//!
//! # async fn read_and_decide(_: &mut Pair) -> std::io::Result<()> { Ok(()) }
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let config = SplicerConfig { instance: "handler".into(), ..SplicerConfig::default() };
//! let splicer = match Splicer::open(config.clone()).await {
//!     Ok(splicer) => splicer,
//!     // Not here: the same code relays.
//!     Err(why @ (OpenError::Privileges(_) | OpenError::Unsupported(_))) => Splicer::relay_only(config, why),
//!     Err(why) => return Err(why.into()),
//! };
//! let target = "192.0.2.1:80".parse()?;
//! let listener = TcpListener::bind("0.0.0.0:8080").await?;
//! splicer.prepare_listener(&listener, target)?;
//! let (client, _) = listener.accept().await?;
//! splicer.prepare_client(&client)?;
//! let server = splicer.connect(target, &client, Duration::from_secs(5)).await?;
//!
//! let mut pair = Pair::new(client, server).with_splice(SplicePolicy::Now);
//! loop {
//!     // Control mode: read a request from `pair.client`, write what becomes of it to `pair.server`.
//!     read_and_decide(&mut pair).await?;
//!     // Forwarding mode, until the client says something again.
//!     match splicer.splice(pair, Until::data_from(Side::Client)).await? {
//!         Ended::Closed(summary) => break println!("{} bytes", summary.bytes_to_client),
//!         Ended::Returned(returned) => pair = returned.into(), // the next request is readable on `pair.client`
//!         Ended::Detached(id) => break println!("flow {id} outlives this process"),
//!     }
//! }
//! # Ok(())
//! # }
//! ```
//!
//! The caller sees no difference between a packet splice and, where that is not possible, a relay in user space. The
//! reason for a relay is counted ([`reason::RelayReason`], [`Splicer::counters`]). `examples/banner.rs` is a whole
//! program.
//!
//! # What is promised
//!
//! Every byte that was acknowledged to one end reaches the other end, once, in order, over any number of splices and
//! returns; or both ends see a reset. Sections III-C, III-D and III-E of Spatscheck, Hansen, Hartman and Peterson,
//! “Optimizing TCP Forwarder Performance” (IEEE/ACM Transactions on Networking), describe how a pair is spliced, comes
//! back, and has its windows matched: these are the “papers' sections” of these pages. TCP is that of RFC 9293, with RFC
//! 7323 (timestamps, window scaling), RFC 2018 (SACK) and RFC 5961.
//!
//! # What it needs
//!
//! Run it on a tokio runtime with I/O and time; Linux 6.1, better 6.6, with BTF; CAP_BPF, CAP_NET_ADMIN, CAP_NET_RAW and
//! CAP_PERFMON (CAP_SYS_ADMIN, too, where `/sys/fs/bpf` is not mounted). Run one process for each instance name at a
//! time: nothing here refuses a second one.
//!
//! Drive the future of [`Splicer::splice`] to its end. Dropping it resets both ends, at the latest by their next segment.
//! Only a detached flow runs on. When it meets its trap, it waits for a successor, which does with it what
//! [`Pair::with_successor`] says.
#![forbid(unsafe_code)]

mod api;
mod context;
mod flow;
mod kernel;
pub mod measure;
mod recovery;
mod relay;
mod services;
mod session;
mod splicer;
mod tie;
mod transparent;

pub use api::*;
pub use longsplice_core::idle::{IdlePolicy, Keepalive, ParseKeepaliveError};
pub use longsplice_core::{
    advisor::{Distance, LOSS_SEGMENTS, LOSSY, Thresholds},
    limit, policy, reason, seq, terms,
};
pub use longsplice_dataplane::{ParseXdpModeError, PerSide, Side, SuccessorAction, XdpMode, monotonic};
pub use relay::idle::keep_alive;
pub use services::ends::{FlowEnd, FlowEnded};
pub use services::network_interface::NetworkInterface;
pub use services::order::{ProgramsBefore, programs_before_instances};
pub use services::{ports::connect_plainly, rules};
pub use splicer::{Flows, OpenError, SourceAddress, Splicer};
pub use tie::Tie;
pub use transparent::{handshake, intercept, notrack};
