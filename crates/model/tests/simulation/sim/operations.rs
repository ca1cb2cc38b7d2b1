//! Drives a run by bytes: the entry point of the property tests and of the fuzzer.

use longsplice_model::{Mode, Side};

use super::{
    rng::Rng,
    run,
    scenario::Scenario,
    tcp::{FORGED, MS, Run},
    world::World,
};

/// Limit of the bytes: more of them find nothing new, and take time.
const LONGEST: usize = 600;

/// Runs a sequence of operations. The first eight bytes are the seed of all that the bytes do not decide; each two
/// bytes after them are an operation. Afterwards nothing disturbs the run any more, and it must come to its end.
///
/// # Errors
/// The fault: a violated invariant, or a run without an end.
pub fn run_operations(bytes: &[u8]) -> Result<(), String> {
    let (head, rest) = bytes.split_at(bytes.len().min(8));
    let mut seed = [0; 8];
    seed[..head.len()].copy_from_slice(head);
    let mut rng = Rng::new(u64::from_le_bytes(seed));
    let mut scenario = Scenario::draw(&mut rng);
    scenario.cycles = 3;
    let trace = std::env::var("LONGSPLICE_TRACE").is_ok();
    let mut world = World::with(rng, scenario, trace);
    world.orderly = false;
    for pair in rest.chunks_exact(2).take(LONGEST) {
        operate(&mut world, pair[0], pair[1]);
        world.check_invariants();
        if world.violation.is_some() {
            break;
        }
    }
    run(&mut world).map_err(|what| if trace { world.report(&what) } else { what })
}

fn operate(world: &mut World, what: u8, how: u8) {
    let side = if how & 1 == 0 { Side::Client } else { Side::Server };
    let amount = u64::from(how >> 1);
    match what % 12 {
        0..=3 => steps(world, 1 + amount),
        4 => world.trap(side, amount * 100),
        5 => {
            let mode = if amount & 1 == 0 { Mode::Final } else { Mode::Drain };
            world.wake(mode);
        }
        6 => write(world, side, 1 + amount as i64 * 64),
        7 => world.apps[side].asleep_until = world.now + amount * 4 * MS,
        8 => world.scenario.links[side].loss = amount * 2,
        9 => world.scenario.interleave = amount * 8,
        10 if amount < 8 => world.kill_now(),
        10 if amount < 20 => close(world, side),
        11 if amount < 8 => reset(world, side),
        _ => world.forge(),
    }
}

fn steps(world: &mut World, n: u64) {
    for _ in 0..n {
        if world.violation.is_some() || !world.step() {
            return;
        }
        world.check_invariants();
    }
}

fn write(world: &mut World, side: Side, len: i64) {
    let mut out = Vec::new();
    let end = &mut world.ends[side];
    let len = len.min(end.can_write());
    if len > 0 && (end.write as u64) < FORGED {
        end.write(
            world.now,
            Run {
                at: end.write as u64,
                len,
            },
            &mut out,
        );
    }
    world.end_says(side, out);
}

fn close(world: &mut World, side: Side) {
    let mut out = Vec::new();
    let end = &mut world.ends[side];
    if !end.fin && !end.dead {
        end.shutdown(world.now, &mut out);
    }
    world.end_says(side, out);
}

fn reset(world: &mut World, side: Side) {
    let mut out = Vec::new();
    world.ends[side].abort(world.now, &mut out);
    world.doomed = true;
    world.end_says(side, out);
}
