/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* What an end may be offered (papers' section III-E). */
#ifndef LONGSPLICE_WINDOW_H
#define LONGSPLICE_WINDOW_H

#include "maps.h"
#include "seq.h"

/* Before a drain: the right edge that x may be offered is what the far end has, and no more than `room`
 * beyond what it acknowledged. */
static __always_inline __u32 coupled_edge(const struct ls_leg *x, const struct ls_leg *o)
{
	__u32 edge = o->rec.rx_edge + o->rec.ack_off;

	if (x->room)
		edge = seq_min(edge, o->rec.rx_ack + o->rec.ack_off + x->room);
	return edge;
}

/* No window is worth less than this, in bytes. */
#define LEAST_WINDOW 32768

/*
 * Awake: a window no larger than the far end's, so that the pair may be spliced again at once. It moves on
 * with what the local socket acknowledges, whatever the far end does.
 */
static __always_inline __u32 modest_edge(const struct ls_leg *o, __u32 ack, __u32 edge)
{
	__u32 far = o->rec.rx_edge - o->rec.rx_ack;

	return seq_min(edge, ack + (far > LEAST_WINDOW ? far : LEAST_WINDOW));
}

/*
 * While segments are forwarded: the right edge that the far end offers, but no more than the local socket of
 * x's leg could keep, should it have to go on now; what was promised stays.
 */
static __always_inline __u32 kept_edge(const struct ls_slot *slot, const struct ls_leg *x, __u32 edge)
{
	__u32 limit = seq_max(x->rec.rx_end, x->cut) + (x->loc_edge - x->cut);

	if (!(slot->flags & LS_KEEP))
		return edge;
	return seq_min(edge, seq_max(limit, x->tx_edge));
}

#endif
