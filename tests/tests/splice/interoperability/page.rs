//! The page docs/interoperability.md: written from a run, and read back.

use std::{collections::BTreeMap, fmt::Write, fs, path::PathBuf};

use super::{
    cell::Outcome,
    profile::{ALL, Profile},
};

/// Outcomes, by the numbers of the client's profile and of the server's.
pub(super) type Outcomes = BTreeMap<(usize, usize), Outcome>;

const BEGINNING: &str = include_str!("page.md.in");

/// Texts of the cells on a page.
#[derive(Debug)]
pub(super) struct Page(BTreeMap<(usize, usize), String>);

fn path() -> PathBuf {
    PathBuf::from(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../docs/interoperability.md"
    ))
}

/// Writes the page.
pub(super) fn write(outcomes: &Outcomes) {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let text = render(outcomes, release.trim());
    fs::write(path(), text).unwrap();
}

fn render(outcomes: &Outcomes, release: &str) -> String {
    let count = |is: fn(&Outcome) -> bool| outcomes.values().filter(|outcome| is(outcome)).count();
    let first = count(|outcome| *outcome == Outcome::First);
    let second = count(|outcome| matches!(outcome, Outcome::Second(_)));
    let all = outcomes.len();
    let share = 100.0 * (first + second) as f64 / all as f64;
    let mut text = BEGINNING.replace("@RELEASE@", release);
    text += "\n## Profiles\n\n| | profile | in the laboratory |\n|---|---|---|\n";
    for (number, profile) in ALL.iter().enumerate() {
        let _ = writeln!(
            text,
            "| {} | {} | {} |",
            number + 1,
            profile.name,
            profile.settings()
        );
    }
    let _ = writeln!(
        text,
        "\n## Cells\n\nOf {all} cells, {first} are spliced at the first connection and {second} more at the second \
         ({share:.1} % together); {} stay relayed.\n\nA row is a client, a column a server.\n",
        all - first - second
    );
    let columns = (1..=ALL.len()).map(|n| format!(" {n} |")).collect::<String>();
    let _ = writeln!(text, "| |{columns}\n|---|{}", "---|".repeat(ALL.len()));
    for (row, profile) in ALL.iter().enumerate() {
        let _ = write!(text, "| {} {} |", row + 1, profile.name);
        for column in 0..ALL.len() {
            let _ = write!(text, " {} |", outcomes[&(row, column)]);
        }
        text.push('\n');
    }
    text
}

impl Page {
    /// Reads the committed page.
    pub(super) fn read() -> Page {
        let text = fs::read_to_string(path()).unwrap();
        let (_, table) = text.split_once("\n## Cells\n").unwrap();
        let rows = table.lines().filter(|line| line.starts_with("| ")).skip(1);
        let mut cells = BTreeMap::new();
        for (row, line) in rows.enumerate() {
            let words: Vec<_> = line.trim_matches('|').split('|').map(str::trim).collect();
            assert_eq!(words[0], format!("{} {}", row + 1, ALL[row].name));
            assert_eq!(words.len(), 1 + ALL.len(), "{line}");
            for (column, word) in words[1..].iter().enumerate() {
                cells.insert((row, column), (*word).to_owned());
            }
        }
        assert_eq!(cells.len(), ALL.len() * ALL.len());
        Page(cells)
    }

    /// Returns the text of a cell.
    pub(super) fn cell(&self, client: &str, server: &str) -> &str {
        &self.0[&(Profile::number(client), Profile::number(server))]
    }
}
