//! Prepares interception beside its rules: sockets that may have any address, and a route for packets that must reach
//! this host whatever their destination.

mod netlink;
mod routing;

use std::{
    io,
    net::{IpAddr, TcpListener},
};

use longsplice_repair::options;

use self::netlink::Netlink;
use rtnetlink::packet_route::{
    RouteNetlinkMessage,
    address::{AddressAttribute, AddressMessage},
};

pub use routing::{Owner, Routing, RoutingError};

/// Returns all addresses of this host.
///
/// # Errors
/// Returns those of the kernel.
pub fn own_addresses() -> io::Result<Vec<IpAddr>> {
    let all = Netlink::open()?.dump(RouteNetlinkMessage::GetAddress(AddressMessage::default()))?;
    let addresses = all.into_iter().flat_map(|answer| match answer {
        RouteNetlinkMessage::NewAddress(message) => message.attributes,
        _ => Vec::new(),
    });
    let mut own: Vec<IpAddr> = addresses
        .filter_map(|attribute| match attribute {
            AddressAttribute::Local(address) | AddressAttribute::Address(address) => Some(address),
            _ => None,
        })
        .filter(|address| is_local(*address))
        .collect();
    own.sort();
    own.dedup();
    Ok(own)
}

/// Lets a socket have any local address (`IP_TRANSPARENT`), as the listener of a rule that delivers must; call it before
/// it listens. Accepted sockets are transparent, too, and have the original destination as their local address.
///
/// # Errors
/// Returns `PermissionDenied` without CAP_NET_ADMIN or CAP_NET_RAW.
pub fn make_transparent(socket: impl std::os::fd::AsFd) -> io::Result<()> {
    Ok(options::set_transparent(socket, true)?)
}

/// Returns true if an address is this host's: a listener there would not mistake it for a foreign destination.
pub fn is_local(address: IpAddr) -> bool {
    TcpListener::bind((address, 0)).is_ok()
}
