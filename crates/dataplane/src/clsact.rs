//! Programs as filters of the clsact qdisc, where the kernel has no tcx links (before Linux 6.6).
//!
//! A filter stays when the process ends, as a pinned link does. It has no file of its own: whoever attaches it pins the program
//! in the link's place, so that a successor finds the interface. The qdisc stays behind: somebody else may use it, too.

use std::{env, ffi::OsStr, os::fd::BorrowedFd};

use libbpf_rs::{TC_EGRESS, TC_INGRESS, TcAttachPoint, TcHookBuilder};

use crate::attach::Place;

/// Of our filters: behind those that operators number by hand, before those that the kernel numbers (49152 and down).
const PRIORITY: u32 = 0x4c53;

/// Has filters used on kernels that have links, too, if it is `clsact`: for tests, which would else see this way on old
/// kernels only.
const ASKED_BY: &str = "LONGSPLICE_ATTACH";

pub(crate) fn is_asked_for() -> bool {
    env::var_os(ASKED_BY).is_some_and(|way| way == OsStr::new("clsact"))
}

/// Where a filter stands.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Filter {
    pub(crate) ifindex: u32,
    pub(crate) point: TcAttachPoint,
    pub(crate) place: Place,
    /// Tells the filters of several instances apart; not 0.
    pub(crate) handle: u32,
}

impl Filter {
    fn hook(&self, program: BorrowedFd<'_>) -> libbpf_rs::TcHook {
        TcHookBuilder::new(program)
            .ifindex(self.ifindex as i32)
            .replace(true)
            .handle(self.handle)
            .priority(match self.place {
                Place::First => PRIORITY,
                Place::Last => PRIORITY + 1,
            })
            .hook(self.point)
    }

    /// Puts a program there, or in the place of a predecessor's at once.
    pub(crate) fn attach(&self, program: BorrowedFd<'_>) -> libbpf_rs::Result<()> {
        let mut hook = self.hook(program);
        hook.create()?;
        hook.attach().map(drop)
    }

    /// Takes away what is there; that nothing is, or the interface is gone, is no error. `program` is any.
    pub(crate) fn detach(&self, program: BorrowedFd<'_>) {
        let _ = self.hook(program).detach();
    }
}

/// Which hook of clsact a name stands for.
pub(crate) fn point(name: &str) -> TcAttachPoint {
    if name == "egress" { TC_EGRESS } else { TC_INGRESS }
}

/// The handle of an instance's filters (FNV-1a of its name).
pub(crate) fn handle_of(instance: &str) -> u32 {
    let hash = instance.bytes().fold(0x811c_9dc5_u32, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    });
    hash.max(1)
}
