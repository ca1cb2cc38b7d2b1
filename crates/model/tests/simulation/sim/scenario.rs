//! Draws the parameters of a run from its seed.

use longsplice_core::seq::Seq;

use super::{
    rng::Rng,
    tcp::{Config, MS, Time},
};

/// One of the four links.
#[derive(Debug, Clone, Copy)]
pub struct Link {
    pub delay: Time,
    pub jitter: Time,
    pub loss: u64,
    pub duplicate: u64,
}

/// Way in which an end uses its connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Habit {
    /// Writes now and then.
    Random,
    /// Writes as much as it can.
    Bulk,
    /// Writes when it has received all that the other end wrote.
    Turns,
    /// Reads only.
    Silent,
}

#[derive(Debug, Clone)]
pub struct Scenario {
    pub cycles: u32,
    pub links: [Link; 2],
    pub ends: [Config; 2],
    pub locals: [Config; 2],
    pub isn: [[Seq; 2]; 2],
    pub habits: [Habit; 2],
    /// Bytes that an end reads at a time.
    pub reads: [i64; 2],
    pub slow: [bool; 2],
    /// Probabilities in thousandths, for each decision.
    pub interleave: u64,
    pub early_fin: u64,
    pub forge: u64,
    pub kill: u64,
    pub reset: u64,
    pub trap: u64,
    pub detach: u64,
    pub keep: bool,
    pub backlog: u64,
    /// Probability that a pair comes back by copies.
    pub capture: u64,
    /// True to promise little beyond a trap.
    pub pause: bool,
}

fn isn(rng: &mut Rng) -> Seq {
    // Draw a number beside the wrap more often.
    Seq::new(if rng.chance(300) {
        (rng.below(40_000) as u32).wrapping_sub(20_000)
    } else {
        rng.next() as u32
    })
}

impl Scenario {
    pub fn draw(rng: &mut Rng) -> Scenario {
        let calm = rng.chance(350);
        let link = |rng: &mut Rng| Link {
            delay: rng.pick(&[50, 500, 2 * MS, 10 * MS, 25 * MS]),
            jitter: if calm || rng.chance(500) {
                0
            } else {
                rng.pick(&[200, 3 * MS, 12 * MS])
            },
            loss: if calm || rng.chance(400) {
                0
            } else {
                rng.pick(&[5, 20, 60])
            },
            duplicate: if calm || rng.chance(600) {
                0
            } else {
                rng.pick(&[5, 40])
            },
        };
        let links = [link(rng), link(rng)];
        let timestamps = rng.chance(700);
        let mss = rng.pick(&[500, 1000, 1448]);
        let mut ends = Vec::new();
        let mut locals = Vec::new();
        for link in &links {
            let sack = rng.chance(750);
            let scales = [rng.below(5) as u8, rng.below(5) as u8];
            let rto = 200 * MS + 4 * link.delay + 2 * link.jitter;
            let config = |rng: &mut Rng, is_end: bool| {
                let room = rng.pick(&[3000, 8000, 20_000, 60_000, 200_000]);
                Config {
                    mss,
                    our_scale: scales[usize::from(is_end)],
                    peer_scale: scales[usize::from(!is_end)],
                    sack,
                    timestamps,
                    room,
                    send_room: rng.pick(&[4000, 30_000, 100_000]),
                    ts_offset: rng.next() as u32,
                    rto,
                    is_end,
                }
            };
            ends.push(config(rng, true));
            locals.push(config(rng, false));
        }
        // The path is longer once it is spliced.
        let total: Time = links.iter().map(|l| 4 * l.delay + 2 * l.jitter).sum();
        for end in &mut ends {
            end.rto = 200 * MS + total;
        }
        let habit = |rng: &mut Rng| {
            rng.pick(&[
                Habit::Random,
                Habit::Random,
                Habit::Bulk,
                Habit::Turns,
                Habit::Silent,
            ])
        };
        let habits = if rng.chance(300) {
            [Habit::Turns; 2]
        } else {
            [habit(rng), habit(rng)]
        };
        Scenario {
            cycles: rng.between(4, 24) as u32,
            links,
            ends: [ends[0], ends[1]],
            locals: [locals[0], locals[1]],
            isn: [[isn(rng), isn(rng)], [isn(rng), isn(rng)]],
            habits,
            reads: [rng.between(200, 20_000) as i64, rng.between(200, 20_000) as i64],
            slow: [rng.chance(250), rng.chance(250)],
            interleave: rng.pick(&[0, 100, 400]),
            early_fin: rng.pick(&[0, 0, 2]),
            forge: rng.pick(&[0, 0, 30]),
            kill: rng.pick(&[0, 0, 0, 5]),
            reset: rng.pick(&[0, 0, 0, 2]),
            trap: rng.pick(&[0, 300, 800]),
            detach: rng.pick(&[0, 200, 600]),
            keep: rng.chance(700),
            backlog: rng.pick(&[0, 200]),
            capture: rng.pick(&[0, 500]),
            pause: rng.chance(500),
        }
    }

    /// Returns whether nothing on the network disturbs.
    pub fn is_calm(&self) -> bool {
        self.links
            .iter()
            .all(|l| l.jitter == 0 && l.loss == 0 && l.duplicate == 0)
    }
}
