/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Compares and raises sequence numbers, which wrap (RFC 9293 section 3.4). */
#ifndef LONGSPLICE_SEQ_H
#define LONGSPLICE_SEQ_H

#include <linux/types.h>

#define before(a, b) ((__s32)((__u32)(a) - (__u32)(b)) < 0)
#define after(a, b)  before(b, a)

static __always_inline __u32 seq_max(__u32 a, __u32 b)
{
	return after(a, b) ? a : b;
}

static __always_inline __u32 seq_min(__u32 a, __u32 b)
{
	return before(a, b) ? a : b;
}

/* Raises a shared sequence number that another CPU raises, too. The verifier follows this function by itself,
 * not at each place that raises one. */
__noinline int seq_advance_again(__u32 *field, __u32 to)
{
	for (int i = 0; field && i < 3; i++) {
		__u32 now = *(volatile __u32 *)field;

		if (!after(to, now) || __sync_val_compare_and_swap(field, now, to) == now)
			break;
	}
	return 0;
}

/*
 * Raises a shared sequence number, with a full barrier if it stores.
 *
 * The barrier matters for the cut (the payload shown to a local socket) and for rx_end (the payload
 * forwarded). A program raises them and then reads the mode; a change of mode stores the mode and then reads
 * them. So one of the two sees the other. No byte is acknowledged by a socket that is no longer read, and
 * none is forwarded past a socket that is awake.
 *
 * Two CPUs may have a segment of the same flow: a store that goes back would make the next segments of an end
 * look forged. Each failed try means that another CPU raised the number; four are enough.
 */
static __always_inline void seq_advance(__u32 *field, __u32 to)
{
	__u32 now = *(volatile __u32 *)field;

	if (after(to, now) && __sync_val_compare_and_swap(field, now, to) != now)
		seq_advance_again(field, to);
}

/* Returns a TSval that does not go back toward a peer: PAWS would discard the segment (RFC 7323 section 5).
 * `high` is the highest one that was sent to the peer, by any sender. */
static __always_inline __u32 tsval_advance(__u32 *high, __u32 tsval)
{
	if (before(tsval, *high))
		return *high;
	seq_advance(high, tsval);
	return tsval;
}

/* Returns the window field that reaches from ack to edge at a scale: never beyond the edge, at most
 * 65,535. */
static __always_inline __u32 window_field(__u32 edge, __u32 ack, __u8 scale)
{
	__s32 room = edge - ack;
	__u32 field;

	if (room <= 0)
		return 0;
	field = (__u32)room >> (scale & 15);
	return field > 65535 ? 65535 : field;
}

#endif
