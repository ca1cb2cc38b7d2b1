//! Header of a stream: a mark, the length of the rest, and the [`Job`] as JSON.

use std::io::{self, Read};

use super::spec::Job;

const MARK: [u8; 4] = *b"LSL1";

/// Encodes the header that gives the server its job.
pub(super) fn encode(job: &Job) -> io::Result<Vec<u8>> {
    let json = serde_json::to_vec(job)?;
    let len = u16::try_from(json.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    Ok([&MARK[..], &len.to_be_bytes(), &json].concat())
}

/// Reads a header, and not a byte more.
pub(super) fn read(mut from: impl Read) -> io::Result<Job> {
    let mut start = [0; 6];
    from.read_exact(&mut start)?;
    let [mark @ .., high, low] = start;
    if mark != MARK {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("no header, but {start:02x?}"),
        ));
    }
    let mut json = vec![0; usize::from(u16::from_be_bytes([high, low]))];
    from.read_exact(&mut json)?;
    Ok(serde_json::from_slice(&json)?)
}

#[cfg(test)]
mod tests {
    use super::super::spec::ConnectionSpec;
    use super::*;

    #[test]
    fn a_header_is_read_back_and_nothing_behind_it() {
        let job = Job {
            id: 3,
            seed: u64::MAX,
            spec: ConnectionSpec::both_ways(5),
        };
        let mut bytes = encode(&job).unwrap();
        bytes.extend(b"rest");
        let mut from = &bytes[..];
        assert_eq!(read(&mut from).unwrap(), job);
        assert_eq!(from, b"rest");
    }

    #[test]
    fn other_bytes_are_no_header() {
        assert_eq!(
            read(&b"GET / HTTP/1.1"[..]).unwrap_err().kind(),
            io::ErrorKind::InvalidData
        );
        assert_eq!(
            read(&b"LSL1"[..]).unwrap_err().kind(),
            io::ErrorKind::UnexpectedEof
        );
    }
}
