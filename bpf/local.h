/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Translates between the wire and a local socket whose sequence numbers differ from the wire's (a pair that
 * was spliced before). */
#ifndef LONGSPLICE_LOCAL_H
#define LONGSPLICE_LOCAL_H

#include "count.h"
#include "rewrite.h"
#include "tags.h"

/* Amounts by which a socket's numbers exceed those of the wire: in the peer's stream, and in the stream
 * toward the peer. */
struct mapping {
	__u32 seq, ack;
};

/* Writes the headers of a segment that goes up to the socket: h has them in the numbers of the wire,
 * `written` are those in the packet. Returns 0, or -1. */
static __always_inline int write_for_socket(struct __sk_buff *skb, struct headers *written, struct headers *h,
					    const struct segment *seg, struct edits *edits,
					    struct mapping map)
{
	h->tcp.seq = bpf_htonl(bpf_ntohl(h->tcp.seq) + map.seq);
	h->tcp.ack = bpf_htonl(bpf_ntohl(h->tcp.ack) + map.ack);
	edits->sack_off += map.ack;
	edits->lo += map.ack;
	edits->hi += map.ack;
	apply_edits(h, seg, edits);
	return write_headers(skb, written, h, seg->opt_len);
}

/* Moves a segment without payload to a number at which the local socket reads its acknowledgement: its sender
 * may have gone beyond the window that the socket offers now, because the far end offered more or because the
 * socket takes its window back. */
static __always_inline void keep_in_window(const struct ls_leg *from, struct headers *h,
					   const struct segment *seg, int bare)
{
	__u32 seq = bpf_ntohl(h->tcp.seq), edge = from->loc_edge - from->loc_shrunk;

	if (bare && !(seg->flags & TCP_RST) && after(seq, edge))
		h->tcp.seq = bpf_htonl(edge);
}

/* Delivers a packet to the local socket, with nothing but its numbers mapped. */
static __always_inline int deliver(struct __sk_buff *skb, struct scratch *scratch, const struct segment *seg,
				   struct mapping map)
{
	struct edits edits = {};

	if (!(map.seq | map.ack))
		return pass(LS_V_DELIVERED);
	copy_headers(&scratch->out, &scratch->in, seg->opt_len);
	return write_for_socket(skb, &scratch->in, &scratch->out, seg, &edits, map) ? drop(LS_V_DROP_REWRITE)
										    : pass(LS_V_DELIVERED);
}

/* Writes the headers `out` into a packet, cuts its payload off, and goes on from what is in the packet then.
 * Returns 0, or -1. */
static __always_inline int write_bare(struct __sk_buff *skb, struct scratch *scratch,
				      const struct segment *seg)
{
	if (write_headers(skb, &scratch->in, &scratch->out, seg->opt_len))
		return -1;
	copy_headers(&scratch->in, &scratch->out, seg->opt_len);
	if (seg->len && trim_payload(skb, &scratch->in, seg->opt_len))
		return -1;
	return read_check(skb, &scratch->in);
}

/* Cuts payload and FIN off a segment, in the packet and in what is known of it. Returns 0, or -1. */
static __always_inline int make_bare(struct __sk_buff *skb, struct scratch *scratch, struct segment *seg)
{
	copy_headers(&scratch->out, &scratch->in, seg->opt_len);
	scratch->out.tcp.flags &= ~(TCP_FIN | TCP_PSH);
	if (write_bare(skb, scratch, seg))
		return -1;
	seg->flags = scratch->in.tcp.flags;
	seg->len = 0;
	seg->end = seg->seq + !!(seg->flags & TCP_SYN);
	return 0;
}

static __always_inline struct mapping mapping_of_leg(const struct ls_leg *from)
{
	struct mapping map = {from->adj_seq, from->adj_ack};

	return map;
}

/* Delivers a packet to the local socket in TRACK, within the socket's window. */
static __always_inline int deliver_in_window(struct __sk_buff *skb, struct scratch *scratch,
					     const struct segment *seg, const struct ls_leg *from)
{
	struct edits edits = {};

	copy_headers(&scratch->out, &scratch->in, seg->opt_len);
	keep_in_window(from, &scratch->out, seg, seg->end == seg->seq);
	if (!(from->adj_seq | from->adj_ack) && scratch->out.tcp.seq == scratch->in.tcp.seq)
		return pass(LS_V_DELIVERED);
	return write_for_socket(skb, &scratch->in, &scratch->out, seg, &edits, mapping_of_leg(from))
		   ? drop(LS_V_DROP_REWRITE)
		   : pass(LS_V_DELIVERED);
}

/* Converts a socket's segment to the numbers of the wire: `s`, and the headers `out` that are to be
 * written. */
static __always_inline void to_wire(struct scratch *scratch, struct segment *seg, struct edits *edits,
				    struct mapping map)
{
	copy_headers(&scratch->out, &scratch->in, seg->opt_len);
	if (!(map.seq | map.ack))
		return;
	seg->seq -= map.ack;
	seg->end -= map.ack;
	scratch->out.tcp.seq = bpf_htonl(seg->seq);
	edits->sack_off = -map.seq;
	if (!(seg->flags & TCP_ACK))
		return;
	seg->ack -= map.seq;
	scratch->out.tcp.ack = bpf_htonl(seg->ack);
}

/* Returns the mapping of a leg that belongs to no flow (LS_ALONE). */
static __always_inline struct mapping mapping_of_record(const struct ls_record *rec)
{
	struct mapping map = {rec->seq_off, rec->ack_off};

	return map;
}

/* Passes a segment of a local socket, which has the numbers of the wire. It may leave by a second device of
 * ours below this one: the carrier of a macvlan, the parent of a VLAN. */
static __always_inline int pass_emitted(struct __sk_buff *skb, enum ls_verdict verdict)
{
	skb->tc_index = TAG_EMITTED;
	return pass(verdict);
}

/* Sends a segment of the socket of a leg that belongs to no flow. */
static __always_inline int emit_alone(struct __sk_buff *skb, struct ls_record *rec, struct scratch *scratch,
				      struct segment *seg)
{
	struct edits edits = {};

	to_wire(scratch, seg, &edits, mapping_of_record(rec));
	if (seg->ts_at)
		edits.tsval_off = tsval_advance(&rec->ts_high, seg->tsval) - seg->tsval;
	apply_edits(&scratch->out, seg, &edits);
	return write_headers(skb, &scratch->in, &scratch->out, seg->opt_len)
		   ? drop(LS_V_DROP_REWRITE)
		   : pass_emitted(skb, LS_V_EMITTED);
}

#endif
