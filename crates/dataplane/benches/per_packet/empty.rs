//! Measures what the test run itself takes of each figure.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use libbpf_rs::libbpf_sys;

use crate::{CALLS, spread};

/// Runs for an average: its packet never changes.
const REPEAT: i32 = 1000;

/// A program that gives TC_ACT_OK, loaded.
fn load() -> OwnedFd {
    let instruction = |code: u8, imm: i32| libbpf_sys::bpf_insn {
        code,
        imm,
        ..Default::default()
    };
    // r0 = 0; exit
    let program = [instruction(0xb7, 0), instruction(0x95, 0)];
    // SAFETY: valid instructions, and strings that end in NUL.
    let fd = unsafe {
        libbpf_sys::bpf_prog_load(
            libbpf_sys::BPF_PROG_TYPE_SCHED_CLS,
            c"empty".as_ptr(),
            c"GPL".as_ptr(),
            program.as_ptr(),
            program.len() as libbpf_sys::size_t,
            std::ptr::null_mut(),
        )
    };
    assert!(fd >= 0, "it is loaded");
    // SAFETY: a new descriptor that has no other owner.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

pub(crate) fn row() -> String {
    let (program, packet) = (load(), [0u8; 66]);
    let all = (0..CALLS).map(|_| {
        let mut opts = libbpf_sys::bpf_test_run_opts {
            sz: size_of::<libbpf_sys::bpf_test_run_opts>() as libbpf_sys::size_t,
            data_in: packet.as_ptr().cast(),
            data_size_in: packet.len() as u32,
            repeat: REPEAT,
            ..Default::default()
        };
        // SAFETY: the packet outlives the call, and its length is right.
        let error = unsafe { libbpf_sys::bpf_prog_test_run_opts(program.as_raw_fd(), &mut opts) };
        assert_eq!(error, 0, "it runs");
        opts.duration
    });
    spread(all.collect())
}
