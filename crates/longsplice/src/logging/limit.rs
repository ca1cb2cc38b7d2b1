//! Limits log lines of one kind: a client that provokes one with each connection cannot fill the disk.

use std::{
    collections::HashMap,
    fmt::{self, Debug, Write},
    mem,
    sync::{
        OnceLock,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use tracing::{
    Event, Level, Subscriber,
    callsite::Identifier,
    field::{Field, Visit},
};
use tracing_subscriber::{
    fmt::{FmtContext, FormatEvent, FormatFields, format::Writer},
    registry::LookupSpan,
};

use crate::config::DEFAULT_LINES_PER_SECOND;

/// Limit of lines at once, in seconds of the rate.
const BURST: u32 = 10;

/// Length of the example of a kind, in characters.
const EXAMPLE: usize = 80;

/// Limit that all formatters of the process share.
static LIMIT: OnceLock<Limit> = OnceLock::new();

/// Returns the limit of this process.
pub(crate) fn limit() -> &'static Limit {
    LIMIT.get_or_init(|| Limit::new(DEFAULT_LINES_PER_SECOND))
}

/// Counts log lines by their place in the code, and limits their rate.
#[derive(Debug)]
pub(crate) struct Limit {
    /// Rate in lines a second; 0 means no limit.
    per_second: AtomicU32,
    kinds: Mutex<HashMap<Identifier, Kind>>,
    suppressed: AtomicU64,
    /// Number of lines that standard error did not take, and were not reported yet.
    lost: AtomicU64,
}

/// State of the lines of one kind.
#[derive(Debug)]
struct Kind {
    /// Number of lines that may be written now.
    allowed: f64,
    since: Instant,
    /// Number of suppressed lines that were not reported yet.
    suppressed: u64,
    example: String,
}

/// Suppressed lines of one kind.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Suppressed {
    pub(crate) lines: u64,
    /// Message of one of them.
    pub(crate) example: String,
}

impl Limit {
    fn new(per_second: u32) -> Limit {
        Limit {
            per_second: AtomicU32::new(per_second),
            kinds: Mutex::default(),
            suppressed: AtomicU64::new(0),
            lost: AtomicU64::new(0),
        }
    }

    /// Changes the rate, in lines of one kind a second; 0 means no limit.
    pub(crate) fn set(&self, per_second: u32) {
        self.per_second.store(per_second, Ordering::Relaxed);
    }

    /// Counts a line that standard error did not take.
    pub(super) fn note_lost(&self) {
        self.suppressed.fetch_add(1, Ordering::Relaxed);
        self.lost.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the number of all lines that were not written since the start.
    pub(crate) fn suppressed(&self) -> u64 {
        self.suppressed.load(Ordering::Relaxed)
    }

    /// Returns the lines that were suppressed since the last call.
    pub(crate) fn take(&self) -> Vec<Suppressed> {
        let mut kinds = self.kinds.lock();
        let counted = kinds.values_mut().filter(|kind| kind.suppressed > 0);
        counted
            .map(|kind| Suppressed {
                lines: mem::take(&mut kind.suppressed),
                example: mem::take(&mut kind.example),
            })
            .collect()
    }

    /// Returns whether a line may be written. Calls `example` for the message of a suppressed line.
    fn admits(&self, kind: Identifier, now: Instant, example: impl FnOnce() -> String) -> bool {
        let rate = self.per_second.load(Ordering::Relaxed);
        if rate == 0 {
            return true;
        }
        let most = f64::from(rate) * f64::from(BURST);
        let mut kinds = self.kinds.lock();
        let kind = kinds.entry(kind).or_insert_with(|| Kind {
            allowed: most,
            since: now,
            suppressed: 0,
            example: String::new(),
        });
        let passed = now.saturating_duration_since(mem::replace(&mut kind.since, now));
        kind.allowed = most.min(kind.allowed + passed.as_secs_f64() * f64::from(rate));
        if kind.allowed >= 1.0 {
            kind.allowed -= 1.0;
            return true;
        }
        if kind.suppressed == 0 {
            kind.example = example();
        }
        kind.suppressed += 1;
        self.suppressed.fetch_add(1, Ordering::Relaxed);
        false
    }
}

/// Formats lines that the limit admits, with another format. Lines of the levels debug and trace are not limited: the
/// user has asked for them.
#[derive(Debug)]
pub(super) struct Limited<F>(pub(super) F);

impl<S, N, F> FormatEvent<S, N> for Limited<F>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
    F: FormatEvent<S, N>,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let metadata = event.metadata();
        let is_limited = *metadata.level() <= Level::INFO && metadata.module_path() != Some(module_path!());
        if is_limited && !limit().admits(metadata.callsite(), Instant::now(), || message(event)) {
            return Ok(());
        }
        self.0.format_event(context, writer, event)
    }
}

/// Interval of reports about suppressed lines.
pub(crate) const PERIOD: Duration = Duration::from_secs(10);

/// Logs the lines that were suppressed since the last call: one line for each kind, and one for all that were lost.
pub(crate) fn tell_suppressed() {
    let lost = limit().lost.swap(0, Ordering::Relaxed);
    if lost > 0 {
        tracing::warn!(lost, "log lines were left out: standard error did not take them");
    }
    for Suppressed { lines, example } in limit().take() {
        tracing::warn!(
            lines,
            like = example,
            "log lines of one kind were suppressed (log.lines_per_second)"
        );
    }
}

/// Returns the beginning of an event's message.
fn message(event: &Event<'_>) -> String {
    struct Message(String);
    impl Visit for Message {
        fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
            if field.name() == "message" {
                // Writing to a String cannot fail.
                let _ = write!(self.0, "{value:?}");
            }
        }
    }
    let mut message = Message(String::new());
    event.record(&mut message);
    message.0.chars().take(EXAMPLE).collect()
}

#[cfg(test)]
mod tests {
    use tracing::{Callsite, callsite::DefaultCallsite};

    use super::*;

    fn kinds() -> [Identifier; 2] {
        macro_rules! callsite {
            () => {{
                static META: tracing::Metadata<'static> = tracing::metadata! {
                    name: "line", target: "t", level: Level::INFO, fields: &[], callsite: &CALLSITE,
                    kind: tracing::metadata::Kind::EVENT
                };
                static CALLSITE: DefaultCallsite = DefaultCallsite::new(&META);
                CALLSITE.metadata().callsite()
            }};
        }
        [callsite!(), callsite!()]
    }

    #[test]
    fn a_burst_passes_then_the_rate_and_the_rest_is_counted() {
        let (limit, [one, other], start) = (Limit::new(10), kinds(), Instant::now());
        let lines = |kind: &Identifier, n: u32, at: Duration| {
            (0..n)
                .filter(|n| limit.admits(kind.clone(), start + at, || format!("line {n}")))
                .count()
        };
        assert_eq!(lines(&one, 1000, Duration::ZERO), 100);
        assert_eq!(lines(&other, 7, Duration::ZERO), 7, "each kind has its own");
        assert_eq!(lines(&one, 1000, Duration::from_secs(2)), 20);
        let told = Suppressed {
            lines: 900 + 980,
            example: "line 100".into(),
        };
        assert_eq!((limit.take(), limit.take()), (vec![told], vec![]));
        assert_eq!(limit.suppressed(), 1880);
        assert_eq!(
            lines(&one, 1000, Duration::from_secs(3600)),
            100,
            "no more than a burst"
        );
        limit.set(0);
        assert_eq!(lines(&one, 1000, Duration::from_secs(3600)), 1000);
    }
}
