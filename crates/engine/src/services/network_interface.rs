//! Describes the interfaces of this host, as the kernel lists them.

use std::io;

use futures_util::TryStreamExt;
use longsplice_dataplane::Framing;
use rtnetlink::packet_route::link::{
    InfoKind, LinkAttribute, LinkFlags, LinkInfo, LinkLayerType, LinkMessage,
};

/// Network interface, as the kernel lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetworkInterface {
    /// Name.
    pub name: String,
    /// Hardware type (`ARPHRD_…` of linux/if_arp.h).
    pub kind: u16,
    /// True if it is administratively up.
    pub is_up: bool,
    /// True if there is one station at its other end (IFF_POINTOPOINT without IFF_BROADCAST).
    pub is_point_to_point: bool,
    /// True for an ipvlan. It has the MAC address of its carrier, and its packets pass both.
    pub is_ipvlan: bool,
}

impl NetworkInterface {
    /// Lists the interfaces of the network namespace of this thread, in no order. The addresses of getifaddrs(3) tell no
    /// type of an interface without a hardware address, and /sys/class/net shows the namespace in which /sys was mounted.
    ///
    /// # Errors
    /// Returns the system's error if the kernel cannot be asked.
    ///
    /// # Panics
    /// Panics outside of a tokio runtime.
    pub async fn list() -> io::Result<Vec<NetworkInterface>> {
        let (connection, handle, _) = rtnetlink::new_connection()?;
        tokio::spawn(connection);
        let links: Vec<_> = handle
            .link()
            .get()
            .execute()
            .try_collect()
            .await
            .map_err(io::Error::other)?;
        Ok(links.iter().filter_map(NetworkInterface::of).collect())
    }

    /// Returns an interface that has a name.
    pub(super) fn of(link: &LinkMessage) -> Option<NetworkInterface> {
        let flags = link.header.flags;
        let name = link.attributes.iter().find_map(|attribute| match attribute {
            LinkAttribute::IfName(name) => Some(name.clone()),
            _ => None,
        })?;
        Some(NetworkInterface {
            name,
            kind: link.header.link_layer_type.into(),
            is_up: flags.contains(LinkFlags::Up),
            is_point_to_point: flags.contains(LinkFlags::Pointopoint)
                && !flags.contains(LinkFlags::Broadcast),
            is_ipvlan: is_ipvlan(&link.attributes),
        })
    }

    /// Returns true if flows can be spliced over it.
    pub fn can_carry_flows(&self) -> bool {
        self.framing().is_some()
    }

    /// Returns how its packets stand at tc; `None`: not as the programs expect. A tunnel without a fixed far end may build
    /// its outer header before tc, so only those from point to point are ours. The packets of an ipvlan would be processed
    /// twice.
    pub(super) fn framing(&self) -> Option<Framing> {
        match LinkLayerType::from(self.kind) {
            _ if self.is_ipvlan => None,
            LinkLayerType::Ether | LinkLayerType::Loopback => Some(Framing::Ethernet),
            LinkLayerType::None
            | LinkLayerType::Tunnel
            | LinkLayerType::Tunnel6
            | LinkLayerType::Sit
            | LinkLayerType::Ipgre
            | LinkLayerType::Ip6gre => self.is_point_to_point.then_some(Framing::Bare),
            _ => None,
        }
    }
}

fn is_ipvlan(attributes: &[LinkAttribute]) -> bool {
    let is_kind = |info: &LinkInfo| matches!(info, LinkInfo::Kind(InfoKind::IpVlan | InfoKind::IpVtap));
    attributes
        .iter()
        .any(|attribute| matches!(attribute, LinkAttribute::LinkInfo(info) if info.iter().any(is_kind)))
}
