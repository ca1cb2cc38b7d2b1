//! Loads the programs with their maps, or takes over a predecessor's maps.

use std::{
    fs::File,
    io::{self, Read},
    mem::MaybeUninit,
    os::fd::{AsFd, OwnedFd},
};

use libbpf_rs::{
    MapCore, MapFlags, MapHandle, OpenMapMut, OpenObject, Program,
    skel::{OpenSkel, SkelBuilder},
};

use crate::{
    abi::{ABI_VERSION, Pod, ls_meta},
    attach::Programs,
    error::Error,
    forwarding, generations,
    options::Options,
    pins::{self, Pins},
    retry_load::retry_load,
    serials,
    skel::{FlowOpsSkelBuilder, ForwardSkelBuilder, InjectSkelBuilder, InspectSkelBuilder, TableSkelBuilder},
};

/// Equals LS_HASH_KEYS of bpf/abi.h.
const HASH_KEYS: usize = 10;

/// Number of elements of the map `buckets` that one system call returns.
const BUCKETS_BATCH: u32 = 16_384;

/// Key of the only element of the map `meta`.
pub(crate) const META_KEY: [u8; 4] = [0; 4];

/// Holds the programs and maps that were loaded, or taken over from a predecessor.
pub(crate) struct Loaded {
    pub(crate) programs: Programs,
    pub(crate) inspect: OwnedFd,
    pub(crate) moves: Moves,
    pub(crate) inject: OwnedFd,
    /// Programs `insert`, `remove` and `lookup`.
    pub(crate) table: [OwnedFd; 3],
    /// Maps `flows` and `buckets`.
    pub(crate) table_maps: [MapHandle; 2],
    pub(crate) hash_keys: [u32; HASH_KEYS],
    pub(crate) maps: Maps,
}

/// Holds the programs that move flows.
#[derive(Debug)]
pub(crate) struct Moves {
    pub(crate) demote: OwnedFd,
    pub(crate) promote: OwnedFd,
    pub(crate) wake: OwnedFd,
    pub(crate) catch_up: OwnedFd,
    pub(crate) mark_ruled: OwnedFd,
}

/// Holds the maps beside those of the table.
#[derive(Debug)]
pub(crate) struct Maps {
    pub(crate) events: MapHandle,
    pub(crate) slots: MapHandle,
    pub(crate) verdicts: MapHandle,
    pub(crate) meta: MapHandle,
    pub(crate) rulings: MapHandle,
    /// Not pinned: its elements end with the sockets of this process.
    pub(crate) handshakes: MapHandle,
    pub(crate) disorders: MapHandle,
}

/// Sets a program's constants for the table's hash: the number of elements of the map `buckets`, and the keys.
macro_rules! set_hash {
    ($open:expr, $buckets:expr, $keys:expr) => {{
        let constants = $open.maps.rodata_data.as_mut();
        let constants = constants.ok_or_else(|| $crate::error::Error::System {
            what: "a program has no constants".into(),
            source: std::io::ErrorKind::InvalidData.into(),
        })?;
        // Each element has two buckets.
        (constants.table_mask, constants.table_keys) = (2 * $buckets - 1, $keys);
    }};
}
pub(crate) use set_hash;

/// Lists the maps of maps.h, with the names of their pins. (Each skeleton has its own types for them.)
macro_rules! all_maps {
    ($open:expr) => {{
        let maps = &mut $open.maps;
        [
            ("flows", &mut maps.flows),
            ("buckets", &mut maps.buckets),
            ("slots", &mut maps.slots),
            ("verdicts", &mut maps.verdicts),
            ("meta", &mut maps.meta),
            ("rulings", &mut maps.rulings),
            ("events", &mut maps.events),
        ]
    }};
}
pub(crate) use all_maps;

impl Loaded {
    /// Holds the maps, so that their pins can be put back.
    pub(crate) fn hold_maps(&self, pins: &Pins) -> Result<(), Error> {
        let ([flows, buckets], maps) = (&self.table_maps, &self.maps);
        for (name, map) in [
            ("flows", flows),
            ("buckets", buckets),
            ("slots", &maps.slots),
            ("verdicts", &maps.verdicts),
            ("meta", &maps.meta),
            ("rulings", &maps.rulings),
            ("events", &maps.events),
        ] {
            let map = map.as_fd().try_clone_to_owned();
            pins.hold(
                pins.map(name),
                map.map_err(|e| Error::from_io("cannot hold a map", e))?,
            );
        }
        Ok(())
    }
}

