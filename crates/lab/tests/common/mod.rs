//! What the privileged tests share.
#![allow(dead_code, reason = "each test file is a crate of its own, and uses a part")]

use std::time::{Duration, Instant};

use longsplice_lab::{Emulated, Error, LinkSpec, Namespace, Three, ThreeOptions, cleanup};

/// A topology of veth pairs; a test without root fails, and says why.
pub(crate) fn three(name: &str, options: ThreeOptions) -> Three {
    prepare();
    or_needs_root(Three::new(name, options))
}

/// A topology of emulated links.
pub(crate) fn emulated(name: &str, client_link: LinkSpec, server_link: LinkSpec) -> Emulated {
    prepare();
    or_needs_root(Emulated::new(name, client_link, server_link))
}

/// A namespace.
pub(crate) fn namespace(prefix: &str) -> Namespace {
    prepare();
    or_needs_root(Namespace::new(prefix))
}

/// An interrupted test leaves nothing behind.
fn prepare() {
    cleanup::install().expect("signals can be caught");
}

/// The value, or a failed test that says what it needs.
fn or_needs_root<T>(result: Result<T, Error>) -> T {
    match result {
        Ok(value) => value,
        Err(Error::NeedsRoot) => panic!("this test needs root"),
        Err(error) => panic!("{error}"),
    }
}

/// Waits until `condition` holds, where no event tells.
pub(crate) fn eventually(what: &str, condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(
            start.elapsed() < Duration::from_secs(5),
            "waited in vain for {what}"
        );
        std::thread::sleep(Duration::from_millis(1));
    }
}
