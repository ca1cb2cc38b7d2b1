//! Watches interfaces: puts the programs on those that routes use.

use std::{
    collections::{HashMap, HashSet},
    io,
    time::Duration,
};

use futures_util::TryStreamExt;
use longsplice_dataplane::{Dataplane, Framing};
use nix::net::if_::if_indextoname;
use parking_lot::{Mutex, RwLock};
use rtnetlink::{
    Handle,
    packet_route::{
        AddressFamily, RouteNetlinkMessage,
        link::{InfoKind, InfoPortKind, LinkAttribute, LinkFlags, LinkInfo, LinkLayerType},
        route::{RouteAddress, RouteAttribute, RouteMessage},
    },
};
use tokio::{task::spawn_blocking, time::Instant};

use crate::kernel::netlink::Netlink;

/// Time that an interface without routes keeps its programs while there are flows. Addresses and routes may come back,
/// and segments that pass meanwhile would come to the stack, which resets their connections.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Table of the routes to our own addresses (`RT_TABLE_LOCAL`).
const OWN_ADDRESSES: u32 = 255;

/// State of an interface that programs can be put on.
#[derive(Debug)]
struct Link {
    name: String,
    framing: Framing,
    is_up: bool,
    /// True for a port of a bridge, a bond or the like, which gets its packets: here they would be processed twice.
    is_port: bool,
    /// Interface of this namespace that a macvlan stands on.
    carrier: Option<u32>,
}

/// Present interfaces of this host.
#[derive(Debug)]
pub(crate) struct Links {
    by_index: HashMap<u32, Link>,
    /// Further ones, whose packets are not as the programs expect.
    others: HashSet<u32>,
    /// Present interfaces that are up, are no ports, and have a route; and the carriers of macvlans among them.
    routed: Vec<u32>,
}

impl Links {
    /// Asks the kernel for its links, and whether routes lead to them.
    pub(crate) async fn ask(handle: &Handle) -> io::Result<Links> {
        let (by_index, others) = links(handle).await.map_err(io::Error::other)?;
        let candidates = by_index.iter().filter(|(_, link)| link.is_up && !link.is_port);
        let candidates: Vec<u32> = candidates.map(|(index, _)| *index).collect();
        let mut routed = spawn_blocking(move || routed(candidates)).await??;
        // The kernel answers ARP for an address of the macvlan on its carrier, too: a peer may send its frames there
        // at any time, and they would come to the sockets, past the programs.
        let carriers = routed.iter().filter_map(|index| by_index.get(index)?.carrier);
        routed.extend(carriers.collect::<Vec<_>>());
        Ok(Links {
            by_index,
            others,
            routed,
        })
    }

    /// Returns true if an interface is there that the kernel has not listed: the list comes in parts, and another interface
    /// may go in between.
    fn lacks(&self, ifindex: u32) -> bool {
        !self.by_index.contains_key(&ifindex)
            && !self.others.contains(&ifindex)
            // Without an interface, nix returns an empty name.
            && if_indextoname(ifindex).is_ok_and(|name| !name.is_empty())
    }

    /// Returns the names of the interfaces with Ethernet headers that are up, by index.
    pub(crate) fn up_with_ethernet(&self) -> HashMap<u32, String> {
        let up = self.by_index.iter().filter(|(_, link)| link.is_up);
        let up = up.filter(|(_, link)| link.framing == Framing::Ethernet);
        up.map(|(index, link)| (*index, link.name.clone())).collect()
    }

    /// Returns those of these interfaces whose packets have Ethernet headers.
    pub(crate) fn with_ethernet(&self, mut of: HashMap<u32, String>) -> HashMap<u32, String> {
        of.retain(|index, _| {
            let link = self.by_index.get(index);
            link.is_none_or(|link| link.framing == Framing::Ethernet)
        });
        of
    }
}

/// Holds the interfaces that have the programs.
#[derive(Debug, Default)]
pub(crate) struct Interfaces {
    watched: RwLock<HashMap<u32, String>>,
    /// Interfaces that no route leads to any more, and since when: their flows may still need the programs.
    unrouted: Mutex<HashMap<u32, Instant>>,
}

