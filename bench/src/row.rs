//! The rows of the tables that Longsplice must reach, one table for each of the issues that set them.

use std::fmt;
use std::str::FromStr;

use serde::{Serialize, Serializer};

/// A table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Table {
    /// The splice. Its rows have plain numbers: `7`.
    Splice,
    /// The way back, of the third issue: `3.7`.
    Return,
}

/// One row of one of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Row {
    /// Which table.
    pub(crate) table: Table,
    /// Which row there, from 1 on.
    pub(crate) number: u8,
}

impl Table {
    /// Its heading.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Table::Splice => "The splice",
            Table::Return => "The way back",
        }
    }
}

impl Row {
    /// A row of the splice's table.
    pub(crate) const fn splice(number: u8) -> Self {
        Row {
            table: Table::Splice,
            number,
        }
    }

    /// A row of the way back's.
    pub(crate) const fn back(number: u8) -> Self {
        Row {
            table: Table::Return,
            number,
        }
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.table {
            Table::Splice => write!(f, "{}", self.number),
            Table::Return => write!(f, "3.{}", self.number),
        }
    }
}

impl FromStr for Row {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (make, number): (fn(u8) -> Row, _) = match text.strip_prefix("3.") {
            Some(number) => (Row::back, number),
            None => (Row::splice, text),
        };
        let known = |number: &u8| *number > 0;
        let number = number.parse().ok().filter(known);
        number
            .map(make)
            .ok_or_else(|| format!("`{text}` is no row: 7, say, or 3.2"))
    }
}

impl Serialize for Row {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_read_back_what_they_show_and_keep_their_order() {
        let rows = ["1", "3", "10", "3.1", "3.6"].map(|text| (text, text.parse::<Row>().unwrap()));
        for (text, row) in rows {
            assert_eq!(row.to_string(), text);
        }
        assert!(rows.is_sorted_by_key(|(_, row)| *row));
        for wrong in ["", "0", "3.", "3.0", "x", "4.1", "1.2.3"] {
            assert!(wrong.parse::<Row>().is_err(), "{wrong}");
        }
    }
}
