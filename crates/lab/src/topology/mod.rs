//! Nodes and what connects them: a client, a forwarder in the middle, and servers.
//!
//! [`Line`] and [`Emulated`] are three nodes in a row, on veth pairs and on emulated links. A [`MultiServer`] has any number of
//! servers, a router before the forwarder where one is wanted, and a [`Leg`] of either kind between any two. A [`Graph`] is any graph of emulated
//! links, with routers inside the emulator, and addresses of its own.
//!
//! All others use the same names and addresses (198.18.0.0/15 is set aside for benchmarks, 2001:db8::/32 for documentation), so
//! that what runs in one runs in the other:
//!
//! ```text
//!   client                   forwarder                      server
//!   c0 198.18.1.1 -------- f0 198.18.1.2
//!                          f1 198.18.2.2 -------- s0 198.18.2.1
//!                          f2 198.18.3.2 -------- s0 198.18.3.1   the second server of a multi-server topology
//!
//!   client                   router                         forwarder
//!   c0 198.18.1.1 -------- r0 198.18.1.2
//!                          r1 198.18.0.1 -------- f0 198.18.0.2   with a router before the forwarder
//! ```
//!
//! A topology of [`Family::V6`] has IPv6 addresses, too, and is known by those: where the drawing has 198.18.1.2, its
//! address is 2001:db8:0:1::2. There is no duplicate address detection and no router solicitation.
//!
//! Namespaces are named after the test, the node, the process that made them and a counter: `my-test-client-4711-0`.
//! They go with their guards; see [`crate::cleanup`] for other ends.

mod family;
mod graph;
mod leg;
mod line;
mod multi_server;
mod netem;
mod settings;

pub use family::Family;
pub use graph::{Graph, GraphLink, GraphSpec};
pub use leg::Leg;
pub(crate) use leg::set_up;
pub use line::{Emulated, Line, LineOptions, Nodes};
pub use multi_server::{MultiServer, MultiServerOptions, Server};

/// Client's device.
pub const C0: &str = "c0";
/// Forwarder's device on the client's side.
pub const F0: &str = "f0";
/// Forwarder's device on the side of the first server.
pub const F1: &str = "f1";
/// Server's device.
pub const S0: &str = "s0";
/// Router's device on the client's side.
pub const R0: &str = "r0";
/// Router's device on the forwarder's side.
pub const R1: &str = "r1";
