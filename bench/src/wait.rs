//! Polls for a state without an event.

use std::fs;
use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use longsplice_lab::{Namespace, Process};

/// Interval between two polls.
const TICK: Duration = Duration::from_millis(10);

/// State `LISTEN` in `/proc/net/tcp`.
const LISTEN: &str = "0A";

/// Polls until `look` returns a value, at most for `patience`; `what` names it in the error.
pub(crate) fn until<T>(
    what: &str,
    patience: Duration,
    mut look: impl FnMut() -> Result<Option<T>>,
) -> Result<T> {
    let start = Instant::now();
    loop {
        if let Some(found) = look()? {
            return Ok(found);
        }
        if start.elapsed() > patience {
            bail!("waited {patience:?} in vain for {what}");
        }
        thread::sleep(TICK);
    }
}

/// Waits until `process` listens at `at` in `namespace`, without connecting to it.
pub(crate) fn listening(namespace: &Namespace, process: &Process, at: SocketAddr) -> Result<()> {
    until(&format!("a listener at {at}"), Duration::from_secs(10), || {
        if !process.is_running() {
            bail!("the program that should listen at {at} has ended");
        }
        let table = namespace.run(|| fs::read_to_string("/proc/thread-self/net/tcp"))?;
        let table = table.context("read the table of sockets")?;
        Ok(has_listener(&table, at.port()).then_some(()))
    })
}

fn has_listener(table: &str, port: u16) -> bool {
    let port = format!(":{port:04X}");
    table.lines().any(|line| {
        let mut fields = line.split_whitespace().skip(1);
        let local = fields.next().is_some_and(|local| local.ends_with(&port));
        local && fields.nth(1) == Some(LISTEN)
    })
}

#[cfg(test)]
mod tests {
    use super::has_listener;

    #[test]
    fn listeners_are_told_from_connections() {
        let table = "  sl  local_address rem_address   st tx_queue\n\
                     0: 00000000:1F90 00000000:0000 0A 00000000:00000000\n\
                     1: 0100007F:1F91 0100007F:1F90 01 00000000:00000000\n";
        assert!(has_listener(table, 8080));
        assert!(!has_listener(table, 8081));
    }
}
