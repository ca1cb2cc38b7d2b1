//! Follows the routes and interfaces of this host.

use std::{fmt::Display, io, sync::Arc, time::Duration};

use futures_util::StreamExt;
use rtnetlink::{Handle, MulticastGroup, new_multicast_connection};
use tokio::{
    sync::watch::{Receiver, channel},
    time::{Instant, sleep_until, timeout},
};

use crate::{context::Context, kernel::Kernel, services::interfaces::Links};

/// Changes come in bursts; one look at the end of a burst is enough.
const CALM: Duration = Duration::from_millis(50);

/// Time from a look that failed to the next one, without a change.
const PATIENCE: Duration = Duration::from_secs(30);

/// Rest after the kernel was asked, as a multiple of the time that its answer took, and the longest. Looks take a tenth of a
/// processor at most, where routes change all the time or interfaces are many.
const REST: u32 = 10;
const LONGEST_REST: Duration = Duration::from_secs(5);

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
    let first = follow(context, &handle).await?;
    let weak = Arc::downgrade(context);
    let (told, changes) = channel(());
    let follower = weak.clone();
    tokio::spawn(look_on(changes, first, move || {
        let (follower, handle) = (follower.clone(), handle.clone());
        async move { Some(follow(&follower.upgrade()?, &handle).await) }
    }));
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

/// Looks after each burst of changes, and [`PATIENCE`] after a look that failed. A look returns the time that the kernel's answer
/// took (`took`: that of the last one); `None` if the splicer is gone.
async fn look_on<L: Future<Output = Option<Result<Duration, E>>>, E: Display>(
    mut changes: Receiver<()>,
    mut took: Duration,
    mut look: impl FnMut() -> L,
) {
    let mut patience = Duration::MAX;
    loop {
        let rests_until = Instant::now() + (REST * took).min(LONGEST_REST);
        if matches!(timeout(patience, changes.changed()).await, Ok(Err(_))) {
            return;
        }
        sleep_until(rests_until.max(Instant::now() + CALM)).await;
        changes.mark_unchanged();
        (took, patience) = match look().await {
            Some(Ok(took)) => (took, Duration::MAX),
            Some(Err(error)) => {
                tracing::warn!(%error, "cannot follow a change of interfaces: the next look comes after {PATIENCE:?}");
                (Duration::ZERO, PATIENCE)
            }
            None => return,
        };
    }
}

/// Attaches and detaches the programs, and tells the services that depend on interfaces. Returns the time that the kernel's
/// answer took.
async fn follow(context: &Arc<Context>, handle: &Handle) -> io::Result<Duration> {
    if context.kernel.is_none() {
        return Ok(Duration::ZERO);
    }
    let began = Instant::now();
    let links = Links::ask(handle).await?;
    let took = began.elapsed();
    // Loading and attaching programs takes from milliseconds to a second.
    let put = move |context: &Context, kernel: &Kernel| {
        let plane = &kernel.plane;
        context
            .interfaces
            .follow(plane, context.config.interfaces.as_deref(), &links);
        let watched = links.with_ethernet(context.interfaces.watched());
        context.xdp.follow(plane, &context.config, &watched);
        context.rules.follow(links.for_rules());
    };
    // Without an answer, the splicer has ended.
    let _ended = context.run_blocking(put).await;
    Ok(took)
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc::unbounded_channel;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_look_that_fails_is_repeated_without_a_change() {
        let (told, changes) = channel(());
        let (looked, mut looks) = unbounded_channel();
        let mut outcomes = [Err("no answer"), Err("none again"), Ok(Duration::ZERO)].into_iter();
        let watching = tokio::spawn(look_on(changes, Duration::ZERO, move || {
            looked.send(()).expect("the test lives");
            std::future::ready(outcomes.next())
        }));
        told.send(()).expect("it is heard");
        for look in 1..=3 {
            let came = timeout(2 * PATIENCE, looks.recv()).await;
            assert_eq!(came, Ok(Some(())), "look {look}");
        }
        let more = timeout(2 * PATIENCE, looks.recv()).await;
        assert!(more.is_err(), "without a reason: {more:?}");
        drop(told);
        watching.await.expect("no panic");
    }

    #[tokio::test(start_paused = true)]
    async fn looks_that_take_long_are_few() {
        let (told, changes) = channel(());
        let (looked, mut looks) = unbounded_channel();
        let took = Duration::from_millis(100);
        let watching = tokio::spawn(look_on(changes, took, move || {
            looked.send(Instant::now()).expect("the test lives");
            async move { Some(Ok::<_, io::Error>(took)) }
        }));
        let begin = Instant::now();
        for look in 1..=3 {
            told.send(()).expect("it is heard");
            let at = looks.recv().await.expect("a look");
            assert_eq!(at - begin, look * REST * took, "look {look}");
        }
        drop(told);
        watching.await.expect("no panic");
    }
}
