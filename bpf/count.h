/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Every outcome is counted, every drop is named. */
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

/* Not TC_ACT_OK, which would end the chain: other programs on the hook, ours of another instance among them,
 * have their turn after us. */
#define NEXT TC_ACT_UNSPEC

static __always_inline int drop(enum ls_verdict verdict)
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
