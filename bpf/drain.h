/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Processes packets in DRAIN (papers' section III-C): new payload is forwarded, old payload is delivered,
 * acknowledgements go to the sender that waits for them.
 */
#ifndef LONGSPLICE_DRAIN_H
#define LONGSPLICE_DRAIN_H

#include "hold.h"
#include "local.h"
#include "rate.h"
#include "route.h"
#include "too_big.h"
#include "wake.h"
#include "window.h"

/* Makes the far end's copy: of segments with payload, and of acknowledgements with news for it. Returns 0, or
 * the verdict of the drop. */
static __always_inline int drain_far_copy(struct __sk_buff *skb, const struct walk *w, struct ls_leg *x,
					  struct ls_leg *o, struct headers *new, const struct segment *s,
					  struct route *route)
{
	__u32 ack = s->ack + x->rec.ack_off, edge;
	int raised = before(ack, o->tx_ack);
	struct edits edits;

	edge = kept_edge(w->slot, o, ack + (s->window << scale_in(&x->rec)));
	translate(new, s, &x->rec, far_of(w), &edits);
	if (!(s->flags & TCP_ACK)) {
		apply_edits(new, s, &edits);
		return find_route(skb, new, &x->rec, 0, route);
	}
	/* The local socket may have acknowledged more already: an acknowledgement never decreases. */
	if (raised)
		ack = o->tx_ack;
	else
		raise(&o->tx_ack, ack);
	/* Missing bytes below the cut are on their way through the sockets: o must not consider them lost. */
	if (raised || before(ack, o->cut))
		edits.sack = SACK_BLANK;
	raise(&o->tx_edge, edge);
	new->tcp.ack = bpf_htonl(ack);
	new->tcp.window = bpf_htons(window_field(edge, ack, scale_out(&x->rec)));
	apply_edits(new, s, &edits);
	return find_route(skb, new, &x->rec, 0, route);
}

/* Returns whether a reset stands exactly at the end of x's stream, or where the far end expects it. Any other
 * reset keeps its number: moved to the cut, a forged one would be in place. */
static __always_inline int ends_stream(const struct ls_leg *x, const struct ls_leg *o,
				       const struct segment *s)
{
	return s->seq == end_of(&x->rec) || s->seq == o->rec.rx_ack + o->rec.ack_off;
}

/* Makes the local socket's copy: payload below the cut, and acknowledgements of its own bytes. `written` are
 * the headers in the packet now. */
static __always_inline int drain_local_copy(struct __sk_buff *skb, struct ls_leg *x, const struct ls_leg *o,
					    struct headers *h, struct headers *written,
					    const struct segment *s, int old)
{
	__u32 ack = seq_min(s->ack, x->loc_end);
	struct edits edits = {
	    .sack = ack == x->loc_end ? SACK_BLANK : SACK_CLIP, .lo = ack, .hi = x->loc_end};

	note_heard(x, s, ack);
	h->tcp.ack = bpf_htonl(ack);
	if (!old && (!(s->flags & TCP_RST) || ends_stream(x, o, s)))
		h->tcp.seq = bpf_htonl(seq_min(s->seq, x->cut));
	keep_in_window(x, h, s, !old || s->end == s->seq);
	if (!old && !(s->flags & TCP_RST))
		h->tcp.flags &= ~(TCP_FIN | TCP_PSH | TCP_URG);
	if (write_for_socket(skb, written, h, s, &edits, mapping_of_leg(x)))
		return -1;
	return !old && s->len ? trim_payload(skb, h, s->opt_len) : 0;
}

static __always_inline int drain_to_socket(struct __sk_buff *skb, struct ls_leg *x, const struct ls_leg *o,
					   struct scratch *b, const struct segment *s, int old)
{
	copy_headers(&b->out, &b->in, s->opt_len);
	return drain_local_copy(skb, x, o, &b->out, &b->in, s, old) ? drop(LS_V_DROP_REWRITE)
								    : pass(LS_V_LOCAL_ONLY);
}

/* Returns whether x was sent an acknowledgement of more than its socket has received: the rest bypassed the
 * socket. The socket's own acknowledgements lag behind its data by the delayed acknowledgement (RFC 9293
 * section 3.8.6.3). */
static __always_inline int is_overtaken(struct __sk_buff *skb, const struct ls_leg *x)
{
	__u32 next = 0;

	return before(x->loc_ack, x->tx_ack) && (read_next(skb, x, &next) || before(next, x->tx_ack));
}

/* Processes a segment in DRAIN. `old`: the segment began below the cut when the cut was raised over it. */
static __always_inline int drain(struct __sk_buff *skb, struct walk *w, struct scratch *b,
				 const struct segment *s, int old)
{
	struct ls_leg *x = &w->slot->leg[w->side & 1], *o = &w->slot->leg[!(w->side & 1)];
	int has_data = s->len || s->flags & (TCP_FIN | TCP_RST), wanted, waits;
	__u32 ack = s->ack + x->rec.ack_off;
	struct headers *h = &b->in, *new = &b->out;
	struct route route = {};
	int verdict;

	waits = before(x->loc_acked, o->cut + o->rec.seq_off);
	/* Forward every probe of an end that waits for a window: it must be answered. An end that is gone
	 * would answer with a reset. */
	wanted =
	    has_data || (!is_through(o, x) && (!before(ack, o->tx_ack) || before(s->seq, end_of(&x->rec)) ||
					       after(ack + (s->window << scale_in(&x->rec)), o->tx_edge)));
	/* Old payload of a pair that is to come back goes to its socket only. If the far end had it
	 * sooner, its acknowledgement would keep x from retransmitting the bytes that the local socket
	 * missed. */
	if (old && !(s->flags & TCP_RST) && w->slot->flags & LS_KEEP && !is_overtaken(skb, x)) {
		note_fin_or_rst(w, s);
		return drain_to_socket(skb, x, o, b, s, old);
	}
	if (!wanted)
		return waits ? drain_to_socket(skb, x, o, b, s, old) : drop(LS_V_CONSUMED);
	if (hops_left(h) <= 1)
		return drop(LS_V_DROP_TTL);
	/* Charge new payload only: bytes that a socket waits for as well are not new. */
	if (!old && over_rate(&x->rec, s))
		return drop(LS_V_DROP_RATE);
	/* Note the segment first, then read the mode: see claimed(). */
	if (s->end != s->seq && !(x->bypassed & LS_BYPASSED_DRAIN))
		__sync_fetch_and_or(&x->bypassed, LS_BYPASSED_DRAIN);
	if (!old)
		note_end_of(&x->rec, s);
	if (!claimed(w, s))
		return look_again(skb);
	note_fin_or_rst(w, s);
	if (!old)
		note_translated(&x->rec, s);
	copy_headers(new, h, s->opt_len);
	verdict = drain_far_copy(skb, w, x, o, new, s, &route);
	if (verdict)
		return no_way(skb, h, s, verdict, &route);
	if (write_headers(skb, h, new, s->opt_len))
		return drop(LS_V_DROP_REWRITE);
	if (!old && !waits && !(s->flags & TCP_RST)) {
		count(LS_V_FORWARDED);
		return send_by(skb, &route);
	}
	if (read_check(skb, new))
		return drop(LS_V_DROP_REWRITE);
	send_copy_by(skb, &route);
	return drain_local_copy(skb, x, o, h, new, s, old) ? drop(LS_V_DROP_REWRITE) : pass(LS_V_DUPLICATED);
}

/*
 * Processes payload that met a trap while the sockets cannot continue yet. If none of the stream bypassed the
 * local socket, that socket gets the payload at once: the cut moves on.
 */
static __always_inline int drain_trapped(struct __sk_buff *skb, struct walk *w, struct scratch *b,
					 const struct segment *s)
{
	struct ls_leg *x = &w->slot->leg[w->side & 1], *o = &w->slot->leg[!(w->side & 1)];

	/* The socket still waits for the payload below the cut. */
	if ((went_past(x) || x->bypassed & LS_BYPASSED_DRAIN) && after(s->end, x->cut))
		return hold(skb, w, s);
	raise(&x->cut, s->end);
	/* A socket that was parked meanwhile gets nothing more. */
	if (mode_of(w->slot) != LS_DRAIN)
		return look_again(skb);
	raise(&x->rec.rx_end, s->seq + s->len);
	note_fin_or_rst(w, s);
	return drain_to_socket(skb, x, o, b, s, 1);
}

#endif
