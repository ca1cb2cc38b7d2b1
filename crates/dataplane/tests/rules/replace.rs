//! A set is replaced as a whole, while packets pass.

use std::sync::atomic::{AtomicBool, Ordering};

use longsplice_core::rules::{Match, Rule, compile};
use longsplice_dataplane::{Context, rules::Counters};

use crate::{
    frames::frame,
    support::{flow::SHOT, packet::SYN},
    ways::{Ways, drop, rule},
};

const PORT: u16 = 80;
const ENTRIES: u16 = 200;
const RUNS: u64 = 10_000;
const BATCH: u32 = 100;

/// A set of which only one entry, at `place`, takes the packet.
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
    let replaced = std::thread::scope(|scope| {
        let replacing = scope.spawn(|| {
            let mut times = 0;
            while !over.load(Ordering::Relaxed) {
                rules
                    .replace(&sets[times % 2], Counters::Fresh, |_| None)
                    .unwrap();
                times += 1;
            }
            times
        });
        for _ in 0..RUNS {
            assert_eq!(rules.run(&packet, context, BATCH).unwrap().verdict, SHOT);
        }
        over.store(true, Ordering::Relaxed);
        replacing.join().unwrap()
    });
    let verdicts = rules.verdicts();
    let all = RUNS * u64::from(BATCH);
    assert_eq!((verdicts["unmatched"], verdicts["dropped"]), (0, all));
    assert!(replaced > 1, "{replaced}");
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
