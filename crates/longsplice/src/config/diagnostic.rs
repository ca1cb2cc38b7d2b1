//! Reports errors in a file with their positions.

use std::{
    fmt,
    ops::Range,
    path::{Path, PathBuf},
};

/// An error in a file, with its position and the remedy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Diagnostic {
    path: PathBuf,
    line: usize,
    column: usize,
    /// The line with the error; tabs are replaced by blanks.
    text: String,
    /// Number of characters that the caret marks.
    width: usize,
    message: String,
    help: Option<String>,
}

/// A file that diagnostics refer to.
pub(super) struct Source<'a> {
    path: &'a Path,
    text: &'a str,
}

impl<'a> Source<'a> {
    pub(super) fn new(path: &'a Path, text: &'a str) -> Self {
        Source { path, text }
    }

    /// Returns the folder of the file.
    pub(super) fn folder(&self) -> &'a Path {
        self.path.parent().unwrap_or(Path::new(""))
    }

    /// Returns the text of the file.
    pub(super) fn text(&self) -> &'a str {
        self.text
    }

    /// Returns a diagnostic about the bytes of `span`; a span outside of the text points at its end.
    pub(super) fn at(
        &self,
        span: Range<usize>,
        message: impl Into<String>,
        help: Option<String>,
    ) -> Diagnostic {
        let start = self.text.floor_char_boundary(span.start);
        let end = self.text.floor_char_boundary(span.end).max(start);
        let (before, after) = self.text.split_at(start);
        let line_start = before.rfind('\n').map_or(0, |i| i + 1);
        let line_end = after.find('\n').map_or(self.text.len(), |i| start + i);
        let slice = |from, to| self.text.get(from..to).unwrap_or_default();
        Diagnostic {
            path: self.path.to_owned(),
            line: before.matches('\n').count() + 1,
            column: slice(line_start, start).chars().count() + 1,
            text: slice(line_start, line_end).trim_end().replace('\t', " "),
            width: slice(start, end.min(line_end)).trim_end().chars().count().max(1),
            message: message.into(),
            help,
        }
    }
}

impl Diagnostic {
    /// Returns it on one line, for a log: place, message and remedy.
    pub(crate) fn brief(&self) -> String {
        format!("{}:{}: {}", self.path.display(), self.line, self.gist())
    }

    /// Returns the message and the remedy, without the place.
    pub(super) fn gist(&self) -> String {
        let help = self
            .help
            .as_ref()
            .map_or(String::new(), |help| format!(": {help}"));
        format!("{}{help}", self.message)
    }

    /// Returns it with another message, which has its remedy.
    #[must_use]
    pub(crate) fn with_message(self, message: String) -> Diagnostic {
        Diagnostic {
            message,
            help: None,
            ..self
        }
    }

    /// Returns it with this remedy.
    pub(super) fn with_help(self, help: String) -> Diagnostic {
        Diagnostic {
            help: Some(help),
            ..self
        }
    }

    /// Returns true if both begin at the same place.
    pub(super) fn is_at(&self, other: &Diagnostic) -> bool {
        (self.line, self.column) == (other.line, other.column)
    }

    /// Returns true if it is about a key that the reader does not know.
    pub(super) fn is_unknown_key(&self) -> bool {
        self.message.starts_with("unknown key ")
    }

    /// Returns the line, from 1.
    pub(crate) fn line(&self) -> usize {
        self.line
    }
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Diagnostic {
            path,
            line,
            column,
            text,
            width,
            message,
            help,
        } = self;
        let gutter = line.to_string().len().max(4);
        writeln!(f, "{}:{line}:{column}: {message}", path.display())?;
        writeln!(f, "{line:>gutter$} | {text}")?;
        write!(
            f,
            "{:gutter$} | {:indent$}{:^<width$}",
            "",
            "",
            "",
            indent = column - 1
        )?;
        match help {
            Some(help) => write!(f, "\n{:gutter$} = {help}", ""),
            None => Ok(()),
        }
    }
}
