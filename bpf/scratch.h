/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Where the headers are while a packet is walked. */
#ifndef LONGSPLICE_SCRATCH_H
#define LONGSPLICE_SCRATCH_H

#include "abi.h"
#include "headers.h"

/* What a segment says, in host order. */
struct segment {
	__u32 seq, ack, end; /* end: after payload, SYN and FIN */
	__u32 len;	     /* of the payload */
	__u32 window;	     /* the field, unscaled */
	__u32 l4;	     /* where its TCP header begins in the packet */
	__u32 opt_len;	     /* 0 to 40 */
	__u32 ts_at;	     /* where in the options TSval stands; 0: nowhere */
	__u32 tsval, tsecr;
	__u8 flags;
	__u8 in_place; /* it can be x's own: what it says of x is noted */
};

/* Two headers are more than the stack holds. No program of ours runs inside another one on the same CPU, but
 * for an `egress` that sees TAG_FORWARDED and does not come here. */
struct scratch {
	struct headers in, out;
	struct segment segment;
	/* Of the packet that came in: a function that the verifier follows by itself cannot look up a key
	 * that it is given before Linux 6.2. */
	struct ls_tuple tuple;
	__u64 jiffies; /* when it was: */
	__u32 ticks;
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

/* The time of records. Asked for once in a tick of the kernel's timer: the helper costs as much as a look-up.
 */
static __always_inline __u32 ticks(void)
{
	struct scratch *b = get_scratch();
	__u64 now = bpf_jiffies64();

	if (!b)
		return 0;
	if (b->jiffies != now) {
		b->jiffies = now;
		b->ticks = bpf_ktime_get_coarse_ns() >> LS_TICK_SHIFT;
	}
	return b->ticks;
}

#endif
