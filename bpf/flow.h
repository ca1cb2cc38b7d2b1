/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Finds the state of a tuple's flow, wherever it is now: its direction in the table of flows
 * (docs/decisions/0017), the record there, the slot. A hash table of the kernel would take 50 bytes more for
 * each direction, and store all of their addresses twice. Only user space inserts and removes (table.bpf.c);
 * programs read at any time.
 */
#ifndef LONGSPLICE_FLOW_H
#define LONGSPLICE_FLOW_H

#include "maps.h"

/* Number of chains, less one, and the secret keys of the hash; set when the programs are loaded. */
const volatile __u32 table_mask;
const volatile __u32 table_keys[LS_HASH_KEYS];

/* Limits the length of a chain: with two directions for each bucket, one chain in 10^9 would be longer. */
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
	const __u32 *left = (const __u32 *)a, *right = (const __u32 *)b;
	__u32 difference = left[8] ^ right[8];

	for (int i = 0; i < 8; i++)
		difference |= left[i] ^ right[i];
	return !difference;
}

static __always_inline struct ls_flow *element_of(__u32 number)
{
	__u32 index = (number - 1) >> 1;

	return bpf_map_lookup_elem(&flows, &index);
}

/* Returns the direction with a number. NULL at the end of a chain and for an empty one: both numbers are
 * beyond the table. */
static __always_inline struct ls_direction *direction_of(__u32 number)
{
	struct ls_flow *element = element_of(number);

	return element ? &element->from[(number - 1) & 1] : NULL;
}

/* Loads all cache lines of a flow at the same time; the walk would wait for one after the other. If none of
 * them is cached, the wait for memory takes longer than all the rest. */
static __always_inline void load_all(const struct ls_flow *element)
{
	for (__u32 at = 0; at < sizeof(*element); at += 60)
		*(const volatile __u32 *)((const void *)element + at);
}

static __always_inline int is_there(const struct ls_direction *d)
{
	return *(const volatile __u8 *)&d->rec.placement & ~LS_ARMED;
}

/* Returns the number of the direction of a tuple (2 * flow + side + 1); 0: the tuple is not ours. */
__noinline __u32 table_lookup(const struct ls_tuple *t)
{
	struct ls_direction *d;
	struct ls_flow *element;
	__u32 number, *bucket;

	if (!t)
		return 0;
	bucket = bucket_of(t);
	if (!bucket)
		return 0;
	number = *(volatile __u32 *)bucket;
	for (int i = 0; i < LONGEST_CHAIN; i++) {
		element = element_of(number);
		if (!element)
			return 0;
		load_all(element);
		d = &element->from[(number - 1) & 1];
		/* A direction that has been replaced stays in its chain for a while. */
		if (is_same(&d->key, t) && is_there(d))
			return number;
		number = *(volatile __u32 *)&d->next;
	}
	return 0;
}

/* Returns the scale of the window field that the sender sends. */
static __always_inline __u32 scale_in(const struct ls_record *rec)
{
	return rec->scales & 15;
}

/* Returns the scale that the far end applies to that field. */
static __always_inline __u32 scale_out(const struct ls_record *rec)
{
	return rec->scales >> 4;
}

/* Returns the place of the current record: enum ls_placement, without LS_ARMED. */
static __always_inline __u32 placement_of(const struct ls_record *rec)
{
	return *(const volatile __u8 *)&rec->placement & ~LS_ARMED;
}

static __always_inline int is_armed(const struct ls_record *rec)
{
	return rec->placement & LS_ARMED;
}

static __always_inline void add_bytes(struct ls_record *rec, __u32 bytes)
{
	__u32 sum = rec->bytes_low + bytes;

	rec->bytes_high += sum < bytes;
	rec->bytes_low = sum;
}

struct flow_ref {
	struct ls_flow *element;
	struct ls_record *rec; /* current record of the direction */
	struct ls_slot *slot;  /* NULL: detached, or a leg alone */
	__u32 side;
	__u32 placement; /* enum ls_placement */
};

/* Finds the current state of a direction of a flow. Returns the table's record; NULL if the direction does
 * not exist. */
static __always_inline struct ls_record *locate(struct ls_flow *element, __u32 side, struct flow_ref *flow)
{
	struct ls_record *rec = &element->from[side & 1].rec;
	__u32 index;

	flow->element = element;
	flow->side = side & 1;
	flow->slot = NULL;
	flow->rec = rec;
	flow->placement = placement_of(rec);
	if (flow->placement != LS_SLOTTED)
		return flow->placement == LS_NONE ? NULL : rec;
	index = rec->where;
	flow->slot = bpf_map_lookup_elem(&slots, &index);
	if (!flow->slot)
		return NULL;
	/* demote() has put an interface into `where` between our two reads: the record in the table is
	 * current now. */
	if (flow->slot->serial != rec->serial) {
		flow->slot = NULL;
		flow->placement = placement_of(rec);
		return flow->placement == LS_DETACHED ? rec : NULL;
	}
	flow->rec = &flow->slot->leg[side & 1].rec;
	return rec;
}

/* Finds the record of a direction by its number in the table; NULL if it has just been removed. */
static __always_inline struct ls_record *find_by_number(__u32 number, struct flow_ref *flow)
{
	struct ls_flow *element = element_of(number);

	return element ? locate(element, (number - 1) & 1, flow) : NULL;
}

/* Finds the record of a tuple; NULL if it is not ours. */
static __always_inline struct ls_record *find(const struct ls_tuple *tuple, struct flow_ref *flow)
{
	return find_by_number(table_lookup(tuple), flow);
}

/* Finds the record of the direction back; NULL if the flow is incomplete, which only happens while it is
 * being removed. */
static __always_inline struct ls_record *find_back(const struct flow_ref *flow)
{
	struct flow_ref back;

	return locate(flow->element, !(flow->side & 1), &back) ? back.rec : NULL;
}

/* Returns the tuple of the far end's own segments: those toward it have it reversed. */
static __always_inline const struct ls_tuple *far_of(const struct flow_ref *flow)
{
	return &flow->element->from[!(flow->side & 1)].key;
}

static __always_inline __u32 mode_of(struct ls_slot *slot)
{
	return *(volatile __u32 *)&slot->mode;
}

/* Returns whether packets of a slot in this mode go to the stack only. */
static __always_inline int is_over(__u32 mode)
{
	return mode == LS_FREE || mode == LS_REPLACED || mode == LS_ABORTED;
}

/* Returns whether the slot is about to have another mode, or has been left. */
static __always_inline int is_changing(__u32 mode)
{
	return mode == LS_WAKING || mode == LS_MOVED;
}

static __always_inline __u32 once(const __u32 *field)
{
	return *(const volatile __u32 *)field;
}

#endif
