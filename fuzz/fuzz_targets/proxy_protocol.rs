//! What a proxy, or somebody who claims to be one, sends before the first byte. The first byte says where the rest is cut.
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
        // Known after some of the bytes, it stays so.
        known => assert_eq!(known, whole, "cut at {cut}"),
    }
    let Ok(Step::Done { header, length }) = whole else {
        return;
    };
    assert!(length <= bytes.len());
    // What was understood is written so that it is understood again; an unknown client's has no vectors.
    if header.version == Version::V1 || header.addresses.is_some() {
        let written = header.write();
        let length = written.len();
        assert_eq!(parse(&written), Ok(Step::Done { header, length }));
    }
});
