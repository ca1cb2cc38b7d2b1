/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* From a packet to its headers, in a buffer on the stack, and to what a segment says. */
#ifndef LONGSPLICE_PARSE_H
#define LONGSPLICE_PARSE_H

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>
#include "abi.h"
#include "seq.h"

#define TCP_FIN 0x01
#define TCP_SYN 0x02
#define TCP_RST 0x04
#define TCP_PSH 0x08
#define TCP_ACK 0x10
#define TCP_URG 0x20

#define OPT_EOL	 0
#define OPT_NOP	 1
#define OPT_SACK 5
#define OPT_TS	 8

/* How nearly every sender lays out a lone timestamp option (RFC 7323 appendix A): NOP NOP TS 10. */
#define TS_LAYOUT     bpf_htonl(0x0101080a)
#define TS_LAYOUT_LEN 12

struct tcp {
	__be16 sport, dport;
	__be32 seq, ack;
	__u8 offset; /* in words, in the upper half */
	__u8 flags;
	__be16 window, check, urgent;
};

#define L3_OFFSET  ETH_HLEN
#define L4_OFFSET  (ETH_HLEN + sizeof(struct iphdr))
#define OPT_OFFSET (L4_OFFSET + sizeof(struct tcp))
#define IPV4_CHECK (L3_OFFSET + offsetof(struct iphdr, check))
#define TCP_CHECK  (L4_OFFSET + offsetof(struct tcp, check))

/* Headers as they stand in the packet; two bytes in front align what follows. Options are at most 40 bytes:
 * the rest is there for the verifier, which sees an index masked to 63. */
struct headers {
	__u16 align;
	struct ethhdr eth;
	struct iphdr ip;
	struct tcp tcp;
	__u8 opt[64];
} __attribute__((packed, aligned(4)));

/* Two headers are more than the stack holds. No program of ours runs inside another one on the same CPU, but
 * for an `egress` that sees TAG_FORWARDED and does not come here. */
struct scratch {
	struct headers in, out;
};

/* Options beyond the usual dozen bytes are rare. */
static __always_inline void copy_headers(struct headers *to, const struct headers *from, __u32 opt_len)
{
	if (opt_len <= 12)
		__builtin_memcpy(to, from, offsetof(struct headers, opt) + 12);
	else
		*to = *from;
}

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct scratch);
} scratch SEC(".maps");

static __always_inline struct scratch *get_scratch(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&scratch, &zero);
}

/* What a segment says, in host order. */
struct segment {
	__u32 seq, ack, end; /* end: after payload, SYN and FIN */
	__u32 len;	     /* of the payload */
	__u32 window;	     /* the field, unscaled */
	__u32 opt_len;	     /* 0 to 40 */
	__u32 ts_at;	     /* where in the options TSval stands; 0: nowhere */
	__u32 tsval, tsecr;
	__u8 flags;
	__u8 in_place; /* it can be x's own: what it says of x is noted */
};

enum parsed {
	NOT_OURS,
	SEGMENT,
	FRAGMENT, /* the first fragment: the ports are there */
	HAS_IP_OPTIONS,
};

static __always_inline __u32 load32(const __u8 *p)
{
	return bpf_ntohl(*(const __be32 *)p);
}

/*
 * Finds the connection that a packet belongs to. Reads only; the cost of a packet that is none of ours is
 * this and one look-up. A VLAN tag means that the packet is for another (sub-)interface, which has hooks of
 * its own.
 */
static __always_inline enum parsed parse_tuple(struct __sk_buff *skb, struct ls_tuple *tuple)
{
	void *data, *end;
	struct iphdr *ip;
	struct tcp *tcp;
	__u32 ihl;

	if (skb->protocol != bpf_htons(ETH_P_IP) || skb->vlan_present || skb->len < OPT_OFFSET)
		return NOT_OURS;
	data = (void *)(long)skb->data;
	end = (void *)(long)skb->data_end;
	if (data + OPT_OFFSET > end) {
		if (bpf_skb_pull_data(skb, OPT_OFFSET))
			return NOT_OURS;
		data = (void *)(long)skb->data;
		end = (void *)(long)skb->data_end;
		if (data + OPT_OFFSET > end)
			return NOT_OURS;
	}
	ip = data + L3_OFFSET;
	if (ip->protocol != IPPROTO_TCP || ip->version != 4 || ip->frag_off & bpf_htons(0x1fff))
		return NOT_OURS;
	tuple->saddr = ip->saddr;
	tuple->daddr = ip->daddr;
	ihl = ip->ihl * 4;
	if (ihl == sizeof(struct iphdr)) {
		tcp = data + L4_OFFSET;
		tuple->sport = tcp->sport;
		tuple->dport = tcp->dport;
		return ip->frag_off & bpf_htons(0x2000) ? FRAGMENT : SEGMENT;
	}
	if (ihl < sizeof(struct iphdr) || bpf_skb_load_bytes(skb, L3_OFFSET + ihl, &tuple->sport, 4))
		return NOT_OURS;
	return HAS_IP_OPTIONS;
}

