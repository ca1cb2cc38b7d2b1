//! Explains why a route wins, with the result of each condition of each route.

use serde::Serialize;

use super::{Action, Condition, Facts, Table, Token, cookie, path::has_query};

/// Results of all routes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Explanation {
    /// Route that wins, from 0; `None`: none does.
    pub winner: Option<usize>,
    /// Routes, in order.
    pub routes: Vec<Verdict>,
}

/// Result of a route.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Verdict {
    /// Name of the route.
    pub name: String,
    /// Outcome: it wins, comes too late, or fails.
    pub outcome: Outcome,
    /// Action for requests that it takes, in words.
    pub action: String,
    /// Conditions, in the order in which they are checked.
    pub checks: Vec<Check>,
}

/// Outcome of a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It is the first that takes the request.
    Wins,
    /// It would take the request, but an earlier one does.
    TooLate,
    /// A condition is not true.
    Fails,
}

/// Result of a condition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Check {
    /// Key of the condition in a file.
    pub key: &'static str,
    /// Condition, in words.
    pub condition: String,
    /// True if the condition holds.
    pub holds: bool,
    /// Values that the condition was compared with.
    pub seen: String,
}

impl Table {
    /// Explains the outcome of each route, in the reading of the path that decides. The winner is that of
    /// [`Table::decide`].
    pub fn explain(&self, facts: &Facts<'_>) -> Explanation {
        let facts = &self.reading(facts);
        let winner = self.first(facts).map(|(n, _)| n);
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

    /// Describes the values that the condition looks at.
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

/// Lists all values of a field.
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
