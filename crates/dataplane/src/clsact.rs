//! Attaches programs as filters of the clsact qdisc, if the kernel has no tcx links (before Linux 6.6).
//!
//! A filter stays when the process ends, as a pinned link does. It has no file of its own, so its program is pinned in
//! the link's place, for a successor to find the interface. The qdisc stays behind: other programs may use it, too.

use std::{env, ffi::OsStr, io, os::fd::BorrowedFd};

use libbpf_rs::{ErrorKind, TC_EGRESS, TC_INGRESS, TcAttachPoint, TcHookBuilder};

use crate::{hook::Position, order};

/// Priority of our filters: behind those that operators number by hand, before those that the kernel numbers (49152 and
/// down).
const PRIORITY: u32 = 0x4c53;

/// Environment variable that forces filters, if it is `clsact`, on kernels that have links, too. For tests, which could
/// otherwise run this path on old kernels only.
const ASKED_BY: &str = "LONGSPLICE_ATTACH";

pub(crate) fn is_asked_for() -> bool {
    env::var_os(ASKED_BY).is_some_and(|way| way == OsStr::new("clsact"))
}

/// Describes the position of a filter.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Filter {
    pub(crate) ifindex: u32,
    pub(crate) point: TcAttachPoint,
    pub(crate) position: Position,
    /// Handle that tells the filters of several instances apart; not 0.
    pub(crate) handle: u32,
}

impl Filter {
    fn hook(&self, program: BorrowedFd<'_>) -> libbpf_rs::TcHook {
        TcHookBuilder::new(program)
            .ifindex(self.ifindex as i32)
            .replace(true)
            .handle(self.handle)
            .priority(match self.position {
                Position::First => PRIORITY,
                Position::Last => PRIORITY + 1,
            })
            .hook(self.point)
    }

    /// Attaches a program, or replaces a predecessor's at once.
    pub(crate) fn attach(&self, program: BorrowedFd<'_>) -> libbpf_rs::Result<()> {
        let mut hook = self.hook(program);
        hook.create()?;
        hook.attach().map(drop)
    }

    /// Returns true if the filter is there, with this program. Fails if the interface is gone.
    pub(crate) fn has(&self, program: BorrowedFd<'_>) -> io::Result<bool> {
        match self.hook(program).query() {
            Ok(id) => Ok(id == order::number(program)?),
            // The kernel answers "invalid" without the qdisc or its chain.
            Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::InvalidInput) => Ok(false),
            Err(e) => Err(io::Error::other(e)),
        }
    }

    /// Removes the filter. Ignores errors: there may be none, or the interface may be gone. `program` may be any.
    pub(crate) fn detach(&self, program: BorrowedFd<'_>) {
        let _ = self.hook(program).detach();
    }
}

/// Returns the hook of clsact with this name.
pub(crate) fn point(name: &str) -> TcAttachPoint {
    if name == "egress" { TC_EGRESS } else { TC_INGRESS }
}

/// Returns the handle of a generation's filters (FNV-1a of its name).
pub(crate) fn handle_of(generation: &str) -> u32 {
    let hash = generation.bytes().fold(0x811c_9dc5_u32, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    });
    hash.max(1)
}
