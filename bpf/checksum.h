/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Checksum code exists once: here. */
#ifndef LONGSPLICE_CHECKSUM_H
#define LONGSPLICE_CHECKSUM_H

#include "parse.h"

static __always_inline __u16 fold(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return sum;
}

/* RFC 1624: the checksum of a header of which `words` changed. */
static __always_inline __u16 adjust(__u16 check, __s64 diff)
{
	return ~fold((__u64)(__u16)~check + (__u32)diff);
}

/* What a change of n words of a header does to its sum, in 32 bits. Inline: cheaper than a helper for a few
 * words. */
static __always_inline __u32 sum_diff(const void *old, const void *new, __u32 n)
{
	const __u32 *a = old, *b = new;
	__u64 sum = 0;

	for (__u32 i = 0; i < n; i++)
		sum += (__u64)(__u32)~a[i] + b[i];
	sum = (sum & 0xffffffff) + (sum >> 32);
	return (sum & 0xffffffff) + (sum >> 32);
}

static __always_inline __u32 add_sums(__u32 a, __u32 b)
{
	__u64 sum = (__u64)a + b;

	return (sum & 0xffffffff) + (sum >> 32);
}

/*
 * Writes `new` over the headers of the packet, which are `old`, and mends both checksums, whatever the state
 * of the TCP checksum is (left to the device, verified by it, or complete): the helper knows, we do not. Both
 * have options of the same length. 0, or -1 if the packet could not be written.
 */
static __always_inline int write_headers(struct __sk_buff *skb, struct headers *old, struct headers *new,
					 __u32 opt_len)
{
	__u32 addresses, tcp;

	if (opt_len > 40)
		return -1;
	new->ip.check = old->ip.check;
	new->tcp.check = old->tcp.check;
	new->ip.check = adjust(old->ip.check, sum_diff(&old->ip, &new->ip, sizeof(old->ip) / 4));
	addresses = sum_diff(&old->ip.saddr, &new->ip.saddr, 2);
	tcp = sum_diff(&old->tcp, &new->tcp, sizeof(old->tcp) / 4);
	if (opt_len == TS_LAYOUT_LEN) {
		tcp = add_sums(tcp, sum_diff(old->opt, new->opt, TS_LAYOUT_LEN / 4));
	} else if (opt_len) {
		tcp = bpf_csum_diff((void *)old->opt, opt_len & 63, (void *)new->opt, opt_len & 63, tcp);
	}
	if (bpf_skb_store_bytes(skb, 0, &new->eth, OPT_OFFSET + (opt_len & 63), 0))
		return -1;
	if (addresses && bpf_l4_csum_replace(skb, TCP_CHECK, 0, addresses, BPF_F_PSEUDO_HDR))
		return -1;
	if (tcp && bpf_l4_csum_replace(skb, TCP_CHECK, 0, tcp, 0))
		return -1;
	return 0;
}

/* The TCP checksum as it stands in the packet now, for headers that are to be written over. 0, or -1. */
static __always_inline int read_check(struct __sk_buff *skb, struct headers *h)
{
	return bpf_skb_load_bytes(skb, TCP_CHECK, &h->tcp.check, sizeof(h->tcp.check)) ? -1 : 0;
}

/* Whether the TCP checksum is left to the device (CHECKSUM_PARTIAL): only then the helper does not touch it.
 */
static __always_inline int is_left_to_device(struct __sk_buff *skb)
{
	__u16 before = 0, after = 0;

	if (bpf_skb_load_bytes(skb, TCP_CHECK, &before, sizeof(before)) ||
	    bpf_l4_csum_replace(skb, TCP_CHECK, 0, 1, 0) ||
	    bpf_skb_load_bytes(skb, TCP_CHECK, &after, sizeof(after)))
		return 0;
	if (before == after)
		return 1;
	bpf_skb_store_bytes(skb, TCP_CHECK, &before, sizeof(before), 0);
	return 0;
}

/* Cuts the payload off a packet, and computes its checksum from scratch. */
static __always_inline int trim_payload(struct __sk_buff *skb, struct headers *h, __u32 opt_len)
{
	__u32 tcp_len = sizeof(struct tcp) + (opt_len & 63);
	struct {
		__be32 saddr, daddr;
		__u8 zero, protocol;
		__be16 len;
	} pseudo = {h->ip.saddr, h->ip.daddr, 0, IPPROTO_TCP, bpf_htons(tcp_len)};
	__be16 total = bpf_htons(sizeof(struct iphdr) + tcp_len);
	__be16 old[2] = {h->ip.tot_len, 0}, new[2] = {total, 0};
	int partial = is_left_to_device(skb);
	__s64 sum;

	if (opt_len > 40 || bpf_skb_change_tail(skb, L4_OFFSET + tcp_len, 0))
		return -1;
	h->ip.check = adjust(h->ip.check, bpf_csum_diff((void *)old, 4, (void *)new, 4, 0));
	h->ip.tot_len = total;
	h->tcp.check = 0;
	sum = bpf_csum_diff(NULL, 0, (void *)&pseudo, sizeof(pseudo), 0);
	if (!partial)
		sum = bpf_csum_diff(NULL, 0, (void *)&h->tcp, tcp_len, sum);
	h->tcp.check = partial ? fold(sum) : ~fold(sum);
	return bpf_skb_store_bytes(skb, 0, &h->eth, L4_OFFSET + tcp_len, BPF_F_RECOMPUTE_CSUM) ? -1 : 0;
}

#endif
