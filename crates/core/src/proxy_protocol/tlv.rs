//! Reads and writes vectors of type, length and value behind the addresses of version 2 (section 2.2 of the
//! specification).

use crc::{CRC_32_ISCSI, Crc};

use super::{Header, Malformed};

const ALPN: u8 = 0x01;
const AUTHORITY: u8 = 0x02;
const CRC32C: u8 = 0x03;

const CASTAGNOLI: Crc<u32> = Crc::<u32>::new(&CRC_32_ISCSI);

/// Vectors that are used.
#[derive(Debug, Default)]
pub(super) struct Vectors {
    pub(super) authority: Option<String>,
    pub(super) alpn: Option<Vec<u8>>,
}

/// Reads `vectors`, the end of the header `whole`, and checks its checksum if it has one. Unknown types are skipped.
pub(super) fn read(whole: &[u8], vectors: &[u8]) -> Result<Vectors, Malformed> {
    let mut found = Vectors::default();
    let mut rest = vectors;
    while let Some((&kind, after)) = rest.split_first() {
        let malformed = Malformed::Vector(kind);
        let (length, after) = after.split_first_chunk::<2>().ok_or(malformed)?;
        let length = usize::from(u16::from_be_bytes(*length));
        let (value, after) = after.split_at_checked(length).ok_or(malformed)?;
        match kind {
            ALPN => found.alpn = Some(value.to_vec()),
            AUTHORITY => {
                let name = std::str::from_utf8(value).map_err(|_| malformed)?;
                found.authority = Some(name.to_owned());
            }
            CRC32C => {
                let expected = value.try_into().map_err(|_| malformed)?;
                check(whole, after.len(), u32::from_be_bytes(expected))?;
            }
            _ => {}
        }
        rest = after;
    }
    Ok(found)
}

/// Checks the checksum: that of the header with zeros in its own place, which ends `behind` bytes before the header
/// does.
fn check(whole: &[u8], behind: usize, expected: u32) -> Result<(), Malformed> {
    let end = whole.len() - behind;
    let (before, after) = (&whole[..end - 4], &whole[end..]);
    let mut digest = CASTAGNOLI.digest();
    for part in [before, &[0; 4], after] {
        digest.update(part);
    }
    match digest.finalize() == expected {
        true => Ok(()),
        false => Err(Malformed::Checksum),
    }
}

/// Appends the vectors of a header, as long as the length field can hold their length.
pub(super) fn write(header: &Header, bytes: &mut Vec<u8>) {
    let authority = header.authority.as_deref().map(str::as_bytes);
    for (kind, value) in [(ALPN, header.alpn.as_deref()), (AUTHORITY, authority)] {
        let Some(value) = value else { continue };
        let Ok(length) = u16::try_from(value.len()) else {
            continue;
        };
        if bytes.len() + 3 + value.len() <= usize::from(u16::MAX) {
            bytes.push(kind);
            bytes.extend(length.to_be_bytes());
            bytes.extend(value);
        }
    }
}
