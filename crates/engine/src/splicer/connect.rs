//! What makes both legs fit each other: the listening socket's segments, and leg B's address, port and segments.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    os::fd::{AsFd, BorrowedFd},
    time::Duration,
};

use longsplice_dataplane::Dataplane;
use longsplice_repair::options;
use tokio::net::TcpStream;

use super::Splicer;
use crate::{
    legs,
    ports::{self, Origin},
};

/// The largest one that TCP_MAXSEG can say, in bytes; longer ones are none but the loopback's.
const LARGEST_SEGMENT: u32 = 32_767;

impl Splicer {
    /// Sets on a listening socket what makes its connections fit for splicing towards `target`: it offers clients no
    /// longer segments than the way to the target takes.
    ///
    /// # Errors
    /// The socket is not a TCP socket.
    pub fn prepare_listener(&self, listener: impl AsFd, target: SocketAddr) -> io::Result<()> {
        if self.inner.plane.is_some()
            && let Ok(way) = self.inner.routes.ask(longsplice_repair::canonical(target))
            && let Some(bytes) = way.max_segment.filter(|&bytes| bytes <= LARGEST_SEGMENT)
        {
            options::set_max_segment(listener, bytes)?;
        }
        Ok(())
    }

    /// Connects leg B from a source port that this instance owns, so that the port is not given away while a flow without
    /// sockets has it, and with an MSS (RFC 9293 section 3.7.1) that fits leg A. A pair whose leg B was connected otherwise can be
    /// spliced, too, where the segments fit; its port is safe only while it has its socket.
    ///
    /// # Errors
    /// Those of `connect`; `TimedOut` after `timeout`; `AddrNotAvailable` where all source ports toward the target are
    /// in use.
    pub async fn connect(
        &self,
        target: SocketAddr,
        client: impl AsFd,
        timeout: Duration,
    ) -> io::Result<TcpStream> {
        self.connect_from(None, target, client.as_fd(), timeout).await
    }

    pub(super) async fn connect_from(
        &self,
        from: Option<IpAddr>,
        target: SocketAddr,
        client: BorrowedFd<'_>,
        timeout: Duration,
    ) -> io::Result<TcpStream> {
        let target = longsplice_repair::canonical(target);
        let inner = &self.inner;
        let (Some(plane), Some(ports), true) = (&inner.plane, &inner.ports, legs::is_global(target)) else {
            let connect = async {
                match from {
                    None => TcpStream::connect(target).await,
                    Some(from) => {
                        let origin = Origin {
                            local: (from, 0).into(),
                            foreign: true,
                            initial_sequence: None,
                        };
                        ports::connect_from(origin, target, None).await
                    }
                }
            };
            return tokio::time::timeout(timeout, connect).await?;
        };
        let segment = segment_limit(plane, client, target);
        ports
            .connect(plane, &inner.routes, from, target, segment, timeout)
            .await
    }
}

/// The longest segment that leg B may offer to take, so that it fits on leg A; `None`: no limit.
pub(super) fn segment_limit(plane: &Dataplane, client: BorrowedFd<'_>, target: SocketAddr) -> Option<u32> {
    legs::fits_client(plane, client, target.ip()).filter(|&bytes| bytes <= LARGEST_SEGMENT)
}
