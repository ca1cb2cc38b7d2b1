//! Decides what rules say of spliced flows: once for each flow, since its addresses and ports do not change.

use std::net::SocketAddr;

use super::{Action, Match, Network, Ports, Rule};
use crate::{
    family::{Family, mapped},
    limit::RateLimit,
    side::{PerSide, Side},
};

/// Source and destination of the packets that an end of a flow sends to this host.
pub type Ends = (SocketAddr, SocketAddr);

/// Decision about a spliced flow that matches a rule.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FlowDecision {
    /// Indices of the rules that it matches, in their order: those that count, and the one that decides.
    pub rules: Vec<usize>,
    /// True if its segments are dropped.
    pub drop: bool,
    /// Limits of what each side sends.
    pub limit: RateLimit,
}

/// Decides about a flow by the packets of its two ends: a rule is for the whole flow if it is for the packets of either
/// end. The first rule that does not only count decides. `None`: no rule matches.
pub fn decide(rules: &[Rule], ends: PerSide<Ends>) -> Option<FlowDecision> {
    let mut decision = FlowDecision::default();
    let matching = (rules.iter().enumerate())
        .filter(|(_, rule)| rule.matching.spliced)
        .filter(|(_, rule)| Side::BOTH.iter().any(|&side| fits(&rule.matching, ends[side])));
    for (index, rule) in matching {
        decision.rules.push(index);
        match &rule.action {
            Action::Count => continue,
            Action::Drop { .. } => decision.drop = true,
            Action::Limit { rate_limit } => decision.limit = *rate_limit,
            _ => {}
        }
        break;
    }
    (!decision.rules.is_empty()).then_some(decision)
}

fn fits(m: &Match, (from, to): Ends) -> bool {
    let within = |networks: &[Network], address: SocketAddr| {
        let holds = |network: &Network| {
            Family::of(network.address()) == Family::of(address.ip())
                && network.wide().contains(&mapped(address.ip()))
        };
        networks.is_empty() || networks.iter().any(holds)
    };
    let among = |ports: &[Ports], port: u16| {
        ports.is_empty() || ports.iter().any(|p| (p.min()..=p.max()).contains(&port))
    };
    within(&m.from, from)
        && within(&m.to, to)
        && among(&m.from_ports, from.port())
        && among(&m.to_ports, to.port())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::Flags;

    const CLIENT: &str = "198.18.0.1:50000";
    const FRONT: &str = "198.18.0.2:8080";
    const SOURCE: &str = "[2001:db8::1]:20000";
    const SERVER: &str = "[2001:db8::2]:80";

    /// Returns the ends of a flow between an IPv4 client and an IPv6 server.
    fn ends() -> PerSide<Ends> {
        let ends = |from: &str, to: &str| (from.parse().unwrap(), to.parse().unwrap());
        PerSide::new(ends(CLIENT, FRONT), ends(SERVER, SOURCE))
    }

    fn rule(name: &str, from: &str, from_ports: Option<u16>, action: Action) -> Rule {
        Rule {
            name: name.into(),
            matching: Match {
                from: vec![from.parse().unwrap()],
                from_ports: from_ports.into_iter().map(Into::into).collect(),
                spliced: true,
                ..Match::default()
            },
            action,
        }
    }

    fn drop_rule(from: &str, from_ports: Option<u16>) -> Rule {
        let reason = "test".into();
        rule("drop", from, from_ports, Action::Drop { reason })
    }

    #[test]
    fn a_rule_for_the_packets_of_either_end_is_for_the_flow() {
        for (from, port, matches) in [
            ("198.18.0.0/24", None, true),
            ("198.18.0.0/24", Some(50_000), true),
            ("198.18.0.0/24", Some(80), false),
            ("2001:db8::/32", Some(80), true),
            ("0.0.0.0/0", Some(80), false),
            ("::/0", Some(50_000), false),
            ("198.18.0.2", None, false),
        ] {
            let decided = decide(&[drop_rule(from, port)], ends());
            assert_eq!(decided.is_some_and(|d| d.drop), matches, "{from} {port:?}");
        }
        let mut to = drop_rule("0.0.0.0/0", None);
        to.matching.to_ports = vec![8080.into()];
        assert!(decide(std::slice::from_ref(&to), ends()).is_some());
        // The server's packets do not come to the port of the listener.
        to.matching.from = vec!["::/0".parse().unwrap()];
        assert_eq!(decide(&[to], ends()), None);
    }

    #[test]
    fn the_first_rule_that_does_not_only_count_decides() {
        let limit = Action::Limit {
            rate_limit: "server=1MB/s".parse().unwrap(),
        };
        let rules = [
            rule("all", "0.0.0.0/0", None, Action::Count),
            rule("others", "203.0.113.0/24", None, Action::Pass),
            rule("slow", "198.18.0.1", None, limit),
            drop_rule("0.0.0.0/0", None),
        ];
        let decided = decide(&rules, ends()).unwrap();
        assert_eq!((decided.rules, decided.drop), (vec![0, 2], false));
        assert_eq!(decided.limit.to_string(), "server=1000000B/s");
        let mut for_packets = rules.clone();
        for_packets.iter_mut().for_each(|r| r.matching.spliced = false);
        assert_eq!(decide(&for_packets, ends()), None);
    }

    #[test]
    fn a_flow_that_a_rule_lets_pass_is_asked_no_further_rule() {
        let rules = [
            rule("ours", "198.18.0.1", None, Action::Pass),
            drop_rule("0.0.0.0/0", None),
        ];
        let decided = decide(&rules, ends()).unwrap();
        assert_eq!((decided.rules, decided.drop), (vec![0], false));
    }

    #[test]
    fn what_cannot_be_decided_for_a_flow_is_refused_with_the_remedy() {
        let good = drop_rule("198.18.0.1", None);
        let with = |change: &dyn Fn(&mut Rule)| {
            let mut rule = good.clone();
            change(&mut rule);
            super::super::compile(&[rule])
                .map(drop)
                .map_err(|e| e.to_string())
        };
        assert_eq!(with(&|_| ()), Ok(()));
        assert_eq!(with(&|r| r.matching.flags = Flags::ANY), Ok(()));
        let interface = with(&|r| r.matching.interface = Some("eth0".into())).unwrap_err();
        assert!(interface.contains("name networks in `from`"), "{interface}");
        let flags = with(&|r| r.matching.flags = "fin".parse().unwrap()).unwrap_err();
        assert!(flags.contains("leave `flags` out"), "{flags}");
        let action = with(&|r| r.action = Action::Ask).unwrap_err();
        assert!(action.contains("`ask`"), "{action}");
        let limit = with(&|r| {
            r.matching.spliced = false;
            let rate_limit = "1MB/s".parse().unwrap();
            r.action = Action::Limit { rate_limit };
        });
        assert!(limit.unwrap_err().contains("spliced = true"));
    }
}
