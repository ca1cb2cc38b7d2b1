/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Finds the route of a translated packet and sends it. Routes are looked up again and again, so that a change
 * of route or neighbor takes effect. A look-up costs more than the whole translation, so its result is
 * stored, and good until the next tick of the kernel's timer, 1 to 10 ms: changes of routes, neighbors or
 * interfaces are not reported here (docs/decisions/0009).
 */
#ifndef LONGSPLICE_ROUTE_H
#define LONGSPLICE_ROUTE_H

#include "count.h"
#include "parse.h"
#include "tags.h"

struct route {
	__u32 ifindex;
	__u32 resolve; /* 1: the kernel must find the neighbor: redirect through bpf_redirect_neigh() */
	__u32 mtu;     /* longest IP packet that passes; also set for a packet that was too long */
	enum ls_verdict reason; /* the drop, if there is no route */
};

/* Stored route of a direction, whose header toward the far end is constant; its serial number and side
 * identify it. */
struct cached_route {
	__u64 at; /* jiffies */
	__u32 serial, side;
	__be32 class; /* other fields that a rule may match: DSCP, or traffic class and flow label */
	struct route route;
	__u8 macs[2 * ETH_ALEN];
};

#define CACHED_ROUTES 256

struct route_cache {
	struct cached_route entry[CACHED_ROUTES];
};

PER_CPU(struct route_cache, route_cache);

static __always_inline struct cached_route *cache_entry_of(const struct ls_record *rec)
{
	__u32 zero = 0, at = rec->serial << 1 | (rec->traits & LS_SIDE_SERVER);
	struct route_cache *all = bpf_map_lookup_elem(&route_cache, &zero);

	return all ? &all->entry[at & (CACHED_ROUTES - 1)] : NULL;
}

/* Returns the length of the longest IP packet that a packet with the headers h will be on the wire: a
 * super-packet goes in pieces. (One of over 64 kB loses its jumbo payload option on the way, 8 bytes.) */
__noinline __u32 wire_length(struct __sk_buff *skb, const struct headers *h)
{
	__u32 len;

	if (!h)
		return skb->len - L3_OFFSET;
	len = ip_length(h);
	if (skb->gso_size) {
		len = l4_of(h) - L3_OFFSET + (h->tcp.offset >> 4) * 4 + skb->gso_size;
		if (is_v6(h) && !h->v6.ip.payload_len && l4_of(h) != V6_L4)
			len -= 8;
	}
	return len > 65535 ? 65535 : len;
}

/* Returns whether a stored route is that of a direction's packet with this header, `len` bytes long on the
 * wire. */
static __always_inline int is_cached(const struct cached_route *entry, const struct headers *h, __u32 len,
				     const struct ls_record *rec)
{
	return entry->at == bpf_jiffies64() && entry->serial == rec->serial &&
	       entry->side == (rec->traits & LS_SIDE_SERVER) && entry->class == class_of(h) &&
	       len <= entry->route.mtu;
}

static __always_inline void cache_route(struct cached_route *entry, struct headers *h,
					const struct ls_record *rec, const struct route *route)
{
	entry->at = bpf_jiffies64();
	entry->serial = rec->serial;
	entry->side = rec->traits & LS_SIDE_SERVER;
	entry->class = class_of(h);
	entry->route = *route;
	__builtin_memcpy(entry->macs, eth_of(h), sizeof(entry->macs));
}

static __always_inline int refuse_route(struct route *r, enum ls_verdict reason)
{
	r->reason = reason;
	return -1;
}

/*
 * Looks up the route to the destination of h for a packet of `len` bytes, and writes the MAC addresses if the
 * neighbor is known. The look-up is made as if from the loopback, which is what output routing does, `ip
 * rule`s included; it needs lo.forwarding=1, which the daemon sets. Returns 0; -1 with the reason.
 */
static __always_inline int fib_route(void *ctx, struct headers *h, __u32 len, int far_local, __u32 hint,
				     struct route *r)
{
	struct bpf_fib_lookup fib = {
	    .l4_protocol = IPPROTO_TCP,
	    .sport = h->tcp.sport,
	    .dport = h->tcp.dport,
	    .ifindex = LOOPBACK,
	    .tot_len = len,
	};

	addresses_to_fib(&fib, h);
	r->resolve = 1;
	r->mtu = ~0U;
	switch (bpf_fib_lookup(ctx, &fib, sizeof(fib), 0)) {
	case BPF_FIB_LKUP_RET_SUCCESS:
		__builtin_memcpy(eth_of(h)->h_dest, fib.dmac, ETH_ALEN);
		__builtin_memcpy(eth_of(h)->h_source, fib.smac, ETH_ALEN);
		r->ifindex = fib.ifindex;
		r->resolve = 0;
		r->mtu = fib.mtu_result;
		return 0;
	case BPF_FIB_LKUP_RET_NO_NEIGH:
		r->ifindex = fib.ifindex;
		/* The look-up only tells that this length passes. */
		r->mtu = fib.tot_len;
		return 0;
	case BPF_FIB_LKUP_RET_NOT_FWDED:
		/* The destination is ours, or has no route: the look-up does not tell the two apart. The
		 * stack accepts a packet from a local address only if the packet brings its route along. */
		if (!far_local)
			return refuse_route(r, LS_V_DROP_NO_ROUTE);
		r->ifindex = LOOPBACK;
		return 0;
	case BPF_FIB_LKUP_RET_FWD_DISABLED:
	case BPF_FIB_LKUP_RET_UNSUPP_LWT:
		if (!hint)
			return refuse_route(r, LS_V_DROP_NO_ROUTE);
		r->ifindex = hint;
		return 0;
	case BPF_FIB_LKUP_RET_FRAG_NEEDED:
		r->mtu = fib.mtu_result;
		return refuse_route(r, LS_V_DROP_TOO_BIG);
	default:
		return refuse_route(r, LS_V_DROP_NO_ROUTE);
	}
}

