//! Formats tables of text.

use std::fmt;

/// A table of text. Columns of figures are aligned right, others left.
pub(super) struct Table {
    heads: Vec<(&'static str, Align)>,
    rows: Vec<Vec<String>>,
}

/// Alignment of a column.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Align {
    Left,
    Right,
}

impl Table {
    pub(super) fn new(heads: Vec<(&'static str, Align)>) -> Self {
        Table {
            heads,
            rows: Vec::new(),
        }
    }

    pub(super) fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = |i: usize, head: &str| {
            let cells = self
                .rows
                .iter()
                .filter_map(|row| row.get(i))
                .map(|cell| cell.chars().count());
            cells.chain([head.chars().count()]).max().unwrap_or(0)
        };
        let columns: Vec<_> = self
            .heads
            .iter()
            .enumerate()
            .map(|(i, (head, align))| (width(i, head), *align))
            .collect();
        let mut line = |cells: &mut dyn Iterator<Item = &str>| {
            let mut text = String::new();
            for (cell, (width, align)) in cells.zip(&columns) {
                let padding = " ".repeat(width.saturating_sub(cell.chars().count()));
                let (before, after) = if *align == Align::Right {
                    (padding.as_str(), "")
                } else {
                    ("", padding.as_str())
                };
                text.extend([before, cell, after, "  "]);
            }
            writeln!(f, "{}", text.trim_end())
        };
        line(&mut self.heads.iter().map(|(head, _)| *head))?;
        for row in &self.rows {
            line(&mut row.iter().map(String::as_str))?;
        }
        Ok(())
    }
}
