/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * UNDRAIN (papers' section III-D): the pair is awake. What was forwarded before, below `base`, stays the
 * business of the two ends until it is acknowledged; what comes from there on is the sockets'.
 */
#ifndef LONGSPLICE_UNDRAIN_H
#define LONGSPLICE_UNDRAIN_H

#include "hold.h"
#include "local.h"
#include "route.h"
#include "too_big.h"

/* Where the local socket's stream toward x begins, if something was forwarded before it. */
static __always_inline __u32 first_own(const struct ls_leg *o)
{
	return o->base + o->rec.seq_off;
}

/* Whether o has acknowledged all that was forwarded to it from x. */
static __always_inline int settled(const struct ls_leg *x, const struct ls_leg *o)
{
	return !(x->owed & LS_OWED) || !before(o->rec.rx_ack, x->base + x->rec.seq_off);
}

/*
 * What o hears of x's acknowledgements: as far as they are of what o sent past the sockets. Once that is
 * complete, the local socket's own acknowledgement takes over, and one that fell behind it would be refused
 * as too old.
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
	if (!(o->owed & LS_OWED))
		ack = o->tx_ack;
	else if (!before(ack, o->base))
		ack = seq_max(o->base, o->loc_ack);
	ack = seq_max(ack, o->tx_ack);
	raise(&o->tx_ack, ack);
	edits.lo = ack;
	edits.hi = o->base;
	if (edits.sack == SACK_SHIFT)
		edits.sack = o->owed & LS_OWED && before(ack, o->base) ? SACK_CLIP : SACK_BLANK;
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

/* The copy (TAG_ACK) of a packet of x of which o must have the acknowledgement and nothing else. */
static __always_inline int undrain_ack_copy(struct __sk_buff *skb, const struct walk *w, struct scratch *b,
					    struct segment *s)
{
	struct ls_leg *x = &w->slot->leg[w->side & 1], *o = &w->slot->leg[!(w->side & 1)];

	b->out = b->in;
	/* An acknowledgement is looked at only where o's stream from here has got to. */
	/* A reset stays where it is: moved, a forged one could come to be in place. */
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

/* The local socket's copy. An acknowledgement from before its stream began says to it that all before is
 * acknowledged; the window's edge is what x said. */
static __always_inline int undrain_local_copy(struct __sk_buff *skb, struct ls_leg *x, struct ls_leg *o,
					      struct scratch *b, const struct segment *s)
{
	__u32 ack = s->ack, edge = s->ack + (s->window << scale_in(&x->rec));
	struct edits edits = {.hi = x->loc_end};
	struct headers *h = &b->out;

	if (o->owed & LS_OWED && before(ack, first_own(o)))
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

/* `heard`: o had all of x's acknowledgements that concern it before this segment. */
static __always_inline int undrain(struct __sk_buff *skb, struct walk *w, struct scratch *b,
				   const struct segment *s, int heard)
{
	struct ls_leg *x = &w->slot->leg[w->side & 1], *o = &w->slot->leg[!(w->side & 1)];
	int old = x->owed & LS_OWED && s->end != s->seq && before(s->seq, x->base);

	/* Once o has acknowledged all of that, x has only not heard it: its own socket says it. */
	if (old && !after(s->end, x->base) && !settled(x, o))
		return undrain_forward(skb, w, b, s);
	/* Part of it was forwarded and part of it must not be: user space splits it. */
	if (old && after(s->end, x->base))
		return hold(skb, w, s);
	/* x is gone, and what it sent last may be lost with it: o must not wait for it. */
	if (!heard || (s->flags & TCP_RST && !settled(x, o))) {
		skb->tc_index = TAG_ACK;
		bpf_clone_redirect(skb, skb->ifindex, BPF_F_INGRESS);
		skb->tc_index = 0;
	}
	note_fin_or_rst(w, s);
	return undrain_local_copy(skb, x, o, b, s);
}

#endif
