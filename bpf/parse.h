/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Parses a packet: its connection, its headers into a buffer, and the fields of its segment. */
#ifndef LONGSPLICE_PARSE_H
#define LONGSPLICE_PARSE_H

#include "options.h"
#include "scratch.h"
#include "seq.h"

#define VLAN_NUMBER 0xfff

/* Select the tuple as the packet has it, or that of an answer. They are constants, so that either costs the
 * same. */
#define AS_SENT	 0
#define REVERSED 1

/* Returns the packet's data if its first `len` bytes can be read; otherwise NULL. */
static __always_inline void *linear(struct __sk_buff *skb, __u32 len)
{
	if (skb->len < len)
		return NULL;
	if ((void *)(long)skb->data + len > (void *)(long)skb->data_end && bpf_skb_pull_data(skb, len))
		return NULL;
	return (void *)(long)skb->data;
}

/* Reads a header of IPv4: whether TCP follows, its offset, and the addresses. */
static __always_inline enum parsed read_v4(const struct iphdr *ip, struct headers *h, __be32 *saddr,
					   __be32 *daddr)
{
	if (ip->protocol != IPPROTO_TCP || ip->version != 4 || ip->frag_off & bpf_htons(0x1fff))
		return NOT_OURS;
	map_v4(saddr, ip->saddr);
	map_v4(daddr, ip->daddr);
	h->is_v6 = 0;
	h->l4 = L3_OFFSET + ip->ihl * 4;
	return ip->frag_off & bpf_htons(0x2000) ? FRAGMENT : SEGMENT;
}

static __always_inline enum parsed parse_v4(struct __sk_buff *skb, struct headers *h, __be32 *saddr,
					    __be32 *daddr, __be16 *ports)
{
	void *data = linear(skb, V4_HEADERS);
	struct iphdr *ip = data + L3_OFFSET;
	enum parsed kind;
	__u32 header;

	if (!data || data + V4_HEADERS > (void *)(long)skb->data_end)
		return NOT_OURS;
	header = ip->ihl * 4;
	kind = read_v4(ip, h, saddr, daddr);
	if (kind == NOT_OURS)
		return NOT_OURS;
	if (header == sizeof(*ip))
		__builtin_memcpy(ports, data + V4_L4, 4);
	else if (header < sizeof(*ip) || bpf_skb_load_bytes(skb, L3_OFFSET + header, ports, 4))
		return NOT_OURS;
	return kind;
}

/* Reads a header of IPv6: the addresses, and whether TCP may follow, at once or behind extension headers. */
static __always_inline enum parsed read_v6(const struct ipv6hdr *ip, struct headers *h, __be32 *saddr,
					   __be32 *daddr)
{
	if (ip->version != 6 || (ip->nexthdr != IPPROTO_TCP && !is_extension(ip->nexthdr)))
		return NOT_OURS;
	__builtin_memcpy(saddr, &ip->saddr, sizeof(ip->saddr));
	__builtin_memcpy(daddr, &ip->daddr, sizeof(ip->daddr));
	h->is_v6 = 1;
	h->l4 = V6_L4;
	return is_mapped(saddr) ? NOT_OURS : SEGMENT;
}

static __always_inline enum parsed parse_v6(struct __sk_buff *skb, struct headers *h, __be32 *saddr,
					    __be32 *daddr, __be16 *ports)
{
	void *data = linear(skb, V6_HEADERS);
	struct ipv6hdr *ip = data + L3_OFFSET;
	enum parsed kind;

	if (!data || data + V6_HEADERS > (void *)(long)skb->data_end)
		return NOT_OURS;
	if (read_v6(ip, h, saddr, daddr) == NOT_OURS)
		return NOT_OURS;
	if (ip->nexthdr == IPPROTO_TCP) {
		__builtin_memcpy(ports, data + V6_L4, 4);
		return SEGMENT;
	}
	kind = skip_extensions(skb, h, ip->nexthdr);
	if (kind == NOT_OURS || bpf_skb_load_bytes(skb, l4_of(h), ports, 4))
		return NOT_OURS;
	return kind;
}

/* Returns whether a VLAN tag means that the packet is for another (sub-)interface, which has hooks of its
 * own. A tag with number 0 is only a priority (IEEE 802.1Q). */
static __always_inline int is_of_vlan(const struct __sk_buff *skb)
{
	return skb->vlan_present && skb->vlan_tci & VLAN_NUMBER;
}

/* Finds the connection that a packet belongs to, and writes nothing: a packet that is not ours costs this and
 * one look-up. */
static __always_inline enum parsed parse_tuple(struct __sk_buff *skb, struct headers *h, struct ls_tuple *t,
					       int view)
{
	__be32 *saddr = view == AS_SENT ? t->saddr : t->daddr;
	__be32 *daddr = view == AS_SENT ? t->daddr : t->saddr;
	enum parsed kind = NOT_OURS;
	__be16 ports[2] = {};

	if (is_of_vlan(skb))
		return NOT_OURS;
	if (skb->protocol == bpf_htons(ETH_P_IP))
		kind = parse_v4(skb, h, saddr, daddr, ports);
	else if (skb->protocol == bpf_htons(ETH_P_IPV6))
		kind = parse_v6(skb, h, saddr, daddr, ports);
	t->sport = ports[view];
	t->dport = ports[!view];
	return kind;
}

