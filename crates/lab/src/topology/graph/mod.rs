//! Any graph of hosts, nodes and routers. Routers are inside the emulator, so that only ends and nodes need namespaces.

mod description;
mod routes;

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};

pub use description::{GraphLink, GraphSpec};

use super::{Family, settings};
use crate::emulator::{Emulator, Hop, LinkReport, Routers, Span, SpanEnd, Verdict};
use crate::link::LinkSpec;
use crate::{Error, Namespace, tool};
use description::refuse;
use routes::Paths;

/// Address that all namespaces take for their next hop, on every link: the emulator hands each frame to the right device.
const GATEWAY: Ipv4Addr = Ipv4Addr::new(198, 19, 255, 254);
/// Ethernet address of that hop: any will do.
const GATEWAY_MAC: &str = "02:00:00:00:00:01";

/// Largest number of devices: each has a /24 network of 198.18.0.0/15 for itself, since nodes may take hosts of one network
/// for equally far. The last network has the gateway.
const MOST_DEVICES: usize = 510;

/// Graph of namespaces and emulated links. Packets take the path of the least delay, and of the fewest links among those;
/// both directions of a connection take one path.
///
/// Each device has an address of its own (/32, and /128 in IPv6): 198.18.1.1, 198.18.2.1 and so on in the order of the links. Frames go
/// through a router as they are: it counts down no time to live, and sends no errors.
#[derive(Debug)]
pub struct Graph {
    // Fields are dropped in this order: the devices go before the namespaces they are in.
    emulator: Emulator,
    /// Namespaces of the hosts, then of the nodes, in the order of the description.
    namespaces: Vec<Namespace>,
    /// Place of each namespace, by its name.
    places: HashMap<String, usize>,
    devices: Vec<Device>,
    family: Family,
}

/// Device of a namespace.
#[derive(Debug)]
struct Device {
    /// Place of its namespace.
    vertex: usize,
    name: String,
    link: usize,
    /// True if it is on the client's side of its link.
    is_near: bool,
    addr: IpAddr,
}

impl Graph {
    /// Sets a graph up. `name` is that of the test, and becomes part of the namespaces' names. Links with the same seed get
    /// different ones: see [`LinkSpec::tell_apart`].
    ///
    /// # Errors
    /// Those of [`Namespace::new`] and [`Emulator::start`]; [`Error::Graph`] for a description that is wrong, and where a
    /// vertex cannot be reached.
    pub fn new(name: &str, family: Family, spec: &GraphSpec) -> Result<Self, Error> {
        let ends = spec.ends()?;
        let delay = |link: &LinkSpec| {
            let both = link.to_server.delay + link.to_client.delay;
            u64::try_from(both.as_nanos()).unwrap_or(u64::MAX)
        };
        let lengths = spec.links.iter().map(|link| delay(&link.link));
        let paths = Paths::new(spec.names().count(), ends.iter().copied().zip(lengths));
        let devices = devices(&ends, spec.namespaces())?;
        let next: Vec<Vec<Option<usize>>> = devices
            .iter()
            .map(|device| paths.next_links(device.vertex))
            .collect();
        for (device, next) in devices.iter().zip(&next) {
            let lost = spec.names().zip(next).enumerate();
            let mut lost = lost.filter(|(place, (_, next))| next.is_none() && *place != device.vertex);
            if let Some((_, (lost, _))) = lost.next() {
                let to = spec.names().nth(device.vertex).map_or("", String::as_str);
                return refuse(format!("there is no path from {lost} to {to}"));
            }
        }
        let namespaces = spec.names().take(spec.namespaces());
        let namespaces: Vec<Namespace> = namespaces
            .map(|vertex| Namespace::new(&format!("{name}-{vertex}")))
            .collect::<Result<_, _>>()?;
        for (place, namespace) in namespaces.iter().enumerate() {
            settings::common(namespace, family, true)?;
            if place >= spec.hosts.len() {
                settings::forward(namespace, family, true)?;
            }
        }
        let mut links: Vec<LinkSpec> = spec.links.iter().map(|link| link.link.clone()).collect();
        LinkSpec::tell_apart(&mut links);
        let routers = routers(spec, family, &ends, &devices, &next);
        let emulator = Emulator::start(&spans(spec, &ends, &links, &namespaces, &devices), Some(&routers))?;
        let places = spec.names().cloned().zip(0..namespaces.len()).collect();
        let graph = Graph {
            emulator,
            namespaces,
            places,
            devices,
            family,
        };
        for (place, namespace) in graph.namespaces.iter().enumerate() {
            for family in family.present() {
                let (of, lines) = (format!("-{family}"), graph.setup(place, *family, &next));
                tool::ip_batch(&[&of, "-n", namespace.name()], &lines)?;
            }
        }
        Ok(graph)
    }

    /// Returns the namespace of a host or node; `None` for another name.
    pub fn namespace(&self, name: &str) -> Option<&Namespace> {
        self.places.get(name).map(|place| &self.namespaces[*place])
    }

