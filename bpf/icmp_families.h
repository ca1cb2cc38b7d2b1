/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Turns an ICMP error about a segment of a flow with legs of both versions of IP into one of the other
 * version (RFC 7915 sections 4.2, 4.3, 5.2, 5.3): header and quote are written anew.
 */
#ifndef LONGSPLICE_ICMP_FAMILIES_H
#define LONGSPLICE_ICMP_FAMILIES_H

#include "families.h"
#include "quote.h"

#define LOAD_BYTES bpf_skb_load_bytes
#include "verify.h"

/* Types and codes that quote.h does not name (RFC 792, RFC 1812 section 5.2.7, RFC 4443). */
#define NO_PROTOCOL	    2 /* codes of ICMP_UNREACHABLE */
#define NO_PORT		    3
#define NETWORK_PROHIBITED  9
#define HOST_PROHIBITED	    10
#define ADMIN_PROHIBITED    13
#define PRECEDENCE_VIOLATED 14
#define PRECEDENCE_CUTOFF   15
#define NO_HOST		    1
#define ICMPV6_UNREACHABLE  1
#define V6_ADMIN_PROHIBITED 1 /* codes of ICMPV6_UNREACHABLE */
#define V6_NO_PORT	    4
#define ICMPV6_EXPIRED	    3
#define V6_UNKNOWN_NEXT	    1 /* a code of ICMPV6_PARAMETER */
#define NEXT_HEADER_AT	    6 /* offset of the next header in IPv6's */

/* Marks a field of IP's header that the other version has not. */
#define NOWHERE 0xff

/* Returns the place in an IPv6 header of the field at this place in one of IPv4 (RFC 7915 figure 3). */
static __always_inline __u32 pointer_to_v6(__u32 at)
{
	if (at <= 1)
		return at;
	if (at <= 3)
		return 4;
	if (at == 8)
		return 7;
	if (at == 9)
		return 6;
	if (at >= 12 && at <= 15)
		return 8;
	return at >= 16 && at <= 19 ? 24 : NOWHERE;
}

/* Returns the place in an IPv4 header of the field at this place in one of IPv6 (RFC 7915 figure 6). */
static __always_inline __u32 pointer_to_v4(__u32 at)
{
	if (at <= 1)
		return at;
	if (at == 4 || at == 5)
		return 2;
	if (at == 6)
		return 9;
	if (at == 7)
		return 8;
	if (at >= 8 && at <= 23)
		return 12;
	return at >= 24 && at <= 39 ? 16 : NOWHERE;
}

/* Sets type, code and the rest. Returns 0. */
static __always_inline int becomes(struct icmp *to, __u8 type, __u8 code, __u32 rest)
{
	to->type = type;
	to->code = code;
	to->rest = bpf_htonl(rest);
	return 0;
}

/* Turns an error of ICMP into one of ICMPv6. Returns 0, or -1 if it has no counterpart. A router that tells
 * no MTU may mean any. */
static __always_inline int icmp_to_v6(struct icmp *e)
{
	__u32 rest = bpf_ntohl(e->rest), mtu = (rest & 0xffff) + LONGER, at = pointer_to_v6(rest >> 24);

	if (e->type == ICMP_EXPIRED)
		return becomes(e, ICMPV6_EXPIRED, e->code, 0);
	if (e->type == ICMP_PARAMETER)
		return (e->code != 0 && e->code != 2) || at == NOWHERE ? -1
								       : becomes(e, ICMPV6_PARAMETER, 0, at);
	switch (e->code) {
	case ICMP_TOO_BIG:
		return becomes(e, ICMPV6_TOO_BIG, 0, mtu > LEAST_V6_MTU ? mtu : LEAST_V6_MTU);
	case NO_PROTOCOL:
		return becomes(e, ICMPV6_PARAMETER, V6_UNKNOWN_NEXT, NEXT_HEADER_AT);
	case NO_PORT:
		return becomes(e, ICMPV6_UNREACHABLE, V6_NO_PORT, 0);
	case NETWORK_PROHIBITED:
	case HOST_PROHIBITED:
	case ADMIN_PROHIBITED:
	case PRECEDENCE_CUTOFF:
		return becomes(e, ICMPV6_UNREACHABLE, V6_ADMIN_PROHIBITED, 0);
	case PRECEDENCE_VIOLATED:
		return -1;
	default:
		return e->code > PRECEDENCE_CUTOFF ? -1 : becomes(e, ICMPV6_UNREACHABLE, 0, 0);
	}
}

/* Turns an error of ICMPv6 into one of ICMP. Returns 0, or -1 if it has no counterpart. */
static __always_inline int icmp_to_v4(struct icmp *e)
{
	__u32 rest = bpf_ntohl(e->rest), at = pointer_to_v4(rest), mtu = rest - LONGER;

	if (e->type == ICMPV6_EXPIRED)
		return becomes(e, ICMP_EXPIRED, e->code, 0);
	if (e->type == ICMPV6_TOO_BIG)
		return rest < LEAST_V6_MTU
			   ? -1
			   : becomes(e, ICMP_UNREACHABLE, ICMP_TOO_BIG, mtu > 0xffff ? 0xffff : mtu);
	if (e->type == ICMPV6_PARAMETER) {
		if (e->code == V6_UNKNOWN_NEXT)
			return becomes(e, ICMP_UNREACHABLE, NO_PROTOCOL, 0);
		return e->code || at == NOWHERE ? -1 : becomes(e, ICMP_PARAMETER, 0, at << 24);
	}
	if (e->code == V6_ADMIN_PROHIBITED)
		return becomes(e, ICMP_UNREACHABLE, HOST_PROHIBITED, 0);
	if (e->code > V6_NO_PORT)
		return -1;
	return becomes(e, ICMP_UNREACHABLE, e->code == V6_NO_PORT ? NO_PORT : NO_HOST, 0);
}

