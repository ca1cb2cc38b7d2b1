//! Knows other instances in the same network namespace: the ports of their flows are as taken as those of our own.

use std::{
    collections::{HashMap, HashSet},
    fs,
    os::unix::fs::MetadataExt,
    path::PathBuf,
    time::{Duration, Instant},
};

use libbpf_rs::MapHandle;
use parking_lot::{Mutex, RwLock};

use crate::{
    abi::{ABI_VERSION, Leg},
    error::Error,
    foreign::Foreign,
    load::{load_table, pinned_hashing, pinned_meta},
    pins::{self, Pins},
    retry_load::retry_load,
    view::View,
};

/// Maximum number of instances in this network namespace to ask: each costs a system call for each new connection.
const MOST: usize = 16;

/// Time that a look is valid.
const RECENT: Duration = Duration::from_millis(100);

/// Rest of a table that was copied, in times that the copy took: it takes a fifth of a processor at most.
const REST: u32 = 4;

/// Identifies an instance by the directory of its pins and the inode of the pin `meta`.
type Identity = (PathBuf, u64);

/// Holds the tables of other instances.
#[derive(Debug, Default)]
pub(crate) struct Neighbours {
    /// Start of the last look; locked during a look, which alone changes `known`.
    looked: Mutex<Option<Instant>>,
    known: RwLock<HashMap<Identity, Known>>,
}

/// Knows the flows of an instance, as far as they can be read.
#[derive(Debug)]
enum Known {
    /// Table of our layout, which is asked for each leg.
    Table(View),
    /// Table of another layout, which is copied now and then.
    Copied(Box<Copied>),
    /// Instance in another network namespace, or one that cannot be read.
    Nothing,
}

impl Known {
    fn copied(&self) -> Option<&Copied> {
        match self {
            Known::Copied(table) => Some(table),
            Known::Table(_) | Known::Nothing => None,
        }
    }

    fn is_asked(&self) -> bool {
        !matches!(self, Known::Nothing)
    }

    fn has(&self, leg: Leg) -> bool {
        match self {
            Known::Table(view) => view.find(leg).is_some(),
            Known::Copied(table) => table.legs.contains(&leg),
            Known::Nothing => false,
        }
    }
}

/// Table of another layout, and its legs as of some time ago.
#[derive(Debug)]
struct Copied {
    table: Foreign,
    legs: HashSet<Leg>,
    /// Earliest time for the next copy.
    next: Instant,
}

impl Copied {
    fn new(table: Foreign) -> Result<Copied, Error> {
        let (legs, next) = copy(&table)?;
        Ok(Copied { table, legs, next })
    }

    /// Returns the time until it may be copied again.
    fn rest(&self) -> Duration {
        self.next.saturating_duration_since(Instant::now())
    }
}

/// Returns the legs of a table, and the earliest time for the next copy.
fn copy(table: &Foreign) -> Result<(HashSet<Leg>, Instant), Error> {
    let began = Instant::now();
    let legs = table.legs()?;
    let rest = RECENT.max(began.elapsed() * REST);
    Ok((legs, Instant::now() + rest))
}

impl Neighbours {
    /// Returns true if a tuple carries a flow of one of them.
    pub(crate) fn have(&self, leg: Leg) -> bool {
        self.known.read().values().any(|known| known.has(leg))
    }

    /// Returns true if another look, or another copy, would find more.
    pub(crate) fn may_know_more(&self) -> bool {
        let looked = self.looked.try_lock();
        looked.is_none_or(|at| at.is_none_or(|at| at.elapsed() >= RECENT))
            || self.known.read().values().any(|known| known.copied().is_some())
    }

    /// Returns the time until all tables of another layout may be copied again.
    pub(crate) fn rest(&self) -> Duration {
        let known = self.known.read();
        let rests = known.values().filter_map(Known::copied).map(Copied::rest);
        rests.max().unwrap_or_default()
    }

    /// Adds instances that came, and drops those that went. `flows` is our own map of that name. One look at a time;
    /// [`Neighbours::have`] does not wait for it.
    pub(crate) fn look(&self, ours: &Pins, flows: &MapHandle) {
        let mut looked = self.looked.lock();
        if looked.is_some_and(|at| at.elapsed() < RECENT) {
            return;
        }
        *looked = Some(Instant::now());
        let mut there: Vec<_> = ours.others().into_iter().filter_map(identified).collect();
        there.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        self.known
            .write()
            .retain(|key, _| there.iter().any(|(there, _)| there == key));
        there.retain(|(key, _)| !self.known.read().contains_key(key));
        let mut asked = self
            .known
            .read()
            .values()
            .filter(|known| known.is_asked())
            .count();
        let mut came = HashMap::new();
        for (key, pins) in there {
            if asked == MOST {
                break;
            }
            match open(&pins, flows) {
                Ok(Some(known)) => {
                    asked += usize::from(known.is_asked());
                    came.insert(key, known);
                }
                // Its process has not come far enough: the next look opens it.
                Ok(None) => {}
                Err(error) => {
                    let path = pins.root().display();
                    tracing::debug!(%path, %error, "the ports of another instance are not known");
                    came.insert(key, Known::Nothing);
                }
            }
        }
        self.known.write().extend(came);
    }

    /// Forgets an instance whose pins are removed.
    pub(crate) fn forget(&self, pins: &Pins) {
        self.known.write().retain(|(root, _), _| root != pins.root());
    }

    /// Copies tables of another layout anew. One copy at a time; [`Neighbours::have`] does not wait for it.
    pub(crate) fn copy(&self) {
        let _alone = self.looked.lock();
        let anew = |(key, known): (&Identity, &Known)| {
            let old = known.copied().filter(|old| old.rest().is_zero())?;
            // A table that cannot be read any more is about to go.
            Some((key.clone(), copy(&old.table).ok()?))
        };
        let copies: Vec<_> = self.known.read().iter().filter_map(anew).collect();
        let mut known = self.known.write();
        for (key, (legs, next)) in copies {
            if let Some(Known::Copied(table)) = known.get_mut(&key) {
                (table.legs, table.next) = (legs, next);
            }
        }
    }
}

/// Identifies an instance: one that comes again under the same name is another one.
fn identified(pins: Pins) -> Option<(Identity, Pins)> {
    let meta = fs::symlink_metadata(pins.map("meta")).ok()?;
    Some(((pins.root().to_owned(), meta.ino()), pins))
}

/// Opens an instance's table; `None`: its process has not come far enough.
fn open(pins: &Pins, flows: &MapHandle) -> Result<Option<Known>, Error> {
    let meta = pinned_meta(pins)?;
    let (Some(buckets), Some(keys)) = pinned_hashing(pins)? else {
        return Ok(None);
    };
    if meta.netns != pins::network_namespace()? {
        return Ok(Some(Known::Nothing));
    }
    if meta.version != ABI_VERSION {
        let table = Foreign::open(pins, flows)?;
        return Ok(Some(Known::Copied(Box::new(Copied::new(table)?))));
    }
    let [_, _, lookup] = retry_load(|| load_table(pins, buckets, keys))?;
    Ok(Some(Known::Table(View::new(pins.open_map("flows")?, lookup))))
}
