//! Wraps the types shared with the kernel half, generated from its BTF (bpf/abi.h), in safe types.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use longsplice_core::family::mapped;

use crate::skel::types;

pub(crate) use types::{
    ls_buckets, ls_catch_up, ls_entry, ls_event, ls_flow, ls_handshake, ls_inspection, ls_inspections,
    ls_leg, ls_mark, ls_meta, ls_move, ls_record, ls_ruled, ls_ruling, ls_slot, ls_tuple, ls_wake,
};

/// Equals LS_RULED of bpf/abi.h: a bit of the burst in a record.
pub(crate) const LS_RULED: u32 = 1 << 31;

/// Version of the layout: pinned maps carry it.
pub const ABI_VERSION: u32 = types::ls_abi::LS_ABI_VERSION.0;

/// Marks plain old data that the kernel half reads and writes as bytes.
///
/// # Safety
/// The type must be `repr(C)`, without padding, and valid for every bit pattern.
pub(crate) unsafe trait Pod: Copy + Default {
    /// Returns the value's bytes.
    fn bytes(&self) -> &[u8] {
        // SAFETY: the trait promises that every byte of the value is initialized.
        unsafe { std::slice::from_raw_parts(std::ptr::from_ref(self).cast(), size_of::<Self>()) }
    }

    /// Reads a value from its bytes; `None` if there are too few.
    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        // SAFETY: there are enough bytes, the read is unaligned, and every bit pattern is a value.
        (bytes.len() >= size_of::<Self>()).then(|| unsafe { bytes.as_ptr().cast::<Self>().read_unaligned() })
    }
}

macro_rules! pod {
    ($($t:ty),*) => {$(
        // SAFETY: generated `repr(C)` from BTF; bpf/abi.h and bpf/rules_abi.h assert that there is no padding.
        unsafe impl Pod for $t {}
    )*};
}
pub(crate) use pod;
pod!(
    ls_catch_up,
    ls_event,
    ls_flow,
    ls_handshake,
    ls_entry,
    ls_leg,
    ls_mark,
    ls_meta,
    ls_move,
    ls_inspection,
    ls_inspections,
    ls_record,
    ls_ruling,
    ls_tuple,
    ls_wake
);
/// Bytes that each flow takes in the kernel's table, allocated in advance; if the number of flows is no power of two, up
/// to eight more.
pub const FLOW_BYTES: usize = size_of::<ls_flow>() + size_of::<ls_buckets>();

// Assert the sizes that bpf/abi.h asserts: a changed layout must be changed here, too.
const _: () = {
    let (flow, slot) = match cfg!(feature = "other-layout") {
        false => (240, 384),
        true => (256, 400),
    };
    assert!(
        size_of::<ls_flow>() == flow && size_of::<ls_slot>() == slot && size_of::<ls_inspection>() == 100
    );
};

pub use longsplice_core::{
    family::Family,
    seq::{Offset, Seq},
    side::{PerSide, Side},
};

/// Holds a leg's addresses. The kernel half finds a direction by the addresses on ingress, from `peer` to `local`. Both
/// are of one family, and in their form on the wire; [`Leg::new`] ensures that.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Leg {
    /// Address of the far end.
    pub peer: SocketAddr,
    /// Address of our end.
    pub local: SocketAddr,
}

impl Leg {
    /// Returns a leg for the addresses that a socket reports. An IPv4 address that is mapped to IPv6 (a socket of
    /// AF_INET6 that was reached over IPv4) becomes one of IPv4. Fields that are not on the wire, flow information and
    /// scope, become zero.
    pub fn new(peer: SocketAddr, local: SocketAddr) -> Leg {
        let on_the_wire = |a: SocketAddr| SocketAddr::new(a.ip().to_canonical(), a.port());
        Leg {
            peer: on_the_wire(peer),
            local: on_the_wire(local),
        }
    }

    /// Returns the version of IP of its segments.
    pub fn family(self) -> Family {
        Family::of(self.peer.ip())
    }

    pub(crate) fn tuple(self) -> ls_tuple {
        ls_tuple {
            saddr: address(self.peer.ip()),
            daddr: address(self.local.ip()),
            sport: self.peer.port().to_be(),
            dport: self.local.port().to_be(),
        }
    }

    pub(crate) fn from_tuple(t: &ls_tuple) -> Leg {
        Leg {
            peer: socket_addr(t.saddr, t.sport),
            local: socket_addr(t.daddr, t.dport),
        }
    }
}

/// Offsets of a socket's sequence numbers from those on the wire, after it was spliced and woken; zero for any other
/// socket.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Mapping {
    /// Offset in the peer's stream.
    pub seq: Offset,
    /// Offset in the stream toward the peer.
    pub ack: Offset,
}

impl Mapping {
    /// Returns true if the socket's numbers are those on the wire.
    pub fn is_none(self) -> bool {
        self == Mapping::default()
    }
}

/// Returns an address in the kernel half's form: of IPv6, or mapped to it.
pub(crate) fn address(ip: IpAddr) -> [u32; 4] {
    let mut words = [0; 4];
    for (word, bytes) in words.iter_mut().zip(mapped(ip).octets().chunks_exact(4)) {
        *word = u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    }
    words
}

/// Returns an address and a port that are in network byte order.
pub(crate) fn socket_addr(words: [u32; 4], port: u16) -> SocketAddr {
    let mut octets = [0; 16];
    for (bytes, word) in octets.chunks_exact_mut(4).zip(words) {
        bytes.copy_from_slice(&word.to_ne_bytes());
    }
    SocketAddr::new(Ipv6Addr::from(octets).to_canonical(), u16::from_be(port))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leg(peer: &str, local: &str) -> Leg {
        Leg::new(peer.parse().unwrap(), local.parse().unwrap())
    }

    fn there_and_back(leg: Leg) -> Leg {
        Leg::from_tuple(&ls_tuple::from_bytes(leg.tuple().bytes()).unwrap())
    }

    #[test]
    fn a_leg_survives_the_way_to_the_kernel_and_back() {
        let v4 = leg("198.18.1.2:40000", "198.18.1.1:80");
        let mapped = |last: [u8; 4]| [[0; 8].as_slice(), &[0, 0, 0xff, 0xff], &last].concat();
        let expected = [
            mapped([198, 18, 1, 2]),
            mapped([198, 18, 1, 1]),
            vec![0x9c, 0x40, 0, 80],
        ]
        .concat();
        assert_eq!(v4.tuple().bytes(), expected);
        assert_eq!((there_and_back(v4), v4.family()), (v4, Family::V4));
        let v6 = leg("[2001:db8:1::2]:40000", "[2001:db8:1::1]:80");
        assert_eq!(v6.tuple().bytes()[..4], [0x20, 0x01, 0x0d, 0xb8]);
        assert_eq!((there_and_back(v6), v6.family()), (v6, Family::V6));
        assert!(ls_tuple::from_bytes(&[0; 35]).is_none());
    }

    #[test]
    fn a_socket_of_both_families_has_legs_of_either() {
        let mapped = leg("[::ffff:198.18.1.2]:40000", "[::ffff:198.18.1.1]:80");
        assert_eq!(mapped, leg("198.18.1.2:40000", "198.18.1.1:80"));
        let scoped = leg("[fe80::2%3]:1", "[fe80::1%3]:2");
        assert_eq!(there_and_back(scoped), scoped);
    }
}
