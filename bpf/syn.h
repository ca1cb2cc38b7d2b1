/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Processes a SYN on a tuple of the table: of an end that lost its connection, or of a new connection from
 * its port. */
#ifndef LONGSPLICE_SYN_H
#define LONGSPLICE_SYN_H

#include "local.h"
#include "walk.h"

/* Returns whether a SYN of x is newer than its connection: an old duplicate begins no connection. */
static __always_inline int is_newer(const struct ls_record *rec, const struct segment *s)
{
	return after(s->seq, rec->rx_end) || (s->ts_at && after(s->tsval + rec->tsval_off, rec->ts_high));
}

/* Takes the flow out of the table for a new connection: user space collects the rest of the flow. The stack
 * gets the SYN. */
static __always_inline int give_way(struct __sk_buff *skb, struct walk *w, __u32 mode)
{
	struct ls_slot *slot = w->slot;

	barrier_var(slot); /* Without the barrier the compiler tests `placement` instead, and the verifier
			      does not follow. */
	/* User space may be moving the flow at this moment. */
	if (slot && __sync_val_compare_and_swap(&slot->mode, mode, LS_REPLACED) != mode)
		return look_again(skb);
	*(volatile __u8 *)&w->flow->from[LS_CLIENT].rec.placement = LS_NONE;
	*(volatile __u8 *)&w->flow->from[LS_SERVER].rec.placement = LS_NONE;
	return pass(LS_V_SYN_REPLACED);
}

/* Returns whether the sockets have the numbers of the wire and received all that passed. */
static __always_inline int is_plain_relay(const struct ls_leg *x, const struct ls_leg *o, __u32 mode)
{
	return mode == LS_TRACK && !(x->adj_seq | x->adj_ack | o->adj_seq | o->adj_ack);
}

/* Tells the caller to process the SYN like any segment of a spliced flow. */
#define GOES_ON -4

/*
 * Answers a SYN on a flow whose sockets are in the path. x's own socket answers while x can still be there.
 * Afterwards the listener answers: a new connection's numbers must not be mistaken for those of the old one,
 * nor come to leg B. If the old flow has nothing left to do, it gives way; otherwise the SYN is dropped, and
 * x retransmits it.
 */
static __always_inline int syn_with_sockets(struct __sk_buff *skb, struct walk *w, struct scratch *b,
					    const struct segment *s, __u32 mode)
{
	struct ls_leg *x = &w->slot->leg[w->side & 1], *o = &w->slot->leg[!(w->side & 1)];

	if (s->flags & TCP_ACK || !is_through(x, o))
		return deliver(skb, b, s, mapping_of_leg(x));
	if (!is_newer(&x->rec, s) || !(is_plain_relay(x, o, mode) || (mode == LS_DRAIN && is_through(o, x))))
		return drop(LS_V_DROP_SYN);
	return give_way(skb, w, mode);
}

/*
 * Answers a SYN on a spliced tuple. If both ends have closed, the connection is a new one: the record goes,
 * and the listener gets the SYN (RFC 9293 section 3.6.1, from TIME-WAIT). Otherwise the SYN goes to the far
 * end, which challenges it (RFC 5961 section 4).
 */
static __always_inline int syn_of_spliced(struct __sk_buff *skb, struct walk *w, const struct segment *s,
					  __u32 mode)
{
	struct walk back;

	if (s->flags & TCP_ACK || !locate(w->flow, !(w->side & 1), &back))
		return GOES_ON;
	if (!((w->rec->seen | back.rec->seen) & LS_SEEN_RST) &&
	    !(is_done(w->rec, back.rec) && is_done(back.rec, w->rec)))
		return GOES_ON;
	if (!is_newer(w->rec, s))
		return GOES_ON;
	/* One direction has left its slot, and the other one is about to. */
	if (!w->slot && back.slot)
		return look_again(skb);
	return give_way(skb, w, mode);
}

#endif
