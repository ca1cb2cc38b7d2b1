//! Runs programs from user space (BPF_PROG_RUN).

use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd},
};

use libbpf_rs::libbpf_sys;

use crate::{
    abi::Pod,
    skel::{__sk_buff, xdp_md},
};

const ETH_HLEN: usize = 14;

/// Bytes by which a program may lengthen a packet.
const GROWTH: usize = 128;

/// Result of a tc or XDP program over a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ran {
    /// Return value of the program: TC_ACT_OK (0), TC_ACT_SHOT (2), TC_ACT_REDIRECT (7)…, or XDP_PASS (2), XDP_TX (3),
    /// XDP_REDIRECT (4).
    pub verdict: u32,
    /// Packet after the run.
    pub packet: Vec<u8>,
    /// Mark of the packet after the run; 0 for XDP.
    pub mark: u32,
    /// Nanoseconds that one run took, averaged over the repetitions.
    pub nanoseconds: u32,
}

/// Metadata of a packet, apart from its bytes. The default is a plain packet on the loopback.
#[derive(Debug, Clone, Copy, Default)]
pub struct Context {
    /// Interface of the packet; 0: the loopback.
    pub ifindex: u32,
    /// Payload of each segment of a super-packet, in bytes.
    pub gso_size: u32,
    /// Number of segments of a super-packet.
    pub gso_segs: u32,
    /// True if the device has summed it up (CHECKSUM_COMPLETE). The kernel then verifies that the program kept the sum
    /// right: `EBADMSG` if not.
    pub summed: bool,
}

/// Runs a tc program `repeat` times over a packet; redirected packets go nowhere.
pub(crate) fn over_packet(
    program: BorrowedFd<'_>,
    packet: &[u8],
    context: Context,
    repeat: u32,
) -> io::Result<Ran> {
    // SAFETY: integers and pointers, for which zero is a value. The kernel requires zeros in unused fields, and a
    // `Default` may leave the unions' spare bytes as they are.
    let mut skb: __sk_buff = unsafe { std::mem::zeroed() };
    skb.ifindex = context.ifindex;
    skb.gso_size = context.gso_size;
    skb.gso_segs = context.gso_segs;
    let flags = match context.summed {
        true => libbpf_sys::BPF_F_TEST_SKB_CHECKSUM_COMPLETE,
        false => 0,
    };
    let ran = in_context(program, packet, &mut skb, flags, repeat)?;
    Ok(Ran {
        mark: skb.mark,
        ..ran
    })
}

/// Runs an XDP program over a frame that came in at an interface.
pub(crate) fn over_frame(
    program: BorrowedFd<'_>,
    frame: &[u8],
    ifindex: u32,
    repeat: u32,
) -> io::Result<Ran> {
    // SAFETY: integers, for which zero is a value.
    let mut md: xdp_md = unsafe { std::mem::zeroed() };
    md.data_end = frame.len() as u32;
    md.ingress_ifindex = ifindex;
    in_context(program, frame, &mut md, 0, repeat)
}

/// Runs a program over a packet in a context: a `__sk_buff` or an `xdp_md`. The context is changed as the program leaves
/// it; the mark in the result is 0.
fn in_context<C: Copy>(
    program: BorrowedFd<'_>,
    packet: &[u8],
    context: &mut C,
    flags: u32,
    repeat: u32,
) -> io::Result<Ran> {
    // The packet may become longer: an IPv6 header in place of one of IPv4, an error with a quote.
    let mut out = vec![0; packet.len() + GROWTH];
    let before = *context;
    let mut opts = libbpf_sys::bpf_test_run_opts {
        sz: size_of::<libbpf_sys::bpf_test_run_opts>() as libbpf_sys::size_t,
        data_in: packet.as_ptr().cast(),
        data_size_in: packet.len() as u32,
        data_out: out.as_mut_ptr().cast(),
        data_size_out: out.len() as u32,
        ctx_in: (&raw const before).cast(),
        ctx_size_in: size_of::<C>() as u32,
        ctx_out: std::ptr::from_mut(context).cast(),
        ctx_size_out: size_of::<C>() as u32,
        repeat: repeat as i32,
        flags,
        ..Default::default()
    };
    let verdict = run(program, &mut opts)?;
    out.truncate(opts.data_size_out as usize);
    Ok(Ran {
        verdict,
        packet: out,
        mark: 0,
        nanoseconds: opts.duration,
    })
}

/// Runs a tc program whose argument, and answer, stand behind an Ethernet header, and returns the answer.
pub(crate) fn question<T: Pod>(program: BorrowedFd<'_>, argument: &T) -> io::Result<T> {
    let mut packet = vec![0; ETH_HLEN + size_of::<T>()];
    packet[ETH_HLEN..].copy_from_slice(argument.bytes());
    let answer = over_packet(program, &packet, Context::default(), 1)?;
    if answer.verdict != 0 {
        return Err(io::Error::other("the program could not answer"));
    }
    T::from_bytes(answer.packet.get(ETH_HLEN..).unwrap_or_default())
        .ok_or_else(|| io::Error::other("the program's answer is cut short"))
}

/// Runs a syscall program with an argument; returns the program's value.
pub(crate) fn with_argument(program: BorrowedFd<'_>, argument: &[u8]) -> io::Result<u32> {
    // The kernel writes the argument back, as the program leaves it.
    let mut own = argument.to_vec();
    let mut opts = libbpf_sys::bpf_test_run_opts {
        sz: size_of::<libbpf_sys::bpf_test_run_opts>() as libbpf_sys::size_t,
        ctx_in: own.as_mut_ptr().cast_const().cast(),
        ctx_size_in: own.len() as u32,
        ..Default::default()
    };
    run(program, &mut opts)
}

fn run(program: BorrowedFd<'_>, opts: &mut libbpf_sys::bpf_test_run_opts) -> io::Result<u32> {
    // SAFETY: the callers' buffers outlive the call, and their lengths are right. What the kernel writes to, the answers and
    // the argument of a syscall program, is the callers' alone, and writable.
    let err = unsafe { libbpf_sys::bpf_prog_test_run_opts(program.as_raw_fd(), opts) };
    if err < 0 {
        Err(io::Error::from_raw_os_error(-err))
    } else {
        Ok(opts.retval)
    }
}
