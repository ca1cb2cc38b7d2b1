/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Tells the sender of a segment that is too long for its route, as a router would (RFC 1191, RFC 8201). */
#ifndef LONGSPLICE_TOO_BIG_H
#define LONGSPLICE_TOO_BIG_H

#include "icmp.h"

/* Limits the errors that a CPU sends in a tick of the kernel's timer, 1 to 10 ms. */
#define MOST_ERRORS 4

/* Limits the bytes that are quoted: two headers, and the headers that may stand between. */
#define MOST_QUOTE 128

struct error_budget {
	__u64 at; /* jiffies */
	__u32 n;
	__u32 unused;
	__u8 quoted[MOST_QUOTE]; /* too much for the stack */
};

PER_CPU(struct error_budget, error_budgets);

static __always_inline int may_answer(struct error_budget *t)
{
	__u64 now = bpf_jiffies64();

	if (t->at != now) {
		t->at = now;
		t->n = 0;
	}
	return t->n++ < MOST_ERRORS;
}

/*
 * Returns the sum of the quote, `len` bytes from the IP header to the end of TCP's. A device will fill in a
 * TCP checksum that is left to it (CHECKSUM_PARTIAL): all bytes that it covers then sum up to the complement
 * of the field's present value.
 */
static __always_inline __u32 quote_sum(struct __sk_buff *skb, const struct headers *h, struct error_budget *t,
				       __u32 len, int partial)
{
	__u32 sum;

	__builtin_memset(t->quoted, 0, sizeof(t->quoted));
	if (len < sizeof(struct iphdr))
		return 0;
	barrier_var(len); /* see is_source_routed() */
	if (len > MOST_QUOTE || bpf_skb_load_bytes(skb, L3_OFFSET, t->quoted, len))
		return 0;
	sum = bpf_csum_diff(NULL, 0, (void *)t->quoted, sizeof(t->quoted), 0);
	if (partial)
		sum = add_sums(sum, add_sums(~sum_words(&h->tcp, sizeof(h->tcp) / 4), (__u16)~h->tcp.check));
	return sum;
}

/* Fills in the headers of an answer to the packet of h that quotes `len` bytes of it. */
static __always_inline void answer_headers(struct headers *new, struct headers *h, __u32 len)
{
	__u32 icmp_len = sizeof(struct icmp) + len;

	__builtin_memset(new, 0, offsetof(struct headers, opt));
	new->l4 = is_v6(h) ? V6_L4 : V4_L4;
	new->is_v6 = h->is_v6;
	answer_to(new, h);
	eth_of(new)->h_proto = eth_of(h)->h_proto;
	if (is_v6(h)) {
		new->v6.ip.version = 6;
		new->v6.ip.payload_len = bpf_htons(icmp_len);
		new->v6.ip.nexthdr = IPPROTO_ICMPV6;
		new->v6.ip.hop_limit = 64;
		return;
	}
	new->v4.ip.version = 4;
	new->v4.ip.ihl = 5;
	new->v4.ip.tos = 0xc0; /* network control, as Linux does (RFC 1812 section 4.3.2.5) */
	new->v4.ip.tot_len = bpf_htons(sizeof(new->v4.ip) + icmp_len);
	new->v4.ip.frag_off = bpf_htons(0x4000);
	new->v4.ip.ttl = 64;
	new->v4.ip.protocol = IPPROTO_ICMP;
	new->v4.ip.check = ~fold(sum_words(&new->v4.ip, sizeof(new->v4.ip) / 4));
}

static __always_inline void fill_icmp(struct icmp *icmp, const struct headers *new, __u32 mtu, __u32 sum)
{
	icmp->type = is_v6(new) ? ICMPV6_TOO_BIG : ICMP_UNREACHABLE;
	icmp->code = is_v6(new) ? 0 : ICMP_TOO_BIG;
	icmp->check = 0;
	icmp->rest = bpf_htonl(mtu);
	if (is_v6(new))
		sum = add_sums(sum, add_sums(sum_words(&new->v6.ip.saddr, 8),
					     new->v6.ip.payload_len + bpf_htons(IPPROTO_ICMPV6)));
	icmp->check = ~fold(add_sums(sum, sum_words(icmp, sizeof(*icmp) / 4)));
}

/* Returns the MTU of a route of the other version of IP in terms of the sender's packets, whose headers are
 * h.
 */
static __always_inline __u32 mtu_for_sender(const struct headers *h, __u32 mtu)
{
	if (!is_v6(h))
		return mtu - LONGER;
	return mtu + LONGER > LEAST_V6_MTU ? mtu + LONGER : LEAST_V6_MTU;
}

/*
 * Turns the segment of h into the error about it, "packets of at most `mtu` bytes pass", and sends it back by
 * the interface on which the segment came in. With `other_family`, the packets of `mtu` are those of the
 * other version of IP. Also answers a segment without DF, because segments are never fragmented here.
 */
__noinline int tell_too_big(struct __sk_buff *skb, struct headers *h, __u32 mtu, __u32 other_family)
{
	struct scratch *scratch = get_scratch();
	__u32 zero = 0, len, room;
	struct error_budget *t = bpf_map_lookup_elem(&error_budgets, &zero);
	struct icmp icmp;
	int partial;

	if (!h || !scratch || !t || !may_answer(t))
		return TC_ACT_SHOT;
	len = l4_of(h) + sizeof(struct tcp) - L3_OFFSET;
	partial = is_left_to_device(skb, tcp_check_at(h));
	if (len > MOST_QUOTE || bpf_skb_change_tail(skb, L3_OFFSET + len, 0))
		return TC_ACT_SHOT;
	if (other_family)
		mtu = mtu_for_sender(h, mtu);
	answer_headers(&scratch->out, h, len);
	fill_icmp(&icmp, &scratch->out, mtu, quote_sum(skb, h, t, len, partial));
	room = l4_of(&scratch->out) - L3_OFFSET + sizeof(icmp);
	if (bpf_skb_adjust_room(skb, room, BPF_ADJ_ROOM_MAC, 0) || store_ip(skb, &scratch->out) ||
	    bpf_skb_store_bytes(skb, l4_of(&scratch->out), &icmp, sizeof(icmp), BPF_F_RECOMPUTE_CSUM))
		return TC_ACT_SHOT;
	count(LS_V_TOO_BIG_TOLD);
	skb->tc_index = TAG_FORWARDED;
	/* A local peer's packets must bring a route along. */
	if (skb->ifindex == LOOPBACK)
		return bpf_redirect_neigh(LOOPBACK, NULL, 0, 0);
	return bpf_redirect(skb->ifindex, 0);
}

/* Drops a segment of a direction that has no route, and tells its sender if it was too long. An answer to a
 * forged segment would only disturb. */
static __always_inline int no_route(struct __sk_buff *skb, const struct ls_record *rec, struct headers *h,
				    const struct segment *seg, const struct route *r)
{
	count(r->reason);
	if (r->reason != LS_V_DROP_TOO_BIG || !seg->in_place)
		return TC_ACT_SHOT;
	return tell_too_big(skb, h, r->mtu, crosses(rec));
}

#endif
