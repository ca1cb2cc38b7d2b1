//! Reads which programs the pinned links of instances hold. That takes no CAP_SYS_ADMIN, which opening a program by its
//! number does.

use std::{collections::HashSet, io, os::fd::AsRawFd, path::Path};

use libbpf_rs::libbpf_sys;

use crate::pins::{self, Pins};

/// Returns the number of the program of a pinned link; `None` if the pin is no tcx link (before Linux 6.6 it is the program
/// of a filter).
pub(crate) fn program_of(pin: &Path) -> io::Result<Option<u32>> {
    let link = pins::open(pin)?;
    // SAFETY: integers and addresses, for which zero is a value.
    let mut info: libbpf_sys::bpf_link_info = unsafe { std::mem::zeroed() };
    let mut len = size_of_val(&info) as u32;
    // SAFETY: a valid descriptor, and a buffer of `len` bytes that outlives the call. Of a program the kernel writes the
    // beginning of another structure, which begins with a type as well.
    let err = unsafe { libbpf_sys::bpf_link_get_info_by_fd(link.as_raw_fd(), &raw mut info, &raw mut len) };
    match err {
        0 => Ok((info.type_ == libbpf_sys::BPF_LINK_TYPE_TCX).then_some(info.prog_id)),
        err => Err(io::Error::from_raw_os_error(-err)),
    }
}

/// Returns the numbers of the programs that all instances have linked.
pub(crate) fn programs() -> HashSet<u32> {
    let pins = Pins::all().into_iter().flat_map(|pins| pins.links());
    pins.filter_map(|pin| program_of(&pin).ok().flatten()).collect()
}