impl Interfaces {
    /// Returns true if the programs are on an interface.
    pub(crate) fn has(&self, ifindex: u32) -> bool {
        self.watched.read().contains_key(&ifindex)
    }

    /// Returns the interfaces with the programs, by index.
    pub(crate) fn watched(&self) -> HashMap<u32, String> {
        self.watched.read().clone()
    }

    /// Puts the programs on the interfaces that routes use, and on no others. An interface that is down keeps them: it may
    /// come up again before a route leads there. One without routes keeps them for a time. One call at a time. Returns true
    /// if an interface waits for its routes.
    pub(crate) fn follow(&self, plane: &Dataplane, only: Option<&[String]>, links: &Links) -> bool {
        let chosen = |link: &Link| !link.is_port && only.is_none_or(|only| only.contains(&link.name));
        let Links { by_index, routed, .. } = links;
        let wanted: HashMap<u32, &Link> = by_index
            .iter()
            .filter(|(index, link)| link.is_up && routed.contains(index) && chosen(link))
            .map(|(index, link)| (*index, link))
            .collect();
        // Never hold this lock over a system call: each assessment of a pair takes it.
        let watched = || self.watched.write();
        // A predecessor may have watched others.
        let before: Vec<u32> = watched().keys().copied().collect();
        let mut unrouted = self.unrouted.lock();
        unrouted.retain(|ifindex, _| !wanted.contains_key(ifindex) && by_index.contains_key(ifindex));
        for ifindex in plane.linked_interfaces().into_iter().chain(before) {
            let is_kept = by_index
                .get(&ifindex)
                .filter(|link| chosen(link))
                .is_some_and(|link| {
                    let since = unrouted.get(&ifindex).filter(|_| link.is_up).copied();
                    !link.is_up
                        || (plane.flow_count() > 0 && since.is_none_or(|since| since.elapsed() < PATIENCE))
                });
            if is_kept && !wanted.contains_key(&ifindex) {
                // The time for its routes begins when it is up again.
                match by_index[&ifindex].is_up {
                    true => drop(unrouted.entry(ifindex).or_insert_with(Instant::now)),
                    false => drop(unrouted.remove(&ifindex)),
                }
            } else if !wanted.contains_key(&ifindex) {
                if links.lacks(ifindex) {
                    continue;
                }
                unrouted.remove(&ifindex);
                // Remove it first: no pair is spliced by it from now on.
                let name = watched().remove(&ifindex);
                plane.detach(ifindex);
                if let Some(name) = name {
                    tracing::info!(interface = name, "no longer watched");
                }
            }
        }
        for (ifindex, Link { name, framing, .. }) in wanted {
            if watched().contains_key(&ifindex) {
                continue;
            }
            match plane.attach(ifindex, *framing) {
                Ok(()) => {
                    tracing::info!(interface = name, ifindex, "watched");
                    watched().insert(ifindex, name.clone());
                }
                Err(error) => {
                    tracing::warn!(interface = name, %error, "cannot be watched: its pairs are relayed")
                }
            }
        }
        !unrouted.is_empty()
    }
}

/// Returns true if flows can be spliced over an interface of this type (`ARPHRD_…` of linux/if_arp.h).
/// `is_point_to_point`: it has one station at its other end (IFF_POINTOPOINT without IFF_BROADCAST).
pub fn can_carry_flows(kind: u16, is_point_to_point: bool) -> bool {
    framing_of(LinkLayerType::from(kind), is_point_to_point).is_some()
}

/// Returns how packets stand on an interface of this type at tc; `None`: not as the programs expect. A tunnel without a
/// fixed far end may build its outer header before tc, so only those from point to point are ours.
fn framing_of(kind: LinkLayerType, is_point_to_point: bool) -> Option<Framing> {
    match kind {
        LinkLayerType::Ether | LinkLayerType::Loopback => Some(Framing::Ethernet),
        LinkLayerType::None
        | LinkLayerType::Tunnel
        | LinkLayerType::Tunnel6
        | LinkLayerType::Sit
        | LinkLayerType::Ipgre
        | LinkLayerType::Ip6gre => is_point_to_point.then_some(Framing::Bare),
        _ => None,
    }
}

