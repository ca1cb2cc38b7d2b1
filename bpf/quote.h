/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Reads ICMP and ICMPv6 errors about TCP segments, and the segments that they quote. */
#ifndef LONGSPLICE_QUOTE_H
#define LONGSPLICE_QUOTE_H

#include "parse.h"

struct icmp {
	__u8 type, code;
	__be16 check;
	__be32 rest; /* the MTU, if the error tells one */
};

#define ICMP_UNREACHABLE 3
#define ICMP_TOO_BIG	 4 /* a code: fragmentation needed */
#define ICMP_EXPIRED	 11
#define ICMP_PARAMETER	 12
#define ICMPV6_TOO_BIG	 2
#define ICMPV6_PARAMETER 4 /* the last of the errors that are translated; 1 is the first */

/* State of an error: the scratch has its own headers, this has those of the segment that it quotes. */
struct quote {
	struct headers old, new; /* `l4` is their offset in the packet */
	struct icmp icmp;
	__u32 whole;  /* 1: the whole TCP header is quoted, not only its first 8 bytes */
	__u32 number; /* direction from the end to which the segment was sent */
};

PER_CPU(struct quote, quotes);

/* Bytes of the TCP header that every error quotes: ports and sequence number (RFC 792). */
#define LEAST_QUOTE 8

static __always_inline int is_error(const struct headers *h, const struct icmp *icmp)
{
	if (is_v6(h))
		return icmp->type >= 1 && icmp->type <= ICMPV6_PARAMETER;
	return icmp->type == ICMP_UNREACHABLE || icmp->type == ICMP_EXPIRED || icmp->type == ICMP_PARAMETER;
}

/* Returns the offset of the quoted TCP header; 0: there is none. */
static __always_inline __u32 quoted_tcp(struct __sk_buff *skb, const struct headers *old, __u32 at)
{
	struct extension_walk walk = {.skb = skb, .at = at + sizeof(old->v6.ip)};

	if (!is_v6(old)) {
		if (old->v4.ip.version != 4 || old->v4.ip.ihl < 5 || old->v4.ip.protocol != IPPROTO_TCP ||
		    old->v4.ip.frag_off & bpf_htons(0x1fff))
			return 0;
		return at + old->v4.ip.ihl * 4;
	}
	if (old->v6.ip.version != 6)
		return 0;
	walk.next = old->v6.ip.nexthdr;
	if (walk.next == IPPROTO_TCP)
		return walk.at;
	if (!is_extension(walk.next))
		return 0;
	bpf_loop(MOST_EXTENSIONS, skip_extension, &walk, 0);
	return walk.kind == NOT_OURS || walk.next != IPPROTO_TCP || walk.at > FARTHEST_TCP ? 0 : walk.at;
}

/* Loads an error with its quote. Returns 0, or -1 if it cannot be about a segment of ours. */
static __always_inline int load_error(struct __sk_buff *skb, struct headers *h, struct quote *q)
{
	__u32 at, l4, end;

	if (load_ip(skb, h) || bpf_skb_load_bytes(skb, l4_of(h), &q->icmp, sizeof(q->icmp)) ||
	    !is_error(h, &q->icmp))
		return -1;
	if (!is_v6(h) && (h->v4.ip.ihl != 5 || h->v4.ip.frag_off & bpf_htons(0x3fff)))
		return -1;
	at = l4_of(h) + sizeof(q->icmp);
	q->old.is_v6 = h->is_v6;
	if (is_v6(h) ? bpf_skb_load_bytes(skb, at, &q->old.v6.ip, sizeof(q->old.v6.ip))
		     : bpf_skb_load_bytes(skb, at, &q->old.v4.ip, sizeof(q->old.v4.ip)))
		return -1;
	l4 = quoted_tcp(skb, &q->old, at);
	end = L3_OFFSET + ip_length(h);
	if (!l4 || end > skb->len || l4 + LEAST_QUOTE > end)
		return -1;
	q->old.l4 = l4;
	q->whole = l4 + sizeof(struct tcp) <= end;
	__builtin_memset(&q->old.tcp, 0, sizeof(q->old.tcp));
	return (q->whole ? bpf_skb_load_bytes(skb, l4, &q->old.tcp, sizeof(q->old.tcp))
			 : bpf_skb_load_bytes(skb, l4, &q->old.tcp, LEAST_QUOTE))
		   ? -1
		   : 0;
}

/* Returns whether an error came to the sender of the segment that it quotes. */
static __always_inline int came_to_sender(const struct headers *h, const struct headers *old)
{
	const __be32 *a = (const __be32 *)&h->v6.ip.daddr, *b = (const __be32 *)&old->v6.ip.saddr;

	if (!is_v6(h))
		return h->v4.ip.daddr == old->v4.ip.saddr;
	return a[0] == b[0] && a[1] == b[1] && a[2] == b[2] && a[3] == b[3];
}

/* Fills in the tuple of the end to which the quoted segment was sent. */
static __always_inline void answering_tuple(const struct headers *old, struct ls_tuple *t)
{
	get_addresses(old, t->daddr, t->saddr);
	t->sport = old->tcp.dport;
	t->dport = old->tcp.sport;
}

#endif
