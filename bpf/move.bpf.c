// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Moves a spliced flow between its slot and its records, while segments pass: from dormant to detached
 * (`release`) and back (`attach`), and from there to control mode (`wake`). User space cannot do that: an
 * update from there replaces an element, and what a segment noted meanwhile would be lost.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/pkt_cls.h>
#include "maps.h"
#include "seq.h"
#include "table.h"
#include "wake.h"

/* Not read by anybody: it brings the types into BTF. */
const volatile struct ls_types types_for_rust = {};

/* The soft half, so that nothing goes back: a segment may have noted more on either side. */
static __always_inline void merge(struct ls_record *to, const struct ls_record *from)
{
	to->seen |= from->seen;
	to->last_seen = seq_max(to->last_seen, from->last_seen);
	raise(&to->rx_end, once(&from->rx_end));
	raise(&to->rx_ack, from->rx_ack);
	raise(&to->rx_edge, from->rx_edge);
	raise(&to->ts_high, from->ts_high);
	if (to->paid_until < from->paid_until)
		to->paid_until = from->paid_until;
}

/* The record of a key, if it is of this flow. */
static __always_inline struct ls_record *record_of(struct ls_slot *slot, const struct ls_tuple *key)
{
	struct ls_direction *d = direction_of(look_up(key));

	return d && d->rec.serial == slot->serial ? &d->rec : NULL;
}

/* 0, or 1 if the record is gone. */
static __always_inline int release_side(struct ls_slot *slot, const struct ls_move *move, int side)
{
	const struct ls_tuple *key = &move->key[side];
	__u32 index = move->slot, where = move->where[side], identity = move->identity[side];
	struct ls_record *from = &slot->leg[side].rec, *rec = record_of(slot, key);

	if (!rec)
		return 1;
	if (placement_of(rec) == LS_SLOTTED && rec->where == index) {
		rec->seq_off = from->seq_off;
		rec->ack_off = from->ack_off;
		rec->tsval_off = from->tsval_off;
		rec->tsecr_off = from->tsecr_off;
		rec->scales = from->scales;
		rec->seen = from->seen;
		rec->trap = from->trap;
		rec->will = from->will;
		rec->last_seen = from->last_seen;
		rec->rx_end = from->rx_end;
		rec->rx_ack = from->rx_ack;
		rec->rx_edge = from->rx_edge;
		rec->ts_high = from->ts_high;
		rec->bytes_high = from->bytes_high;
		rec->bytes_low = from->bytes_low;
		rec->paid_until = from->paid_until;
		rec->rate = from->rate;
		rec->burst = from->burst;
		rec->where = where;
		rec->traits = (rec->traits & ~LS_IDENTITY) | (identity ? LS_IDENTITY : 0);
		__sync_lock_test_and_set(&slot->barrier, 0);
		*(volatile __u8 *)&rec->placement = LS_DETACHED | (from->placement & LS_ARMED);
	}
	return 0;
}

static __always_inline void merge_side(struct ls_slot *slot, int side, const struct ls_tuple *key)
{
	struct ls_record *rec = record_of(slot, key);

	if (rec && placement_of(rec) == LS_DETACHED)
		merge(rec, &slot->leg[side].rec);
}

/* Returns 0; 1 if a record is gone: then a new connection has taken the flow's place; 2 if the flow is not
 * in mode FINAL: nothing has changed then. */
SEC("syscall")
int release(struct ls_move *move)
{
	/* A copy: an argument cannot be a key. */
	struct ls_move copy = *move, *arg = &copy;
	__u32 index = arg->slot;
	struct ls_slot *slot = bpf_map_lookup_elem(&slots, &index);
	int gone;

	if (!slot)
		return 1;
	/* First: a packet that wakes the sockets must not come between. Segments look again meanwhile. */
	if (mode_of(slot) != LS_MOVED &&
	    __sync_val_compare_and_swap(&slot->mode, LS_FINAL, LS_MOVED) != LS_FINAL)
		return 2;
	gone = release_side(slot, arg, LS_CLIENT) | release_side(slot, arg, LS_SERVER);
	/* See claimed(): what a segment noted in the slot after it was copied. */
	merge_side(slot, LS_CLIENT, &arg->key[LS_CLIENT]);
	merge_side(slot, LS_SERVER, &arg->key[LS_SERVER]);
	return gone;
}

