//! Description of a graph: its vertices, and the links between them.

use std::collections::HashMap;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::Error;
use crate::link::LinkSpec;

/// Graph of hosts, nodes and routers. Its text is TOML:
///
/// ```toml
/// hosts = ["client", "server"]     # namespaces with one link each
/// nodes = ["edge"]                 # namespaces that route between their links
/// routers = ["north", "south"]     # inside the emulator, without a namespace
///
/// [[links]]
/// between = ["client", "edge"]
/// link = "5ms,100Mbit"             # as `longsplice-lab links` shows
/// ```
///
/// The first end of a link is its client's side. Devices of a namespace are `e0`, `e1` and so on, in the order of its links
/// here. All links have one MTU, since routers send no errors.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GraphSpec {
    /// Namespaces with one link each.
    pub hosts: Vec<String>,
    /// Namespaces that route between their links.
    #[serde(default)]
    pub nodes: Vec<String>,
    /// Vertices inside the emulator.
    #[serde(default)]
    pub routers: Vec<String>,
    /// Links between any two vertices.
    pub links: Vec<GraphLink>,
}

/// Link of a graph.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GraphLink {
    /// Names of its two ends; the first one is the client's side.
    pub between: [String; 2],
    /// Properties, as text.
    pub link: LinkSpec,
}

impl GraphSpec {
    /// Returns the names of all vertices: hosts, nodes, then routers.
    pub(super) fn names(&self) -> impl Iterator<Item = &String> {
        self.hosts.iter().chain(&self.nodes).chain(&self.routers)
    }

    /// Returns the number of namespaces: the vertices before the routers.
    pub(super) fn namespaces(&self) -> usize {
        self.hosts.len() + self.nodes.len()
    }

    /// Returns the two ends of each link, as indices of vertices. Fails with [`Error::Graph`] for a name that is there
    /// twice or not at all, a link from a vertex to itself, a host without exactly one link, and links with different
    /// MTUs.
    pub(super) fn ends(&self) -> Result<Vec<[usize; 2]>, Error> {
        let mut places = HashMap::new();
        for (place, name) in self.names().enumerate() {
            let is_name = |c: char| c.is_ascii_alphanumeric() || c == '-';
            if name.is_empty() || !name.chars().all(is_name) {
                return refuse(format!(
                    "{name:?} is no name: it needs letters, digits and hyphens"
                ));
            }
            if places.insert(name, place).is_some() {
                return refuse(format!("there are two vertices {name}"));
            }
        }
        let mut ends = Vec::new();
        for link in &self.links {
            let [here, there] = &link.between;
            if here == there {
                return refuse(format!("a link connects {here} with itself"));
            }
            let place = |name| match places.get(name) {
                Some(place) => Ok(*place),
                None => refuse(format!("{here} to {there}: there is no vertex {name}")),
            };
            ends.push([place(here)?, place(there)?]);
            if link.link.mtu != self.links[0].link.mtu {
                return refuse(format!(
                    "{here} to {there}: the MTU is {}, and that of the first link {}",
                    link.link.mtu, self.links[0].link.mtu
                ));
            }
        }
        for (place, host) in self.hosts.iter().enumerate() {
            match ends.as_flattened().iter().filter(|end| **end == place).count() {
                1 => {}
                count => return refuse(format!("the host {host} has {count} links, and should have one")),
            }
        }
        Ok(ends)
    }
}

/// Returns an error of a graph.
pub(super) fn refuse<T>(why: String) -> Result<T, Error> {
    Err(Error::Graph(why))
}

impl FromStr for GraphSpec {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let spec: GraphSpec = toml::from_str(text).map_err(|error| Error::Graph(error.to_string()))?;
        spec.ends()?;
        Ok(spec)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"
        hosts = ["a", "b"]
        routers = ["r"]
        [[links]]
        between = ["a", "r"]
        link = "5ms,100Mbit,seed=1"
        [[links]]
        between = ["r", "b"]
        link = "10ms"
    "#;

    #[test]
    fn a_graph_is_read_and_written() {
        let spec: GraphSpec = TEXT.parse().unwrap();
        assert_eq!(spec.ends().unwrap(), [[0, 2], [2, 1]]);
        assert_eq!(spec.namespaces(), 2);
        assert_eq!(spec.links[1].link, "10ms".parse().unwrap());
        let again: GraphSpec = toml::to_string(&spec).unwrap().parse().unwrap();
        assert_eq!(again, spec);
    }

    #[test]
    fn what_is_wrong_is_named() {
        let refusal = |from: &str, to: &str| {
            let text = TEXT.replace(from, to);
            assert_ne!(text, TEXT);
            text.parse::<GraphSpec>().unwrap_err().to_string()
        };
        for (from, to, says) in [
            (r#"["r", "b"]"#, r#"["r", "c"]"#, "r to c: there is no vertex c"),
            (r#"["r", "b"]"#, r#"["r", "r"]"#, "connects r with itself"),
            (
                r#"["r", "b"]"#,
                r#"["r", "a"]"#,
                "the host a has 2 links, and should have one",
            ),
            (r#"["r"]"#, r#"["a"]"#, "there are two vertices a"),
            (r#"["r"]"#, r#"["r_1"]"#, "\"r_1\" is no name"),
            (
                "10ms",
                "10ms,mtu=900",
                "r to b: the MTU is 900, and that of the first link 1500",
            ),
            ("10ms", "10", "is neither an option of a link nor a preset"),
            ("routers", "switches", "unknown field `switches`"),
        ] {
            let refusal = refusal(from, to);
            assert!(refusal.contains(says), "{to}: {refusal}");
        }
    }
}
