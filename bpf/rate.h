/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Limits the rate of a direction by a token bucket that is stored as one time (GCRA, ITU-T I.371 appendix I,
 * in the form of virtual scheduling). crates/core/src/limit.rs does the same for the relay
 * (docs/decisions/0015).
 */
#ifndef LONGSPLICE_RATE_H
#define LONGSPLICE_RATE_H

#include <bpf/bpf_helpers.h>
#include "abi.h"
#include "scratch.h"

#define NANOSECONDS 1000000000ULL

/*
 * Returns whether a segment of x is beyond its rate; if not, charges for it. A segment passes whole while the
 * earlier ones owe no more than the burst, so a super-packet longer than the burst passes, too. A segment
 * without payload is free. A segment that cannot be x's own is not charged: a blind sender must not use up
 * another's rate. Two CPUs may have segments of the same direction: after four failed tries the segment
 * passes unpaid.
 */
static __always_inline int over_rate(struct ls_record *rec, const struct segment *s)
{
	__u64 now, paid, from;

	if (!rec->rate || !s->len)
		return 0;
	now = bpf_ktime_get_ns();
	for (int i = 0; i < 4; i++) {
		paid = *(volatile __u64 *)&rec->tat;
		from = paid > now ? paid : now;
		if ((from - now) * rec->rate > rec->burst * NANOSECONDS)
			return 1;
		if (!s->in_place)
			return 0;
		from += s->len * NANOSECONDS / rec->rate;
		if (__sync_val_compare_and_swap(&rec->tat, paid, from) == paid)
			return 0;
	}
	return 0;
}

#endif
