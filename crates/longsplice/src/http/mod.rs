//! HTTP in control mode (the papers' third class of proxy): requests are read here, replies are spliced.
//!
//! A [`session`](mod@session) is one client's connection. It reads the head of a request ([`request`]), decides, leases a connection to a
//! server, and sends it there ([`exchange`]); reads the head of the reply ([`reply`]), and passes its body, long ones by the
//! engine ([`splice`]). What is refused is answered in words ([`answer`]). `docs/switch/http.md` says what is promised.

mod answer;
mod body;
mod buffer;
mod clock;
mod exchange;
mod front;
mod lead;
mod record;
mod reply;
mod request;
mod server;
mod session;
mod splice;
#[cfg(test)]
mod tests;
mod threshold;
mod wire;

pub use front::Front;
pub use lead::Lead;
pub use session::serve;
pub use threshold::{Measured, Threshold, measure};
