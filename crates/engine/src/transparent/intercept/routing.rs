//! Routes packets with our mark to this host, whatever their destination: by a routing rule and a table.

use std::{collections::BTreeSet, io};

use rtnetlink::packet_route::{
    AddressFamily, RouteNetlinkMessage,
    route::{RouteAttribute, RouteMessage, RouteProtocol, RouteScope, RouteType},
    rule::{RuleAction, RuleAttribute, RuleMessage},
};

use crate::{
    kernel::{netlink::Netlink, socket::MARK},
    services::rules::Family,
};

/// Priority before all other rules (`ip rule`), except for the host's own addresses, which are looked up at 0.
const PRIORITY: u32 = 10;
/// Marks a rule or route as ours: a number that no other program is known to use (`/etc/iproute2/rt_protos`).
const PROTOCOL: RouteProtocol = RouteProtocol::Other(0x4c);
/// First number of our tables; the lower bits are the hash of the instance's name. With 30 of them, a pair of instances has
/// one table by a chance of 1 in 10⁹, and the numbers are positive for programs that read them as signed.
const TABLES: u32 = 1 << 30;
/// Interface index of the loopback, in every namespace.
const LOOPBACK: u32 = 1;

/// Reason that the routing could not be set up; nothing of it is left.
#[derive(Debug, thiserror::Error)]
#[error("cannot set up the routing of intercepted connections ({what}): {source}{}", remedy(.source))]
pub struct RoutingError {
    what: String,
    source: io::Error,
}

fn fail(what: &str) -> impl FnOnce(io::Error) -> RoutingError {
    let what = what.to_owned();
    move |source| RoutingError { what, source }
}

fn remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied => {
            "; it needs CAP_NET_ADMIN, and for IPv6 an interface lo that has it (net.ipv6.conf.lo.disable_ipv6=0)"
        }
        _ => "",
    }
}

/// Routes packets that rules have marked to this host, for as long as it lives. Dropping it removes rules and table;
/// [`Routing::clear`] removes those of a killed process. A process and its successor share what both of them need: it
/// belongs to the process that serves.
#[derive(Debug)]
pub struct Routing {
    table: u32,
    /// Present objects: a route of each family, and a rule of each for each interface.
    families: BTreeSet<Family>,
    rules: BTreeSet<(Family, String)>,
    owner: Owner,
}

/// Process that removes the routing of an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    /// This one.
    Us,
    /// A predecessor or a successor.
    Other,
}

impl Routing {
    /// Sets a rule for each interface on which packets come in, and the table of the instance, for these families.
    /// Uses objects that are there already.
    ///
    /// # Errors
    /// Returns [`RoutingError`], with the call that was refused.
    pub fn set(
        instance: &str,
        interfaces: &[String],
        families: &[Family],
        owner: Owner,
    ) -> Result<Routing, RoutingError> {
        let mut routing = Routing {
            table: table_of(instance),
            families: BTreeSet::new(),
            rules: BTreeSet::new(),
            owner,
        };
        routing.extend(interfaces, families)?;
        tracing::info!(
            table = routing.table,
            ?interfaces,
            "routing rules of intercepted connections set"
        );
        Ok(routing)
    }

    /// Adds what these interfaces and families need beyond the present objects.
    ///
    /// # Errors
    /// Returns [`RoutingError`], with the call that was refused. The former objects remain; [`Routing::keep_only`]
    /// removes the added ones.
    pub fn extend(&mut self, interfaces: &[String], families: &[Family]) -> Result<(), RoutingError> {
        let netlink = Netlink::open().map_err(fail("a netlink socket"))?;
        for &family in families {
            if !self.families.contains(&family) {
                self.create_route(&netlink, family)?;
                self.families.insert(family);
            }
            for interface in interfaces {
                let key = (family, interface.clone());
                if !self.rules.contains(&key) {
                    self.create_rule(&netlink, family, interface)?;
                    self.rules.insert(key);
                }
            }
        }
        Ok(())
    }

    /// Creates the objects again that another program has removed; returns their number.
    ///
    /// # Errors
    /// Returns [`RoutingError`], with the call that was refused.
    pub fn restore(&self) -> Result<usize, RoutingError> {
        let netlink = Netlink::open().map_err(fail("a netlink socket"))?;
        let mut missing = 0;
        for family in Family::BOTH {
            if self.families.contains(&family) {
                missing += usize::from(self.create_route(&netlink, family)?);
            }
            for (_, interface) in self.rules.iter().filter(|(of, _)| *of == family) {
                missing += usize::from(self.create_rule(&netlink, family, interface)?);
            }
        }
        Ok(missing)
    }

