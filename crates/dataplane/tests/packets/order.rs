//! Programs of other owners before and after ours at a hook.

use std::{
    io,
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
};

use libbpf_rs::{Link, libbpf_sys};
use longsplice_dataplane::{Framing, Side, before_instances};

use crate::support::{
    flow::{Flow, Plan},
    options::usual,
    packet::{Packet, pattern},
    tap::{Offload, Tap},
};

fn owned(fd: i32) -> OwnedFd {
    assert!(fd >= 0, "{}", io::Error::from_raw_os_error(-fd));
    // SAFETY: a descriptor that the kernel has just made.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// Loads a program that accepts each packet: `r0 = 0; exit`.
fn accepting() -> OwnedFd {
    let insn = |code| libbpf_sys::bpf_insn {
        code,
        ..Default::default()
    };
    let insns = [insn(0xb7), insn(0x95)];
    // SAFETY: two instructions, and names that end with a zero.
    owned(unsafe {
        libbpf_sys::bpf_prog_load(
            libbpf_sys::BPF_PROG_TYPE_SCHED_CLS,
            c"foreign".as_ptr(),
            c"GPL".as_ptr(),
            insns.as_ptr(),
            insns.len() as u64,
            std::ptr::null_mut(),
        )
    })
}

/// Attaches a program to the ingress of an interface.
fn attach(program: &OwnedFd, ifindex: u32, flags: u32) -> OwnedFd {
    // SAFETY: integers and addresses, for which zero is a value.
    let mut opts: libbpf_sys::bpf_link_create_opts = unsafe { std::mem::zeroed() };
    opts.sz = size_of_val(&opts) as libbpf_sys::size_t;
    opts.flags = flags;
    // SAFETY: a valid descriptor, and options that outlive the call.
    owned(unsafe {
        libbpf_sys::bpf_link_create(
            program.as_raw_fd(),
            ifindex as i32,
            libbpf_sys::BPF_TCX_INGRESS,
            &raw const opts,
        )
    })
}

/// One that accepts packets before ours stops a flow, and is seen while it is there; behind ours it is no matter.
#[test]
fn a_program_before_ours_stops_a_flow_and_is_seen() {
    let flow = Flow::detached(Plan::default());
    for side in Side::BOTH {
        flow.plane
            .attach(flow.ifindex(side), Framing::Ethernet)
            .expect("attached");
    }
    flow.plane.spoil();
    let (side, ifindex) = (Side::Client, flow.ifindex(Side::Client));
    let tap = Tap::with_offload(flow.net.ifindex("a1"));
    let mut sent = 0;
    let mut passes = || {
        sent += 1;
        let packet = Packet {
            payload: pattern(100),
            options: usual(flow.plan.clock[side] + 1, 4),
            ..flow.peer_segment(side)
        };
        let ((), counted) = flow.counted(|| tap.send(&packet.bytes(), Offload::default()));
        counted.get("forwarded").is_some_and(|&n| n == 1)
    };
    let before = || {
        let found = flow.plane.programs_before(ifindex).expect("told");
        // The pins alone tell it, too.
        assert_eq!(before_instances().before.get(&ifindex), Some(&found));
        found.into_iter().map(|f| (f.hook, f.name)).collect::<Vec<_>>()
    };
    assert!(passes() && before().is_empty());
    let foreign = accepting();
    let _behind = attach(&foreign, ifindex, libbpf_sys::BPF_F_AFTER);
    assert!(passes() && before().is_empty());
    let first = attach(&accepting(), ifindex, libbpf_sys::BPF_F_BEFORE);
    assert_eq!(before(), [("ingress", "foreign".to_owned())]);
    assert!(!passes());
    // SAFETY: a valid descriptor.
    assert_eq!(unsafe { libbpf_sys::bpf_link_detach(first.as_raw_fd()) }, 0);
    assert!(before().is_empty());
    assert!(passes());
}

/// Detaches each of our links by force, as `bpftool link detach` does: its pin stays.
#[test]
fn a_link_that_is_detached_by_force_is_missed_and_attached_again() {
    let flow = Flow::detached(Plan::default());
    let ifindex = flow.ifindex(Side::Client);
    let attach = || flow.plane.attach(ifindex, Framing::Ethernet).expect("attached");
    let is_attached = || flow.plane.is_attached(ifindex).expect("told");
    attach();
    for hook in ["ingress", "egress"] {
        assert!(is_attached(), "{hook}");
        let pins = format!("/sys/fs/bpf/longsplice-{}/links", flow.plane.instance);
        let link = Link::open(format!("{pins}/{ifindex}-{hook}")).expect("a link");
        link.detach().expect("it is attached");
        assert!(!is_attached(), "{hook}");
        let unseen = before_instances().unseen;
        assert!(unseen[&ifindex].contains("taken off"), "{unseen:?}");
        attach();
    }
    assert!(is_attached());
}
