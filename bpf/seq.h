/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Sequence numbers wrap: RFC 9293 section 3.4. */
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

/*
 * Raises a shared sequence number, with a full barrier where it stores. That matters for the cut (what was
 * shown to a local socket) and for rx_end (what was forwarded): a program raises them and then reads the
 * mode, whoever changes the mode does that and then reads them. One of the two sees the other, so that no
 * byte can be acknowledged by a socket that nobody reads any more, nor forwarded past one that is awake.
 *
 * Two CPUs may have a segment of the same flow: a store that goes back would
 * make us take what an end really sent for a forgery. A full barrier, where it stores. Four tries: each that
 * fails means that another one raised it.
 */
static __always_inline void raise(__u32 *field, __u32 to)
{
	for (int i = 0; i < 4; i++) {
		__u32 now = *(volatile __u32 *)field;

		if (!after(to, now) || __sync_val_compare_and_swap(field, now, to) == now)
			return;
	}
}

/* A TSval that does not go back toward a peer, whoever sends: PAWS (RFC 7323 section 5) would discard the
 * segment. `high` is the highest one that it was sent. */
static __always_inline __u32 never_back(__u32 *high, __u32 tsval)
{
	if (before(tsval, *high))
		return *high;
	raise(high, tsval);
	return tsval;
}

/* The window field that reaches from ack to edge at a scale: never more than the edge, at most 65,535. */
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
