//! Demonstration (`make demo`) and benchmark (`make bench`): real programs in the namespaces of
//! [`longsplice_lab`], Longsplice beside the kernel's router, HAProxy and nginx.
//!
//! | module | what it does |
//! |---|---|
//! | `supervise` | runs the work in a child, and removes its remains after any end |
//! | `daemon`, `peers`, `filter`, `diversion`, `contender` | start and stop a contender in the middle |
//! | `inside` | runs the library itself in the middle, in this process |
//! | `cores` | gives the middle a core of its own |
//! | `switches` | start and stop a switch between HTTP clients and a file server |
//! | `iperf`, `fetch`, `holder`, `slow`, `memory`, `strace`, `capture` | measure |
//! | `stats`, `report`, `row`, `machine` | sum up |
//! | [`demo`] | `make demo` |
//! | [`rows`] | `make bench`: one module for each experiment |

#![forbid(unsafe_code)]

mod capture;
mod contender;
mod cores;
mod daemon;
pub mod demo;
mod diversion;
mod fetch;
mod filter;
mod holder;
mod inside;
mod iperf;
mod machine;
mod memory;
mod peers;
mod report;
mod row;
pub mod rows;
mod slow;
mod stats;
mod strace;
mod supervise;
mod switches;
mod wait;
