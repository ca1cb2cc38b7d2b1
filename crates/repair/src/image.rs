//! Holds the image of a connection: all state that is needed to build its socket.

use std::{io, net::SocketAddr, os::fd::AsFd};

use longsplice_core::seq::Seq;
use socket2::{SockAddr, SockRef};

use crate::{address::canonical, info::tcp_info, options, repair::enter, state::State, sys::Error, window};

/// Connection as one of its ends sees it. [`thaw`](crate::thaw::thaw) makes a socket of it.
///
/// The image lacks some state, so the built socket does not have it: bytes in the queues, ECN (`TCP_REPAIR` cannot
/// restore it), a timestamp clock in microseconds, measurements (round-trip time, congestion window), and socket
/// options, such as the congestion control.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Image {
    /// Our address and port. A v4-mapped one is IPv4: the socket is built as an IPv4 one, also if it was an IPv6 one
    /// before.
    pub local: SocketAddr,
    /// Address and port of the peer, of the same family.
    pub peer: SocketAddr,
    /// Sequence number of the next byte to be sent. All bytes before it count as acknowledged.
    pub send_next: Seq,
    /// Sequence number of the next byte expected from the peer (RCV.NXT).
    pub receive_next: Seq,
    /// Options negotiated in the handshake.
    pub options: ImageOptions,
    /// Present value of the timestamp clock (TSval of RFC 7323), in milliseconds, wrapping; the socket continues one or
    /// two higher. It has no meaning without [`ImageOptions::timestamps`].
    pub timestamp_clock: u32,
    /// Windows that both ends have offered.
    pub window: Window,
}

/// Options negotiated in the handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImageOptions {
    /// MSS that the peer has announced, in bytes without TCP options (RFC 9293 section 3.7.1).
    pub mss: u16,
    /// Shift of the windows that the peer announces, 0 to 14; 0 also if scaling was not negotiated, which makes no
    /// difference after the handshake (RFC 7323 section 2).
    pub send_scale: u8,
    /// Shift of the windows that we announce, 0 to 14.
    pub receive_scale: u8,
    /// True if selective acknowledgement was negotiated (RFC 2018).
    pub sack: bool,
    /// True if timestamps were negotiated (RFC 7323 section 3).
    pub timestamps: bool,
}

/// Windows that both ends have offered, in bytes, unscaled: 0 to 2^30.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// Window that the peer offers now, beyond [`Image::send_next`].
    pub send: u32,
    /// Sequence number of the peer's segment that offered it (SND.WL1). Later segments, and those with the same number
    /// that offer more, replace the window; [`Image::receive_next`] is a valid value.
    pub send_wl1: Seq,
    /// Largest window that the peer has ever offered; not less than `send`.
    pub largest: u32,
    /// Bytes beyond [`Image::receive_next`] that we have promised to accept.
    pub receive: u32,
}

impl Image {
    /// Takes the image of a live connection. It is accurate until the socket sends or receives, and holds neither
    /// unread nor unacknowledged bytes. The socket enters and leaves repair mode, without a segment.
    ///
    /// # Errors
    /// Those of [`enter`]; `NotConnected` unless the state is ESTABLISHED, `Unsupported` if the addresses are not IP.
    pub fn of<Fd: AsFd + ?Sized>(fd: &Fd) -> Result<Image, Error> {
        let address = |call, name: io::Result<SockAddr>| {
            name.and_then(|a| a.as_socket().ok_or_else(|| io::ErrorKind::Unsupported.into()))
                .map(canonical)
                .map_err(|e| Error::new(call, e))
        };
        let fd = fd.as_fd();
        let socket = SockRef::from(&fd);
        let local = address("getsockname", socket.local_addr())?;
        let peer = address("getpeername", socket.peer_addr())?;
        let repair = enter(&fd)?;
        let info = tcp_info(fd)?;
        if info.state() != State::Established {
            return Err(Error::new(
                "getsockopt(TCP_INFO)",
                io::ErrorKind::NotConnected.into(),
            ));
        }
        let receive_next = repair.receive_sequence()?;
        let window = window::get(&repair)?;
        let image = Image {
            local,
            peer,
            send_next: repair.send_sequence()?,
            receive_next,
            options: ImageOptions {
                // In repair mode this is the MSS that the peer has announced, in 16 bits.
                mss: u16::try_from(options::max_segment(fd)?).unwrap_or(u16::MAX),
                send_scale: info.snd_wscale(),
                receive_scale: info.rcv_wscale(),
                sack: info.sack(),
                timestamps: info.timestamps(),
            },
            timestamp_clock: options::timestamp_clock(fd)?,
            window: Window {
                send: window.snd_wnd,
                send_wl1: Seq::new(window.snd_wl1),
                largest: window.max_window,
                receive: window::promised(&window, receive_next),
            },
        };
        repair.leave_silently()?;
        Ok(image)
    }
}
