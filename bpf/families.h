/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Turns a packet of one version of IP into one of the other (RFC 7915), for a flow with one leg of each
 * (docs/decisions/0032). What stands between IP and TCP stays behind: options of IPv4, extension headers.
 */
#ifndef LONGSPLICE_FAMILIES_H
#define LONGSPLICE_FAMILIES_H

#include "flow.h"
#include "fragment_header.h"

/* Bytes by which an IPv6 header is longer than one of IPv4 without options. */
#define LONGER (sizeof(struct ipv6hdr) - sizeof(struct iphdr))

/* Smallest MTU of IPv6 (RFC 8200 section 5): no sender goes below it. */
#define LEAST_V6_MTU 1280

static __always_inline int crosses(const struct ls_record *rec)
{
	return rec->traits & LS_FAMILIES;
}

/* Returns a flow label that is constant for a flow (RFC 6437 section 3). */
static __always_inline __u32 label_of(const struct ls_record *rec)
{
	return rec->serial * 0x9e3779b1 >> 12;
}

/* Fills in an IPv6 header before `len` bytes of TCP. */
static __always_inline void fill_v6(struct headers *h, __u32 len, __u32 class, __u32 hops, __u32 label)
{
	__builtin_memset(&h->v6.ip, 0, sizeof(h->v6.ip));
	*(__be32 *)&h->v6.ip = bpf_htonl(6U << 28 | class << 20 | (label & 0xfffff));
	h->v6.ip.payload_len = bpf_htons(len);
	h->v6.ip.nexthdr = IPPROTO_TCP;
	h->v6.ip.hop_limit = hops;
	h->v6.eth.h_proto = bpf_htons(ETH_P_IPV6);
	h->l4 = V6_L4;
	h->is_v6 = 1;
}

/* Fills in an IPv4 header before `len` bytes of TCP. It forbids fragments, so it needs no identification (RFC
 * 6864). Its checksum is left to seal_v4(). */
static __always_inline void fill_v4(struct headers *h, __u32 len, __u32 class, __u32 hops)
{
	__builtin_memset(&h->v4.ip, 0, sizeof(h->v4.ip));
	h->v4.ip.version = 4;
	h->v4.ip.ihl = sizeof(h->v4.ip) / 4;
	h->v4.ip.tos = class;
	h->v4.ip.tot_len = bpf_htons(len ? len + sizeof(h->v4.ip) : 0);
	h->v4.ip.frag_off = bpf_htons(0x4000);
	h->v4.ip.ttl = hops;
	h->v4.ip.protocol = IPPROTO_TCP;
	h->v4.eth.h_proto = bpf_htons(ETH_P_IP);
	h->l4 = V4_L4;
	h->is_v6 = 0;
}

static __always_inline void seal_v4(struct headers *h)
{
	h->v4.ip.check = 0;
	h->v4.ip.check = ~fold(sum_words(&h->v4.ip, sizeof(h->v4.ip) / 4));
}

/* Replaces the IP header in the buffer by one of the other version. Traffic class, ECN and hop limit stay
 * (RFC 7915 sections 4.1 and 5.1); the addresses are the caller's to set. An IPv6 header counts `between`
 * bytes of extension headers, which the caller adds. The verifier follows this function by itself: the usual
 * path only tests a bit. */
__noinline int change_version(struct headers *h, __u32 label, __u32 between)
{
	__u32 len, class, hops;
	struct ethhdr eth;

	if (!h)
		return -1;
	len = upper_length(h);
	class = class_byte(h);
	hops = hops_left(h);
	eth = *eth_of(h);
	if (is_v6(h)) {
		h->v4.eth = eth;
		fill_v4(h, len, class, hops);
	} else {
		h->v6.eth = eth;
		fill_v6(h, len + between, class, hops, label);
	}
	return 0;
}

/* Removes from headers what stood between IP and TCP, because the packet has lost it: a local socket's copy
 * is made of a packet that was changed for the far end. The checksum of IPv4 is left to seal_v4(). */
static __always_inline void make_plain(struct headers *h)
{
	__u32 len = upper_length(h);

	if (l4_of(h) == plain_l4(h))
		return;
	if (is_v6(h)) {
		h->v6.ip.nexthdr = IPPROTO_TCP;
		h->v6.ip.payload_len = bpf_htons(len);
	} else {
		h->v4.ip.ihl = sizeof(h->v4.ip) / 4;
		h->v4.ip.tot_len = bpf_htons(len + sizeof(h->v4.ip));
	}
	h->l4 = plain_l4(h);
}

/* Changes the packet's version of IP to that of `new`; what stands between IP and TCP goes first. Returns 0,
 * or -1. */
