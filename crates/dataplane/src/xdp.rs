//! Loads the XDP program (IP/FWD) once an interface needs it, and attaches it by pinned links.

use std::{
    io,
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use libbpf_rs::{MapCore, MapFlags, MapHandle, libbpf_sys};
use once_cell::sync::OnceCell;
use strum::VariantArray;

use crate::{
    attach::{create_link, detach_link, update_link},
    error::Error,
    load::{all_maps, hashing_of_table, hold, load_programs, open_programs, set_hash, share},
    pins::Pins,
    retry_load::retry_load,
    skel::XdpSkelBuilder,
};

/// Names the point in the kernel at which the program runs.
#[derive(
    Debug,
    Clone,
    Copy,
    Default,
    PartialEq,
    Eq,
    Hash,
    strum::Display,
    strum::EnumString,
    strum::IntoStaticStr,
    strum::VariantArray,
)]
#[strum(serialize_all = "lowercase", parse_err_ty = ParseXdpModeError, parse_err_fn = ParseXdpModeError::of)]
pub enum XdpMode {
    /// In the driver, before there is an sk_buff.
    #[default]
    Native,
    /// Behind GRO, on an sk_buff: any interface can, but it is no faster than tc.
    Generic,
}

longsplice_core::named!(pub XdpMode);

impl XdpMode {
    /// Returns true if an interface's driver has XDP that redirects, as far as the kernel reports (Linux 6.3).
    pub fn is_native_on(ifindex: u32) -> bool {
        Features::of(ifindex).is_ok_and(|f| f.has(Features::BASIC | Features::REDIRECT))
    }

    /// Returns the flags of a link (linux/if_link.h).
    fn flags(self) -> u32 {
        match self {
            XdpMode::Native => libbpf_sys::XDP_FLAGS_DRV_MODE,
            XdpMode::Generic => libbpf_sys::XDP_FLAGS_SKB_MODE,
        }
    }

    /// Returns the name of its pins: a link does not report its mode.
    fn hook(self) -> &'static str {
        match self {
            XdpMode::Native => "xdp-native",
            XdpMode::Generic => "xdp-generic",
        }
    }
}

/// Names a word that is no mode.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no mode of XDP: use native or generic")]
pub struct ParseXdpModeError(String);

impl ParseXdpModeError {
    fn of(word: &str) -> ParseXdpModeError {
        ParseXdpModeError(word.to_owned())
    }
}

/// Reason that an interface cannot have the program.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum XdpError {
    /// The driver has no XDP, or none that redirects; or the kernel does not report it, as it does from Linux 6.3 on.
    #[error(
        "no native XDP that redirects is known of its driver (kernels before 6.3 tell of none): ask for the generic \
         mode, or leave it to tc"
    )]
    NotNative,
    /// Another program is attached already.
    #[error("another XDP program is on it already: `ip link show` tells which")]
    Taken,
    /// The driver refuses the program.
    #[error(
        "its driver refuses: {0} (mostly the MTU is too large, the queues are too few, or LRO is on; `dmesg` may tell)"
    )]
    Refused(io::Error),
    /// The program could not be loaded, or its map could not be used.
    #[error(transparent)]
    System(#[from] Error),
}

/// Features that a driver reports: `enum netdev_xdp_act` (linux/netdev.h).
#[derive(Debug, Clone, Copy)]
struct Features(u64);

impl Features {
    const BASIC: u64 = 1;
    const REDIRECT: u64 = 2;
    const NDO_XMIT: u64 = 4;

    /// Returns the features of an interface.
    fn of(ifindex: u32) -> Result<Features, XdpError> {
        // SAFETY: integers, for which zero is a value.
        let mut opts: libbpf_sys::bpf_xdp_query_opts = unsafe { std::mem::zeroed() };
        opts.sz = size_of_val(&opts) as libbpf_sys::size_t;
        // SAFETY: options that outlive the call.
        let err = unsafe { libbpf_sys::bpf_xdp_query(ifindex as i32, 0, &raw mut opts) };
        if err < 0 {
            let what = format!("cannot ask for the XDP features of interface {ifindex}");
            return Err(Error::from_io(what, io::Error::from_raw_os_error(-err)).into());
        }
        Ok(Features(opts.feature_flags))
    }

    fn has(self, all: u64) -> bool {
        self.0 & all == all
    }
}

/// Holds the program and the interfaces that take its frames.
#[derive(Debug)]
struct Loaded {
    program: OwnedFd,
    exits: MapHandle,
}

/// Holds the program, in each mode that an interface has needed.
#[derive(Debug, Default)]
pub(crate) struct Xdp {
    native: OnceCell<Loaded>,
    generic: OnceCell<Loaded>,
}

