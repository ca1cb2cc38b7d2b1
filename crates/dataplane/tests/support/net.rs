//! A network namespace as a guard: the forwarder's, with a link to each end.

use std::{
    cell::Cell,
    fs::File,
    marker::PhantomData,
    os::unix::fs::MetadataExt,
    process::{Command, Stdio},
};

use nix::sched::{CloneFlags, setns, unshare};

/// The forwarder's MAC address toward the client and the server, and theirs.
pub const OUR_MAC: [[u8; 6]; 2] = [[2, 0, 0, 0, 1, 1], [2, 0, 0, 0, 2, 1]];
pub const PEER_MAC: [[u8; 6]; 2] = [[2, 0, 0, 0, 1, 2], [2, 0, 0, 0, 2, 2]];

const NAMESPACE: &str = "/proc/thread-self/ns/net";

/// The thread is in a namespace of its own, which vanishes with this value: nothing has to be named or removed. Two
/// veth pairs: `a0` and `b0` are the forwarder's interfaces toward client and server, frames to the ends arrive at `a1`
/// and `b1`. Neighbours are known, as nobody answers there.
pub struct Net {
    home: File,
    /// It is as it was made.
    pristine: Cell<bool>,
    inode: u64,
    /// A guard of this thread.
    not_send: PhantomData<*const ()>,
}

impl Net {
    pub fn new() -> Net {
        let home = File::open(NAMESPACE).expect("a network namespace");
        unshare(CloneFlags::CLONE_NEWNET).expect("these tests need root");
        let net = Net {
            home,
            pristine: Cell::new(true),
            inode: current(),
            not_send: PhantomData,
        };
        net.ip("link set lo up
             link add a0 address 02:00:00:00:01:01 type veth peer name a1 address 02:00:00:00:01:02
             link add b0 address 02:00:00:00:02:01 type veth peer name b1 address 02:00:00:00:02:02
             address add 198.18.1.1/24 dev a0
             address add 198.18.2.1/24 dev b0
             link set a0 up
             link set a1 up
             link set b0 up
             link set b1 up
             neighbour replace 198.18.1.2 lladdr 02:00:00:00:01:02 dev a0
             neighbour replace 198.18.2.2 lladdr 02:00:00:00:02:02 dev b0");
        net.pristine.set(true);
        net
    }

    /// Whether nobody has changed anything, and the thread is there.
    pub fn is_pristine(&self) -> bool {
        self.pristine.get() && self.inode == current()
    }

    /// Runs lines of `ip`.
    pub fn ip(&self, lines: &str) {
        self.ip_of("-4", lines);
    }

    /// Runs lines of `ip -6`.
    pub fn ip_v6(&self, lines: &str) {
        self.ip_of("-6", lines);
    }

    fn ip_of(&self, family: &str, lines: &str) {
        use std::io::Write;
        self.pristine.set(false);
        let mut ip = Command::new("ip")
            .args([family, "-batch", "-"])
            .stdin(Stdio::piped())
            .spawn()
            .expect("ip");
        let mut stdin = ip.stdin.take().expect("piped");
        stdin.write_all(lines.as_bytes()).expect("ip reads");
        drop(stdin);
        assert!(ip.wait().expect("ip").success(), "{lines}");
    }

    /// Has the stack ignore what is delivered to it: it would answer for sockets that are not there.
    pub fn deaf(&self) {
        self.ip("address del 198.18.1.1/24 dev a0
             address del 198.18.2.1/24 dev b0
             route add 198.18.1.0/24 dev a0
             route add 198.18.2.0/24 dev b0
             neighbour replace 198.18.1.2 lladdr 02:00:00:00:01:02 dev a0
             neighbour replace 198.18.2.2 lladdr 02:00:00:00:02:02 dev b0");
    }

    /// Sets a sysctl of the namespace.
    pub fn sysctl(&self, path: &str, value: &str) {
        self.pristine.set(false);
        std::fs::write(format!("/proc/sys/net/{path}"), value).expect(path);
    }

    pub fn ifindex(&self, name: &str) -> u32 {
        nix::net::if_::if_nametoindex(name).expect(name)
    }
}

/// The namespace that this thread is in.
fn current() -> u64 {
    std::fs::metadata(NAMESPACE).expect("a network namespace").ino()
}

impl Drop for Net {
    fn drop(&mut self) {
        setns(&self.home, CloneFlags::CLONE_NEWNET).expect("back home");
    }
}
