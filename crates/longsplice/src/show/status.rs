//! Shows the status for `longsplice status`.

use std::{collections::BTreeMap, fmt::Write, time::SystemTime};

use longsplice_engine::{TransitionTimes, reason::RelayReason};
use strum::VariantArray;

use super::{
    age, bytes, nanoseconds,
    table::{Align, Table},
};
use crate::{access_log::LogCounts, admin::Status, config_status::GenerationStatus};

/// Describes the status in words; the beginning tells whether the daemon can splice.
pub(crate) fn status(s: &Status) -> String {
    let c = &s.counters;
    let mut out = String::new();
    let stopping = if s.stopping { ", shutting down" } else { "" };
    line(
        &mut out,
        "instance",
        format!("{} (longsplice {}, pid {})", s.instance, s.version, s.pid),
    );
    line(&mut out, "up", format!("{}{stopping}", age(s.uptime_seconds)));
    if let Some(generation) = &s.config_generation {
        configuration(&mut out, generation);
    }
    let why = s.health.why_not.as_deref().unwrap_or("no reason is known");
    line(
        &mut out,
        "splicing",
        if s.health.splice_available {
            "yes".to_owned()
        } else {
            format!("no: {why}")
        },
    );
    line(&mut out, "interfaces", or_none(s.health.interfaces.join(" ")));
    if !s.health.xdp.is_empty() {
        line(&mut out, "xdp", s.health.xdp.join(" "));
    }
    for foreign in &s.health.before_ours {
        line(&mut out, "before ours", foreign);
    }
    line(&mut out, "source ports", or_none(s.health.source_ports.clone()));
    line(
        &mut out,
        "flows",
        format!("{} of at most {} spliced", s.health.flows, s.health.max_flows),
    );
    out.push('\n');
    line(&mut out, "accepted", c.accepted_total);
    line(
        &mut out,
        "spliced",
        format!(
            "{}{}",
            c.spliced_total,
            times("transition", &c.transition_to_dormant)
        ),
    );
    line(
        &mut out,
        "detached",
        format!(
            "{}{}",
            c.detached_total,
            times("transition", &c.transition_to_detached)
        ),
    );
    line(
        &mut out,
        "resumed",
        format!("{}{}", c.resumed_total, times("sockets rebuilt", &c.rebuild)),
    );
    line(&mut out, "unsplices", counted(&c.unsplices_total));
    line(&mut out, "adopted", c.adopted_total);
    line(&mut out, "ended", counted(&c.flows_ended_total));
    line(
        &mut out,
        "relayed",
        format!("{} ({})", c.relayed_total, bytes(c.relay_bytes_total)),
    );
    reasons(&mut out, &c.relayed_reasons);
    line(&mut out, "segments", counted(&c.segments));
    if let Some(a) = &s.accelerator {
        line(
            &mut out,
            "accelerator",
            format!(
                "{} taken over{}, {} released ({}), {} open; passed through {}",
                a.taken_over_total,
                times("each", &c.take_over),
                a.released_total,
                counted(&a.released_by_reason),
                a.open,
                counted(&a.passed_through_total)
            ),
        );
    }
    if let Some(m) = &s.memory {
        let text = format!(
            "{} of {} taken, {} connections refused, {} reset",
            bytes(m.used),
            bytes(m.limit),
            m.refused_total,
            m.shed_total
        );
        line(&mut out, "memory", text);
    }
    if let Some(LogCounts {
        written,
        dropped,
        failed,
    }) = &s.access_log
    {
        let text = format!("{written} lines, {dropped} dropped, {failed} not written");
        line(&mut out, "access log", text);
    }
    out.push('\n');
    out.push_str(&listeners(s));
    out
}

/// Describes the configuration in force, and the last failed reload.
fn configuration(out: &mut String, generation: &GenerationStatus) {
    let since = |then: u64| {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        age(now.map_or(0.0, |now| now.as_secs_f64() - then as f64))
    };
    line(
        out,
        "configuration",
        format!(
            "generation {}, loaded {} ago",
            generation.number,
            since(generation.loaded_at)
        ),
    );
    if let Some(failed) = &generation.failed {
        line(out, "", format!("a reload failed {} ago:", since(failed.at)));
        for text in failed.error.lines() {
            line(out, "", text);
        }
    }
}

fn line(out: &mut String, name: &str, value: impl std::fmt::Display) {
    // Writing to a String cannot fail.
    let _ = writeln!(out, "{name:<13} {value}");
}

fn or_none(s: String) -> String {
    if s.is_empty() { "none".to_owned() } else { s }
}

fn times(what: &str, times: &TransitionTimes) -> String {
    if times.samples == 0 {
        return String::new();
    }
    format!(
        " ({what}: median {}, p99 {})",
        nanoseconds(times.median_ns),
        nanoseconds(times.p99_ns)
    )
}

fn counted(map: &BTreeMap<String, u64>) -> String {
    let shown: Vec<_> = map
        .iter()
        .filter(|(_, n)| **n > 0)
        .map(|(name, n)| format!("{name} {n}"))
        .collect();
    if shown.is_empty() {
        "0".to_owned()
    } else {
        shown.join(", ")
    }
}

