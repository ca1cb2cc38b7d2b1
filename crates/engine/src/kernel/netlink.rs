//! Sends requests to the kernel's routing and reads the answers at once: those that are also sent while the process ends
//! cannot wait for a task.

use std::{io, ops::ControlFlow};

use nix::libc;
use rtnetlink::{
    packet_core::{
        NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage,
        NetlinkPayload,
    },
    packet_route::RouteNetlinkMessage,
    sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE},
};

/// Netlink socket to the kernel.
#[derive(Debug)]
pub(crate) struct Netlink(Socket);

impl Netlink {
    pub(crate) fn open() -> io::Result<Netlink> {
        Ok(Netlink(connect(NETLINK_ROUTE)?))
    }

    /// Opens a socket for whose requests the kernel heeds more than the kind of the objects (`NETLINK_GET_STRICT_CHK`): all
    /// routes of a table are those of that table.
    pub(crate) fn open_strict() -> io::Result<Netlink> {
        let netlink = Netlink::open()?;
        netlink.0.set_netlink_get_strict_chk(true)?;
        Ok(netlink)
    }

    /// Creates an object; fails if it exists.
    pub(crate) fn create(&self, message: RouteNetlinkMessage) -> io::Result<()> {
        self.ask(message, NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL).map(drop)
    }

    /// Sends a request and waits for its acknowledgement.
    pub(crate) fn order(&self, message: RouteNetlinkMessage) -> io::Result<()> {
        self.ask(message, NLM_F_ACK).map(drop)
    }

    /// Returns all objects of a kind.
    pub(crate) fn dump(&self, message: RouteNetlinkMessage) -> io::Result<Vec<RouteNetlinkMessage>> {
        self.ask(message, NLM_F_DUMP)
    }

    /// Returns the answer to a request for one object.
    pub(crate) fn get(&self, message: RouteNetlinkMessage) -> io::Result<RouteNetlinkMessage> {
        let answer = self.ask(message, 0)?.pop();
        answer.ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn ask(&self, message: RouteNetlinkMessage, flags: u16) -> io::Result<Vec<RouteNetlinkMessage>> {
        let mut answers = Vec::new();
        self.read(message, flags, |answer| {
            answers.push(answer);
            // Nothing follows one object.
            match flags & (NLM_F_ACK | NLM_F_DUMP) {
                0 => ControlFlow::Break(()),
                _ => ControlFlow::Continue(()),
            }
        })?;
        Ok(answers)
    }

    /// Sends a request, and reads its answers until there are no more, or `take` wants no more.
    fn read(
        &self,
        message: RouteNetlinkMessage,
        flags: u16,
        mut take: impl FnMut(RouteNetlinkMessage) -> ControlFlow<()>,
    ) -> io::Result<()> {
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST | flags;
        let mut message = NetlinkMessage::new(header, NetlinkPayload::InnerMessage(message));
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        self.0.send(&bytes, 0)?;
        loop {
            let (datagram, _) = self.0.recv_from_full()?;
            let mut rest = datagram.as_slice();
            while !rest.is_empty() {
                let one =
                    NetlinkMessage::<RouteNetlinkMessage>::deserialize(rest).map_err(io::Error::other)?;
                // Messages begin at multiples of four.
                let length = (one.header.length as usize).next_multiple_of(4).max(4);
                rest = rest.get(length..).unwrap_or_default();
                let answer = match one.payload {
                    NetlinkPayload::Done(done) => return end_of(done.code),
                    NetlinkPayload::Error(e) => {
                        return match e.code {
                            None => Ok(()),
                            Some(_) => Err(e.to_io()),
                        };
                    }
                    NetlinkPayload::InnerMessage(answer) => answer,
                    _ => continue,
                };
                if take(answer).is_break() {
                    return Ok(());
                }
            }
        }
    }
}

/// Opens a netlink socket to the kernel.
pub(crate) fn connect(protocol: isize) -> io::Result<Socket> {
    let mut socket = Socket::new(protocol)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    Ok(socket)
}

/// Returns the outcome of a list of objects by the number at its end. A table or an interface that is not there has none.
fn end_of(code: i32) -> io::Result<()> {
    match -code {
        0 | libc::ENOENT | libc::ENODEV => Ok(()),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}
