//! Withholds options from the SYNs of a socket (bpf/withhold.h), and asks for ECN in them (bpf/ask_ecn.bpf.c).

use std::{
    io,
    mem::MaybeUninit,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
};

use libbpf_rs::{MapCore, MapFlags, MapHandle};
use longsplice_core::terms::Terms;

use crate::{
    abi::{Pod, ls_handshake},
    error::Error,
    load::{load_programs, open_programs},
    retry_load::retry_load,
    skel::{AskEcnSkelBuilder, types::ls_withheld as W},
};

/// Holds what is taken out of the SYNs of a connecting socket, or out of those that come to a listening one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Withheld {
    /// Options; ECN with all of its variants.
    pub terms: Terms,
    /// True for AccECN (RFC 9768) only: a classic request for ECN stays.
    pub accurate_ecn: bool,
    /// True for ECT in the IP header of a connecting socket's SYN, and of its acknowledgements without payload (RFC 3168
    /// sections 6.1.1 and 6.1.4).
    pub ect: bool,
}

impl Withheld {
    fn bits(self) -> u32 {
        let bit = |holds: bool, bit: W| if holds { bit.0 } else { 0 };
        bit(self.terms.timestamps, W::LS_WITHHOLD_TIMESTAMPS)
            | bit(self.terms.sack, W::LS_WITHHOLD_SACK)
            | bit(self.terms.window_scaling, W::LS_WITHHOLD_SCALE)
            | bit(self.terms.ecn, W::LS_WITHHOLD_ECN)
            | bit(self.accurate_ecn, W::LS_WITHHOLD_ACCURATE)
            | bit(self.ect, W::LS_WITHHOLD_ECT)
    }
}

/// Sets the element of a socket in the map, which ends with the socket.
pub(crate) fn set(map: &MapHandle, socket: BorrowedFd<'_>, withheld: Withheld) -> io::Result<()> {
    let element = ls_handshake {
        withheld: withheld.bits(),
        mss: 0,
    };
    map.update(&key(socket), element.bytes(), MapFlags::ANY)
        .map_err(|e| io::Error::other(format!("cannot withhold options: {e}")))
}

/// Returns the MSS of the peer of a socket that has an element; `None`: it is not known.
pub(crate) fn peer_mss(map: &MapHandle, socket: BorrowedFd<'_>) -> Option<u32> {
    let element = map.lookup(&key(socket), MapFlags::ANY).ok().flatten()?;
    let element = ls_handshake::from_bytes(&element)?;
    Some(element.mss).filter(|&mss| mss != 0)
}

fn key(socket: BorrowedFd<'_>) -> [u8; 4] {
    socket.as_raw_fd().to_ne_bytes()
}

/// Keeps a congestion control registered with which a socket asks for ECN, for as long as this value lives or sockets use
/// it. It is the machine's, in all network namespaces, and ends with the process.
#[derive(Debug)]
pub struct EcnAsker {
    name: String,
    _link: OwnedFd,
}

impl EcnAsker {
    /// Registers it under a name that ends in this number.
    ///
    /// # Errors
    /// Returns [`Error::Unsupported`] before Linux 6.4, [`Error::Privileges`], [`Error::Interrupted`], [`Error::System`],
    /// also if the name is taken.
    pub fn register(number: u32) -> Result<EcnAsker, Error> {
        retry_load(|| EcnAsker::register_once(number))
    }

    fn register_once(number: u32) -> Result<EcnAsker, Error> {
        let bpf = |what: &'static str| move |e: libbpf_rs::Error| Error::from_bpf(what, &e);
        let mut object = MaybeUninit::uninit();
        let mut open =
            open_programs::<AskEcnSkelBuilder>(&mut object, "cannot open the program that asks for ECN")?;
        let field = &mut open.struct_ops.ask_ecn_mut().name;
        let prefix: String = (field.iter().take_while(|&&byte| byte != 0))
            .map(|&byte| char::from(byte as u8))
            .collect();
        let name = format!("{prefix}{number:08x}");
        // The last byte stays zero.
        for (byte, letter) in field.iter_mut().zip(name.bytes()).take(NAME_LEN) {
            *byte = letter as _;
        }
        let mut loaded = load_programs(open, "cannot load the program that asks for ECN")?;
        let link = loaded
            .maps
            .ask_ecn
            .attach_struct_ops()
            .map_err(bpf("cannot register the program that asks for ECN"))?;
        let link = link.as_fd().try_clone_to_owned();
        Ok(EcnAsker {
            name,
            _link: link.map_err(|e| Error::from_io("cannot hold a link", e))?,
        })
    }

    /// Returns the name, for `TCP_CONGESTION`.
    pub fn name(&self) -> &str {
        &self.name
    }
}

/// Longest name of a congestion control, in bytes.
const NAME_LEN: usize = 15;