/// Lists the reasons with their meanings, the most frequent first.
fn reasons(out: &mut String, by_reason: &BTreeMap<String, u64>) {
    let mut shown: Vec<_> = by_reason.iter().filter(|(_, n)| **n > 0).collect();
    shown.sort_by_key(|(_, n)| std::cmp::Reverse(**n));
    for (name, n) in shown {
        let known = RelayReason::VARIANTS.iter().find(|r| r.as_str() == name);
        let meaning = known.map(|r| format!(": {}", r.explain())).unwrap_or_default();
        let _ = writeln!(out, "  {n:>10} {name}{meaning}");
    }
}

fn listeners(s: &Status) -> String {
    use Align::{Left, Right};
    let mut table = Table::new(vec![
        ("LISTENER", Left),
        ("ADDRESS", Left),
        ("TO", Left),
        ("SPLICE", Left),
        ("DETACH", Left),
        ("UNSPLICE", Left),
        ("OPEN", Right),
        ("REFUSED", Right),
    ]);
    for l in &s.listeners {
        let open = l
            .max_connections
            .map_or_else(|| l.open.to_string(), |max| format!("{}/{max}", l.open));
        let addresses: Vec<_> = l.listen.iter().map(ToString::to_string).collect();
        table.row(vec![
            l.name.clone(),
            addresses.join(" "),
            l.to.join(" "),
            match l.splice_min {
                Some(from) => format!("{} from {}", l.splice, bytes(from)),
                None => l.splice.clone(),
            },
            l.detach.clone(),
            if l.unsplice.is_empty() {
                "by command".to_owned()
            } else {
                l.unsplice.clone()
            },
            open,
            l.refused_total.to_string(),
        ]);
    }
    table.to_string()
}

#[cfg(test)]
mod tests {
    use longsplice_engine::{Counters, Health};

    use super::*;
    use crate::{config_status::FailedReload, memory::MemoryStatus};

    #[test]
    fn why_it_cannot_splice_and_why_it_did_not_are_told() {
        let counted = |pairs: &[(&str, u64)]| pairs.iter().map(|(k, n)| ((*k).to_owned(), *n)).collect();
        let text = status(&Status {
            version: "0.1.0".into(),
            instance: "edge".into(),
            pid: 7,
            started_at: 0,
            uptime_seconds: 3700.0,
            stopping: true,
            counters: Counters {
                relayed_total: 5,
                relayed_reasons: counted(&[
                    ("ecn", 1),
                    ("interface", 4),
                    ("mss", 0),
                    ("of_a_later_version", 2),
                ]),
                transition_to_dormant: TransitionTimes {
                    samples: 3,
                    median_ns: 300,
                    p99_ns: 1_500,
                },
                resumed_total: 3,
                unsplices_total: counted(&[("client", 2), ("admin", 1)]),
                rebuild: TransitionTimes {
                    samples: 2,
                    median_ns: 33_000,
                    p99_ns: 120_000,
                },
                ..Counters::default()
            },
            health: Health {
                splice_available: false,
                why_not: Some("CAP_BPF is missing".into()),
                interfaces: Vec::new(),
                xdp: vec!["eth0".into(), "eth1".into()],
                before_ours: vec!["eth0 ingress: cil_from_netdev (program 12)".into()],
                flows: 0,
                max_flows: 9,
                source_ports: String::new(),
            },
            config_generation: Some(GenerationStatus {
                number: 3,
                loaded_at: 0,
                failed_total: 1,
                failed: Some(FailedReload {
                    at: u64::MAX,
                    error: "x.toml:1: no\nneither".into(),
                }),
            }),
            accelerator: None,
            memory: Some(MemoryStatus {
                limit: 64 << 20,
                used: 48 << 20,
                refused_total: 5,
                shed_total: 1,
            }),
            access_log: Some(LogCounts {
                written: 7,
                dropped: 2,
                failed: 1,
            }),
            listeners: Vec::new(),
        });
        for line in [
            "instance      edge (longsplice 0.1.0, pid 7)\n",
            "up            1h01m, shutting down\n",
            "configuration generation 3, loaded ",
            "              a reload failed 0s ago:\n              x.toml:1: no\n              neither\n",
            "memory        48.0 MiB of 64.0 MiB taken, 5 connections refused, 1 reset\n",
            "access log    7 lines, 2 dropped, 1 not written\n",
            "splicing      no: CAP_BPF is missing\n",
            "spliced       0 (transition: median 300 ns, p99 1.5 µs)\n",
            "xdp           eth0 eth1\n",
            "before ours   eth0 ingress: cil_from_netdev (program 12)\n",
            "resumed       3 (sockets rebuilt: median 33.0 µs, p99 120.0 µs)\n",
            "unsplices     admin 1, client 2\n",
            "           4 interface: A leg uses an interface that is not watched (excluded, PPP, or a tunnel without a fixed far end).\n",
            "           2 of_a_later_version\n",
        ] {
            assert!(text.contains(line), "{line}{text}");
        }
        assert!(
            text.find("interface").unwrap() < text.find("ecn").unwrap() && !text.contains("mss"),
            "{text}"
        );
    }
}
