/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Verifies the checksum of a segment as its receiver will (RFC 9293 section 3.1), in sk_buffs and in frames
 * of XDP. The including program defines LOAD_BYTES, which loads bytes of either.
 */
#ifndef LONGSPLICE_VERIFY_H
#define LONGSPLICE_VERIFY_H

#include "csum.h"

/* Limits the steps: a packet is no longer than the 512 kB of BIG TCP. */
#define SUM_STEPS 1024

struct summing {
	void *ctx;
	__u32 at, remaining; /* rest of the bytes to sum up */
	__u32 sum;
};

/* Adds the next bytes of a packet to the sum. Returns 1 at the end, or if they cannot be read. */
static long sum_chunk(__u32 n, struct summing *c)
{
	struct scratch *scratch = get_scratch();
	__u32 len = c->remaining;

	if (!scratch || !len)
		return 1;
	if (len < SUM_CHUNK)
		__builtin_memset(scratch->chunk, 0, SUM_CHUNK);
	else
		len = SUM_CHUNK;
	/* Mask the length, which is from 1 to SUM_CHUNK: verifiers before Linux 6.8 do not learn from a test
	 * that it is not 0. */
	len--;
	barrier_var(len);
	len = (len & (SUM_CHUNK - 1)) + 1;
	if (LOAD_BYTES(c->ctx, c->at, scratch->chunk, len))
		return 1;
	c->sum = add_sums(c->sum, bpf_csum_diff(NULL, 0, scratch->chunk, SUM_CHUNK, 0));
	c->at += len;
	c->remaining -= len;
	return 0;
}

/* Returns whether the checksum within `len` bytes of a packet, and the bytes whose sum is `sum`, is right. */
static __always_inline int sums_up(void *ctx, __u32 at, __u32 len, __u32 sum)
{
	struct summing c = {.ctx = ctx, .at = at, .remaining = len, .sum = sum};

	bpf_loop(SUM_STEPS, sum_chunk, &c, 0);
	return !c.remaining && fold(c.sum) == 0xffff;
}

/* Sums up the header of a segment with its options, of which there are at most 40 bytes. */
static __always_inline __u32 header_sum(struct headers *h, __u32 opt_len)
{
	__u32 sum = sum_words(&h->tcp, sizeof(h->tcp) / 4);

	if (opt_len == TS_LAYOUT_LEN)
		return add_sums(sum, sum_words(h->opt, TS_LAYOUT_LEN / 4));
	return opt_len ? add_sums(sum, bpf_csum_diff(NULL, 0, (void *)h->opt, limited(opt_len), 0)) : sum;
}

/* Returns whether the checksum of a segment is right, if no device is to fill it in. */
static __always_inline int is_sound(void *ctx, struct headers *h, const struct segment *seg)
{
	__u32 header = sizeof(struct tcp) + seg->opt_len;
	__u32 sum = add_sums(pseudo_sum(h, header + seg->len), header_sum(h, seg->opt_len));

	return seg->len ? sums_up(ctx, l4_of(h) + header, seg->len, sum) : fold(sum) == 0xffff;
}

#endif
