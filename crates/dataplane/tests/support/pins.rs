//! Mounts a BPF file system for this process alone: it holds the pins of its tests, and goes with the process however it
//! ends.

use std::{fs::File, sync::OnceLock};

use nix::{
    mount::{MsFlags, mount},
    sched::{CloneFlags, setns, unshare},
};

/// Mount namespace of the tests.
static MOUNTS: OnceLock<File> = OnceLock::new();

/// Moves this thread to the mount namespace of the tests, so that it pins there.
pub fn enter() {
    let mut made = false;
    let mounts = MOUNTS.get_or_init(|| {
        made = true;
        make()
    });
    if !made {
        // A thread can change its mount namespace only if it shares no working directory with others.
        unshare(CloneFlags::CLONE_FS).expect("a working directory of its own");
        setns(mounts, CloneFlags::CLONE_NEWNS).expect("the mounts of the tests");
    }
}

fn make() -> File {
    unshare(CloneFlags::CLONE_NEWNS).expect("these tests need root");
    let none = None::<&str>;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).expect("mounts of their own");
    mount(Some("bpf"), "/sys/fs/bpf", Some("bpf"), MsFlags::empty(), none).expect("a BPF file system");
    File::open("/proc/thread-self/ns/mnt").expect("a mount namespace")
}
