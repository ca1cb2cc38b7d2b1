//! Output of the demonstration: narration, commands as a user would type them, and their real output.

use anyhow::{Context, Result};
use longsplice_lab::Namespace;

/// Prints a paragraph.
pub(super) fn say(text: &str) {
    println!("\n{text}");
}

/// Prints the title of a step.
pub(super) fn step(number: u32, title: &str) {
    println!("\n── {number}. {title}");
}

/// Prints a claim that was just checked.
pub(super) fn checked(claim: &str) {
    println!("   ✔ {claim}");
}

/// Prints a command that is started in another way, or goes on for a while.
pub(super) fn show(node: &str, line: &str) {
    println!("   {node}$ {line}");
}

/// Runs a command in a namespace, and prints it and its output; returns the output.
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
