/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Translates ICMP and ICMPv6 errors about segments of a flow: finds the flow by the quoted segment, checks
 * the error, and sends it to the sender of that segment, in its own numbers (docs/decisions/0012).
 */
#ifndef LONGSPLICE_ICMP_H
#define LONGSPLICE_ICMP_H

#include "fragment.h"
#include "icmp_families.h"
#include "local.h"
#include "quote.h"
#include "wake.h"

/* Writes the quote, and ICMP's checksum, whose pseudo-header changes by `outer`. Returns 0, or -1. */
static __always_inline int write_quote(struct __sk_buff *skb, __u32 icmp_at, struct quote *q, __u32 outer)
{
	struct headers *old = &q->old, *new = &q->new;
	__u32 diff = outer, addresses = addresses_diff(old, new), l4 = l4_of(old);
	__u32 at = icmp_at + sizeof(struct icmp);
	long err;

	mend_ip_check(old, new);
	if (q->whole)
		new->tcp.check =
		    adjust(old->tcp.check,
			   add_sums(addresses, sum_diff(&old->tcp, &new->tcp, sizeof(old->tcp) / 4)));
	diff = add_sums(diff, is_v6(old) ? sum_diff(&old->v6.ip, &new->v6.ip, sizeof(old->v6.ip) / 4)
					 : sum_diff(&old->v4.ip, &new->v4.ip, sizeof(old->v4.ip) / 4));
	diff = add_sums(diff, sum_diff(&old->tcp, &new->tcp, sizeof(old->tcp) / 4));
	q->icmp.check = adjust(q->icmp.check, diff);
	err = bpf_skb_store_bytes(skb, icmp_at, &q->icmp, sizeof(q->icmp), BPF_F_RECOMPUTE_CSUM);
	err |= is_v6(new)
		   ? bpf_skb_store_bytes(skb, at, &new->v6.ip, sizeof(new->v6.ip), BPF_F_RECOMPUTE_CSUM)
		   : bpf_skb_store_bytes(skb, at, &new->v4.ip, sizeof(new->v4.ip), BPF_F_RECOMPUTE_CSUM);
	err |= q->whole ? bpf_skb_store_bytes(skb, l4, &new->tcp, sizeof(new->tcp), BPF_F_RECOMPUTE_CSUM)
			: bpf_skb_store_bytes(skb, l4, &new->tcp, LEAST_QUOTE, BPF_F_RECOMPUTE_CSUM);
	return err ? -1 : 0;
}

static __always_inline void quote_numbers(struct quote *q, __u32 seq, __u32 ack)
{
	q->new.tcp.seq = bpf_htonl(bpf_ntohl(q->old.tcp.seq) + seq);
	if (q->whole && q->old.tcp.flags & TCP_ACK)
		q->new.tcp.ack = bpf_htonl(bpf_ntohl(q->old.tcp.ack) + ack);
}

/* Delivers the error to the local socket that sent the segment, in that socket's numbers. */
static __always_inline int deliver_error(struct __sk_buff *skb, struct headers *h, struct quote *q,
					 struct mapping map)
{
	if (map.seq | map.ack) {
		quote_numbers(q, map.ack, map.seq);
		if (write_quote(skb, l4_of(h), q, 0))
			return drop(LS_V_DROP_REWRITE);
	}
	return pass(LS_V_ICMP_DELIVERED);
}

/*
 * Returns whether the quoted segment can be on its way to the peer of the flow (RFC 5927 section 4.1). If the
 * whole header is quoted, its acknowledgement must have been sent lately, too. Errors of ICMPv6 quote the
 * whole header, because they quote all that fits (RFC 4443 section 2.4); of IPv4, 8 bytes may be all (RFC
 * 792).
 */
static __always_inline int is_outstanding(const struct flow_ref *flow, const struct quote *q)
{
	__u32 seq = bpf_ntohl(q->old.tcp.seq), ack = bpf_ntohl(q->old.tcp.ack), told;
	struct ls_record *back = find_back(flow);

	if (!back || before(seq, flow->rec->rx_ack) || after(seq, end_of(back) + back->seq_off))
		return 0;
	if (!q->whole)
		return !is_v6(&q->old);
	told = back->rx_ack + back->ack_off;
	/* In a drain the local socket may have acknowledged more. */
	if (flow->slot)
		told = seq_max(told, flow->slot->leg[flow->side & 1].tx_ack);
	return q->old.tcp.flags & TCP_ACK && !after(ack, told) && !is_long_known(back, ack - back->ack_off);
}

/* Sends the error in `quotes` to the far end that sent the segment, and has the other version of IP. The
 * verifier follows this function by itself. */
__noinline int translate_error_across(struct __sk_buff *skb)
{
	struct scratch *scratch = get_scratch();
	struct route route = {};
	struct flow_ref flow;
	struct quote *q;
	__u32 zero = 0;

	q = bpf_map_lookup_elem(&quotes, &zero);
	if (!scratch || !q || !find_by_number(q->number, &flow))
		return NEXT;
	if (!is_sound_error(skb, &scratch->in))
		return drop(LS_V_DROP_CHECKSUM);
	__builtin_memcpy(&scratch->out, &scratch->in, offsetof(struct headers, tcp));
	__builtin_memset(&scratch->out.tcp, 0, sizeof(scratch->out.tcp));
	if (change_error(q, &scratch->out, label_of(flow.rec)))
		return drop(LS_V_DROP_ICMP);
	set_addresses(&q->new, far_of(&flow)->saddr, far_of(&flow)->daddr);
	address_to(&scratch->out, far_of(&flow));
	count_hop(&scratch->out);
	if (find_route(skb, &scratch->out, flow.rec, flow.slot ? 0 : flow.rec->where, &route))
		return drop(route.reason);
	if (write_error(skb, &scratch->in, &scratch->out, q))
		return drop(LS_V_DROP_REWRITE);
	count(LS_V_ICMP_TRANSLATED);
	return send_by(skb, &scratch->out, &route);
}

