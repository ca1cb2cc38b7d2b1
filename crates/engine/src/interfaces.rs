//! Which interfaces are watched: those that routes use, followed when routes or interfaces change.

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
use tokio::{sync::watch::channel, time::sleep};

use crate::splicer::Inner;

/// Changes come in bursts; one look at the end of a burst is enough.
const CALM: Duration = Duration::from_millis(50);

/// Attaches to what is there now, and follows changes until the splicer is gone.
pub(crate) async fn watch(splicer: &Arc<Inner>) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    // Only changes: notifications of neighbours and the like would wake us for nothing.
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
    follow(splicer, &handle).await?;
    let weak = Arc::downgrade(splicer);
    let (told, mut changes) = channel(());
    let follower = weak.clone();
    tokio::spawn(async move {
        while changes.changed().await.is_ok() {
            sleep(CALM).await;
            changes.mark_unchanged();
            if !again(&follower, &handle).await {
                return;
            }
        }
    });
    tokio::spawn(async move {
        while messages.next().await.is_some() {
            // At once: the next connection goes by the new routes.
            let Some(splicer) = weak.upgrade() else { return };
            splicer.routes.forget();
            if told.send(()).is_err() {
                return;
            }
        }
    });
    Ok(())
}

async fn again(weak: &Weak<Inner>, handle: &Handle) -> bool {
    let Some(splicer) = weak.upgrade() else {
        return false;
    };
    if let Err(error) = follow(&splicer, handle).await {
        tracing::warn!(%error, "cannot follow a change of interfaces");
    }
    true
}

/// Brings the programs to where they should be.
async fn follow(splicer: &Arc<Inner>, handle: &Handle) -> Result<(), rtnetlink::Error> {
    if splicer.plane.is_none() {
        return Ok(());
    }
    let links = links(handle).await?;
    let routed = routed(handle).await?;
    // To load and attach programs takes from milliseconds to a second.
    let put = move |splicer: &Inner, plane: &Dataplane| put_where(splicer, plane, &links, &routed);
    // Where there is no answer, the splicer has ended.
    let _ = splicer.aside(put).await;
    Ok(())
}

/// Has the programs on the interfaces that routes use, and on no others. One call at a time.
fn put_where(splicer: &Inner, plane: &Dataplane, links: &HashMap<u32, String>, routed: &[u32]) {
    let chosen = |name: &String| {
        splicer
            .config
            .interfaces
            .as_ref()
            .is_none_or(|only| only.contains(name))
    };
    let wanted: HashMap<u32, String> = links
        .iter()
        .filter(|(index, name)| routed.contains(index) && chosen(name))
        .map(|(index, name)| (*index, name.clone()))
        .collect();
    // Never held over a call of the kernel: whoever assesses a pair looks at them.
    let watched = || splicer.interfaces.write().unwrap_or_else(PoisonError::into_inner);
    // A predecessor may have watched others.
    let before: Vec<u32> = watched().keys().copied().collect();
    for ifindex in plane.linked_interfaces().into_iter().chain(before) {
        if !wanted.contains_key(&ifindex) {
            // First: no pair is spliced by it from now on.
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
    splicer.rules.follow(links);
}

/// The interfaces that are up and have Ethernet headers.
async fn links(handle: &Handle) -> Result<HashMap<u32, String>, rtnetlink::Error> {
    let mut found = HashMap::new();
    let mut links = handle.link().get().execute();
    while let Some(link) = links.try_next().await? {
        // Programs see packets with Ethernet headers; others would need a second layout.
        let usable = matches!(
            link.header.link_layer_type,
            LinkLayerType::Ether | LinkLayerType::Loopback
        ) && link.header.flags.contains(LinkFlags::Up);
        let name = link.attributes.iter().find_map(|a| match a {
            LinkAttribute::IfName(name) => Some(name.clone()),
            _ => None,
        });
        let index = link.header.index;
        if let Some(name) = name.filter(|_| usable) {
            found.insert(index, name);
        }
    }
    Ok(found)
}

/// Interfaces that routes of either family and any table lead to, those to our own addresses among them.
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

/// The kernel gives each interface that is up routes to the link-local and to the multicast addresses of IPv6, also where nothing
/// else is routed: to the ports of a bridge, say, whose frames are not for us.
fn is_of_every_interface(attribute: &RouteAttribute) -> bool {
    matches!(attribute, RouteAttribute::Destination(RouteAddress::Inet6(to)) if to.is_unicast_link_local() || to.is_multicast())
}
