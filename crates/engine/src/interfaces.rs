//! Watches interfaces: those that routes use, followed when routes or interfaces change.

use std::{
    collections::HashMap,
    net::{Ipv4Addr, Ipv6Addr},
    sync::{Arc, PoisonError, Weak},
    time::Duration,
};

use futures_util::{StreamExt, TryStreamExt};
use longsplice_dataplane::Dataplane;
use rtnetlink::{
    Handle, MulticastGroup, RouteMessageBuilder, new_multicast_connection,
    packet_route::{
        link::{LinkAttribute, LinkFlags, LinkLayerType},
        route::{RouteAddress, RouteAttribute},
    },
};
use tokio::{
    sync::watch::channel,
    time::{Instant, sleep, timeout},
};

use crate::splicer::Inner;

/// Changes come in bursts; one look at the end of a burst is enough.
const CALM: Duration = Duration::from_millis(50);

/// Time that an interface without routes keeps its programs while there are flows. Addresses and routes may come back,
/// and segments that pass meanwhile would come to the stack, which resets their connections.
const PATIENCE: Duration = Duration::from_secs(30);

/// State of an interface with Ethernet headers.
#[derive(Debug)]
struct Link {
    name: String,
    is_up: bool,
}

/// Attaches to the present interfaces, and follows changes until the splicer is gone.
pub(crate) async fn watch(splicer: &Arc<Inner>) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    // Subscribe to changes only: notifications of neighbors and the like would wake us for nothing.
    let groups = [
        MulticastGroup::Link,
        MulticastGroup::Ipv4Ifaddr,
        MulticastGroup::Ipv4Route,
        MulticastGroup::Ipv4Rule,
        MulticastGroup::Ipv6Ifaddr,
        MulticastGroup::Ipv6Route,
        MulticastGroup::Ipv6Rule,
    ];
    let (connection, handle, mut messages) = new_multicast_connection(&groups)?;
    tokio::spawn(connection);
    let mut waits = follow(splicer, &handle).await?;
    let weak = Arc::downgrade(splicer);
    let (told, mut changes) = channel(());
    let follower = weak.clone();
    tokio::spawn(async move {
        loop {
            let patience = if waits { PATIENCE } else { Duration::MAX };
            if matches!(timeout(patience, changes.changed()).await, Ok(Err(_))) {
                return;
            }
            sleep(CALM).await;
            changes.mark_unchanged();
            match again(&follower, &handle).await {
                Some(more) => waits = more,
                None => return,
            }
        }
    });
    tokio::spawn(async move {
        while messages.next().await.is_some() {
            // Forget routes at once: the next connection goes by the new ones.
            let Some(splicer) = weak.upgrade() else { return };
            splicer.routes.forget();
            if told.send(()).is_err() {
                return;
            }
        }
    });
    Ok(())
}

/// Follows a change. Returns true if another look is due even without a change, and `None` if the splicer is gone.
async fn again(weak: &Weak<Inner>, handle: &Handle) -> Option<bool> {
    let splicer = weak.upgrade()?;
    let waits = follow(&splicer, handle).await;
    Some(waits.unwrap_or_else(|error| {
        tracing::warn!(%error, "cannot follow a change of interfaces");
        false
    }))
}

/// Attaches and detaches the programs. Returns true if some wait for their interface's routes.
async fn follow(splicer: &Arc<Inner>, handle: &Handle) -> Result<bool, rtnetlink::Error> {
    if splicer.plane.is_none() {
        return Ok(false);
    }
    let links = links(handle).await?;
    let routed = routed(handle).await?;
    // Loading and attaching programs takes from milliseconds to a second.
    let put = move |splicer: &Inner, plane: &Dataplane| put_where(splicer, plane, &links, &routed);
    // Without an answer, the splicer has ended.
    Ok(splicer.aside(put).await.unwrap_or(false))
}

