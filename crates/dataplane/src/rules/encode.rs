//! Encodes a set of rules for the kernel half: `struct ls_rules` of bpf/rules_abi.h.

use std::net::SocketAddr;

use ipnet::Ipv6Net;
use longsplice_core::family::mapped;
use longsplice_core::rules::{Entry, MAX_ENTRIES, MAX_TARGETS, Program, Target, Verb};

use super::index;
use crate::{
    abi::{Pod, pod},
    skel::rule_types::{
        ls_rule, ls_rule_action as A, ls_rule_bits, ls_rule_count, ls_rule_packet, ls_rules_head, ls_target,
    },
};

pod!(
    ls_rule,
    ls_target,
    ls_rules_head,
    ls_rule_bits,
    ls_rule_count,
    ls_rule_packet
);
// Assert the sizes: a changed layout must be changed here, too.
const _: () = assert!(
    size_of::<ls_rule>() == 88
        && size_of::<ls_target>() == 56
        && size_of::<ls_rules_head>() == 8
        && size_of::<ls_rule_bits>() == MAX_ENTRIES / 8
        && size_of::<ls_rule_count>() == 16
        && size_of::<ls_rule_packet>() == 24
);

/// Index that no interface has: the kernel's are positive `int`s.
const NO_INTERFACE: u32 = u32::MAX;

/// Returns the bytes of the whole set.
pub(super) fn set(program: &Program, generation: u32, ifindex: impl Fn(&str) -> Option<u32>) -> Vec<u8> {
    let head = ls_rules_head {
        count: program.entries.len() as u32,
        generation,
    };
    let mut rules: Vec<ls_rule> = program.entries.iter().map(|e| entry(e, &ifindex)).collect();
    let bits = index::bits(&rules);
    rules.resize_with(MAX_ENTRIES, ls_rule::default);
    let mut value = head.bytes().to_vec();
    for rule in &rules {
        value.extend(rule.bytes());
    }
    for n in 0..MAX_TARGETS {
        let target = program.targets.get(n).map(target);
        value.extend(target.unwrap_or_default().bytes());
    }
    for one in &bits {
        value.extend(one.bytes());
    }
    value
}

fn entry(e: &Entry, ifindex: impl Fn(&str) -> Option<u32>) -> ls_rule {
    let (action, target) = match e.verb {
        Verb::Pass => (A::LS_A_PASS, 0),
        Verb::Drop => (A::LS_A_DROP, 0),
        Verb::Count => (A::LS_A_COUNT, 0),
        Verb::Deliver(place) => (A::LS_A_DELIVER, place),
        Verb::Translate(place) => (A::LS_A_TRANSLATE, place),
        Verb::Ask => (A::LS_A_ASK, 0),
        Verb::AskOrPass => (A::LS_A_ASK_OR_PASS, 0),
        Verb::Copy => (A::LS_A_COPY, 0),
    };
    let halves = |n: Ipv6Net| (halves(n.addr().to_bits()), halves(n.netmask().to_bits()));
    let ((saddr, smask), (daddr, dmask)) = (halves(e.from), halves(e.to));
    ls_rule {
        saddr,
        smask,
        daddr,
        dmask,
        sport_min: e.from_ports.min(),
        sport_max: e.from_ports.max(),
        dport_min: e.to_ports.min(),
        dport_max: e.to_ports.max(),
        ifindex: e
            .interface
            .as_deref()
            .map_or(0, |name| ifindex(name).unwrap_or(NO_INTERFACE)),
        family: e.family.map_or(0, |f| f.number()),
        flags: e.flags.set(),
        flags_mask: e.flags.mask(),
        action: action.0 as u8,
        rule: e.rule as u32,
        target: target as u32,
    }
}

fn target(t: &Target) -> ls_target {
    match t {
        Target::Listener(None) => ls_target::default(),
        Target::Listener(Some(at)) => ls_target {
            daddr: address(*at),
            dport: at.port().to_be(),
            ..ls_target::default()
        },
        Target::Translation(t) => ls_target {
            saddr: address(t.from),
            daddr: address(t.to),
            sport: t.from.port().to_be(),
            dport: t.to.port().to_be(),
            seq_off: t.seq,
            ack_off: t.ack,
            tsval_off: t.tsval,
            tsecr_off: t.tsecr,
            ..ls_target::default()
        },
    }
}

fn address(of: SocketAddr) -> [u64; 2] {
    halves(mapped(of.ip()).to_bits())
}

/// Returns both halves in network byte order.
fn halves(wide: u128) -> [u64; 2] {
    [(wide >> 64) as u64, wide as u64].map(u64::to_be)
}
