/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Reads the fields of a packet that rules match. */
#ifndef LONGSPLICE_TCP_PACKET_H
#define LONGSPLICE_TCP_PACKET_H

#include "parse.h"

struct tcp_packet {
	union {
		struct ls_tuple tuple;
		struct {
			__u64 src[2], dst[2];
		}; /* the addresses of the tuple */
	};
	__u16 from_port, to_port; /* in host order */
	__u32 len;		  /* from the IP header on */
	__u32 l4;		  /* offset of the TCP header */
	__u8 family;		  /* 4 or 6 */
	__u8 flags;
	__u8 fragment; /* 1: first fragment of several */
};

enum seen {
	NOT_TCP, /* another protocol, or a packet without ports */
	TCP_PACKET,
	CUT_SHORT, /* the packet ends before the flags */
};

static __always_inline enum seen see(struct __sk_buff *skb, struct headers *h, struct tcp_packet *p)
{
	enum parsed kind;

	__builtin_memset(p, 0, sizeof(*p));
	kind = parse_tuple(skb, h, &p->tuple, AS_SENT);
	if (kind == NOT_OURS)
		return NOT_TCP;
	p->from_port = bpf_ntohs(p->tuple.sport);
	p->to_port = bpf_ntohs(p->tuple.dport);
	p->len = skb->len - L3_OFFSET;
	p->l4 = l4_of(h);
	p->family = is_v6(h) ? 6 : 4;
	p->fragment = kind == FRAGMENT;
	if (bpf_skb_load_bytes(skb, p->l4 + offsetof(struct tcp, flags), &p->flags, 1))
		return CUT_SHORT;
	return TCP_PACKET;
}

#endif
