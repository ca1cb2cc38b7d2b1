//! Reads rules for incoming packets, and converts them for the engine.

use std::net::SocketAddr;

use longsplice_engine::limit::RateLimit;
use longsplice_engine::rules::{self, Action, Flags, Match, Network, Ports, Rule, Translation};
use serde::Deserialize;
use toml::Spanned;

use super::{
    diagnostic::{Diagnostic, Source},
    one_or_many::{OneOrMany, flatten, list},
};
use crate::address::ListenAddr;

/// A file with rules only.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct File {
    #[serde(default)]
    rule: Vec<Spanned<Raw>>,
}

/// A rule as written in the file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Raw {
    name: Option<String>,
    interface: Option<String>,
    from: Option<Spanned<OneOrMany<Network>>>,
    to: Option<Spanned<OneOrMany<Network>>>,
    from_ports: Option<Spanned<OneOrMany<Ports>>>,
    to_ports: Option<Spanned<OneOrMany<Ports>>>,
    flags: Option<Flags>,
    #[serde(default)]
    spliced: bool,
    action: Spanned<Verb>,
    reason: Option<Spanned<String>>,
    rate_limit: Option<Spanned<RateLimit>>,
    listener: Option<Spanned<OneOrMany<ListenAddr>>>,
    record: Option<Spanned<Record>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Verb {
    Pass,
    Drop,
    Count,
    Limit,
    Deliver,
    Follow,
    Translate,
    Ask,
    AskOrPass,
    Copy,
}

/// A translation as written in the file: offsets may be negative.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
struct Record {
    from: SocketAddr,
    to: SocketAddr,
    #[serde(default)]
    seq: Offset,
    #[serde(default)]
    ack: Offset,
    #[serde(default)]
    tsval: Offset,
    #[serde(default)]
    tsecr: Offset,
}

/// An offset from -2^31 to 2^32 - 1; TCP numbers are added modulo 2^32.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(try_from = "i64")]
struct Offset(u32);

impl TryFrom<i64> for Offset {
    type Error = String;

    fn try_from(n: i64) -> Result<Self, Self::Error> {
        match (i64::from(i32::MIN)..=i64::from(u32::MAX)).contains(&n) {
            true => Ok(Offset(n as u32)),
            false => Err(format!("{n} is out of range: use -2147483648 to 4294967295")),
        }
    }
}

/// Checks a file that has rules only.
pub(super) fn settle_file(file: File, source: &Source<'_>) -> Result<Vec<Rule>, Vec<Diagnostic>> {
    let mut wrong = Vec::new();
    let (rules, places) = settle(file.rule, source, &mut wrong);
    check(&rules, rules.len(), &places, source, &mut wrong);
    wrong.sort_by_key(Diagnostic::line);
    if wrong.is_empty() { Ok(rules) } else { Err(wrong) }
}

/// Positions of rules in their file.
pub(super) type Places = Vec<std::ops::Range<usize>>;

/// Converts each rule by itself. A wrong rule is returned, too, so that the indices match.
pub(super) fn settle(
    given: Vec<Spanned<Raw>>,
    source: &Source<'_>,
    wrong: &mut Vec<Diagnostic>,
) -> (Vec<Rule>, Places) {
    let places = given.iter().map(Spanned::span).collect();
    let rules = given.into_iter().enumerate().map(|(n, raw)| {
        let raw = raw.into_inner();
        let action = action(&raw, source, wrong);
        Rule {
            name: raw.name.unwrap_or_else(|| format!("rule {}", n + 1)),
            matching: Match {
                interface: raw.interface,
                from: list(raw.from),
                to: list(raw.to),
                from_ports: list(raw.from_ports),
                to_ports: list(raw.to_ports),
                flags: raw.flags.unwrap_or_default(),
                spliced: raw.spliced,
            },
            action,
        }
    });
    (rules.collect(), places)
}

/// Checks the rules together, of which the first `written` are in the file, and others follow from other sections.
/// `places` are the positions of the rules, or of those sections.
pub(super) fn check(
    rules: &[Rule],
    written: usize,
    places: &Places,
    source: &Source<'_>,
    wrong: &mut Vec<Diagnostic>,
) {
    // Skip this after other errors: it would only report them again in other words.
    if wrong.is_empty()
        && let Err(e) = rules::check(rules)
    {
        let message = match e.index < written {
            true => e.to_string(),
            false => e.what.to_string(),
        };
        let place = places.get(e.index).cloned().unwrap_or_default();
        wrong.push(source.at(place, message, None));
    }
}

fn action(raw: &Raw, source: &Source<'_>, wrong: &mut Vec<Diagnostic>) -> Action {
    let verb = *raw.action.get_ref();
    let keys = [
        (Verb::Drop, "reason", raw.reason.as_ref().map(Spanned::span)),
        (
            Verb::Limit,
            "rate_limit",
            raw.rate_limit.as_ref().map(Spanned::span),
        ),
        (
            Verb::Deliver,
            "listener",
            raw.listener.as_ref().map(Spanned::span),
        ),
        (Verb::Translate, "record", raw.record.as_ref().map(Spanned::span)),
    ];
    for (of, key, place) in keys {
        match place {
            Some(place) if of != verb => {
                let help = format!(
                    "leave it out, or write action = \"{}\"",
                    format!("{of:?}").to_lowercase()
                );
                wrong.push(source.at(place, format!("this action has no `{key}`"), Some(help)));
            }
            None if of == verb => {
                let help = match verb {
                    Verb::Drop => "say why, such as reason = \"not wanted\": it is counted under that",
                    Verb::Limit => "say how fast, such as rate_limit = \"10MB/s\"",
                    Verb::Deliver => "add where it listens, such as listener = \"127.0.0.1:8081\"",
                    _ => {
                        "add what to translate by, such as record = { from = \"198.18.0.1:80\", to = \"198.18.0.2:80\", seq = 1 }"
                    }
                };
                wrong.push(source.at(
                    raw.action.span(),
                    format!("missing key `{key}`"),
                    Some(help.into()),
                ));
            }
            _ => {}
        }
    }
    if let (Verb::Limit, Some(rate_limit)) = (verb, &raw.rate_limit) {
        let rate_limit = *rate_limit.get_ref();
        return Action::Limit { rate_limit };
    }
    match (verb, &raw.reason, &raw.listener, &raw.record) {
        (Verb::Drop, Some(reason), ..) => Action::Drop {
            reason: reason.get_ref().clone(),
        },
        (Verb::Deliver, _, Some(listener), _) => Action::Deliver {
            to: flatten(listener.clone())
                .into_iter()
                .map(|a| a.into_inner().0)
                .collect(),
        },
        (Verb::Translate, _, _, Some(record)) => Action::Translate(translation(*record.get_ref())),
        (Verb::Count, ..) => Action::Count,
        (Verb::Follow, ..) => Action::Follow,
        (Verb::Ask, ..) => Action::Ask,
        (Verb::AskOrPass, ..) => Action::AskOrPass,
        (Verb::Copy, ..) => Action::Copy,
        _ => Action::Pass,
    }
}

fn translation(r: Record) -> Translation {
    Translation {
        from: r.from,
        to: r.to,
        seq: r.seq.0,
        ack: r.ack.0,
        tsval: r.tsval.0,
        tsecr: r.tsecr.0,
    }
}

#[cfg(test)]
mod tests;
