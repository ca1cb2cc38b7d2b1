/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Limits the SYNs on live flows that go to the far end, which challenges each (RFC 5961 section 4.2). One SYN
 * per tick passes for each direction on each CPU, so that a flood of SYNs cannot keep the far end and the
 * path back busy (section 7). A client that lost its connection and sends a SYN needs one challenge,
 * whichever SYN provoked it.
 */
#ifndef LONGSPLICE_CHALLENGE_H
#define LONGSPLICE_CHALLENGE_H

#include "maps.h"
#include "record.h"
#include "scratch.h"

#define CHALLENGES 256

/* Ticks at which the last SYN passed. Directions with the same index share one allowance. */
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