static __always_inline int change_packet(struct __sk_buff *skb, const struct headers *old,
					 const struct headers *new)
{
	__u32 between = l4_of(old) - plain_l4(old);

	if (between && bpf_skb_adjust_room(skb, -(__s32)between, BPF_ADJ_ROOM_NET, BPF_F_ADJ_ROOM_FIXED_GSO))
		return -1;
	return bpf_skb_change_proto(skb, is_v6(new) ? bpf_htons(ETH_P_IPV6) : bpf_htons(ETH_P_IP), 0) ? -1
												      : 0;
}

/* Writes the headers back, up to IP's. MAC addresses are in no sum (CHECKSUM_COMPLETE). Returns 0, or -1. */
static __always_inline int store_ip(struct __sk_buff *skb, struct headers *h)
{
	long err = L3_OFFSET ? bpf_skb_store_bytes(skb, 0, eth_of(h), ETH_HLEN, 0) : 0;

	if (is_v6(h))
		err |= bpf_skb_store_bytes(skb, L3_OFFSET, &h->v6.ip, sizeof(h->v6.ip), BPF_F_RECOMPUTE_CSUM);
	else
		err |= bpf_skb_store_bytes(skb, L3_OFFSET, &h->v4.ip, sizeof(h->v4.ip), BPF_F_RECOMPUTE_CSUM);
	return err ? -1 : 0;
}

/* Writes the headers, into the kernel's own sum (CHECKSUM_COMPLETE), too: the helper that changed the version
 * has kept that right. Returns 0, or -1. */
static __always_inline int store_changed(struct __sk_buff *skb, struct headers *h, __u32 opt_len)
{
	return store_ip(skb, h) ? -1
				: store_with_options(skb, l4_of(h), &h->tcp, sizeof(h->tcp), opt_len,
						     BPF_F_RECOMPUTE_CSUM);
}

/* Makes a fragment of a packet that was one before its version changed (RFC 7915 sections 4.1 and 5.1.1); the
 * length in an IPv6 header counts the extension header already. Returns 0, or -1. */
static __always_inline int become_fragment(struct __sk_buff *skb, struct headers *h, const struct fragment *f)
{
	struct fragment_header between = {
	    .next = IPPROTO_TCP, .offset = bpf_htons(f->offset | !f->last), .id = f->id};

	if (is_v6(h)) {
		h->v6.ip.nexthdr = NEXT_FRAGMENT;
		if (bpf_skb_adjust_room(skb, sizeof(between), BPF_ADJ_ROOM_NET, BPF_F_ADJ_ROOM_FIXED_GSO) ||
		    bpf_skb_store_bytes(skb, V6_L4, &between, sizeof(between), BPF_F_RECOMPUTE_CSUM))
			return -1;
	} else {
		h->v4.ip.id = f->id;
		h->v4.ip.frag_off = bpf_htons(f->offset / 8 | (f->last ? 0 : 0x2000));
		seal_v4(h);
	}
	return store_ip(skb, h);
}

/* Writes headers of the other version, which stand in `new` with right checksums, into the packet.
 * `directly`: see write_headers_fast(). Returns 0, or -1. */
static __always_inline int store_across(struct __sk_buff *skb, const struct headers *old, struct headers *new,
					__u32 opt_len, int directly)
{
	enum summed summed = summed_of(skb);

	if (change_packet(skb, old, new))
		return -1;
	if (directly && summed != CHECKSUM_COMPLETE && summed != CHECKSUM_UNKNOWN &&
	    !store_directly((void *)(long)skb->data, (void *)(long)skb->data_end, new, opt_len))
		return 0;
	return store_changed(skb, new, opt_len);
}

/*
 * Writes `new` over the headers `old` of the other version, and corrects all checksums. A super-packet of
 * over 64 kB has no length in its header, and is refused: the other version could not say it. Returns 0, or
 * -1 if the packet could not be written. `directly`: see write_headers_fast().
 */
static __always_inline int write_across(struct __sk_buff *skb, struct headers *old, struct headers *new,
					__u32 opt_len, int directly)
{
	__u32 addresses, tcp;
	struct fragment f = {};
	int partial, is_piece;

	if (opt_len > 40 || !upper_length(new))
		return -1;
	make_plain(new);
	partial = is_left_to_device(skb, tcp_check_at(old));
	addresses = add_sums(~addresses_sum(old), addresses_sum(new));
	new->tcp.check = old->tcp.check;
	tcp = tcp_diff(old, new, opt_len);
	new->tcp.check = partial ? fold((__u64) new->tcp.check + addresses)
				 : adjust(new->tcp.check, add_sums(tcp, addresses));
	if (!is_v6(new))
		seal_v4(new);
	is_piece = !read_fragment(skb, old, &f) && !(f.last && !f.offset);
	if (store_across(skb, old, new, opt_len, directly))
		return -1;
	return is_piece ? become_fragment(skb, new, &f) : 0;
}

#endif