/// Returns the interfaces that programs can be put on, and the numbers of the others.
async fn links(handle: &Handle) -> Result<(HashMap<u32, Link>, HashSet<u32>), rtnetlink::Error> {
    let (mut found, mut others) = (HashMap::new(), HashSet::new());
    let mut links = handle.link().get().execute();
    while let Some(link) = links.try_next().await? {
        let flags = link.header.flags;
        let is_point_to_point =
            flags.contains(LinkFlags::Pointopoint) && !flags.contains(LinkFlags::Broadcast);
        let framing = framing_of(link.header.link_layer_type, is_point_to_point);
        let is_up = flags.contains(LinkFlags::Up);
        let name = link.attributes.iter().find_map(|a| match a {
            LinkAttribute::IfName(name) => Some(name.clone()),
            _ => None,
        });
        let index = link.header.index;
        if let (Some(name), Some(framing)) = (name, framing) {
            let link = Link {
                name,
                framing,
                is_up,
                is_port: is_port(&link.attributes),
                carrier: carrier_of(&link.attributes),
            };
            found.insert(index, link);
        } else {
            others.insert(index);
        }
    }
    Ok((found, others))
}

/// Returns true for an interface whose packets belong to another one, its controller. A member of a VRF keeps its own.
fn is_port(attributes: &[LinkAttribute]) -> bool {
    let is_of_vrf = |info: &LinkInfo| *info == LinkInfo::PortKind(InfoPortKind::Vrf);
    let mut has_controller = false;
    for attribute in attributes {
        match attribute {
            LinkAttribute::Controller(_) => has_controller = true,
            LinkAttribute::LinkInfo(info) if info.iter().any(is_of_vrf) => return false,
            _ => {}
        }
    }
    has_controller
}

/// Returns the interface of the same namespace that a macvlan stands on.
fn carrier_of(attributes: &[LinkAttribute]) -> Option<u32> {
    let mut carrier = None;
    let mut is_macvlan = false;
    for attribute in attributes {
        match attribute {
            LinkAttribute::Link(index) => carrier = Some(*index),
            LinkAttribute::LinkInfo(info) => {
                is_macvlan |= info.contains(&LinkInfo::Kind(InfoKind::MacVlan));
            }
            LinkAttribute::LinkNetNsId(_) => return None,
            _ => {}
        }
    }
    carrier.filter(|_| is_macvlan)
}

/// Returns those of these interfaces that routes of either family and any table lead to, including those to our own addresses.
/// Asks for each by itself, and reads no more than shows it: a router may have a million routes, and new ones each second.
fn routed(interfaces: Vec<u32>) -> io::Result<Vec<u32>> {
    let mut found = Vec::new();
    for index in interfaces {
        if is_routed(index)? {
            found.push(index);
        }
    }
    Ok(found)
}

/// Returns true if a route leads to an interface. Looks first where there are few, at the own addresses: to find the only route
/// to an interface, the kernel may walk over all others.
fn is_routed(index: u32) -> io::Result<bool> {
    for table in [Some(OWN_ADDRESSES), None] {
        for family in [AddressFamily::Inet, AddressFamily::Inet6] {
            if has_route(family, table, index)? {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

/// Returns true if a table of a family, or any, has a route to an interface, other than those that lead to every one.
fn has_route(family: AddressFamily, table: Option<u32>, index: u32) -> io::Result<bool> {
    let mut request = RouteMessage::default();
    request.header.address_family = family;
    request.attributes = vec![RouteAttribute::Oif(index)];
    request.attributes.extend(table.map(RouteAttribute::Table));
    Netlink::any(RouteNetlinkMessage::GetRoute(request), |answer| match answer {
        RouteNetlinkMessage::NewRoute(route) => !route.attributes.iter().any(is_of_every_interface),
        _ => false,
    })
}

/// Returns true for the link-local and multicast routes of IPv6. The kernel adds them to each interface that is up, even
/// if nothing else is routed there: to the ports of a bridge, say, whose frames are not for us.
fn is_of_every_interface(attribute: &RouteAttribute) -> bool {
    matches!(attribute, RouteAttribute::Destination(RouteAddress::Inet6(to)) if to.is_unicast_link_local() || to.is_multicast())
}
