/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * A SYN on a live flow goes to the far end, which challenges it (RFC 5961 section 4.2). Not each of them: one
 * in a tick for each direction on each CPU, so that nobody makes the far end and the path back busy (section
 * 7). A client that lost its connection and sends a SYN needs one challenge, whoever provoked it.
 */
#ifndef LONGSPLICE_CHALLENGE_H
#define LONGSPLICE_CHALLENGE_H

#include "maps.h"
#include "record.h"
#include "scratch.h"

#define CHALLENGES 256

/* When the last SYN passed, in ticks. Directions whose numbers share a place share its allowance. */
struct challenges {
	__u32 at[CHALLENGES];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct challenges);
} challenges SEC(".maps");

static __always_inline int may_challenge(const struct ls_record *rec)
{
	__u32 zero = 0, now = ticks(), i = rec->serial << 1 | (rec->traits & LS_SIDE_SERVER);
	struct challenges *all = bpf_map_lookup_elem(&challenges, &zero);

	i &= CHALLENGES - 1;
	if (!all || all->at[i] == now)
		return 0;
	all->at[i] = now;
	return 1;
}

#endif