/// Loads the programs with the pinned maps of a predecessor, or pins new ones.
pub(crate) fn load(pins: &Pins, options: &Options, adopted: bool) -> Result<Loaded, Error> {
    let (buckets, hash_keys) = hashing(pins, options)?;
    let (programs, table_maps, maps) =
        retry_load(|| load_forward(pins, options, adopted, buckets, hash_keys))?;
    Ok(Loaded {
        programs,
        inspect: retry_load(load_inspect)?,
        moves: retry_load(|| load_moves(pins, buckets, hash_keys))?,
        inject: retry_load(load_inject)?,
        table: retry_load(|| load_table(pins, buckets, hash_keys))?,
        table_maps,
        hash_keys,
        maps,
    })
}

/// Loads the forwarding programs, with the maps that all programs share.
fn load_forward(
    pins: &Pins,
    options: &Options,
    adopted: bool,
    buckets: u32,
    hash_keys: [u32; HASH_KEYS],
) -> Result<(Programs, [MapHandle; 2], Maps), Error> {
    let bpf = |what: &'static str| move |e: libbpf_rs::Error| Error::from_bpf(what, &e);
    let mut object = MaybeUninit::uninit();
    let mut open = open_programs::<ForwardSkelBuilder>(&mut object, "cannot open the programs")?;
    let size = bpf("cannot size the flows");
    open.maps
        .flows
        .set_max_entries(options.elements())
        .map_err(size)?;
    open.maps.buckets.set_max_entries(buckets).map_err(size)?;
    open.maps
        .rulings
        .set_max_entries(options.elements())
        .map_err(bpf("cannot size the rulings"))?;
    open.maps
        .slots
        .set_max_entries(options.max_slots)
        .map_err(bpf("cannot size the slots"))?;
    for (name, map) in all_maps!(open) {
        let path = pins.map(name);
        let pinned = match adopted {
            true => map.reuse_pinned_map(path),
            false => map.set_pin_path(path),
        };
        pinned.map_err(bpf("cannot use the pinned maps"))?;
    }
    set_hash!(open, buckets, hash_keys);
    let forward = load_programs(open, "cannot load the forwarding programs")?;
    let map = |m: &libbpf_rs::MapMut<'_>| MapHandle::try_from(&**m).map_err(bpf("cannot hold a map"));
    let programs = Programs {
        ingress: hold(&forward.progs.ingress)?,
        egress: hold(&forward.progs.egress)?,
    };
    let maps = Maps {
        events: map(&forward.maps.events)?,
        slots: map(&forward.maps.slots)?,
        verdicts: map(&forward.maps.verdicts)?,
        meta: map(&forward.maps.meta)?,
        rulings: map(&forward.maps.rulings)?,
        handshakes: map(&forward.maps.handshakes)?,
        disorders: map(&forward.maps.disorders)?,
    };
    let table = [map(&forward.maps.flows)?, map(&forward.maps.buckets)?];
    Ok((programs, table, maps))
}

fn load_inject() -> Result<OwnedFd, Error> {
    let mut object = MaybeUninit::uninit();
    let open = open_programs::<InjectSkelBuilder>(&mut object, "cannot open the programs")?;
    let inject = load_programs(open, "cannot load the inject program")?;
    hold(&inject.progs.inject)
}

fn load_inspect() -> Result<OwnedFd, Error> {
    let mut object = MaybeUninit::uninit();
    let open = open_programs::<InspectSkelBuilder>(&mut object, "cannot open the programs")?;
    let sockets = load_programs(open, "cannot load the inspect program")?;
    hold(&sockets.progs.inspect)
}

fn load_moves(pins: &Pins, buckets: u32, hash_keys: [u32; HASH_KEYS]) -> Result<Moves, Error> {
    let mut object = MaybeUninit::uninit();
    let mut open = open_programs::<FlowOpsSkelBuilder>(&mut object, "cannot open the programs")?;
    set_hash!(open, buckets, hash_keys);
    share(pins, all_maps!(open))?;
    let moves = load_programs(open, "cannot load the programs that move flows")?;
    Ok(Moves {
        demote: hold(&moves.progs.demote)?,
        promote: hold(&moves.progs.promote)?,
        wake: hold(&moves.progs.wake)?,
        catch_up: hold(&moves.progs.catch_up)?,
        mark_ruled: hold(&moves.progs.mark_ruled)?,
    })
}

