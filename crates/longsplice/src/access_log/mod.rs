//! The access log: one line for each request, or for each connection of which no requests are read.

mod record;

pub use record::{AccessRecord, End, MAX_TEXT, Request, cut};
