//! Looks at the order of programs at the hooks. A program of another owner that stands before ours and accepts a packet
//! (TC_ACT_OK), or sends it elsewhere, takes it away from us: all spliced flows of that interface stop.

use std::collections::BTreeMap;

use longsplice_dataplane::{Dataplane, Foreign};
use parking_lot::Mutex;

use super::interfaces::Interfaces;

/// Programs of others that stand before ours, or the reason why they cannot be seen, by the name of the interface.
type Known = BTreeMap<String, Result<Vec<Foreign>, String>>;

/// Order that was found last.
#[derive(Debug, Default)]
pub(crate) struct Order(Mutex<Known>);

impl Order {
    /// Looks at the watched interfaces, and logs each change. The order stays as it is: the kernel attaches no program twice
    /// to one hook, so ours would have to go before they could come first, and two owners that both insist would never
    /// end.
    pub(crate) fn look(&self, plane: &Dataplane, interfaces: &Interfaces) {
        let mut known = self.0.lock();
        let mut now = Known::new();
        for (index, name) in interfaces.watched() {
            let found = plane.programs_before(index).map_err(|e| e.to_string());
            if found.as_ref().is_ok_and(Vec::is_empty) {
                continue;
            }
            if known.get(&name) != Some(&found) {
                log(&name, &found);
            }
            now.insert(name, found);
        }
        for name in known.keys().filter(|name| !now.contains_key(*name)) {
            tracing::info!(interface = name, "no other program stands before ours any more");
        }
        *known = now;
    }

    /// Returns a line for each interface on which programs of others stand before ours now, or cannot be seen.
    pub(crate) fn lines(&self) -> Vec<String> {
        let known = self.0.lock();
        let line = |(name, found): (&String, &Result<Vec<Foreign>, String>)| match found {
            Ok(before) => format!("{name} {}", describe(before)),
            Err(why) => format!("{name} cannot be seen: {why}"),
        };
        known.iter().map(line).collect()
    }
}

fn log(interface: &str, found: &Result<Vec<Foreign>, String>) {
    match found {
        Ok(before) => tracing::warn!(
            interface,
            programs = describe(before),
            "other programs were attached before ours: if they accept or redirect packets, spliced flows stop. Attach \
             them behind ours (tcx: BPF_F_AFTER), or leave the interface out (`interfaces`)"
        ),
        Err(error) => tracing::warn!(
            interface,
            error,
            "programs that were attached before ours cannot be seen"
        ),
    }
}

/// Order of programs on the interfaces to which instances are attached.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct ProgramsBefore {
    /// A line for each interface on which programs of others stand before those of any instance.
    pub before: Vec<String>,
    /// A line for each interface of which that cannot be seen.
    pub unseen: Vec<String>,
}

/// Reads which programs of others stand before those of any instance in this network namespace, whether its process runs or
/// not. Returns `None` if no instance is attached to any interface.
pub fn programs_before_instances() -> Option<ProgramsBefore> {
    let order = longsplice_dataplane::before_instances();
    let name = |index| nix::net::if_::if_indextoname(index).ok()?.into_string().ok();
    let before = order.before.iter().filter(|(_, before)| !before.is_empty());
    let before = before.filter_map(|(&index, before)| Some(format!("{} {}", name(index)?, describe(before))));
    let unseen = order.unseen.iter();
    let unseen = unseen.filter_map(|(&index, why)| Some(format!("{}: {why}", name(index)?)));
    let lines = ProgramsBefore {
        before: before.collect(),
        unseen: unseen.collect(),
    };
    (!order.before.is_empty() || !order.unseen.is_empty()).then_some(lines)
}

fn describe(programs: &[Foreign]) -> String {
    let one = |p: &Foreign| format!("{}: {} (program {})", p.hook, p.name, p.id);
    programs.iter().map(one).collect::<Vec<_>>().join(", ")
}
