//! The library in the middle, in this process: for what only a protocol handler sees.

use std::future::Future;
use std::time::Duration;

use anyhow::{Context, Result};
use longsplice_engine::{Shutdown, Splicer, SplicerConfig};
use longsplice_lab::Namespace;
use tokio::runtime;
use tokio::time::timeout;

use crate::supervise::Room;

/// How long any one thing may take that should take no time.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// Runs `work` with a splicer of its own in `namespace`, which is ended after it, however that went.
///
/// The runtime is the daemon's: a worker for each processor. Its threads are started by one that is in the namespace, and
/// so are in it.
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

/// What `future` answers, if it does in time.
pub(crate) async fn in_time<T>(what: &str, future: impl Future<Output = T>) -> Result<T> {
    let answer = timeout(PATIENCE, future).await;
    answer.with_context(|| format!("waited {PATIENCE:?} in vain for {what}"))
}