    /// Returns the address of a host, or that of a node's first device; `None` for another name.
    pub fn address(&self, name: &str) -> Option<IpAddr> {
        let place = self.places.get(name)?;
        let device = self.devices.iter().find(|device| device.vertex == *place)?;
        Some(self.family.addr(device.addr))
    }

    /// Returns the namespaces with their names, hosts first.
    pub fn nodes(&self) -> Vec<(&str, &Namespace)> {
        let mut all: Vec<(&str, usize)> = self
            .places
            .iter()
            .map(|(name, place)| (name.as_str(), *place))
            .collect();
        all.sort_by_key(|(_, place)| *place);
        all.into_iter()
            .map(|(name, place)| (name, &self.namespaces[place]))
            .collect()
    }

    /// Returns the emulator of all links.
    pub fn emulator(&self) -> &Emulator {
        &self.emulator
    }

    /// Returns the reports on the links, in the order of the description.
    pub fn link_reports(&self) -> Vec<LinkReport> {
        self.emulator.reports()
    }

    /// Returns the verdict on the run so far.
    pub fn verdict(&self) -> Verdict {
        self.emulator.verdict()
    }

    /// Returns the lines for `ip` that set up the devices and routes of a namespace in a family, given the next links to
    /// each device.
    fn setup(&self, place: usize, family: Family, next: &[Vec<Option<usize>>]) -> Vec<String> {
        let mut lines = Vec::new();
        let own: Vec<&Device> = self
            .devices
            .iter()
            .filter(|device| device.vertex == place)
            .collect();
        let (gateway, length) = (family.addr(GATEWAY.into()), family.host());
        for device in &own {
            let (name, addr) = (&device.name, family.addr(device.addr));
            lines.push(format!("addr add {addr}{length} dev {name}"));
            lines.push(format!("link set {name} up"));
            lines.push(format!(
                "neigh replace {gateway} lladdr {GATEWAY_MAC} dev {name} nud permanent"
            ));
        }
        if let [only] = own.as_slice() {
            lines.push(format!(
                "route add default via {gateway} dev {} onlink",
                only.name
            ));
            return lines;
        }
        for (device, next) in self.devices.iter().zip(next) {
            let over = own.iter().find(|own| Some(own.link) == next[place]);
            if let Some(over) = over {
                let (to, over) = (family.addr(device.addr), &over.name);
                lines.push(format!("route add {to} via {gateway} dev {over} onlink"));
            }
        }
        lines
    }
}

/// Returns the devices of all namespaces, in the order of the links.
fn devices(ends: &[[usize; 2]], namespaces: usize) -> Result<Vec<Device>, Error> {
    let mut counts = vec![0; namespaces];
    let mut devices = Vec::new();
    for (link, [near, far]) in ends.iter().enumerate() {
        for (vertex, is_near) in [(*near, true), (*far, false)] {
            let Some(count) = counts.get_mut(vertex) else {
                continue;
            };
            let Some(number) = u16::try_from(devices.len() + 1)
                .ok()
                .filter(|_| devices.len() < MOST_DEVICES)
            else {
                return refuse(format!("only {MOST_DEVICES} devices have addresses"));
            };
            let [high, low] = number.to_be_bytes();
            devices.push(Device {
                vertex,
                name: format!("e{count}"),
                link,
                is_near,
                addr: Ipv4Addr::new(198, 18 + high, low, 1).into(),
            });
            *count += 1;
        }
    }
    Ok(devices)
}

/// Returns the routes of the routers.
fn routers(
    spec: &GraphSpec,
    family: Family,
    ends: &[[usize; 2]],
    devices: &[Device],
    next: &[Vec<Option<usize>>],
) -> Routers {
    let of = |router: usize| {
        let mut routes = HashMap::new();
        for (device, next) in devices.iter().zip(next) {
            let Some(span) = next[spec.namespaces() + router] else {
                continue;
            };
            let hop = Hop {
                span,
                to_server: ends[span][0] == spec.namespaces() + router,
            };
            routes.extend(
                family
                    .present()
                    .iter()
                    .map(|family| (family.addr(device.addr), hop)),
            );
        }
        routes
    };
    (0..spec.routers.len()).map(of).collect()
}

/// Returns the links with their ends.
fn spans<'a>(
    spec: &GraphSpec,
    ends: &[[usize; 2]],
    links: &[LinkSpec],
    namespaces: &'a [Namespace],
    devices: &'a [Device],
) -> Vec<Span<'a>> {
    let end = |link: usize, is_near: bool| {
        let device = devices
            .iter()
            .find(|device| device.link == link && device.is_near == is_near);
        match device {
            Some(device) => SpanEnd::Device(&namespaces[device.vertex], &device.name),
            None => SpanEnd::Router(ends[link][usize::from(!is_near)] - spec.namespaces()),
        }
    };
    let span = |(n, link): (usize, &LinkSpec)| Span {
        name: spec.links[n].between.join(" to "),
        client_side: end(n, true),
        server_side: end(n, false),
        spec: link.clone(),
    };
    links.iter().enumerate().map(span).collect()
}
