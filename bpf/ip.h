/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Holds the few lines that depend on the version of IP: addresses, hops, lengths. Sums are those of RFC 1071,
 * in 32 bits. */
#ifndef LONGSPLICE_IP_H
#define LONGSPLICE_IP_H

#include <linux/in.h>
#include <bpf/bpf_endian.h>
#include "abi.h"
#include "headers.h"
#include "sums.h"

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

/* Sets both MAC addresses: `macs` has the destination, then the source. */
static __always_inline void set_macs(struct headers *h, const __u8 *macs)
{
	__builtin_memcpy(eth_of(h), macs, 2 * ETH_ALEN);
}

/* Returns the fields besides addresses and ports that a routing rule may match: DSCP of IPv4 as far as it was
 * TOS, traffic class and flow label of IPv6. */
static __always_inline __be32 class_of(const struct headers *h)
{
	return is_v6(h) ? *(const __be32 *)&h->v6.ip & bpf_htonl(0x0fffffff) : h->v4.ip.tos & 0x1c;
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

/* Returns the change of the pseudo-header's sum by other addresses. */
static __always_inline __u32 addresses_diff(const struct headers *old, const struct headers *new)
{
	if (is_v6(old))
		return sum_diff(&old->v6.ip.saddr, &new->v6.ip.saddr, 8);
	return sum_diff(&old->v4.ip.saddr, &new->v4.ip.saddr, 2);
}

/* Returns the change of the sum of an IP header: 0 for an IPv4 header with a correct checksum. */
static __always_inline __u32 ip_diff(const struct headers *old, const struct headers *new)
{
	return is_v6(old) ? sum_diff(&old->v6.ip, &new->v6.ip, sizeof(old->v6.ip) / 4) : 0;
}

/* Returns the sum of the pseudo-header for `tcp_len` bytes of TCP (RFC 9293 section 3.1, RFC 8200 section
 * 8.1). */
static __always_inline __u32 pseudo_sum(const struct headers *h, __u32 tcp_len)
{
	__u32 addresses = is_v6(h) ? sum_words(&h->v6.ip.saddr, 8) : sum_words(&h->v4.ip.saddr, 2);

	return add_sums(addresses, bpf_htons(IPPROTO_TCP) + bpf_htons(tcp_len));
}

/* Corrects the checksum of an IPv4 header that changed; IPv6 has none. */
static __always_inline void mend_ip_check(const struct headers *old, struct headers *new)
{
	if (is_v6(old))
		return;
	new->v4.ip.check = old->v4.ip.check;
	new->v4.ip.check =
	    adjust(old->v4.ip.check, sum_diff(&old->v4.ip, &new->v4.ip, sizeof(old->v4.ip) / 4));
}

/* Returns whether the checksum of an IPv4 header without options is right (RFC 1812 section 5.2.2): the
 * header has the length of the payload. IPv6 has no checksum of its own. */
static __always_inline int is_plain_sound(const struct headers *h)
{
	return is_v6(h) || h->v4.ip.ihl != sizeof(h->v4.ip) / 4 ||
	       fold(sum_words(&h->v4.ip, sizeof(h->v4.ip) / 4)) == 0xffff;
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

static __always_inline void set_ip_length(struct headers *h, __u32 len)
{
	__be16 old = h->v4.ip.tot_len;

	if (is_v6(h)) {
		h->v6.ip.payload_len = bpf_htons(len - sizeof(h->v6.ip));
		return;
	}
	h->v4.ip.tot_len = bpf_htons(len);
	h->v4.ip.check = adjust(h->v4.ip.check, (__u32)(__u16)~old + h->v4.ip.tot_len);
}

#endif
