/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Forwards segments of the identity case (papers' section III-F): only the time to live and the MAC addresses
 * change. */
#ifndef LONGSPLICE_IDENTITY_H
#define LONGSPLICE_IDENTITY_H

#include "checksum.h"
#include "translate.h"
#include "walk.h"

/* Returns whether a segment is to leave as it came. PAWS may require a higher TSval; packets with IP options
 * go the usual way. */
static __always_inline int leaves_as_it_came(const struct walk *w, const struct headers *h,
					     const struct segment *s)
{
	return w->rec->traits & LS_IDENTITY && !w->slot && l4_of(h) == (is_v6(h) ? V6_L4 : V4_L4) &&
	       !(s->ts_at && monotonic_tsval(w->rec, s));
}

/* Writes the first `len` bytes of the packet, in linear memory or not. Returns 0, or -1. */
static __always_inline int store_start(struct __sk_buff *skb, const void *from, __u32 len)
{
	if (!store_linear((void *)(long)skb->data, (void *)(long)skb->data_end, from, len))
		return 0;
	return bpf_skb_store_bytes(skb, 0, from, len, 0) ? -1 : 0;
}

/* Writes the time to live and the MAC addresses. Returns 0, or -1. */
static __always_inline int write_hop(struct __sk_buff *skb, struct headers *h)
{
	enum summed summed;

	count_hop(h);
	if (is_v6(h)) {
		summed = summed_of(skb);
		/* A header of IPv4 compensates for itself. */
		if (summed == CHECKSUM_COMPLETE || summed == CHECKSUM_UNKNOWN)
			bpf_csum_update(skb, (__u16)~bpf_htons(1));
		return store_start(skb, &h->v6.eth, V6_L4);
	}
	h->v4.ip.check = adjust(h->v4.ip.check, (__u16)~bpf_htons(1 << 8));
	return store_start(skb, &h->v4.eth, V4_L4);
}

#endif
