//! `bench report`: writes the page and the README's table, or compares them with what is there.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};

use super::archive::Archive;
use super::template::{self, Report};

/// Directory of the committed runs.
const RUNS: &str = "bench/results";
/// Templates and the files that are made of them.
const PAGE: [&str; 2] = ["bench/benchmarks.md.in", "docs/benchmarks.md"];
const README: [&str; 2] = ["bench/readme.md.in", "README.md"];
/// Marks around the generated part of the README.
const BEGIN: &str = "<!-- made by `bench report` from bench/readme.md.in -->\n";
const END: &str = "<!-- end of what `bench report` makes -->\n";
/// Most lines of a difference that are shown.
const SHOWN: usize = 20;

/// Writes all generated files below `root`; only compares them if `check` is set. Fails if a run cannot be read, a
/// figure has no sample, or a compared file differs.
pub(crate) fn report(root: &Path, check: bool, report: &Report<'_>) -> Result<()> {
    let archive = Archive::read(&root.join(RUNS))?;
    let read = |path: &str| fs::read_to_string(root.join(path)).with_context(|| format!("read {path}"));
    let filled = |path: &str| template::fill(&read(path)?, &archive, report).with_context(|| path.to_owned());
    let mut files = vec![(PAGE[1], filled(PAGE[0])?)];
    let readme = read(README[1])?;
    let (before, rest) = readme
        .split_once(BEGIN)
        .context("the README has no generated part")?;
    let (_, after) = rest
        .split_once(END)
        .context("the README's generated part does not end")?;
    files.push((
        README[1],
        format!("{before}{BEGIN}{}{END}{after}", filled(README[0])?),
    ));
    for picture in report.pictures {
        if let Some((_, results)) = archive.measured(picture.row) {
            files.push((picture.name, (picture.make)(results)?));
        }
    }
    let mut differ = String::new();
    for (path, text) in files {
        let there = fs::read_to_string(root.join(path)).unwrap_or_default();
        if check {
            differ += &difference(path, &there, &text);
        } else if there != text {
            fs::write(root.join(path), text).with_context(|| format!("write {path}"))?;
            println!("{path} is new");
        }
    }
    if !differ.is_empty() {
        bail!("`bench report` makes other lines of the committed samples:\n{differ}");
    }
    Ok(())
}

/// Returns the lines that differ: `-` there, `+` as they should be. Where lines are missing, it returns all between the
/// first difference and the last one.
fn difference(path: &str, there: &str, made: &str) -> String {
    let (old, new): (Vec<&str>, Vec<&str>) = (there.lines().collect(), made.lines().collect());
    let ahead = old.iter().zip(&new).take_while(|(a, b)| a == b).count();
    let (old_rest, new_rest) = (old[ahead..].iter().rev(), new[ahead..].iter().rev());
    let behind = old_rest.zip(new_rest).take_while(|(a, b)| a == b).count();
    let as_many = old.len() == new.len();
    let differs = |at: &usize| !as_many || old[*at] != new[*at];
    let mut out = String::new();
    for (sign, lines) in [('-', &old), ('+', &new)] {
        let named: Vec<usize> = (ahead..lines.len() - behind).filter(differs).collect();
        for &at in named.iter().take(SHOWN) {
            out += &format!("{path}:{}: {sign} {}\n", at + 1, lines[at]);
        }
        if named.len() > SHOWN {
            out += &format!("{path}: {sign} … {} lines more\n", named.len() - SHOWN);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::difference;

    #[test]
    fn only_differing_lines_are_named() {
        assert_eq!(difference("f", "a\nb\nc\n", "a\nb\nc\n"), "");
        assert_eq!(difference("f", "a\nb\nc\n", "a\nx\nc\n"), "f:2: - b\nf:2: + x\n");
        assert_eq!(
            difference("f", "a\nb\nc\n", "x\nb\ny\n"),
            "f:1: - a\nf:3: - c\nf:1: + x\nf:3: + y\n"
        );
        assert_eq!(difference("f", "a\nc\n", "a\nb\nc\n"), "f:2: + b\n");
    }
}