/* Copies the beginning of a packet, as far as the verifier allows. Returns the bytes of TCP options that were
 * copied; -1 if not even the headers were. */
static __always_inline int load_linear(void *data, void *end, void *to, __u32 headers)
{
	if (data + headers + TS_LAYOUT_LEN <= end) {
		copy_words(to, data, headers + TS_LAYOUT_LEN);
		return TS_LAYOUT_LEN;
	}
	if (data + headers > end)
		return -1;
	copy_words(to, data, headers);
	return 0;
}

/* Copies the headers of a packet in linear memory, as if nothing stood between IP and TCP. Returns as
 * load_linear(). */
static __always_inline int load_plain(void *data, void *end, struct headers *h)
{
	return is_v6(h) ? load_linear(data, end, start_of_v6(h), V6_HEADERS)
			: load_linear(data, end, start_of_v4(h), V4_HEADERS);
}

/* Loads the headers of a packet, up to IP's. Returns 0, or -1 if the packet is too short. */
static __always_inline int load_ip(struct __sk_buff *skb, struct headers *h)
{
	h->is_v6 = skb->protocol == bpf_htons(ETH_P_IPV6);
	h->l4 = is_v6(h) ? V6_L4 : V4_L4;
	if (is_v6(h))
		return bpf_skb_load_bytes(skb, 0, start_of_v6(h), V6_L4) ? -1 : 0;
	return bpf_skb_load_bytes(skb, 0, start_of_v4(h), V4_L4) ? -1 : 0;
}

/* Loads the headers of a packet that parse_tuple() knows, at least up to TCP's options. Returns as
 * load_linear(). */
static __always_inline int load_headers(struct __sk_buff *skb, struct headers *h)
{
	__u32 l4 = l4_of(h);
	int loaded = load_plain((void *)(long)skb->data, (void *)(long)skb->data_end, h);

	if (loaded < 0 || l4 == (is_v6(h) ? V6_L4 : V4_L4))
		return loaded;
	return bpf_skb_load_bytes(skb, l4, &h->tcp, sizeof(h->tcp)) ? -1 : 0;
}

/* Returns the offset of TSval among the options; 0: there is none. */
static __always_inline __u32 timestamp_at(struct headers *h, __u32 opt_len)
{
	__u32 at;

	if (opt_len < TS_LAYOUT_LEN)
		return 0;
	if (*(__be32 *)h->opt == TS_LAYOUT)
		return 4;
	at = find_timestamp(h, opt_len);
	return at > 32 ? 0 : at;
}

/* Fills in the segment of loaded headers, with seg->opt_len bytes of options. By its IP header the packet has
 * `total` bytes from that header on, and `len` of them are there. Returns SEGMENT, or MALFORMED. */
static __always_inline enum parsed read_segment(struct headers *h, struct segment *seg, __u32 total,
						__u32 len)
{
	__u32 header;

	seg->l4 = l4_of(h);
	header = seg->l4 - L3_OFFSET + sizeof(struct tcp) + seg->opt_len;
	if (total < header || total > len)
		return MALFORMED;
	seg->flags = h->tcp.flags;
	seg->seq = bpf_ntohl(h->tcp.seq);
	seg->ack = bpf_ntohl(h->tcp.ack);
	seg->window = bpf_ntohs(h->tcp.window);
	seg->len = total - header;
	seg->end = seg->seq + seg->len + !!(seg->flags & TCP_FIN) + !!(seg->flags & TCP_SYN);
	seg->in_place = 1;
	seg->whole = 1;
	seg->ts_at = timestamp_at(h, seg->opt_len);
	seg->tsval = seg->ts_at ? load32(&h->opt[seg->ts_at]) : 0;
	seg->tsecr = seg->ts_at ? load32(&h->opt[seg->ts_at + 4]) : 0;
	return SEGMENT;
}

/* Loads the headers of a packet that parse_tuple() called a SEGMENT. */
static __always_inline enum parsed parse_segment(struct __sk_buff *skb, struct headers *h,
						 struct segment *seg)
{
	__u32 total, header;
	int loaded;

	if (!is_v6(h) && l4_of(h) != V4_L4 && is_source_routed(skb, h))
		return SOURCE_ROUTED;
	loaded = load_headers(skb, h);
	header = (h->tcp.offset >> 4) * 4;
	if (loaded < 0 || header < sizeof(struct tcp))
		return MALFORMED;
	seg->opt_len = header - sizeof(struct tcp);
	if ((__s32)seg->opt_len > loaded &&
	    bpf_skb_load_bytes(skb, l4_of(h) + sizeof(struct tcp), h->opt, seg->opt_len))
		return MALFORMED;
	/* A super-packet of over 64 kB has a length field of 0 (BIG TCP); a short frame may be padded. */
	total = ip_length(h);
	if (!total && skb->gso_size)
		total = skb->len - L3_OFFSET;
	return read_segment(h, seg, total, skb->len - L3_OFFSET);
}

#endif
