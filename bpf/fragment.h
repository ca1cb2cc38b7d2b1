/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Forwards fragments of a spliced flow. The first one has the ports and is translated like a segment; the
 * others follow it by addresses and identification (docs/decisions/0013). They are not reassembled: each goes
 * on as it comes, and counts as forwarded payload.
 */
#ifndef LONGSPLICE_FRAGMENT_H
#define LONGSPLICE_FRAGMENT_H

#include "datagram.h"
#include "rate.h"
#include "route.h"
#include "translate.h"
#include "wake.h"
#include "walk.h"

/* Identifies a fragmented datagram of TCP (RFC 791 section 3.2, RFC 8200 section 4.5). */
struct fragment_key {
	__be32 saddr[4], daddr[4]; /* laid out as in ls_tuple */
	__be32 id;
};

/* State of a datagram whose first fragment was forwarded. */
struct fragmented {
	__be16 sport, dport;
	__u32 seq, ack; /* numbers of its segment */
	__be32 id;	/* toward the far end: two clients may have chosen the same one */
	__u32 since;	/* ticks */
	__u16 header;	/* bytes of its TCP header */
	__u16 flags;	/* TCP's flags */
	__u32 ts_at;	/* see struct segment; only the first fragment has the options */
	__u32 tsval, tsecr;
};

/* Datagrams that are being forwarded. Only plausible first fragments make an entry; if there are too many,
 * the oldest are evicted, and their segments are retransmitted. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1024);
	__type(key, struct fragment_key);
	__type(value, struct fragmented);
} fragments SEC(".maps");

/* Limits the time between the first and the last fragment, in ticks: Linux reassembles for 30 s. */
#define FRAGMENT_TICKS 28

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

