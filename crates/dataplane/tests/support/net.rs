//! Makes a network namespace with a guard: the forwarder's, with a link to each end.

use std::{
    cell::Cell,
    fs::File,
    marker::PhantomData,
    os::unix::fs::MetadataExt,
    process::{Command, Stdio},
};

use longsplice_dataplane::{Family, Side};
use nix::{
    sched::{CloneFlags, setns, unshare},
    time::{ClockId, clock_gettime},
};

use super::{
    FAMILY, choose,
    family::{choose_at, family_of},
    flow::leg,
    pins,
};

/// MAC addresses of the forwarder toward the client and the server, and theirs.
pub const OUR_MAC: [[u8; 6]; 2] = [[2, 0, 0, 0, 1, 1], [2, 0, 0, 0, 2, 1]];
pub const PEER_MAC: [[u8; 6]; 2] = [[2, 0, 0, 0, 1, 2], [2, 0, 0, 0, 2, 2]];

/// Interfaces of the forwarder.
const OUR_DEV: [&str; 2] = ["a0", "b0"];
/// Networks of the links.
const NETS: [&str; 2] = [
    choose_at(Side::Client, "198.18.1.0/24", "2001:db8:1::/64"),
    choose_at(Side::Server, "198.18.2.0/24", "2001:db8:2::/64"),
];
/// Prefix length of the address of a host.
pub const HOST_BITS: u8 = choose(32, 128);
/// Makes an address usable at once.
pub const NODAD: &str = choose("", "nodad");

const NAMESPACE: &str = "/proc/thread-self/ns/net";

/// Moves the thread into a namespace of its own, which vanishes with this value: nothing has to be named or removed. Two
/// veth pairs: `a0` and `b0` are the forwarder's interfaces toward client and server, frames to the ends arrive at `a1`
/// and `b1`. Neighbors are configured, as no host answers there.
pub struct Net {
    home: File,
    own: File,
    /// True if it was not changed since it was made.
    pristine: Cell<bool>,
    inode: u64,
    /// Marks the guard as this thread's.
    not_send: PhantomData<*const ()>,
}

impl Net {
    pub fn new() -> Net {
        pins::enter();
        let home = open();
        unshare(CloneFlags::CLONE_NEWNET).expect("these tests need root");
        let net = Net::at(home, open());
        net.ip("link set lo up
             link add a0 address 02:00:00:00:01:01 type veth peer name a1 address 02:00:00:00:01:02
             link add b0 address 02:00:00:00:02:01 type veth peer name b1 address 02:00:00:00:02:02
             link set a0 up
             link set a1 up
             link set b0 up
             link set b1 up");
        for side in Side::BOTH {
            let (ours, dev) = (own_address(side), OUR_DEV[side]);
            let nodad = choose_at(side, "", "nodad");
            net.ip_of(family_of(side), &format!("address add {ours} dev {dev} {nodad}"));
            net.add_neighbour(side);
        }
        net.pristine.set(true);
        net
    }

    /// Enters a namespace that a thread has left, in its original state.
    pub fn enter(own: File) -> Net {
        pins::enter();
        let home = open();
        setns(&own, CloneFlags::CLONE_NEWNET).expect("a namespace that was left");
        Net::at(home, own)
    }

    /// Leaves it for another thread.
    pub fn leave(self) -> File {
        self.own.try_clone().expect("a descriptor")
    }

    fn at(home: File, own: File) -> Net {
        Net {
            home,
            own,
            pristine: Cell::new(true),
            inode: current(),
            not_send: PhantomData,
        }
    }

    /// Returns true if no test has changed anything.
    pub fn is_pristine(&self) -> bool {
        self.pristine.get()
    }

    /// Returns true if the thread is in this namespace.
    pub fn is_here(&self) -> bool {
        self.inode == current()
    }

    /// Returns the number by which the kernel tells it from others.
    pub fn inode(&self) -> u64 {
        self.inode
    }

    /// Runs lines of `ip`.
    pub fn ip(&self, lines: &str) {
        self.ip_of(FAMILY, lines);
    }

    /// Runs lines of `ip -6`.
    pub fn ip_v6(&self, lines: &str) {
        self.ip_of(Family::V6, lines);
    }

    /// Runs lines of `ip` for a version of IP.
    pub fn ip_of(&self, family: Family, lines: &str) {
        use std::io::Write;
        let family = match family {
            Family::V4 => "-4",
            Family::V6 => "-6",
        };
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
        wait_for_a_tick();
    }

    /// Makes the stack ignore packets that are delivered to it: it would answer for sockets that are not there.
    pub fn deaf(&self) {
        for side in Side::BOTH {
            let (ours, net, dev) = (own_address(side), NETS[side], OUR_DEV[side]);
            self.ip_of(
                family_of(side),
                &format!(
                    "address del {ours} dev {dev}
                     route add {net} dev {dev}"
                ),
            );
            self.add_neighbour(side);
        }
    }

    /// Configures the end of a side as a neighbor on its link.
    pub fn add_neighbour(&self, side: Side) {
        let mac = PEER_MAC[side].map(|byte| format!("{byte:02x}")).join(":");
        let dev = OUR_DEV[side];
        let peer = leg(side).peer.ip();
        self.ip_of(
            family_of(side),
            &format!("neighbour replace {peer} lladdr {mac} dev {dev}"),
        );
    }

    /// Removes the end of a side from the neighbors.
    pub fn del_neighbour(&self, side: Side) {
        let dev = OUR_DEV[side];
        self.ip(&format!("neighbour del {} dev {dev}", leg(side).peer.ip()));
    }

    /// Makes the end of a side take frames that are redirected to it in XDP, or not: on veth, by GRO.
    pub fn take_frames(&self, side: Side, on: bool) {
        let gro = if on { "on" } else { "off" };
        let end = ["a1", "b1"][side];
        let done = Command::new("ethtool").args(["-K", end, "gro", gro]).status();
        assert!(done.expect("ethtool").success(), "{end} gro {gro}");
    }

    /// Switches features of an interface, as `ethtool -K` has them.
    pub fn features(&self, dev: &str, features: &str) {
        self.pristine.set(false);
        let mut ethtool = Command::new("ethtool");
        let done = ethtool.args(["-K", dev]).args(features.split(' ')).status();
        assert!(done.expect("ethtool").success(), "{dev} {features}");
    }

    /// Sets a sysctl of the namespace.
    pub fn sysctl(&self, path: &str, value: &str) {
        self.pristine.set(false);
        std::fs::write(format!("/proc/sys/net/{path}"), value).expect(path);
        wait_for_a_tick();
    }

    pub fn ifindex(&self, name: &str) -> u32 {
        nix::net::if_::if_nametoindex(name).expect(name)
    }
}

/// Returns the forwarder's address on a link, with the prefix length of the link.
fn own_address(side: Side) -> String {
    format!("{}/{}", leg(side).local.ip(), choose_at(side, 24, 64))
}

/// Waits until the programs' remembered routes have expired.
fn wait_for_a_tick() {
    let now = || clock_gettime(ClockId::CLOCK_MONOTONIC_COARSE).expect("a clock");
    let before = now();
    while now() == before {
        std::thread::yield_now();
    }
}

/// Opens the namespace that this thread is in.
fn open() -> File {
    File::open(NAMESPACE).expect("a network namespace")
}

/// Returns the inode of the namespace that this thread is in.
fn current() -> u64 {
    std::fs::metadata(NAMESPACE).expect("a network namespace").ino()
}

impl Drop for Net {
    fn drop(&mut self) {
        setns(&self.home, CloneFlags::CLONE_NEWNET).expect("back home");
    }
}
