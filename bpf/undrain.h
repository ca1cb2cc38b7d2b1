/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Processes packets in UNDRAIN (papers' section III-D): the pair is awake. The two ends deliver the payload
 * forwarded before, below `base`, until it is acknowledged; the sockets deliver the payload from there on.
 */
#ifndef LONGSPLICE_UNDRAIN_H
#define LONGSPLICE_UNDRAIN_H

#include "hold.h"
#include "local.h"
#include "route.h"
#include "too_big.h"

/* Returns the start of the local socket's stream toward x, if payload was forwarded before it. */
static __always_inline __u32 first_own(const struct ls_leg *o)
{
	return o->base + o->rec.seq_off;
}

/* Returns whether o has acknowledged all that was forwarded to it from x. */
static __always_inline int settled(const struct ls_leg *x, const struct ls_leg *o)
{
	return !(x->bypassed & LS_BYPASSED) || !before(o->rec.rx_ack, x->base + x->rec.seq_off);
}

/*
 * Writes the headers of x's acknowledgement for o, as far as it is about bytes that o sent past the sockets.
 * Once all of those are acknowledged, the local socket's own acknowledgement takes over, and one that fell
 * behind it would be refused as too old.
 */
static __always_inline void undrain_far_headers(const struct walk *w, struct ls_leg *x, struct ls_leg *o,
						struct headers *new, const struct segment *s)
{
	__u32 ack = s->ack + x->rec.ack_off;
	struct edits edits;

	translate(new, s, &x->rec, far_of(w), &edits);
	if (!(s->flags & TCP_ACK)) {
		apply_edits(new, s, &edits);
		return;
	}
	if (!(o->bypassed & LS_BYPASSED))
		ack = o->tx_ack;
	else if (!before(ack, o->base))
		ack = seq_max(o->base, o->loc_ack);
	ack = seq_max(ack, o->tx_ack);
	raise(&o->tx_ack, ack);
	edits.lo = ack;
	edits.hi = o->base;
	if (edits.sack == SACK_SHIFT)
		edits.sack = o->bypassed & LS_BYPASSED && before(ack, o->base) ? SACK_CLIP : SACK_BLANK;
	new->tcp.ack = bpf_htonl(ack);
	new->tcp.window = bpf_htons(window_field(o->tx_edge, ack, scale_out(&x->rec)));
	apply_edits(new, s, &edits);
}

static __always_inline int undrain_forward(struct __sk_buff *skb, const struct walk *w, struct scratch *b,
					   const struct segment *s)
{
	struct ls_leg *x = &w->slot->leg[w->side & 1], *o = &w->slot->leg[!(w->side & 1)];
	struct headers *new = &b->out;
	struct route route = {};
	int verdict;

	if (hops_left(&b->in) <= 1)
		return drop(LS_V_DROP_TTL);
	copy_headers(new, &b->in, s->opt_len);
	undrain_far_headers(w, x, o, new, s);
	verdict = find_route(skb, new, &x->rec, 0, &route);
	if (verdict)
		return no_way(skb, &b->in, s, verdict, &route);
	if (write_headers(skb, &b->in, new, s->opt_len))
		return drop(LS_V_DROP_REWRITE);
	count(LS_V_FORWARDED);
	return send_by(skb, &route);
}

/* Forwards the acknowledgement of a packet of x to o, without its payload: this is the copy with TAG_ACK. */
static __always_inline int undrain_ack_copy(struct __sk_buff *skb, const struct walk *w, struct scratch *b,
					    struct segment *s)
{
	struct ls_leg *x = &w->slot->leg[w->side & 1], *o = &w->slot->leg[!(w->side & 1)];

	b->out = b->in;
	/* o processes an acknowledgement only at the number that its stream from here has reached. */
	/* A reset keeps its number: moved, a forged one could come to be in place. */
	if (!(s->flags & TCP_RST))
		s->seq = where_heard(o, o->loc_end) - x->rec.seq_off;
	b->out.tcp.seq = bpf_htonl(s->seq);
	b->out.tcp.flags = s->flags & (TCP_ACK | TCP_RST);
	if (write_headers(skb, &b->in, &b->out, s->opt_len))
		return drop(LS_V_DROP_REWRITE);
	b->in = b->out;
	if (s->len && trim_payload(skb, &b->in, s->opt_len))
		return drop(LS_V_DROP_REWRITE);
	if (read_check(skb, &b->in))
		return drop(LS_V_DROP_REWRITE);
	return undrain_forward(skb, w, b, s);
}

/* Makes the local socket's copy. An acknowledgement from before the socket's stream began is shown to it as
 * one of all bytes before; the window's edge stays that of x. */
static __always_inline int undrain_local_copy(struct __sk_buff *skb, struct ls_leg *x, struct ls_leg *o,
					      struct scratch *b, const struct segment *s)
{
	__u32 ack = s->ack, edge = edge_of(s, scale_in(&x->rec));
	struct edits edits = {.hi = x->loc_end};
	struct headers *h = &b->out;

	/* The segment was held while later ones came to the socket, which would take it for an old duplicate
	 * (RFC 7323 section 5.3). */
	if (skb->tc_index == TAG_FORWARDED && s->ts_at && before(s->tsval, x->rx_ts))
		edits.tsval_off = x->rx_ts - s->tsval;
	if (o->bypassed & LS_BYPASSED && before(ack, first_own(o)))
		ack = first_own(o);
	ack = seq_min(ack, x->loc_end);
	copy_headers(h, &b->in, s->opt_len);
	if (ack != s->ack && s->flags & TCP_ACK) {
		h->tcp.ack = bpf_htonl(ack);
		h->tcp.window = bpf_htons(window_field(edge, ack, scale_in(&x->rec)));
		edits.lo = ack;
		edits.sack = before(ack, x->loc_end) ? SACK_CLIP : SACK_BLANK;
	}
	keep_in_window(x, h, s, s->end == s->seq);
	note_heard(x, s, ack);
	return write_for_socket(skb, &b->in, h, s, &edits, mapping_of_leg(x)) ? drop(LS_V_DROP_REWRITE)
									      : pass(LS_V_DELIVERED);
}

/* Processes a segment in UNDRAIN. `heard`: before this segment, o had all of x's acknowledgements that
 * concern it. */
static __always_inline int undrain(struct __sk_buff *skb, struct walk *w, struct scratch *b,
				   const struct segment *s, int heard)
{
	struct ls_leg *x = &w->slot->leg[w->side & 1], *o = &w->slot->leg[!(w->side & 1)];
	int old = x->bypassed & LS_BYPASSED && s->end != s->seq && before(s->seq, x->base);

	/* Once o has acknowledged all of it, x only missed the acknowledgement: the local socket repeats
	 * it. */
	if (old && !after(s->end, x->base) && !settled(x, o))
		return undrain_forward(skb, w, b, s);
	/* A part was forwarded and the rest must not be: user space splits the segment. */
	if (old && after(s->end, x->base))
		return hold(skb, w, s);
	/* x is gone, and its last payload may be lost with it: o must not wait for that. */
	if (!heard || (s->flags & TCP_RST && !settled(x, o))) {
		skb->tc_index = TAG_ACK;
		bpf_clone_redirect(skb, skb->ifindex, BPF_F_INGRESS);
		skb->tc_index = 0;
	}
	note_fin_or_rst(w, s);
	return undrain_local_copy(skb, x, o, b, s);
}

#endif
