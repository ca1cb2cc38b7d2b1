/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Processes packets in UNDRAIN (papers' section III-D): the pair is awake. The two ends deliver the payload
 * forwarded before, below `base`, until it is acknowledged; the sockets deliver the payload from there on.
 */
#ifndef LONGSPLICE_UNDRAIN_H
#define LONGSPLICE_UNDRAIN_H

#include "admit.h"
#include "hold.h"
#include "local.h"
#include "too_big.h"

/* Returns the start of the local socket's stream toward the sender, if payload was forwarded before it. */
static __always_inline __u32 first_own(const struct ls_leg *to)
{
	return to->base + to->rec.seq_off;
}

/* Returns whether the far end has acknowledged all that was forwarded to it from the sender. */
static __always_inline int has_delivered(const struct ls_leg *from, const struct ls_leg *to)
{
	return !(from->bypassed & LS_BYPASSED) || !before(to->rec.rx_ack, from->base + from->rec.seq_off);
}

/*
 * Writes the headers of the sender's acknowledgement for the far end, as far as it is about bytes that the
 * far end sent past the sockets. Once all of those are acknowledged, the local socket's own acknowledgement
 * takes over, and one that fell behind it would be refused as too old.
 */
static __always_inline void undrain_far_headers(const struct flow_ref *flow, struct ls_leg *from,
						struct ls_leg *to, struct headers *new,
						const struct segment *seg)
{
	__u32 ack = seg->ack + from->rec.ack_off;
	struct edits edits;

	renew_hops(new, far_of(flow));
	translate(new, seg, &from->rec, far_of(flow), &edits);
	if (!(seg->flags & TCP_ACK)) {
		apply_edits(new, seg, &edits);
		return;
	}
	if (!(to->bypassed & LS_BYPASSED) || !seg->in_place)
		ack = to->tx_ack;
	else if (!before(ack, to->base))
		ack = seq_max(to->base, to->loc_ack);
	ack = seq_max(ack, to->tx_ack);
	seq_advance(&to->tx_ack, ack);
	edits.lo = ack;
	edits.hi = to->base;
	if (edits.sack == SACK_SHIFT)
		edits.sack = to->bypassed & LS_BYPASSED && before(ack, to->base) ? SACK_CLIP : SACK_BLANK;
	new->tcp.ack = bpf_htonl(ack);
	new->tcp.window = bpf_htons(window_field(to->tx_edge, ack, scale_out(&from->rec)));
	apply_edits(new, seg, &edits);
}

static __always_inline int undrain_forward(struct __sk_buff *skb, const struct flow_ref *flow,
					   struct scratch *scratch, const struct segment *seg)
{
	struct ls_leg *from = &flow->slot->leg[flow->side & 1], *to = &flow->slot->leg[!(flow->side & 1)];
	struct headers *new = &scratch->out;
	struct route route = {};

	if (is_at_its_end(&scratch->in, far_of(flow)))
		return drop(LS_V_DROP_TTL);
	copy_headers(new, &scratch->in, seg->opt_len);
	undrain_far_headers(flow, from, to, new, seg);
	if (find_route(skb, new, &from->rec, 0, &route))
		return no_route(skb, &from->rec, &scratch->in, seg, &route);
	if (write_headers(skb, &scratch->in, new, seg->opt_len))
		return drop(LS_V_DROP_REWRITE);
	count(LS_V_FORWARDED);
	return send_by(skb, new, &route);
}

/* Forwards the acknowledgement of a packet of the sender to the far end, without its payload: this is the
 * copy with TAG_ACK. */
static __always_inline int undrain_ack_copy(struct __sk_buff *skb, const struct flow_ref *flow,
					    struct scratch *scratch, struct segment *seg)
{
	struct ls_leg *from = &flow->slot->leg[flow->side & 1], *to = &flow->slot->leg[!(flow->side & 1)];

	scratch->out = scratch->in;
	/* The far end processes an acknowledgement only at the number that its stream from here has
	 * reached. */
	/* A reset keeps its number: moved, a forged one could come to be in place. */
	if (!(seg->flags & TCP_RST))
		seg->seq = where_heard(to, to->loc_end) - from->rec.seq_off;
	scratch->out.tcp.seq = bpf_htonl(seg->seq);
	scratch->out.tcp.flags = seg->flags & (TCP_ACK | TCP_RST);
	if (write_bare(skb, scratch, seg))
		return drop(LS_V_DROP_REWRITE);
	return undrain_forward(skb, flow, scratch, seg);
}

/* Makes the local socket's copy. An acknowledgement from before the socket's stream began is shown to it as
 * one of all bytes before; the window's edge stays that of the sender. */
static __always_inline int undrain_local_copy(struct __sk_buff *skb, struct ls_leg *from, struct ls_leg *to,
					      struct scratch *scratch, const struct segment *seg)
{
	__u32 ack = seg->ack, edge = edge_of(seg, scale_in(&from->rec));
	struct edits edits = {.hi = from->loc_end};
	struct headers *h = &scratch->out;

	/* The segment was held while later ones came to the socket, which would take it for an old duplicate
	 * (RFC 7323 section 5.3). */
	if (skb->tc_index == TAG_LET_IN && seg->ts_at && before(seg->tsval, from->rx_ts))
		edits.tsval_off = from->rx_ts - seg->tsval;
	if (to->bypassed & LS_BYPASSED && before(ack, first_own(to)))
		ack = first_own(to);
	ack = seq_min(ack, from->loc_end);
	copy_headers(h, &scratch->in, seg->opt_len);
	if (ack != seg->ack && seg->flags & TCP_ACK) {
		h->tcp.ack = bpf_htonl(ack);
		h->tcp.window = bpf_htons(window_field(edge, ack, scale_in(&from->rec)));
		edits.lo = ack;
		edits.sack = before(ack, from->loc_end) ? SACK_CLIP : SACK_BLANK;
	}
	keep_in_window(from, h, seg, seg->end == seg->seq);
	note_heard(from, seg, ack);
	return write_for_socket(skb, &scratch->in, h, seg, &edits, mapping_of_leg(from))
		   ? drop(LS_V_DROP_REWRITE)
		   : pass(LS_V_DELIVERED);
}

/* Processes a segment in UNDRAIN. `heard`: before this segment, the far end had all of the sender's
 * acknowledgements that concern it. */
static __always_inline int undrain(struct __sk_buff *skb, struct flow_ref *flow, struct scratch *scratch,
				   const struct segment *seg, int heard)
{
	struct ls_leg *from = &flow->slot->leg[flow->side & 1], *to = &flow->slot->leg[!(flow->side & 1)];
	int old = from->bypassed & LS_BYPASSED && seg->end != seg->seq && before(seg->seq, from->base);

	/* Once the far end has acknowledged all of it, the sender only missed the acknowledgement: the local
	 * socket repeats it. */
	if (old && !after(seg->end, from->base) && !has_delivered(from, to))
		return undrain_forward(skb, flow, scratch, seg);
	/* A part was forwarded and the rest must not be: user space splits the segment. */
	if (old && after(seg->end, from->base))
		return hold(skb, flow, seg);
	/* The sender is gone, and its last payload may be lost with it: the far end must not wait for
	 * that. */
	if (seg->flags & TCP_RST ? !heard || !has_delivered(from, to) : !heard && tells(from, to, seg)) {
		skb->tc_index = TAG_ACK;
		bpf_clone_redirect(skb, skb->ifindex, BPF_F_INGRESS);
		skb->tc_index = 0;
	}
	note_fin_or_rst(flow, seg);
	return undrain_local_copy(skb, from, to, scratch, seg);
}

#endif
