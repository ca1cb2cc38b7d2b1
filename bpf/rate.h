/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * The rate limit of a direction: a token bucket kept as one time (GCRA, ITU-T I.371 appendix I, the virtual
 * scheduling form), which crates/core/src/limit.rs has for the relay (docs/decisions/0015).
 */
#ifndef LONGSPLICE_RATE_H
#define LONGSPLICE_RATE_H

#include <bpf/bpf_helpers.h>
#include "abi.h"
#include "scratch.h"

#define NANOSECONDS 1000000000ULL

/*
 * Whether a segment of x is beyond its rate; if it is not, it is paid for. One passes whole while what passed
 * before owes no more than the burst, so that a super-packet longer than that passes, too. Without payload it
 * is free. What cannot be x's own is not charged: a blind sender must not use up the rate of another. Two
 * CPUs may have a segment of the same direction: four tries, then it passes unpaid.
 */
static __always_inline int over_rate(struct ls_record *rec, const struct segment *s)
{
	__u64 now, paid, from;

	if (!rec->rate || !s->len)
		return 0;
	now = bpf_ktime_get_ns();
	for (int i = 0; i < 4; i++) {
		paid = *(volatile __u64 *)&rec->paid_until;
		from = paid > now ? paid : now;
		if ((from - now) * rec->rate > rec->burst * NANOSECONDS)
			return 1;
		if (!s->in_place)
			return 0;
		from += s->len * NANOSECONDS / rec->rate;
		if (__sync_val_compare_and_swap(&rec->paid_until, paid, from) == paid)
			return 0;
	}
	return 0;
}

#endif
