// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Moves a spliced flow from its slot into its records, while segments pass: from dormant to detached. User
 * space cannot do that: an update from there replaces an element, and what a segment noted meanwhile would be
 * lost.
 */
#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#include "maps.h"
#include "seq.h"

/* Not read by anybody: it brings the types into BTF. */
const volatile struct ls_types types_for_rust = {};

/* The soft half, so that nothing goes back: a segment may have noted more on either side. */
static __always_inline void merge(struct ls_record *to, const struct ls_record *from)
{
	to->seen |= from->seen;
	to->last_seen = seq_max(to->last_seen, from->last_seen);
	to->rx_end = seq_max(to->rx_end, from->rx_end);
	to->rx_ack = seq_max(to->rx_ack, from->rx_ack);
	to->rx_edge = seq_max(to->rx_edge, from->rx_edge);
	to->ts_high = seq_max(to->ts_high, from->ts_high);
}

/* 0, or 1 if the record is gone. `key` is a copy: the program's argument cannot be one. */
static __always_inline int release_side(struct ls_slot *slot, int side, struct ls_tuple key, __u32 where)
{
	struct ls_record *from = &slot->leg[side].rec;
	struct ls_record *rec = bpf_map_lookup_elem(&flows, &key);

	if (!rec || rec->serial != slot->serial)
		return 1;
	if (rec->placement == LS_DETACHED) {
		merge(rec, from);
		return 0;
	}
	rec->seq_off = from->seq_off;
	rec->ack_off = from->ack_off;
	rec->tsval_off = from->tsval_off;
	rec->tsecr_off = from->tsecr_off;
	rec->seen = from->seen;
	rec->last_seen = from->last_seen;
	rec->rx_end = from->rx_end;
	rec->rx_ack = from->rx_ack;
	rec->rx_edge = from->rx_edge;
	rec->ts_high = from->ts_high;
	rec->bytes = from->bytes;
	rec->segments = from->segments;
	rec->where = where;
	__sync_lock_test_and_set(&slot->barrier, 0);
	*(volatile __u8 *)&rec->placement = LS_DETACHED;
	return 0;
}

/* Returns 0, or 1 if a record is gone: then a new connection has taken the flow's place. May be called again
 * later for the same slot: a segment that was under way during the first call may have noted a FIN in the
 * slot. */
SEC("syscall")
int release(struct ls_release *arg)
{
	__u32 index = arg->slot;
	struct ls_slot *slot = bpf_map_lookup_elem(&slots, &index);

	if (!slot)
		return 1;
	return release_side(slot, LS_CLIENT, arg->key[LS_CLIENT], arg->where[LS_CLIENT]) |
	       release_side(slot, LS_SERVER, arg->key[LS_SERVER], arg->where[LS_SERVER]);
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
