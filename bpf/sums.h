/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Computes internet checksums (RFC 1071, RFC 1624), for sk_buffs and XDP. */
#ifndef LONGSPLICE_SUMS_H
#define LONGSPLICE_SUMS_H

#include <linux/types.h>
#include <bpf/bpf_helpers.h>

/* Folds a sum to 16 bits. */
static __always_inline __u16 fold(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return sum;
}

/* Folds a sum to 32 bits. */
static __always_inline __u32 fold32(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	return (sum & 0xffffffff) + (sum >> 32);
}

static __always_inline __u32 add_sums(__u32 a, __u32 b)
{
	return fold32((__u64)a + b);
}

/* Sums up n words. Inline: cheaper than a helper for a few words. */
static __always_inline __u32 sum_words(const void *words, __u32 n)
{
	const __u32 *a = words;
	__u64 sum = 0;

	for (__u32 i = 0; i < n; i++)
		sum += a[i];
	return fold32(sum);
}

/* Returns the change of a header's sum by a change of n of its words. */
static __always_inline __u32 sum_diff(const void *old, const void *new, __u32 n)
{
	const __u32 *a = old, *b = new;
	__u64 sum = 0;

	for (__u32 i = 0; i < n; i++)
		sum += (__u64)(__u32)~a[i] + b[i];
	return fold32(sum);
}

/* Returns the checksum of a header whose sum changed by `diff` (RFC 1624). */
static __always_inline __u16 adjust(__u16 check, __u32 diff)
{
	return ~fold((__u64)(__u16)~check + diff);
}

#endif
