//! Row 4.6: connections per second of one core, from accepting to detaching, beside HAProxy's.
//!
//! The ends have the other core, and may be the bottleneck. So the comparison is by connections for each second that
//! the middle's core was busy; those by the clock are reported as well.

use anyhow::Result;
use longsplice_lab::{Line, LineOptions};

use super::Scope;
use crate::contender::{Contender, Rig};
use crate::cores::{self, Watch, Work};
use crate::holder::{Held, Opening};
use crate::report::{Comparison, Finding, Results, Series, Statistic, Target};
use crate::row::Row;

const CONTENDERS: [Contender; 2] = [Contender::Spliced, Contender::HaProxy];
/// Number of connections on their way at a time.
const AT_A_TIME: usize = 16;

/// Connections through one contender.
#[derive(Debug)]
pub(super) struct Batch {
    contender: Contender,
    connections: usize,
    /// Work of the cores from the first connect until all were closed.
    whole: Work,
    /// Time until all had exchanged a message, and were detached if the contender splices, in seconds.
    open_seconds: f64,
    /// Number of connections that stayed in their drain until more bytes were sent.
    stuck: usize,
}

/// Measures row 4.6.
pub(super) fn run(scope: &Scope<'_>) -> Result<Results> {
    let (connections, rounds) = scope.count((3000, 7), (300, 1));
    let mut all = Vec::new();
    for _ in 0..rounds {
        for contender in CONTENDERS {
            let batch = measure(scope, LineOptions::default(), contender, connections)?;
            eprintln!(
                "   {:<22} {:6.0} connections for each busy second, {:6.0} by the clock",
                contender.title(),
                batch.rate(),
                batch.by_the_clock()
            );
            all.push(batch);
        }
    }
    Ok(judge(&all))
}

/// Measures one contender in new namespaces, which have no TIME-WAIT of the last round.
pub(super) fn measure(
    scope: &Scope<'_>,
    options: LineOptions,
    contender: Contender,
    connections: usize,
) -> Result<Batch> {
    let net = Line::new("bench", options)?;
    cores::part(&net)?;
    let rig = Rig {
        room: scope.room,
        nodes: &net,
    };
    let (standing, _ends) = rig.start_apart(contender)?;
    let background = scope.background()?;
    let watch = Watch::start()?;
    let mut held = Held::open_by(
        AT_A_TIME,
        Opening::Plain,
        &net,
        rig.server(),
        standing.at,
        connections,
    )?;
    let stuck = standing.detached_or_nudged(&mut held, connections)?;
    let open_seconds = watch.seconds();
    held.close()?;
    let whole = watch.stop(background)?.seen()?;
    standing.all_kept(contender, connections)?;
    Ok(Batch {
        contender,
        connections,
        whole,
        open_seconds,
        stuck,
    })
}

impl Batch {
    /// Returns the connections for each second that the middle's core was busy.
    pub(super) fn rate(&self) -> f64 {
        self.connections as f64 / self.whole.busy[cores::MIDDLE]
    }

    /// Returns the connections for each second until all were open.
    pub(super) fn by_the_clock(&self) -> f64 {
        self.connections as f64 / self.open_seconds
    }
}

fn judge(all: &[Batch]) -> Results {
    let rate = "connections for each busy second of the middle's core";
    let series = CONTENDERS.into_iter().flat_map(|contender| {
        let of = |figure, value: fn(&Batch) -> f64| {
            let mine = all.iter().filter(|batch| batch.contender == contender).map(value);
            let series = Series::new(contender.title(), figure, mine);
            // All were waited for until they were detached.
            match contender {
                Contender::Spliced => series.splices(1.0),
                _ => series,
            }
        };
        [
            of(rate, Batch::rate),
            of("connections per second until all were open", Batch::by_the_clock),
        ]
    });
    let [spliced, haproxy] = CONTENDERS.map(Contender::title);
    let mine = all.iter().filter(|batch| batch.contender == Contender::Spliced);
    let in_drain = "connections stuck in their drain until more was sent";
    let stuck = Series::new(spliced, in_drain, mine.map(|batch| batch.stuck as f64)).by(Statistic::Sum);
    Results::of(series.chain([stuck]))
        .find(Finding::new(
            Row::translation(6),
            "pairs accepted, connected, spliced, detached and closed per second of one core / HAProxy's connections",
            Comparison::of(Target::AtLeast { must: 0.9, aim: 1.3 }, spliced, rate).to([haproxy]),
            "",
        ))
        .find(Finding::new(
            Row::translation(6),
            in_drain,
            Comparison::of(Target::AtMost { must: 0.0, aim: 0.0 }, spliced, in_drain),
            "",
        ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::line;

    #[test]
    fn a_stuck_connection_misses_the_row() {
        let batch = |contender, stuck| Batch {
            contender,
            connections: 10,
            whole: Work {
                busy: [1.0; 2],
                seconds: 1.0,
            },
            open_seconds: 1.0,
            stuck,
        };
        let judged = |stuck| {
            let results = judge(&[batch(Contender::Spliced, stuck), batch(Contender::HaProxy, 0)]);
            line(&results.findings[1], &results).unwrap()
        };
        assert!(judged(1).contains("missed"), "{}", judged(1));
        assert!(judged(0).contains("met, and the aim"), "{}", judged(0));
    }
}
