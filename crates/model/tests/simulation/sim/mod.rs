//! Simulates a flow by a seed: two TCP ends, the forwarder's sockets, its user space, four links, two CPUs.
//!
//! The simulation has gaps, in which nothing fails for these reasons:
//! - A forger does not guess exactly the next number (`World::is_exact`): no program could tell such segments from
//!   those of the end itself, and the chance is one in 2^32. Forged segments within a window have an acknowledgement
//!   that no TCP accepts (RFC 5961 section 5.2), and forged resets stay near its edge (`World::forge`): the forwarder
//!   does not protect an end from segments that the end itself accepts.
//! - A reset of either end, a killed daemon with sockets in the path, or a socket that is reset, dooms a run: both ends
//!   must see a reset in the end, and until then acknowledged bytes are not checked.
//! - Promises of windows are checked if segments stay in order and the pair keeps them (`LS_KEEP`): a late segment has
//!   the state of the time when it was sent. They are no longer checked once a pair that takes copies over has been
//!   parted and registered anew: a socket that has not heard its peer since then assumes a larger window than there is.
//!   Its bytes beyond the window are retransmitted.
//! - TSval may go back by a little if two CPUs reorder segments, as any network does; with forged segments it is not
//!   checked.
//! - Streams are shorter than 2^31 bytes: user space sees to it that sockets do not fall behind by more
//!   (engine::parked).

pub mod check;
pub mod daemon;
pub mod deliver;
pub mod ends;
pub mod operations;
pub mod rng;
pub mod scenario;
pub mod tcp;
pub mod world;

use self::{
    tcp::{MS, Time},
    world::{Stats, World},
};

/// Limit of the simulated time from the last disturbance to the end of a run.
const PATIENCE: Time = 400_000 * MS;
/// Simulated time after which a run is told to come to its end.
const LONG_ENOUGH: Time = 60_000 * MS;

/// Runs a world to its end; returns the fault, if there was one.
pub fn run(world: &mut World) -> Result<(), String> {
    let mut deadline = None;
    let mut steps = 0u64;
    let mut probed = 0;
    let mut moved = (0, 0);
    while world.violation.is_none() {
        if !world.step() {
            break;
        }
        steps += 1;
        if world.now > moved.0 {
            moved = (world.now, steps);
        } else if steps > moved.1 + 20_000 {
            world.fail("time stands still".into());
        }
        world.check_invariants();
        if !world.stopping && (world.now > LONG_ENOUGH || world.doomed) {
            world.stopping = true;
        }
        if world.stopping && deadline.is_none() {
            deadline = Some(world.now + PATIENCE);
            for link in &mut world.scenario.links {
                link.loss = 0;
            }
            world.scenario.trap = 0;
            world.scenario.forge = 0;
            world.scenario.slow = [false; 2];
        }
        if let Some(deadline) = deadline {
            if steps.is_multiple_of(16) && world.is_complete() {
                break;
            }
            if world.now > probed + 5000 * MS {
                probed = world.now;
                world.probe();
            }
            if world.now > deadline {
                world.fail("it does not come to an end".into());
            }
        }
    }
    world.stats.add_n("steps", steps);
    world.collect();
    match &world.violation {
        Some(what) => Err(what.clone()),
        None if !world.is_complete() => Err("nothing happens any more".into()),
        None => Ok(()),
    }
}

/// Runs a seed; returns the report with the trace on failure.
pub fn run_seed(seed: u64, stats: &mut Stats) -> Result<(), String> {
    let mut world = World::new(seed, false);
    let result = run(&mut world);
    for (name, n) in &world.stats.counts {
        stats.add_n(name, *n);
    }
    result.map_err(|what| {
        let mut world = World::new(seed, true);
        let again = run(&mut world);
        format!("seed {seed}: {}(replayed: {again:?})", world.report(&what))
    })
}
