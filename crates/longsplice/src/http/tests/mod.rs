//! Sessions over real sockets, relayed; the server's side is played by the test.

mod bodies;
mod ends;
mod harness;
mod requests;
