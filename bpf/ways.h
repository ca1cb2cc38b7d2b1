/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Where the segments of a direction went a moment ago: a route look-up costs more than the whole translation.
 * What is remembered is good until the next tick of the kernel's timer, 1 to 10 ms, whoever may change
 * routes, neighbours or interfaces, and with nobody there to tell us (docs/decisions/0009).
 */
#ifndef LONGSPLICE_WAYS_H
#define LONGSPLICE_WAYS_H

#include "ip.h"
#include "maps.h"

struct route {
	__u32 ifindex;
	__u32 resolve; /* the kernel must find the neighbour: redirect through bpf_redirect_neigh() */
};

/* A direction's header toward the far end is constant, and its serial number and side say which one it is. */
struct way {
	__u64 at; /* jiffies */
	__u32 serial, side;
	__be32 class;  /* all else that a rule may look at: DSCP, or traffic class and flow label */
	__u32 longest; /* packet that passes, from its Ethernet header on; of super-packets, any does */
	struct route route;
	__u8 macs[2 * ETH_ALEN];
};

#define WAYS 256

struct ways {
	struct way way[WAYS];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct ways);
} ways SEC(".maps");

static __always_inline struct way *way_of(const struct ls_record *rec)
{
	__u32 zero = 0, at = rec->serial << 1 | (rec->traits & LS_SIDE_SERVER);
	struct ways *all = bpf_map_lookup_elem(&ways, &zero);

	return all ? &all->way[at & (WAYS - 1)] : NULL;
}

static __always_inline int is_known(const struct way *way, const struct __sk_buff *skb,
				    const struct headers *h, const struct ls_record *rec)
{
	return way->at == bpf_jiffies64() && way->serial == rec->serial &&
	       way->side == (rec->traits & LS_SIDE_SERVER) && way->class == class_of(h) &&
	       (skb->len <= way->longest || skb->gso_size);
}

static __always_inline void remember(struct way *way, struct headers *h, const struct ls_record *rec,
				     const struct route *route, __u32 mtu)
{
	way->at = bpf_jiffies64();
	way->serial = rec->serial;
	way->side = rec->traits & LS_SIDE_SERVER;
	way->class = class_of(h);
	/* The kernel looks at the length itself where it looks for the neighbour. */
	way->longest = route->resolve ? ~0U : mtu + ETH_HLEN;
	way->route = *route;
	__builtin_memcpy(way->macs, eth_of(h), sizeof(way->macs));
}

#endif
