//! Reads the table of a generation that may be of another version.

use std::collections::HashSet;

use libbpf_rs::{MapCore, MapFlags, MapHandle};

use crate::{
    abi::{Leg, PerSide, Pod, Side, ls_flow, ls_record},
    error::Error,
    flows::{is_identity, is_left, is_present, placement},
    layout::{Conversion, Converted, Layout},
    mode::Mode,
    pins::Pins,
    skel::types::{ls_placement, ls_trait},
};

/// Number of elements that one system call returns.
const BATCH: u32 = 1024;

/// Traits that this version knows: a flow with another one is not ours to serve.
const TRAITS: u32 = ls_trait::LS_SIDE_SERVER.0
    | ls_trait::LS_TIMESTAMPS.0
    | ls_trait::LS_BLANK_SACK.0
    | ls_trait::LS_FAR_LOCAL.0
    | ls_trait::LS_SACK.0
    | ls_trait::LS_ECN.0
    | ls_trait::LS_IDENTITY.0
    | ls_trait::LS_FAMILIES.0;

/// Names under which the record of a side is found in a slot, and in an element of the table.
const IN_SLOT: [(&str, &str); 2] = [("leg.0.rec.", "from.0.rec."), ("leg.1.rec.", "from.1.rec.")];

/// Names of the field that tells if a direction exists.
const PLACEMENT: [&str; 2] = ["from.0.rec.placement", "from.1.rec.placement"];

/// Table of such a generation.
#[derive(Debug)]
pub(crate) struct Foreign {
    flows: MapHandle,
    slots: MapHandle,
    flow_layout: Layout,
    slot_layout: Layout,
    to_flow: Conversion,
    /// From a slot to the records of an element.
    to_records: Conversion,
}

/// Present state of an element.
#[derive(Debug)]
pub(crate) enum Element {
    /// Element without a flow.
    Vacant,
    /// Flow that ended with the sockets of its process, or is there by half: the process died on the way.
    Lost,
    /// Spliced flow, or legs that stand alone, in our layout; without slots.
    Flow(Box<ls_flow>),
    /// Flow that this version cannot serve; the numbers that it can read.
    Unknown(Box<ls_flow>),
}

impl Foreign {
    /// Opens the table. `ours` is our own map `flows`. Fails if its layout cannot be read.
    pub(crate) fn open(pins: &Pins, ours: &MapHandle) -> Result<Foreign, Error> {
        let (flows, slots) = (pins.open_map("flows")?, pins.open_map("slots")?);
        let (flow_layout, slot_layout) = (Layout::of_values(&flows)?, Layout::of_values(&slots)?);
        let ours = Layout::of_values(ours)?;
        Ok(Foreign {
            to_flow: Conversion::new(&flow_layout, &ours),
            to_records: Conversion::new(&slot_layout.renamed(&IN_SLOT), &ours),
            flows,
            slots,
            flow_layout,
            slot_layout,
        })
    }

    /// Calls `each` for every element: its index and its bytes.
    pub(crate) fn scan(&self, mut each: impl FnMut(u32, &[u8])) -> Result<(), Error> {
        let all = self.flows.lookup_batch(BATCH, MapFlags::ANY, MapFlags::ANY);
        for (key, value) in all.map_err(|e| Error::from_bpf("cannot read a predecessor's flows", &e))? {
            if let Some(key) = key.first_chunk() {
                each(u32::from_ne_bytes(*key), &value);
            }
        }
        Ok(())
    }

    /// Returns the legs of all its flows.
    pub(crate) fn legs(&self) -> Result<HashSet<Leg>, Error> {
        let mut legs = HashSet::new();
        let unused = vec![0; self.flows.value_size() as usize];
        self.scan(|_, value| {
            if value == unused {
                return;
            }
            let Some(flow) = ls_flow::from_bytes(&self.to_flow.convert(value).value) else {
                return;
            };
            let present = Side::BOTH.map(|side| &flow.from[side]);
            let present = present.into_iter().filter(|from| is_present(&from.rec));
            legs.extend(present.map(|from| Leg::from_tuple(&from.key)));
        })?;
        Ok(legs)
    }

    /// Reads an element once more.
    pub(crate) fn read(&self, index: u32) -> Option<Vec<u8>> {
        self.flows
            .lookup(&index.to_ne_bytes(), MapFlags::ANY)
            .ok()
            .flatten()
    }

    /// Returns the state of an element.
    pub(crate) fn state(&self, value: &[u8]) -> Element {
        let Converted { value, mut is_whole } = self.to_flow.convert(value);
        let Some(mut flow) = ls_flow::from_bytes(&value) else {
            return Element::Vacant;
        };
        let placements = PerSide::from_fn(|side| placement(&flow.from[side].rec));
        if placements
            .iter()
            .all(|&placement| placement == ls_placement::LS_NONE)
        {
            return Element::Vacant;
        }
        if is_left(&flow) {
            return Element::Lost;
        }
        let legs = PerSide::from_fn(|side| Leg::from_tuple(&flow.from[side].key));
        for side in Side::BOTH {
            let direction = &mut flow.from[side];
            direction.next = 0;
            if placements[side] == ls_placement::LS_SLOTTED {
                let Some((rec, whole)) = self.in_slot(side, &direction.rec) else {
                    return Element::Lost;
                };
                direction.rec = rec;
                is_whole &= whole;
            }
            let rec = &mut direction.rec;
            if placement(rec) == ls_placement::LS_DETACHED {
                let identity = is_identity(legs[side], legs[side.other()], rec);
                let bit = ls_trait::LS_IDENTITY.0 as u8;
                rec.traits = rec.traits & !bit | if identity { bit } else { 0 };
            }
            is_whole &= u32::from(rec.traits) & !TRAITS == 0;
        }
        match is_whole {
            true => Element::Flow(Box::new(flow)),
            false => Element::Unknown(Box::new(flow)),
        }
    }

    /// Returns the record of a dormant flow's side as a detached one, and true if all of it has a place; `None` if the
    /// flow is not spliced.
    fn in_slot(&self, side: Side, listed: &ls_record) -> Option<(ls_record, bool)> {
        let slot = self
            .slots
            .lookup(&listed.r#where.to_ne_bytes(), MapFlags::ANY)
            .ok()??;
        let mode = self.slot_layout.read(&slot, "mode")?;
        let is_spliced = matches!(
            Mode::from_raw(mode as u32),
            Some(Mode::Final | Mode::Freeze | Mode::Moved)
        );
        if !is_spliced || self.slot_layout.read(&slot, "serial") != Some(listed.serial.into()) {
            return None;
        }
        let Converted { value, is_whole } = self.to_records.convert(&slot);
        let rec = ls_flow::from_bytes(&value)?.from[side].rec;
        let armed = rec.placement & ls_placement::LS_ARMED.0 as u8;
        let rec = ls_record {
            placement: ls_placement::LS_DETACHED.0 as u8 | armed,
            r#where: 0,
            serial: listed.serial,
            traits: listed.traits,
            mss: listed.mss,
            ..rec
        };
        Some((rec, is_whole))
    }

    /// Ends the predecessor's part in a flow that another table has now, or none.
    pub(crate) fn clear(&self, index: u32) {
        let Some(mut value) = self.read(index) else { return };
        PLACEMENT
            .iter()
            .for_each(|field| self.flow_layout.clear(&mut value, field));
        let cleared = self.flows.update(&index.to_ne_bytes(), &value, MapFlags::ANY);
        if let Err(error) = cleared {
            tracing::error!(%error, index, "cannot remove a predecessor's flow");
        }
    }
}
