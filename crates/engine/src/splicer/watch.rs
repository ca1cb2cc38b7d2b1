//! Follows the routes and interfaces of this host.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use futures_util::StreamExt;
use rtnetlink::{Handle, MulticastGroup, new_multicast_connection};
use tokio::{
    sync::watch::channel,
    time::{sleep, timeout},
};

use crate::{
    context::Context,
    kernel::Kernel,
    services::interfaces::{Links, PATIENCE},
};

/// Changes come in bursts; one look at the end of a burst is enough.
const CALM: Duration = Duration::from_millis(50);

/// Attaches to the present interfaces, and follows changes until the splicer is gone.
pub(crate) async fn watch(context: &Arc<Context>) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
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
    let mut waits = follow(context, &handle).await?;
    let weak = Arc::downgrade(context);
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
            let Some(context) = weak.upgrade() else { return };
            context.routes.forget();
            if told.send(()).is_err() {
                return;
            }
        }
    });
    Ok(())
}

/// Follows a change. Returns true if another look is due even without a change, and `None` if the splicer is gone.
async fn again(weak: &Weak<Context>, handle: &Handle) -> Option<bool> {
    let context = weak.upgrade()?;
    let waits = follow(&context, handle).await;
    Some(waits.unwrap_or_else(|error| {
        tracing::warn!(%error, "cannot follow a change of interfaces");
        false
    }))
}

/// Attaches and detaches the programs, and tells the services that depend on interfaces. Returns true if some interfaces
/// wait for their routes.
async fn follow(context: &Arc<Context>, handle: &Handle) -> Result<bool, rtnetlink::Error> {
    if context.kernel.is_none() {
        return Ok(false);
    }
    let links = Links::ask(handle).await?;
    // Loading and attaching programs takes from milliseconds to a second.
    let put = move |context: &Context, kernel: &Kernel| {
        let plane = &kernel.plane;
        let waits = context
            .interfaces
            .follow(plane, context.config.interfaces.as_deref(), &links);
        let watched = links.with_ethernet(context.interfaces.watched());
        context.xdp.follow(plane, &context.config, &watched);
        context.rules.follow(&links.up_with_ethernet());
        waits
    };
    // Without an answer, the splicer has ended.
    Ok(context.run_blocking(put).await.unwrap_or(false))
}
