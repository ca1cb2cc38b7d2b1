/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* From a packet to its addresses, ports and flags, IPv4 and IPv6 alike: what rules match. */
#ifndef LONGSPLICE_TCP_PACKET_H
#define LONGSPLICE_TCP_PACKET_H

#include <linux/ipv6.h>
#include "parse.h"

/* An address of either family: IPv4 as ::ffff:a.b.c.d (RFC 4291 section 2.5.5.2). */
union address {
	__u64 half[2];
	__be32 word[4];
};

struct tcp_packet {
	union address src, dst;
	__be16 sport, dport;
	__u16 from_port, to_port; /* the same in host order */
	__u32 tcp_at;		  /* where the TCP header stands */
	__u32 len;		  /* from the IP header on */
	__u8 family;		  /* 4 or 6 */
	__u8 flags;
	__u8 fragment; /* 1: the first one of several */
};

enum seen {
	NOT_TCP,
	TCP_PACKET,
	CUT_SHORT, /* TCP, but the ports or flags are not there */
};

#define IPV4_FRAGMENT_OFFSET 0x1fff
#define IPV4_MORE_FRAGMENTS  0x2000
#define IPV6_FRAGMENT_OFFSET 0xfff8
#define EXTENSION_HEADERS    6 /* as many are followed */

struct extension {
	__u8 next;
	__u8 len;
	__be16 offset; /* of a fragment header */
};

static __always_inline enum seen see_tcp(struct __sk_buff *skb, __u32 at, struct tcp_packet *p)
{
	struct tcp tcp;

	if (bpf_skb_load_bytes(skb, at, &tcp, sizeof(tcp)))
		return CUT_SHORT;
	p->tcp_at = at;
	p->sport = tcp.sport;
	p->dport = tcp.dport;
	p->from_port = bpf_ntohs(tcp.sport);
	p->to_port = bpf_ntohs(tcp.dport);
	p->flags = tcp.flags;
	return TCP_PACKET;
}

static __always_inline enum seen see_ipv4(struct __sk_buff *skb, struct tcp_packet *p)
{
	struct iphdr ip;

	if (bpf_skb_load_bytes(skb, L3_OFFSET, &ip, sizeof(ip)) || ip.protocol != IPPROTO_TCP)
		return NOT_TCP;
	if (ip.version != 4 || ip.ihl < 5 || ip.frag_off & bpf_htons(IPV4_FRAGMENT_OFFSET))
		return CUT_SHORT;
	p->family = 4;
	p->fragment = !!(ip.frag_off & bpf_htons(IPV4_MORE_FRAGMENTS));
	p->src.half[0] = p->dst.half[0] = 0;
	p->src.word[2] = p->dst.word[2] = bpf_htonl(0xffff);
	p->src.word[3] = ip.saddr;
	p->dst.word[3] = ip.daddr;
	return see_tcp(skb, L3_OFFSET + ip.ihl * 4, p);
}

static __always_inline enum seen see_ipv6(struct __sk_buff *skb, struct tcp_packet *p)
{
	__u32 at = L3_OFFSET + sizeof(struct ipv6hdr);
	struct extension ext;
	struct ipv6hdr ip;
	__u8 next;

	if (bpf_skb_load_bytes(skb, L3_OFFSET, &ip, sizeof(ip)) || ip.version != 6)
		return NOT_TCP;
	p->family = 6;
	__builtin_memcpy(&p->src, &ip.saddr, sizeof(p->src));
	__builtin_memcpy(&p->dst, &ip.daddr, sizeof(p->dst));
	next = ip.nexthdr;
	for (int i = 0; i < EXTENSION_HEADERS; i++) {
		if (next == IPPROTO_TCP)
			return see_tcp(skb, at, p);
		if (next != IPPROTO_HOPOPTS && next != IPPROTO_ROUTING && next != IPPROTO_DSTOPTS &&
		    next != IPPROTO_FRAGMENT)
			return NOT_TCP;
		if (bpf_skb_load_bytes(skb, at, &ext, sizeof(ext)))
			return NOT_TCP;
		if (next == IPPROTO_FRAGMENT) {
			if (ext.offset & bpf_htons(IPV6_FRAGMENT_OFFSET))
				return ext.next == IPPROTO_TCP ? CUT_SHORT : NOT_TCP;
			p->fragment = !!(ext.offset & bpf_htons(1));
		}
		at += next == IPPROTO_FRAGMENT ? 8 : (ext.len + 1) * 8;
		next = ext.next;
	}
	return NOT_TCP;
}

/* A VLAN tag means that the packet is for another (sub-)interface, which has hooks of its own. */
static __always_inline enum seen see(struct __sk_buff *skb, struct tcp_packet *p)
{
	__builtin_memset(p, 0, sizeof(*p));
	if (skb->vlan_present || skb->len < L3_OFFSET)
		return NOT_TCP;
	p->len = skb->len - L3_OFFSET;
	if (skb->protocol == bpf_htons(ETH_P_IP))
		return see_ipv4(skb, p);
	if (skb->protocol == bpf_htons(ETH_P_IPV6))
		return see_ipv6(skb, p);
	return NOT_TCP;
}

#endif
