/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Computes the windows that an end may be offered (papers' section III-E). */
#ifndef LONGSPLICE_WINDOW_H
#define LONGSPLICE_WINDOW_H

#include "flow.h"
#include "seq.h"

/* Returns the right edge that the sender may be offered before a drain: the edge of the far end, and no more
 * than `max_inflight` beyond its acknowledgement. */
static __always_inline __u32 coupled_edge(const struct ls_leg *from, const struct ls_leg *to)
{
	__u32 edge = to->rec.rx_edge + to->rec.ack_off;

	if (from->max_inflight)
		edge = seq_min(edge, to->rec.rx_ack + to->rec.ack_off + from->max_inflight);
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
static __always_inline __u32 modest_edge(const struct ls_leg *to, __u32 ack, __u32 edge)
{
	__u32 far = to->rec.rx_edge - to->rec.rx_ack;

	return seq_min(edge, ack + (far > LEAST_WINDOW ? far : LEAST_WINDOW));
}

/* Returns the bytes that the local socket of the sender's leg can take from `cut` on. */
static __always_inline __u32 kept_by(const struct ls_leg *from, __u32 cut)
{
	return from->loc_edge - cut;
}

/*
 * Returns the right edge that the sender may be offered while segments are forwarded: that of the far end,
 * but no more than the local socket of the sender's leg could take if it had to continue now, at `next`; an
 * edge once promised stays.
 *
 * A leg that pauses at its trap may have all up to there: a socket that the trap wakes stands a super-packet
 * before it. Only little is offered beyond: with the next request, all that its peer may send at once comes
 * to the socket before a splice takes hold. (Woken earlier, the socket needs a larger window first: see
 * keeps_promise().)
 */
static __always_inline __u32 kept_edge(const struct ls_slot *slot, const struct ls_leg *from, __u32 next,
				       __u32 edge)
{
	__u32 kept = kept_by(from, from->cut), limit = next + kept;

	if (!(slot->flags & LS_KEEP))
		return edge;
	if (slot->flags & LS_PAUSE && is_armed(&from->rec))
		limit = seq_min(seq_max(limit, from->rec.trap - SUPER_PACKET + kept),
				from->rec.trap + LEAST_WINDOW);
	return seq_min(edge, seq_max(limit, from->tx_edge));
}

/* Most bytes of a stream that pass the sender's socket in DRAIN. Further on, their numbers would seem to be
 * below the cut. */
#define MOST_BESIDE (1U << 30)

/* Returns the same in DRAIN, where the stream may stand below the cut, and pauses MOST_BESIDE beyond it. */
static __always_inline __u32 kept_edge_in_drain(const struct ls_slot *slot, const struct ls_leg *from,
						__u32 edge)
{
	__u32 cut = from->cut;

	edge = kept_edge(slot, from, seq_max(from->rec.rx_end, cut), edge);
	return seq_min(edge, seq_max(cut + MOST_BESIDE, from->tx_edge));
}

/* Returns whether the sender's socket, which stood at `cut` and continues at `base`, can take all that the
 * sender was promised. */
static __always_inline int keeps_promise(const struct ls_leg *from, __u32 cut, __u32 base)
{
	return !after(*(const volatile __u32 *)&from->tx_edge, base + kept_by(from, cut));
}

#endif
