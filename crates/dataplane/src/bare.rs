//! Loads the programs for devices without Ethernet headers once such a device is to be watched.

use std::{mem::MaybeUninit, os::fd::AsFd};

use libbpf_rs::MapHandle;
use once_cell::sync::OnceCell;

use crate::{
    attach::Programs,
    error::Error,
    load::{all_maps, hashing_of_table, hold, load_programs, open_programs, set_hash, share},
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
pub(crate) struct Bare(OnceCell<Programs>);

impl Bare {
    /// Returns the programs, if a device has needed them.
    pub(crate) fn loaded(&self) -> Option<&Programs> {
        self.0.get()
    }

    /// Returns the programs. The first call loads them, with the pinned maps and the map of handshakes.
    pub(crate) fn programs(&self, pins: &Pins, handshakes: &MapHandle) -> Result<&Programs, Error> {
        self.0.get_or_try_init(|| retry_load(|| load(pins, handshakes)))
    }
}

fn load(pins: &Pins, handshakes: &MapHandle) -> Result<Programs, Error> {
    let mut object = MaybeUninit::uninit();
    let mut open = open_programs::<BareSkelBuilder>(&mut object, "cannot open the programs")?;
    let (buckets, keys) = hashing_of_table(pins)?;
    set_hash!(open, buckets, keys);
    share(pins, all_maps!(open))?;
    (open.maps.handshakes)
        .reuse_fd(handshakes.as_fd())
        .map_err(|e| Error::from_bpf("cannot share the map of handshakes", &e))?;
    let bare = load_programs(
        open,
        "cannot load the programs for devices without Ethernet headers",
    )?;
    Ok(Programs {
        ingress: hold(&bare.progs.ingress)?,
        egress: hold(&bare.progs.egress)?,
    })
}
