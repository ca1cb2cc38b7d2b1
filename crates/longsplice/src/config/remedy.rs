//! Finds the remedy of what the TOML reader does not take: tries the likely spelling, and looks what the file says then.

use std::ops::Range;

use super::{
    diagnostic::{Diagnostic, Source},
    hint,
};

/// Returns the diagnostic of a text that the reader does not take. `again` checks another text.
pub(super) fn diagnose(
    error: &toml::de::Error,
    source: &Source<'_>,
    again: impl Fn(&str) -> Vec<Diagnostic>,
) -> Diagnostic {
    let here = hint::diagnose(error, source);
    let place = Place::new(source.text(), error.span().unwrap_or(0..0));
    let message = error.message().trim();
    if message == "duplicate key" {
        return place.twice(source);
    }
    if message.starts_with("unknown field ") && place.is_of_whole_file(&again) {
        let key = place.written;
        let help = format!("`{key}` is for the file as a whole: write it above the first [table]");
        return here.with_help(help);
    }
    match place.remedy(message, &here, &again) {
        Some(remedy) => here.with_help(remedy),
        None => here,
    }
}

/// The part of the text that the reader does not take.
struct Place<'a> {
    text: &'a str,
    span: Range<usize>,
    /// The part itself.
    written: &'a str,
    /// Text before it on its line.
    before: &'a str,
}

impl<'a> Place<'a> {
    fn new(text: &'a str, span: Range<usize>) -> Place<'a> {
        let start = text.floor_char_boundary(span.start);
        let end = text.floor_char_boundary(span.end).max(start);
        let before = text.get(..start).unwrap_or_default();
        Place {
            text,
            span: start..end,
            written: text.get(start..end).unwrap_or_default(),
            before: before.rsplit('\n').next().unwrap_or_default(),
        }
    }

    /// Returns true if it is a key that the file as a whole has.
    fn is_of_whole_file(&self, again: &impl Fn(&str) -> Vec<Diagnostic>) -> bool {
        let is_plain = self.before.trim().is_empty()
            && self.written.bytes().all(|b| b.is_ascii_lowercase() || b == b'_');
        is_plain
            && !again(&format!("{} = 0", self.written))
                .iter()
                .any(Diagnostic::is_unknown_key)
    }

    /// Returns the diagnostic of a key that is there already.
    fn twice(&self, source: &Source<'_>) -> Diagnostic {
        let key = self.written;
        if self.before.trim() == "[["
            && let Some(header) = self.header_before()
        {
            let found = self.text.get(header.clone()).unwrap_or_default();
            let help = match found.contains('.') {
                true => format!("write it below the [[{key}]] that it belongs to"),
                false => format!("write [[{key}]]"),
            };
            return source.at(header, format!("{found} comes before any [[{key}]]"), Some(help));
        }
        let help = "leave one of the two out";
        source.at(
            self.span.clone(),
            format!("duplicate key `{key}`"),
            Some(help.to_owned()),
        )
    }

    /// Returns the first header of a table of this name, or in it, above this place.
    fn header_before(&self) -> Option<Range<usize>> {
        let mut at = 0;
        for line in self.text.get(..self.span.start)?.split_inclusive('\n') {
            let begin = at + (line.len() - line.trim_start().len());
            at += line.len();
            let name = line.trim_start().trim_start_matches('[');
            let rest = name.strip_prefix(self.written);
            let is_header =
                line.trim_start().starts_with('[') && rest.is_some_and(|r| r.starts_with(['.', ']']));
            if is_header {
                let end = begin + line.trim().rfind(']').map_or(0, |end| end + 1);
                return Some(begin..end);
            }
        }
        None
    }

    /// Returns the remedy of a value of another type.
    fn remedy(
        &self,
        message: &str,
        here: &Diagnostic,
        again: &impl Fn(&str) -> Vec<Diagnostic>,
    ) -> Option<String> {
        let (given, expected) = match message {
            hint::WANTED_TEXT => ("", "a string"),
            _ => hint::split_types(message)?,
        };
        let is_text = given.starts_with("string ");
        let wants_text = matches!(expected, "a string" | "text in quotes, or a list of it");
        let wants_table = expected.starts_with("struct ");
        let bare = self.written.trim_matches(['"', '\'']);
        let is_number = bare.parse::<f64>().is_ok();
        let is_boolean = matches!(bare, "true" | "false");
        let instead = match expected {
            "a sequence" if is_text || self.written.starts_with(['[', '{']) => {
                Some(format!("[{}]", self.written))
            }
            "i64" | "f64" if is_text && is_number => Some(bare.to_owned()),
            "a boolean" if is_boolean => Some(bare.to_owned()),
            _ if wants_text && (is_number || is_boolean) => Some(format!("\"{bare}\"")),
            _ if wants_table => Some("{}".to_owned()),
            _ => None,
        };
        let plain = || match expected {
            "a sequence" if given == "map" => {
                let header = self.written.trim_matches(['[', ']']);
                let list = header.split('.').next().unwrap_or_default();
                Some(format!("begin with [[{list}]], and write it below that"))
            }
            "i64" => Some("write a whole number, without quotes".to_owned()),
            "f64" => Some("write a number, without quotes".to_owned()),
            "a boolean" => Some("write true or false, without quotes".to_owned()),
            _ if wants_text => Some("write one text in quotes".to_owned()),
            _ => None,
        };
        let Some(instead) = instead else {
            return plain();
        };
        let (head, tail) = (self.text.get(..self.span.start)?, self.text.get(self.span.end..)?);
        let told = again(&format!("{head}{instead}{tail}"));
        match told.iter().find(|told| told.is_at(here)) {
            None if wants_text && is_boolean => plain(),
            None => Some(match self.key() {
                Some(key) => format!("write {key} = {instead}"),
                None => format!("write {instead}"),
            }),
            Some(told) if wants_text || wants_table => Some(told.gist()),
            Some(_) => plain(),
        }
    }

    /// Returns the key before a value.
    fn key(&self) -> Option<&'a str> {
        let before = self.before.trim_end().strip_suffix('=')?.trim_end();
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        let key = before.get(before.trim_end_matches(is_part).len()..)?;
        (!key.is_empty()).then_some(key)
    }
}

#[cfg(test)]
mod tests;
