//! Describes the values of a map by the names of their fields, and converts values of one layout to another. The kernel
//! has the names and the places: maps carry BTF. So the flows of a daemon of another version can be read without its
//! header file.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, Write},
    ops::Range,
    os::fd::{AsFd, AsRawFd},
};

use libbpf_rs::{
    MapHandle, MapInfo,
    btf::{
        Btf, BtfKind, BtfType, HasSize, TypeId,
        types::{Array, Enum, Enum64, Int, MemberAttr, Struct},
    },
    libbpf_sys,
};
use rustix::fs::{MemfdFlags, memfd_create};

use crate::error::Error;

/// Places of the fields of a value, by their names: `from.0.rec.serial`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Layout {
    fields: BTreeMap<String, Range<usize>>,
    size: usize,
}

impl Layout {
    /// Reads the layout of a map's values. Fails if the map has no BTF, or its values have fields that are not whole
    /// bytes.
    pub(crate) fn of_values(map: &MapHandle) -> Result<Layout, Error> {
        let unreadable = |e: io::Error| Error::from_io("cannot read the layout of a map", e);
        let info = MapInfo::new(map.as_fd())
            .map_err(|e| Error::from_bpf("cannot read the layout of a map", &e))?
            .info;
        let btf = btf_of(info.btf_id).map_err(unreadable)?;
        let value: BtfType<'_> = btf
            .type_by_id(TypeId::from(info.btf_value_type_id))
            .ok_or_else(|| unreadable(io::ErrorKind::InvalidData.into()))?;
        let mut layout = Layout {
            fields: BTreeMap::new(),
            size: info.value_size as usize,
        };
        layout
            .add(&btf, "", 0, value)
            .ok_or_else(|| unreadable(io::ErrorKind::InvalidData.into()))?;
        Ok(layout)
    }

    /// Adds the fields of a type at a place; `None` if it cannot be described. Returns its size.
    fn add(&mut self, btf: &Btf<'_>, name: &str, at: usize, ty: BtfType<'_>) -> Option<usize> {
        let under = |part: &str| match name {
            "" => part.to_owned(),
            name => format!("{name}.{part}"),
        };
        let ty = ty.skip_mods_and_typedefs();
        match ty.kind() {
            BtfKind::Struct => {
                let all = Struct::try_from(ty).ok()?;
                for member in all.iter() {
                    let MemberAttr::Normal { offset: bits } = member.attr else {
                        return None;
                    };
                    let inner = btf.type_by_id(member.ty)?;
                    self.add(btf, &under(member.name?.to_str()?), at + bits as usize / 8, inner)?;
                }
                Some(all.size())
            }
            BtfKind::Array => {
                let array = Array::try_from(ty).ok()?;
                let mut size = 0;
                for n in 0..array.capacity() {
                    size += self.add(btf, &under(&n.to_string()), at + size, array.contained_type())?;
                }
                Some(size)
            }
            kind => {
                let size = match kind {
                    BtfKind::Int => Int::try_from(ty).ok()?.size(),
                    BtfKind::Enum => Enum::try_from(ty).ok()?.size(),
                    BtfKind::Enum64 => Enum64::try_from(ty).ok()?.size(),
                    _ => return None,
                };
                self.fields.insert(name.to_owned(), at..at + size);
                Some(size)
            }
        }
    }

    /// Returns the layout with the fields whose names begin with `from`, as `to` instead.
    pub(crate) fn renamed(&self, names: &[(&str, &str)]) -> Layout {
        let renamed = |(name, place): (&String, &Range<usize>)| {
            let (from, to) = names.iter().find(|(from, _)| name.starts_with(from))?;
            Some((format!("{to}{}", &name[from.len()..]), place.clone()))
        };
        Layout {
            fields: self.fields.iter().filter_map(renamed).collect(),
            size: self.size,
        }
    }

    /// Returns the field of this name in a value, if it has at most eight bytes.
    pub(crate) fn read(&self, value: &[u8], field: &str) -> Option<u64> {
        let bytes = value.get(self.fields.get(field)?.clone())?;
        let mut number = [0; 8];
        number.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(u64::from_ne_bytes(number))
    }

    /// Sets the field of this name in a value to zero.
    pub(crate) fn clear(&self, value: &mut [u8], field: &str) {
        let bytes = self
            .fields
            .get(field)
            .and_then(|place| value.get_mut(place.clone()));
        bytes.into_iter().for_each(|bytes| bytes.fill(0));
    }
}

