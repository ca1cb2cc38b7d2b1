//! Kernel lists of TCP sockets: `/proc/net/tcp` and `/proc/net/tcp6`.

use std::fs;

use crate::Error;

/// Returns whether a socket listens at `port` in the namespace of the calling thread.
pub(crate) fn listens_at(port: u16) -> Result<bool, Error> {
    let v4 = fs::read_to_string("/proc/thread-self/net/tcp").map_err(Error::io("list TCP sockets"))?;
    // A kernel without IPv6 lacks this file.
    let v6 = fs::read_to_string("/proc/thread-self/net/tcp6").unwrap_or_default();
    Ok([v4, v6].iter().any(|table| has_listener(table, port)))
}

/// Returns whether a line of `table` is a listening socket at `port`. Lines read `sl local_address rem_address
/// st …`, in hexadecimal.
fn has_listener(table: &str, port: u16) -> bool {
    const LISTEN: &str = "0A";
    table.lines().skip(1).any(|line| {
        let mut fields = line.split_whitespace().skip(1);
        let (local, state) = (fields.next(), fields.nth(1));
        let at = local.and_then(|local| u16::from_str_radix(local.rsplit_once(':')?.1, 16).ok());
        at == Some(port) && state == Some(LISTEN)
    })
}

#[cfg(test)]
mod tests {
    use std::net::{Shutdown, TcpListener, TcpStream};

    use socket2::SockRef;

    use super::*;

    #[test]
    fn listeners_are_found_and_connections_are_none() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let client = TcpStream::connect(addr).unwrap();
        assert!(listens_at(addr.port()).unwrap());
        assert!(!listens_at(client.local_addr().unwrap().port()).unwrap());
        let _accepted = listener.accept().unwrap();
        // End listening before the descriptor is closed: children of other tests have it, too, until they run their programs.
        SockRef::from(&listener).shutdown(Shutdown::Both).unwrap();
        drop(listener);
        assert!(
            !listens_at(addr.port()).unwrap(),
            "only a connection is left there"
        );
    }
}