static __always_inline void key_of(const struct headers *h, __be32 id, struct fragment_key *key)
{
	key->id = id;
	get_addresses(h, key->saddr, key->daddr);
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

/* Returns whether fragments of this flow may pass: no local program needs the payload. */
static __always_inline int passes_fragments(const struct walk *w)
{
	if (!w->slot)
		return w->placement == LS_DETACHED;
	return mode_of(w->slot) == LS_FINAL && !(w->slot->flags & LS_COPY);
}

/* Returns whether the fragment can be x's own: in the window, or a repetition whose rest may be. Forged
 * fragments must not evict others from the table. */
static __always_inline int may_begin(const struct walk *w, struct segment *s)
{
	struct ls_record *back;
	__u32 acked;

	if (judge(w, s))
		return 0;
	if (s->in_place)
		return 1;
	back = find_back(w);
	if (!back)
		return 0;
	acked = back->rx_ack + back->ack_off;
	return !before(s->end + 65535, acked);
}

/*
 * Notes the first fragment of a segment, so that the others can follow it. Reduces the segment in the scratch
 * to the part that the fragment holds. Returns 0 if the fragment may be forwarded; otherwise it is to be
 * dropped.
 */
__noinline int begin_fragments(struct __sk_buff *skb)
{
	struct scratch *b = get_scratch();
	struct fragmented datagram = {};
	struct fragment_key key;
	struct ls_tuple *tuple;
	struct headers *h;
	struct segment *s;
	struct fragment f;
	struct walk w;

	if (!b)
		return -1;
	h = &b->in;
	s = &b->segment;
	tuple = &b->tuple;
	if (!is_plain_sound(h) || read_fragment(skb, h, &f) || f.offset)
		return -1;
	if (l4_of(h) != (is_v6(h) ? V6_L4 + sizeof(struct fragment_header) : V4_L4))
		return -1;
	if (s->flags & (TCP_SYN | TCP_RST) || !find(tuple, &w) || !passes_fragments(&w))
		return -1;
	datagram.flags = s->flags;
	/* The FIN stands at the end of the last fragment. */
	s->flags &= ~TCP_FIN;
	s->end = s->seq + s->len;
	s->whole = 0;
	if (meets_trap(w.rec, s) || !may_begin(&w, s))
		return -1;
	datagram.sport = tuple->sport;
	datagram.dport = tuple->dport;
	datagram.seq = s->seq;
	datagram.ack = s->ack;
	datagram.since = ticks();
	datagram.header = sizeof(struct tcp) + s->opt_len;
	datagram.ts_at = s->ts_at;
	datagram.tsval = s->tsval;
	datagram.tsecr = s->tsecr;
	datagram.id = bpf_get_prandom_u32();
	if (!is_v6(h))
		datagram.id &= 0xffff;
	key_of(h, f.id, &key);
	if (bpf_map_update_elem(&fragments, &key, &datagram, BPF_ANY) || set_fragment_id(skb, h, datagram.id))
		return -1;
	count(LS_V_FRAGMENT);
	return 0;
}

/* Fills in the part of the segment that a later fragment holds. Returns 0; -1 if no honest sender makes such
 * a fragment: over the TCP header (RFC 3128), or beyond the longest datagram. */
static __always_inline int segment_of(const struct fragmented *d, const struct fragment *f, struct segment *s)
{
	if (f->offset < d->header || f->offset + f->len > 65535)
		return -1;
	s->seq = d->seq + f->offset - d->header;
	s->ack = d->ack;
	s->len = f->len;
	s->flags = TCP_ACK | (f->last ? d->flags & TCP_FIN : 0);
	s->end = s->seq + s->len + !!(s->flags & TCP_FIN);
	s->ts_at = d->ts_at;
	s->tsval = d->tsval;
	s->tsecr = d->tsecr;
	return 0;
}

/* Writes the IP header toward the far end into the scratch, for a packet that is no segment, and finds its
 * route: that of the flow's segments, whichever routing rule decides it. Returns 0, or the verdict of the
 * drop. */
static __always_inline int head_for_far_end(struct __sk_buff *skb, const struct walk *w, struct scratch *b,
					    struct route *route)
{
	struct headers *new = &b->out;
	struct ls_record *rec = w->rec;
	int verdict;

	__builtin_memcpy(new, &b->in, offsetof(struct headers, tcp));
	__builtin_memset(&new->tcp, 0, sizeof(new->tcp));
	address_to(new, far_of(w));
	count_hop(new);
	verdict = find_route(skb, new, rec, w->slot ? 0 : rec->where, route);
	if (!verdict)
		mend_ip_check(&b->in, new);
	return verdict;
}

/* Translates a later fragment and sends it: it has no header but IP's. */
static __always_inline int forward_fragment(struct __sk_buff *skb, const struct walk *w, struct scratch *b,
					    __be32 id)
{
	struct route route = {};
	int verdict = head_for_far_end(skb, w, b, &route);

	if (verdict)
		return drop(verdict);
	if (store_ip(skb, &b->out) || set_fragment_id(skb, &b->out, id))
		return drop(LS_V_DROP_REWRITE);
	count(LS_V_FRAGMENT);
	count(LS_V_FORWARDED);
	return send_by(skb, &route);
}

/* Processes a fragment without ports. If its first fragment was forwarded, so is this one; any other goes up
 * the stack. */
__noinline int later_fragment(struct __sk_buff *skb)
{
	struct scratch *b = get_scratch();
	struct fragmented *d;
	struct fragment_key key;
	struct ls_tuple tuple;
	struct segment *s;
	struct fragment f;
	struct walk w;
	int verdict;

	if (!b || load_ip(skb, &b->in) || read_fragment(skb, &b->in, &f) || !f.offset)
		return NEXT;
	s = &b->segment;
	key_of(&b->in, f.id, &key);
	d = bpf_map_lookup_elem(&fragments, &key);
	if (!d || ticks() - d->since > FRAGMENT_TICKS)
		return NEXT;
	__builtin_memcpy(&tuple, &key, offsetof(struct ls_tuple, sport));
	tuple.sport = d->sport;
	tuple.dport = d->dport;
	if (!find(&tuple, &w))
		return NEXT;
	if (!is_plain_sound(&b->in))
		return drop(LS_V_DROP_CHECKSUM);
	if (!passes_fragments(&w) || segment_of(d, &f, s) || meets_trap(w.rec, s))
		return drop(LS_V_DROP_FRAGMENT);
	if (hops_left(&b->in) <= 1)
		return drop(LS_V_DROP_TTL);
	verdict = judge(&w, s);
	if (verdict)
		return drop(verdict);
	if (over_rate(w.rec, s))
		return drop(LS_V_DROP_RATE);
	/* Note first, then check that the fragment may still pass, as in forward(). The receiver accepts none
	 * of it without the rest. */
	note_end_of(w.rec, s);
	if (!claimed(&w, s))
		return drop(LS_V_DROP_FRAGMENT);
	if (s->in_place)
		note_fin_or_rst(&w, s);
	note_translated(w.rec, s);
	return forward_fragment(skb, &w, b, d->id);
}

#endif
