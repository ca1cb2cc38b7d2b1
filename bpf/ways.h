/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Stores the routes of recent segments: a route look-up costs more than the whole translation. A stored route
 * is good until the next tick of the kernel's timer, 1 to 10 ms: changes of routes, neighbors or interfaces
 * are not reported here (docs/decisions/0009).
 */
#ifndef LONGSPLICE_WAYS_H
#define LONGSPLICE_WAYS_H

#include "ip.h"
#include "maps.h"

struct route {
	__u32 ifindex;
	__u32 resolve; /* 1: the kernel must find the neighbor: redirect through bpf_redirect_neigh() */
	__u32 mtu;     /* longest IP packet that passes; also set for a packet that was too long */
};

/* Stored route of a direction, whose header toward the far end is constant; its serial number and side
 * identify it. */
struct way {
	__u64 at; /* jiffies */
	__u32 serial, side;
	__be32 class; /* other fields that a rule may match: DSCP, or traffic class and flow label */
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

/* Returns the length of the longest IP packet that it will be on the wire: a super-packet goes in pieces.
 * (One of over 64 kB loses its jumbo payload option on the way, 8 bytes.) */
__noinline __u32 wire_length(struct __sk_buff *skb, const struct headers *h)
{
	__u32 len = skb->len - L3_OFFSET;

	if (!h)
		return len;
	if (skb->gso_size) {
		len = l4_of(h) - L3_OFFSET + (h->tcp.offset >> 4) * 4 + skb->gso_size;
		if (is_v6(h) && !h->v6.ip.payload_len && l4_of(h) != V6_L4)
			len -= 8;
	}
	return len > 65535 ? 65535 : len;
}

/* Returns whether a stored route is that of a direction's packet with this header, `len` bytes long on the
 * wire. */
static __always_inline int is_known(const struct way *way, const struct headers *h, __u32 len,
				    const struct ls_record *rec)
{
	return way->at == bpf_jiffies64() && way->serial == rec->serial &&
	       way->side == (rec->traits & LS_SIDE_SERVER) && way->class == class_of(h) &&
	       len <= way->route.mtu;
}

static __always_inline void remember(struct way *way, struct headers *h, const struct ls_record *rec,
				     const struct route *route)
{
	way->at = bpf_jiffies64();
	way->serial = rec->serial;
	way->side = rec->traits & LS_SIDE_SERVER;
	way->class = class_of(h);
	way->route = *route;
	__builtin_memcpy(way->macs, eth_of(h), sizeof(way->macs));
}

#endif
