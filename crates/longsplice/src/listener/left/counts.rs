//! Keeps only the values that counters need.

use std::{
    net::SocketAddr,
    num::NonZeroU32,
    time::{Duration, Instant, SystemTime},
};

use super::Common;
use crate::access_log::{AccessRecord, End, Traffic};

/// Values of a flow for counters only.
#[derive(Debug)]
pub(super) struct Counts {
    pub(super) to_server: u32,
    pub(super) to_client: u32,
    /// Beginning, in microseconds after [`Common::made`].
    began: i64,
    /// Time to the first byte, in microseconds.
    first_byte: Option<NonZeroU32>,
    /// Status; 0 means none.
    status: u16,
    pub(super) why: End,
}

impl Counts {
    /// Converts a record; returns `None` if a value does not fit.
    pub(super) fn of(record: &AccessRecord, began: Instant, made: Instant) -> Option<Counts> {
        let micros = |time: Duration| i64::try_from(time.as_micros()).ok();
        let first_byte = |time: Duration| NonZeroU32::new(time.as_micros().max(1).try_into().ok()?);
        Some(Counts {
            to_server: record.traffic.bytes_to_server.try_into().ok()?,
            to_client: record.traffic.bytes_to_client.try_into().ok()?,
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
        .filter(|_| record.traffic.bytes_spliced == 0)
    }

    pub(super) fn status(&self) -> Option<u16> {
        (self.status != 0).then_some(self.status)
    }

    pub(super) fn first_byte(&self) -> Option<Duration> {
        self.first_byte
            .map(|micros| Duration::from_micros(micros.get().into()))
    }

    pub(super) fn began(&self, made: Instant) -> Instant {
        let apart = Duration::from_micros(self.began.unsigned_abs());
        let began = match self.began < 0 {
            true => made.checked_sub(apart),
            false => made.checked_add(apart),
        };
        began.unwrap_or(made)
    }

    pub(super) fn record(&self, client: SocketAddr, common: &Common) -> AccessRecord {
        let new = AccessRecord::new("", client);
        let age = self.began(common.made).elapsed();
        AccessRecord {
            time: SystemTime::now().checked_sub(age).unwrap_or(new.time),
            is_request: common.is_http(),
            status: self.status(),
            first_byte: self.first_byte(),
            traffic: Traffic {
                bytes_to_server: self.to_server.into(),
                bytes_to_client: self.to_client.into(),
                spliced: true,
                ..Traffic::default()
            },
            end: self.why,
            ..new
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_those_of_the_record_or_the_record_is_kept() {
        let (began, ms) = (Instant::now(), Duration::from_millis);
        let record = AccessRecord {
            traffic: Traffic {
                bytes_to_server: 7,
                bytes_to_client: u32::MAX.into(),
                ..Traffic::default()
            },
            status: Some(101),
            first_byte: Some(ms(3)),
            end: End::Reload,
            ..AccessRecord::new("web", ([198, 18, 0, 1], 5).into())
        };
        for made in [began, began + ms(20), began.checked_sub(ms(20)).unwrap()] {
            let counts = Counts::of(&record, began, made).unwrap();
            assert_eq!((counts.to_server, counts.to_client), (7, u32::MAX));
            assert_eq!((counts.status(), counts.first_byte()), (Some(101), Some(ms(3))));
            assert_eq!(counts.why, End::Reload);
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
                    traffic: Traffic {
                        bytes_to_client: 1 << 32,
                        ..record.traffic
                    },
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
                    traffic: Traffic {
                        bytes_spliced: 1,
                        ..record.traffic
                    },
                    ..record.clone()
                },
            ),
        ] {
            assert!(Counts::of(&too_much, began, began).is_none(), "{what}");
        }
    }
}
