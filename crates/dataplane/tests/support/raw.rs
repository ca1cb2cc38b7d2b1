//! Reads the slot and the records of a flow in the kernel half, every field: through the pinned maps, in the types that
//! BTF has of bpf/abi.h.

use std::net::IpAddr;

use libbpf_rs::{MapCore, MapFlags, MapHandle};
use longsplice_dataplane::{Leg, Side};

use super::flow::{Flow, leg};

#[allow(
    missing_docs,
    unreachable_pub,
    unsafe_op_in_unsafe_fn,
    clippy::undocumented_unsafe_blocks,
    clippy::unwrap_used,
    clippy::all
)]
mod skel {
    include!(concat!(env!("OUT_DIR"), "/flow_ops.skel.rs"));
}

pub use skel::types;
use types::{ls_direction, ls_flow, ls_leg, ls_record, ls_slot, ls_tuple};

/// Marks a type of bpf/abi.h: bytes, without padding.
trait Plain: Copy + Default {}
impl Plain for ls_slot {}
impl Plain for ls_flow {}
impl Plain for ls_tuple {}

fn bytes<T: Plain>(value: &T) -> &[u8] {
    // SAFETY: `repr(C)` without padding (asserted in bpf/abi.h).
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(value).cast(), size_of::<T>()) }
}

fn value<T: Plain>(bytes: &[u8]) -> T {
    assert_eq!(bytes.len(), size_of::<T>());
    // SAFETY: as long as the type, of which every bit pattern is a value.
    unsafe { bytes.as_ptr().cast::<T>().read_unaligned() }
}

/// Returns the key of a leg's record.
pub fn tuple(leg: Leg) -> ls_tuple {
    let words = |ip: IpAddr| -> [u32; 4] {
        let octets = match ip {
            IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
            IpAddr::V6(v6) => v6.octets(),
        };
        std::array::from_fn(|i| u32::from_ne_bytes(octets[4 * i..][..4].try_into().expect("four bytes")))
    };
    ls_tuple {
        saddr: words(leg.peer.ip()),
        daddr: words(leg.local.ip()),
        sport: leg.peer.port().to_be(),
        dport: leg.local.port().to_be(),
    }
}

/// Holds the pinned maps of an instance.
pub struct Maps {
    flows: MapHandle,
    slots: MapHandle,
}

impl Maps {
    pub fn open(instance: &str) -> Maps {
        let open = |name: &str| {
            let path = format!("/sys/fs/bpf/longsplice-{instance}/{name}");
            MapHandle::from_pinned_path(path).expect("a pinned map")
        };
        Maps {
            flows: open("flows"),
            slots: open("slots"),
        }
    }

    pub fn slot(&self, index: u32) -> ls_slot {
        let found = self.slots.lookup(&index.to_ne_bytes(), MapFlags::ANY);
        value(&found.expect("the map").expect("the slot"))
    }

    pub fn set_slot(&self, index: u32, slot: &ls_slot) {
        let key = index.to_ne_bytes();
        self.slots
            .update(&key, bytes(slot), MapFlags::ANY)
            .expect("written");
    }

    /// Returns the element that has a leg, and its side; `gone`: one whose record was removed.
    fn find(&self, leg: Leg, gone: bool) -> Option<(u32, ls_flow, usize)> {
        let key = tuple(leg);
        (0..self.flows.max_entries()).find_map(|index| {
            let flow: ls_flow = value(&self.flows.lookup(&index.to_ne_bytes(), MapFlags::ANY).ok()??);
            let is_it = |d: &ls_direction| (d.rec.placement == 0) == gone && bytes(&d.key) == bytes(&key);
            Some((index, flow, flow.from.iter().position(is_it)?))
        })
    }

    pub fn record(&self, leg: Leg) -> Option<ls_record> {
        self.find(leg, false).map(|(_, flow, side)| flow.from[side].rec)
    }

    /// Changes a record; `None` removes it.
    pub fn set_record(&self, leg: Leg, record: Option<&ls_record>) {
        let found = self.find(leg, false).or_else(|| self.find(leg, true));
        let Some((index, mut flow, side)) = found else {
            assert!(record.is_none(), "there is no such record");
            return;
        };
        flow.from[side].rec = record.copied().unwrap_or_default();
        self.flows
            .update(&index.to_ne_bytes(), bytes(&flow), MapFlags::ANY)
            .expect("written");
    }
}

impl Flow {
    fn maps(&self) -> Maps {
        Maps::open(&self.plane.instance)
    }

    /// Returns its slot, every field.
    pub fn raw(&self) -> ls_slot {
        self.maps().slot(self.slot().index())
    }

    /// Returns one of the slot's legs, every field.
    pub fn raw_leg(&self, side: Side) -> ls_leg {
        self.raw().leg[side]
    }

    /// Changes the slot without a lock, as another CPU may.
    pub fn edit(&self, edit: impl FnOnce(&mut ls_slot)) {
        let mut slot = self.raw();
        edit(&mut slot);
        self.maps().set_slot(self.slot().index(), &slot);
    }

    /// Returns the record in the table, even if the slot has the current state.
    pub fn raw_record(&self, side: Side) -> Option<ls_record> {
        self.maps().record(leg(side))
    }
}
