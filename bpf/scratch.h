/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Holds the headers while a packet is processed. */
#ifndef LONGSPLICE_SCRATCH_H
#define LONGSPLICE_SCRATCH_H

#include "abi.h"
#include "headers.h"

/* Limits the bytes of a packet that are summed up at once: before Linux 6.13 the helper takes no more than
 * 512. */
#define SUM_CHUNK 512

/* Fields of a segment, in host order. */
struct segment {
	__u32 seq, ack, end; /* end: after payload, SYN and FIN */
	__u32 len;	     /* length of the payload */
	__u32 window;	     /* the field, unscaled */
	__u32 l4;	     /* offset of its TCP header in the packet */
	__u32 opt_len;	     /* 0 to 40 */
	__u32 ts_at;	     /* offset of TSval in the options; 0: there is none */
	__u32 tsval, tsecr;
	__u8 flags;
	__u8 in_place; /* 1: the segment can be the sender's own, and its fields are noted */
	__u8 whole;    /* 1: no fragment, so its checksum can be verified */
};

/* Returns the right edge of the window that a segment offers, by its sender's scale. */
static __always_inline __u32 edge_of(const struct segment *seg, __u32 scale)
{
	return seg->ack + (seg->window << scale);
}

/* Buffers of a packet, per CPU: two headers are more than the stack holds. No program of ours runs inside
 * another one on the same CPU, except for an `egress` that sees TAG_FORWARDED and does not use this. */
struct scratch {
	struct headers in, out;
	struct segment segment;
	/* Tuple of the packet that came in. Before Linux 6.2, a function that the verifier follows by itself
	 * cannot look up a key that is its argument. */
	struct ls_tuple tuple;
	struct ls_record record; /* of a translation by a rule, */
	struct ls_tuple far;	 /* and the addresses of its far end */
	__u64 jiffies;		 /* time of the last look at the clock: */
	__u32 ticks;
	__u32 forgotten;	    /* see forget() */
	__u32 chunk[SUM_CHUNK / 4]; /* part of a packet that is summed up (verify.h) */
};

/* Declares a map with one element on each CPU. */
#define PER_CPU(of, name)                                                                                    \
	struct {                                                                                             \
		__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);                                                     \
		__uint(max_entries, 1);                                                                      \
		__type(key, __u32);                                                                          \
		__type(value, of);                                                                           \
	} name SEC(".maps")

PER_CPU(struct scratch, scratches);

static __always_inline struct scratch *get_scratch(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&scratches, &zero);
}

/* Returns a value of which the verifier knows nothing any more: it follows the code behind this once, not
 * once for each path that led here. */
static __always_inline __u32 forget(struct scratch *scratch, __u32 value)
{
	volatile __u32 *place = &scratch->forgotten;

	*place = value;
	return *place;
}

/* Returns the time of records. Reads the clock once in a tick of the kernel's timer: the helper costs as much
 * as a look-up. */
static __always_inline __u32 ticks(void)
{
	struct scratch *scratch = get_scratch();
	__u64 now = bpf_jiffies64();

	if (!scratch)
		return 0;
	if (scratch->jiffies != now) {
		scratch->jiffies = now;
		scratch->ticks = bpf_ktime_get_coarse_ns() >> LS_TICK_SHIFT;
	}
	return scratch->ticks;
}

#endif
