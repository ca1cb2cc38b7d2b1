// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Inserts and removes directions of the table, one call at a time: user space has a lock. Programs walk the
 * chains meanwhile. An inserted direction is complete, and a removed one still leads on until it is used
 * again, after a grace period of RCU (docs/decisions/0024).
 */
#include <linux/bpf.h>
#include "flow.h"

/* Result of the last step of a walk along a chain. */
struct chain_position {
	__u32 *link; /* link that leads to `number` */
	__u32 number;
	__u32 length; /* length of the chain up to here */
};

/* Walks to the direction with this number, or to the end of the chain. */
static __always_inline void walk_to(struct chain_position *at, __u32 *bucket, __u32 number)
{
	struct ls_direction *d;

	at->link = bucket;
	at->number = *bucket;
	for (at->length = 0; at->length < LONGEST_CHAIN; at->length++) {
		d = at->number == number ? NULL : direction_of(at->number);
		if (!d)
			return;
		at->link = &d->next;
		at->number = d->next;
	}
}

/* Inserts a direction. Returns 0; 1: the table has a direction with its key; 2: the chain is too long, or the
 * number is beyond the table. */
SEC("syscall")
int insert(struct ls_entry *arg)
{
	struct ls_direction *d = direction_of(arg->number);
	struct ls_tuple key;
	struct chain_position at;
	__u32 *bucket;

	if (!d)
		return 2;
	key = d->key;
	bucket = bucket_of(&key);
	if (!bucket)
		return 2;
	if (!arg->replace && table_lookup(&key))
		return 1;
	walk_to(&at, bucket, 0);
	if (at.length >= LONGEST_CHAIN)
		return 2;
	d->next = *bucket ? *bucket : LS_LAST;
	*(volatile __u8 *)&d->rec.placement = arg->placement;
	/* A full barrier: a program that finds the direction finds all of it. */
	__sync_lock_test_and_set(bucket, arg->number);
	return 0;
}

/* Removes the direction with this number. Returns 1 if both directions of its flow are gone. */
SEC("syscall")
int remove(struct ls_entry *arg)
{
	__u32 *bucket, number = arg->number;
	struct ls_flow *element = element_of(number);
	struct ls_direction *d;
	struct ls_tuple key;
	struct chain_position at;

	if (!element)
		return 0;
	d = &element->from[(number - 1) & 1];
	*(volatile __u8 *)&d->rec.placement = LS_NONE;
	key = d->key;
	bucket = bucket_of(&key);
	if (!bucket)
		return 0;
	walk_to(&at, bucket, number);
	/* An empty chain is 0, so that a reader sees whether there is any flow. */
	if (at.number == number)
		*(volatile __u32 *)at.link = at.link == bucket && d->next == LS_LAST ? 0 : d->next;
	return !is_there(&element->from[0]) && !is_there(&element->from[1]);
}

/* Returns the number of the direction of a tuple, or 0. */
SEC("syscall")
int lookup(struct ls_tuple *key)
{
	struct ls_tuple copy = *key;

	return table_lookup(&copy);
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
