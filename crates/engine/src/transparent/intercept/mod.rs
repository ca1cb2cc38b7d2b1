//! Prepares interception beside its rules: sockets that may have any address, and a route for packets that must reach
//! this host whatever their destination.

mod routing;

use std::{io, net::IpAddr};

use longsplice_repair::options;
use parking_lot::Mutex;

use crate::kernel::netlink::Netlink;
use rtnetlink::packet_route::{
    AddressFamily, RouteNetlinkMessage,
    address::{AddressAttribute, AddressMessage},
    route::{RouteAddress, RouteAttribute, RouteMessage, RouteType},
};

pub use routing::{Owner, Routing, RoutingError};

/// Returns all addresses of this host but the link-local ones of IPv6, to which nothing is forwarded.
///
/// # Errors
/// Returns those of the kernel.
pub fn own_addresses() -> io::Result<Vec<IpAddr>> {
    let all = Netlink::open()?.dump(RouteNetlinkMessage::GetAddress(AddressMessage::default()))?;
    let mut own: Vec<IpAddr> = all
        .iter()
        .filter_map(|answer| match answer {
            RouteNetlinkMessage::NewAddress(message) => own_of(message),
            _ => None,
        })
        .filter(|address| !matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local()))
        .collect();
    own.sort();
    own.dedup();
    Ok(own)
}

/// Returns this host's end of an interface's address: with a far end, that is the address proper.
fn own_of(message: &AddressMessage) -> Option<IpAddr> {
    let find = |pick: fn(&AddressAttribute) -> Option<IpAddr>| message.attributes.iter().find_map(pick);
    let local = |attribute: &AddressAttribute| match attribute {
        AddressAttribute::Local(address) => Some(*address),
        _ => None,
    };
    let proper = |attribute: &AddressAttribute| match attribute {
        AddressAttribute::Address(address) => Some(*address),
        _ => None,
    };
    find(local).or_else(|| find(proper))
}

/// Lets a socket have any local address (`IP_TRANSPARENT`), as the listener of a rule that delivers must; call it before
/// it listens. Accepted sockets are transparent, too, and have the original destination as their local address.
///
/// # Errors
/// Returns `PermissionDenied` without CAP_NET_ADMIN or CAP_NET_RAW.
pub fn make_transparent(socket: impl std::os::fd::AsFd) -> io::Result<()> {
    Ok(options::set_transparent(socket, true)?)
}

/// Tells the addresses of this host, and those that reach several hosts, from others, and where packets would go: by the
/// kernel's routes, so that an address is known as soon as it is there. (A socket that can be bound to an address is no sign: `net.ipv4.ip_nonlocal_bind`
/// allows it for all of them.)
#[derive(Debug)]
pub struct LocalAddresses(Mutex<Netlink>);

impl LocalAddresses {
    /// Opens a socket to the kernel, for the network namespace of this thread.
    ///
    /// # Errors
    /// Returns those of the kernel.
    pub fn open() -> io::Result<LocalAddresses> {
        Ok(LocalAddresses(Mutex::new(Netlink::open()?)))
    }

    /// Returns true if a listener at an address would not mistake it for a foreign destination. False without a route.
    pub fn contains(&self, address: IpAddr) -> bool {
        self.route(request_to(address)).is_ok_and(is_local_route)
    }

    /// Returns what the kernel would do with a packet that comes in on this interface: by its routes, and by what it asks of a
    /// packet that is not for this host (`rp_filter`, `forwarding`, a source that may leave its link).
    pub fn way(&self, from: IpAddr, to: IpAddr, interface: u32) -> Way {
        if !may_be_forwarded(from) {
            return Way::Nowhere;
        }
        let mut request = request_to(to);
        request.header.source_prefix_length = request.header.destination_prefix_length;
        let source = RouteAttribute::Source(route_address(from));
        request
            .attributes
            .extend([source, RouteAttribute::Iif(interface)]);
        match self.route(request) {
            Ok(kind) if is_local_route(kind) => Way::Here,
            Ok(_) => Way::Onward,
            Err(_) => Way::Nowhere,
        }
    }

    /// Returns the type of a route that is asked for.
    fn route(&self, request: RouteMessage) -> io::Result<RouteType> {
        match self.0.lock().get(RouteNetlinkMessage::GetRoute(request))? {
            RouteNetlinkMessage::NewRoute(route) => Ok(route.header.kind),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

/// Way of a packet that comes in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// It is for this host, or for several hosts.
    Here,
    /// It is forwarded.
    Onward,
    /// It is dropped, and its sender may be told why.
    Nowhere,
}

fn request_to(address: IpAddr) -> RouteMessage {
    let mut request = RouteMessage::default();
    let (family, length) = match address {
        IpAddr::V4(_) => (AddressFamily::Inet, 32),
        IpAddr::V6(_) => (AddressFamily::Inet6, 128),
    };
    request.header.address_family = family;
    request.header.destination_prefix_length = length;
    request.attributes = vec![RouteAttribute::Destination(route_address(address))];
    request
}

fn route_address(address: IpAddr) -> RouteAddress {
    match address {
        IpAddr::V4(v4) => RouteAddress::Inet(v4),
        IpAddr::V6(v6) => RouteAddress::Inet6(v6),
    }
}

/// Returns false for a source of IPv6 of which a router forwards nothing (`ip6_forward`, `ip6_rcv_core`; RFC 4291 sections
/// 2.5.2, 2.5.3, 2.5.6 and 2.7). Those of IPv4 are the business of the look-up for a route.
fn may_be_forwarded(source: IpAddr) -> bool {
    match source {
        IpAddr::V4(_) => true,
        IpAddr::V6(v6) => {
            !(v6.is_unspecified()
                || v6.is_loopback()
                || v6.is_multicast()
                || v6.is_unicast_link_local()
                || v6.to_ipv4_mapped().is_some())
        }
    }
}

fn is_local_route(kind: RouteType) -> bool {
    matches!(
        kind,
        RouteType::Local | RouteType::Broadcast | RouteType::Anycast | RouteType::Multicast
    )
}

/// Returns true if an address is this host's ([`LocalAddresses`]).
pub fn is_local(address: IpAddr) -> bool {
    LocalAddresses::open().is_ok_and(|local| local.contains(address))
}
