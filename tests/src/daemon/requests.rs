//! Asks a daemon under test what it does, and tells it what to do, as its administrator would.

use std::{
    io::{Read, Write},
    net::SocketAddr,
    os::unix::net::UnixStream,
    process::{Command, Output},
};

use longsplice_engine::rules::RulesInfo;
use serde::de::DeserializeOwned;

use super::Daemon;
use crate::{Config, Flow, SOON, Status, binary, eventually, eventually_or, patient, soon};

impl Daemon {
    /// Reloads its configuration, with `longsplice reload`. Returns the output of the command, or its standard error
    /// where it failed.
    pub fn reload(&self) -> Result<String, String> {
        let output = self.cli(&["reload"]);
        match output.status.success() {
            true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
            false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
        }
    }

    /// Writes another configuration and reloads it.
    pub fn change(&self, config: &Config) -> Result<String, String> {
        self.reconfigure(config);
        self.reload()
    }

    /// Ends a flow, as `longsplice kill ID` does.
    pub fn kill_flow(&self, id: u32) -> Result<(), String> {
        match self.http("POST", &format!("/flows/{id}/kill")) {
            Some((200, _)) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    }

    /// Returns the answer of its admin socket to a GET; `None` without an answer of status 200.
    pub(super) fn get(&self, path: &str) -> Option<String> {
        let (status, body) = self.http("GET", path)?;
        (status == 200).then_some(body)
    }

    fn http(&self, method: &str, path: &str) -> Option<(u16, String)> {
        let mut socket = UnixStream::connect(self.admin()).ok()?;
        socket.set_read_timeout(Some(patient(SOON))).ok()?;
        write!(socket, "{method} {path} HTTP/1.0\r\nhost: longsplice\r\n\r\n").ok()?;
        let mut answer = String::new();
        socket.read_to_string(&mut answer).ok()?;
        let (head, body) = answer.split_once("\r\n\r\n")?;
        let status = head.split(' ').nth(1)?.parse().ok()?;
        Some((status, body.to_owned()))
    }

    fn ask<T: DeserializeOwned>(&self, path: &str) -> T {
        self.answer(path).expect("the daemon answers")
    }

    /// Returns what its admin socket answers to a GET; `None` without an answer, as of a daemon that ends.
    pub(super) fn answer<T: DeserializeOwned>(&self, path: &str) -> Option<T> {
        let body = self.get(path)?;
        Some(serde_json::from_str(&body).unwrap_or_else(|e| panic!("{path}: {e}: {body}")))
    }

    /// Returns `status --json`, read from the admin socket: the same text, without a process for each query.
    pub fn status(&self) -> Status {
        self.ask("/status")
    }

    /// Returns the flows of `flows --json`.
    pub fn flows(&self) -> Vec<Flow> {
        let mut flows: Vec<serde_json::Value> = self.ask("/flows");
        flows.retain(|listed| !is_passed_through(listed));
        serde_json::from_value(flows.into()).unwrap()
    }

    /// Returns the ports of the clients whose connections were passed through, with the reasons, of `flows --json`.
    pub fn passed_through(&self) -> Vec<(u16, String)> {
        let all: Vec<serde_json::Value> = self.ask("/flows");
        let text = |one: &serde_json::Value, key: &str| one[key].as_str().unwrap().to_owned();
        all.iter()
            .filter(|one| is_passed_through(one))
            .map(|one| {
                let client: SocketAddr = text(one, "client").parse().unwrap();
                (client.port(), text(one, "reason"))
            })
            .collect()
    }

    /// Returns `rules list --json`.
    pub fn rules(&self) -> RulesInfo {
        self.ask("/rules")
    }

    /// Returns the upstreams, as `longsplice servers --json` shows them.
    pub fn upstreams(&self) -> Vec<serde_json::Value> {
        serde_json::from_slice(&self.cli(&["servers", "--json"]).stdout).unwrap()
    }

    /// Returns the upstream of this name.
    pub fn upstream(&self, name: &str) -> serde_json::Value {
        let of_that_name = |upstream: &serde_json::Value| upstream["name"] == name;
        self.upstreams().into_iter().find(of_that_name).unwrap()
    }

    /// Waits until so many clients wait for a server of this upstream, and its first server has so many connections.
    pub fn wait_upstream(&self, name: &str, queued: u64, open: u64) {
        soon(&format!("{queued} wait while {open} are served"), || {
            let upstream = self.upstream(name);
            upstream["queued"] == queued && upstream["servers"][0]["open"] == open
        });
    }

    /// Runs `rules load` on a file with this text.
    pub fn load_rules(&self, text: &str) -> Output {
        let file = self.dir().join("rules.toml");
        std::fs::write(&file, text).unwrap();
        self.cli(&["rules", "load", file.to_str().unwrap()])
    }

    /// Returns the number of packets with this verdict of the rules.
    pub fn rule_verdict(&self, name: &str) -> u64 {
        self.rules().verdicts.get(name).copied().unwrap_or_default()
    }

    /// Runs a subcommand of the command line that queries this daemon.
    pub fn cli(&self, args: &[&str]) -> Output {
        Command::new(binary::path())
            .args(args)
            .args(["--instance", &self.instance, "--admin"])
            .arg(self.admin())
            .output()
            .unwrap()
    }

    /// Runs `longsplice splice ID`.
    pub fn splice(&self, id: u32) -> Result<(), String> {
        let output = self.cli(&["splice", &id.to_string()]);
        match output.status.success() {
            true => Ok(()),
            false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
        }
    }

    /// Splices a flow over the admin socket: the same request without a process, and so faster.
    pub fn request_splice(&self, id: u32) -> Result<(), String> {
        match self.http("POST", &format!("/flows/{id}/splice")) {
            Some((200, _)) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    }

    /// Returns a flow to control mode, as `longsplice unsplice ID` does.
    pub fn unsplice(&self, id: u32) -> Result<(), String> {
        match self.http("POST", &format!("/flows/{id}/unsplice")) {
            Some((200, _)) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    }

    /// Splices the relayed flow of the client at this port, and waits until it has this state.
    pub fn splice_to(&self, client_port: u16, state: &str) {
        let flow = self.wait_state(client_port, &["relay"]);
        self.splice(flow.id).unwrap();
        self.wait_state(client_port, &[state]);
    }

    /// Waits until the flow of the client at this port has this state, and takes it back into the relay.
    pub fn take_back(&self, client_port: u16, state: &str) {
        let flow = self.wait_state(client_port, &[state]);
        self.unsplice(flow.id).unwrap();
        self.wait_state(client_port, &["relay", "undraining"]);
    }

    /// Waits for a flow for which `condition` holds.
    pub fn wait_flow(&self, what: &str, condition: impl Fn(&Flow) -> bool) -> Flow {
        let instead = || format!("{what} among {:#?}", self.flows());
        eventually_or(instead, SOON, || self.flows().into_iter().find(&condition))
    }

    /// Waits until the flow of the client at this port is in one of these states.
    pub fn wait_state(&self, client_port: u16, states: &[&str]) -> Flow {
        self.wait_flow(&format!("{states:?} of the client at port {client_port}"), |f| {
            f.client.peer.port() == client_port && states.contains(&f.state.as_str())
        })
    }

    /// Waits until `condition` holds for its status.
    pub fn wait_status(&self, what: &str, condition: impl Fn(&Status) -> bool) -> Status {
        eventually(what, SOON, || Some(self.status()).filter(&condition))
    }

    /// Waits until its list of flows is empty: all records are reaped. (Linger is one second, and both it and the
    /// reaper's clock are coarse.)
    pub fn wait_reaped(&self) {
        // The number of flows is set last, when all ends are counted.
        soon("all records to be reaped", || {
            self.flows().is_empty() && self.status().health.flows == 0
        });
    }
}

fn is_passed_through(listed: &serde_json::Value) -> bool {
    listed["state"] == "passed_through"
}
