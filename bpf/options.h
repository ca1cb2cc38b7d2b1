/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Walks over what stands between and behind the headers: options of TCP and IP, extension headers (RFC 8200
 * section 4). */
#ifndef LONGSPLICE_OPTIONS_H
#define LONGSPLICE_OPTIONS_H

#include "headers.h"

#define OPT_EOL		   0
#define OPT_NOP		   1
#define OPT_MSS		   2
#define OPT_SCALE	   3
#define OPT_SACK_PERMITTED 4
#define OPT_SACK	   5
#define OPT_TS		   8

/* Identifies the usual layout of a lone timestamp option: NOP NOP TS 10 (RFC 7323 appendix A). */
#define TS_LAYOUT     bpf_htonl(0x0101080a)
#define TS_LAYOUT_LEN 12

static __always_inline __u32 load32(const __u8 *p)
{
	return bpf_ntohl(*(const __be32 *)p);
}

/* State of a walk over options of any order. bpf_loop() keeps the verifier from following every possible
 * order. */
struct option_walk {
	struct headers *h;
	__u32 at, len;	  /* current offset; end of the options */
	__u32 kind, size; /* kind and size of the option at `at` */
};

/* Number of steps that is enough for 40 bytes. */
#define OPTION_STEPS 40

/* Parses the option at walk->at. Returns 0, or 1 at the end of the options. On 0, walk->at is below 40 and
 * the option lies within the options. */
static __always_inline int look_at_option(struct option_walk *walk)
{
	__u32 at = walk->at & 63;

	if (walk->at >= walk->len || walk->at > 39)
		return 1;
	walk->kind = walk->h->opt[at];
	walk->size = 1;
	if (walk->kind == OPT_EOL)
		return 1;
	if (walk->kind == OPT_NOP)
		return 0;
	walk->size = walk->h->opt[(at + 1) & 63];
	return walk->size < 2 || walk->at + walk->size > walk->len || walk->at + walk->size > 40;
}

/* Ends the walk at the option that it looks for, by a length of 0, or goes on to the next one. */
static __always_inline long ends_at(struct option_walk *walk, int is_it)
{
	if (is_it) {
		walk->len = 0;
		return 1;
	}
	walk->at += walk->size;
	return 0;
}

static long find_timestamp_step(__u32 n, struct option_walk *walk)
{
	if (look_at_option(walk))
		return 1;
	return ends_at(walk, walk->kind == OPT_TS && walk->size == 10);
}

/* Returns the offset of TSval among options in an unusual order; 0: there is none. The verifier follows this
 * function by itself: it goes through a loop many times. */
__noinline __u32 find_timestamp(struct headers *h, __u32 len)
{
	struct option_walk walk = {.h = h, .len = len};

	if (!h)
		return 0;
	bpf_loop(OPTION_STEPS, find_timestamp_step, &walk, 0);
	return walk.len ? 0 : walk.at + 2;
}

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

/* Limits the offset of TCP: a packet that has it farther behind is not ours. */
#define FARTHEST_TCP 0x7fff

/* Exceeds the number of extension headers that fit before that offset. Linux has no limit: with a lower one
 * here, further headers would evade a rule that drops. */
#define MOST_EXTENSIONS (FARTHEST_TCP / 8 + 1)

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

static long skip_extension(__u32 n, struct extension_walk *walk)
{
	struct extension e;

	walk->kind = NOT_OURS;
	if (bpf_skb_load_bytes(walk->skb, walk->at, &e, sizeof(e)))
		return 1;
	/* A packet with segments left in its route is not for us, and a later fragment has no ports. */
	if ((walk->next == NEXT_ROUTING && e.routing.segments_left) ||
	    (walk->next == NEXT_FRAGMENT && e.fragment & bpf_htons(0xfff8)))
		return 1;
	if (walk->next == NEXT_FRAGMENT)
		walk->at += 8;
	else
		walk->at += (e.len + 1) * 8;
	/* A fragment that is the whole packet is a segment (RFC 6946). */
	walk->kind = walk->next == NEXT_FRAGMENT && e.fragment & bpf_htons(1) ? FRAGMENT : SEGMENT;
	walk->next = e.next;
	return walk->kind == FRAGMENT || !is_extension(e.next);
}

/* Finds TCP behind extension headers, of which the first is `next`. */
__noinline enum parsed skip_extensions(struct __sk_buff *skb, struct headers *h, __u8 next)
{
	struct extension_walk walk = {.skb = skb, .at = V6_L4, .next = next};

	if (!h)
		return NOT_OURS;
	bpf_loop(MOST_EXTENSIONS, skip_extension, &walk, 0);
	if (walk.kind == NOT_OURS || walk.next != IPPROTO_TCP || walk.at > FARTHEST_TCP)
		return NOT_OURS;
	h->l4 = walk.at;
	return walk.kind;
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

static long find_source_route_step(__u32 n, struct option_walk *walk)
{
	if (look_at_option(walk))
		return 1;
	return ends_at(walk, walk->kind == IPOPT_LOOSE_ROUTE || walk->kind == IPOPT_STRICT_ROUTE);
}

/*
 * Returns whether a packet of IPv4 carries a source route. We refuse it as the kernel does
 * (accept_source_route): otherwise a spliced flow would be a way to make the next router take it. Uses the
 * room for TCP's options, as IP options have the same layout.
 */
__noinline int is_source_routed(struct __sk_buff *skb, struct headers *h)
{
	struct option_walk walk = {.h = h};
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
	walk.len = len;
	bpf_loop(OPTION_STEPS, find_source_route_step, &walk, 0);
	return !walk.len;
}

#endif
