//! PROXY protocol: the client that a proxy in front names, and the header that a server behind gets.

mod incoming;
mod outgoing;
mod through;
