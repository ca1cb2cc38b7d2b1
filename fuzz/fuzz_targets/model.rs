//! Runs sequences of operations on the model, in the simulator of its tests.
#![no_main]

#[path = "../../crates/model/tests/simulation/sim/mod.rs"]
#[allow(dead_code)]
mod sim;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Err(what) = sim::operations::run_operations(bytes) {
        panic!("{what}");
    }
});