/* A walk over options of any order. bpf_loop() keeps the verifier from following every order there is. */
struct option_walk {
	struct headers *h;
	__u32 at, len;	  /* where we are, where the options end */
	__u32 kind, size; /* of the option at `at` */
};

/* 40 steps are enough for 40 bytes. */
#define OPTION_STEPS 40

/* Looks at the option at w->at. 0, or 1 at the end of the options. w->at is below 40 and the option within
 * them. */
static __always_inline int look_at_option(struct option_walk *w)
{
	__u32 at = w->at & 63;

	if (w->at >= w->len || w->at > 39)
		return 1;
	w->kind = w->h->opt[at];
	w->size = 1;
	if (w->kind == OPT_EOL)
		return 1;
	if (w->kind == OPT_NOP)
		return 0;
	w->size = w->h->opt[(at + 1) & 63];
	return w->size < 2 || w->at + w->size > w->len || w->at + w->size > 40;
}

static long find_timestamp_step(__u32 n, struct option_walk *w)
{
	if (look_at_option(w))
		return 1;
	if (w->kind == OPT_TS && w->size == 10) {
		w->len = 0;
		return 1;
	}
	w->at += w->size;
	return 0;
}

/* Where TSval stands among options in an unusual order; 0: nowhere. */
static __always_inline __u32 find_timestamp(struct headers *h, __u32 len)
{
	struct option_walk w = {.h = h, .len = len};

	bpf_loop(OPTION_STEPS, find_timestamp_step, &w, 0);
	return w.len ? 0 : w.at + 2;
}

/* Loads the headers of a packet that parse_tuple() called a SEGMENT. 0, or -1 if its lengths contradict each
 * other. */
static __always_inline int parse_segment(struct __sk_buff *skb, struct headers *h, struct segment *s)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	__u32 total, header;

	/* parse_tuple() has made these linear; copying them costs less than a helper. */
	if (data + OPT_OFFSET > end)
		return -1;
	__builtin_memcpy(&h->eth, data, OPT_OFFSET);
	header = (h->tcp.offset >> 4) * 4;
	if (header < sizeof(struct tcp))
		return -1;
	s->opt_len = header - sizeof(struct tcp);
	if (s->opt_len == TS_LAYOUT_LEN && data + OPT_OFFSET + TS_LAYOUT_LEN <= end)
		__builtin_memcpy(h->opt, data + OPT_OFFSET, TS_LAYOUT_LEN);
	else if (s->opt_len && bpf_skb_load_bytes(skb, OPT_OFFSET, h->opt, s->opt_len & 63))
		return -1;
	/* A super-packet of over 64 kB has no length field (BIG TCP); a short frame may be padded. */
	total = bpf_ntohs(h->ip.tot_len);
	if (!total && skb->gso_size)
		total = skb->len - L3_OFFSET;
	if (total < sizeof(struct iphdr) + header || total > skb->len - L3_OFFSET)
		return -1;
	s->flags = h->tcp.flags;
	s->seq = bpf_ntohl(h->tcp.seq);
	s->ack = bpf_ntohl(h->tcp.ack);
	s->window = bpf_ntohs(h->tcp.window);
	s->len = total - sizeof(struct iphdr) - header;
	s->end = s->seq + s->len + !!(s->flags & TCP_FIN) + !!(s->flags & TCP_SYN);
	s->in_place = 1;
	s->ts_at = 0;
	s->tsval = 0;
	s->tsecr = 0;
	if (s->opt_len >= 12) {
		if (*(__be32 *)h->opt == TS_LAYOUT)
			s->ts_at = 4;
		else
			s->ts_at = find_timestamp(h, s->opt_len);
		if (s->ts_at > 32)
			s->ts_at = 0;
		if (s->ts_at) {
			s->tsval = load32(&h->opt[s->ts_at]);
			s->tsecr = load32(&h->opt[s->ts_at + 4]);
		}
	}
	return 0;
}

#endif
