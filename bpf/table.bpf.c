// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Links and unlinks directions of the table, one call at a time: user space has a lock. Programs walk the
 * chains meanwhile. A linked direction is complete, and an unlinked one still leads on until it is used
 * again, after a grace period of RCU (docs/decisions/0024).
 */
#include <linux/bpf.h>
#include "table.h"

/* Result of the last step of a walk along a chain. */
struct place {
	__u32 *link; /* link that leads to `number` */
	__u32 number;
	__u32 length; /* length of the chain up to here */
};

/* Walks to the direction with this number, or to the end of the chain. */
static __always_inline void walk_to(struct place *at, __u32 *head, __u32 number)
{
	struct ls_direction *d;

	at->link = head;
	at->number = *head;
	for (at->length = 0; at->length < LONGEST_CHAIN; at->length++) {
		d = at->number == number ? NULL : direction_of(at->number);
		if (!d)
			return;
		at->link = &d->next;
		at->number = d->next;
	}
}

/* Links a direction. Returns 0; 1: the table has a direction with its key; 2: the chain is too long, or the
 * number is beyond the table. */
SEC("syscall")
int link(struct ls_link *arg)
{
	struct ls_direction *d = direction_of(arg->number);
	struct ls_tuple key;
	struct place at;
	__u32 *head;

	if (!d)
		return 2;
	key = d->key;
	head = head_of(&key);
	if (!head)
		return 2;
	if (!arg->replace && look_up(&key))
		return 1;
	walk_to(&at, head, 0);
	if (at.length >= LONGEST_CHAIN)
		return 2;
	d->next = *head ? *head : LS_LAST;
	*(volatile __u8 *)&d->rec.placement = arg->placement;
	/* A full barrier: a program that finds the direction finds all of it. */
	__sync_lock_test_and_set(head, arg->number);
	return 0;
}

/* Unlinks the direction with this number. Returns 1 if both directions of its flow are gone. */
SEC("syscall")
int unlink(struct ls_link *arg)
{
	__u32 *head, number = arg->number;
	struct ls_flow *flow = flow_of(number);
	struct ls_direction *d;
	struct ls_tuple key;
	struct place at;

	if (!flow)
		return 0;
	d = &flow->from[(number - 1) & 1];
	*(volatile __u8 *)&d->rec.placement = LS_NONE;
	key = d->key;
	head = head_of(&key);
	if (!head)
		return 0;
	walk_to(&at, head, number);
	/* An empty chain is 0, so that a reader sees whether there is any flow. */
	if (at.number == number)
		*(volatile __u32 *)at.link = at.link == head && d->next == LS_LAST ? 0 : d->next;
	return !is_there(&flow->from[0]) && !is_there(&flow->from[1]);
}

/* Returns the number of the direction of a tuple, or 0. */
SEC("syscall")
int seek(struct ls_tuple *key)
{
	struct ls_tuple copy = *key;

	return look_up(&copy);
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
