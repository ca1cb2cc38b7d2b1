//! Sends signals while programs are loaded: the verifier stops at each that is pending for its thread (EAGAIN).

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use longsplice_dataplane::Dataplane;
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

use crate::support::{
    net::Net,
    plane::{Plane, options, unique_instance},
};

extern "C" fn nothing(_: i32) {}

#[test]
fn programs_are_loaded_under_a_rain_of_signals() {
    const SIGNAL: Signal = Signal::SIGUSR2;
    let _net = Net::new();
    let heard = SigAction::new(SigHandler::Handler(nothing), SaFlags::SA_RESTART, SigSet::empty());
    // SAFETY: the handler does nothing, and no other code here uses this signal.
    unsafe { sigaction(SIGNAL, &heard) }.expect("a handler");
    // SAFETY: the call has no preconditions.
    let (loader, over) = (unsafe { libc::pthread_self() }, AtomicBool::new(false));
    let instance = unique_instance();
    let (opened, sent) = thread::scope(|scope| {
        let rain = scope.spawn(|| {
            let mut sent = 0;
            while !over.load(Ordering::Relaxed) {
                // SAFETY: it is the thread of this scope, which outlives this one.
                assert_eq!(unsafe { libc::pthread_kill(loader, SIGNAL as i32) }, 0);
                sent += 1;
                thread::yield_now();
            }
            sent
        });
        let opened = Dataplane::open(&options(&instance));
        over.store(true, Ordering::Relaxed);
        (opened, rain.join().expect("it only sends"))
    });
    let (plane, _) = opened.unwrap_or_else(|e| panic!("after {sent} signals: {e}"));
    drop(Plane::adopted(plane, &instance));
    println!("{sent} signals");
    // libbpf tries five times.
    assert!(sent > 20, "{sent} signals: no rain");
}
