/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* What the local sockets say, while the flow has sockets that speak. */
#ifndef LONGSPLICE_EMIT_H
#define LONGSPLICE_EMIT_H

#include "local.h"
#include "route.h"
#include "undrain.h"
#include "walk.h"
#include "window.h"

/* A local SYN onto a live tuple: the program that connects is told at once, and the live flow does not
 * notice. */
static __always_inline int refuse_syn(struct __sk_buff *skb, struct scratch *b, const struct segment *s)
{
	struct headers *h = &b->in, *new = &b->out;

	copy_headers(new, h, s->opt_len);
	answer_to(new, h);
	new->tcp.sport = h->tcp.dport;
	new->tcp.dport = h->tcp.sport;
	new->tcp.seq = 0;
	new->tcp.ack = bpf_htonl(s->end);
	new->tcp.flags = TCP_RST | TCP_ACK;
	new->tcp.window = 0;
	if (write_headers(skb, h, new, s->opt_len))
		return drop(LS_V_DROP_REWRITE);
	count(LS_V_SYN_REFUSED);
	skb->tc_index = TAG_DELIVER;
	return come_in(skb);
}

/*
 * A socket that held bytes was reset: the peer must believe it, whatever was forwarded past the socket
 * meanwhile. Its next segment would be answered by the kernel, too, but an idle peer sends none. A reset
 * below what the peer has is not even challenged, so this one goes to the end of all that was sent to it:
 * where something is still missing, the peer challenges, and the kernel's answer to that is in place by
 * itself.
 */
static __always_inline int abort_flow(struct __sk_buff *skb, struct walk *w, struct scratch *b,
				      const struct segment *s, __u32 mode)
{
	struct ls_leg *x = &w->slot->leg[w->side & 1], *o = &w->slot->leg[!(w->side & 1)];
	struct headers *h = &b->in, *new = &b->out;

	/* The kernel's answer for a socket that is gone to a segment that came in as it was. */
	if (mode == LS_ABORTED && !(s->flags & TCP_ACK))
		return pass(LS_V_ABORTED);
	/* Awake, and nothing is under way past the sockets: the other leg is none of this one's business. */
	if (mode == LS_UNDRAIN && settled(x, o) && settled(o, x))
		return write_headers(skb, h, new, s->opt_len) ? drop(LS_V_DROP_REWRITE) : pass(LS_V_EMITTED);
	w->slot->mode = LS_ABORTED;
	if (s->flags & TCP_ACK)
		new->tcp.seq =
		    bpf_htonl(after(end_of(&o->rec), o->cut) ? end_of(&o->rec) + o->rec.seq_off : x->loc_end);
	return write_headers(skb, h, new, s->opt_len) ? drop(LS_V_DROP_REWRITE) : pass(LS_V_ABORTED);
}

/* What a socket's acknowledgement becomes on its way to x. */
struct answer {
	__u32 ack, edge;
	__u32 lowered; /* it must not acknowledge what the far end does not have yet */
};

static __always_inline struct answer answer_of(const struct walk *w, const struct segment *s, __u32 mode)
{
	struct ls_leg *x = &w->slot->leg[w->side & 1], *o = &w->slot->leg[!(w->side & 1)];
	struct answer a = {.ack = s->ack, .edge = s->ack + (s->window << scale_out(&o->rec))};
	__u32 far = o->rec.rx_ack + o->rec.ack_off;

	if (w->slot->flags & LS_COUPLE && after(a.edge, coupled_edge(x, o)))
		a.edge = coupled_edge(x, o);
	if (mode == LS_DRAIN) {
		a.edge = kept_edge(w->slot, x, o->rec.rx_edge + o->rec.ack_off);
		a.ack = seq_max(a.ack, x->tx_ack);
		/* What the far end has acknowledged of what passed by: x's own segments may not have told it.
		 */
		if (!before(far, x->cut))
			a.ack = seq_max(a.ack, far);
	} else if (mode == LS_UNDRAIN) {
		if (!settled(x, o) && before(far, a.ack)) {
			a.ack = seq_max(far, x->tx_ack);
			a.lowered = 1;
		}
		a.edge = seq_max(modest_edge(o, s->ack, a.edge), x->tx_edge);
	}
	return a;
}

