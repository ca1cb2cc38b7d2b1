//! What is remembered of a connection that runs on in the kernel, without this process: there may be a million. What many have in
//! common is there once; what only a log line or a new decision wants is kept where somebody wants it.

use std::{
    collections::HashMap,
    mem,
    net::SocketAddr,
    num::NonZeroU32,
    sync::{Arc, Weak},
    time::{Duration, Instant, SystemTime},
};

use longsplice_engine::{FlowEnd, FlowEnded};

use super::{Decided, KeptFacts, Service, Tally};
use crate::{
    access_log::{AccessRecord, End},
    config::{ListenerConfig, Protocol},
    upstream::{ServerId, Site, Tenure},
};

/// A connection that its handler leaves, or takes up again.
#[derive(Debug)]
pub(crate) struct Parting {
    pub(crate) service: Arc<Service>,
    pub(crate) decided: Option<Decided>,
    /// It counts as one of its server's connections.
    pub(crate) tenure: Option<Tenure>,
    pub(crate) record: AccessRecord,
    pub(crate) began: Instant,
}

/// A flow that runs on in the kernel, and what is to be done when it ends. Its server counts it until this is dropped.
#[derive(Debug)]
pub(super) struct LeftFlow {
    stay: Stay,
    kept: Kept,
}

/// What is there once for many.
#[derive(Debug, Default)]
pub(super) struct Commons {
    known: HashMap<Names, Weak<Common>>,
}

/// What flows have in common that were decided alike.
#[derive(Debug)]
struct Common {
    names: Names,
    service: Arc<Service>,
    /// Without the facts.
    decided: Option<Decided>,
    /// `None`: no upstream counts them.
    site: Option<Site>,
    made: Instant,
}

/// Tells them apart, but for two routes of one name. Addresses are those of what a [`Common`] keeps alive.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct Names {
    service: usize,
    listener_as_it_was: Option<usize>,
    generation: Option<u64>,
    site: Option<ServerId>,
    listener: String,
    route: Option<String>,
    upstream: Option<String>,
    server: Option<String>,
}

/// A place that is counted where `site` says, until it is taken or dropped.
#[derive(Debug)]
struct Stay(Option<Arc<Common>>);

#[derive(Debug)]
enum Kept {
    /// For the access log, or to decide once more.
    Whole(Box<Whole>),
    /// For counters alone.
    Counts(Counts),
}

#[derive(Debug)]
struct Whole {
    /// Without the names.
    record: AccessRecord,
    began: Instant,
    facts: Option<KeptFacts>,
}

#[derive(Debug)]
struct Counts {
    to_server: u32,
    to_client: u32,
    /// In microseconds from [`Common::made`] on.
    began: i64,
    /// In microseconds.
    first_byte: Option<NonZeroU32>,
    /// 0: none.
    status: u16,
    why: End,
}

impl Commons {
    fn of(
        &mut self,
        names: Names,
        service: Arc<Service>,
        decided: Option<Decided>,
        site: Option<Site>,
    ) -> Arc<Common> {
        if let Some(known) = self.known.get(&names).and_then(Weak::upgrade)
            && known.decided.as_ref().map(|d| &d.route) == decided.as_ref().map(|d| &d.route)
        {
            return known;
        }
        // Now and then those go that nobody has any more.
        if self.known.len() == self.known.capacity() {
            self.known.retain(|_, common| common.strong_count() > 0);
        }
        let common = Arc::new(Common {
            names: names.clone(),
            service,
            decided,
            site,
            made: Instant::now(),
        });
        self.known.insert(names, Arc::downgrade(&common));
        common
    }
}

impl Names {
    fn take(
        record: &mut AccessRecord,
        service: &Arc<Service>,
        decided: Option<&Decided>,
        site: Option<&Site>,
    ) -> Names {
        let listener = decided.map(|d| &d.listener);
        Names {
            service: Arc::as_ptr(service).addr(),
            listener_as_it_was: listener.map(|l: &Arc<ListenerConfig>| Arc::as_ptr(l).addr()),
            generation: decided.map(|d| d.generation),
            site: site.map(Site::id),
            listener: mem::take(&mut record.listener),
            route: record.route.take(),
            upstream: record.upstream.take(),
            server: record.server.take(),
        }
    }

