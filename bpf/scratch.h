/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Where the headers are while a packet is walked. */
#ifndef LONGSPLICE_SCRATCH_H
#define LONGSPLICE_SCRATCH_H

#include "headers.h"

/* Two headers are more than the stack holds. No program of ours runs inside another one on the same CPU, but
 * for an `egress` that sees TAG_FORWARDED and does not come here. */
struct scratch {
	struct headers in, out;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct scratch);
} scratch SEC(".maps");

static __always_inline struct scratch *get_scratch(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&scratch, &zero);
}

#endif
