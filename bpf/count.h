/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Counts every outcome; every drop has a name. */
#ifndef LONGSPLICE_COUNT_H
#define LONGSPLICE_COUNT_H

#include "maps.h"

static __always_inline void count(enum ls_verdict verdict)
{
	__u32 key = verdict;
	__u64 *n = bpf_map_lookup_elem(&verdicts, &key);

	if (n)
		*n += 1;
}

/* Passes the packet on. TC_ACT_OK would end the chain: other programs on the hook, those of another instance
 * of ours among them, run after us. */
#define NEXT TC_ACT_UNSPEC

/* Drops the packet. This is one function for some forty callers: the kernel rewrites each look-up of a map as
 * it loads a program, and moves all that follows. */
static __noinline int drop(enum ls_verdict verdict)
{
	count(verdict);
	return TC_ACT_SHOT;
}

static __always_inline int pass(enum ls_verdict verdict)
{
	count(verdict);
	return NEXT;
}

#endif
