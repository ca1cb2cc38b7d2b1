//! Why a route wins: what came of each condition of each route.

use serde::Serialize;

use super::{Action, Condition, Facts, Table, Token, cookie, path::has_query};

/// What came of each route.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Explanation {
    /// Which route wins, from 0; `None`: none does.
    pub winner: Option<usize>,
    /// The routes, in order.
    pub routes: Vec<Verdict>,
}

/// What came of a route.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Verdict {
    /// Its name.
    pub name: String,
    /// Whether it wins.
    pub outcome: Outcome,
    /// What becomes of what it takes, in words.
    pub action: String,
    /// Its conditions, in the order in which they are asked.
    pub checks: Vec<Check>,
}

/// Whether a route wins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It is the first that takes it.
    Wins,
    /// It would take it, if an earlier one did not.
    TooLate,
    /// A condition is not true.
    Fails,
}

/// What came of a condition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Check {
    /// The key under which it stands in a file.
    pub key: &'static str,
    /// What must be true, in words.
    pub condition: String,
    /// Whether it is.
    pub holds: bool,
    /// What there is instead, or what made it true.
    pub seen: String,
}

impl Table {
    /// What comes of each route. Its winner is that of [`Table::decide`].
    pub fn explain(&self, facts: &Facts<'_>) -> Explanation {
        let winner = self.decide(facts).map(|(n, _)| n);
        let routes = self.routes.iter().enumerate().map(|(n, route)| Verdict {
            name: route.name.clone(),
            outcome: match route.takes(facts) {
                _ if winner == Some(n) => Outcome::Wins,
                true => Outcome::TooLate,
                false => Outcome::Fails,
            },
            action: Action::to_string(&route.action),
            checks: route.conditions.iter().map(|c| c.check(facts)).collect(),
        });
        Explanation {
            winner,
            routes: routes.collect(),
        }
    }
}

impl Condition {
    fn check(&self, facts: &Facts<'_>) -> Check {
        Check {
            key: self.key(),
            condition: self.to_string(),
            holds: self.holds(facts),
            seen: self.seen(facts),
        }
    }

    /// What it looks at, in words.
    fn seen(&self, facts: &Facts<'_>) -> String {
        let text = |what: &str, value: Option<&str>| match value {
            Some(value) => format!("{what} is {value:?}"),
            None => format!("no {what} is known"),
        };
        match self {
            Condition::Client(_) => format!("client is {}", facts.client.to_canonical()),
            Condition::Method(_) => text("method", facts.method),
            Condition::Query(_) => query(facts),
            Condition::Cgi(_) => format!(
                "{}, {}, {}",
                text("method", facts.method),
                text("path", facts.path),
                query(facts)
            ),
            Condition::Sni(_) => text("SNI", facts.sni),
            Condition::Alpn(_) => {
                let offered = facts.alpn.iter().map(|p| p.escape_ascii().to_string());
                match facts.alpn {
                    [] => "ALPN offers nothing".into(),
                    _ => format!("ALPN offers {}", offered.collect::<Vec<_>>().join(", ")),
                }
            }
            Condition::Host(_) => text("host", facts.host),
            Condition::Path(_)
            | Condition::PathPrefix(_)
            | Condition::Extension(_)
            | Condition::PathRegex(_) => text("path", facts.path),
            Condition::Header(name, _) => values("header", Some(name), |see| {
                facts.headers.any(name.as_str(), see);
            }),
            Condition::Cookie(name, _) => values("cookie", name.as_ref(), |see| {
                cookie::any(facts.headers, name.as_ref().map(Token::as_str), see);
            }),
        }
    }
}

fn query(facts: &Facts<'_>) -> String {
    match facts.query {
        Some(query) if has_query(Some(query)) => format!("query is {query:?}"),
        _ => "there is no query".into(),
    }
}

/// All values of a field.
fn values(what: &str, name: Option<&Token>, each: impl FnOnce(&mut dyn FnMut(&[u8]) -> bool)) -> String {
    let mut found = Vec::new();
    each(&mut |value| {
        found.push(format!("\"{}\"", value.escape_ascii()));
        false
    });
    let name = name.map(|name| format!(" {name}")).unwrap_or_default();
    match found.is_empty() {
        true => format!("there is no {what}{name}"),
        false => format!("{what}{name} is {}", found.join(", ")),
    }
}