/* What the local socket of x's leg sends. `s` and `edits` are those of the wire already. */
static __always_inline int emit(struct __sk_buff *skb, struct walk *w, struct scratch *b,
				const struct segment *s, struct edits *edits, __u32 mode)
{
	struct ls_leg *x = &w->slot->leg[w->side & 1], *o = &w->slot->leg[!(w->side & 1)];
	struct headers *h = &b->in, *new = &b->out;
	__u32 scale = scale_out(&o->rec);
	__u32 window = s->window;
	struct answer a;
	int bare;

	/* It was told that this is acknowledged, but has not heard: the next acknowledgement says it again.
	 */
	if (mode == LS_UNDRAIN && o->owed & LS_OWED && s->end != s->seq && before(s->seq, first_own(o)))
		return drop(LS_V_DROP_PARKED);
	raise(&x->loc_end, s->end);
	if (s->ts_at)
		edits->tsval_off = never_back(&o->rec.ts_high, s->tsval) - s->tsval;
	if (s->flags & TCP_ACK) {
		/* It has what was between the program and the socket when the flow was registered, and says
		 * so: that is its part of the stream. Parked this moment, it must not say it: nobody would
		 * pass it on. */
		if (mode != LS_UNDRAIN && after(s->ack, x->cut)) {
			raise(&x->cut, s->ack);
			if (mode_of(w->slot) != mode)
				return drop(LS_V_DROP_PARKED);
		}
		raise(&x->loc_ack, s->ack);
		raise(&x->loc_edge, s->ack + (s->window << scale));
		a = answer_of(w, s, mode);
		if (a.ack != s->ack || a.edge != s->ack + (s->window << scale))
			window = window_field(a.edge, a.ack, scale);
		/* To a peer without SACK a third repetition would mean a loss. */
		if (a.lowered && !(x->rec.traits & LS_SACK) && s->end == s->seq && !after(a.ack, x->tx_ack) &&
		    !after(a.edge, x->tx_edge))
			return drop(LS_V_ABSORBED);
		raise(&x->tx_ack, a.ack);
		a.edge = a.ack + (window << scale);
		if (mode == LS_TRACK)
			x->tx_edge = a.edge;
		else
			raise(&x->tx_edge, a.edge);
		/* A probe stands below what was sent, on purpose: it is answered because it is old. */
		bare = s->end == s->seq && s->seq == x->loc_end;
		/* What stands behind what was forwarded meanwhile is not even looked at. */
		if (bare && mode == LS_DRAIN)
			new->tcp.seq = bpf_htonl(seq_max(s->seq, end_of(&o->rec) + o->rec.seq_off));
		/* Nor what stands before a FIN that x has, while the local socket has not said it. */
		if (bare && mode == LS_UNDRAIN && o->owed & LS_OWED_FIN && s->seq == first_own(o))
			new->tcp.seq = bpf_htonl(s->seq + 1);
		if (bare && mode != LS_TRACK)
			new->tcp.seq = bpf_htonl(where_heard(x, bpf_ntohl(new->tcp.seq)));
		new->tcp.ack = bpf_htonl(a.ack);
		new->tcp.window = bpf_htons(window);
		if (a.ack != s->ack)
			edits->sack = SACK_BLANK;
	}
	if (new->tcp.seq == h->tcp.seq &&new->tcp.ack == h->tcp.ack && window == s->window &&
	    !edits->tsval_off && !(x->adj_seq | x->adj_ack))
		return pass(LS_V_EMITTED);
	apply_edits(new, s, edits);
	return write_headers(skb, h, new, s->opt_len) ? drop(LS_V_DROP_REWRITE) : pass(LS_V_CLAMPED);
}

#endif
