//! Knows other instances in the same network namespace: the ports of their flows are as taken as those of our own.

use std::{
    collections::HashMap,
    fs,
    os::unix::fs::MetadataExt,
    path::PathBuf,
    time::{Duration, Instant},
};

use parking_lot::{Mutex, RwLock};

use crate::{
    abi::{ABI_VERSION, Leg},
    error::Error,
    load::{load_table, pinned_hashing, pinned_meta},
    pins::{self, Pins},
    retry_load::retry_load,
    view::View,
};

/// Maximum number of instances to ask: each costs a system call for each new connection.
const MOST: usize = 16;

/// Time that a look is valid.
const RECENT: Duration = Duration::from_millis(100);

/// Holds the tables of other instances.
#[derive(Debug, Default)]
pub(crate) struct Neighbours {
    /// Start of the last look; locked during a look.
    looked: Mutex<Option<Instant>>,
    /// Tables by the directory of their pins and the inode of the pin `meta`, which identifies the instance.
    known: RwLock<HashMap<(PathBuf, u64), Option<View>>>,
}

impl Neighbours {
    /// Returns true if a tuple carries a flow of one of them.
    pub(crate) fn have(&self, leg: Leg) -> bool {
        let known = self.known.read();
        known.values().flatten().any(|view| view.find(leg).is_some())
    }

    /// Returns true if the last look is some time ago, or has not come to its end.
    pub(crate) fn may_be_new(&self) -> bool {
        let looked = self.looked.try_lock();
        looked.is_none_or(|at| at.is_none_or(|at| at.elapsed() >= RECENT))
    }

    /// Adds instances that came, and drops those that went. One look at a time; [`Neighbours::have`] does not wait for
    /// it.
    pub(crate) fn look(&self, ours: &Pins) {
        let mut looked = self.looked.lock();
        if looked.is_some_and(|at| at.elapsed() < RECENT) {
            return;
        }
        *looked = Some(Instant::now());
        let mut there: Vec<_> = ours.others().into_iter().filter_map(identified).collect();
        let before = |key| {
            let known = self.known.read();
            known.contains_key(key)
        };
        let mut came = HashMap::new();
        there.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        there.truncate(MOST);
        for (key, pins) in &there {
            if before(key) {
                continue;
            }
            match open(pins) {
                Ok(Asked::Now(view)) => drop(came.insert(key.clone(), view)),
                // The next look asks it once more.
                Ok(Asked::Later) => {}
                Err(error) => {
                    let path = pins.root().display();
                    tracing::debug!(%path, %error, "the ports of another instance are not known");
                    came.insert(key.clone(), None);
                }
            }
        }
        let mut known = self.known.write();
        known.retain(|key, _| there.iter().any(|(there, _)| there == key));
        known.extend(came);
    }
}

/// Result of opening an instance's pins.
enum Asked {
    /// They are asked from now on; `None`: they do not concern us.
    Now(Option<View>),
    /// Its process has not come far enough.
    Later,
}

/// Identifies an instance: one that comes again under the same name is another one.
fn identified(pins: Pins) -> Option<((PathBuf, u64), Pins)> {
    let meta = fs::symlink_metadata(pins.map("meta")).ok()?;
    Some(((pins.root().to_owned(), meta.ino()), pins))
}

fn open(pins: &Pins) -> Result<Asked, Error> {
    let meta = pinned_meta(pins)?;
    let (Some(buckets), Some(keys)) = pinned_hashing(pins)? else {
        return Ok(Asked::Later);
    };
    if meta.version != ABI_VERSION || meta.netns != pins::network_namespace()? {
        return Ok(Asked::Now(None));
    }
    let [_, _, lookup] = retry_load(|| load_table(pins, buckets, keys))?;
    Ok(Asked::Now(Some(View::new(pins.open_map("flows")?, lookup))))
}
