/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Holds the headers of a segment in a buffer, and the few lines that depend on the version of IP: addresses,
 * hops, lengths. */
#ifndef LONGSPLICE_HEADERS_H
#define LONGSPLICE_HEADERS_H

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <stddef.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "abi.h"

#define TCP_FIN 0x01
#define TCP_SYN 0x02
#define TCP_RST 0x04
#define TCP_PSH 0x08
#define TCP_ACK 0x10
#define TCP_URG 0x20
#define TCP_ECE 0x40
#define TCP_CWR 0x80
/* Bit of the byte before the flags (RFC 9768 section 3.1). */
#define TCP_AE 0x01

struct tcp {
	__be16 sport, dport;
	__be32 seq, ack;
	__u8 offset; /* in words, in the upper half */
	__u8 flags;
	__be16 window, check, urgent;
};

/* Offset of IP in a packet. Programs for devices without Ethernet headers are built with 0 (bare.bpf.c). */
#ifndef L3_OFFSET
#define L3_OFFSET ETH_HLEN
#endif
/* Offset of TCP in a packet without IP options or extension headers. */
#define V4_L4 (L3_OFFSET + sizeof(struct iphdr))
#define V6_L4 (L3_OFFSET + sizeof(struct ipv6hdr))
/* Offset of TCP's options in such a packet. */
#define V4_HEADERS (V4_L4 + sizeof(struct tcp))
#define V6_HEADERS (V6_L4 + sizeof(struct tcp))

/*
 * Headers as they stand in the packet, except for IP options and extension headers, which are not loaded. TCP
 * is at the same place for both versions of IP. The headers before TCP are aligned to the right; four bytes
 * in front of them all tell the version. The Ethernet header of a packet that has none is only that of its
 * route. Options are at most 40 bytes: the rest of the room is for the
 * verifier, which sees an index masked to 63.
 */
struct headers {
	union {
		struct {
			__u8 unused[30];
			struct ethhdr eth;
			struct iphdr ip;
		} __attribute__((packed)) v4;
		struct {
			__u8 unused[10];
			struct ethhdr eth;
			struct ipv6hdr ip;
		} __attribute__((packed)) v6;
		struct {
			__u16 l4; /* offset of TCP in the packet */
			__u8 is_v6;
		};
	};
	struct tcp tcp;
	__u8 opt[64];
} __attribute__((packed, aligned(8)));

_Static_assert(offsetof(struct headers, tcp) == 64, "the same for both versions");
_Static_assert(sizeof(((struct headers *)0)->v4) == sizeof(((struct headers *)0)->v6), "likewise");

/* Reads the offset from memory each time, so that the verifier follows the code behind it once, not once per
 * path. */
static __always_inline __u32 l4_of(const struct headers *h)
{
	return *(const volatile __u16 *)&h->l4;
}

static __always_inline int is_v6(const struct headers *h)
{
	return *(const volatile __u8 *)&h->is_v6;
}

static __always_inline __u32 tcp_check_at(const struct headers *h)
{
	return l4_of(h) + offsetof(struct tcp, check);
}

/* Copies `n` bytes, for a constant n. The compiler's own copy would go byte by byte, because it knows no
 * alignment. */
static __always_inline void copy_words(void *to, const void *from, __u32 n)
{
	__u32 i = 0;

	for (; i + 8 <= n; i += 8)
		*(__u64 *)(to + i) = *(const __u64 *)(from + i);
	for (; i + 2 <= n; i += 2)
		*(__u16 *)(to + i) = *(const __u16 *)(from + i);
}

/* Copies headers; options beyond the usual dozen bytes are rare. */
static __always_inline void copy_headers(struct headers *to, const struct headers *from, __u32 opt_len)
{
	if (opt_len <= 12)
		__builtin_memcpy(to, from, offsetof(struct headers, opt) + 12);
	else
		*to = *from;
}

#define AF_INET	 2
#define AF_INET6 10
#define LOOPBACK 1 /* its interface index, in every namespace */

