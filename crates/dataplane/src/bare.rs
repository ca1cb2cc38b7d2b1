//! Loads the programs for devices without Ethernet headers once such a device is to be watched.

use std::{mem::MaybeUninit, os::fd::AsFd, sync::OnceLock};

use libbpf_rs::{
    MapHandle,
    skel::{OpenSkel, SkelBuilder},
};
use parking_lot::Mutex;

use crate::{
    attach::Programs,
    error::Error,
    load::{all_maps, hashing_of_table, hold, set_hash, share},
    pins::Pins,
    retry_load::retry_load,
    skel::BareSkelBuilder,
};

/// Says what the packets of a device begin with, as programs at tc see them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Framing {
    /// An Ethernet header.
    Ethernet,
    /// Their IP header: tun, WireGuard, tunnels of IP.
    Bare,
}

/// Holds the programs, once a device has needed them.
#[derive(Debug, Default)]
pub(crate) struct Bare {
    programs: OnceLock<Programs>,
    loading: Mutex<()>,
}

impl Bare {
    /// Returns the programs, if a device has needed them.
    pub(crate) fn loaded(&self) -> Option<&Programs> {
        self.programs.get()
    }

    /// Returns the programs. The first call loads them, with the pinned maps and the map of handshakes.
    pub(crate) fn programs(&self, pins: &Pins, handshakes: &MapHandle) -> Result<&Programs, Error> {
        let _one = self.loading.lock();
        match self.programs.get() {
            Some(programs) => Ok(programs),
            None => {
                let programs = retry_load(|| load(pins, handshakes))?;
                Ok(self.programs.get_or_init(|| programs))
            }
        }
    }
}

fn load(pins: &Pins, handshakes: &MapHandle) -> Result<Programs, Error> {
    let mut object = MaybeUninit::uninit();
    let mut open = BareSkelBuilder::default()
        .open(&mut object)
        .map_err(|e| Error::from_bpf("cannot open the programs", &e))?;
    let (buckets, keys) = hashing_of_table(pins)?;
    set_hash!(open, buckets, keys);
    share(pins, all_maps!(open))?;
    (open.maps.handshakes)
        .reuse_fd(handshakes.as_fd())
        .map_err(|e| Error::from_bpf("cannot share the map of handshakes", &e))?;
    let bare = open.load().map_err(|e| {
        Error::from_load(
            "cannot load the programs for devices without Ethernet headers",
            &e,
        )
    })?;
    Ok(Programs {
        ingress: hold(&bare.progs.ingress)?,
        egress: hold(&bare.progs.egress)?,
    })
}
