/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* The few lines that know the version of IP: addresses, hops, lengths. Sums are those of RFC 1071, in 32
 * bits. */
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

/* The third word of an IPv4 address that is mapped to IPv6: the first two are zero, the last is the address.
 */
#define MAPPED bpf_htonl(0xffff)

static __always_inline void map_v4(__be32 *to, __be32 v4)
{
	to[0] = 0;
	to[1] = 0;
	to[2] = MAPPED;
	to[3] = v4;
}

/* No packet of IPv6 may have such an address: it would be taken for one of IPv4. */
static __always_inline int is_mapped(const __be32 *v6)
{
	return !v6[0] && !v6[1] && v6[2] == MAPPED;
}

static __always_inline struct ethhdr *eth_of(struct headers *h)
{
	return is_v6(h) ? &h->v6.eth : &h->v4.eth;
}

/* Destination, then source. */
static __always_inline void set_macs(struct headers *h, const __u8 *macs)
{
	__builtin_memcpy(eth_of(h), macs, 2 * ETH_ALEN);
}

/* What a routing rule may look at besides addresses and ports: DSCP of IPv4 as far as it was TOS, traffic
 * class and flow label of IPv6. */
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

/* How many routers it may pass. */
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

/* Addresses as in ls_tuple. */
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

/* `to` goes where `from` came from. */
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

/* What another pair of addresses does to the sum of the pseudo-header. */
static __always_inline __u32 addresses_diff(const struct headers *old, const struct headers *new)
{
	if (is_v6(old))
		return sum_diff(&old->v6.ip.saddr, &new->v6.ip.saddr, 8);
	return sum_diff(&old->v4.ip.saddr, &new->v4.ip.saddr, 2);
}

/* What the changes of an IP header do to its sum: none of an IPv4 header with its checksum mended. */
static __always_inline __u32 ip_diff(const struct headers *old, const struct headers *new)
{
	return is_v6(old) ? sum_diff(&old->v6.ip, &new->v6.ip, sizeof(old->v6.ip) / 4) : 0;
}

/* The sum of the pseudo-header for TCP of so many bytes (RFC 9293 section 3.1, RFC 8200 section 8.1). */
static __always_inline __u32 pseudo_sum(const struct headers *h, __u32 tcp_len)
{
	__u32 addresses = is_v6(h) ? sum_words(&h->v6.ip.saddr, 8) : sum_words(&h->v4.ip.saddr, 2);

	return add_sums(addresses, bpf_htons(IPPROTO_TCP) + bpf_htons(tcp_len));
}

/* Mends the checksum of a header of IPv4, of which something changed; IPv6 has none. */
static __always_inline void mend_ip_check(const struct headers *old, struct headers *new)
{
	if (is_v6(old))
		return;
	new->v4.ip.check = old->v4.ip.check;
	new->v4.ip.check =
	    adjust(old->v4.ip.check, sum_diff(&old->v4.ip, &new->v4.ip, sizeof(old->v4.ip) / 4));
}

/* The length of the whole IP packet, in bytes; 0: it is not in the header. */
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
