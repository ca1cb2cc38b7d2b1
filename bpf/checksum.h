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

/*
 * Writes `new` over the headers of the packet, which are `old`, and mends both checksums, whatever the state
 * of the TCP checksum is (left to the device, verified by it, or complete): the helper knows, we do not. Both
 * have options of the same length. `new` has the right checksums afterwards. 0, or -1 if the packet could not
 * be written.
 */
static __always_inline int write_headers(struct __sk_buff *skb, struct headers *old, struct headers *new,
					 __u32 opt_len)
{
	__u32 tcp_len = sizeof(struct tcp) + (opt_len & 63);
	__s64 addresses, tcp, ip;

	if (opt_len > 40)
		return -1;
	new->ip.check = old->ip.check;
	new->tcp.check = old->tcp.check;
	ip = bpf_csum_diff((void *)&old->ip, sizeof(old->ip), (void *)&new->ip, sizeof(new->ip), 0);
	addresses = bpf_csum_diff((void *)&old->ip.saddr, 8, (void *)&new->ip.saddr, 8, 0);
	tcp = bpf_csum_diff((void *)&old->tcp, tcp_len, (void *)&new->tcp, tcp_len, 0);
	new->ip.check = adjust(old->ip.check, ip);
	if (bpf_skb_store_bytes(skb, 0, &new->eth, L4_OFFSET + tcp_len, 0))
		return -1;
	if (addresses && bpf_l4_csum_replace(skb, TCP_CHECK, 0, addresses, BPF_F_PSEUDO_HDR))
		return -1;
	if (tcp && bpf_l4_csum_replace(skb, TCP_CHECK, 0, tcp, 0))
		return -1;
	return bpf_skb_load_bytes(skb, TCP_CHECK, &new->tcp.check, sizeof(new->tcp.check)) ? -1 : 0;
}

/*
 * Cuts the payload off a packet that goes to a local socket, and computes its checksum from scratch. (A
 * packet whose checksum is left to the device is not verified by the local socket, so that this serves all
 * states.)
 */
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
	__s64 sum;

	if (opt_len > 40 || bpf_skb_change_tail(skb, L4_OFFSET + tcp_len, 0))
		return -1;
	h->ip.check = adjust(h->ip.check, bpf_csum_diff((void *)old, 4, (void *)new, 4, 0));
	h->ip.tot_len = total;
	h->tcp.check = 0;
	sum = bpf_csum_diff(NULL, 0, (void *)&pseudo, sizeof(pseudo), 0);
	sum = bpf_csum_diff(NULL, 0, (void *)&h->tcp, tcp_len, sum);
	h->tcp.check = ~fold(sum);
	return bpf_skb_store_bytes(skb, 0, &h->eth, L4_OFFSET + tcp_len, BPF_F_RECOMPUTE_CSUM) ? -1 : 0;
}

#endif