/// Returns the types of a kernel object.
fn btf_of(id: u32) -> io::Result<Btf<'static>> {
    // SAFETY: plain integers; libbpf returns a null pointer, or types that we own.
    let btf = unsafe { libbpf_sys::btf__load_from_kernel_by_id(id) };
    if btf.is_null() {
        return Err(io::Error::last_os_error());
    }
    let mut size = 0;
    // SAFETY: types that we own; the bytes live as long as they do, and are copied before they are freed.
    let raw = unsafe {
        let bytes = libbpf_sys::btf__raw_data(btf, &raw mut size);
        let copy = (!bytes.is_null())
            .then(|| std::slice::from_raw_parts(bytes.cast::<u8>(), size as usize).to_vec());
        libbpf_sys::btf__free(btf);
        copy
    };
    let raw = raw.ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))?;
    // Let the library parse it: it takes files only.
    let mut file = File::from(memfd_create("btf", MemfdFlags::CLOEXEC)?);
    file.write_all(&raw)?;
    Btf::from_path(format!("/proc/self/fd/{}", file.as_raw_fd())).map_err(io::Error::other)
}

/// Converts values of one layout to another, field by field.
#[derive(Debug)]
pub(crate) struct Conversion {
    size: usize,
    copied: Vec<(Range<usize>, Range<usize>)>,
    /// Fields that the other layout lacks.
    lost: Vec<Range<usize>>,
}

/// Value in another layout.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Converted {
    pub(crate) value: Vec<u8>,
    /// False if the other layout has no place for a number that is not zero.
    pub(crate) is_whole: bool,
}

impl Conversion {
    pub(crate) fn new(from: &Layout, to: &Layout) -> Conversion {
        let mut conversion = Conversion {
            size: to.size,
            copied: Vec::new(),
            lost: Vec::new(),
        };
        for (name, place) in &from.fields {
            match to.fields.get(name) {
                Some(there) => conversion.copied.push((place.clone(), there.clone())),
                None => conversion.lost.push(place.clone()),
            }
        }
        conversion
    }

    /// Converts a value. Fields that the old layout lacks are zero.
    pub(crate) fn convert(&self, value: &[u8]) -> Converted {
        let mut to = vec![0; self.size];
        let is_zero = |bytes: Option<&[u8]>| bytes.is_some_and(|bytes| bytes.iter().all(|&byte| byte == 0));
        let mut is_whole = self.lost.iter().all(|lost| is_zero(value.get(lost.clone())));
        for (from, there) in &self.copied {
            let common = from.len().min(there.len());
            let Some((bytes, rest)) = value.get(from.clone()).map(|field| field.split_at(common)) else {
                is_whole = false;
                continue;
            };
            // Numbers are little-endian on all machines that are supported: the rest of a longer one is its upper part.
            is_whole &= is_zero(Some(rest));
            to[there.start..there.start + common].copy_from_slice(bytes);
        }
        Converted { value: to, is_whole }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(fields: &[(&str, Range<usize>)], size: usize) -> Layout {
        let fields = fields
            .iter()
            .map(|(name, place)| ((*name).to_owned(), place.clone()));
        Layout {
            fields: fields.collect(),
            size,
        }
    }

    #[test]
    fn fields_find_their_places_by_name() {
        let old = layout(&[("a", 0..4), ("b", 4..6), ("gone", 6..8)], 8);
        let new = layout(&[("b", 0..4), ("new", 4..8), ("a", 8..12)], 12);
        let there = Conversion::new(&old, &new);
        let converted = there.convert(&[1, 2, 3, 4, 5, 6, 0, 0]);
        assert_eq!(converted.value, [5, 6, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4]);
        assert!(converted.is_whole);
        assert!(
            !there.convert(&[1, 2, 3, 4, 5, 6, 0, 1]).is_whole,
            "it has no place"
        );
        let back = Conversion::new(&new, &old);
        assert_eq!(back.convert(&converted.value).value, [1, 2, 3, 4, 5, 6, 0, 0]);
        assert!(
            !back.convert(&[0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0]).is_whole,
            "too large"
        );
    }

    #[test]
    fn a_part_can_have_another_name() {
        let slot = layout(&[("mode", 0..4), ("leg.1.rec.a", 4..8)], 8);
        let record = slot.renamed(&[("leg.1.rec.", "from.1.rec.")]);
        assert_eq!(record, layout(&[("from.1.rec.a", 4..8)], 8));
        assert_eq!(slot.read(&[9, 0, 0, 0, 1, 1, 0, 0], "leg.1.rec.a"), Some(257));
    }
}
