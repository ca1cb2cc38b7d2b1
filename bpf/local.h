/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Between the wire and a local socket whose sequence numbers are others (a pair that was spliced before). */
#ifndef LONGSPLICE_LOCAL_H
#define LONGSPLICE_LOCAL_H

#include "checksum.h"
#include "count.h"
#include "translate.h"

/* What a socket's numbers are greater by: in the peer's stream, and in the stream toward the peer. */
struct mapping {
	__u32 seq, ack;
};

/* Writes the headers of a segment that goes up to the socket: h is what it is to see but for the mapping,
 * `written` what stands in the packet. 0, or -1. */
static __always_inline int write_for_socket(struct __sk_buff *skb, struct headers *written, struct headers *h,
					    const struct segment *s, struct edits *e, struct mapping map)
{
	h->tcp.seq = bpf_htonl(bpf_ntohl(h->tcp.seq) + map.seq);
	h->tcp.ack = bpf_htonl(bpf_ntohl(h->tcp.ack) + map.ack);
	e->sack_off += map.ack;
	e->lo += map.ack;
	e->hi += map.ack;
	apply_edits(h, s, e);
	return write_headers(skb, written, h, s->opt_len);
}

/* A segment without payload whose sender has gone beyond what the local socket offers (the far end had
 * offered more): there the socket would not look at its acknowledgement. */
static __always_inline void keep_in_window(const struct ls_leg *x, struct headers *h, const struct segment *s,
					   int bare)
{
	__u32 seq = bpf_ntohl(h->tcp.seq);

	if (bare && !(s->flags & TCP_RST) && after(seq, x->loc_edge))
		h->tcp.seq = bpf_htonl(x->loc_edge);
}

/* To the local socket, as it came. */
static __always_inline int deliver(struct __sk_buff *skb, struct scratch *b, const struct segment *s,
				   struct mapping map)
{
	struct edits edits = {};

	if (!(map.seq | map.ack))
		return pass(LS_V_DELIVERED);
	copy_headers(&b->out, &b->in, s->opt_len);
	return write_for_socket(skb, &b->in, &b->out, s, &edits, map) ? drop(LS_V_DROP_REWRITE)
								      : pass(LS_V_DELIVERED);
}

/* The same without payload and FIN. It does not fit the window now; when the socket looks at it, it may: it
 * would take bytes that nobody counts as its own. Its answer is wanted. */
static __always_inline int deliver_bare(struct __sk_buff *skb, struct scratch *b, const struct segment *s,
					struct mapping map)
{
	struct edits edits = {};

	copy_headers(&b->out, &b->in, s->opt_len);
	b->out.tcp.flags &= ~(TCP_FIN | TCP_PSH);
	if (write_for_socket(skb, &b->in, &b->out, s, &edits, map) ||
	    (s->len && trim_payload(skb, &b->out, s->opt_len)))
		return drop(LS_V_DROP_REWRITE);
	return pass(LS_V_DELIVERED);
}

static __always_inline struct mapping mapping_of_leg(const struct ls_leg *x)
{
	struct mapping map = {x->adj_seq, x->adj_ack};

	return map;
}

/* The same in TRACK. */
static __always_inline int deliver_in_window(struct __sk_buff *skb, struct scratch *b,
					     const struct segment *s, const struct ls_leg *x)
{
	struct edits edits = {};

	copy_headers(&b->out, &b->in, s->opt_len);
	keep_in_window(x, &b->out, s, s->end == s->seq);
	if (!(x->adj_seq | x->adj_ack) && b->out.tcp.seq == b->in.tcp.seq)
		return pass(LS_V_DELIVERED);
	return write_for_socket(skb, &b->in, &b->out, s, &edits, mapping_of_leg(x)) ? drop(LS_V_DROP_REWRITE)
										    : pass(LS_V_DELIVERED);
}

/* What a socket emits, in the numbers of the wire: the segment, and the headers `out` that are to be written.
 */
static __always_inline void to_wire(struct scratch *b, struct segment *s, struct edits *e, struct mapping map)
{
	copy_headers(&b->out, &b->in, s->opt_len);
	if (!(map.seq | map.ack))
		return;
	s->seq -= map.ack;
	s->end -= map.ack;
	b->out.tcp.seq = bpf_htonl(s->seq);
	e->sack_off = -map.seq;
	if (!(s->flags & TCP_ACK))
		return;
	s->ack -= map.seq;
	b->out.tcp.ack = bpf_htonl(s->ack);
}

/* Of a leg that belongs to no flow (LS_ALONE). */
static __always_inline struct mapping mapping_of_record(const struct ls_record *rec)
{
	struct mapping map = {rec->seq_off, rec->ack_off};

	return map;
}

/* What the socket of a leg emits that belongs to no flow. */
static __always_inline int emit_alone(struct __sk_buff *skb, struct ls_record *rec, struct scratch *b,
				      struct segment *s)
{
	struct edits edits = {};

	to_wire(b, s, &edits, mapping_of_record(rec));
	if (s->ts_at)
		edits.tsval_off = never_back(&rec->ts_high, s->tsval) - s->tsval;
	apply_edits(&b->out, s, &edits);
	return write_headers(skb, &b->in, &b->out, s->opt_len) ? drop(LS_V_DROP_REWRITE) : pass(LS_V_EMITTED);
}

#endif
