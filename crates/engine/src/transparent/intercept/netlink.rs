//! Sends requests to the kernel's routing and reads the answers at once: those that are also sent while the process ends
//! cannot wait for a task.

use std::io;

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
pub(super) struct Netlink(Socket);

impl Netlink {
    pub(super) fn open() -> io::Result<Netlink> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        Ok(Netlink(socket))
    }

    /// Opens a socket for whose requests the kernel heeds more than the kind of the objects (`NETLINK_GET_STRICT_CHK`): all
    /// routes of a table are those of that table.
    pub(super) fn open_strict() -> io::Result<Netlink> {
        let netlink = Netlink::open()?;
        netlink.0.set_netlink_get_strict_chk(true)?;
        Ok(netlink)
    }

    /// Creates an object; fails if it exists.
    pub(super) fn create(&self, message: RouteNetlinkMessage) -> io::Result<()> {
        self.ask(message, NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL).map(drop)
    }

    /// Sends a request and waits for its acknowledgement.
    pub(super) fn order(&self, message: RouteNetlinkMessage) -> io::Result<()> {
        self.ask(message, NLM_F_ACK).map(drop)
    }

    /// Returns all objects of a kind.
    pub(super) fn dump(&self, message: RouteNetlinkMessage) -> io::Result<Vec<RouteNetlinkMessage>> {
        self.ask(message, NLM_F_DUMP)
    }

    /// Returns the answer to a request for one object.
    pub(super) fn get(&self, message: RouteNetlinkMessage) -> io::Result<RouteNetlinkMessage> {
        let answer = self.ask(message, 0)?.pop();
        answer.ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn ask(&self, message: RouteNetlinkMessage, flags: u16) -> io::Result<Vec<RouteNetlinkMessage>> {
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST | flags;
        let mut message = NetlinkMessage::new(header, NetlinkPayload::InnerMessage(message));
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        self.0.send(&bytes, 0)?;
        let mut answers = Vec::new();
        loop {
            let (datagram, _) = self.0.recv_from_full()?;
            let mut rest = datagram.as_slice();
            while !rest.is_empty() {
                let one =
                    NetlinkMessage::<RouteNetlinkMessage>::deserialize(rest).map_err(io::Error::other)?;
                // Messages begin at multiples of four.
                let length = (one.header.length as usize).next_multiple_of(4).max(4);
                rest = rest.get(length..).unwrap_or_default();
                match one.payload {
                    NetlinkPayload::Done(_) => return Ok(answers),
                    NetlinkPayload::Error(e) => {
                        return match e.code {
                            None => Ok(answers),
                            Some(_) => Err(e.to_io()),
                        };
                    }
                    NetlinkPayload::InnerMessage(answer) => answers.push(answer),
                    _ => {}
                }
            }
            // Nothing follows one object.
            if flags & (NLM_F_ACK | NLM_F_DUMP) == 0 && !answers.is_empty() {
                return Ok(answers);
            }
        }
    }
}
