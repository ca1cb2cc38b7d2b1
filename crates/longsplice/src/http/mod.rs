//! Serves HTTP in control mode (the papers' third class of proxy): reads requests, and splices replies.
//!
//! [`serve`](mod@serve) serves one client's connection; a [`session`] holds the state that its requests share. It reads
//! the head of a request and decides ([`decide`]), leases a connection to a server, and sends the request there
//! ([`exchange`]). It reads the head of the reply ([`reply`]), and passes its body; the engine carries long ones
//! ([`splice`]). The proxy answers refused requests itself ([`answer`]). `docs/switch/http.md` lists the guarantees.

mod admit;
mod answer;
mod body;
mod buffer;
mod buffered_stream;
mod deadline;
mod decide;
mod exchange;
mod lazy_stream;
mod record;
mod reply;
mod request;
mod serve;
mod server;
mod session;
mod splice;
mod splice_delay;
#[cfg(test)]
mod tests;
mod threshold;

pub(crate) use admit::{admit, ends_here};
pub(crate) use lazy_stream::LazyStream;
pub(crate) use serve::serve;
pub(crate) use splice_delay::SpliceDelay;
pub(crate) use threshold::Threshold;
