//! What the demonstration says: narration, commands as one would type them, and what they really wrote.

use anyhow::{Context, Result};
use longsplice_lab::Namespace;

/// A paragraph.
pub(super) fn say(text: &str) {
    println!("\n{text}");
}

/// The title of a step.
pub(super) fn step(number: u32, title: &str) {
    println!("\n── {number}. {title}");
}

/// A claim that was just checked.
pub(super) fn checked(claim: &str) {
    println!("   ✔ {claim}");
}

/// Shows a command that is started in another way, or goes on for a while.
pub(super) fn show(node: &str, line: &str) {
    println!("   {node}$ {line}");
}

/// Runs a command in a namespace, and shows it and its output; answers the output.
pub(super) fn run(node: &str, at: &Namespace, line: &[&str]) -> Result<String> {
    let (program, args) = line.split_first().context("no command")?;
    let name = program.rsplit('/').next().unwrap_or(program);
    show(node, &[&[name], args].concat().join(" "));
    let output = at.command(program).args(args).output()?;
    let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
    text += &String::from_utf8_lossy(&output.stderr);
    for line in text.lines() {
        println!("     {}", line.trim_end());
    }
    if text.trim().is_empty() {
        println!("     (nothing)");
    }
    Ok(text)
}
