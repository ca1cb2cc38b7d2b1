//! Remembers connections that run on in the kernel, without this process: there may be a million. Values that many of
//! them share are stored once. Values for a log line or a new decision only are kept if they may be needed.

mod common;
mod counts;

use std::{net::SocketAddr, sync::Arc, time::Instant};

use longsplice_engine::{FlowEnd, FlowEnded};

pub(super) use common::Commons;

use self::{
    common::{Common, Names},
    counts::Counts,
};
use super::{Decided, KeptFacts, Service, Tally};
use crate::{
    access_log::{AccessRecord, End, Traffic},
    upstream::{Site, Tenure},
};

/// A connection that its handler leaves, or takes up again.
#[derive(Debug)]
pub(crate) struct Parting {
    pub(crate) service: Arc<Service>,
    pub(crate) decided: Option<Decided>,
    /// Permit that counts it as one of its server's connections.
    pub(crate) tenure: Option<Tenure>,
    pub(crate) record: AccessRecord,
    pub(crate) began: Instant,
}

/// A flow that runs on in the kernel, with the values for its end. Its server counts it until this is dropped.
#[derive(Debug)]
pub(super) struct LeftFlow {
    stay: Stay,
    kept: Kept,
}

/// A permit that stays counted at `site`, until it is taken or dropped.
#[derive(Debug)]
struct Stay(Option<Arc<Common>>);

#[derive(Debug)]
enum Kept {
    /// Values for the access log, or for another decision.
    Whole(Box<Whole>),
    /// Values for counters only.
    Counts(Counts),
}

#[derive(Debug)]
struct Whole {
    /// Record without the names.
    record: AccessRecord,
    began: Instant,
    facts: Option<KeptFacts>,
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
            // This server belongs to this connection only, and is not needed any more.
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

    /// Returns the decision about it, and the facts of the decision.
    pub(super) fn decided(&self) -> Option<(&Decided, Option<&KeptFacts>)> {
        let decided = self.stay.0.as_ref()?.decided.as_ref()?;
        match &self.kept {
            Kept::Whole(whole) => Some((decided, whole.facts.as_ref())),
            Kept::Counts(_) => Some((decided, None)),
        }
    }

    /// Sets the reason for its end, before its end is requested.
    pub(super) fn set_why(&mut self, why: End) {
        match &mut self.kept {
            Kept::Whole(whole) => whole.record.end = why,
            Kept::Counts(counts) => counts.why = why,
        }
    }

    /// Counts the ended flow, and writes its record if there was an access log when it was left.
    pub(super) fn finish(self, end: &FlowEnded) {
        let Some(common) = self.stay.0.clone() else { return };
        let how = |asked| match end.how {
            FlowEnd::Closed => End::Complete,
            FlowEnd::Reset => End::Reset,
            FlowEnd::Idle => End::Idle,
            // The requester has set the reason.
            FlowEnd::Admin => asked,
            FlowEnd::Replaced => End::Unknown,
        };
        let bytes = end.bytes.unwrap_or_default();
        let spliced = end.bytes_spliced.unwrap_or_default();
        match self.kept {
            Kept::Whole(whole) => {
                let mut record = common.names.give(whole.record);
                record.traffic.flow = Some(end.id);
                record.traffic.bytes_to_server += bytes.client;
                record.traffic.bytes_to_client += bytes.server;
                record.traffic.bytes_spliced += spliced;
                let how = how(record.end);
                common.service.finished(record.ended(whole.began, how));
            }
            Kept::Counts(counts) => common.service.counts().add(&Tally {
                route: common.names.route.as_deref(),
                is_request: common.is_http(),
                status: counts.status(),
                traffic: Traffic {
                    bytes_to_server: u64::from(counts.to_server) + bytes.client,
                    bytes_to_client: u64::from(counts.to_client) + bytes.server,
                    bytes_spliced: spliced,
                    ..Traffic::default()
                },
                duration: counts.began(common.made).elapsed(),
                first_byte: counts.first_byte(),
                end: how(counts.why),
            }),
        }
    }

    /// Returns the connection to a handler; `client` is the address of its client.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_of_each_is_small() {
        assert_eq!(size_of::<LeftFlow>(), 32, "there may be a million");
    }
}
