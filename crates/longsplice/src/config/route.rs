//! Reads the routes of a listener, which choose the upstream of a request.

mod check;
mod field;

use std::ops::Range;

use longsplice_core::{
    route::{Action, Condition, Extension, HostPattern, PathText, Pattern, Redirect, Route, Table, Token},
    rules::Network,
};
use serde::Deserialize;
use toml::Spanned;

pub(super) use check::Of;

use super::{one_or_many::OneOrMany, settler::Settler};

/// The table as written in the file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Raw {
    name: Option<Spanned<String>>,
    client: Option<Spanned<OneOrMany<Network>>>,
    method: Option<Spanned<OneOrMany<Token>>>,
    query: Option<Spanned<bool>>,
    cgi: Option<Spanned<bool>>,
    sni: Option<Spanned<OneOrMany<HostPattern>>>,
    alpn: Option<Spanned<OneOrMany<String>>>,
    host: Option<Spanned<OneOrMany<HostPattern>>>,
    path: Option<Spanned<OneOrMany<PathText>>>,
    path_prefix: Option<Spanned<OneOrMany<PathText>>>,
    path_regex: Option<Spanned<OneOrMany<Pattern>>>,
    extension: Option<Spanned<OneOrMany<Extension>>>,
    header: Option<Spanned<field::Raw>>,
    cookie: Option<Spanned<field::Raw>>,
    upstream: Option<Spanned<String>>,
    original: Option<Spanned<bool>>,
    status: Option<Spanned<i64>>,
    redirect: Option<Spanned<Redirect>>,
}

impl Settler<'_> {
    /// Checks and converts the tables of a listener.
    pub(super) fn routes(&mut self, given: Vec<Spanned<Raw>>, of: &Of<'_>) -> Table {
        let places: Vec<_> = given.iter().map(Spanned::span).collect();
        let before = self.complaints();
        let mut routes: Vec<Route> = Vec::new();
        for (n, (raw, place)) in given.into_iter().zip(&places).enumerate() {
            let mut raw = raw.into_inner();
            let name = self.route_name(raw.name.take(), n, place.clone(), &routes);
            let action = self.action(&mut raw, place.clone(), of);
            let conditions = self.conditions(raw);
            self.check_protocol(&conditions, of);
            routes.push(Route {
                name,
                conditions: conditions.into_iter().map(Spanned::into_inner).collect(),
                action,
            });
        }
        let table = Table::new(routes);
        // Skip this after an error: the rest of a wrong route tells nothing about the other routes.
        if self.complaints() == before {
            self.check_table(&table, &places);
        }
        table
    }

    /// Returns the name of a route: the one that it was given, or its number.
    fn route_name(
        &mut self,
        given: Option<Spanned<String>>,
        n: usize,
        place: Range<usize>,
        earlier: &[Route],
    ) -> String {
        let place = given.as_ref().map_or(place, Spanned::span);
        let name = given.map_or_else(|| format!("route {}", n + 1), Spanned::into_inner);
        self.free_name(&name, place.clone());
        if earlier.iter().any(|r| r.name == name) {
            let message = format!("another route of this listener is named `{name}`");
            self.complain(place, message, "logs and metrics tell routes by their names");
        }
        name
    }

    /// Returns the conditions of the table, each with its position.
    fn conditions(&mut self, raw: Raw) -> Vec<Spanned<Condition>> {
        let mut all = Vec::new();
        self.check_methods(raw.method.as_ref());
        all.extend(self.any_of(raw.client, Condition::Client));
        all.extend(self.any_of(raw.method, Condition::Method));
        all.extend(self.any_of(raw.sni, |list| Condition::Sni(list.into_iter().collect())));
        all.extend(self.any_of(raw.alpn, Condition::Alpn));
        all.extend(self.any_of(raw.host, |list| Condition::Host(list.into_iter().collect())));
        all.extend(self.any_of(raw.path, Condition::Path));
        all.extend(self.any_of(raw.path_prefix, Condition::PathPrefix));
        all.extend(self.any_of(raw.path_regex, Condition::PathRegex));
        all.extend(self.any_of(raw.extension, Condition::Extension));
        let flag = |given: Option<Spanned<bool>>, make: fn(bool) -> Condition| {
            given.map(|given| Spanned::new(given.span(), make(given.into_inner())))
        };
        all.extend(flag(raw.query, Condition::Query));
        all.extend(flag(raw.cgi, Condition::Cgi));
        all.extend(self.headers(raw.header));
        all.extend(self.cookies(raw.cookie));
        all
    }

    fn any_of<T>(
        &mut self,
        given: Option<Spanned<OneOrMany<T>>>,
        make: impl FnOnce(Vec<T>) -> Condition,
    ) -> Option<Spanned<Condition>> {
        let given = given?;
        let place = given.span();
        let help = "any value of a list is enough, and there is none: leave the key out";
        let list = self.filled(given, help);
        (!list.is_empty()).then(|| Spanned::new(place, make(list)))
    }

    fn action(&mut self, raw: &mut Raw, place: Range<usize>, of: &Of<'_>) -> Action {
        let upstream = raw.upstream.take().map(|name| {
            let place = name.span();
            let name = self.upstream_name(name, of.upstreams);
            ("upstream", place, Action::Upstream(name))
        });
        let original = raw.original.take().map(|given| {
            self.check_original(&given, of);
            ("original", given.span(), Action::Original)
        });
        let status = raw.status.take().map(|given| {
            let status = self.status(&given, of);
            ("status", given.span(), Action::Status(status))
        });
        let redirect = raw.redirect.take().map(|given| {
            self.only_http("redirect", given.span(), of);
            let place = given.span();
            ("redirect", place, Action::Redirect(given.into_inner()))
        });
        let mut given = [upstream, original, status, redirect].into_iter().flatten();
        let Some((first, _, action)) = given.next() else {
            let help = "add upstream = \"NAME\", original = true, status = 403 or redirect = \"https://…\"";
            self.complain(
                place,
                "the route does not say what becomes of what it takes",
                help,
            );
            return Action::Original;
        };
        for (second, place, _) in given {
            let message = format!("the route has `{first}` and `{second}`");
            self.complain(place, message, "leave one of them out: a route does one thing");
        }
        action
    }
}

#[cfg(test)]
mod tests;
