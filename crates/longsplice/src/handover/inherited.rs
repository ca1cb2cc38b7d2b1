//! Keeps the sockets that other processes have passed, until the configuration asks for them.

use std::{
    net::{SocketAddr, TcpListener},
    os::fd::OwnedFd,
};

use longsplice_repair::activation::inherited_sockets;
use rustix::net::sockopt::socket_acceptconn;
use socket2::SockRef;

use super::Described;

/// Listening sockets that were passed to this process.
#[derive(Debug, Default)]
pub(crate) struct Inherited(Vec<Passed>);

#[derive(Debug)]
struct Passed {
    /// Name that socket activation gives it.
    name: String,
    configured: SocketAddr,
    bound: SocketAddr,
    socket: OwnedFd,
}

impl Inherited {
    /// Takes the sockets of socket activation; none if this process was not started that way.
    pub(crate) fn from_activation() -> Inherited {
        let mut inherited = Inherited::default();
        for (name, socket) in inherited_sockets() {
            let is_listening = socket_acceptconn(&socket).unwrap_or(false);
            let listener = TcpListener::from(socket);
            match listener.local_addr() {
                Ok(bound) if is_listening && takes_both_families(&listener, bound) => tracing::warn!(
                    name,
                    address = %bound,
                    "a socket that was passed by socket activation takes IPv4, too: it is not used. Write `BindIPv6Only=ipv6-only` into the \
                     .socket unit; `ListenStream=0.0.0.0:{port}` beside `ListenStream=[::]:{port}` serves both",
                    port = bound.port()
                ),
                Ok(bound) if is_listening => inherited.0.push(Passed {
                    name,
                    configured: bound,
                    bound,
                    socket: listener.into(),
                }),
                _ => tracing::warn!(
                    name,
                    "a socket that was passed by socket activation does not listen for TCP: it is not used"
                ),
            }
        }
        inherited
    }

    /// Adds the sockets of a predecessor.
    pub(super) fn add(&mut self, described: Described, socket: OwnedFd) {
        self.0.push(Passed {
            name: String::new(),
            configured: described.configured,
            bound: described.bound,
            socket,
        });
    }

    /// Takes the socket for an address of the configuration. A name is that of a listener with one address: a socket with
    /// that name serves it, whatever it is bound to.
    pub(crate) fn take(&mut self, address: SocketAddr, name: Option<&str>) -> Option<OwnedFd> {
        let at = |passed: &Passed| passed.configured == address || passed.bound == address;
        let named = |passed: &Passed| name.is_some_and(|name| passed.name == name);
        let found = (self.0.iter().position(at)).or_else(|| self.0.iter().position(named))?;
        Some(self.0.swap_remove(found).socket)
    }
}

/// Returns true if an IPv6 socket takes connections over IPv4, too: its clients would have addresses of the other family than
/// the listener, and no socket of IPv4 could have the port beside it.
fn takes_both_families(listener: &TcpListener, bound: SocketAddr) -> bool {
    let SocketAddr::V6(bound) = bound else {
        return false;
    };
    let reaches_ipv4 = bound.ip().is_unspecified() || bound.ip().to_ipv4_mapped().is_some();
    reaches_ipv4 && !SockRef::from(listener).only_v6().unwrap_or(true)
}

impl Drop for Inherited {
    fn drop(&mut self) {
        for passed in &self.0 {
            tracing::warn!(
                address = %passed.bound, name = passed.name,
                "a listening socket that was passed to this process is not in its configuration, and is closed"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_is_found_by_its_address_or_its_name() {
        let listener = || TcpListener::bind("127.0.0.1:0").unwrap();
        let (one, other) = (listener(), listener());
        let address = |listener: &TcpListener| listener.local_addr().unwrap();
        let (first, second) = (address(&one), address(&other));
        let mut inherited = Inherited::default();
        for (name, listener, bound) in [("web", one, first), ("", other, second)] {
            inherited.0.push(Passed {
                name: name.into(),
                configured: bound,
                bound,
                socket: listener.into(),
            });
        }
        assert!(inherited.take("127.0.0.1:1".parse().unwrap(), None).is_none());
        assert!(
            inherited.take(second, Some("web")).is_some(),
            "the address comes first"
        );
        assert!(inherited.take(second, None).is_none(), "it is used once");
        let named = inherited
            .take("127.0.0.1:1".parse().unwrap(), Some("web"))
            .unwrap();
        assert_eq!(TcpListener::from(named).local_addr().unwrap(), first);
    }
}
