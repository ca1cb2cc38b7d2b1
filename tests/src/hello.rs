//! Builds a ClientHello by hand.

/// Builds a ClientHello for this server and these protocols (RFC 8446 section 4.1.2), in records of this size
/// at most.
pub fn client_hello(name: &str, alpn: &[&str], record: usize) -> Vec<u8> {
    let sni = [&[0][..], &with_length::<2>(name.as_bytes())].concat();
    let protocols: Vec<u8> = alpn
        .iter()
        .flat_map(|id| with_length::<1>(id.as_bytes()))
        .collect();
    let extensions: Vec<u8> = [
        (0u16, with_length::<2>(&sni)),
        // supported_groups: x25519; signature_algorithms: ecdsa_secp256r1_sha256; supported_versions: TLS 1.3.
        (10, vec![0, 2, 0, 0x1d]),
        (13, vec![0, 2, 4, 3]),
        (16, with_length::<2>(&protocols)),
        (43, vec![2, 3, 4]),
        (
            51,
            with_length::<2>(&[&[0, 0x1d][..], &with_length::<2>(&[9; 32])].concat()),
        ),
    ]
    .into_iter()
    // An empty list would be malformed.
    .filter(|(kind, _)| *kind != 16 || !alpn.is_empty())
    .flat_map(|(kind, body)| [&kind.to_be_bytes()[..], &with_length::<2>(&body)].concat())
    .collect();
    let body = [
        &[3, 3][..],
        &[7; 32],
        &with_length::<1>(&[5; 32]),
        &with_length::<2>(&[0x13, 1]),
        &with_length::<1>(&[0]),
        &with_length::<2>(&extensions),
    ]
    .concat();
    let message = [&[1][..], &with_length::<3>(&body)].concat();
    message
        .chunks(record)
        .flat_map(|part| [&[0x16, 3, 1][..], &with_length::<2>(part)].concat())
        .collect()
}

/// Prepends the length to bytes, as a number of `N` bytes.
fn with_length<const N: usize>(bytes: &[u8]) -> Vec<u8> {
    let length = (bytes.len() as u64).to_be_bytes();
    [&length[8 - N..], bytes].concat()
}
