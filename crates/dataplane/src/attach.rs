//! The programs on interfaces: tcx links where the kernel has them (6.6), clsact filters where not.

use std::{
    ffi::CString,
    io,
    os::{
        fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::Path,
};

use libbpf_rs::{TC_EGRESS, TC_INGRESS, TcHookBuilder, libbpf_sys};

use crate::{error::Error, pins::Pins};

/// Of our clsact filters: high in the order, and unlikely to be somebody else's.
const CLSACT_HANDLE: u32 = 0x4c53;
const CLSACT_PRIORITY: u32 = 0x4c53;

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

impl Programs {
    fn hooks(&self) -> [(Hook, BorrowedFd<'_>); 2] {
        use std::os::fd::AsFd;
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
            if let Some(link) = attach(program, ifindex, (name, kind), Place::First)? {
                pin_link(&link, &pin).map_err(|e| Error::from_io(cannot_attach(name, ifindex), e))?;
            }
        }
        Ok(())
    }

    /// Takes both programs off; an interface that is gone has lost them already.
    pub(crate) fn detach(&self, pins: &Pins, ifindex: u32) {
        for ((name, _), program) in self.hooks() {
            let pin = pins.link(ifindex, name);
            detach_link(&pin);
            if std::fs::remove_file(&pin).is_err() {
                let _ = clsact(program, ifindex, name, Place::First).detach();
            }
        }
    }
}

/// Where a program stands among those of its hook.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// Before the others: what is of our flows is nobody else's.
    First,
    /// Behind them.
    Last,
}

/// A program on the ingress of an interface for as long as this value lives, behind the others there. It ends with the
/// process where the kernel has tcx links (6.6).
#[derive(Debug)]
pub(crate) struct Attached {
    ifindex: u32,
    /// `None`: a clsact filter.
    link: Option<OwnedFd>,
    program: OwnedFd,
}

impl Attached {
    /// Puts the program there.
    pub(crate) fn last(program: BorrowedFd<'_>, ifindex: u32) -> Result<Attached, Error> {
        let link = attach(program, ifindex, INGRESS, Place::Last)?;
        let program = program
            .try_clone_to_owned()
            .map_err(|e| Error::from_io(cannot_attach(INGRESS.0, ifindex), e))?;
        Ok(Attached {
            ifindex,
            link,
            program,
        })
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        use std::os::fd::AsFd;
        match &self.link {
            // SAFETY: a valid descriptor. That the interface is gone, and the program with it, is no error.
            Some(link) => drop(unsafe { libbpf_sys::bpf_link_detach(link.as_raw_fd()) }),
            None => drop(clsact(self.program.as_fd(), self.ifindex, INGRESS.0, Place::Last).detach()),
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
) -> Result<Option<OwnedFd>, Error> {
    let flags = match place {
        Place::First => libbpf_sys::BPF_F_BEFORE,
        Place::Last => libbpf_sys::BPF_F_AFTER,
    };
    match create_link(program, ifindex, kind, flags) {
        Ok(link) => Ok(Some(link)),
        Err(e) if e.raw_os_error() == Some(libc::EINVAL) => attach_clsact(program, ifindex, name, place)
            .map(|()| None)
            .map_err(|e| Error::from_bpf(cannot_attach(name, ifindex), &e)),
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
pub(crate) fn pin_link(link: &OwnedFd, path: &Path) -> io::Result<()> {
    let c = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: a valid descriptor and a string that ends in NUL.
    match unsafe { libbpf_sys::bpf_obj_pin(link.as_raw_fd(), c.as_ptr()) } {
        0 => Ok(()),
        e => Err(io::Error::from_raw_os_error(-e)),
    }
}

/// Takes the program of a pinned link off now: a link whose pin is removed lets go of it some time later only.
pub(crate) fn detach_link(path: &Path) {
    let Ok(c) = CString::new(path.as_os_str().as_bytes()) else {
        return;
    };
    // SAFETY: a string that ends in NUL.
    if let Ok(link) = owned(unsafe { libbpf_sys::bpf_obj_get(c.as_ptr()) }) {
        // SAFETY: a valid descriptor. That the interface is gone, and the program with it, is no error.
        unsafe { libbpf_sys::bpf_link_detach(link.as_raw_fd()) };
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

fn clsact(program: BorrowedFd<'_>, ifindex: u32, name: &str, place: Place) -> libbpf_rs::TcHook {
    TcHookBuilder::new(program)
        .ifindex(ifindex as i32)
        .replace(true)
        .handle(CLSACT_HANDLE)
        .priority(match place {
            Place::First => CLSACT_PRIORITY,
            Place::Last => CLSACT_PRIORITY + 1,
        })
        .hook(if name == "ingress" { TC_INGRESS } else { TC_EGRESS })
}

fn attach_clsact(program: BorrowedFd<'_>, ifindex: u32, name: &str, place: Place) -> libbpf_rs::Result<()> {
    let mut hook = clsact(program, ifindex, name, place);
    hook.create()?;
    hook.attach().map(drop)
}
