//! Separates the middle and the ends by core: the busy time of one core is the middle's.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use longsplice_lab::cores::{apart, receive};
use longsplice_lab::topology::Nodes;
use longsplice_lab::{Emulated, LinkSpec};

use crate::machine;

/// Core of the process in the middle.
pub(crate) const MIDDLE: usize = 0;
/// Core of both ends.
pub(crate) const ENDS: usize = 1;
/// Time for which the background load of a core is observed.
const LOOK: Duration = Duration::from_millis(500);

/// Makes each node process received packets on its core.
pub(crate) fn part(nodes: &Nodes) -> Result<()> {
    for (node, device, core) in [
        (&nodes.client, "c0", ENDS),
        (&nodes.forwarder, "f0", MIDDLE),
        (&nodes.forwarder, "f1", MIDDLE),
        (&nodes.server, "s0", ENDS),
    ] {
        receive(node, device, core)?;
    }
    Ok(())
}

/// Sets up emulated links, with a core for the emulator.
pub(crate) fn emulated(client_link: LinkSpec, server_link: LinkSpec) -> Result<Emulated> {
    let set_up = || Emulated::new("bench", client_link, server_link);
    Ok(apart(set_up, |net| {
        vec![&net.client, &net.forwarder, &net.server]
    })?)
}

/// Busy time of both cores in some time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Work {
    /// Length of that time, in seconds.
    pub(crate) seconds: f64,
    /// Busy time of the middle's core and of the ends' core, in seconds.
    pub(crate) busy: [f64; 2],
}

/// Beginning of a measurement.
#[derive(Debug)]
pub(crate) struct Watch {
    start: Instant,
    busy: [f64; 2],
}

impl Watch {
    /// Begins a measurement.
    pub(crate) fn start() -> Result<Self> {
        Ok(Watch {
            start: Instant::now(),
            busy: busy()?,
        })
    }

    /// Returns the time since then, in seconds.
    pub(crate) fn seconds(&self) -> f64 {
        self.start.elapsed().as_secs_f64()
    }

    /// Returns the work since then, less the background load of the cores.
    pub(crate) fn stop(self, background: Work) -> Result<Work> {
        let (seconds, busy) = (self.seconds(), busy()?);
        let own = |core: usize| background.busy[core] / background.seconds * seconds;
        Ok(Work {
            seconds,
            busy: [0, 1].map(|core| (busy[core] - self.busy[core] - own(core)).max(0.0)),
        })
    }
}

impl Work {
    /// No work: subtracted in a shortened run, while the machine may be busy otherwise.
    pub(crate) const NONE: Work = Work {
        seconds: 1.0,
        busy: [0.0; 2],
    };

    /// Measures the background load of both cores.
    pub(crate) fn background() -> Result<Work> {
        let watch = Watch::start()?;
        thread::sleep(LOOK);
        watch.stop(Work::NONE)
    }

    /// Raises the middle's busy time to one tick: shorter times escape the kernel's sampling, and a router alone may
    /// take less in a run.
    pub(crate) fn at_least_a_tick(self) -> Work {
        let [middle, ends] = self.busy;
        Work {
            busy: [middle.max(machine::tick()), ends],
            ..self
        }
    }

    /// Fails where the middle's busy time is too short for the kernel's sampling.
    pub(crate) fn seen(self) -> Result<Work> {
        ensure!(
            self.busy[0] > 0.0,
            "core {MIDDLE} was not busier than before: the run is too short, or the machine is busy"
        );
        Ok(self)
    }
}

fn busy() -> Result<[f64; 2]> {
    Ok([machine::busy_seconds_of(MIDDLE)?, machine::busy_seconds_of(ENDS)?])
}
