/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Computes the windows that an end may be offered (papers' section III-E). */
#ifndef LONGSPLICE_WINDOW_H
#define LONGSPLICE_WINDOW_H

#include "maps.h"
#include "seq.h"

/* Returns the right edge that x may be offered before a drain: the edge of the far end, and no more than
 * `max_inflight` beyond its acknowledgement. */
static __always_inline __u32 coupled_edge(const struct ls_leg *x, const struct ls_leg *o)
{
	__u32 edge = o->rec.rx_edge + o->rec.ack_off;

	if (x->max_inflight)
		edge = seq_min(edge, o->rec.rx_ack + o->rec.ack_off + x->max_inflight);
	return edge;
}

/* Smallest window that is offered, in bytes. */
#define LEAST_WINDOW 32768

/* Longest segment, in bytes, except for BIG TCP. */
#define SUPER_PACKET 65536

/*
 * Limits the window of an awake pair to the size of the far end's, so that the pair may be spliced again at
 * once. It moves on with the local socket's acknowledgements, independently of the far end.
 */
static __always_inline __u32 modest_edge(const struct ls_leg *o, __u32 ack, __u32 edge)
{
	__u32 far = o->rec.rx_edge - o->rec.rx_ack;

	return seq_min(edge, ack + (far > LEAST_WINDOW ? far : LEAST_WINDOW));
}

/* Returns the bytes that the local socket of x's leg can take from `cut` on. */
static __always_inline __u32 kept_by(const struct ls_leg *x, __u32 cut)
{
	return x->loc_edge - cut;
}

/*
 * Returns the right edge that x may be offered while segments are forwarded: that of the far end, but no more
 * than the local socket of x's leg could take if it had to continue now; an edge once promised stays.
 *
 * A leg that pauses at its trap may have all up to there: a socket that the trap wakes stands a super-packet
 * before it. Only little is offered beyond: with the next request, all that its peer may send at once comes
 * to the socket before a splice takes hold. (Woken earlier, the socket needs a larger window first: see
 * keeps_promise().)
 */
static __always_inline __u32 kept_edge(const struct ls_slot *slot, const struct ls_leg *x, __u32 edge)
{
	__u32 kept = kept_by(x, x->cut), limit = seq_max(x->rec.rx_end, x->cut) + kept;

	if (!(slot->flags & LS_KEEP))
		return edge;
	if (slot->flags & LS_PAUSE && is_armed(&x->rec))
		limit =
		    seq_min(seq_max(limit, x->rec.trap - SUPER_PACKET + kept), x->rec.trap + LEAST_WINDOW);
	return seq_min(edge, seq_max(limit, x->tx_edge));
}

/* Returns whether x's socket, which stood at `cut` and continues at `base`, can take all that x was
 * promised. */
static __always_inline int keeps_promise(const struct ls_leg *x, __u32 cut, __u32 base)
{
	return !after(*(const volatile __u32 *)&x->tx_edge, base + kept_by(x, cut));
}

#endif
