//! Separates the middle and the ends by core: the busy time of one core is the middle's.
//!
//! A packet between namespaces would be processed by its receiver on the core of its sender. Receive packet steering
//! moves it to the core where a second machine would process it (Documentation/networking/scaling.rst of the kernel).

use std::num::NonZero;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use longsplice_lab::topology::Nodes;
use longsplice_lab::{Emulated, LinkSpec, Namespace};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::machine;

/// Core of the process in the middle.
pub(crate) const MIDDLE: usize = 0;
/// Core of both ends.
pub(crate) const ENDS: usize = 1;
/// Time for which the background load of a core is observed.
const LOOK: Duration = Duration::from_millis(500);

/// Guard that keeps the calling thread, and the processes that it starts, on one core.
#[derive(Debug)]
pub(crate) struct Pinned {
    before: CpuSet,
}

impl Pinned {
    /// Pins the thread to `core`.
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
        // The old set was permitted before.
        let _ = sched_setaffinity(None, &self.before);
    }
}

/// Makes each node process received packets on its core.
pub(crate) fn part(nodes: &Nodes) -> Result<()> {
    receive(nodes, MIDDLE, ENDS)
}

/// Sets up emulated links, with a core for the emulator where there are two: the nodes process received packets on the
/// other one. They would be processed within the emulator's call that delivers them, and the next ones would be late.
pub(crate) fn emulated(client_link: LinkSpec, server_link: LinkSpec) -> Result<Emulated> {
    let (emulator, nodes) = (MIDDLE, ENDS);
    if thread::available_parallelism().map_or(1, NonZero::get) < 2 {
        return Ok(Emulated::new("bench", client_link, server_link)?);
    }
    let pinned = Pinned::to(emulator)?;
    let net = Emulated::new("bench", client_link, server_link)?;
    drop(pinned);
    receive(&net, nodes, nodes)?;
    Ok(net)
}

/// Makes the forwarder and both ends process received packets on these cores.
fn receive(nodes: &Nodes, forwarder: usize, ends: usize) -> Result<()> {
    for (node, device, core) in [
        (&nodes.client, "c0", ends),
        (&nodes.forwarder, "f0", forwarder),
        (&nodes.forwarder, "f1", forwarder),
        (&nodes.server, "s0", ends),
    ] {
        steer(node, device, core)?;
    }
    Ok(())
}

/// Runs in a mount namespace of its own, where `/sys` shows the node's devices.
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
