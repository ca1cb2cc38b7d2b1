/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Parses the headers that may stand between IP and TCP: extension headers (RFC 8200 section 4), IP
 * options. */
#ifndef LONGSPLICE_EXTENSIONS_H
#define LONGSPLICE_EXTENSIONS_H

#include <linux/in.h>
#include <bpf/bpf_endian.h>
#include "options.h"

enum parsed {
	NOT_OURS,
	SEGMENT,
	FRAGMENT, /* the first fragment: the ports are there */
	SOURCE_ROUTED,
	MALFORMED, /* lengths that contradict each other */
};

/* Defined here because linux/in6.h, which has them, clashes with linux/in.h. */
#define NEXT_HOP_BY_HOP	  0
#define NEXT_ROUTING	  43
#define NEXT_FRAGMENT	  44
#define NEXT_DESTINATIONS 60

/* Limits the extension headers: a packet with more of them is not ours. */
#define MOST_EXTENSIONS 8

struct extension {
	__u8 next;
	__u8 len; /* without the first 8 bytes, in units of 8 */
	union {
		struct {
			__u8 type, segments_left;
		} routing;
		__be16 fragment; /* offset and "more" */
	};
};

static __always_inline int is_extension(__u8 next)
{
	return next == NEXT_HOP_BY_HOP || next == NEXT_ROUTING || next == NEXT_FRAGMENT ||
	       next == NEXT_DESTINATIONS;
}

struct extension_walk {
	struct __sk_buff *skb;
	__u32 at;   /* current offset in the packet, */
	__u32 next; /* and the header there */
	enum parsed kind;
};

static long skip_extension(__u32 n, struct extension_walk *w)
{
	struct extension e;

	w->kind = NOT_OURS;
	if (bpf_skb_load_bytes(w->skb, w->at, &e, sizeof(e)))
		return 1;
	/* A packet with segments left in its route is not for us, and a later fragment has no ports. */
	if ((w->next == NEXT_ROUTING && e.routing.segments_left) ||
	    (w->next == NEXT_FRAGMENT && e.fragment & bpf_htons(0xfff8)))
		return 1;
	if (w->next == NEXT_FRAGMENT)
		w->at += 8;
	else
		w->at += (e.len + 1) * 8;
	/* A fragment that is the whole packet is a segment (RFC 6946). */
	w->kind = w->next == NEXT_FRAGMENT && e.fragment & bpf_htons(1) ? FRAGMENT : SEGMENT;
	w->next = e.next;
	return w->kind == FRAGMENT || !is_extension(e.next);
}

/* Finds TCP behind extension headers, of which the first is `next`. */
static __noinline enum parsed skip_extensions(struct __sk_buff *skb, struct headers *h, __u8 next)
{
	struct extension_walk w = {.skb = skb, .at = V6_L4, .next = next};

	if (!h)
		return NOT_OURS;
	bpf_loop(MOST_EXTENSIONS, skip_extension, &w, 0);
	if (w.kind == NOT_OURS || w.next != IPPROTO_TCP || w.at > 0x7fff)
		return NOT_OURS;
	h->l4 = w.at;
	return w.kind;
}

/* Identifies the jumbo payload option where the kernel puts it: first in the first extension header (RFC
 * 2675). */
#define JUMBO bpf_htons(0xc204)
#define PAD_N bpf_htons(0x0104)

/*
 * Turns a jumbo payload option into padding: it holds the length of a super-packet of over 64 kB (BIG TCP),
 * and a packet with another length must not carry it. Returns 0, or -1 if the packet could not be written.
 */
static __always_inline int drop_jumbo(struct __sk_buff *skb, const struct headers *h)
{
	struct {
		__be16 option, len[2];
	} found, padding = {PAD_N};

	if (!is_v6(h) || h->v6.ip.nexthdr != NEXT_HOP_BY_HOP)
		return 0;
	if (bpf_skb_load_bytes(skb, V6_L4 + 2, &found, sizeof(found)))
		return -1;
	return found.option == JUMBO ? bpf_skb_store_bytes(skb, V6_L4 + 2, &padding, sizeof(padding), 0) : 0;
}

/* Loose and strict source and record route (RFC 791 section 3.1). */
#define IPOPT_LOOSE_ROUTE  131
#define IPOPT_STRICT_ROUTE 137

static long find_source_route_step(__u32 n, struct option_walk *w)
{
	if (look_at_option(w))
		return 1;
	if (w->kind == IPOPT_LOOSE_ROUTE || w->kind == IPOPT_STRICT_ROUTE) {
		w->len = 0;
		return 1;
	}
	w->at += w->size;
	return 0;
}

/*
 * Returns whether a packet of IPv4 carries a source route. We refuse it as the kernel does
 * (accept_source_route): otherwise a spliced flow would be a way to make the next router take it. Uses the
 * room for TCP's options, as IP options have the same layout.
 */
static __noinline int is_source_routed(struct __sk_buff *skb, struct headers *h)
{
	struct option_walk w = {.h = h};
	__u32 len;

	if (!h)
		return 0;
	len = (l4_of(h) - V4_L4) & 63;
	if (len < 4)
		return 0;
	/* Without the barrier the compiler merges two tests, which verifiers before Linux 6.8 do not
	 * follow. */
	barrier_var(len);
	if (len > 40 || bpf_skb_load_bytes(skb, V4_L4, h->opt, len))
		return 0;
	w.len = len;
	bpf_loop(OPTION_STEPS, find_source_route_step, &w, 0);
	return !w.len;
}

#endif
