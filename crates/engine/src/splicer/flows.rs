//! Tells of flows. They are listed one by one: a million of them at once would take a gigabyte.

use std::{collections::HashMap, fmt, io, net::SocketAddr, sync::Arc, vec};

use longsplice_dataplane::{Direction, Leg, PerSide};

use super::Splicer;
use crate::{
    api::{FlowId, FlowInfo, FlowState, LegInfo},
    context::Context,
    recovery::reaper,
    services::registry::direction_info,
};

/// Every flow of a moment, by number; each is read when its turn comes, and left out if it has ended by then. Holds less than
/// 100 bytes for each. Reading one takes a system call or two: a task should leave it to `spawn_blocking` if there are many.
pub struct Flows {
    context: Arc<Context>,
    left: vec::IntoIter<(FlowId, Leg)>,
}

impl fmt::Debug for Flows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Flows").field("left", &self.left()).finish()
    }
}

impl Flows {
    /// Returns how many may still come.
    pub fn left(&self) -> usize {
        self.left.len()
    }
}

impl Iterator for Flows {
    type Item = FlowInfo;

    fn next(&mut self) -> Option<FlowInfo> {
        loop {
            let (id, leg) = self.left.next()?;
            if let Some(info) = read(&self.context, id, leg) {
                return Some(info);
            }
        }
    }
}

impl Splicer {
    /// Returns every flow, relayed ones too; not those whose sockets a handler has. Walks over all records, which takes a
    /// while if there are many: a task should leave it to `spawn_blocking`.
    pub fn flows(&self) -> Flows {
        let mut all = self.context.registry.list();
        if let Some(plane) = self.context.plane() {
            // Records that cannot be read are missing in the list.
            let _ = plane.scan_flows(|directions| {
                if let Some((a, _)) = directions.complete() {
                    all.push((FlowId(a.serial), a.leg));
                }
            });
        }
        all.sort_unstable_by_key(|&(id, _)| id);
        all.dedup_by_key(|&mut (id, _)| id);
        Flows {
            context: self.context.clone(),
            left: all.into_iter(),
        }
    }

    /// Returns a flow whose sockets a call of [`Splicer::splice`] has, if it is one. Walks over no records.
    pub fn pair(&self, id: FlowId) -> Option<FlowInfo> {
        self.context.registry.get(id).map(|entry| entry.info())
    }

    /// Returns the detached flow between two ends that see each other's addresses, if there is one.
    pub fn transparent_flow(&self, client: SocketAddr, server: SocketAddr) -> Option<FlowInfo> {
        let directions = self.context.plane()?.both_directions(Leg::new(client, server));
        detached_info(&directions)
    }

    /// Returns the numbers of segments out of order, by the side that sent them, of detached flows whose translation changes
    /// nothing, as far as they had some lately. They count from an unknown beginning, and wrap.
    ///
    /// # Errors
    /// Returns an error if the kernel does not let the counts be read.
    pub fn disorders(&self) -> io::Result<HashMap<FlowId, PerSide<u32>>> {
        let mut all: HashMap<FlowId, PerSide<u32>> = HashMap::new();
        let Some(plane) = self.context.plane() else {
            return Ok(all);
        };
        for (serial, side, count) in plane.disorders().map_err(io::Error::other)? {
            all.entry(FlowId(serial)).or_default()[side] = count;
        }
        Ok(all)
    }
}

/// Reads a flow with its rules; `None`: it has ended, or comes back at this moment.
fn read(context: &Context, id: FlowId, client: Leg) -> Option<FlowInfo> {
    let plane = context.plane();
    let held = context.registry.get(id).map(|entry| entry.info());
    let mut info = held.or_else(|| {
        let directions = plane?.both_directions(client);
        let detached = directions.map(|d| d.filter(|d| d.slot.is_none() && d.serial == id.0));
        detached_info(&detached)
    })?;
    if let Some(plane) = plane {
        (info.rules, info.ruled) = context.rules.spliced.of_flow(plane, id);
    }
    Some(info)
}

/// Describes a flow without sockets; `None` while it is being removed.
fn detached_info(directions: &PerSide<Option<Direction>>) -> Option<FlowInfo> {
    let (a, b) = directions.complete()?;
    let leg = |l: Leg| LegInfo {
        peer: l.peer,
        local: l.local,
    };
    let end = reaper::flow_end(&a, &b);
    Some(FlowInfo {
        id: FlowId(a.serial),
        client: leg(a.leg),
        server: leg(b.leg),
        state: if end.is_over() {
            FlowState::Closing
        } else {
            FlowState::Detached
        },
        reason: None,
        to_server: direction_info(&a),
        to_client: direction_info(&b),
        // The age of an adopted flow counts from the adoption; it is at least that of its last segment.
        age_seconds: a.age.max(end.idle).as_secs_f64(),
        idle_seconds: Some(end.idle.as_secs_f64()),
        client_round_trip_us: None,
        server_round_trip_us: None,
        rules: Vec::new(),
        ruled: None,
    })
}
