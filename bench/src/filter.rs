//! A packet filter in the kernel's router: the nearest thing to a firewall that the papers' third configuration stands for.

use std::fmt::Write;
use std::fs;

use anyhow::{Context, Result, ensure};
use longsplice_lab::Namespace;

use crate::supervise::Room;

/// How many rules a segment passes.
pub(crate) const RULES: u32 = 100;
const TABLE: &str = "longsplice_bench";

/// Rules in force. Dropping it removes them.
#[derive(Debug)]
pub(crate) struct Filter<'a>(&'a Namespace);

/// Has the router of `at` compare each packet with [`RULES`] rules of network, protocol and port, none of which it meets.
pub(crate) fn start<'a>(room: &Room, at: &'a Namespace) -> Result<Filter<'a>> {
    let file = room.file("filter.nft");
    fs::write(&file, rules()).with_context(|| format!("write {}", file.display()))?;
    let filter = Filter(at);
    let output = at.command("nft").arg("-f").arg(&file).output()?;
    ensure!(
        output.status.success(),
        "nft: {}",
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(filter)
}

fn rules() -> String {
    let mut text = format!(
        "table ip {TABLE} {{\n chain forward {{\n  type filter hook forward priority 0; policy accept;\n"
    );
    for rule in 0..RULES {
        let _ = writeln!(text, "  ip saddr 203.0.113.{rule} tcp dport {} drop", 1000 + rule);
    }
    text + " }\n}\n"
}

impl Drop for Filter<'_> {
    fn drop(&mut self) {
        // If it fails the namespace, with all that is in it, goes next.
        let _ = self
            .0
            .command("nft")
            .args(["delete", "table", "ip", TABLE])
            .output();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_as_many_rules_as_said() {
        let drops = rules().lines().filter(|line| line.ends_with(" drop")).count();
        assert_eq!(drops, RULES as usize);
    }
}
