//! The image of a connection: all that has to be known to build its socket.

use std::{io, net::SocketAddr, os::fd::AsFd};

use crate::{
    info::tcp_info,
    options,
    repair::enter,
    state::State,
    sys::{self, Error},
    window,
};

/// A connection as one of its ends sees it. [`thaw`](crate::thaw::thaw) makes a socket of it.
///
/// What is not in it, the socket does not get back: bytes in its queues, ECN (`TCP_REPAIR` cannot restore it), a
/// timestamp clock in microseconds, what was measured (round-trip time, congestion window), and socket options, such as
/// the congestion control.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Image {
    /// Our address and port. A v4-mapped one is IPv4: the socket is built as an IPv4 one, whatever it was before.
    pub local: SocketAddr,
    /// The peer's; of the same family.
    pub peer: SocketAddr,
    /// The sequence number of the next byte to be sent. All before it counts as acknowledged.
    pub send_next: u32,
    /// The sequence number of the next byte expected from the peer (RCV.NXT).
    pub receive_next: u32,
    /// What the handshake has settled.
    pub options: ImageOptions,
    /// What the timestamp clock (TSval of RFC 7323) shows, in milliseconds, wrapping; it goes on one or two higher.
    /// No meaning without [`ImageOptions::timestamps`].
    pub timestamp_clock: u32,
    /// What both ends have offered.
    pub window: Window,
}

/// What the handshake has settled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImageOptions {
    /// The MSS that the peer has announced, in bytes without TCP options (RFC 9293 section 3.7.1).
    pub mss: u16,
    /// The shift of the windows that the peer announces, 0 to 14; 0 also if scaling was not negotiated (RFC 7323
    /// section 2), as after the handshake there is no difference.
    pub send_scale: u8,
    /// The shift of the windows that we announce, as above.
    pub receive_scale: u8,
    /// Whether selective acknowledgement was negotiated (RFC 2018).
    pub sack: bool,
    /// Whether timestamps were negotiated (RFC 7323 section 3).
    pub timestamps: bool,
}

/// What both ends have offered, in bytes, unscaled: 0 to 2^30.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// What the peer offers now, beyond [`Image::send_next`].
    pub send: u32,
    /// The sequence number of the peer's segment that said so (SND.WL1). Its later segments, and those of the same
    /// number that offer more, change it; [`Image::receive_next`] will do.
    pub send_wl1: u32,
    /// The most that the peer has ever offered; not less than `send`.
    pub largest: u32,
    /// What we have promised to accept, beyond [`Image::receive_next`].
    pub receive: u32,
}

impl Image {
    /// The image of a live connection. It is true as long as nothing is sent or received, and it holds neither what was
    /// not read nor what was not acknowledged. The socket passes through repair mode, silently.
    ///
    /// # Errors
    /// As [`enter`]; `NotConnected` unless the state is ESTABLISHED, `Unsupported` if the addresses are not IP.
    pub fn of<Fd: AsFd + ?Sized>(fd: &Fd) -> Result<Image, Error> {
        let not_ip = |call| Error::new(call, io::ErrorKind::Unsupported.into());
        let local = sys::local_address(fd)?
            .get()
            .ok_or_else(|| not_ip("getsockname"))?;
        let peer = sys::peer_address(fd)?
            .get()
            .ok_or_else(|| not_ip("getpeername"))?;
        let repair = enter(fd)?;
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
                // In repair mode this is what the peer has announced, in 16 bits.
                mss: u16::try_from(options::max_segment(fd)?).unwrap_or(u16::MAX),
                send_scale: info.snd_wscale(),
                receive_scale: info.rcv_wscale(),
                sack: info.sack(),
                timestamps: info.timestamps(),
            },
            timestamp_clock: options::timestamp_clock(fd)?,
            window: Window {
                send: window.snd_wnd,
                send_wl1: window.snd_wl1,
                largest: window.max_window,
                receive: window::promised(&window, receive_next),
            },
        };
        repair.leave_silently()?;
        Ok(image)
    }
}
