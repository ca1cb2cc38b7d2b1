//! Attaches the programs to interfaces: by tcx links if the kernel has them (6.6), else by clsact filters.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    path::Path,
};

use libbpf_rs::libbpf_sys;

use crate::{
    clsact::{self, Filter},
    error::Error,
    hook::Position,
    links,
    order::{self, Foreign},
    pins::{self, Pins, owned},
};

/// Holds the two programs.
#[derive(Debug)]
pub(crate) struct Programs {
    pub(crate) ingress: OwnedFd,
    pub(crate) egress: OwnedFd,
}

/// Name of a hook, and its number for tcx links.
type Hook = (&'static str, u32);
const EGRESS: Hook = ("egress", libbpf_sys::BPF_TCX_EGRESS);
const INGRESS: Hook = ("ingress", libbpf_sys::BPF_TCX_INGRESS);

/// Hooks at which both programs stand.
pub(crate) const HOOKS: [Hook; 2] = [EGRESS, INGRESS];

/// Name of a pin of rules, beside "ingress" and "egress".
const RULES: &str = "rules";

impl Programs {
    fn hooks(&self) -> [(Hook, BorrowedFd<'_>); 2] {
        [(EGRESS, self.egress.as_fd()), (INGRESS, self.ingress.as_fd())]
    }

    /// Attaches both programs to an interface. Replaces a predecessor's programs without losing a packet.
    pub(crate) fn attach(&self, pins: &Pins, ifindex: u32) -> Result<(), Error> {
        for ((name, kind), program) in self.hooks() {
            let pin = pins.link(ifindex, name);
            if update_link(pins, &pin, program).is_ok() {
                continue;
            }
            pins.unpin(&pin);
            let link = attach(program, ifindex, (name, kind), Position::First, pins)?;
            pins.pin(link.as_ref().map_or(program, AsFd::as_fd), pin)
                .map_err(|e| Error::from_io(cannot_attach(name, ifindex), e))?;
        }
        Ok(())
    }

    /// Returns the programs of others that stand before ours on an interface. There are none where ours is absent, as an
    /// interface has those for its framing only.
    pub(crate) fn before(&self, ifindex: u32) -> io::Result<Vec<Foreign>> {
        let mut all = Vec::new();
        for (hook, program) in self.hooks() {
            let before = order::before(order::number(program)?, ifindex, hook)?;
            all.extend(before.into_iter().flatten());
        }
        Ok(all)
    }

    /// Detaches both programs. An interface that is gone has none.
    pub(crate) fn detach(&self, pins: &Pins, ifindex: u32) {
        for ((name, _), program) in self.hooks() {
            if !detach_link(pins, &pins.link(ifindex, name)) {
                filter(ifindex, name, Position::First, pins).detach(program);
            }
        }
    }

    /// Detaches rules that a killed predecessor has left on interfaces as filters.
    pub(crate) fn detach_rules(&self, pins: &Pins) {
        for ifindex in pins.interfaces(RULES) {
            filter(ifindex, INGRESS.0, Position::Last, pins).detach(self.ingress.as_fd());
            pins.unpin(&pins.link(ifindex, RULES));
        }
    }
}

/// Returns true if the pinned programs of an interface still stand at its hooks, by links or as filters. Another tool may
/// have removed the qdisc, or detached a link by force. Fails if a pin or the interface is gone.
pub(crate) fn are_attached(pins: &Pins, ifindex: u32) -> io::Result<bool> {
    for hook in HOOKS {
        let pin = pins.link(ifindex, hook.0);
        let is_there = match links::program_of(&pin)? {
            Some(ours) => order::has(ours, ifindex, hook)?,
            None => filter(ifindex, hook.0, Position::First, pins).has(pins::open(&pin)?.as_fd())?,
        };
        if !is_there {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Keeps the program of rules attached to the ingress of an interface, behind other programs, for as long as this value
/// lives. It ends with the process if the kernel has tcx links (6.6). Without them, if the process was killed, the next
/// one ends it ([`Programs::detach_rules`]).
#[derive(Debug)]
pub(crate) struct Attached {
    ifindex: u32,
    /// Link of the program; `None` for a clsact filter.
    link: Option<OwnedFd>,
    program: OwnedFd,
    pins: Pins,
}

impl Attached {
    /// Attaches the program behind the others.
    pub(crate) fn last(program: BorrowedFd<'_>, ifindex: u32, pins: &Pins) -> Result<Attached, Error> {
        let failed = |e| Error::from_io(cannot_attach(INGRESS.0, ifindex), e);
        let owned = program.try_clone_to_owned().map_err(failed)?;
        let attached = Attached {
            ifindex,
            link: attach(program, ifindex, INGRESS, Position::Last, pins)?,
            program: owned,
            pins: pins.clone(),
        };
        if attached.link.is_none() {
            pins.pin(program, pins.link(ifindex, RULES)).map_err(failed)?;
        }
        Ok(attached)
    }

    /// Returns true if the program still stands at the hook ([`are_attached`]). Fails if the interface is gone.
    pub(crate) fn is_there(&self) -> io::Result<bool> {
        let program = self.program.as_fd();
        match self.link {
            Some(_) => order::has(order::number(program)?, self.ifindex, INGRESS),
            None => filter(self.ifindex, INGRESS.0, Position::Last, &self.pins).has(program),
        }
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        match &self.link {
            // SAFETY: a valid descriptor. An error means that the interface is gone, and the program with it.
            Some(link) => drop(unsafe { libbpf_sys::bpf_link_detach(link.as_raw_fd()) }),
            None => {
                filter(self.ifindex, INGRESS.0, Position::Last, &self.pins).detach(self.program.as_fd());
                self.pins.unpin(&self.pins.link(self.ifindex, RULES));
            }
        }
    }
}

fn cannot_attach(name: &str, ifindex: u32) -> String {
    format!("cannot attach to {name} of interface {ifindex}")
}

/// Attaches a program to a hook. Returns `None` for a clsact filter, which a kernel without tcx links needs.
fn attach(
    program: BorrowedFd<'_>,
    ifindex: u32,
    (name, kind): Hook,
    position: Position,
    pins: &Pins,
) -> Result<Option<OwnedFd>, Error> {
    let as_filter = || {
        filter(ifindex, name, position, pins)
            .attach(program)
            .map(|()| None)
            .map_err(|e| Error::from_bpf(cannot_attach(name, ifindex), &e))
    };
    if clsact::is_asked_for() {
        return as_filter();
    }
    let flags = match position {
        Position::First => libbpf_sys::BPF_F_BEFORE,
        Position::Last => libbpf_sys::BPF_F_AFTER,
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
    // SAFETY: integers and pointers, for which zero is a value; libbpf requires zeros in unused fields.
    let mut opts: libbpf_sys::bpf_link_create_opts = unsafe { std::mem::zeroed() };
    opts.sz = size_of_val(&opts) as libbpf_sys::size_t;
    opts.flags = flags;
    // SAFETY: plain integers, and options that outlive the call.
    let fd =
        unsafe { libbpf_sys::bpf_link_create(program.as_raw_fd(), ifindex as i32, kind, &raw const opts) };
    owned(fd)
}

/// Detaches the program of a pinned link now, and removes the pin. Removing the pin alone would detach it some time later
/// only. Returns true if there was a link; one of a vanished interface is detached already.
pub(crate) fn detach_link(pins: &Pins, pin: &Path) -> bool {
    pins.unpin(pin).is_some_and(|link| {
        // SAFETY: a valid descriptor; the kernel returns EINVAL if it is no link.
        unsafe { libbpf_sys::bpf_link_detach(link.as_raw_fd()) != -libc::EINVAL }
    })
}

/// Replaces the program of a pinned link, and holds the link; fails if there is none or its interface is gone.
pub(crate) fn update_link(pins: &Pins, pin: &Path, program: BorrowedFd<'_>) -> io::Result<()> {
    let link = pins::open(pin)?;
    // SAFETY: two valid descriptors; no options.
    match unsafe { libbpf_sys::bpf_link_update(link.as_raw_fd(), program.as_raw_fd(), std::ptr::null()) } {
        0 => {
            pins.hold(pin.to_owned(), link);
            Ok(())
        }
        e => Err(io::Error::from_raw_os_error(-e)),
    }
}

fn filter(ifindex: u32, name: &str, position: Position, pins: &Pins) -> Filter {
    Filter {
        ifindex,
        point: clsact::point(name),
        position,
        handle: clsact::handle_of(pins.generation()),
    }
}