    fn give(&self, record: AccessRecord) -> AccessRecord {
        let Names {
            listener,
            route,
            upstream,
            server,
            ..
        } = self.clone();
        AccessRecord {
            listener,
            route,
            upstream,
            server,
            ..record
        }
    }
}

impl Drop for Stay {
    fn drop(&mut self) {
        drop(self.tenure());
    }
}

impl Stay {
    fn tenure(&mut self) -> Option<Tenure> {
        let common = self.0.take()?;
        common.site.as_ref().map(Site::resume)
    }
}

impl LeftFlow {
    pub(super) fn new(parting: Parting, commons: &mut Commons) -> LeftFlow {
        let Parting {
            service,
            mut decided,
            tenure,
            mut record,
            began,
        } = parting;
        let site = tenure.as_ref().and_then(Tenure::site);
        let facts = decided.as_mut().and_then(|d| d.facts.take());
        if let (Some(decided), None) = (&mut decided, &site) {
            // It is of this one connection, and nobody asks after it.
            decided.server = None;
        }
        let names = Names::take(&mut record, &service, decided.as_ref(), site.as_ref());
        let is_told = service.shared().access_log.is_on();
        let common = commons.of(names, service, decided, site);
        let counts = (!is_told && facts.is_none() && common.can_tell_client())
            .then(|| Counts::of(&record, began, common.made))
            .flatten();
        let kept = match counts {
            Some(counts) => Kept::Counts(counts),
            None => Kept::Whole(Box::new(Whole { record, began, facts })),
        };
        if let Some(tenure) = tenure {
            tenure.stay();
        }
        LeftFlow {
            stay: Stay(Some(common)),
            kept,
        }
    }

    /// What was decided about it, and on what.
    pub(super) fn decided(&self) -> Option<(&Decided, Option<&KeptFacts>)> {
        let decided = self.stay.0.as_ref()?.decided.as_ref()?;
        match &self.kept {
            Kept::Whole(whole) => Some((decided, whole.facts.as_ref())),
            Kept::Counts(_) => Some((decided, None)),
        }
    }

    /// Says why it ends, if it is by request.
    pub(super) fn set_why(&mut self, why: End) {
        match &mut self.kept {
            Kept::Whole(whole) => whole.record.end = why,
            Kept::Counts(counts) => counts.why = why,
        }
    }

    /// Counts it, and has its line written where there was an access log when it was left.
    pub(super) fn finish(self, end: &FlowEnded) {
        let Some(common) = self.stay.0.clone() else { return };
        let how = |asked| match end.how {
            FlowEnd::Closed => End::Complete,
            FlowEnd::Reset => End::Reset,
            FlowEnd::Idle => End::Idle,
            // Who asked has said why.
            FlowEnd::Asked => asked,
            FlowEnd::Replaced => End::Lost,
        };
        let [to_server, to_client] = end.bytes.unwrap_or_default();
        let spliced = end.bytes_spliced.unwrap_or_default();
        match self.kept {
            Kept::Whole(whole) => {
                let mut record = common.names.give(whole.record);
                record.bytes_to_server += to_server;
                record.bytes_to_client += to_client;
                record.bytes_spliced += spliced;
                let how = how(record.end);
                common.service.finished(record.ended(whole.began, how));
            }
            Kept::Counts(counts) => common.service.counts().add(&Tally {
                route: common.names.route.as_deref(),
                is_request: common.is_http(),
                status: counts.status(),
                bytes_to_server: u64::from(counts.to_server) + to_server,
                bytes_to_client: u64::from(counts.to_client) + to_client,
                bytes_spliced: spliced,
                duration: counts.began(common.made).elapsed(),
                first_byte: counts.first_byte(),
                end: how(counts.why),
            }),
        }
    }

    /// Somebody has it again; `client` is its client.
    pub(super) fn resume(mut self, client: SocketAddr) -> Option<Parting> {
        let common = self.stay.0.clone()?;
        let (record, began, facts) = match self.kept {
            Kept::Whole(whole) => (whole.record, whole.began, whole.facts),
            Kept::Counts(counts) => (counts.record(client, &common), counts.began(common.made), None),
        };
        Some(Parting {
            service: Arc::clone(&common.service),
            decided: common.decided.clone().map(|decided| Decided { facts, ..decided }),
            tenure: self.stay.tenure(),
            record: common.names.give(record),
            began,
        })
    }
}

