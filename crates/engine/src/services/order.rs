//! Looks at the order of programs at the hooks. A program of another owner that stands before ours and accepts a packet
//! (TC_ACT_OK), or sends it elsewhere, takes it away from us: all spliced flows of that interface stop.

use std::collections::BTreeMap;

use longsplice_dataplane::{Dataplane, Foreign};
use parking_lot::Mutex;

use super::interfaces::Interfaces;

/// Programs of others that stand before ours, by the name of the interface.
#[derive(Debug, Default)]
pub(crate) struct Order(Mutex<BTreeMap<String, Vec<Foreign>>>);

impl Order {
    /// Looks at the watched interfaces, and logs each change. The order stays as it is: the kernel attaches no program twice
    /// to one hook, so ours would have to go before they could come first, and two owners that both insist would never
    /// end.
    pub(crate) fn look(&self, plane: &Dataplane, interfaces: &Interfaces) {
        let mut known = self.0.lock();
        let mut now = BTreeMap::new();
        for (index, name) in interfaces.watched() {
            let before = plane.programs_before(index).unwrap_or_default();
            if before.is_empty() {
                continue;
            }
            if known.get(&name) != Some(&before) {
                tracing::warn!(
                    interface = name,
                    programs = describe(&before),
                    "other programs were attached before ours: if they accept or redirect packets, spliced flows stop. Attach \
                     them behind ours (tcx: BPF_F_AFTER), or leave the interface out (`interfaces`)"
                );
            }
            now.insert(name, before);
        }
        for name in known.keys().filter(|name| !now.contains_key(*name)) {
            tracing::info!(interface = name, "no other program stands before ours any more");
        }
        *known = now;
    }

    /// Returns a line for each interface on which programs of others stand before ours now.
    pub(crate) fn lines(&self) -> Vec<String> {
        let known = self.0.lock();
        let line = |(name, before): (&String, &Vec<Foreign>)| format!("{name} {}", describe(before));
        known.iter().map(line).collect()
    }
}

/// Reads which programs of others stand before those of any instance in this network namespace, whether its process runs or
/// not. Returns a line for each such interface; `None` if no instance is attached to any.
pub fn programs_before_instances() -> Option<Vec<String>> {
    let all = longsplice_dataplane::before_instances();
    let name = |index| nix::net::if_::if_indextoname(index).ok()?.into_string().ok();
    let line = |(&index, before): (&u32, &Vec<Foreign>)| {
        let name = name(index).filter(|_| !before.is_empty())?;
        Some(format!("{name} {}", describe(before)))
    };
    (!all.is_empty()).then(|| all.iter().filter_map(line).collect())
}

fn describe(programs: &[Foreign]) -> String {
    let one = |p: &Foreign| format!("{}: {} (program {})", p.hook, p.name, p.id);
    programs.iter().map(one).collect::<Vec<_>>().join(", ")
}