/* Returns whether the checksum of an error is right: written anew, it would hide that it is not. */
static __always_inline int is_sound_error(struct __sk_buff *skb, struct headers *h)
{
	__u32 len = upper_length(h);
	__u32 pseudo = is_v6(h) ? add_sums(addresses_sum(h), bpf_htons(len) + bpf_htons(IPPROTO_ICMPV6)) : 0;

	return sums_up(skb, l4_of(h), len, pseudo);
}

/* Bytes of the quoted TCP header. */
static __always_inline __u32 quoted_length(const struct quote *q)
{
	return q->whole ? sizeof(struct tcp) : LEAST_QUOTE;
}

/* Seals the error: q has the quote as it will be, `outer` the headers before it. */
static __always_inline void seal_error(struct quote *q, const struct headers *outer)
{
	__u32 sum = sum_words(&q->new.tcp, q->whole ? sizeof(struct tcp) / 4 : LEAST_QUOTE / 4);

	if (is_v6(outer)) {
		sum = add_sums(sum, sum_words(&q->new.v6.ip, sizeof(q->new.v6.ip) / 4));
		sum = add_sums(sum, add_sums(addresses_sum(outer),
					     outer->v6.ip.payload_len + bpf_htons(IPPROTO_ICMPV6)));
	} else {
		sum = add_sums(sum, sum_words(&q->new.v4.ip, sizeof(q->new.v4.ip) / 4));
	}
	q->icmp.check = 0;
	q->icmp.check = ~fold(add_sums(sum, sum_words(&q->icmp, sizeof(q->icmp) / 4)));
}

/* Turns the quote's IP header, and the error's own, into those of the other version. The caller sets the
 * addresses. Returns 0, or -1 if the error has no counterpart. */
static __always_inline int change_error(struct quote *q, struct headers *outer, __u32 label)
{
	__u32 at = l4_of(outer) + sizeof(q->icmp), len;

	if (is_v6(outer) ? icmp_to_v4(&q->icmp) : icmp_to_v6(&q->icmp))
		return -1;
	/* Count the length of what the quoted header stands before, not from the beginning of the error. */
	q->new.is_v6 = q->old.is_v6;
	q->new.l4 = l4_of(&q->old) - at + L3_OFFSET;
	change_version(&q->new, label, 0);
	change_version(outer, label, 0);
	len = sizeof(q->icmp) + plain_l4(outer) - L3_OFFSET + quoted_length(q);
	if (is_v6(outer)) {
		outer->v6.ip.nexthdr = IPPROTO_ICMPV6;
		outer->v6.ip.payload_len = bpf_htons(len);
	} else {
		outer->v4.ip.protocol = IPPROTO_ICMP;
		outer->v4.ip.tot_len = bpf_htons(len + sizeof(outer->v4.ip));
	}
	return 0;
}

/* Writes the error with its quote in place of the old one, whose headers are `old`. Returns 0, or -1. */
static __always_inline int write_error(struct __sk_buff *skb, const struct headers *old,
				       struct headers *outer, struct quote *q)
{
	__u32 icmp_at = l4_of(outer), quote_at = icmp_at + sizeof(q->icmp);
	__u32 header = plain_l4(outer) - L3_OFFSET;
	long err;

	if (!is_v6(outer)) {
		seal_v4(outer);
		seal_v4(&q->new);
	}
	seal_error(q, outer);
	if (change_packet(skb, old, outer) ||
	    bpf_skb_change_tail(skb, quote_at + header + quoted_length(q), 0) || store_ip(skb, outer))
		return -1;
	err = bpf_skb_store_bytes(skb, icmp_at, &q->icmp, sizeof(q->icmp), BPF_F_RECOMPUTE_CSUM);
	err |= is_v6(outer) ? bpf_skb_store_bytes(skb, quote_at, &q->new.v6.ip, sizeof(q->new.v6.ip),
						  BPF_F_RECOMPUTE_CSUM)
			    : bpf_skb_store_bytes(skb, quote_at, &q->new.v4.ip, sizeof(q->new.v4.ip),
						  BPF_F_RECOMPUTE_CSUM);
	err |= q->whole ? bpf_skb_store_bytes(skb, quote_at + header, &q->new.tcp, sizeof(q->new.tcp),
					      BPF_F_RECOMPUTE_CSUM)
			: bpf_skb_store_bytes(skb, quote_at + header, &q->new.tcp, LEAST_QUOTE,
					      BPF_F_RECOMPUTE_CSUM);
	return err ? -1 : 0;
}

#endif
