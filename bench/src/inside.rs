//! Runs the library in the middle, in this process, to measure what only a protocol handler sees.

use std::future::Future;
use std::time::Duration;

use anyhow::{Context, Result};
use longsplice_engine::{Shutdown, Splicer, SplicerConfig};
use longsplice_lab::Namespace;
use tokio::runtime;
use tokio::time::timeout;

use crate::supervise::Room;

/// Longest time for any step that should be immediate.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// Runs `work` with a splicer of its own in `namespace`, and shuts the splicer down after success or failure.
///
/// The runtime is like the daemon's: a worker for each processor. A thread in the namespace starts its threads, so they
/// are in it, too.
pub(crate) fn inside<T: Send>(
    room: &Room,
    namespace: &Namespace,
    work: impl AsyncFnOnce(Splicer) -> Result<T> + Send,
) -> Result<T> {
    let config = SplicerConfig {
        instance: room.instance(),
        ..SplicerConfig::default()
    };
    namespace.run(|| {
        let runtime = runtime::Builder::new_multi_thread()
            .enable_all()
            .build()
            .context("start a runtime")?;
        runtime.block_on(async {
            let splicer = Splicer::open(config).await.context("open the splicer")?;
            let done = work(splicer.clone()).await;
            splicer.shutdown(Shutdown::EndSpliced, Duration::ZERO).await;
            done
        })
    })?
}

/// Returns the output of `future`, or an error if it is late.
pub(crate) async fn in_time<T>(what: &str, future: impl Future<Output = T>) -> Result<T> {
    let answer = timeout(PATIENCE, future).await;
    answer.with_context(|| format!("waited {PATIENCE:?} in vain for {what}"))
}
