//! Loading the programs with their maps, or taking over a predecessor's maps.

use std::{
    mem::MaybeUninit,
    os::fd::{AsFd, OwnedFd},
    path::Path,
};

use libbpf_rs::{
    MapCore, MapFlags, MapHandle, OpenMapMut, Program,
    skel::{OpenSkel, SkelBuilder},
};

use crate::{
    abi::{ABI_VERSION, Pod, ls_meta},
    attach::Programs,
    dataplane::Options,
    error::Error,
    forwarding,
    pins::{self, Pins},
    skel::{ForwardSkelBuilder, InjectSkelBuilder, MoveSkelBuilder, SocketsSkelBuilder},
};

/// Of the only element of the map `meta`.
pub(crate) const META_KEY: [u8; 4] = [0; 4];

/// What was loaded, or taken over from a predecessor.
pub(crate) struct Loaded {
    pub(crate) programs: Programs,
    pub(crate) peek: OwnedFd,
    pub(crate) release: OwnedFd,
    pub(crate) attach: OwnedFd,
    pub(crate) wake: OwnedFd,
    pub(crate) inject: OwnedFd,
    pub(crate) events: MapHandle,
    pub(crate) flows: MapHandle,
    pub(crate) slots: MapHandle,
    pub(crate) verdicts: MapHandle,
    pub(crate) meta: MapHandle,
}

pub(crate) fn load(pins: &Pins, options: &Options) -> Result<Loaded, Error> {
    let bpf = |what: &'static str| move |e: libbpf_rs::Error| Error::from_bpf(what, &e);
    let loading = |what: &'static str| move |e: libbpf_rs::Error| Error::from_load(what, &e);
    let mut object = MaybeUninit::uninit();
    let mut open = ForwardSkelBuilder::default()
        .open(&mut object)
        .map_err(bpf("cannot open the programs"))?;
    open.maps
        .flows
        .set_max_entries(options.max_flows * 2)
        .map_err(bpf("cannot size the flows"))?;
    open.maps
        .slots
        .set_max_entries(options.max_slots)
        .map_err(bpf("cannot size the slots"))?;
    let maps = &mut open.maps;
    for (name, map) in [
        ("flows", &mut maps.flows),
        ("slots", &mut maps.slots),
        ("verdicts", &mut maps.verdicts),
        ("meta", &mut maps.meta),
        ("events", &mut maps.events),
    ] {
        adopt_or_pin(map, &pins.map(name)).map_err(bpf("cannot use the pinned maps"))?;
    }
    let forward = open
        .load()
        .map_err(loading("cannot load the forwarding programs"))?;

    let mut object = MaybeUninit::uninit();
    let mut open = MoveSkelBuilder::default()
        .open(&mut object)
        .map_err(bpf("cannot open the programs"))?;
    let reuse = bpf("cannot share the maps");
    open.maps
        .flows
        .reuse_fd(forward.maps.flows.as_fd())
        .map_err(&reuse)?;
    open.maps
        .slots
        .reuse_fd(forward.maps.slots.as_fd())
        .map_err(&reuse)?;
    open.maps
        .verdicts
        .reuse_fd(forward.maps.verdicts.as_fd())
        .map_err(&reuse)?;
    open.maps
        .meta
        .reuse_fd(forward.maps.meta.as_fd())
        .map_err(&reuse)?;
    open.maps
        .events
        .reuse_fd(forward.maps.events.as_fd())
        .map_err(&reuse)?;
    let moves = open
        .load()
        .map_err(loading("cannot load the programs that move flows"))?;

    let mut object = MaybeUninit::uninit();
    let open = InjectSkelBuilder::default()
        .open(&mut object)
        .map_err(bpf("cannot open the programs"))?;
    let inject = open.load().map_err(loading("cannot load the inject program"))?;

    let mut object = MaybeUninit::uninit();
    let open = SocketsSkelBuilder::default()
        .open(&mut object)
        .map_err(bpf("cannot open the programs"))?;
    let sockets = open.load().map_err(loading("cannot load the peek program"))?;

    let map = |m: &libbpf_rs::MapMut<'_>| MapHandle::try_from(&**m).map_err(bpf("cannot hold a map"));
    Ok(Loaded {
        programs: Programs {
            ingress: hold(&forward.progs.ingress)?,
            egress: hold(&forward.progs.egress)?,
        },
        peek: hold(&sockets.progs.peek)?,
        release: hold(&moves.progs.release)?,
        attach: hold(&moves.progs.attach)?,
        wake: hold(&moves.progs.wake)?,
        inject: hold(&inject.progs.inject)?,
        events: map(&forward.maps.events)?,
        flows: map(&forward.maps.flows)?,
        slots: map(&forward.maps.slots)?,
        verdicts: map(&forward.maps.verdicts)?,
        meta: map(&forward.maps.meta)?,
    })
}