/* Looks up the route of a packet at tc; see fib_route(). */
static __always_inline int look_up_route(struct __sk_buff *skb, struct headers *h, int far_local, __u32 hint,
					 struct route *r)
{
	return fib_route(skb, h, wire_length(skb, h), far_local, hint, r);
}

/* Finds the route of a segment of a direction, which an earlier segment may have stored a moment ago. Returns
 * as fib_route(). */
static __always_inline int route_of(void *ctx, struct headers *h, __u32 len, const struct ls_record *rec,
				    __u32 hint, struct route *r)
{
	struct cached_route *entry = cache_entry_of(rec);

	if (!entry)
		return refuse_route(r, LS_V_DROP_NO_ROUTE);
	if (is_cached(entry, h, len, rec)) {
		*r = entry->route;
		set_macs(h, entry->macs);
		return 0;
	}
	if (fib_route(ctx, h, len, rec->traits & LS_FAR_LOCAL, hint, r))
		return -1;
	cache_route(entry, h, rec, r);
	return 0;
}

/* Finds the route of a direction's packet at tc; see route_of(). */
static __always_inline int find_route_fast(struct __sk_buff *skb, struct headers *h,
					   const struct ls_record *rec, __u32 hint, struct route *r)
{
	return route_of(skb, h, wire_length(skb, h), rec, hint, r);
}

/* Finds the route of a direction's packet at tc, for all but the usual path (see write_headers()). */
__noinline int find_route(struct __sk_buff *skb, struct headers *h, const struct ls_record *rec, __u32 hint,
			  struct route *r)
{
	if (!r)
		return -1;
	return h && rec ? find_route_fast(skb, h, rec, hint, r) : refuse_route(r, LS_V_DROP_NO_ROUTE);
}

/* Gives a packet without an Ethernet header the one of h: the kernel sends none without it to a device that
 * has such headers, and takes it off again for one that has none. Returns 0, or -1. */
static __always_inline int add_ethernet(struct __sk_buff *skb, struct headers *h)
{
	eth_of(h)->h_proto = skb->protocol;
	return bpf_skb_change_head(skb, ETH_HLEN, 0) || bpf_skb_store_bytes(skb, 0, eth_of(h), ETH_HLEN, 0)
		   ? -1
		   : 0;
}

/* Sends the packet with the headers h, which stand in it: the last step of a program, which returns this
 * action. */
static __always_inline int send_by(struct __sk_buff *skb, struct headers *h, const struct route *r)
{
	if (!L3_OFFSET && add_ethernet(skb, h))
		return drop(LS_V_DROP_REWRITE);
	skb->tc_index = TAG_FORWARDED;
	/* The priority of one link does not apply to the other. */
	if (skb->vlan_present)
		bpf_skb_vlan_pop(skb);
	return r->resolve ? bpf_redirect_neigh(r->ifindex, NULL, 0, 0) : bpf_redirect(r->ifindex, 0);
}

/*
 * Sends a copy; the packet itself stays. The kernel has no clone_redirect with a neighbor look-up: such a
 * copy passes our own ingress once more. So does one without an Ethernet header, which the packet itself must
 * not get.
 */
static __always_inline void send_copy_by(struct __sk_buff *skb, const struct route *r)
{
	if (r->resolve || !L3_OFFSET) {
		skb->tc_index = TAG_SEND;
		bpf_clone_redirect(skb, skb->ifindex, BPF_F_INGRESS);
	} else {
		skb->tc_index = TAG_FORWARDED;
		bpf_clone_redirect(skb, r->ifindex, 0);
	}
	skb->tc_index = 0;
}

/* Has the packet come in. From the loopback it must bring its route along: without one, the stack takes
 * 127.0.0.1 for a martian. So the packet goes out there: `egress` passes it by its tag. */
static __always_inline int come_in(struct __sk_buff *skb)
{
	if (skb->ifindex != LOOPBACK)
		return bpf_redirect(skb->ifindex, BPF_F_INGRESS);
	if (!is_tagged(skb))
		skb->tc_index = TAG_FORWARDED;
	return bpf_redirect_neigh(LOOPBACK, NULL, 0, 0);
}

/* Has the packet come in once more, because its flow has moved. */
static __always_inline int look_again(struct __sk_buff *skb)
{
	count(LS_V_REQUEUED);
	return come_in(skb);
}

#endif
