//! Reads and changes state of a Linux TCP socket that the standard library does not reach: `TCP_INFO`, the lengths of
//! its queues, socket options, and `TCP_REPAIR`, which lets a socket be closed without a segment on the wire, and be
//! built again.
//!
//! Functions take any descriptor of a TCP socket (`impl AsFd`: `&std::net::TcpStream`, `&tokio::net::TcpStream`,
//! `BorrowedFd`, …), make a few system calls, never block, and never take ownership, except for
//! [`repair::close_silently`]. Each error names the call that failed.
//!
//! All unsafe code is in one private module, `sys`, whose functions are safe to call.

pub mod activation;
mod address;
pub mod image;
pub mod info;
mod memory;
pub mod options;
pub mod queues;
pub mod repair;
mod state;
mod sys;
pub mod thaw;
pub mod window;

pub use address::canonical;
pub use image::{Image, ImageOptions, Window};
pub use info::{TcpInfo, tcp_info};
pub use memory::release_free_memory;
pub use queues::{room, seed_receive_queue, seed_send_queue, unacknowledged, unread, unsent};
pub use repair::{CloseError, Repair, close_silently, enter, probe_repair, set_initial_sequence};
pub use state::{CongestionState, State};
pub use sys::Error;
pub use thaw::{first_clock, thaw, thaw_transparent};
pub use window::{
    fit_receive_buffer, fit_send_buffer, grow_receive_buffer, set_receive_growth, set_receive_window,
};