/* Third word of an IPv4 address that is mapped to IPv6: the first two are zero, the last is the address. */
#define MAPPED bpf_htonl(0xffff)

static __always_inline void map_v4(__be32 *to, __be32 v4)
{
	to[0] = 0;
	to[1] = 0;
	to[2] = MAPPED;
	to[3] = v4;
}

/* Returns whether an address is a mapped one. A packet of IPv6 must not have it: it would be taken for one of
 * IPv4. */
static __always_inline int is_mapped(const __be32 *v6)
{
	return !v6[0] && !v6[1] && v6[2] == MAPPED;
}

static __always_inline struct ethhdr *eth_of(struct headers *h)
{
	return is_v6(h) ? &h->v6.eth : &h->v4.eth;
}

/* Returns the beginning of a packet of IPv4 among its headers. */
static __always_inline void *start_of_v4(struct headers *h)
{
	return (void *)&h->v4.ip - L3_OFFSET;
}

/* Returns the beginning of a packet of IPv6 among its headers. */
static __always_inline void *start_of_v6(struct headers *h)
{
	return (void *)&h->v6.ip - L3_OFFSET;
}

/* Sets both MAC addresses: `macs` has the destination, then the source. */
static __always_inline void set_macs(struct headers *h, const __u8 *macs)
{
	__builtin_memcpy(eth_of(h), macs, 2 * ETH_ALEN);
}

/* Returns the fields besides addresses and ports that a routing rule may match: DSCP of IPv4, traffic class
 * and flow label of IPv6. Kernels before Linux 6.13 look at the three lower bits of DSCP only. */
static __always_inline __be32 class_of(const struct headers *h)
{
	return is_v6(h) ? *(const __be32 *)&h->v6.ip & bpf_htonl(0x0fffffff) : h->v4.ip.tos & 0xfc;
}

static __always_inline void addresses_to_fib(struct bpf_fib_lookup *fib, const struct headers *h)
{
	if (is_v6(h)) {
		fib->family = AF_INET6;
		fib->flowinfo = class_of(h);
		__builtin_memcpy(fib->ipv6_src, &h->v6.ip.saddr, sizeof(fib->ipv6_src));
		__builtin_memcpy(fib->ipv6_dst, &h->v6.ip.daddr, sizeof(fib->ipv6_dst));
	} else {
		fib->family = AF_INET;
		fib->tos = class_of(h);
		fib->ipv4_src = h->v4.ip.saddr;
		fib->ipv4_dst = h->v4.ip.daddr;
	}
}

/* Returns the number of routers that the packet may still pass. */
static __always_inline __u32 hops_left(const struct headers *h)
{
	return is_v6(h) ? h->v6.ip.hop_limit : h->v4.ip.ttl;
}

static __always_inline void count_hop(struct headers *h)
{
	if (is_v6(h))
		h->v6.ip.hop_limit--;
	else
		h->v4.ip.ttl--;
}

/* Returns the ECN field (RFC 3168 section 5). */
static __always_inline __u8 ecn_of(const struct headers *h)
{
	return is_v6(h) ? h->v6.ip.flow_lbl[0] >> 4 & 3 : h->v4.ip.tos & 3;
}

/* Clears the ECN field: the packet says that its sender does not use ECN. */
static __always_inline void clear_ecn(struct headers *h)
{
	if (is_v6(h))
		h->v6.ip.flow_lbl[0] &= ~0x30;
	else
		h->v4.ip.tos &= ~3;
}

/* Sets the addresses, given as in ls_tuple. */
static __always_inline void set_addresses(struct headers *h, const __be32 *saddr, const __be32 *daddr)
{
	if (is_v6(h)) {
		__builtin_memcpy(&h->v6.ip.saddr, saddr, sizeof(h->v6.ip.saddr));
		__builtin_memcpy(&h->v6.ip.daddr, daddr, sizeof(h->v6.ip.daddr));
	} else {
		h->v4.ip.saddr = saddr[3];
		h->v4.ip.daddr = daddr[3];
	}
}

