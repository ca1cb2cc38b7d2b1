//! Sends signals while programs are loaded: the verifier stops at each that is pending for its thread (EAGAIN).

use std::{
    sync::atomic::{AtomicBool, AtomicU32, Ordering},
    thread,
};

use longsplice_dataplane::Dataplane;
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

use crate::support::{
    net::Net,
    plane::{Plane, options, unique_instance},
};

extern "C" fn nothing(_: i32) {}

/// Sets the flag when it is dropped.
struct Raise<'a>(&'a AtomicBool);

impl Drop for Raise<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn programs_are_loaded_under_a_rain_of_signals() {
    const SIGNAL: Signal = Signal::SIGUSR2;
    let _net = Net::new();
    let heard = SigAction::new(SigHandler::Handler(nothing), SaFlags::SA_RESTART, SigSet::empty());
    // SAFETY: the handler does nothing, and no other code here uses this signal.
    unsafe { sigaction(SIGNAL, &heard) }.expect("a handler");
    // SAFETY: the call has no preconditions.
    let (loader, over) = (unsafe { libc::pthread_self() }, AtomicBool::new(false));
    let sent = AtomicU32::new(0);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                // SAFETY: it is the thread of this scope, which outlives this one.
                assert_eq!(unsafe { libc::pthread_kill(loader, SIGNAL as i32) }, 0);
                sent.fetch_add(1, Ordering::Relaxed);
                thread::yield_now();
            }
        });
        // However this test ends, the rain ends, too.
        let _end = Raise(&over);
        // One load may be over before the other thread has run for long.
        while sent.load(Ordering::Relaxed) <= 100 {
            let instance = unique_instance();
            let opened = Dataplane::open(&options(&instance));
            let after = sent.load(Ordering::Relaxed);
            let (plane, _) = opened.unwrap_or_else(|e| panic!("after {after} signals: {e}"));
            drop(Plane::adopted(plane, &instance));
        }
    });
}
