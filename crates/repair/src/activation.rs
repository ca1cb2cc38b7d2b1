//! Takes the sockets of socket activation (`sd_listen_fds`): another process, such as systemd, holds them open.

use std::{env, os::fd::OwnedFd, process};

use crate::sys;

/// Returns the sockets that were passed to this process, with their names: `LISTEN_PID` names this process, `LISTEN_FDS`
/// counts them from descriptor 3 on, up to 65,536, `LISTEN_FDNAMES` names them. One that is not open is left out, with its
/// name. Later calls return none.
pub fn inherited_sockets() -> Vec<(String, OwnedFd)> {
    let number = |name| env::var(name).ok()?.parse::<u32>().ok();
    if number("LISTEN_PID") != Some(process::id()) {
        return Vec::new();
    }
    let names = env::var("LISTEN_FDNAMES").unwrap_or_default();
    let names = names
        .split(':')
        .map(str::to_owned)
        .chain(std::iter::repeat(String::new()));
    let count = number("LISTEN_FDS").unwrap_or(0) as usize;
    let passed = names.zip(sys::take_inherited(count));
    passed
        .filter_map(|(name, socket)| Some((name, socket?)))
        .collect()
}
