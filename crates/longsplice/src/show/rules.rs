//! Shows rules for `longsplice rules list`.

use std::fmt::{Display, Write};

use longsplice_engine::rules::{Action, Flags, Match, RulesInfo};

use super::{
    bytes,
    table::{Align, Table},
};

/// Returns a table with a line for each rule, and the counts of packets by result.
pub(crate) fn rules(info: &RulesInfo) -> String {
    if info.rules.is_empty() {
        return "no rules\n".to_owned();
    }
    use Align::{Left, Right};
    let mut table = Table::new(vec![
        ("RULE", Left),
        ("PACKETS", Right),
        ("BYTES", Right),
        ("FLOWS", Right),
        ("TAKES", Left),
        ("ACTION", Left),
    ]);
    for one in &info.rules {
        table.row(vec![
            one.rule.name.clone(),
            one.packets.to_string(),
            bytes(one.bytes),
            match one.rule.matching.spliced {
                true => one.flows.to_string(),
                false => "-".to_owned(),
            },
            takes(&one.rule.matching),
            action(&one.rule.action),
        ]);
    }
    let mut out = table.to_string();
    let mut counted = |title: &str, counts: &mut dyn Iterator<Item = (&String, &u64)>| {
        let seen: Vec<_> = counts
            .filter(|(_, n)| **n > 0)
            .map(|(name, n)| format!("{name} {n}"))
            .collect();
        if !seen.is_empty() {
            // Writing to a String cannot fail.
            let _ = writeln!(out, "{title}: {}", seen.join(", "));
        }
    };
    counted("dropped", &mut info.drops.iter());
    counted("verdicts", &mut info.verdicts.iter());
    let on = match info.interfaces.is_empty() {
        true => "no interface".to_owned(),
        false => info.interfaces.join(", "),
    };
    let _ = writeln!(out, "on {on}; {} of {} entries", info.entries, info.max_entries);
    out
}

/// Describes in words which packets match.
pub(super) fn takes(m: &Match) -> String {
    let mut words = Vec::new();
    let mut add = |word: &str, list: &[String]| {
        if !list.is_empty() {
            words.push(format!("{word} {}", list.join(",")));
        }
    };
    add("on", m.interface.as_slice());
    add("from", &texts(&m.from));
    add("port", &texts(&m.from_ports));
    add("to", &texts(&m.to));
    add("port", &texts(&m.to_ports));
    if m.flags != Flags::default() {
        words.push(format!("flags {}", m.flags));
    }
    if m.spliced {
        words.push("and spliced".to_owned());
    }
    match words.is_empty() {
        true => "all".to_owned(),
        false => words.join(" "),
    }
}

fn action(a: &Action) -> String {
    let verb = a.as_str();
    match a {
        Action::Drop { reason } => format!("{verb}: {reason}"),
        Action::Limit { rate_limit } => format!("{verb} to {rate_limit}"),
        Action::Deliver { to } => format!("{verb} to {}", texts(to).join(",")),
        Action::Translate(t) => format!("{verb} to {} -> {}", t.from, t.to),
        _ => verb.to_owned(),
    }
}

fn texts<T: Display>(list: &[T]) -> Vec<String> {
    list.iter().map(ToString::to_string).collect()
}

#[cfg(test)]
mod tests {
    use longsplice_engine::rules::{Rule, RuleInfo};

    use super::*;

    #[test]
    fn rules_are_shown_with_what_they_have_seen() {
        let rule = |name: &str, matching, action, packets| RuleInfo {
            rule: Rule {
                name: name.into(),
                matching,
                action,
            },
            packets,
            bytes: packets * 60,
            flows: packets,
            dropped: packets,
        };
        let telnet = Match {
            interface: Some("eth0".into()),
            to: vec!["198.18.0.0/15".parse().unwrap()],
            to_ports: vec![23.into(), "80-81".parse().unwrap()],
            flags: Flags::ANY,
            ..Match::default()
        };
        let slow = Match {
            from: vec!["198.18.0.1".parse().unwrap()],
            spliced: true,
            ..Match::default()
        };
        let limit = Action::Limit {
            rate_limit: "1MB/s".parse().unwrap(),
        };
        let drop = Action::Drop {
            reason: "telnet".into(),
        };
        let info = RulesInfo {
            rules: vec![
                rule("no telnet", telnet, drop, 3),
                rule("rest", Match::default(), Action::Count, 0),
                rule("slow", slow, limit, 2),
            ],
            drops: [("telnet".to_owned(), 3)].into(),
            verdicts: [("dropped".to_owned(), 3), ("passed".to_owned(), 0)].into(),
            interfaces: vec!["eth0".into()],
            entries: 3,
            max_entries: 256,
        };
        assert_eq!(
            rules(&info),
            "\
RULE       PACKETS  BYTES  FLOWS  TAKES                                             ACTION
no telnet        3  180 B      -  on eth0 to 198.18.0.0/15 port 23,80-81 flags any  drop: telnet
rest             0    0 B      -  all                                               count
slow             2  120 B      2  from 198.18.0.1 and spliced                       limit to 1000000B/s
dropped: telnet 3
verdicts: dropped 3
on eth0; 3 of 256 entries
"
        );
        assert_eq!(rules(&RulesInfo::default()), "no rules\n");
    }
}
