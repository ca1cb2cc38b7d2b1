//! Parts the work of a laboratory by processor core.
//!
//! A packet between namespaces would be processed by its receiver within its sender's call. Receive packet steering
//! moves it to the core where a second machine would process it (Documentation/networking/scaling.rst of the kernel).

use std::num::NonZero;
use std::thread;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::{Error, Namespace, tool};

/// Core of an emulator's thread.
const EMULATOR: usize = 0;
/// Core on which the nodes beside it process received packets.
const NODES: usize = 1;

/// Guard that keeps the calling thread, and the threads and processes that it starts, on one core.
#[derive(Debug)]
pub struct Pinned {
    before: CpuSet,
}

impl Pinned {
    /// Pins the thread to `core`, 0 to 1023.
    ///
    /// # Errors
    /// [`Error::Io`] if the machine or this process's control group does not have the core.
    pub fn to(core: usize) -> Result<Self, Error> {
        let before = sched_getaffinity(None)
            .map_err(|errno| Error::io("read the cores of this thread")(errno.into()))?;
        let mut only = CpuSet::new();
        only.set(core);
        sched_setaffinity(None, &only)
            .map_err(|errno| Error::io(format!("stay on core {core}"))(errno.into()))?;
        Ok(Pinned { before })
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // The old set was permitted before.
        let _ = sched_setaffinity(None, &self.before);
    }
}

/// Makes devices of a namespace process received packets on `core`; `device` may be a pattern of the shell's.
///
/// # Errors
/// [`Error::Tool`] if the kernel has no CONFIG_RPS, or the namespace no such device.
pub fn receive(namespace: &Namespace, device: &str, core: usize) -> Result<(), Error> {
    // A mount namespace of its own shows the devices in /sys.
    let write = "for queue in /sys/class/net/$0/queues/rx-*; do echo $1 >$queue/rps_cpus || exit 1; done";
    let mask = format!("{:x}", 1u32 << core);
    let args = [
        "netns",
        "exec",
        namespace.name(),
        "sh",
        "-c",
        write,
        device,
        &mask,
    ];
    tool::run("ip", &args)
}

/// Sets up a topology with emulated links, with a core for the emulator where there are two: its namespaces process received
/// packets on another one. They would be processed within the emulator's call that delivers them, and the next ones would be
/// late.
///
/// # Errors
/// Those of `set_up`, [`Pinned::to`] and [`receive`].
pub fn apart<T>(
    set_up: impl FnOnce() -> Result<T, Error>,
    namespaces: impl FnOnce(&T) -> Vec<&Namespace>,
) -> Result<T, Error> {
    if thread::available_parallelism().map_or(1, NonZero::get) < 2 {
        return set_up();
    }
    let pinned = Pinned::to(EMULATOR)?;
    let topology = set_up()?;
    drop(pinned);
    for namespace in namespaces(&topology) {
        receive(namespace, "*", NODES)?;
    }
    Ok(topology)
}