/// Puts the programs on the interfaces that routes use, and on no others. An interface that is down keeps them: it may
/// come up again before a route leads there. One without routes keeps them for a time. One call at a time. Returns true
/// if an interface waits for its routes.
fn put_where(splicer: &Inner, plane: &Dataplane, links: &HashMap<u32, Link>, routed: &[u32]) -> bool {
    let chosen = |name: &String| {
        splicer
            .config
            .interfaces
            .as_ref()
            .is_none_or(|only| only.contains(name))
    };
    let wanted: HashMap<u32, String> = links
        .iter()
        .filter(|(index, link)| link.is_up && routed.contains(index) && chosen(&link.name))
        .map(|(index, link)| (*index, link.name.clone()))
        .collect();
    // Never hold this lock over a system call: each assessment of a pair takes it.
    let watched = || splicer.interfaces.write().unwrap_or_else(PoisonError::into_inner);
    // A predecessor may have watched others.
    let before: Vec<u32> = watched().keys().copied().collect();
    let mut unrouted = splicer.unrouted.lock().unwrap_or_else(PoisonError::into_inner);
    unrouted.retain(|ifindex, _| !wanted.contains_key(ifindex) && links.contains_key(ifindex));
    for ifindex in plane.linked_interfaces().into_iter().chain(before) {
        let is_kept = links
            .get(&ifindex)
            .filter(|link| chosen(&link.name))
            .is_some_and(|link| {
                let since = unrouted.get(&ifindex).filter(|_| link.is_up).copied();
                !link.is_up
                    || (plane.flow_count() > 0 && since.is_none_or(|since| since.elapsed() < PATIENCE))
            });
        if is_kept && !wanted.contains_key(&ifindex) {
            // The time for its routes begins when it is up again.
            match links[&ifindex].is_up {
                true => drop(unrouted.entry(ifindex).or_insert_with(Instant::now)),
                false => drop(unrouted.remove(&ifindex)),
            }
        } else if !wanted.contains_key(&ifindex) {
            unrouted.remove(&ifindex);
            // Remove it first: no pair is spliced by it from now on.
            let name = watched().remove(&ifindex);
            plane.detach(ifindex);
            if let Some(name) = name {
                tracing::info!(interface = name, "no longer watched");
            }
        }
    }
    for (ifindex, name) in wanted {
        if watched().contains_key(&ifindex) {
            continue;
        }
        match plane.attach(ifindex) {
            Ok(()) => {
                tracing::info!(interface = name, ifindex, "watched");
                watched().insert(ifindex, name);
            }
            Err(error) => {
                tracing::warn!(interface = name, %error, "cannot be watched: its pairs are relayed")
            }
        }
    }
    let now = watched().clone();
    splicer.fast_path.follow(plane, &splicer.config, &now);
    let up = links.iter().filter(|(_, link)| link.is_up);
    splicer
        .rules
        .follow(&up.map(|(index, link)| (*index, link.name.clone())).collect());
    !unrouted.is_empty()
}

/// Returns the interfaces that have Ethernet headers.
async fn links(handle: &Handle) -> Result<HashMap<u32, Link>, rtnetlink::Error> {
    let mut found = HashMap::new();
    let mut links = handle.link().get().execute();
    while let Some(link) = links.try_next().await? {
        // Programs see packets with Ethernet headers; other links would need a second layout.
        let usable = matches!(
            link.header.link_layer_type,
            LinkLayerType::Ether | LinkLayerType::Loopback
        );
        let is_up = link.header.flags.contains(LinkFlags::Up);
        let name = link.attributes.iter().find_map(|a| match a {
            LinkAttribute::IfName(name) => Some(name.clone()),
            _ => None,
        });
        let index = link.header.index;
        if let Some(name) = name.filter(|_| usable) {
            found.insert(index, Link { name, is_up });
        }
    }
    Ok(found)
}

/// Returns the interfaces that routes of either family and any table lead to, including those to our own addresses.
async fn routed(handle: &Handle) -> Result<Vec<u32>, rtnetlink::Error> {
    let families = [
        RouteMessageBuilder::<Ipv4Addr>::new().build(),
        RouteMessageBuilder::<Ipv6Addr>::new().build(),
    ];
    let mut found = Vec::new();
    for family in families {
        let mut routes = handle.route().get(family).execute();
        while let Some(route) = routes.try_next().await? {
            if route.attributes.iter().any(is_of_every_interface) {
                continue;
            }
            for attribute in &route.attributes {
                match attribute {
                    RouteAttribute::Oif(index) => found.push(*index),
                    RouteAttribute::MultiPath(hops) => found.extend(hops.iter().map(|h| h.interface_index)),
                    _ => {}
                }
            }
        }
    }
    found.sort_unstable();
    found.dedup();
    Ok(found)
}

/// Returns true for the link-local and multicast routes of IPv6. The kernel adds them to each interface that is up, even
/// if nothing else is routed there: to the ports of a bridge, say, whose frames are not for us.
fn is_of_every_interface(attribute: &RouteAttribute) -> bool {
    matches!(attribute, RouteAttribute::Destination(RouteAddress::Inet6(to)) if to.is_unicast_link_local() || to.is_multicast())
}
