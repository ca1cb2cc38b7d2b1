//! A set is replaced as a whole, while packets pass.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use longsplice_core::rules::{Match, Rule, compile};
use longsplice_dataplane::{Context, rules::Counters};

use crate::{
    frames::frame,
    support::{flow::SHOT, packet::SYN},
    ways::{Ways, drop, rule},
};

const PORT: u16 = 80;
const ENTRIES: u16 = 200;
/// Least number of runs; at most so many times more until the set has been replaced often enough: that is slow on a busy
/// machine.
const RUNS: u64 = 10_000;
const PATIENCE: u64 = 20;
const OFTEN: usize = 5;
const BATCH: u32 = 100;

/// Returns a set in which only one entry, at `place`, takes the packet.
fn set(place: u16) -> Vec<Rule> {
    let ports = (0..ENTRIES).map(|n| if n == place { PORT } else { 1000 + n });
    ports
        .map(|port| Rule {
            name: port.to_string(),
            ..rule(
                Match {
                    to_ports: vec![port.into()],
                    ..Match::default()
                },
                drop("x"),
            )
        })
        .collect()
}

/// A packet that saw the beginning of one set and the end of the other would meet no rule.
#[test]
fn a_packet_sees_one_set_or_the_other() {
    let ways = Ways::new(&set(0));
    let sets = [ENTRIES - 1, 0].map(|place| compile(&set(place)).unwrap());
    let packet = frame("198.18.1.2:1", "198.18.2.2:80", SYN).bytes();
    let context = Context {
        ifindex: ways.net.ifindex("a0"),
        ..Context::default()
    };
    let over = AtomicBool::new(false);
    let rules = &ways.rules;
    let replaced = AtomicUsize::new(0);
    let replaced_often = || replaced.load(Ordering::Relaxed) > OFTEN;
    let mut runs = 0;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                let times = replaced.load(Ordering::Relaxed);
                rules
                    .replace(&sets[times % 2], Counters::Fresh, |_| None)
                    .unwrap();
                replaced.store(times + 1, Ordering::Relaxed);
            }
        });
        while runs < RUNS || (!replaced_often() && runs < PATIENCE * RUNS) {
            assert_eq!(rules.run(&packet, context, BATCH).unwrap().verdict, SHOT);
            runs += 1;
        }
        over.store(true, Ordering::Relaxed);
    });
    let replaced = replaced.into_inner();
    let verdicts = rules.verdicts();
    let all = runs * u64::from(BATCH);
    assert_eq!((verdicts["unmatched"], verdicts["dropped"]), (0, all));
    assert!(replaced > OFTEN, "{replaced}");
    println!("replaced {replaced} times in {all} packets");
}

#[test]
fn counters_go_on_where_the_rules_are_the_same() {
    let ways = Ways::new(&set(0));
    let packet = frame("198.18.1.2:1", "198.18.2.2:80", SYN).bytes();
    ways.gives(&packet, "dropped", SHOT);
    let same = compile(&set(0)).unwrap();
    ways.rules.replace(&same, Counters::Kept, |_| None).unwrap();
    ways.gives(&packet, "dropped", SHOT);
    assert_eq!(ways.count(0).packets, 2);
    ways.rules.replace(&same, Counters::Fresh, |_| None).unwrap();
    assert_eq!(ways.count(0).packets, 0);
}
