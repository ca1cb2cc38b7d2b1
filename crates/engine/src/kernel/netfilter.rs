//! Sends messages to the kernel's netfilter over netlink (nfnetlink), and reads the answers at once: conntrack and nftables are
//! two of its subsystems.

use std::io;

use rtnetlink::packet_core::NLM_F_REQUEST;
pub(crate) use rtnetlink::packet_core::{NLM_F_ACK, NLM_F_CREATE, NLM_F_EXCL};
use rtnetlink::sys::{Socket, protocols::NETLINK_NETFILTER};

use super::netlink::connect;

// linux/netlink.h
const NLMSG_ERROR: u16 = 2;
const HEADER: usize = 16;

/// A message: its header, `struct nfgenmsg`, and its attributes.
#[derive(Debug)]
pub(crate) struct Message<'a> {
    /// Number of the subsystem, and that of the message in it (`NFNL_SUBSYS_…`).
    pub(crate) kind: (u8, u8),
    /// Flags beside `NLM_F_REQUEST`.
    pub(crate) flags: u16,
    /// Family of addresses (`NFPROTO_…`).
    pub(crate) family: u8,
    /// Number whose meaning depends on the message, 0 in most.
    pub(crate) resource: u16,
    pub(crate) attributes: &'a [u8],
}

impl Message<'_> {
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let length = (HEADER + 4 + self.attributes.len()) as u32;
        let mut bytes = length.to_ne_bytes().to_vec();
        bytes.extend(u16::from_be_bytes([self.kind.0, self.kind.1]).to_ne_bytes());
        bytes.extend((NLM_F_REQUEST | self.flags).to_ne_bytes());
        // The sequence number and the port stay 0: the answers come before the next request.
        bytes.extend([0; 8]);
        bytes.extend([self.family, 0]);
        bytes.extend(self.resource.to_be_bytes());
        bytes.extend(self.attributes);
        bytes
    }
}

/// Socket to netfilter.
#[derive(Debug)]
pub(crate) struct Netfilter(Socket);

impl Netfilter {
    pub(crate) fn open() -> io::Result<Netfilter> {
        let socket = connect(NETLINK_NETFILTER)?;
        socket.set_non_blocking(true)?;
        Ok(Netfilter(socket))
    }

    /// Sends messages in one piece. The kernel has put all its answers into the socket before the call that sends
    /// returns. Fails with the first error that the kernel answers.
    pub(crate) fn ask(&self, messages: &[u8]) -> io::Result<()> {
        self.0.send(messages, 0)?;
        let mut first = Ok(());
        loop {
            let answers = match self.0.recv_from_full() {
                Ok((answers, _)) => answers,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return first,
                Err(e) => return Err(e),
            };
            let error = errors(&answers).find(|&error| error != 0);
            if let Some(error) = error.filter(|_| first.is_ok()) {
                first = Err(io::Error::from_raw_os_error(error));
            }
        }
    }
}

/// Returns the error numbers of a datagram with answers, 0 of an acknowledgement.
fn errors(mut answers: &[u8]) -> impl Iterator<Item = i32> {
    std::iter::from_fn(move || {
        loop {
            let length = u32::from_ne_bytes(answers.first_chunk().copied()?) as usize;
            let kind = answers.get(4..6).map(|b| u16::from_ne_bytes([b[0], b[1]]))?;
            let code = answers
                .get(HEADER..HEADER + 4)
                .and_then(|b| b.first_chunk().copied());
            // Messages begin at multiples of four.
            answers = answers
                .get(length.max(HEADER).next_multiple_of(4)..)
                .unwrap_or_default();
            if kind == NLMSG_ERROR {
                return Some(-i32::from_ne_bytes(code?));
            }
        }
    })
}

/// Encodes an attribute that contains others.
pub(crate) fn nested(kind: u16, attributes: &[u8]) -> Vec<u8> {
    attribute(kind | nix::libc::NLA_F_NESTED as u16, attributes)
}

/// Encodes a netlink attribute: its length, its kind, its value, and padding to a multiple of four.
pub(crate) fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let mut bytes = (4 + value.len() as u16).to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_begin_at_multiples_of_four() {
        assert_eq!(attribute(2, &[7]), [5, 0, 2, 0, 7, 0, 0, 0]);
        assert_eq!(nested(1, &[]), [4, 0, 1, 0x80]);
    }

    #[test]
    fn answers_are_read_one_behind_the_other() {
        let answer = |kind: u16, code: i32| {
            let mut bytes = 20_u32.to_ne_bytes().to_vec();
            bytes.extend(kind.to_ne_bytes());
            bytes.extend([0; 10]);
            bytes.extend((-code).to_ne_bytes());
            bytes
        };
        let all = [answer(NLMSG_ERROR, 0), answer(17, 5), answer(NLMSG_ERROR, 2)].concat();
        assert_eq!(errors(&all).collect::<Vec<_>>(), [0, 2]);
        for cut in 0..all.len() {
            assert!(errors(&all[..cut]).count() <= 2, "cut at {cut}");
        }
    }
}
