//! A seeded simulator of a flow: two TCP ends, the forwarder's sockets, its user space, four links, two CPUs.
//!
//! What it leaves out, and why nothing fails there:
//! - Whoever forges segments does not guess exactly the next number (`World::is_exact`): nobody could tell them from the
//!   end itself, and it is one chance in 2^32. Within a window they have an acknowledgement that no TCP takes (RFC 5961
//!   section 5.2), and their resets stay near its edge (`World::forge`): what an end takes of a stranger is none of ours.
//! - A reset of either end, a killed daemon with sockets in the path, or a socket that is reset, dooms a run: both ends have
//!   to see a reset in the end, and until then nothing is said about what was acknowledged.
//! - Promises of windows are checked where segments stay in order and the pair keeps them (`LS_KEEP`): what is late says
//!   what was so when it was sent. They are not checked any more once a pair that takes copies over has been parted and
//!   registered anew: a socket that has not heard its peer since then believes in a larger window than there is. What is
//!   sent beyond it comes again.
//! - TSval may go back by a little where two CPUs reorder segments, as any network does; where segments are forged it is not
//!   looked at.
//! - Streams are short of 2^31 bytes: user space sees to it that sockets are not left behind by more (engine::parked).

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

/// Simulated time in which a run has to be over once nothing disturbs it any more.
const PATIENCE: Time = 400_000 * MS;
/// Simulated time after which a run is told to come to its end.
const LONG_ENOUGH: Time = 60_000 * MS;

/// Runs a world to its end: what was wrong, if anything.
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

/// Runs a seed; on failure, the report with the trace.
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