impl Common {
    /// Whether the client is who is at the other end of its connection.
    fn can_tell_client(&self) -> bool {
        let listener = self.decided.as_ref().map(|d| &d.listener);
        listener.is_some_and(|listener| listener.accept_proxy.is_empty())
    }

    fn is_http(&self) -> bool {
        let listener = self.decided.as_ref().map(|d| &d.listener);
        listener.is_some_and(|listener| listener.protocol == Protocol::Http)
    }
}

impl Counts {
    /// `None`: something does not fit.
    fn of(record: &AccessRecord, began: Instant, made: Instant) -> Option<Counts> {
        let micros = |time: Duration| i64::try_from(time.as_micros()).ok();
        let first_byte = |time: Duration| NonZeroU32::new(time.as_micros().max(1).try_into().ok()?);
        Some(Counts {
            to_server: record.bytes_to_server.try_into().ok()?,
            to_client: record.bytes_to_client.try_into().ok()?,
            began: match began.checked_duration_since(made) {
                Some(after) => micros(after)?,
                None => -micros(made.duration_since(began))?,
            },
            first_byte: match record.first_byte {
                Some(time) => Some(first_byte(time)?),
                None => None,
            },
            status: record.status.unwrap_or_default(),
            why: record.end,
        })
        .filter(|_| record.bytes_spliced == 0)
    }

    fn status(&self) -> Option<u16> {
        (self.status != 0).then_some(self.status)
    }

    fn first_byte(&self) -> Option<Duration> {
        self.first_byte
            .map(|micros| Duration::from_micros(micros.get().into()))
    }

    fn began(&self, made: Instant) -> Instant {
        let apart = Duration::from_micros(self.began.unsigned_abs());
        let began = match self.began < 0 {
            true => made.checked_sub(apart),
            false => made.checked_add(apart),
        };
        began.unwrap_or(made)
    }

    fn record(&self, client: SocketAddr, common: &Common) -> AccessRecord {
        let new = AccessRecord::new("", client);
        let age = self.began(common.made).elapsed();
        AccessRecord {
            time: SystemTime::now().checked_sub(age).unwrap_or(new.time),
            is_request: common.is_http(),
            status: self.status(),
            first_byte: self.first_byte(),
            bytes_to_server: self.to_server.into(),
            bytes_to_client: self.to_client.into(),
            spliced: true,
            end: self.why,
            ..new
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_of_each_is_small() {
        assert_eq!(size_of::<LeftFlow>(), 32, "there may be a million");
    }

    #[test]
    fn counts_are_those_of_the_record_or_the_record_is_kept() {
        let (began, ms) = (Instant::now(), Duration::from_millis);
        let record = AccessRecord {
            bytes_to_server: 7,
            bytes_to_client: u32::MAX.into(),
            status: Some(101),
            first_byte: Some(ms(3)),
            end: End::Changed,
            ..AccessRecord::new("web", ([198, 18, 0, 1], 5).into())
        };
        for made in [began, began + ms(20), began.checked_sub(ms(20)).unwrap()] {
            let counts = Counts::of(&record, began, made).unwrap();
            assert_eq!((counts.to_server, counts.to_client), (7, u32::MAX));
            assert_eq!((counts.status(), counts.first_byte()), (Some(101), Some(ms(3))));
            assert_eq!(counts.why, End::Changed);
            let apart = counts.began(made).max(began) - counts.began(made).min(began);
            assert!(apart < Duration::from_micros(1), "{apart:?}");
        }
        let none = AccessRecord {
            status: None,
            first_byte: None,
            ..record.clone()
        };
        let counts = Counts::of(&none, began, began).unwrap();
        assert_eq!((counts.status(), counts.first_byte()), (None, None));
        for (what, too_much) in [
            (
                "payload",
                AccessRecord {
                    bytes_to_client: 1 << 32,
                    ..record.clone()
                },
            ),
            (
                "an hour",
                AccessRecord {
                    first_byte: Some(ms(5_000_000)),
                    ..record.clone()
                },
            ),
            (
                "was spliced before",
                AccessRecord {
                    bytes_spliced: 1,
                    ..record.clone()
                },
            ),
        ] {
            assert!(Counts::of(&too_much, began, began).is_none(), "{what}");
        }
    }
}