impl Xdp {
    fn loaded(&self, pins: &Pins, mode: XdpMode) -> Result<&Loaded, Error> {
        let cell = match mode {
            XdpMode::Native => &self.native,
            XdpMode::Generic => &self.generic,
        };
        cell.get_or_try_init(|| retry_load(|| load(pins, mode)))
    }

    pub(crate) fn program(&self, pins: &Pins, mode: XdpMode) -> Result<BorrowedFd<'_>, Error> {
        Ok(self.loaded(pins, mode)?.program.as_fd())
    }

    pub(crate) fn attach(&self, pins: &Pins, ifindex: u32, mode: XdpMode) -> Result<(), XdpError> {
        if mode == XdpMode::Native && !Features::of(ifindex)?.has(Features::BASIC | Features::REDIRECT) {
            return Err(XdpError::NotNative);
        }
        let program = self.program(pins, mode)?;
        let pin = pins.link(ifindex, mode.hook());
        if update_link(pins, &pin, program).is_ok() {
            return Ok(());
        }
        // Remove a link of the other mode, or of an interface that had the number before. An interface has one XDP
        // program only: flows of other generations are translated at tc from now on.
        self.detach(pins, ifindex);
        for other in pins.siblings() {
            detach_all(&other, ifindex);
        }
        let link = create_link(program, ifindex, libbpf_sys::BPF_XDP, mode.flags()).map_err(|e| {
            match e.raw_os_error() {
                Some(libc::EBUSY | libc::EEXIST) => XdpError::Taken,
                Some(libc::EPERM | libc::EACCES) => {
                    Error::from_io(format!("cannot attach XDP to interface {ifindex}"), e).into()
                }
                _ => XdpError::Refused(e),
            }
        })?;
        pins.pin(link.as_fd(), pin)
            .map_err(|e| Error::from_io(format!("cannot pin XDP of interface {ifindex}"), e).into())
    }

    pub(crate) fn detach(&self, pins: &Pins, ifindex: u32) {
        for loaded in [&self.native, &self.generic]
            .into_iter()
            .filter_map(OnceCell::get)
        {
            let _ = loaded.exits.delete(&ifindex.to_ne_bytes());
        }
        detach_all(pins, ifindex);
    }

    /// Detaches another generation's program from all interfaces.
    pub(crate) fn detach_generation(&self, pins: &Pins) {
        for &mode in XdpMode::VARIANTS {
            for ifindex in pins.interfaces(mode.hook()) {
                detach_all(pins, ifindex);
            }
        }
    }

    pub(crate) fn open_exit(&self, pins: &Pins, ifindex: u32, mode: XdpMode) -> Result<bool, XdpError> {
        let takes = mode == XdpMode::Generic || Features::of(ifindex)?.has(Features::NDO_XMIT);
        let (exits, key) = (&self.loaded(pins, mode)?.exits, ifindex.to_ne_bytes());
        match takes {
            true => exits.update(&key, &key, MapFlags::ANY).map_err(|e| {
                Error::from_bpf(format!("cannot let frames of XDP out by interface {ifindex}"), &e)
            })?,
            // Ignore an error: it may not be there.
            false => drop(exits.delete(&key)),
        }
        Ok(takes)
    }
}

/// Detaches a generation's program from an interface, in whatever mode.
fn detach_all(pins: &Pins, ifindex: u32) {
    for &mode in XdpMode::VARIANTS {
        detach_link(pins, &pins.link(ifindex, mode.hook()));
    }
}

fn load(pins: &Pins, mode: XdpMode) -> Result<Loaded, Error> {
    let bpf = |what: &'static str| move |e: libbpf_rs::Error| Error::from_bpf(what, &e);
    let mut object = MaybeUninit::uninit();
    let mut open = open_programs::<XdpSkelBuilder>(&mut object, "cannot open the XDP program")?;
    // Frames in pieces pass untouched; a driver with a large MTU requires this flag. In generic mode the flag makes the
    // kernel copy packets so that tc finds them without their Ethernet header (docs/decisions/0014).
    open.progs.fast.set_flags(match mode {
        XdpMode::Native => libbpf_sys::BPF_F_XDP_HAS_FRAGS,
        XdpMode::Generic => 0,
    });
    let (buckets, keys) = hashing_of_table(pins)?;
    set_hash!(open, buckets, keys);
    share(pins, all_maps!(open))?;
    let skel = load_programs(open, "cannot load the XDP program")?;
    Ok(Loaded {
        program: hold(&skel.progs.fast)?,
        exits: MapHandle::try_from(&*skel.maps.exits).map_err(bpf("cannot hold a map"))?,
    })
}
