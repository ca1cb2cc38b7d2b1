//! The programs on interfaces: tcx links where the kernel has them (6.6), clsact filters where not.

use std::{
    ffi::CString,
    io,
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::Path,
};

use libbpf_rs::libbpf_sys;

use crate::{
    clsact::{self, Filter},
    error::Error,
    pins::Pins,
};

/// The two programs.
#[derive(Debug)]
pub(crate) struct Programs {
    pub(crate) ingress: OwnedFd,
    pub(crate) egress: OwnedFd,
}

/// Its name, and what the kernel calls it for tcx links.
type Hook = (&'static str, u32);
const EGRESS: Hook = ("egress", libbpf_sys::BPF_TCX_EGRESS);
const INGRESS: Hook = ("ingress", libbpf_sys::BPF_TCX_INGRESS);

/// What a pin of rules is called, beside "ingress" and "egress".
const RULES: &str = "rules";

impl Programs {
    fn hooks(&self) -> [(Hook, BorrowedFd<'_>); 2] {
        [(EGRESS, self.egress.as_fd()), (INGRESS, self.ingress.as_fd())]
    }

    /// Puts both programs on an interface, or in the place of a predecessor's, which loses no packet.
    pub(crate) fn attach(&self, pins: &Pins, ifindex: u32) -> Result<(), Error> {
        for ((name, kind), program) in self.hooks() {
            let pin = pins.link(ifindex, name);
            if update_link(&pin, program).is_ok() {
                continue;
            }
            let _ = std::fs::remove_file(&pin);
            let link = attach(program, ifindex, (name, kind), Place::First, pins)?;
            pin_link(link.as_ref().map_or(program, AsFd::as_fd), &pin)
                .map_err(|e| Error::from_io(cannot_attach(name, ifindex), e))?;
        }
        Ok(())
    }

    /// Takes both programs off; an interface that is gone has lost them already.
    pub(crate) fn detach(&self, pins: &Pins, ifindex: u32) {
        for ((name, _), program) in self.hooks() {
            let pin = pins.link(ifindex, name);
            if !detach_link(&pin) {
                filter(ifindex, name, Place::First, pins).detach(program);
            }
            let _ = std::fs::remove_file(&pin);
        }
    }

    /// Takes the rules off the interfaces where a predecessor that was killed has left them, as filters.
    pub(crate) fn detach_rules(&self, pins: &Pins) {
        for ifindex in pins.interfaces(RULES) {
            filter(ifindex, INGRESS.0, Place::Last, pins).detach(self.ingress.as_fd());
            let _ = std::fs::remove_file(pins.link(ifindex, RULES));
        }
    }
}

/// Where a program stands among those of its hook.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// Before the others: what is of our flows is nobody else's.
    First,
    /// Behind them.
    Last,
}

/// The program of rules on the ingress of an interface for as long as this value lives, behind the others there. It ends with
/// the process where the kernel has tcx links (6.6); where not, and the process was killed, the next one ends it
/// ([`Programs::detach_rules`]).
#[derive(Debug)]
pub(crate) struct Attached {
    ifindex: u32,
    /// `None`: a clsact filter.
    link: Option<OwnedFd>,
    program: OwnedFd,
    pins: Pins,
}

impl Attached {
    /// Puts the program there.
    pub(crate) fn last(program: BorrowedFd<'_>, ifindex: u32, pins: &Pins) -> Result<Attached, Error> {
        let failed = |e| Error::from_io(cannot_attach(INGRESS.0, ifindex), e);
        let owned = program.try_clone_to_owned().map_err(failed)?;
        let attached = Attached {
            ifindex,
            link: attach(program, ifindex, INGRESS, Place::Last, pins)?,
            program: owned,
            pins: pins.clone(),
        };
        if attached.link.is_none() {
            let pin = pins.link(ifindex, RULES);
            let _ = std::fs::remove_file(&pin);
            pin_link(program, &pin).map_err(failed)?;
        }
        Ok(attached)
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        match &self.link {
            // SAFETY: a valid descriptor. That the interface is gone, and the program with it, is no error.
            Some(link) => drop(unsafe { libbpf_sys::bpf_link_detach(link.as_raw_fd()) }),
            None => {
                filter(self.ifindex, INGRESS.0, Place::Last, &self.pins).detach(self.program.as_fd());
                let _ = std::fs::remove_file(self.pins.link(self.ifindex, RULES));
            }
        }
    }
}

fn cannot_attach(name: &str, ifindex: u32) -> String {
    format!("cannot attach to {name} of interface {ifindex}")
}

/// Puts a program on a hook. `None`: as a clsact filter, where the kernel has no tcx links.
fn attach(
    program: BorrowedFd<'_>,
    ifindex: u32,
    (name, kind): Hook,
    place: Place,
    pins: &Pins,
) -> Result<Option<OwnedFd>, Error> {
    let as_filter = || {
        filter(ifindex, name, place, pins)
            .attach(program)
            .map(|()| None)
            .map_err(|e| Error::from_bpf(cannot_attach(name, ifindex), &e))
    };
    if clsact::is_asked_for() {
        return as_filter();
    }
    let flags = match place {
        Place::First => libbpf_sys::BPF_F_BEFORE,
        Place::Last => libbpf_sys::BPF_F_AFTER,
    };
    match create_link(program, ifindex, kind, flags) {
        Ok(link) => Ok(Some(link)),
        Err(e) if e.raw_os_error() == Some(libc::EINVAL) => as_filter(),
        Err(e) => Err(Error::from_io(cannot_attach(name, ifindex), e)),
    }
}

/// Attaches a program to an interface's hook of this kind (`BPF_TCX_INGRESS`…), by a link.
pub(crate) fn create_link(
    program: BorrowedFd<'_>,
    ifindex: u32,
    kind: u32,
    flags: u32,
) -> io::Result<OwnedFd> {
    // SAFETY: integers and pointers, for which zero is a value; libbpf insists on zeros wherever nothing is said.
    let mut opts: libbpf_sys::bpf_link_create_opts = unsafe { std::mem::zeroed() };
    opts.sz = size_of_val(&opts) as libbpf_sys::size_t;
    opts.flags = flags;
    // SAFETY: plain integers, and options that outlive the call.
    let fd =
        unsafe { libbpf_sys::bpf_link_create(program.as_raw_fd(), ifindex as i32, kind, &raw const opts) };
    owned(fd)
}

/// What libbpf gives back: a new descriptor, or a negative error.
fn owned(fd: i32) -> io::Result<OwnedFd> {
    if fd < 0 {
        return Err(io::Error::from_raw_os_error(-fd));
    }
    // SAFETY: the kernel gave us this descriptor, and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Has a link outlive this process.
pub(crate) fn pin_link(link: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    let c = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: a valid descriptor and a string that ends in NUL.
    match unsafe { libbpf_sys::bpf_obj_pin(link.as_raw_fd(), c.as_ptr()) } {
        0 => Ok(()),
        e => Err(io::Error::from_raw_os_error(-e)),
    }
}

/// Takes the program of a pinned link off now: a link whose pin is removed lets go of it some time later only. Whether there
/// was one; an interface that is gone has let go of it.
pub(crate) fn detach_link(path: &Path) -> bool {
    let Ok(c) = CString::new(path.as_os_str().as_bytes()) else {
        return false;
    };
    // SAFETY: a string that ends in NUL.
    match owned(unsafe { libbpf_sys::bpf_obj_get(c.as_ptr()) }) {
        // SAFETY: a valid descriptor; the kernel says EINVAL where it is not a link's.
        Ok(link) => unsafe { libbpf_sys::bpf_link_detach(link.as_raw_fd()) != -libc::EINVAL },
        Err(_) => false,
    }
}

/// Replaces the program of a pinned link; fails if there is none or its interface is gone.
pub(crate) fn update_link(path: &Path, program: BorrowedFd<'_>) -> io::Result<()> {
    let c = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: a string that ends in NUL.
    let link = owned(unsafe { libbpf_sys::bpf_obj_get(c.as_ptr()) })?;
    // SAFETY: two valid descriptors; no options.
    match unsafe { libbpf_sys::bpf_link_update(link.as_raw_fd(), program.as_raw_fd(), std::ptr::null()) } {
        0 => Ok(()),
        e => Err(io::Error::from_raw_os_error(-e)),
    }
}

fn filter(ifindex: u32, name: &str, place: Place, pins: &Pins) -> Filter {
    Filter {
        ifindex,
        point: clsact::point(name),
        place,
        handle: clsact::handle_of(pins.instance()),
    }
}
