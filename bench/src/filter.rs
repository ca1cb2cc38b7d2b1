//! Packet filter in the kernel's router: the closest match for the firewall in the papers' third configuration.

use std::fmt::Write;
use std::fs;

use anyhow::{Context, Result, ensure};
use longsplice_lab::Namespace;

use crate::supervise::Room;

/// Number of rules that a segment passes.
pub(crate) const RULES: u32 = 100;
const TABLE: &str = "longsplice_bench";

/// Rules in force. Dropping it removes them.
#[derive(Debug)]
pub(crate) struct Filter<'a>(&'a Namespace);

/// Makes the router of `at` compare each packet with [`RULES`] rules of network, protocol and port, none of which
/// matches.
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
        // After a failure, the end of the namespace removes the rules.
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
