//! The PROXY protocol: whom a proxy in front speaks for, and what a server behind is told.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails as the test does")]

mod incoming;
mod outgoing;
mod through;