/* 0, or 1 if the record is gone or is not a detached flow's. */
static __always_inline int copy_side(struct ls_slot *slot, int side, const struct ls_tuple *key)
{
	struct ls_record *rec = record_of(slot, key);

	if (!rec || placement_of(rec) != LS_DETACHED)
		return 1;
	slot->leg[side].rec = *rec;
	slot->leg[side].key = *key;
	return 0;
}

/* Likewise. */
static __always_inline int attach_side(struct ls_slot *slot, __u32 index, int side,
				       const struct ls_tuple *key)
{
	struct ls_record *to = &slot->leg[side].rec, *rec = record_of(slot, key);

	if (!rec)
		return 1;
	__sync_lock_test_and_set(&slot->barrier, 0);
	rec->where = index;
	*(volatile __u8 *)&rec->placement = LS_SLOTTED | (rec->placement & LS_ARMED);
	__sync_lock_test_and_set(&slot->barrier, 0);
	/* See claimed(). */
	merge(to, rec);
	slot->leg[side].rx_ts = to->ts_high - to->tsval_off;
	return 0;
}

/* What the ends were promised last, as far as the far ends' segments tell. */
static __always_inline void note_promised(struct ls_leg *x, const struct ls_leg *o)
{
	x->tx_ack = o->rec.rx_ack + o->rec.ack_off;
	x->tx_edge = o->rec.rx_edge + o->rec.ack_off;
}

/* The slot has the flow's serial number and is in mode FINAL already. Returns 0, or 1 if a record is gone. */
SEC("syscall")
int attach(struct ls_move *move)
{
	struct ls_move copy = *move, *arg = &copy;
	__u32 index = arg->slot;
	struct ls_slot *slot = bpf_map_lookup_elem(&slots, &index);
	int gone;

	if (!slot)
		return 1;
	/* Before anybody finds the slot; again with what was noted meanwhile. */
	gone = copy_side(slot, LS_CLIENT, &arg->key[LS_CLIENT]) |
	       copy_side(slot, LS_SERVER, &arg->key[LS_SERVER]);
	if (gone)
		return gone;
	note_promised(&slot->leg[LS_CLIENT], &slot->leg[LS_SERVER]);
	note_promised(&slot->leg[LS_SERVER], &slot->leg[LS_CLIENT]);
	return attach_side(slot, index, LS_CLIENT, &arg->key[LS_CLIENT]) |
	       attach_side(slot, index, LS_SERVER, &arg->key[LS_SERVER]);
}

/* Run over a "packet" that has the argument behind an Ethernet header: so it runs with softirqs off, and no
 * segment on another CPU waits for long. */
SEC("tc")
int wake(struct __sk_buff *skb)
{
	struct ls_slot *slot;
	struct ls_wake arg;

	if (bpf_skb_load_bytes(skb, ETH_HLEN, &arg, sizeof(arg)))
		return TC_ACT_SHOT;
	slot = bpf_map_lookup_elem(&slots, &arg.slot);
	if (!slot || slot->serial != arg.serial)
		return TC_ACT_SHOT;
	if (arg.how == LS_W_FREEZE)
		arg.mode = freeze_slot(slot);
	else if (arg.how == LS_W_TAKE_OVER)
		arg.mode = take_over_slot(slot, arg.at[LS_CLIENT], arg.at[LS_SERVER]);
	else if (arg.how == LS_W_FINISH)
		arg.mode = finish_slot(slot, arg.at[LS_CLIENT], arg.at[LS_SERVER], arg.wakeable);
	else
		arg.mode = wake_slot(skb, slot, settled_mode(slot), 0);
	return bpf_skb_store_bytes(skb, ETH_HLEN, &arg, sizeof(arg), 0) ? TC_ACT_SHOT : TC_ACT_OK;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
