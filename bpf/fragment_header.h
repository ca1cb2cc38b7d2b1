/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Reads and writes the place of a fragment in its datagram (RFC 791 section 3.2, RFC 8200 section 4.5). */
#ifndef LONGSPLICE_FRAGMENT_HEADER_H
#define LONGSPLICE_FRAGMENT_HEADER_H

#include "csum.h"

struct fragment_header {
	__u8 next, reserved;
	__be16 offset; /* in bytes, and "more" in the lowest bit */
	__be32 id;
};

/* Position of a fragment in its datagram. */
struct fragment {
	__u32 offset; /* bytes */
	__u32 len;    /* bytes of payload of IP */
	__u32 last;
	__be32 id;
};

/* Identifies a fragmented datagram of TCP. */
struct fragment_key {
	__be32 saddr[4], daddr[4]; /* laid out as in ls_tuple */
	__be32 id;
};

/* Limits the time between the first and the last fragment, in ticks: Linux reassembles for 30 s. */
#define FRAGMENT_TICKS 28

static __always_inline void key_of(const struct headers *h, __be32 id, struct fragment_key *key)
{
	key->id = id;
	get_addresses(h, key->saddr, key->daddr);
}

/* Returns the offset of what a fragment holds, if nothing else stands behind the IP header. */
static __always_inline __u32 fragment_l4(const struct headers *h)
{
	return is_v6(h) ? V6_L4 + sizeof(struct fragment_header) : V4_L4;
}

/* Reads the position of a fragment, whose IP header is in h. Returns 0; -1 if it is no fragment of TCP, or
 * its headers do not have the usual layout. */
static __always_inline int read_fragment(struct __sk_buff *skb, const struct headers *h, struct fragment *f)
{
	struct fragment_header v6;
	__u32 total = ip_length(h), field, header = sizeof(h->v4.ip);

	if (is_v6(h)) {
		header = sizeof(h->v6.ip) + sizeof(v6);
		if (h->v6.ip.nexthdr != NEXT_FRAGMENT || bpf_skb_load_bytes(skb, V6_L4, &v6, sizeof(v6)) ||
		    v6.next != IPPROTO_TCP)
			return -1;
		field = bpf_ntohs(v6.offset);
		f->offset = field & 0xfff8;
		f->last = !(field & 1);
		f->id = v6.id;
	} else {
		if (h->v4.ip.ihl != 5 || h->v4.ip.protocol != IPPROTO_TCP)
			return -1;
		field = bpf_ntohs(h->v4.ip.frag_off);
		f->offset = (field & 0x1fff) * 8;
		f->last = !(field & 0x2000);
		f->id = h->v4.ip.id;
	}
	if (total <= header || total > skb->len - L3_OFFSET)
		return -1;
	f->len = total - header;
	return 0;
}

/* Sets another identification in the headers, and in the packet behind them. Returns 0, or -1. */
static __always_inline int set_fragment_id(struct __sk_buff *skb, struct headers *h, __be32 id)
{
	__be16 old = h->v4.ip.id;

	if (is_v6(h))
		return bpf_skb_store_bytes(skb, V6_L4 + offsetof(struct fragment_header, id), &id, sizeof(id),
					   BPF_F_RECOMPUTE_CSUM)
			   ? -1
			   : 0;
	h->v4.ip.id = id;
	h->v4.ip.check = adjust(h->v4.ip.check, (__u32)(__u16)~old + h->v4.ip.id);
	return bpf_skb_store_bytes(skb, L3_OFFSET, &h->v4.ip, sizeof(h->v4.ip), 0) ? -1 : 0;
}

#endif
