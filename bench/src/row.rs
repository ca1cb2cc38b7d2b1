//! Rows of the tables that Longsplice must reach, one table for each of the issues that set them.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Table {
    /// Splice. Its rows have plain numbers: `7`.
    Splice,
    /// Way back, of the third issue: `3.7`.
    Return,
    /// Complete translation and price of a packet, of the fourth: `4.1`.
    Translation,
    /// URL-aware switch, of the fifth: `5.1`.
    Switch,
    /// Review of the whole, of the thirteenth: `13.5`.
    Review,
    /// Cost of the middle, of the fourteenth: `14.1`.
    Middle,
    /// Transparent accelerator, of the fifteenth: `15.1`.
    Accelerator,
}

/// Row of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Row {
    /// Table.
    pub(crate) table: Table,
    /// Number of the row there, from 1 on.
    pub(crate) number: u8,
}

impl Table {
    /// All tables, in the order in which they are shown.
    pub(crate) const ALL: [Table; 7] = [
        Table::Splice,
        Table::Return,
        Table::Translation,
        Table::Switch,
        Table::Review,
        Table::Middle,
        Table::Accelerator,
    ];

    /// Returns the prefix of the numbers of its rows.
    const fn prefix(self) -> &'static str {
        match self {
            Table::Splice => "",
            Table::Return => "3.",
            Table::Translation => "4.",
            Table::Switch => "5.",
            Table::Review => "13.",
            Table::Middle => "14.",
            Table::Accelerator => "15.",
        }
    }

    /// Returns its heading.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Table::Splice => "The splice",
            Table::Return => "The way back",
            Table::Translation => "The complete translation, and the price of a packet",
            Table::Switch => "The URL-aware switch",
            Table::Review => "Nothing lost, no peer harmed",
            Table::Middle => "What the middle costs",
            Table::Accelerator => "The transparent accelerator",
        }
    }
}

impl Row {
    /// Returns a row of the splice's table.
    pub(crate) const fn splice(number: u8) -> Self {
        Row {
            table: Table::Splice,
            number,
        }
    }

    /// Returns a row of the way back's.
    pub(crate) const fn back(number: u8) -> Self {
        Row {
            table: Table::Return,
            number,
        }
    }

    /// Returns a row of the complete translation's.
    pub(crate) const fn translation(number: u8) -> Self {
        Row {
            table: Table::Translation,
            number,
        }
    }

    /// Returns a row of the switch's.
    pub(crate) const fn switch(number: u8) -> Self {
        Row {
            table: Table::Switch,
            number,
        }
    }

    /// Returns a row of the review's.
    pub(crate) const fn review(number: u8) -> Self {
        Row {
            table: Table::Review,
            number,
        }
    }

    /// Returns a row of the cost of the middle.
    pub(crate) const fn middle(number: u8) -> Self {
        Row {
            table: Table::Middle,
            number,
        }
    }

    /// Returns a row of the accelerator's.
    pub(crate) const fn accelerator(number: u8) -> Self {
        Row {
            table: Table::Accelerator,
            number,
        }
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.table.prefix(), self.number)
    }
}

impl FromStr for Row {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let behind = |table: Table| Some((table, text.strip_prefix(table.prefix())?));
        // The first table's prefix is empty and begins every text.
        let found = Table::ALL.into_iter().rev().find_map(behind);
        found
            .and_then(|(table, number)| {
                let number = number.parse().ok().filter(|number: &u8| *number > 0)?;
                Some(Row { table, number })
            })
            .ok_or_else(|| format!("`{text}` is no row: 7, say, or 3.2"))
    }
}

impl Serialize for Row {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Row {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_read_back_what_they_show_and_keep_their_order() {
        let rows = ["1", "3", "10", "3.1", "3.6", "4.1", "4.7", "5.1", "13.5", "14.3"]
            .map(|text| (text, text.parse::<Row>().unwrap()));
        for (text, row) in rows {
            assert_eq!(row.to_string(), text);
        }
        assert!(rows.is_sorted_by_key(|(_, row)| *row));
        for wrong in ["", "0", "3.", "3.0", "x", "2.1", "4.", "1.2.3"] {
            assert!(wrong.parse::<Row>().is_err(), "{wrong}");
        }
    }
}
