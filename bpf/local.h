/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Translates between the wire and a local socket whose sequence numbers differ from the wire's (a pair that
 * was spliced before). */
#ifndef LONGSPLICE_LOCAL_H
#define LONGSPLICE_LOCAL_H

#include "checksum.h"
#include "count.h"
#include "translate.h"

/* Amounts by which a socket's numbers exceed those of the wire: in the peer's stream, and in the stream
 * toward the peer. */
struct mapping {
	__u32 seq, ack;
};

/* Writes the headers of a segment that goes up to the socket: h has them in the numbers of the wire,
 * `written` are those in the packet. Returns 0, or -1. */
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

/* Moves a segment without payload to a number at which the local socket reads its acknowledgement: its sender
 * may have gone beyond the window that the socket offers now, because the far end offered more or because the
 * socket takes its window back. */
static __always_inline void keep_in_window(const struct ls_leg *x, struct headers *h, const struct segment *s,
					   int bare)
{
	__u32 seq = bpf_ntohl(h->tcp.seq), edge = x->loc_edge - x->loc_shrunk;

	if (bare && !(s->flags & TCP_RST) && after(seq, edge))
		h->tcp.seq = bpf_htonl(edge);
}

/* Delivers a packet to the local socket, with nothing but its numbers mapped. */
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

/* Delivers a packet to the local socket without payload and FIN, so that the socket answers. The payload does
 * not fit the window now. When the socket processes it, it may fit, and the socket would take bytes that are
 * not counted as its own. */
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

/* Delivers a packet to the local socket in TRACK, within the socket's window. */
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

/* Converts a socket's segment to the numbers of the wire: `s`, and the headers `out` that are to be
 * written. */
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

/* Returns the mapping of a leg that belongs to no flow (LS_ALONE). */
static __always_inline struct mapping mapping_of_record(const struct ls_record *rec)
{
	struct mapping map = {rec->seq_off, rec->ack_off};

	return map;
}

/* Sends a segment of the socket of a leg that belongs to no flow. */
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