/* Reads the addresses, as in ls_tuple. */
static __always_inline void get_addresses(const struct headers *h, __be32 *saddr, __be32 *daddr)
{
	if (is_v6(h)) {
		__builtin_memcpy(saddr, &h->v6.ip.saddr, sizeof(h->v6.ip.saddr));
		__builtin_memcpy(daddr, &h->v6.ip.daddr, sizeof(h->v6.ip.daddr));
	} else {
		map_v4(saddr, h->v4.ip.saddr);
		map_v4(daddr, h->v4.ip.daddr);
	}
}

/* Hops of a packet that this host sends itself (RFC 1700). */
#define OWN_HOPS 64
/* Limits the hops that a sender may have left and still know of no path behind this host: hardly any path has
 * more. */
#define FEW_HOPS 32

/* Returns whether a packet keeps its source toward a far end, whose own segments have this tuple. The
 * verifier follows this function by itself. */
__noinline int keeps_source(const struct headers *h, const struct ls_tuple *far)
{
	const __be32 *own, *shown;

	if (!h || !far)
		return 1;
	own = h->v6.ip.saddr.in6_u.u6_addr32;
	shown = far->daddr;
	if (is_v6(h))
		return !((own[0] ^ shown[0]) | (own[1] ^ shown[1]) | (own[2] ^ shown[2]) |
			 (own[3] ^ shown[3]));
	return shown[2] == MAPPED && h->v4.ip.saddr == shown[3];
}

/* Returns whether a packet may pass no further router (RFC 1812 section 5.3.1). One that gets another source
 * goes on with the hops of this host: its sender need not reach further. One that keeps its source could come
 * back, and go round for ever. */
static __always_inline int is_at_its_end(const struct headers *h, const struct ls_tuple *far)
{
	return hops_left(h) <= 1 && keeps_source(h, far);
}

/* Counts a hop, or renews the hops of a packet that has few. Called while the packet has its own source. */
static __always_inline void renew_hops(struct headers *h, const struct ls_tuple *far)
{
	if (hops_left(h) > FEW_HOPS || keeps_source(h, far))
		count_hop(h);
	else if (is_v6(h))
		h->v6.ip.hop_limit = OWN_HOPS;
	else
		h->v4.ip.ttl = OWN_HOPS;
}

/* Returns the traffic class, or type of service. */
static __always_inline __u8 class_byte(const struct headers *h)
{
	return is_v6(h) ? h->v6.ip.priority << 4 | h->v6.ip.flow_lbl[0] >> 4 : h->v4.ip.tos;
}

/* Addresses `to` to the sender of `from`. */
static __always_inline void answer_to(struct headers *to, struct headers *from)
{
	__builtin_memcpy(eth_of(to)->h_dest, eth_of(from)->h_source, ETH_ALEN);
	__builtin_memcpy(eth_of(to)->h_source, eth_of(from)->h_dest, ETH_ALEN);
	if (is_v6(from)) {
		to->v6.ip.saddr = from->v6.ip.daddr;
		to->v6.ip.daddr = from->v6.ip.saddr;
	} else {
		to->v4.ip.saddr = from->v4.ip.daddr;
		to->v4.ip.daddr = from->v4.ip.saddr;
	}
}

/* Returns the length of the whole IP packet, in bytes; 0: the header does not have it. */
static __always_inline __u32 ip_length(const struct headers *h)
{
	__u32 payload;

	if (!is_v6(h))
		return bpf_ntohs(h->v4.ip.tot_len);
	payload = bpf_ntohs(h->v6.ip.payload_len);
	return payload ? payload + sizeof(h->v6.ip) : 0;
}

/* Returns the length of what follows IP's headers, in bytes; 0: the header does not have it. */
static __always_inline __u32 upper_length(const struct headers *h)
{
	__u32 total = ip_length(h), header = l4_of(h) - L3_OFFSET;

	return total > header ? total - header : 0;
}

/* Returns the offset of TCP in a packet with nothing between IP and TCP. */
static __always_inline __u32 plain_l4(const struct headers *h)
{
	return is_v6(h) ? V6_L4 : V4_L4;
}

#endif
