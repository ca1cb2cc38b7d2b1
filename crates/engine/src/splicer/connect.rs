//! Makes both legs fit each other: the listening socket's segments, and leg B's address, port and segments.

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
    flow::assess,
    services::ports::{self, Origin},
};

/// Largest value of TCP_MAXSEG, in bytes; only the loopback has longer segments.
const LARGEST_SEGMENT: u32 = 32_767;

impl Splicer {
    /// Prepares a listening socket for splicing toward `target`: it offers clients no longer segments than the route to
    /// the target takes.
    ///
    /// # Errors
    /// Returns an error if the socket is not a TCP socket.
    pub fn prepare_listener(&self, listener: impl AsFd, target: SocketAddr) -> io::Result<()> {
        if self.context.kernel.is_some()
            && let Ok(way) = self.context.routes.ask(longsplice_repair::canonical(target))
            && let Some(bytes) = way.max_segment.filter(|&bytes| bytes <= LARGEST_SEGMENT)
        {
            options::set_max_segment(listener, bytes)?;
        }
        Ok(())
    }

    /// Connects leg B from a source port that this instance owns, so that the port is not given away while a flow without
    /// sockets has it, and with an MSS (RFC 9293 section 3.7.1) that fits leg A. A pair whose leg B was connected
    /// otherwise can be spliced, too, if the segments fit; its port is safe only while it has its socket. The socket
    /// resets on close (`SO_LINGER` of 0) from before its SYN is sent, until a call of [`Splicer::splice`] has ended the
    /// pair.
    ///
    /// # Errors
    /// Returns those of `connect`; `TimedOut` after `timeout`; `AddrNotAvailable` if all source ports toward the target
    /// are in use.
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
        let context = &self.context;
        let (Some(plane), Some(ports), true) = (context.plane(), &context.ports, assess::is_global(target))
        else {
            let connect = async {
                match from {
                    None => ports::connect_plainly(target).await,
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
        let segment = segment_limit(plane, client);
        ports
            .connect(plane, &context.routes, from, target, segment, timeout)
            .await
    }
}

/// Returns the longest segment that leg B may offer to take, so that it fits on leg A; `None`: no limit.
pub(super) fn segment_limit(plane: &Dataplane, client: BorrowedFd<'_>) -> Option<u32> {
    assess::fits_client(plane, client).filter(|&bytes| bytes <= LARGEST_SEGMENT)
}
