//! Diverts connections on their way through a router to a program there, as relays in PEPsal's manner need it.

use std::fs;
use std::net::SocketAddr;

use anyhow::{Result, ensure};
use longsplice_lab::Namespace;
use longsplice_lab::topology::{F0, F1};

use crate::supervise::Room;

/// Mark of diverted packets, and number of the routing table that brings them to this host.
const MARK: &str = "77";

/// Diversion in force. Dropping it removes it.
#[derive(Debug)]
pub(crate) struct Diversion<'a>(&'a Namespace);

impl<'a> Diversion<'a> {
    /// Diverts connections from the client's side to the port of `server`, to the program that listens at `to`, and what
    /// the server answers to that program's sockets.
    pub(crate) fn start(room: &Room, at: &'a Namespace, server: SocketAddr, to: SocketAddr) -> Result<Self> {
        let diversion = Diversion(at);
        // A port that the client uses, too, would make the program's connection one that is redirected already.
        at.sysctl("net.ipv4.ip_local_port_range", "15000 30000")?;
        let file = room.file("diversion.nft");
        fs::write(&file, rules(server.port(), to.port()))?;
        diversion.run("nft", &["-f", &file.display().to_string()])?;
        diversion.run("ip", &["rule", "add", "fwmark", MARK, "lookup", MARK])?;
        diversion.run(
            "ip",
            &["route", "add", "local", "default", "dev", "lo", "table", MARK],
        )?;
        Ok(diversion)
    }

    fn run(&self, program: &str, arguments: &[&str]) -> Result<()> {
        let output = self.0.command(program).args(arguments).output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(
            output.status.success(),
            "{program} {}: {}",
            arguments.join(" "),
            said.trim()
        );
        Ok(())
    }
}

fn rules(server: u16, program: u16) -> String {
    format!(
        "table ip longsplice_diversion {{\n chain forth {{\n  type nat hook prerouting priority dstnat;\n  \
         iifname {F0} tcp dport {server} redirect to :{program}\n }}\n \
         chain back {{\n  type filter hook prerouting priority mangle;\n  \
         iifname {F1} tcp sport {server} socket transparent 1 meta mark set {MARK} accept\n }}\n}}\n"
    )
}

impl Drop for Diversion<'_> {
    fn drop(&mut self) {
        // After a failure, the end of the namespace removes all.
        let _ = self.run("nft", &["delete", "table", "ip", "longsplice_diversion"]);
        let _ = self.run("ip", &["rule", "del", "fwmark", MARK]);
        let _ = self.run("ip", &["route", "flush", "table", MARK]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_are_diverted() {
        let rules = rules(5201, 5300);
        assert!(
            rules.contains("iifname f0 tcp dport 5201 redirect to :5300"),
            "{rules}"
        );
        assert!(
            rules.contains("iifname f1 tcp sport 5201 socket transparent 1"),
            "{rules}"
        );
    }
}
