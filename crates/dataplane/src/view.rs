//! Looks into a table of flows: this instance's, or another one's on the same host.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
};

use libbpf_rs::{MapCore, MapFlags, MapHandle};

use crate::{
    abi::{Leg, Pod, Side, ls_flow},
    flows::{is_present, to_io},
    run,
};

/// Finds the flows of a table without changing it.
#[derive(Debug)]
pub(crate) struct View {
    map: MapHandle,
    lookup: OwnedFd,
}

impl View {
    /// Takes the map `flows` of a table, and the program `lookup` that was loaded with its maps and its hash.
    pub(crate) fn new(map: MapHandle, lookup: OwnedFd) -> View {
        View { map, lookup }
    }

    /// Returns the elements of the table.
    pub(crate) fn map(&self) -> &MapHandle {
        &self.map
    }

    /// Returns the number of a leg's direction.
    pub(crate) fn lookup(&self, leg: Leg) -> Option<u32> {
        run::with_argument(self.lookup.as_fd(), leg.tuple().bytes())
            .inspect_err(|error| tracing::error!(%error, ?leg, "cannot look for a direction"))
            .ok()
            .filter(|&number| number != 0)
    }

    /// Finds the flow that has a direction with this leg, and the side of it.
    pub(crate) fn find(&self, leg: Leg) -> Option<(ls_flow, Side)> {
        let (_, flow, side) = self.read_flow(leg)?;
        is_present(&flow.from[side].rec).then_some((flow, side))
    }

    /// Finds it with the direction's number, also while it is just being removed. Another instance's element may have
    /// been given to another flow since its number was found.
    pub(crate) fn read_flow(&self, leg: Leg) -> Option<(u32, ls_flow, Side)> {
        let number = self.lookup(leg)?;
        let flow = self.read((number - 1) / 2).ok()?;
        let side = Side::BOTH[((number - 1) % 2) as usize];
        let is_its = Leg::from_tuple(&flow.from[side].key) == leg;
        is_its.then_some((number, flow, side))
    }

    /// Reads an element of the table.
    pub(crate) fn read(&self, index: u32) -> io::Result<ls_flow> {
        let mut value = [0; size_of::<ls_flow>()];
        self.map
            .lookup_into(&index.to_ne_bytes(), &mut value, MapFlags::ANY)
            .map_err(to_io)?;
        Ok(ls_flow::from_bytes(&value).unwrap_or_default())
    }
}
