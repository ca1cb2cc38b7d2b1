//! Programs that user space runs itself (BPF_PROG_RUN).

use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd},
};

use libbpf_rs::libbpf_sys;

/// Runs a tc program over `packet`, which it may change; returns the program's value.
pub(crate) fn over_packet(program: BorrowedFd<'_>, packet: &mut [u8]) -> io::Result<u32> {
    let input = packet.to_vec();
    let mut opts = libbpf_sys::bpf_test_run_opts {
        sz: size_of::<libbpf_sys::bpf_test_run_opts>() as libbpf_sys::size_t,
        data_in: input.as_ptr().cast(),
        data_size_in: input.len() as u32,
        data_out: packet.as_mut_ptr().cast(),
        data_size_out: packet.len() as u32,
        ..Default::default()
    };
    run(program, &mut opts)
}

/// Runs a syscall program with an argument; returns the program's value.
pub(crate) fn with_argument(program: BorrowedFd<'_>, argument: &[u8]) -> io::Result<u32> {
    let mut opts = libbpf_sys::bpf_test_run_opts {
        sz: size_of::<libbpf_sys::bpf_test_run_opts>() as libbpf_sys::size_t,
        ctx_in: argument.as_ptr().cast(),
        ctx_size_in: argument.len() as u32,
        ..Default::default()
    };
    run(program, &mut opts)
}

fn run(program: BorrowedFd<'_>, opts: &mut libbpf_sys::bpf_test_run_opts) -> io::Result<u32> {
    // SAFETY: the callers' buffers outlive the call, and their lengths are right.
    let err = unsafe { libbpf_sys::bpf_prog_test_run_opts(program.as_raw_fd(), opts) };
    if err < 0 {
        Err(io::Error::from_raw_os_error(-err))
    } else {
        Ok(opts.retval)
    }
}
