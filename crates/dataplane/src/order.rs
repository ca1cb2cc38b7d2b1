//! Looks at the order of programs at a hook: one that stands before ours decides about each packet first.

use std::{
    ffi::CStr,
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
};

use libbpf_rs::libbpf_sys;

use crate::{links, pins::owned};

/// Maximum number of programs at a hook: `BPF_MPROG_MAX` (linux/bpf_mprog.h).
const MOST: usize = 64;

/// Name of a program that this process may not look into.
const UNKNOWN: &str = "?";

/// Program of another owner that stands before ours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Foreign {
    /// Name of the hook, `ingress` or `egress`.
    pub hook: &'static str,
    /// Number of the program, as `bpftool prog` shows it.
    pub id: u32,
    /// Name of the program, at most 15 characters; `?` without CAP_SYS_ADMIN.
    pub name: String,
}

/// Identity of a program.
struct Identity {
    id: u32,
    /// Hash of its instructions: programs of other instances of the same version have the same one.
    tag: [u8; 8],
    name: String,
}

/// Returns the programs that stand before ours at a tcx hook of this kind of an interface; `None`: ours is absent there.
/// Those of other instances pass on what is not theirs, and are left out: links of theirs are pinned, or the instructions
/// are the same. On a kernel without tcx ours is absent.
///
/// Without CAP_SYS_ADMIN programs are seen by their numbers alone: their name is [`UNKNOWN`] then.
pub(crate) fn before(
    ours: u32,
    ifindex: u32,
    (hook, kind): (&'static str, u32),
) -> io::Result<Option<Vec<Foreign>>> {
    let ids = match query(ifindex, kind) {
        Err(e) if matches!(e.raw_os_error(), Some(libc::EINVAL | libc::ENODEV)) => return Ok(None),
        ids => ids?,
    };
    let place = match ids.iter().position(|&id| id == ours) {
        Some(0) => return Ok(Some(Vec::new())),
        Some(place) => place,
        None => return Ok(None),
    };
    let of_instances = links::programs();
    let tag = open(ours)
        .and_then(|ours| identity(ours.as_fd()))
        .ok()
        .map(|ours| ours.tag);
    let mut foreign = Vec::new();
    for &id in ids[..place].iter().filter(|id| !of_instances.contains(id)) {
        let name = match open(id).and_then(|program| identity(program.as_fd())) {
            Ok(its) if Some(its.tag) == tag => continue,
            Ok(its) => its.name,
            // A program may end between the two questions.
            Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => UNKNOWN.into(),
            Err(e) => return Err(e),
        };
        foreign.push(Foreign { hook, id, name });
    }
    Ok(Some(foreign))
}

/// Returns true if a program stands at a tcx hook of this kind of an interface.
pub(crate) fn has(program: u32, ifindex: u32, (_, kind): (&'static str, u32)) -> io::Result<bool> {
    Ok(query(ifindex, kind)?.contains(&program))
}

/// Returns the number of a program.
pub(crate) fn number(program: BorrowedFd<'_>) -> io::Result<u32> {
    Ok(identity(program)?.id)
}

/// Returns the numbers of the programs at a hook, in their order.
fn query(ifindex: u32, kind: u32) -> io::Result<Vec<u32>> {
    let mut ids = vec![0_u32; MOST];
    let mut opts = libbpf_sys::bpf_prog_query_opts {
        sz: size_of::<libbpf_sys::bpf_prog_query_opts>() as libbpf_sys::size_t,
        prog_ids: ids.as_mut_ptr(),
        ..Default::default()
    };
    opts.__bindgen_anon_1.count = MOST as u32;
    // SAFETY: options and an array of `count` elements that outlive the call.
    let err = unsafe { libbpf_sys::bpf_prog_query_opts(ifindex as i32, kind, &raw mut opts) };
    if err < 0 {
        return Err(io::Error::from_raw_os_error(-err));
    }
    // SAFETY: both fields of the union are the same integer.
    ids.truncate(unsafe { opts.__bindgen_anon_1.count } as usize);
    Ok(ids)
}

/// Returns a descriptor of a program.
fn open(id: u32) -> io::Result<OwnedFd> {
    // SAFETY: an integer.
    owned(unsafe { libbpf_sys::bpf_prog_get_fd_by_id(id) })
}

fn identity(program: BorrowedFd<'_>) -> io::Result<Identity> {
    // SAFETY: integers and addresses, for which zero is a value.
    let mut info: libbpf_sys::bpf_prog_info = unsafe { std::mem::zeroed() };
    let mut len = size_of_val(&info) as u32;
    // SAFETY: a valid descriptor, and a buffer of `len` bytes that outlives the call.
    let err =
        unsafe { libbpf_sys::bpf_prog_get_info_by_fd(program.as_raw_fd(), &raw mut info, &raw mut len) };
    if err < 0 {
        return Err(io::Error::from_raw_os_error(-err));
    }
    // SAFETY: the kernel ends the name with a zero, within the array.
    let name = unsafe { CStr::from_ptr(info.name.as_ptr()) };
    Ok(Identity {
        id: info.id,
        tag: info.tag,
        name: name.to_string_lossy().into_owned(),
    })
}
