//! Adds signature algorithms to a ClientHello without them, so that rustls reads it.

/// Extension `signature_algorithms` with ecdsa_secp256r1_sha256 (RFC 8446 section 4.2.3).
const SIGNATURE_ALGORITHMS: [u8; 8] = [0, 13, 0, 4, 0, 2, 4, 3];

/// Length of a handshake message's header: its type and its length.
const HEADER: usize = 4;

/// Longest payload of a record (RFC 8446 section 5.1).
const RECORD: usize = 1 << 14;

/// Returns a copy of the hello in these records, with the extension before the others. Use it for reading only: no
/// client has sent it. Returns `None` if it is no ClientHello, or would be too long.
pub(super) fn with_signature_algorithms(records: &[u8]) -> Option<Vec<u8>> {
    let message = message(records)?;
    let (head, extensions) = message.split_at_checked(extensions_at(&message)?)?;
    // The hello may have no extensions, and not even their length (RFC 5246 section 7.4.1.2).
    let extensions = [&SIGNATURE_ALGORITHMS, extensions.get(2..).unwrap_or_default()].concat();
    let length = u16::try_from(extensions.len()).ok()?.to_be_bytes();
    let body = [head.get(HEADER..)?, &length, &extensions].concat();
    let [0, a, b, c] = u32::try_from(body.len()).ok()?.to_be_bytes() else {
        return None;
    };
    let message = [&[1, a, b, c][..], &body].concat();
    let record = |part: &[u8]| {
        // The cast is safe: a part is never longer than a record.
        let length = (part.len() as u16).to_be_bytes();
        [&[0x16, 3, 1][..], &length, part].concat()
    };
    Some(message.chunks(RECORD).flat_map(record).collect())
}

/// Returns the first handshake message in these records, if it is complete.
fn message(mut records: &[u8]) -> Option<Vec<u8>> {
    let mut message = Vec::new();
    loop {
        let ([0x16, _, _, a, b], rest) = records.split_first_chunk()? else {
            return None;
        };
        let (part, rest) = rest.split_at_checked(u16::from_be_bytes([*a, *b]).into())?;
        message.extend_from_slice(part);
        records = rest;
        if let [1, a, b, c, body @ ..] = &*message {
            let length = u32::from_be_bytes([0, *a, *b, *c]) as usize;
            if body.len() >= length {
                message.truncate(HEADER + length);
                return Some(message);
            }
        }
    }
}

/// Returns the position of the length of its extensions: behind version, random, session, cipher suites and compression
/// methods.
fn extensions_at(message: &[u8]) -> Option<usize> {
    let byte = |at: usize| message.get(at).map(|b| usize::from(*b));
    let session = HEADER + 2 + 32;
    let suites = session + 1 + byte(session)?;
    let methods = suites + 2 + (byte(suites)? << 8) + byte(suites + 1)?;
    let end = methods + 1 + byte(methods)?;
    (end <= message.len()).then_some(end)
}
