//! Reads the counters of the kernel half.

use std::collections::BTreeMap;

use libbpf_rs::{MapCore, MapFlags, MapHandle};

use crate::skel::types::ls_verdict as V;

/// Name of every verdict, as users see it.
const NAMES: &[(V, &str)] = &[
    (V::LS_V_DELIVERED, "delivered"),
    (V::LS_V_FORWARDED, "forwarded"),
    (V::LS_V_DUPLICATED, "duplicated"),
    (V::LS_V_LOCAL_ONLY, "local_only"),
    (V::LS_V_CONSUMED, "consumed"),
    (V::LS_V_EMITTED, "emitted"),
    (V::LS_V_CLAMPED, "clamped"),
    (V::LS_V_SYN_REPLACED, "syn_replaced"),
    (V::LS_V_SYN_REFUSED, "syn_refused"),
    (V::LS_V_ABORTED, "aborted"),
    (V::LS_V_WOKEN, "woken"),
    (V::LS_V_QUEUED, "queued"),
    (V::LS_V_REQUEUED, "requeued"),
    (V::LS_V_FRAGMENT, "fragment"),
    (V::LS_V_ICMP_TRANSLATED, "icmp_translated"),
    (V::LS_V_ICMP_DELIVERED, "icmp_delivered"),
    (V::LS_V_TOO_BIG_TOLD, "too_big_told"),
    (V::LS_V_FORWARDED_XDP, "forwarded_xdp"),
    (V::LS_V_PASSED_XDP, "passed_xdp"),
    (V::LS_V_CSUM_PARTIAL_XDP, "csum_partial_xdp"),
    (V::LS_V_DROP_PARKED, "drop_parked"),
    (V::LS_V_DROP_FRAGMENT, "drop_fragment"),
    (V::LS_V_DROP_IP_OPTIONS, "drop_ip_options"),
    (V::LS_V_DROP_MALFORMED, "drop_malformed"),
    (V::LS_V_DROP_TTL, "drop_ttl"),
    (V::LS_V_DROP_NO_ROUTE, "drop_no_route"),
    (V::LS_V_DROP_TOO_BIG, "drop_too_big"),
    (V::LS_V_DROP_REWRITE, "drop_rewrite"),
    (V::LS_V_DROP_WINDOW, "drop_window"),
    (V::LS_V_DROP_RING_FULL, "drop_ring_full"),
    (V::LS_V_DROP_ICMP, "drop_icmp"),
    (V::LS_V_DROP_ACK, "drop_ack"),
    (V::LS_V_DROP_TSECR, "drop_tsecr"),
    (V::LS_V_DROP_SYN, "drop_syn"),
    (V::LS_V_DROP_RATE, "drop_rate"),
    (V::LS_V_DROP_CHECKSUM, "drop_checksum"),
    (V::LS_V_DROP_RULE, "drop_rule"),
];
// Require a name for each verdict: without it, a drop would be invisible.
const _: () = assert!(NAMES.len() == V::LS_V_COUNT.0 as usize);

/// Returns the counts of packets, by the verdict's name.
pub(crate) fn read(map: &MapHandle) -> BTreeMap<String, u64> {
    sums(map, NAMES.iter().map(|(verdict, name)| (verdict.0, *name)))
}

/// Returns the sums over CPUs of the counters at these indices; empty if the map cannot be read.
pub(crate) fn sums(
    map: &MapHandle,
    names: impl Iterator<Item = (u32, &'static str)>,
) -> BTreeMap<String, u64> {
    names
        .filter_map(|(place, name)| {
            let cpus = map.lookup_percpu(&place.to_ne_bytes(), MapFlags::ANY).ok()??;
            let sum = cpus
                .iter()
                .filter_map(|v| v.first_chunk())
                .map(|v| u64::from_ne_bytes(*v))
                .sum();
            Some((name.to_owned(), sum))
        })
        .collect()
}
