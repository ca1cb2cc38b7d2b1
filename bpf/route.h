/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Finds the route of a translated packet and sends it. Routes are looked up again and again, so that a change
 * of route or neighbor takes effect. */
#ifndef LONGSPLICE_ROUTE_H
#define LONGSPLICE_ROUTE_H

#include "count.h"
#include "parse.h"
#include "tags.h"
#include "ways.h"

/*
 * Looks up the route to the destination of h for a packet of `len` bytes, and writes the MAC addresses if the
 * neighbor is known. The look-up is made as if from the loopback, which is what output routing does, `ip
 * rule`s included; it needs lo.forwarding=1, which the daemon sets. Returns 0, or the verdict of the drop.
 */
static __always_inline int look_up_way(void *ctx, struct headers *h, __u32 len, int far_local, __u32 hint,
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
			return LS_V_DROP_NO_ROUTE;
		r->ifindex = LOOPBACK;
		return 0;
	case BPF_FIB_LKUP_RET_FWD_DISABLED:
	case BPF_FIB_LKUP_RET_UNSUPP_LWT:
		if (!hint)
			return LS_V_DROP_NO_ROUTE;
		r->ifindex = hint;
		return 0;
	case BPF_FIB_LKUP_RET_FRAG_NEEDED:
		r->mtu = fib.mtu_result;
		return LS_V_DROP_TOO_BIG;
	default:
		return LS_V_DROP_NO_ROUTE;
	}
}

/* Looks up the route of a packet at tc; see look_up_way(). */
static __always_inline int look_up_route(struct __sk_buff *skb, struct headers *h, int far_local, __u32 hint,
					 struct route *r)
{
	return look_up_way(skb, h, wire_length(skb, h), far_local, hint, r);
}

/* Finds the route of a segment of a direction, which an earlier segment may have stored a moment ago. Returns
 * as look_up_way(). */
static __always_inline int find_way(void *ctx, struct headers *h, __u32 len, const struct ls_record *rec,
				    __u32 hint, struct route *r)
{
	struct way *way = way_of(rec);
	int verdict;

	if (!way)
		return LS_V_DROP_NO_ROUTE;
	if (is_known(way, h, len, rec)) {
		*r = way->route;
		set_macs(h, way->macs);
		return 0;
	}
	verdict = look_up_way(ctx, h, len, rec->traits & LS_FAR_LOCAL, hint, r);
	if (!verdict)
		remember(way, h, rec, r);
	return verdict;
}

/* Finds the route of a direction's packet at tc; see find_way(). */
static __always_inline int find_route_fast(struct __sk_buff *skb, struct headers *h,
					   const struct ls_record *rec, __u32 hint, struct route *r)
{
	return find_way(skb, h, wire_length(skb, h), rec, hint, r);
}

/* Finds the route of a direction's packet at tc, for all but the usual path (see write_headers()). */
__noinline int find_route(struct __sk_buff *skb, struct headers *h, const struct ls_record *rec, __u32 hint,
			  struct route *r)
{
	return h && rec && r ? find_route_fast(skb, h, rec, hint, r) : LS_V_DROP_NO_ROUTE;
}

/* Sends the packet: the last step of a program, which returns this verdict. */
static __always_inline int send_by(struct __sk_buff *skb, const struct route *r)
{
	skb->tc_index = TAG_FORWARDED;
	/* The priority of one link does not apply to the other. */
	if (skb->vlan_present)
		bpf_skb_vlan_pop(skb);
	return r->resolve ? bpf_redirect_neigh(r->ifindex, NULL, 0, 0) : bpf_redirect(r->ifindex, 0);
}

/*
 * Sends a copy; the packet itself stays. The kernel has no clone_redirect with a neighbor look-up: such a
 * copy passes our own ingress once more.
 */
static __always_inline void send_copy_by(struct __sk_buff *skb, const struct route *r)
{
	if (r->resolve) {
		skb->tc_index = TAG_SEND;
		bpf_clone_redirect(skb, skb->ifindex, BPF_F_INGRESS);
	} else {
		skb->tc_index = TAG_FORWARDED;
		bpf_clone_redirect(skb, r->ifindex, 0);
	}
	skb->tc_index = 0;
}

#endif
