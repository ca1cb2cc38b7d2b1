//! Finds routes that can never win, because an earlier one takes all of their requests.

use super::{Condition, Route, Table, Want, host::Hosts, path::PathText};

impl Table {
    /// Returns whether some route takes every request: it has no conditions.
    pub fn takes_all(&self) -> bool {
        self.routes.iter().any(|route| route.conditions.is_empty())
    }

    /// Returns each route that an earlier one hides, with that one: (later, earlier), from 0. Some cases are not
    /// detected: two routes that together take all, or expressions that take the same.
    pub fn hidden(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        self.routes.iter().enumerate().filter_map(|(later, route)| {
            let before = self.routes.iter().take(later);
            before
                .enumerate()
                .find(|(_, earlier)| earlier.takes_all_of(route))
                .map(|(earlier, _)| (later, earlier))
        })
    }
}

impl Route {
    /// Returns whether the route certainly takes everything that the other one takes.
    fn takes_all_of(&self, other: &Route) -> bool {
        let implied = |mine: &Condition| other.conditions.iter().any(|theirs| mine.takes_all_of(theirs));
        self.conditions.iter().all(implied)
    }
}

impl Route {
    /// Returns two conditions of the route that are never both true. Some such pairs are not detected.
    pub fn contradiction(&self) -> Option<(&Condition, &Condition)> {
        let others = |a| self.conditions.iter().map(move |b| (a, b));
        self.conditions
            .iter()
            .flat_map(others)
            .find(|(a, b)| a.excludes(b))
    }
}

/// Returns whether each of `theirs` is within one of `mine`.
fn all_within<M, T>(mine: &[M], theirs: &[T], within: impl Fn(&M, &T) -> bool) -> bool {
    theirs.iter().all(|t| mine.iter().any(|m| within(m, t)))
}

impl Condition {
    /// Returns whether the condition is certainly true wherever the other one is.
    fn takes_all_of(&self, other: &Condition) -> bool {
        use Condition::*;
        let starts = |m: &PathText, t: &PathText| t.as_str().starts_with(m.as_str());
        match (self, other) {
            (Client(a), Client(b)) => all_within(a, b, |a, b| a.contains_network(*b)),
            (Method(a), Method(b)) => all_within(a, b, PartialEq::eq),
            (Alpn(a), Alpn(b)) => all_within(a, b, PartialEq::eq),
            (Host(a), Host(b)) | (Sni(a), Sni(b)) => hosts_within(a, b),
            (Path(a), Path(b)) => all_within(a, b, PartialEq::eq),
            (PathPrefix(a), Path(b) | PathPrefix(b)) => all_within(a, b, starts),
            (Extension(a), Path(b)) => all_within(a, b, |a, b| a.ends(b.as_str())),
            (Extension(a), Extension(b)) => all_within(a, b, |a, b| a.ends(&format!("/x.{b}"))),
            (PathRegex(a), Path(b)) => all_within(a, b, |a, b| a.is_match(b.as_str().as_bytes())),
            (PathRegex(a), PathRegex(b)) => all_within(a, b, PartialEq::eq),
            (Cgi(true), Query(true)) | (Query(false), Cgi(false)) => true,
            (Cgi(true), Method(b)) => b.iter().all(|m| !matches!(m.as_str(), "GET" | "HEAD")),
            (Header(a, mine), Header(b, theirs)) => {
                a.as_str().eq_ignore_ascii_case(b.as_str()) && mine.takes_all_of(theirs)
            }
            (Cookie(Some(_), Want::Absent), Cookie(None, Want::Absent)) => true,
            (Cookie(None, mine), Cookie(Some(_), theirs)) => any_cookie_takes(mine, theirs),
            (Cookie(a, mine), Cookie(b, theirs)) => a == b && mine.takes_all_of(theirs),
            (a, b) => a == b,
        }
    }
}

impl Condition {
    /// Returns whether the condition is certainly false wherever the other one is true.
    fn excludes(&self, other: &Condition) -> bool {
        use Condition::*;
        let none =
            |paths: &[PathText], takes: &dyn Fn(&str) -> bool| !paths.iter().any(|p| takes(p.as_str()));
        match (self, other) {
            (Path(paths), PathPrefix(b)) => none(paths, &|p| b.iter().any(|b| p.starts_with(b.as_str()))),
            (Path(paths), Extension(b)) => none(paths, &|p| b.iter().any(|b| b.ends(p))),
            (Path(paths), PathRegex(b)) => none(paths, &|p| b.iter().any(|b| b.is_match(p.as_bytes()))),
            (Query(true), Cgi(false)) => true,
            (Method(b), Cgi(false)) => b.iter().all(|m| !matches!(m.as_str(), "GET" | "HEAD")),
            (Header(a, Want::Absent), Header(b, want)) => {
                a.as_str().eq_ignore_ascii_case(b.as_str()) && *want != Want::Absent
            }
            (Cookie(a, Want::Absent), Cookie(b, want)) => (a.is_none() || a == b) && *want != Want::Absent,
            _ => false,
        }
    }
}

fn hosts_within(mine: &Hosts, theirs: &Hosts) -> bool {
    theirs.iter().all(|t| mine.iter().any(|m| m.takes_all_of(t)))
}

/// Returns whether a condition on any cookie covers one on a named cookie. A named cookie that must be there is some
/// cookie; a named cookie that must be absent tells nothing about the others.
fn any_cookie_takes(mine: &Want, theirs: &Want) -> bool {
    *mine != Want::Absent && *theirs != Want::Absent && mine.takes_all_of(theirs)
}
