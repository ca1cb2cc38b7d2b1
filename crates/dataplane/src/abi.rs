//! The types shared with the kernel half, out of its BTF (bpf/abi.h), and their safe faces.

use std::net::{Ipv4Addr, SocketAddrV4};

use crate::skel::types;

pub(crate) use types::{
    ls_event, ls_leg, ls_meta, ls_move, ls_peek, ls_peeks, ls_record, ls_slot, ls_tuple, ls_wake,
};

/// The layout's version: pinned maps carry it.
pub const ABI_VERSION: u32 = 2;

/// A side of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Side {
    /// Leg A, the initiator's.
    Client,
    /// Leg B, the target's.
    Server,
}

impl Side {
    /// Both, in the order of the arrays that are indexed by side.
    pub const BOTH: [Side; 2] = [Side::Client, Side::Server];

    /// The other one.
    pub fn other(self) -> Side {
        match self {
            Side::Client => Side::Server,
            Side::Server => Side::Client,
        }
    }

    /// Its place in an array.
    pub fn index(self) -> usize {
        self as usize
    }
}

/// Plain old data that the kernel half reads and writes as bytes.
///
/// # Safety
/// The type must be `repr(C)`, without padding, and valid for every bit pattern.
pub(crate) unsafe trait Pod: Copy + Default {
    /// Its bytes.
    fn bytes(&self) -> &[u8] {
        // SAFETY: the trait promises that every byte of the value is initialised.
        unsafe { std::slice::from_raw_parts(std::ptr::from_ref(self).cast(), size_of::<Self>()) }
    }

    /// From the bytes of one; `None` where there are too few.
    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        // SAFETY: there are enough bytes, an unaligned read is asked for, and every bit pattern is a value.
        (bytes.len() >= size_of::<Self>()).then(|| unsafe { bytes.as_ptr().cast::<Self>().read_unaligned() })
    }
}

macro_rules! pod {
    ($($t:ty),*) => {$(
        // SAFETY: generated `repr(C)` from BTF; bpf/abi.h asserts that there is no padding.
        unsafe impl Pod for $t {}
    )*};
}
pod!(
    ls_event, ls_meta, ls_move, ls_peek, ls_peeks, ls_record, ls_tuple, ls_wake
);
// Another definition of the layouts would have to be changed here too: they are what bpf/abi.h asserts.
const _: () =
    assert!(size_of::<ls_record>() == 88 && size_of::<ls_slot>() == 320 && size_of::<ls_peek>() == 68);

/// A leg's addresses: how the kernel half finds a direction is by what it sees on ingress, from `peer` to `local`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Leg {
    /// The far end.
    pub peer: SocketAddrV4,
    /// Our end.
    pub local: SocketAddrV4,
}

impl Leg {
    pub(crate) fn tuple(self) -> ls_tuple {
        ls_tuple {
            saddr: u32::from(*self.peer.ip()).to_be(),
            daddr: u32::from(*self.local.ip()).to_be(),
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

/// What a socket's sequence numbers are greater by than those on the wire, after it was spliced and woken; zero for any
/// other.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Mapping {
    /// In the peer's stream.
    pub seq: u32,
    /// In the stream toward the peer.
    pub ack: u32,
}

impl Mapping {
    /// Whether the socket counts as the wire does.
    pub fn is_none(self) -> bool {
        self == Mapping::default()
    }
}

/// From network byte order.
pub(crate) fn socket_addr(addr: u32, port: u16) -> SocketAddrV4 {
    SocketAddrV4::new(Ipv4Addr::from(u32::from_be(addr)), u16::from_be(port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leg_survives_the_way_to_the_kernel_and_back() {
        let leg = Leg {
            peer: "198.18.1.2:40000".parse().unwrap(),
            local: "198.18.1.1:80".parse().unwrap(),
        };
        let t = leg.tuple();
        assert_eq!(t.bytes(), [198, 18, 1, 2, 198, 18, 1, 1, 0x9c, 0x40, 0, 80]);
        assert_eq!(Leg::from_tuple(&ls_tuple::from_bytes(t.bytes()).unwrap()), leg);
        assert!(ls_tuple::from_bytes(&[0; 11]).is_none());
    }
}
