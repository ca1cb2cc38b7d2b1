//! Tells how flows without sockets fare on their path.

use std::{collections::HashMap, io, net::SocketAddr};

use longsplice_dataplane::{Leg, PerSide};

use super::{Splicer, requests::detached_info};
use crate::api::{FlowId, FlowInfo};

impl Splicer {
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

    /// Returns the detached flow between two ends that see each other's addresses, if there is one.
    pub fn transparent_flow(&self, client: SocketAddr, server: SocketAddr) -> Option<FlowInfo> {
        let directions = self.context.plane()?.both_directions(Leg::new(client, server));
        detached_info(&directions)
    }
}
