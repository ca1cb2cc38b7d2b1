//! Opens a packet socket on an interface: it receives frames that come out there, and sends frames in.

use std::{io, mem, time::Duration};

use super::{choose, packet::upper};
use socket2::{Domain, Protocol, SockAddr, SockAddrStorage, Socket, Type};

const ETH_P_ALL: u16 = 3;
const PACKET_VNET_HDR: i32 = 15;
const SOL_PACKET: i32 = 263;
/// Equals VIRTIO_NET_HDR_GSO_TCPV4 or _TCPV6.
const GSO_TCP: u8 = choose(1, 4);

/// Time to wait for a frame that must come, and for one that must not: the veth delivers within the call.
const SURE: Duration = Duration::from_secs(3);
const SOON: Duration = Duration::from_millis(30);

/// Holds an interface's packet socket.
pub struct Tap {
    socket: Socket,
    vnet: bool,
}

/// Header before a frame: `struct virtio_net_hdr`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Offload {
    /// True if the device is to compute the checksum (CHECKSUM_PARTIAL).
    pub needs_checksum: bool,
    /// Payload of each segment; 0: a plain frame.
    pub gso_size: u16,
}

impl Tap {
    /// Opens a tap that sees frames in their form on the wire.
    pub fn new(ifindex: u32) -> Tap {
        Tap::open(ifindex, false).expect("a packet socket")
    }

    /// Opens a tap that sees and sends super-packets and unfinished checksums as such.
    pub fn with_offload(ifindex: u32) -> Tap {
        Tap::open(ifindex, true).expect("a packet socket")
    }

    fn open(ifindex: u32, vnet: bool) -> io::Result<Tap> {
        let all = i32::from(ETH_P_ALL.to_be());
        let socket = Socket::new(Domain::PACKET, Type::RAW, Some(Protocol::from(all)))?;
        let mut storage = SockAddrStorage::zeroed();
        // SAFETY: sockaddr_ll is the type of an address of AF_PACKET, and fits.
        let address = unsafe { storage.view_as::<libc::sockaddr_ll>() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = ETH_P_ALL.to_be();
        address.sll_ifindex = ifindex as i32;
        let len = mem::size_of::<libc::sockaddr_ll>() as u32;
        // SAFETY: the storage was filled in above, as much of it as `len` says.
        socket.bind(&unsafe { SockAddr::new(storage, len) })?;
        if vnet {
            nix::sys::socket::setsockopt(&socket, VnetHeader, &1)?;
        }
        // Frames of every interface come in between socket() and bind().
        let tap = Tap { socket, vnet };
        tap.socket.set_nonblocking(true)?;
        while tap.receive().is_some() {}
        tap.socket.set_nonblocking(false)?;
        Ok(tap)
    }

    /// Returns the only TCP frame that comes in.
    #[track_caller]
    pub fn only(&self) -> Vec<u8> {
        self.only_with_offload().1
    }

    #[track_caller]
    pub fn only_with_offload(&self) -> (Offload, Vec<u8>) {
        let frame = self.tcp(SURE).expect("a frame");
        if let Some(more) = self.tcp(SOON) {
            panic!("two frames: {frame:02x?} and {more:02x?}");
        }
        frame
    }

    /// Returns the next TCP frame, which must come.
    pub fn next(&self) -> Option<Vec<u8>> {
        self.tcp(SURE).map(|(_, frame)| frame)
    }

    /// Returns the next frame of any kind, which must come.
    pub fn any(&self) -> Option<Vec<u8>> {
        self.socket.set_read_timeout(Some(SURE)).expect("a timeout");
        self.receive().map(|(_, frame)| frame)
    }

    /// Returns the next TCP frame, if it has come.
    pub fn ready(&self) -> Option<Vec<u8>> {
        self.socket.set_nonblocking(true).expect("a socket");
        let frame = std::iter::from_fn(|| self.receive()).find(|(_, f)| is_tcp(f));
        self.socket.set_nonblocking(false).expect("a socket");
        frame.map(|(_, frame)| frame)
    }

    /// Asserts that no TCP frame comes in.
    #[track_caller]
    pub fn nothing(&self) {
        if let Some(frame) = self.tcp(SOON) {
            panic!("a frame: {frame:02x?}");
        }
    }

    fn tcp(&self, within: Duration) -> Option<(Offload, Vec<u8>)> {
        self.socket.set_read_timeout(Some(within)).expect("a timeout");
        std::iter::from_fn(|| self.receive()).find(|(_, f)| is_tcp(f))
    }

    fn receive(&self) -> Option<(Offload, Vec<u8>)> {
        use std::io::Read;
        let mut bytes = vec![0; 70_000];
        let len = (&self.socket).read(&mut bytes).ok()?;
        bytes.truncate(len);
        let mut offload = Offload::default();
        if self.vnet {
            let header: Vec<u8> = bytes.drain(..10).collect();
            offload.needs_checksum = header[0] & 1 != 0;
            offload.gso_size = u16::from_ne_bytes([header[4], header[5]]);
        }
        Some((offload, bytes))
    }

    /// Puts a frame on the wire.
    pub fn send(&self, frame: &[u8], offload: Offload) {
        use std::io::Write;
        let mut bytes = Vec::new();
        if self.vnet {
            bytes.extend([
                u8::from(offload.needs_checksum),
                if offload.gso_size == 0 { 0 } else { GSO_TCP },
            ]);
            // Length of the headers: Ethernet, IP, TCP with its options.
            let tcp = upper(frame).expect("IP").1 as u16;
            bytes.extend((tcp + u16::from(frame[usize::from(tcp) + 12] >> 4) * 4).to_ne_bytes());
            bytes.extend(offload.gso_size.to_ne_bytes());
            let (start, offset) = if offload.needs_checksum {
                (tcp, 16u16)
            } else {
                (0, 0)
            };
            bytes.extend(start.to_ne_bytes());
            bytes.extend(offset.to_ne_bytes());
        }
        bytes.extend(frame);
        (&self.socket).write_all(&bytes).expect("the frame is sent");
    }
}

fn is_tcp(frame: &[u8]) -> bool {
    let is_ip = matches!(frame.get(12..14), Some([0x08, 0x00] | [0x86, 0xdd]));
    is_ip && upper(frame).is_some_and(|(protocol, _)| protocol == 6)
}

/// Sets setsockopt(PACKET_VNET_HDR).
#[derive(Clone, Copy)]
struct VnetHeader;

impl nix::sys::socket::SetSockOpt for VnetHeader {
    type Val = i32;

    fn set<F: std::os::fd::AsFd>(&self, fd: &F, value: &i32) -> nix::Result<()> {
        use std::os::fd::AsRawFd;
        // SAFETY: the pointer is to an int, and its length is right.
        let result = unsafe {
            libc::setsockopt(
                fd.as_fd().as_raw_fd(),
                SOL_PACKET,
                PACKET_VNET_HDR,
                std::ptr::from_ref(value).cast(),
                mem::size_of::<i32>() as u32,
            )
        };
        nix::errno::Errno::result(result).map(drop)
    }
}
