//! Looks at the order of programs where instances are attached, from outside their processes.

use std::{
    collections::{BTreeMap, HashSet},
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd},
};

use libbpf_rs::libbpf_sys;

use crate::{
    attach::HOOKS,
    load::pinned_meta,
    order::{self, Foreign},
    pins::{self, Pins},
};

/// Reads from the pins of all instances in this network namespace which programs stand before theirs. Returns the
/// interfaces to which any of them is attached, with these programs. A kernel without tcx has none.
pub fn before_instances() -> BTreeMap<u32, Vec<Foreign>> {
    let namespace = pins::network_namespace().ok();
    let is_here = |pins: &Pins| pinned_meta(pins).is_ok_and(|meta| Some(meta.netns) == namespace);
    let mut attached = Vec::new();
    for pins in Pins::all().into_iter().filter(is_here) {
        for hook in HOOKS {
            let interfaces = pins.interfaces(hook.0).into_iter();
            attached.extend(interfaces.filter_map(|ifindex| {
                let link = pins::open(&pins.link(ifindex, hook.0)).ok()?;
                Some((ifindex, hook, program_of(link.as_fd()).ok()?))
            }));
        }
    }
    let ours: HashSet<u32> = attached.iter().map(|(_, _, id)| *id).collect();
    let mut all = BTreeMap::<u32, Vec<Foreign>>::new();
    for (ifindex, hook, id) in attached {
        let found = order::open(id).and_then(|program| order::before(program.as_fd(), ifindex, hook));
        let on_it = all.entry(ifindex).or_default();
        for foreign in found.unwrap_or_default() {
            if !ours.contains(&foreign.id) && !on_it.contains(&foreign) {
                on_it.push(foreign);
            }
        }
    }
    all
}

/// Returns the number of the program of a link.
fn program_of(link: BorrowedFd<'_>) -> io::Result<u32> {
    // SAFETY: integers and addresses, for which zero is a value.
    let mut info: libbpf_sys::bpf_link_info = unsafe { std::mem::zeroed() };
    let mut len = size_of_val(&info) as u32;
    // SAFETY: a valid descriptor, and a buffer of `len` bytes that outlives the call.
    let err = unsafe { libbpf_sys::bpf_link_get_info_by_fd(link.as_raw_fd(), &raw mut info, &raw mut len) };
    match err {
        0 => Ok(info.prog_id),
        err => Err(io::Error::from_raw_os_error(-err)),
    }
}
