//! The middle on a core of its own, and both ends on another one: what the first is busy with is the middle's.
//!
//! A packet between namespaces would be processed by its receiver on the core of its sender. Receive packet steering puts
//! it where a second machine would (Documentation/networking/scaling.rst of the kernel).

use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use longsplice_lab::Namespace;
use longsplice_lab::topology::Nodes;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde::Serialize;

use crate::machine;

/// Where what stands in the middle runs.
pub(crate) const MIDDLE: usize = 0;
/// Where both ends do.
pub(crate) const ENDS: usize = 1;
/// How long is looked what a core does by itself.
const LOOK: Duration = Duration::from_millis(500);

/// The calling thread, and what it starts, stays on one core as long as this lives.
#[derive(Debug)]
pub(crate) struct Pinned {
    before: CpuSet,
}

impl Pinned {
    /// To `core`.
    pub(crate) fn to(core: usize) -> Result<Self> {
        let before = sched_getaffinity(None).context("read the cores of this thread")?;
        let mut only = CpuSet::new();
        only.set(core);
        sched_setaffinity(None, &only)
            .with_context(|| format!("stay on core {core}: this row needs two cores"))?;
        Ok(Pinned { before })
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // It was permitted before.
        let _ = sched_setaffinity(None, &self.before);
    }
}

/// Has each node process what it receives on its core.
pub(crate) fn part(nodes: &Nodes) -> Result<()> {
    for (node, device, core) in [
        (&nodes.client, "c0", ENDS),
        (&nodes.forwarder, "f0", MIDDLE),
        (&nodes.forwarder, "f1", MIDDLE),
        (&nodes.server, "s0", ENDS),
    ] {
        steer(node, device, core)?;
    }
    Ok(())
}

/// In a mount namespace of its own, where `/sys` shows the node's devices.
fn steer(node: &Namespace, device: &str, core: usize) -> Result<()> {
    let write = "for queue in /sys/class/net/$0/queues/rx-*; do echo $1 >$queue/rps_cpus || exit 1; done";
    let mask = format!("{:x}", 1u32 << core);
    let output = Command::new("ip")
        .args(["netns", "exec", node.name(), "sh", "-c", write, device, &mask])
        .output()
        .context("start ip")?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!(
            "steer packets of {device} to core {core} (CONFIG_RPS?): {}",
            said.trim()
        );
    }
    Ok(())
}

/// What both cores did in some time.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Work {
    /// How long it was, in seconds.
    pub(crate) seconds: f64,
    /// For how many of them the middle's core was busy, and the ends'.
    pub(crate) busy: [f64; 2],
}

/// A beginning.
#[derive(Debug)]
pub(crate) struct Watch {
    start: Instant,
    busy: [f64; 2],
}

impl Watch {
    /// From now on.
    pub(crate) fn start() -> Result<Self> {
        Ok(Watch {
            start: Instant::now(),
            busy: busy()?,
        })
    }

    /// How long ago that was, in seconds.
    pub(crate) fn seconds(&self) -> f64 {
        self.start.elapsed().as_secs_f64()
    }

    /// Until now, less what the cores do by themselves.
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
    /// Nothing: what is subtracted in a shortened run, while the machine may be busy with something else.
    pub(crate) const NONE: Work = Work {
        seconds: 1.0,
        busy: [0.0; 2],
    };

    /// What both cores do while nothing is asked of them.
    pub(crate) fn background() -> Result<Work> {
        let watch = Watch::start()?;
        thread::sleep(LOOK);
        watch.stop(Work::NONE)
    }

    /// The middle did a tick's worth at least: the kernel's sampling sees no less, and a router alone may do less in a run.
    pub(crate) fn at_least_a_tick(self) -> Work {
        let [middle, ends] = self.busy;
        Work {
            busy: [middle.max(machine::tick()), ends],
            ..self
        }
    }

    /// Fails where the middle did too little to be seen by the kernel's sampling.
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
