//! Runs the program of rules.

use std::{collections::BTreeMap, rc::Rc};

use longsplice_core::rules::{Action, Match, Rule, compile};
use longsplice_dataplane::{
    Context, Ran,
    rules::{Count, Counters, Mark, Rules},
};

use crate::support::{flow::OK, net::Net, packet::assert_frame, plane::Plane};

pub const MARK: Mark = Mark {
    value: 0x4c00_0000,
    mask: 0xff00_0000,
};

/// Holds rules in a namespace of their own; packets come in on `a0`.
pub struct Ways {
    pub rules: Rules,
    pub plane: Rc<Plane>,
    pub net: Net,
}

/// Returns a rule whose name is its action.
pub fn rule(matching: Match, action: Action) -> Rule {
    Rule {
        name: action.as_str().into(),
        matching,
        action,
    }
}

pub fn drop(reason: &str) -> Action {
    Action::Drop {
        reason: reason.into(),
    }
}

/// Returns a match of destinations.
pub fn to(networks: &[&str]) -> Match {
    Match {
        to: networks.iter().map(|n| n.parse().expect("a network")).collect(),
        ..Match::default()
    }
}

impl Ways {
    pub fn new(rules: &[Rule]) -> Ways {
        let net = Net::new();
        net.ip_v6(
            "address add 2001:db8:1::1/64 dev a0 nodad
             address add 2001:db8:2::1/64 dev b0 nodad",
        );
        // A route look-up recognizes our own addresses, as from the loopback if a0 does not forward.
        net.sysctl("ipv6/conf/lo/forwarding", "1");
        let plane = Rc::new(Plane::open());
        plane.spoil();
        let ways = Ways {
            rules: Rules::load(&plane, MARK).expect("the verifier takes it"),
            plane,
            net,
        };
        ways.set(rules);
        ways
    }

    /// Puts other rules in force.
    pub fn set(&self, rules: &[Rule]) {
        let program = compile(rules).expect("good rules");
        let ifindex = |name: &str| nix::net::if_::if_nametoindex(name).ok();
        self.rules
            .replace(&program, Counters::Fresh, ifindex)
            .expect("they are put in force");
    }

    pub fn run(&self, packet: &[u8]) -> Ran {
        let context = Context {
            ifindex: self.net.ifindex("a0"),
            ..Context::default()
        };
        self.rules.run(packet, context, 1).expect("the program runs")
    }

    /// Returns the verdicts that a packet is counted under, and the result of its run.
    pub fn verdicts_of(&self, packet: &[u8]) -> (BTreeMap<String, u64>, Ran) {
        let before = self.rules.verdicts();
        let ran = self.run(packet);
        let mut after = self.rules.verdicts();
        after.retain(|name, n| {
            *n -= before[name];
            *n > 0
        });
        (after, ran)
    }

    /// Asserts that a packet has this one verdict and this value of the program, and that no byte of it is changed.
    #[track_caller]
    pub fn gives(&self, packet: &[u8], verdict: &str, value: u32) -> Ran {
        let (verdicts, ran) = self.verdicts_of(packet);
        let expected = BTreeMap::from([(verdict.to_owned(), 1)]);
        assert_eq!((&verdicts, ran.verdict), (&expected, value), "{packet:02x?}");
        assert_frame(&ran.packet, packet, verdict);
        ran
    }

    /// Asserts that a packet has this one verdict, and goes up the stack without a mark.
    #[track_caller]
    pub fn leaves(&self, packet: &[u8], verdict: &str) {
        assert_eq!(self.gives(packet, verdict, OK).mark, 0, "{verdict}");
    }

    /// Asserts that a packet goes up the stack, and is not counted.
    #[track_caller]
    pub fn ignores(&self, packet: &[u8]) {
        let (verdicts, ran) = self.verdicts_of(packet);
        assert_eq!((verdicts, ran.verdict, ran.mark), (BTreeMap::new(), OK, 0));
        assert_frame(&ran.packet, packet, "ignored");
    }

    pub fn count(&self, rule: usize) -> Count {
        self.rules.counts(rule + 1)[rule]
    }
}
