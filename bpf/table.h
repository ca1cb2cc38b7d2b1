/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Finds the direction of a tuple in the table of flows (docs/decisions/0017). A hash table of the kernel
 * would take 50 bytes more for each direction, and store all of their addresses twice. Only user space
 * inserts and removes (table.bpf.c); programs read at any time.
 */
#ifndef LONGSPLICE_TABLE_H
#define LONGSPLICE_TABLE_H

#include "maps.h"

/* Number of chains, less one, and the secret keys of the hash; set when the programs are loaded. */
const volatile __u32 table_mask;
const volatile __u32 table_keys[LS_HASH_KEYS];

/* Limits the length of a chain: with two directions for each bucket, one chain in 10^9
 * would be longer. */
#define LONGEST_CHAIN 16

/* Returns the chain of a tuple: NH of its words (RFC 4418 section 5.2). A sender that does not know the keys
 * cannot choose addresses that collide. */
static __always_inline __u32 chain_of(const struct ls_tuple *t)
{
	const __u32 *word = (const __u32 *)t;
	__u64 sum = (__u64)(__u32)(word[8] + table_keys[8]) * table_keys[9];

	for (int i = 0; i < 8; i += 2)
		sum += (__u64)(__u32)(word[i] + table_keys[i]) * (__u32)(word[i + 1] + table_keys[i + 1]);
	return (__u32)(sum * 0x9e3779b97f4a7c15 >> 32) & table_mask;
}

/* Returns the first link of a tuple's chain. */
static __always_inline __u32 *bucket_of(const struct ls_tuple *t)
{
	__u32 chain = chain_of(t), index = chain >> 1;
	struct ls_buckets *two = bpf_map_lookup_elem(&buckets, &index);

	return two ? &two->first[chain & 1] : NULL;
}

static __always_inline int is_same(const struct ls_tuple *a, const struct ls_tuple *b)
{
	const __u32 *x = (const __u32 *)a, *y = (const __u32 *)b;
	__u32 difference = x[8] ^ y[8];

	for (int i = 0; i < 8; i++)
		difference |= x[i] ^ y[i];
	return !difference;
}

static __always_inline struct ls_flow *flow_of(__u32 number)
{
	__u32 index = (number - 1) >> 1;

	return bpf_map_lookup_elem(&flows, &index);
}

/* Returns the direction with a number. NULL at the end of a chain and for an empty one: both numbers are
 * beyond the table. */
static __always_inline struct ls_direction *direction_of(__u32 number)
{
	struct ls_flow *flow = flow_of(number);

	return flow ? &flow->from[(number - 1) & 1] : NULL;
}

/* Loads all cache lines of a flow at the same time; the walk would wait for one after the other. If none of
 * them is cached, the wait for memory takes longer than all the rest. */
static __always_inline void load_all(const struct ls_flow *flow)
{
	for (__u32 at = 0; at < sizeof(*flow); at += 60)
		*(const volatile __u32 *)((const void *)flow + at);
}

static __always_inline int is_there(const struct ls_direction *d)
{
	return *(const volatile __u8 *)&d->rec.placement & ~LS_ARMED;
}

/* Returns the number of the direction of a tuple (2 * flow + side + 1); 0: the tuple is not ours. */
__noinline __u32 table_lookup(const struct ls_tuple *t)
{
	struct ls_direction *d;
	struct ls_flow *flow;
	__u32 number, *bucket;

	if (!t)
		return 0;
	bucket = bucket_of(t);
	if (!bucket)
		return 0;
	number = *(volatile __u32 *)bucket;
	for (int i = 0; i < LONGEST_CHAIN; i++) {
		flow = flow_of(number);
		if (!flow)
			return 0;
		load_all(flow);
		d = &flow->from[(number - 1) & 1];
		/* A direction that has been replaced stays in its chain for a while. */
		if (is_same(&d->key, t) && is_there(d))
			return number;
		number = *(volatile __u32 *)&d->next;
	}
	return 0;
}

#endif
