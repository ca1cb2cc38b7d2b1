//! Tests sessions over real sockets, relayed; the test plays the server.

mod bodies;
mod ends;
mod harness;
mod heads;
mod leaving;
mod private;
mod records;
mod requests;
mod servers;
mod terminated;
