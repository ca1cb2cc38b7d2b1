//! Looks at the order of programs where instances are attached, from outside their processes.

use std::collections::BTreeMap;

use crate::{
    attach::HOOKS,
    links,
    load::pinned_meta,
    order::{self, Foreign},
    pins::{self, Pins},
};

/// Reason that the order is not seen where pins hold programs, not links.
const FILTERS: &str = "attached as filters, whose order is not looked at (Linux before 6.6)";

/// Reason that the order is not seen where another tool has detached a link by force.
const ABSENT: &str = "our program has been taken off the interface";

/// Order of programs on the interfaces to which instances are attached.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct InstancesOrder {
    /// Programs of others that stand before those of any instance, by interface; none on an interface is an element, too.
    pub before: BTreeMap<u32, Vec<Foreign>>,
    /// Reasons that the order cannot be seen, by interface.
    pub unseen: BTreeMap<u32, String>,
}

/// Reads from the pins of all instances in this network namespace which programs stand before theirs.
pub fn before_instances() -> InstancesOrder {
    let namespace = pins::network_namespace().ok();
    let is_here = |pins: &Pins| pinned_meta(pins).is_ok_and(|meta| Some(meta.netns) == namespace);
    let mut order = InstancesOrder::default();
    for pins in Pins::all().into_iter().filter(is_here) {
        for hook in HOOKS {
            for ifindex in pins.interfaces(hook.0) {
                let found = match links::program_of(&pins.link(ifindex, hook.0)) {
                    Ok(Some(ours)) => order::before(ours, ifindex, hook)
                        .map_err(|e| e.to_string())
                        .and_then(|before| before.ok_or_else(|| ABSENT.into())),
                    Ok(None) => Err(FILTERS.into()),
                    Err(e) => Err(e.to_string()),
                };
                order.note(ifindex, found);
            }
        }
    }
    order
}

impl InstancesOrder {
    fn note(&mut self, ifindex: u32, found: Result<Vec<Foreign>, String>) {
        match found {
            Ok(found) => {
                let on_it = self.before.entry(ifindex).or_default();
                for foreign in found {
                    if !on_it.contains(&foreign) {
                        on_it.push(foreign);
                    }
                }
            }
            Err(why) => drop(self.unseen.insert(ifindex, why)),
        }
    }
}
