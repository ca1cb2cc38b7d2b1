/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Where a translated packet goes: looked up for each, so that a change of route or neighbour is followed. */
#ifndef LONGSPLICE_ROUTE_H
#define LONGSPLICE_ROUTE_H

#include "count.h"
#include "parse.h"
#include "tags.h"

struct route {
	__u32 ifindex;
	__u32 resolve; /* the kernel must find the neighbour: redirect through bpf_redirect_neigh() */
};

static __always_inline void from_headers(struct bpf_fib_lookup *fib, const struct headers *h)
{
	if (is_v6(h)) {
		fib->family = AF_INET6;
		fib->flowinfo = *(const __be32 *)&h->v6.ip & bpf_htonl(0x0fffffff);
		__builtin_memcpy(fib->ipv6_src, &h->v6.ip.saddr, sizeof(fib->ipv6_src));
		__builtin_memcpy(fib->ipv6_dst, &h->v6.ip.daddr, sizeof(fib->ipv6_dst));
	} else {
		fib->family = AF_INET;
		fib->tos = h->v4.ip.tos & 0x1c;
		fib->ipv4_src = h->v4.ip.saddr;
		fib->ipv4_dst = h->v4.ip.daddr;
	}
}

/*
 * Looks up the way to the destination of h, and writes the MAC addresses when the neighbour is known. The
 * look-up is made as if from the loopback: that is what output routing does, `ip rule`s included; it needs
 * lo.forwarding=1, which the daemon sets. 0, or the verdict of the drop.
 */
static __always_inline int find_route(struct __sk_buff *skb, struct headers *h, int far_local, __u32 hint,
				      struct route *r)
{
	struct bpf_fib_lookup fib = {
	    .l4_protocol = IPPROTO_TCP,
	    .sport = h->tcp.sport,
	    .dport = h->tcp.dport,
	    .ifindex = LOOPBACK,
	};

	from_headers(&fib, h);
	switch (bpf_fib_lookup(skb, &fib, sizeof(fib), 0)) {
	case BPF_FIB_LKUP_RET_SUCCESS:
		__builtin_memcpy(eth_of(h)->h_dest, fib.dmac, ETH_ALEN);
		__builtin_memcpy(eth_of(h)->h_source, fib.smac, ETH_ALEN);
		r->ifindex = fib.ifindex;
		r->resolve = 0;
		return 0;
	case BPF_FIB_LKUP_RET_NO_NEIGH:
		r->ifindex = fib.ifindex;
		r->resolve = 1;
		return 0;
	case BPF_FIB_LKUP_RET_NOT_FWDED:
		/* Ours, or no route at all: the look-up does not tell the two apart. Only a packet that
		 * brings its route along is accepted from a local address. */
		if (!far_local)
			return LS_V_DROP_NO_ROUTE;
		r->ifindex = LOOPBACK;
		r->resolve = 1;
		return 0;
	case BPF_FIB_LKUP_RET_FWD_DISABLED:
	case BPF_FIB_LKUP_RET_UNSUPP_LWT:
		if (!hint)
			return LS_V_DROP_NO_ROUTE;
		r->ifindex = hint;
		r->resolve = 1;
		return 0;
	case BPF_FIB_LKUP_RET_FRAG_NEEDED:
		return LS_V_DROP_TOO_BIG;
	default:
		return LS_V_DROP_NO_ROUTE;
	}
}

/* The last step of a program: the verdict that sends the packet. */
static __always_inline int send_by(struct __sk_buff *skb, const struct route *r)
{
	skb->tc_index = TAG_FORWARDED;
	return r->resolve ? bpf_redirect_neigh(r->ifindex, NULL, 0, 0) : bpf_redirect(r->ifindex, 0);
}

/*
 * Sends a copy; the packet itself is still here afterwards. There is no clone_redirect with a neighbour
 * look-up: such a copy passes our own ingress once more.
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
