/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Headers back into the packet, with their checksums. Checksum code exists once: here and in sums.h. */
#ifndef LONGSPLICE_CHECKSUM_H
#define LONGSPLICE_CHECKSUM_H

#include "parse.h"

/* Writes the headers as they are. 0, or -1 if the packet could not be written. */
static __always_inline int store_headers(struct __sk_buff *skb, struct headers *h, __u32 opt_len, __u64 flags)
{
	__u32 l4 = l4_of(h), ip_end = is_v6(h) ? V6_L4 : V4_L4, tcp_len = sizeof(struct tcp) + (opt_len & 63);
	void *eth = eth_of(h);

	if (l4 == ip_end)
		return bpf_skb_store_bytes(skb, 0, eth, ip_end + tcp_len, flags) ? -1 : 0;
	if (bpf_skb_store_bytes(skb, 0, eth, ip_end, flags))
		return -1;
	return bpf_skb_store_bytes(skb, l4, &h->tcp, tcp_len, flags) ? -1 : 0;
}

/*
 * Writes `new` over the headers of the packet, which are `old`, and mends both checksums, whatever the state
 * of the TCP checksum is (left to the device, verified by it, or complete): the helper knows, we do not. Both
 * have options of the same length. 0, or -1 if the packet could not be written.
 */
static __always_inline int write_headers(struct __sk_buff *skb, struct headers *old, struct headers *new,
					 __u32 opt_len)
{
	__u32 addresses, tcp, check_at = tcp_check_at(old);

	if (opt_len > 40)
		return -1;
	new->tcp.check = old->tcp.check;
	mend_ip_check(old, new);
	addresses = addresses_diff(old, new);
	tcp = sum_diff(&old->tcp, &new->tcp, sizeof(old->tcp) / 4);
	if (opt_len == TS_LAYOUT_LEN) {
		tcp = add_sums(tcp, sum_diff(old->opt, new->opt, TS_LAYOUT_LEN / 4));
	} else if (opt_len) {
		tcp = bpf_csum_diff((void *)old->opt, opt_len & 63, (void *)new->opt, opt_len & 63, tcp);
	}
	if (store_headers(skb, new, opt_len, 0))
		return -1;
	if (addresses && bpf_l4_csum_replace(skb, check_at, 0, addresses, BPF_F_PSEUDO_HDR))
		return -1;
	if (tcp && bpf_l4_csum_replace(skb, check_at, 0, tcp, 0))
		return -1;
	/* A header of IPv4 makes up for its own changes, in the sum of the whole (CHECKSUM_COMPLETE), too. */
	if (is_v6(old))
		bpf_csum_update(skb, sum_diff(&old->v6.ip, &new->v6.ip, sizeof(old->v6.ip) / 4));
	return 0;
}

/* The TCP checksum as it stands in the packet now, for headers that are to be written over. 0, or -1. */
static __always_inline int read_check(struct __sk_buff *skb, struct headers *h)
{
	return bpf_skb_load_bytes(skb, tcp_check_at(h), &h->tcp.check, sizeof(h->tcp.check)) ? -1 : 0;
}

/* Whether the TCP checksum is left to the device (CHECKSUM_PARTIAL): only then the helper does not touch it.
 */
static __always_inline int is_left_to_device(struct __sk_buff *skb, __u32 check_at)
{
	__u16 before = 0, after = 0;

	if (bpf_skb_load_bytes(skb, check_at, &before, sizeof(before)) ||
	    bpf_l4_csum_replace(skb, check_at, 0, 1, 0) ||
	    bpf_skb_load_bytes(skb, check_at, &after, sizeof(after)))
		return 0;
	if (before == after)
		return 1;
	bpf_skb_store_bytes(skb, check_at, &before, sizeof(before), 0);
	return 0;
}

/* Cuts the payload off a packet, and computes its checksum from scratch. */
static __always_inline int trim_payload(struct __sk_buff *skb, struct headers *h, __u32 opt_len)
{
	__u32 tcp_len = sizeof(struct tcp) + (opt_len & 63), l4 = l4_of(h);
	int partial = is_left_to_device(skb, tcp_check_at(h));
	__s64 sum;

	if (opt_len > 40 || bpf_skb_change_tail(skb, l4 + tcp_len, 0))
		return -1;
	set_ip_length(h, l4 - L3_OFFSET + tcp_len);
	h->tcp.check = 0;
	sum = pseudo_sum(h, tcp_len);
	if (!partial)
		sum = bpf_csum_diff(NULL, 0, (void *)&h->tcp, tcp_len, sum);
	h->tcp.check = partial ? fold(sum) : ~fold(sum);
	return store_headers(skb, h, opt_len, BPF_F_RECOMPUTE_CSUM);
}

#endif