    /// Creates the route of a family; returns false if it was there.
    fn create_route(&self, netlink: &Netlink, family: Family) -> Result<bool, RoutingError> {
        let route = RouteNetlinkMessage::NewRoute(self.route(family));
        is_new(netlink.create(route)).map_err(fail(&format!("`ip -{} route`", family.number())))
    }

    /// Creates the routing rule of an interface; returns false if it was there.
    fn create_rule(&self, netlink: &Netlink, family: Family, interface: &str) -> Result<bool, RoutingError> {
        let rule = RouteNetlinkMessage::NewRule(self.rule(family, interface));
        let what = format!("`ip -{} rule` of {interface}", family.number());
        is_new(netlink.create(rule)).map_err(fail(&what))
    }

    /// Removes objects that these interfaces and families do not need. One that cannot be removed is logged, and removed
    /// on drop.
    pub fn keep_only(&mut self, interfaces: &[String], families: &[Family]) {
        let netlink = match Netlink::open() {
            Ok(netlink) => netlink,
            Err(error) => return tracing::warn!(%error, "unneeded routing rules could not be removed"),
        };
        let is_superfluous = |(family, interface): &&(Family, String)| {
            !(families.contains(family) && interfaces.contains(interface))
        };
        let superfluous: Vec<_> = self.rules.iter().filter(is_superfluous).cloned().collect();
        for key in superfluous {
            match netlink.order(RouteNetlinkMessage::DelRule(self.rule(key.0, &key.1))) {
                Ok(()) => drop(self.rules.remove(&key)),
                Err(error) => tracing::warn!(%error, interface = key.1, "a routing rule is left"),
            }
        }
        for family in Family::BOTH {
            if self.families.contains(&family) && !families.contains(&family) {
                match netlink.order(RouteNetlinkMessage::DelRoute(self.route(family))) {
                    Ok(()) => drop(self.families.remove(&family)),
                    Err(error) => tracing::warn!(%error, table = self.table, "a route is left"),
                }
            }
        }
    }

    /// Says which process removes the routing.
    pub fn set_owner(&mut self, owner: Owner) {
        self.owner = owner;
    }

    /// Removes the remains of a process of this instance.
    ///
    /// # Errors
    /// Returns those of the kernel. Without remains, or without IPv6, it succeeds.
    pub fn clear(instance: &str) -> io::Result<()> {
        Routing::clear_but(instance, None)
    }

    /// Removes the remains of a process of this instance, but for those objects that are this process's as well.
    ///
    /// # Errors
    /// Returns those of the kernel. Without remains, or without IPv6, it succeeds.
    pub fn clear_but(instance: &str, ours: Option<&Routing>) -> io::Result<()> {
        clear_table(table_of(instance), ours)
    }

    fn route(&self, family: Family) -> RouteMessage {
        let mut route = RouteMessage::default();
        route.header.address_family = address_family(family);
        route.header.protocol = PROTOCOL;
        route.header.scope = RouteScope::Host;
        route.header.kind = RouteType::Local;
        route.attributes = vec![RouteAttribute::Table(self.table), RouteAttribute::Oif(LOOPBACK)];
        route
    }

    /// Returns true if a routing rule of a family is one of its own.
    fn has_rule(&self, family: Family, rule: &RuleMessage) -> bool {
        rule.attributes.iter().any(|attribute| match attribute {
            RuleAttribute::Iifname(name) => self.rules.contains(&(family, name.clone())),
            _ => false,
        })
    }

    /// Returns the routing rule of an interface. The interface is part of it, so that packets of our own sockets never
    /// match, even if they inherit marks (`net.ipv4.tcp_fwmark_accept`).
    fn rule(&self, family: Family, interface: &str) -> RuleMessage {
        let mut rule = RuleMessage::default();
        rule.header.family = address_family(family);
        rule.header.action = RuleAction::ToTable;
        rule.attributes = vec![
            RuleAttribute::Priority(PRIORITY),
            RuleAttribute::Iifname(interface.to_owned()),
            RuleAttribute::FwMark(MARK.value),
            RuleAttribute::FwMask(MARK.mask),
            RuleAttribute::Table(self.table),
            RuleAttribute::Protocol(PROTOCOL),
        ];
        rule
    }
}

impl Drop for Routing {
    fn drop(&mut self) {
        if self.owner == Owner::Other {
            return;
        }
        if let Err(error) = clear_table(self.table, None) {
            tracing::warn!(table = self.table, %error, "the routing rules of intercepted connections could not be removed");
        }
    }
}

