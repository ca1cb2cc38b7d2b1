/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Handles packets that are no segments: only their Ethernet and IP headers are read and written. */
#ifndef LONGSPLICE_DATAGRAM_H
#define LONGSPLICE_DATAGRAM_H

#include "ip.h"

/* Loads the headers of a packet, up to IP's. Returns 0, or -1 if the packet is too short. */
static __always_inline int load_ip(struct __sk_buff *skb, struct headers *h)
{
	h->is_v6 = skb->protocol == bpf_htons(ETH_P_IPV6);
	h->l4 = is_v6(h) ? V6_L4 : V4_L4;
	if (is_v6(h))
		return bpf_skb_load_bytes(skb, 0, &h->v6.eth, V6_L4) ? -1 : 0;
	return bpf_skb_load_bytes(skb, 0, &h->v4.eth, V4_L4) ? -1 : 0;
}

/* Writes the headers back. MAC addresses are in no sum (CHECKSUM_COMPLETE). Returns 0, or -1. */
static __always_inline int store_ip(struct __sk_buff *skb, struct headers *h)
{
	long err = bpf_skb_store_bytes(skb, 0, eth_of(h), ETH_HLEN, 0);

	if (is_v6(h))
		err |= bpf_skb_store_bytes(skb, L3_OFFSET, &h->v6.ip, sizeof(h->v6.ip), BPF_F_RECOMPUTE_CSUM);
	else
		err |= bpf_skb_store_bytes(skb, L3_OFFSET, &h->v4.ip, sizeof(h->v4.ip), BPF_F_RECOMPUTE_CSUM);
	return err ? -1 : 0;
}

#endif