/// A descriptor of a loaded program that outlives its skeleton.
pub(crate) fn hold(program: &Program<'_>) -> Result<OwnedFd, Error> {
    program
        .as_fd()
        .try_clone_to_owned()
        .map_err(|e| Error::from_io("cannot hold a program", e))
}

/// Takes a predecessor's map, or has the new one pinned when it is created.
fn adopt_or_pin(map: &mut OpenMapMut<'_>, path: &Path) -> libbpf_rs::Result<()> {
    if path.exists() {
        map.reuse_pinned_map(path)?;
    }
    map.set_pin_path(path)
}

pub(crate) fn read_meta(map: &MapHandle) -> Result<ls_meta, Error> {
    let mut value = [0; size_of::<ls_meta>()];
    map.lookup_into(&META_KEY, &mut value, MapFlags::ANY)
        .map_err(|e| Error::from_bpf("cannot read the pins' version", &e))?;
    Ok(ls_meta::from_bytes(&value).unwrap_or_default())
}

/// Nothing is loaded or changed before this has passed.
pub(crate) fn refuse_foreign(pins: &Pins, options: &Options) -> Result<(), Error> {
    let path = pins.map("meta");
    if !path.exists() {
        return Ok(());
    }
    let map = MapHandle::from_pinned_path(&path)
        .map_err(|e| Error::from_bpf(format!("cannot open {}", path.display()), &e))?;
    let meta = read_meta(&map)?;
    let ours = pins::network_namespace()?;
    let path = pins.root().display().to_string();
    let (other_version, other_namespace) = (
        meta.version != 0 && meta.version != ABI_VERSION,
        meta.netns != 0 && meta.netns != ours,
    );
    if (other_version || other_namespace) && !has_flows(pins) {
        tracing::info!(path, "removed what an instance left that has no flows");
        pins.remove_all();
        return Pins::prepare(&options.instance).map(drop);
    }
    if other_version {
        return Err(Error::Version {
            path,
            found: meta.version,
            ours: ABI_VERSION,
        });
    }
    if other_namespace {
        return Err(Error::Namespace {
            path,
            found: meta.netns,
            ours,
        });
    }
    Ok(())
}

/// Whether a predecessor's table has any flow, of whatever layout.
fn has_flows(pins: &Pins) -> bool {
    let map = MapHandle::from_pinned_path(pins.map("flows"));
    map.is_ok_and(|m| m.keys().next().is_some())
}

pub(crate) fn init_meta(map: &MapHandle) -> Result<ls_meta, Error> {
    let mut meta = read_meta(map)?;
    if meta.version == 0 {
        meta = ls_meta {
            version: ABI_VERSION,
            next_serial: 1,
            netns: pins::network_namespace()?,
            lo_forwarding: forwarding::found(),
            ..Default::default()
        };
        map.update(&META_KEY, meta.bytes(), MapFlags::ANY)
            .map_err(|e| Error::from_bpf("cannot write the version", &e))?;
    }
    Ok(meta)
}