/// Loads `insert`, `remove` and `lookup` for a pinned table with so many elements in the map `buckets` and these keys.
pub(crate) fn load_table(
    pins: &Pins,
    buckets: u32,
    hash_keys: [u32; HASH_KEYS],
) -> Result<[OwnedFd; 3], Error> {
    let mut object = MaybeUninit::uninit();
    let mut open = open_programs::<TableSkelBuilder>(&mut object, "cannot open the programs")?;
    set_hash!(open, buckets, hash_keys);
    let maps = &mut open.maps;
    share(pins, [("flows", &mut maps.flows), ("buckets", &mut maps.buckets)])?;
    // A header that we include declares them; the programs do not use them.
    for unused in [
        &mut maps.slots,
        &mut maps.verdicts,
        &mut maps.meta,
        &mut maps.rulings,
        &mut maps.events,
    ] {
        unused
            .set_autocreate(false)
            .map_err(|e| Error::from_bpf("cannot share the maps", &e))?;
    }
    let table = load_programs(open, "cannot load the programs of the table")?;
    Ok([
        hold(&table.progs.insert)?,
        hold(&table.progs.remove)?,
        hold(&table.progs.lookup)?,
    ])
}

/// Opens the programs of a skeleton.
pub(crate) fn open_programs<'o, B: SkelBuilder<'o> + Default>(
    object: &'o mut MaybeUninit<OpenObject>,
    what: &'static str,
) -> Result<B::Output, Error> {
    B::default().open(object).map_err(|e| Error::from_bpf(what, &e))
}

/// Loads opened programs.
pub(crate) fn load_programs<'o, O: OpenSkel<'o>>(open: O, what: &'static str) -> Result<O::Output, Error> {
    open.load().map_err(|e| Error::from_load(what, &e))
}

