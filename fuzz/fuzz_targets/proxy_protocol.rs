//! First bytes of a proxy, real or pretended. The first byte is the position at which the rest is cut.
#![no_main]

use longsplice_core::proxy_protocol::{Step, Version, parse};

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let Some((first, bytes)) = input.split_first() else {
        return;
    };
    let whole = parse(bytes);
    let cut = usize::from(*first).min(bytes.len());
    match parse(&bytes[..cut]) {
        Ok(Step::NeedMore) => {}
        // A result after some of the bytes is final.
        known => assert_eq!(known, whole, "cut at {cut}"),
    }
    let Ok(Step::Done { header, length }) = whole else {
        return;
    };
    assert!(length <= bytes.len());
    // A parsed header must survive a round trip; one of an unknown client loses its vectors.
    if header.version == Version::V1 || header.addresses.is_some() {
        let written = header.write();
        let length = written.len();
        assert_eq!(parse(&written), Ok(Step::Done { header, length }));
    }
});
