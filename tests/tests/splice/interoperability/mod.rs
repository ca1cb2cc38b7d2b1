//! Clients of many systems and servers of many systems: which pairs are spliced at the first connection, at the second,
//! or not at all. docs/interoperability.md has all of them.
//!
//! `LONGSPLICE_MATRIX=all` runs every cell, and writes that page (`make interoperability`); over IPv6 it compares them with
//! the page instead.

mod cell;
mod page;
mod profile;

use std::{
    collections::BTreeMap,
    env,
    net::SocketAddr,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

use longsplice_lab::{Family, MultiServer, MultiServerOptions, Namespace};
use longsplice_tests::{
    family,
    library::{Depth, Library},
};
use parking_lot::Mutex;

use cell::{Cell, Outcome};
use page::{Outcomes, Page};
use profile::{ALL, Profile};

/// Number of cells that run at the same time.
const AT_ONCE: usize = 6;

/// First port of the listeners, and of the servers.
const PORTS: usize = 10_000;

/// Cells of `make test`: each option, missing on either side.
const SOME: [(&str, &str); 12] = [
    ("Linux 6", "Linux 5"),
    ("Windows 10", "Linux 5"),
    ("Linux 5", "Windows 10"),
    ("Windows 11", "Windows 11"),
    ("macOS, iOS", "Linux 5"),
    ("macOS, iOS", "Windows 10"),
    ("AccECN", "Linux 5"),
    ("no option", "Linux 5"),
    ("Linux 5", "no option"),
    ("Linux 5", "SACK off"),
    ("MSS 8960", "MSS 536"),
    ("MSS 536", "MSS 8960"),
];

/// Nodes of the clients' profiles and of the servers', around a forwarder.
struct Field {
    nodes: MultiServer,
    /// Number of the node of each profile, as a client and as a server.
    clients: BTreeMap<usize, usize>,
    servers: BTreeMap<usize, usize>,
}

impl Field {
    fn new(name: &str, cells: &[(usize, usize)]) -> Field {
        let mut profiles = Vec::new();
        let mut clients = BTreeMap::new();
        let mut servers = BTreeMap::new();
        for &(client, server) in cells {
            for (of, profile) in [(&mut clients, client), (&mut servers, server)] {
                of.entry(profile).or_insert_with(|| {
                    profiles.push(profile);
                    profiles.len() - 1
                });
            }
        }
        let options = MultiServerOptions {
            family: family(),
            servers: profiles.iter().map(|&profile| ALL[profile].leg()).collect(),
            ..MultiServerOptions::default()
        };
        let nodes = MultiServer::new(name, options).unwrap();
        for (node, &profile) in nodes.servers.iter().zip(&profiles) {
            ALL[profile].apply(&node.namespace, node.forwarder_addr);
        }
        Field {
            nodes,
            clients,
            servers,
        }
    }

    /// Returns the node of a client and the forwarder's address there.
    fn client(&self, profile: usize, port: u16) -> (&Namespace, SocketAddr) {
        let node = &self.nodes.servers[self.clients[&profile]];
        (&node.namespace, (node.forwarder_addr, port).into())
    }

    /// Returns the node of a server and its address.
    fn server(&self, profile: usize, port: u16) -> (&Namespace, SocketAddr) {
        let node = &self.nodes.servers[self.servers[&profile]];
        (&node.namespace, (node.addr, port).into())
    }
}

/// Runs cells at both depths.
fn run(name: &str, cells: &[(usize, usize)]) -> Outcomes {
    let field = Field::new(name, cells);
    let library = Library::open(&field.nodes.forwarder);
    let (next, outcomes) = (AtomicUsize::new(0), Mutex::new(Outcomes::new()));
    let work = || {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Some(&key) = cells.get(number / 2) else { return };
            let port = u16::try_from(PORTS + number).unwrap();
            let (client, front) = field.client(key.0, port);
            let (server, target) = field.server(key.1, port);
            let cell = Cell {
                library: &library,
                client,
                front,
                server,
                target,
                depth: Depth::BOTH[number % 2],
            };
            let outcome = cell.run();
            let other = outcomes.lock().insert(key, outcome);
            let names = (ALL[key.0].name, ALL[key.1].name);
            assert!(
                other.is_none_or(|other| other == outcome),
                "{names:?}: {other:?} and {outcome:?}"
            );
        }
    };
    thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(work);
        }
    });
    outcomes.into_inner()
}

#[test]
fn clients_and_servers_of_many_systems_are_spliced() {
    let is_whole = env::var("LONGSPLICE_MATRIX").is_ok_and(|which| which == "all");
    let cells: Vec<_> = match is_whole {
        true => (0..ALL.len())
            .flat_map(|client| (0..ALL.len()).map(move |server| (client, server)))
            .collect(),
        false => SOME
            .map(|(client, server)| (Profile::number(client), Profile::number(server)))
            .to_vec(),
    };
    let outcomes = run("matrix", &cells);
    if is_whole && family() == Family::V4 {
        page::write(&outcomes);
        let spliced = outcomes
            .values()
            .filter(|o| !matches!(o, Outcome::Relayed(_)))
            .count();
        assert!(spliced * 100 >= cells.len() * 95, "{spliced} of {}", cells.len());
        return;
    }
    let page = Page::read();
    for (key, outcome) in outcomes {
        let [client, server] = [key.0, key.1].map(|number| ALL[number].name);
        assert_eq!(
            outcome.to_string(),
            page.cell(client, server),
            "{client} to {server}"
        );
    }
}
