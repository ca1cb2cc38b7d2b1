//! Collects what is wrong with a file, and checks the values that several sections have.

use std::{
    ops::{Range, RangeInclusive},
    path::{Path, PathBuf},
    time::Duration,
};

use toml::Spanned;

use super::{
    diagnostic::{Diagnostic, Source},
    hint,
    one_or_many::{OneOrMany, list},
    period::Period,
    rules,
};

/// Collects all errors, so that one run of `check` shows all of them.
pub(super) struct Settler<'a> {
    source: &'a Source<'a>,
    pub(super) wrong: Vec<Diagnostic>,
}

impl<'a> Settler<'a> {
    pub(super) fn new(source: &'a Source<'a>) -> Self {
        Settler {
            source,
            wrong: Vec::new(),
        }
    }

    pub(super) fn complain(&mut self, at: Range<usize>, message: impl Into<String>, help: &str) {
        self.wrong
            .push(self.source.at(at, message, Some(help.to_owned())));
    }

    /// Returns the path of a file that is named in this one: relative to the folder of this file, not to the daemon's
    /// working directory.
    pub(super) fn beside(&self, path: &Path) -> PathBuf {
        self.source.folder().join(path)
    }

    /// Returns the elements of a list, and complains about one without any.
    pub(super) fn filled<T>(&mut self, given: Spanned<OneOrMany<T>>, help: &str) -> Vec<T> {
        let place = given.span();
        let list = list(Some(given));
        if list.is_empty() {
            self.complain(place, "the list is empty", help);
        }
        list
    }

    /// Checks a whole number from 1 to `most`.
    pub(super) fn count(&mut self, key: &str, given: Option<&Spanned<i64>>, default: u32, most: u32) -> u32 {
        self.number(key, given, default, 1..=most)
    }

    /// Checks a whole number in this range.
    pub(super) fn number(
        &mut self,
        key: &str,
        given: Option<&Spanned<i64>>,
        default: u32,
        range: RangeInclusive<u32>,
    ) -> u32 {
        let Some(given) = given else { return default };
        match u32::try_from(*given.get_ref()) {
            Ok(n) if range.contains(&n) => n,
            _ => {
                let message = format!("{key} is out of range: {}", given.get_ref());
                let help = format!("use {} to {}", range.start(), range.end());
                self.complain(given.span(), message, &help);
                default
            }
        }
    }

    /// Checks a duration from `least` to `most`.
    pub(super) fn period(
        &mut self,
        key: &str,
        given: Option<Spanned<Period>>,
        default: Duration,
        least: Duration,
        most: Duration,
    ) -> Duration {
        let Some(given) = given else { return default };
        let value = given.get_ref().0;
        if (least..=most).contains(&value) {
            return value;
        }
        let message = format!("{key} is out of range: {}", Period(value));
        self.complain(
            given.span(),
            message,
            &format!("use {} to {}", Period(least), Period(most)),
        );
        default
    }

    /// Checks a duration that the command line checks as well.
    pub(super) fn period_in(
        &mut self,
        key: &str,
        given: Option<Spanned<Period>>,
        default: Duration,
        range: &RangeInclusive<Duration>,
    ) -> Duration {
        self.period(key, given, default, *range.start(), *range.end())
    }

    /// Checks that an upstream of this name exists.
    pub(super) fn upstream_name(&mut self, name: Spanned<String>, known: &[String]) -> String {
        if !known.contains(name.get_ref()) {
            let message = format!("there is no upstream `{}`", name.get_ref());
            let known: Vec<&str> = known.iter().map(String::as_str).collect();
            let help = match known.is_empty() {
                true => "add an [[upstream]] of that name".to_owned(),
                false => hint::suggest(
                    name.get_ref(),
                    &known,
                    "add an [[upstream]] of that name, or use one of",
                ),
            };
            self.complain(name.span(), message, &help);
        }
        name.into_inner()
    }

    /// Checks a name that may be any text of one line.
    pub(super) fn free_name(&mut self, name: &str, at: Range<usize>) {
        if let Some(control) = name.chars().find(|c| c.is_control()) {
            let message = format!("the name has a control character: {}", control.escape_default());
            self.complain(at, message, "take it out: lines of the log show the name");
        } else if name.is_empty() {
            self.complain(at, "the name is empty", "use any text, or leave the key out");
        }
    }

    /// Checks the name of a congestion control.
    pub(super) fn congestion(&mut self, given: Option<Spanned<String>>) -> Option<String> {
        let given = given?;
        if let Some(complaint) = rules::congestion(given.get_ref()) {
            self.complain(given.span(), complaint.message, complaint.help);
        }
        Some(given.into_inner())
    }

    /// Returns the number of complaints so far.
    pub(super) fn complaints(&self) -> usize {
        self.wrong.len()
    }
}
