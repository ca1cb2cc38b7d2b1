/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Counts the segments out of order of flows that are forwarded as they come, for the accelerator: they show
 * that the path loses segments (or reorders them). */
#ifndef LONGSPLICE_DISORDER_H
#define LONGSPLICE_DISORDER_H

#include "admit.h"

/* Key of a count: a direction of a flow. */
struct disorder_key {
	__u32 serial;
	__u32 side;
};

/* Holds the counts of the flows that had some lately. They are not pinned: each process counts anew. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, struct disorder_key);
	__type(value, __u32);
} disorders SEC(".maps");

/* Counts a segment if it is out of order. A segment of GRO counts once. Call it before the segment is noted:
 * what XDP leaves to tc of a detached flow is not noted yet. */
static __always_inline void note_disorder(const struct flow_ref *flow, const struct segment *seg)
{
	struct disorder_key key = {.serial = flow->rec->serial, .side = flow->side & 1};
	__u32 one = 1, *n;

	if (!is_out_of_order(flow->rec, seg))
		return;
	n = bpf_map_lookup_elem(&disorders, &key);
	if (n)
		__sync_fetch_and_add(n, 1);
	else
		bpf_map_update_elem(&disorders, &key, &one, BPF_ANY);
}

#endif