/* Says that an error is to be written anew (translate_error_across()): no action of tc. The caller does it,
 * as the stack of nested calls is bounded. */
#define ACROSS 0x4c53

/* Sends the error to the far end that sent the segment, as if our leg toward that end had found the fault. */
static __always_inline int translate_error(struct __sk_buff *skb, const struct flow_ref *flow,
					   struct scratch *scratch, struct quote *q)
{
	struct headers *h = &scratch->in, *new = &scratch->out;
	struct ls_record *rec = flow->rec;
	struct route route = {};

	if (!is_outstanding(flow, q))
		return drop(LS_V_DROP_ICMP);
	if (hops_left(h) <= 1)
		return drop(LS_V_DROP_TTL);
	q->new.tcp.sport = far_of(flow)->sport;
	q->new.tcp.dport = far_of(flow)->dport;
	quote_numbers(q, rec->ack_off, rec->seq_off);
	if (crosses(rec))
		return ACROSS;
	set_addresses(&q->new, far_of(flow)->saddr, far_of(flow)->daddr);
	if (head_for_far_end(skb, flow, scratch, &route))
		return drop(route.reason);
	if (store_ip(skb, new) || write_quote(skb, l4_of(h), q, is_v6(h) ? addresses_diff(h, new) : 0))
		return drop(LS_V_DROP_REWRITE);
	count(LS_V_ICMP_TRANSLATED);
	return send_by(skb, new, &route);
}

/* Returns whether the local socket of the other leg sent the segment with this number, of the stream from the
 * sender. */
static __always_inline int is_of_socket(const struct ls_leg *from, __u32 seq, __u32 mode)
{
	if (mode == LS_TRACK)
		return 1;
	if (mode == LS_DRAIN)
		return before(seq, from->cut + from->rec.seq_off);
	return mode == LS_UNDRAIN &&
	       (!(from->bypassed & LS_BYPASSED) || !before(seq, from->base + from->rec.seq_off));
}

/* Processes an ICMP packet: an error about one of our segments goes to the segment's sender, every other
 * packet up the stack. Returns the action, or ACROSS. */
__noinline int icmp_error(struct __sk_buff *skb)
{
	struct scratch *scratch = get_scratch();
	struct ls_tuple tuple;
	struct quote *q;
	struct flow_ref flow;
	__u32 zero = 0, mode;

	q = bpf_map_lookup_elem(&quotes, &zero);
	if (!scratch || !q || load_error(skb, &scratch->in, q) || !came_to_sender(&scratch->in, &q->old))
		return NEXT;
	answering_tuple(&q->old, &tuple);
	if (is_v6(&q->old) && (is_mapped(tuple.saddr) || is_mapped(tuple.daddr)))
		return NEXT;
	q->number = table_lookup(&tuple);
	if (!find_by_number(q->number, &flow))
		return NEXT;
	__builtin_memcpy(&q->new, &q->old, offsetof(struct headers, opt));
	if (flow.placement == LS_ALONE)
		return deliver_error(skb, &scratch->in, q, mapping_of_record(flow.rec));
	if (!flow.slot)
		return translate_error(skb, &flow, scratch, q);
	mode = stable_mode(flow.slot);
	if (is_over(mode))
		return NEXT;
	if (is_changing(mode))
		return look_again(skb);
	if (is_of_socket(&flow.slot->leg[!(flow.side & 1)], bpf_ntohl(q->old.tcp.seq), mode))
		return deliver_error(skb, &scratch->in, q, mapping_of_leg(&flow.slot->leg[flow.side & 1]));
	return translate_error(skb, &flow, scratch, q);
}

static __always_inline int any_error(struct __sk_buff *skb)
{
	int action = icmp_error(skb);

	return action == ACROSS ? translate_error_across(skb) : action;
}

/* Processes a packet without ports: an error, or a later fragment. Every other packet goes up the stack,
 * after one look at its header. */
static __always_inline int without_ports(struct __sk_buff *skb)
{
	void *data = linear(skb, V4_L4);
	struct ipv6hdr *v6 = data + L3_OFFSET;
	struct iphdr *v4 = data + L3_OFFSET;

	if (is_of_vlan(skb) || !data || data + V4_L4 > (void *)(long)skb->data_end)
		return NEXT;
	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		if (v4->protocol == IPPROTO_ICMP)
			return any_error(skb);
		if (v4->protocol == IPPROTO_TCP && v4->frag_off & bpf_htons(0x1fff))
			return later_fragment(skb);
	} else if (skb->protocol == bpf_htons(ETH_P_IPV6)) {
		if (v6->nexthdr == IPPROTO_ICMPV6)
			return any_error(skb);
		if (v6->nexthdr == NEXT_FRAGMENT)
			return later_fragment(skb);
	}
	return NEXT;
}

#endif
