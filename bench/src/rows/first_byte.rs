//! Row 3.5: time to the first byte of a reply when the request wakes a dormant pair, over an emulated path of 20 ms,
//! beside the relay.

use std::time::Duration;

use anyhow::{Context, Result};
use longsplice_lab::{ConnectionSpec, Direction, Emulated, Exchanges, LinkSpec, Traffic, TrafficSpec};

use super::Scope;
use super::middle::{Middle, all_ok};
use crate::cores;
use crate::daemon::Policy;
use crate::report::{Comparison, Finding, Results, Series, Statistic, Target};
use crate::row::Row;
use crate::stats::Spread;

/// Round-trip time of each link: half of the path's.
const RTT: Duration = Duration::from_millis(10);
/// Pause between a reply and the next request: the pair is spliced meanwhile, and idle.
const THINK: Duration = Duration::from_millis(150);
/// Number of requests of a connection that count, and of those before: a new connection is not spliced yet.
const REQUESTS: u32 = 25;
const FIRST: u32 = 2;
const LENGTH: u64 = 1024;

const POLICIES: [Policy<'_>; 2] = [
    Policy::new("now", "never").until("data=client"),
    Policy::new("never", "never"),
];

/// Requests of one kind.
#[derive(Debug, Default)]
struct Kind {
    /// Times to the first byte of each reply.
    first_byte_ms: Vec<f64>,
    /// Times to the last one.
    last_byte_ms: Vec<f64>,
    /// Number of returns of the pair, including those by requests that do not count.
    returns: u64,
    /// Number of times that the pair was parked.
    parked: u64,
}

/// Measures row 3.5.
pub(super) fn run(scope: &Scope<'_>) -> Result<Results> {
    let link = LinkSpec::symmetric(Direction {
        delay: RTT / 2,
        rate: Some(100_000_000),
        ..Direction::default()
    });
    let net = cores::emulated(link.clone(), link)?;
    let middle = Middle::start(scope, &net, &POLICIES)?;
    let mut kinds = [Kind::default(), Kind::default()];
    let mut discarded = 0;
    for _ in 0..scope.count(8, 1) {
        for (kind, &at) in kinds.iter_mut().zip(&middle.at) {
            loop {
                net.emulator().reset();
                let one = measure(&net, &middle, at)?;
                if scope.counts(&net.verdict(), &mut discarded)? {
                    kind.add(one);
                    break;
                }
            }
        }
    }
    judge(&kinds, discarded, &middle.tell_stuck())
}

/// Runs the requests of one connection.
fn measure(net: &Emulated, middle: &Middle, at: std::net::SocketAddr) -> Result<Kind> {
    let exchanges = Exchanges {
        think: THINK,
        ..Exchanges::new(FIRST + REQUESTS, LENGTH, LENGTH)
    };
    let before = middle.counted()?;
    let spec = TrafficSpec::same(1, ConnectionSpec::exchanges(exchanges));
    let outcome = Traffic::run(&net.client, at, &spec)?;
    all_ok(&outcome)?;
    let after = middle.counted()?;
    let connection = outcome.connections.first().context("there was one connection")?;
    let times = connection
        .client
        .exchanges
        .get(FIRST as usize..)
        .unwrap_or_default();
    let ms = |ns: u64| ns as f64 / 1e6;
    Ok(Kind {
        first_byte_ms: times.iter().map(|time| ms(time.first_byte_ns)).collect(),
        last_byte_ms: times.iter().map(|time| ms(time.last_byte_ns)).collect(),
        returns: after.resumed_total - before.resumed_total,
        parked: (after.transition_to_dormant.samples - before.transition_to_dormant.samples).into(),
    })
}

impl Kind {
    fn add(&mut self, more: Kind) {
        self.first_byte_ms.extend(more.first_byte_ms);
        self.last_byte_ms.extend(more.last_byte_ms);
        self.returns += more.returns;
        self.parked += more.parked;
    }
}

fn judge(kinds: &[Kind; 2], discarded: usize, stuck: &str) -> Result<Results> {
    let [woken, relayed] = kinds;
    let of = |times: &[f64]| Spread::of(times.iter().copied()).context("no requests");
    let (first, beside) = (of(&woken.first_byte_ms)?, of(&relayed.first_byte_ms)?);
    let detail = format!(
        "woken {} ms, p99 {:.2}; relayed {} ms, p99 {:.2}; {} requests each on connections of {}; the pair was parked \
         {} times and came back {} times; last byte {:.2} and {:.2} ms; {discarded} connections discarded because the \
         emulator was late{stuck}",
        first.show(),
        first.p99,
        beside.show(),
        beside.p99,
        first.n,
        FIRST + REQUESTS,
        woken.parked,
        woken.returns,
        of(&woken.last_byte_ms)?.median,
        of(&relayed.last_byte_ms)?.median
    );
    eprintln!("   {detail}");
    let [ours, relay] = ["longsplice, woken", "longsplice, relayed"];
    let figure = "first byte of a reply, ms";
    let series = |name, kind: &Kind| {
        let of = |figure, times: &[f64]| {
            let series = Series::new(name, figure, times.iter().copied()).by(Statistic::Median);
            if name == ours {
                series.splices(kind.parked as f64)
            } else {
                series
            }
        };
        [
            of(figure, &kind.first_byte_ms),
            of("last byte of a reply, ms", &kind.last_byte_ms),
        ]
    };
    let all = series(ours, woken).into_iter().chain(series(relay, relayed));
    Ok(Results::of(all).find(Finding::new(
        Row::back(5),
        "first byte of a reply whose request wakes a dormant pair, 20 ms, median, above the relay's, ms",
        Comparison::of(Target::AtMost { must: 0.1, aim: 0.0 }, ours, figure).less(relay),
        detail,
    )))
}
