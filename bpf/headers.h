/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Holds the headers of a segment, of either version of IP, in a buffer in which they are read and changed. */
#ifndef LONGSPLICE_HEADERS_H
#define LONGSPLICE_HEADERS_H

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <stddef.h>
#include <bpf/bpf_helpers.h>

#define TCP_FIN 0x01
#define TCP_SYN 0x02
#define TCP_RST 0x04
#define TCP_PSH 0x08
#define TCP_ACK 0x10
#define TCP_URG 0x20

struct tcp {
	__be16 sport, dport;
	__be32 seq, ack;
	__u8 offset; /* in words, in the upper half */
	__u8 flags;
	__be16 window, check, urgent;
};

#define L3_OFFSET ETH_HLEN
/* Offset of TCP in a packet without IP options or extension headers. */
#define V4_L4 (ETH_HLEN + sizeof(struct iphdr))
#define V6_L4 (ETH_HLEN + sizeof(struct ipv6hdr))
/* Offset of TCP's options in such a packet. */
#define V4_HEADERS (V4_L4 + sizeof(struct tcp))
#define V6_HEADERS (V6_L4 + sizeof(struct tcp))

/*
 * Headers as they stand in the packet, except for IP options and extension headers, which are not loaded.
 * TCP is at the same place for both versions of IP. The headers before TCP are aligned to the right; four
 * bytes in front of them all tell the version. Options are at most 40 bytes: the rest of the room is for the
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

#endif