/// Returns false for an object that was there before.
fn is_new(created: io::Result<()>) -> io::Result<bool> {
    match created {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        created => created.map(|()| true),
    }
}

fn address_family(family: Family) -> AddressFamily {
    match family {
        Family::V4 => AddressFamily::Inet,
        Family::V6 => AddressFamily::Inet6,
    }
}

/// Returns the table of an instance, always the same for a name (FNV-1a of its name, folded to 30 bits). Two instances must
/// not share one: each removes what it finds there.
fn table_of(instance: &str) -> u32 {
    let hash = instance.bytes().fold(0x811c_9dc5_u32, |h, b| {
        (h ^ u32::from(b)).wrapping_mul(0x0100_0193)
    });
    TABLES | (hash >> 30 ^ hash) & (TABLES - 1)
}

/// Returns an empty list for a kernel without IPv6.
fn none_without<T>(family: Family, dumped: io::Result<Vec<T>>) -> io::Result<Vec<T>> {
    match dumped {
        Err(_) if family == Family::V6 => Ok(Vec::new()),
        dumped => dumped,
    }
}

/// Removes our rules and routes of a table, but for those of `but`.
fn clear_table(table: u32, but: Option<&Routing>) -> io::Result<()> {
    let netlink = Netlink::open()?;
    for family in Family::BOTH {
        let removed =
            clear_rules(&netlink, family, table, but)? + clear_routes(&netlink, family, table, but)?;
        if removed > 0 {
            tracing::debug!(table, ?family, removed, "routing rules and routes removed");
        }
    }
    Ok(())
}

fn clear_rules(netlink: &Netlink, family: Family, table: u32, but: Option<&Routing>) -> io::Result<usize> {
    let mut all = RuleMessage::default();
    all.header.family = address_family(family);
    let wanted = all.header.family;
    let mut removed = 0;
    for answer in none_without(family, netlink.dump(RouteNetlinkMessage::GetRule(all)))? {
        let RouteNetlinkMessage::NewRule(rule) = answer else {
            continue;
        };
        let ours = [RuleAttribute::Table(table), RuleAttribute::Protocol(PROTOCOL)];
        let is_kept = but.is_some_and(|kept| kept.has_rule(family, &rule));
        if rule.header.family == wanted && !is_kept && ours.iter().all(|a| rule.attributes.contains(a)) {
            netlink.order(RouteNetlinkMessage::DelRule(rule))?;
            removed += 1;
        }
    }
    Ok(removed)
}

fn clear_routes(netlink: &Netlink, family: Family, table: u32, but: Option<&Routing>) -> io::Result<usize> {
    if but.is_some_and(|kept| kept.families.contains(&family)) {
        return Ok(0);
    }
    let mut removed = 0;
    for route in none_without(family, routes_of(family, table))? {
        if route.header.protocol == PROTOCOL {
            netlink.order(RouteNetlinkMessage::DelRoute(route))?;
            removed += 1;
        }
    }
    Ok(removed)
}

/// Returns the routes of a table. The kernel chooses them: a router may have a million others.
fn routes_of(family: Family, table: u32) -> io::Result<Vec<RouteMessage>> {
    let mut request = RouteMessage::default();
    request.header.address_family = address_family(family);
    request.attributes = vec![RouteAttribute::Table(table)];
    let answers = Netlink::open_strict()?.dump(RouteNetlinkMessage::GetRoute(request))?;
    let routes = answers.into_iter().filter_map(|answer| match answer {
        RouteNetlinkMessage::NewRoute(route) => Some(route),
        _ => None,
    });
    Ok(routes.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_instance_has_a_table_of_its_own_range() {
        assert_eq!(table_of("default"), table_of("default"));
        assert_ne!(table_of("default"), table_of("other"));
        for name in ["", "default", "a"] {
            assert_eq!(table_of(name) & !(TABLES - 1), TABLES);
        }
    }

    #[test]
    fn three_thousand_instances_share_no_table() {
        let names = || (0..3000).map(|number| format!("ra-i{number}"));
        let tables: BTreeSet<u32> = names().map(|name| table_of(&name)).collect();
        assert_eq!(tables.len(), names().count());
        assert_ne!(
            table_of("ra-i39"),
            table_of("ra-i48"),
            "16 bits of the hash are the same"
        );
    }

    #[test]
    fn the_kernel_sends_the_routes_of_one_table_only() {
        const LOCAL: u32 = 255;
        let count = |table| routes_of(Family::V4, table).unwrap().len();
        assert!(count(LOCAL) > 0, "those of the loopback");
        assert_eq!(count(table_of("an instance that nothing runs")), 0);
    }
}
