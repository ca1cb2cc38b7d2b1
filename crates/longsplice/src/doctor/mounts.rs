//! Checks the file system of the pins, and whether it outlives this process.

use std::io;

use super::{BPFFS, Env, Finding, privileges};
use crate::mountinfo::mounts;

/// Remedy where the directory is another user's: capabilities do not open it.
const AS_ROOT: &str =
    "run it as the owner of /sys/fs/bpf (root), with sudo or by packaging/longsplice.service";

/// Returns the device number and the type of the file system at `BPFFS`, as a process sees it.
fn mounted(env: &dyn Env, process: &str) -> Option<(String, String)> {
    let mountinfo = env.read(&format!("/proc/{process}/mountinfo")).ok()?;
    // The last mount covers the others.
    let mount = mounts(&mountinfo).rfind(|mount| mount.point == BPFFS)?;
    Some((mount.device.to_owned(), mount.kind.to_owned()))
}

pub(super) fn bpffs(env: &dyn Env) -> Vec<Finding> {
    let mend = format!("mount -t bpf bpf {BPFFS}");
    vec![match mounted(env, "self") {
        Some((_, fs)) if fs == "bpf" => match env.probe_write(BPFFS) {
            Ok(()) => Finding::good("bpffs", format!("mounted at {BPFFS}")),
            Err(why) => Finding::missing(
                "bpffs",
                format!("mounted at {BPFFS}, where this process cannot keep pins: {why}"),
            )
            .mend(match why.kind() {
                io::ErrorKind::ReadOnlyFilesystem => {
                    "mount it writable for the daemon (in a unit: ReadWritePaths=/sys/fs/bpf)"
                }
                _ => AS_ROOT,
            }),
        },
        Some((_, fs)) => {
            Finding::missing("bpffs", format!("{BPFFS} is a {fs}: pins cannot be kept there")).mend(mend)
        }
        None if privileges::is_admin(env) => {
            Finding::notice("bpffs", format!("not mounted at {BPFFS}; the daemon will try to")).mend(mend)
        }
        None => Finding::missing(
            "bpffs",
            format!("not mounted at {BPFFS}: spliced flows are kept there"),
        )
        .mend(mend),
    }]
}

/// Checks whether pins outlive this process: `ip netns exec` runs its command in a new mount namespace with its own
/// /sys. Pins there vanish with the command, and the flows with them.
pub(super) fn namespace(env: &dyn Env) -> Vec<Finding> {
    let (ours, first) = (mounted(env, "self"), mounted(env, "1"));
    if ours.is_some() && ours == first {
        let text = format!("{BPFFS} is the machine's own: pins outlive this process");
        return vec![Finding::good("mounts", text)];
    }
    // Compare the namespaces themselves if there is no bpffs yet.
    let same = match (env.link("/proc/self/ns/mnt"), env.link("/proc/1/ns/mnt")) {
        (Ok(ours), Ok(first)) => Some(ours == first),
        _ if first.is_some() => Some(false),
        _ => None,
    };
    vec![match same {
        Some(true) => Finding::good("mounts", "not private: pins will outlive this process"),
        Some(false) => Finding::notice(
            "mounts",
            "private (`ip netns exec` makes them so): pins made here vanish with them, and spliced flows too",
        )
        .mend("enter the network namespace with: nsenter --net=/run/netns/NAME longsplice …"),
        None => Finding::notice(
            "mounts",
            "whether pins outlive this process cannot be seen (/proc/1 is closed to it); \
             they vanish with `ip netns exec`, and stay with `nsenter --net`",
        ),
    }]
}