/// Makes a program use pinned maps, by name.
pub(crate) fn share<const N: usize>(
    pins: &Pins,
    maps: [(&str, &mut OpenMapMut<'_>); N],
) -> Result<(), Error> {
    for (name, map) in maps {
        map.reuse_pinned_map(pins.map(name))
            .map_err(|e| Error::from_bpf("cannot use the pinned maps", &e))?;
    }
    Ok(())
}

/// Returns the number of elements of the pinned map `buckets`, and the keys of its hash; `None` if its process has not made them
/// yet.
pub(crate) fn pinned_hashing(pins: &Pins) -> Result<(Option<u32>, Option<[u32; HASH_KEYS]>), Error> {
    let pinned = |name: &str| {
        let is_there = pins.map(name).exists();
        is_there.then(|| pins.open_map(name)).transpose()
    };
    let buckets = pinned("buckets")?.map(|map| map.max_entries());
    let meta = pinned("meta")?.map(|map| read_meta(&map)).transpose()?;
    Ok((buckets, meta.filter(|m| m.version != 0).map(|m| m.hash_keys)))
}

/// Returns them for programs that are loaded beside the pinned table. Fails if there is no table.
pub(crate) fn hashing_of_table(pins: &Pins) -> Result<(u32, [u32; HASH_KEYS]), Error> {
    match pinned_hashing(pins)? {
        (Some(buckets), Some(keys)) => Ok((buckets, keys)),
        _ => Err(Error::System {
            what: "the pins have no table of flows".into(),
            source: io::ErrorKind::NotFound.into(),
        }),
    }
}

/// Returns the number of elements of the map `buckets` and the keys for a process that starts: a predecessor's, or new ones.
fn hashing(pins: &Pins, options: &Options) -> Result<(u32, [u32; HASH_KEYS]), Error> {
    let (buckets, keys) = pinned_hashing(pins)?;
    let buckets = buckets.unwrap_or_else(|| options.buckets());
    if let Some(keys) = keys {
        return Ok((buckets, keys));
    }
    let mut bytes = [0; 4 * HASH_KEYS];
    File::open("/dev/urandom")
        .and_then(|mut random| random.read_exact(&mut bytes))
        .map_err(|e| Error::from_io("cannot read /dev/urandom", e))?;
    let mut keys = [0; HASH_KEYS];
    for (key, bytes) in keys.iter_mut().zip(bytes.chunks_exact(4)) {
        *key = u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    }
    Ok((buckets, keys))
}

/// Returns a descriptor of a loaded program that outlives its skeleton.
pub(crate) fn hold(program: &Program<'_>) -> Result<OwnedFd, Error> {
    program
        .as_fd()
        .try_clone_to_owned()
        .map_err(|e| Error::from_io("cannot hold a program", e))
}

pub(crate) fn read_meta(map: &MapHandle) -> Result<ls_meta, Error> {
    let value = map.lookup(&META_KEY, MapFlags::ANY);
    let mut value = value
        .map_err(|e| Error::from_bpf("cannot read the pins' version", &e))?
        .unwrap_or_default();
    // Another version's may be shorter.
    value.resize(value.len().max(size_of::<ls_meta>()), 0);
    Ok(ls_meta::from_bytes(&value).unwrap_or_default())
}

/// Returns a generation whose process has ended, to go on with, or `None`. Nothing is loaded or changed, but for the removal
/// of pins that no flow needs. Fails with [`Error::Namespace`] if its flows would be harmed.
pub(crate) fn find_predecessor(options: &Options) -> Result<Option<Pins>, Error> {
    let ours = pins::network_namespace()?;
    let mut found = None;
    generations::prepare(&options.instance)?;
    for pins in Pins::unserved(&options.instance) {
        let path = pins.root().display().to_string();
        let meta = pinned_meta(&pins).unwrap_or_default();
        // A part of the pins, which only a removal by hand leaves, is of no use.
        let is_usable = pins.is_complete() && meta.version == ABI_VERSION && meta.netns == ours;
        let is_needed = has_flows(&pins) && pins.is_readable();
        if !is_usable && !is_needed {
            tracing::info!(path, "removed what an instance left that has no flows");
            pins.remove_all();
        } else if meta.netns != ours {
            return Err(Error::Namespace {
                path,
                found: meta.netns,
                ours,
            });
        } else if is_usable && found.is_none() {
            found = Some(pins);
        }
        // Flows of another generation are adopted once the programs are attached.
    }
    Ok(found)
}

pub(crate) fn pinned_meta(pins: &Pins) -> Result<ls_meta, Error> {
    read_meta(&pins.open_map("meta")?)
}

/// Returns true if a predecessor's table has a flow, in any layout. Up to ABI version 7 the map of buckets had the name
/// `heads`, and up to version 4 there was none.
fn has_flows(pins: &Pins) -> bool {
    let open = |name| MapHandle::from_pinned_path(pins.map(name));
    let Ok(buckets) = open("buckets").or_else(|_| open("heads")) else {
        return open("flows").is_ok_and(|m| m.keys().next().is_some());
    };
    let empty = vec![0; buckets.value_size() as usize];
    let all = buckets.lookup_batch(BUCKETS_BATCH, MapFlags::ANY, MapFlags::ANY);
    all.is_ok_and(|mut all| all.any(|(_, bucket)| bucket != empty))
}

/// Returns what other generations in this network namespace have noted, of any instance; `None` of one with another layout,
/// which may be in another namespace. What belongs to the namespace is theirs, too.
pub(crate) fn metas_of_namespace(pins: &Pins, netns: u64) -> Vec<Option<ls_meta>> {
    let metas = pins.others().into_iter().map(|other| pinned_meta(&other).ok());
    metas
        .filter(|meta| meta.is_none_or(|meta| meta.netns == netns))
        .collect()
}

/// Returns the contents of the map `meta`; writes them first if it is new. A later generation goes on with the numbers of
/// those of its instance before it. The last one of the network namespace restores the sysctl that the first one found.
pub(crate) fn init_meta(
    map: &MapHandle,
    pins: &Pins,
    options: &Options,
    hash_keys: [u32; HASH_KEYS],
) -> Result<ls_meta, Error> {
    let mut meta = read_meta(map)?;
    if meta.version == 0 {
        let netns = pins::network_namespace()?;
        let siblings = pins.siblings();
        let before = siblings.iter().filter_map(|other| pinned_meta(other).ok());
        let serials = before
            .filter(|meta| meta.netns == netns)
            .map(|meta| meta.next_serial)
            .max();
        let neighbour = metas_of_namespace(pins, netns).into_iter().flatten().next();
        meta = ls_meta {
            version: ABI_VERSION,
            next_serial: serials.map_or(1, serials::of_successor),
            netns,
            lo_forwarding: neighbour.map_or_else(forwarding::found, |meta| meta.lo_forwarding),
            max_flows: options.max_flows,
            hash_keys,
        };
        map.update(&META_KEY, meta.bytes(), MapFlags::ANY)
            .map_err(|e| Error::from_bpf("cannot write the version", &e))?;
    }
    Ok(meta)
}
