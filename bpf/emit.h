/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Processes the segments of the local sockets, while the flow has sockets in the path. */
#ifndef LONGSPLICE_EMIT_H
#define LONGSPLICE_EMIT_H

#include "local.h"
#include "route.h"
#include "undrain.h"
#include "walk.h"
#include "window.h"

/* Answers a local SYN to a live tuple with a reset: the connecting program learns of it at once, and the live
 * flow does not notice. */
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

/* Returns whether the local socket of x's leg has closed in order: it has acknowledged x's end, and x has
 * acknowledged the end of o's stream. x may not know it yet, because it is told less while o lacks bytes. */
static __always_inline int has_closed(const struct ls_leg *x, const struct ls_leg *o)
{
	return is_closed_by(x, o, x->loc_ack);
}

/*
 * Forwards the reset of a socket that held bytes, in a form that the peer accepts although payload was
 * forwarded past the socket. The kernel would answer the peer's next segment with a reset, too, but an idle
 * peer sends none. A reset below the data that the peer has is not even challenged, so this one stands at the
 * end of all that was sent to it, or of the window that it has taken back: if some of that is still missing
 * there, the peer challenges, and the kernel's answer to the challenge is in place.
 */
static __always_inline int abort_flow(struct __sk_buff *skb, struct walk *w, struct scratch *b,
				      const struct segment *s, __u32 mode)
{
	struct ls_leg *x = &w->slot->leg[w->side & 1], *o = &w->slot->leg[!(w->side & 1)];
	struct headers *h = &b->in, *new = &b->out;
	__u32 end;

	/* This is the kernel's answer, for a socket that is gone, to a segment that came in unchanged. */
	if (mode == LS_ABORTED && !(s->flags & TCP_ACK))
		return pass(LS_V_ABORTED);
	/* The pair is awake and nothing is on its way past the sockets: the other leg goes on. */
	if (mode == LS_UNDRAIN && settled(x, o) && settled(o, x))
		return write_headers(skb, h, new, s->opt_len) ? drop(LS_V_DROP_REWRITE) : pass(LS_V_EMITTED);
	/* x is through: it waits for no bytes of the socket. */
	if (mode != LS_ABORTED && is_through(x, o))
		return drop(LS_V_DROP_PARKED);
	/* The kernel answers for a socket that is gone to what x repeats: o's acknowledgement will stop x. */
	if (mode == LS_UNDRAIN && !(s->flags & TCP_ACK) && has_closed(x, o))
		return drop(LS_V_DROP_PARKED);
	w->slot->mode = LS_ABORTED;
	if (s->flags & TCP_ACK) {
		end = after(end_of(&o->rec), o->cut) ? end_of(&o->rec) + o->rec.seq_off : x->loc_end;
		new->tcp.seq = bpf_htonl(where_heard(x, end));
	}
	return write_headers(skb, h, new, s->opt_len) ? drop(LS_V_DROP_REWRITE) : pass(LS_V_ABORTED);
}

/* Acknowledgement and window that a socket's segment carries toward x. */
struct answer {
	__u32 ack, edge;
	__u32 lowered; /* 1: the acknowledgement was lowered, because the far end does not have those bytes
			  yet */
};

static __always_inline struct answer answer_of(const struct walk *w, const struct segment *s, __u32 mode)
{
	struct ls_leg *x = &w->slot->leg[w->side & 1], *o = &w->slot->leg[!(w->side & 1)];
	struct answer a = {.ack = s->ack, .edge = edge_of(s, scale_out(&o->rec))};
	__u32 far = o->rec.rx_ack + o->rec.ack_off;

	if (w->slot->flags & LS_COUPLE && after(a.edge, coupled_edge(x, o)))
		a.edge = coupled_edge(x, o);
	if (mode == LS_DRAIN) {
		a.edge = kept_edge(w->slot, x, o->rec.rx_edge + o->rec.ack_off);
		a.ack = seq_max(a.ack, x->tx_ack);
		/* The far end may have acknowledged forwarded bytes in segments that x never received. */
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

/* Processes a segment of the local socket of x's leg. `s` and `edits` are in the numbers of the wire
 * already. */
static __always_inline int emit(struct __sk_buff *skb, struct walk *w, struct scratch *b,
				const struct segment *s, struct edits *edits, __u32 mode)
{
	struct ls_leg *x = &w->slot->leg[w->side & 1], *o = &w->slot->leg[!(w->side & 1)];
	struct headers *h = &b->in, *new = &b->out;
	__u32 scale = scale_out(&o->rec);
	__u32 edge = edge_of(s, scale);
	__u32 window = s->window;
	struct answer a;
	int bare;

	/* Drop a retransmission from before the socket's own stream: its peer has acknowledged those bytes,
	 * but the socket has not received that. The next acknowledgement repeats it. */
	if (mode == LS_UNDRAIN && o->bypassed & LS_BYPASSED && s->end != s->seq &&
	    before(s->seq, first_own(o)))
		return drop(LS_V_DROP_PARKED);
	raise(&x->loc_end, s->end);
	if (s->ts_at)
		edits->tsval_off = never_back(&o->rec.ts_high, s->tsval) - s->tsval;
	if (s->flags & TCP_ACK) {
		/* The socket acknowledges bytes that came to it between the program and the registration of
		 * the flow: the sockets deliver them. A socket parked at this moment must not acknowledge
		 * them, because user space would not pass them on. */
		if (mode != LS_UNDRAIN && after(s->ack, x->cut)) {
			raise(&x->cut, s->ack);
			if (mode_of(w->slot) != mode)
				return drop(LS_V_DROP_PARKED);
		}
		raise(&x->loc_ack, s->ack);
		raise(&x->loc_edge, edge);
		if (!before(s->ack, x->loc_ack))
			x->loc_shrunk = x->loc_edge - edge;
		a = answer_of(w, s, mode);
		if (a.ack != s->ack || a.edge != edge)
			window = window_field(a.edge, a.ack, scale);
		/* A peer without SACK would take the third repetition for a loss. */
		if (a.lowered && !(x->rec.traits & LS_SACK) && s->end == s->seq && !after(a.ack, x->tx_ack) &&
		    !after(a.edge, x->tx_edge))
			return drop(LS_V_CONSUMED);
		raise(&x->tx_ack, a.ack);
		a.edge = a.ack + (window << scale);
		if (mode == LS_TRACK)
			x->tx_edge = a.edge;
		else
			raise(&x->tx_edge, a.edge);
		/* A probe has a number below the sent data on purpose: the peer answers because the number is
		 * old. */
		bare = s->end == s->seq && s->seq == x->loc_end && !(s->flags & TCP_RST);
		/* The peer ignores a number below the payload that was forwarded meanwhile. */
		if (bare && mode == LS_DRAIN)
			new->tcp.seq = bpf_htonl(seq_max(s->seq, end_of(&o->rec) + o->rec.seq_off));
		/* The peer has the FIN that the local socket has not sent yet: the number stands behind
		 * it. */
		if (bare && mode == LS_UNDRAIN && o->bypassed & LS_BYPASSED_FIN && s->seq == first_own(o))
			new->tcp.seq = bpf_htonl(s->seq + 1);
		/* The peer ignores a number beyond a window that it has taken back. The socket may not know
		 * of that, because the kernel lets no window shrink except to 0. */
		if (bare)
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
