// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Moves a spliced flow between its slot and its records, while segments pass: from dormant to detached
 * (`demote`) and back (`promote`), and from there to control mode (`wake`). User space cannot do that: its
 * update would replace an element, and lose what a segment noted meanwhile.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/pkt_cls.h>
#include "wake.h"

/* Never read: it brings the types into BTF. */
const volatile struct ls_types types_for_rust = {};

/* Merges what a segment notes only once it may pass, so that nothing goes back: see may_still_pass(). */
static __always_inline void merge_late(struct ls_record *to, const struct ls_record *from)
{
	to->seen |= from->seen;
	to->last_seen = seq_max(to->last_seen, from->last_seen);
	seq_advance(&to->ts_high, from->ts_high);
}

/* Merges the second half of a record, so that nothing goes back: a segment may have noted more on either
 * side. Numbers that 2 GiB of the stream have passed since would seem to be ahead. */
static __always_inline void merge(struct ls_record *to, const struct ls_record *from)
{
	merge_late(to, from);
	seq_advance(&to->rx_end, once(&from->rx_end));
	seq_advance(&to->rx_ack, from->rx_ack);
	seq_advance(&to->rx_edge, from->rx_edge);
	if (to->tat < from->tat)
		to->tat = from->tat;
}

/* Returns the record of a key, if it is of this flow. */
static __always_inline struct ls_record *record_of(struct ls_slot *slot, const struct ls_tuple *key)
{
	struct ls_direction *d = direction_of(table_lookup(key));

	return d && d->rec.serial == slot->serial ? &d->rec : NULL;
}

/* Copies a direction from the slot into its record. Returns 0, or 1 if the record is gone. */
static __always_inline int demote_side(struct ls_slot *slot, const struct ls_move *move, int side)
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
		rec->successor = from->successor;
		rec->last_seen = from->last_seen;
		rec->rx_end = from->rx_end;
		rec->rx_ack = from->rx_ack;
		rec->rx_edge = from->rx_edge;
		rec->ts_high = from->ts_high;
		rec->bytes_high = from->bytes_high;
		rec->bytes_low = from->bytes_low;
		rec->tat = from->tat;
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
		merge_late(rec, &slot->leg[side].rec);
}

/* Moves a flow from its slot into its records. Returns 0; 1 if a record is gone, because a new connection has
 * taken the flow's place; 2 if the flow is not in mode FINAL, and nothing has changed. */
SEC("syscall")
int demote(struct ls_move *move)
{
	/* Copy the argument: it cannot be a key itself. */
	struct ls_move copy = *move, *arg = &copy;
	__u32 index = arg->slot;
	struct ls_slot *slot = bpf_map_lookup_elem(&slots, &index);
	int gone;

	if (!slot)
		return 1;
	/* Change the mode first: a packet that wakes the sockets must not come between. Segments are
	 * processed again meanwhile. */
	if (mode_of(slot) != LS_MOVED &&
	    __sync_val_compare_and_swap(&slot->mode, LS_FINAL, LS_MOVED) != LS_FINAL)
		return 2;
	gone = demote_side(slot, arg, LS_CLIENT) | demote_side(slot, arg, LS_SERVER);
	/* Merge what a segment noted in the slot after it was copied. A later call does no more than that. */
	merge_side(slot, LS_CLIENT, &arg->key[LS_CLIENT]);
	merge_side(slot, LS_SERVER, &arg->key[LS_SERVER]);
	return gone;
}

/* Notes in a direction's current record what segments noted in the record that it is a copy of. Returns 0, or
 * 1 if the direction is gone. */
SEC("syscall")
int catch_up(struct ls_catch_up *arg)
{
	struct flow_ref flow;
	struct ls_record *rec = find_by_number(arg->number, &flow);
	const struct ls_record *from = &arg->rec;

	if (!rec || rec->serial != from->serial)
		return 1;
	if (flow.placement == LS_ALONE) {
		seq_advance(&rec->ts_high, from->ts_high);
		seq_advance(&rec->tsval_off, from->tsval_off);
		return 0;
	}
	merge(flow.rec, from);
	add_bytes(flow.rec, arg->bytes);
	return 0;
}

/* Sets LS_RULED in the current record of a direction, or clears it. Returns 0, or 1 if the direction is gone.
 * Packets read the rate first. */
static __always_inline int mark_side(struct ls_flow *element, __u32 side, __u32 serial, int is_marked)
{
	struct flow_ref flow;
	struct ls_record *rec;

	if (!locate(element, side, &flow) || flow.placement == LS_ALONE || flow.rec->serial != serial)
		return 1;
	rec = flow.rec;
	if (is_marked) {
		*(volatile __u32 *)&rec->burst = (rec->rate ? rec->burst : 0) | LS_RULED;
		if (!rec->rate)
			*(volatile __u32 *)&rec->rate = ~0U;
	} else if (rec->rate && rec->burst == LS_RULED) {
		*(volatile __u32 *)&rec->rate = 0;
		*(volatile __u32 *)&rec->burst = 0;
	} else {
		*(volatile __u32 *)&rec->burst = rec->burst & ~LS_RULED;
	}
	return 0;
}

/* Marks both directions of a flow as ruled, or as not ruled. Returns 0, or 1 if the flow is gone. No other
 * program moves the flow meanwhile: user space sees to that. */
SEC("syscall")
int mark_ruled(struct ls_mark *mark)
{
	struct ls_mark arg = *mark;
	struct ls_flow *element = element_of(table_lookup(&arg.key));

	if (!element)
		return 1;
	return mark_side(element, LS_CLIENT, arg.serial, arg.is_ruled) |
	       mark_side(element, LS_SERVER, arg.serial, arg.is_ruled);
}

/* Copies a direction from its record into the slot. Returns 0, or 1 if the record is gone or is not a
 * detached flow's. */
static __always_inline int copy_side(struct ls_slot *slot, int side, const struct ls_tuple *key)
{
	struct ls_record *rec = record_of(slot, key);

	if (!rec || placement_of(rec) != LS_DETACHED)
		return 1;
	slot->leg[side].rec = *rec;
	slot->leg[side].key = *key;
	return 0;
}

/* The word of a record that has its placement. */
union placed {
	__u32 word;
	struct {
		__u8 scales, traits, placement, seen;
	};
};
_Static_assert(offsetof(struct ls_record, scales) % 4 == 0, "an atomic operation reaches it");
_Static_assert(offsetof(struct ls_record, seen) - offsetof(struct ls_record, scales) == 3,
	       "as in union placed");

/* Changes the placement of a record from DETACHED to SLOTTED. Returns 0, or 1 if it is not detached: a SYN
 * may have taken it, see give_way(). Each failed try means that a segment noted something in the same word;
 * four are enough. */
static __always_inline int place_in_slot(struct ls_record *rec)
{
	__u32 *word = (__u32 *)&rec->scales;
	int i;

	for (i = 0; i < 4; i++) {
		union placed was = {.word = *(volatile __u32 *)word}, now = was;

		if ((was.placement & ~LS_ARMED) != LS_DETACHED)
			return 1;
		now.placement = LS_SLOTTED | (was.placement & LS_ARMED);
		if (__sync_val_compare_and_swap(word, was.word, now.word) == was.word)
			return 0;
	}
	return 1;
}

/* Makes the slot the current place of a direction. Returns 0, or 1 if the record is gone or is not a detached
 * flow's. */
static __always_inline int promote_side(struct ls_slot *slot, __u32 index, int side,
					const struct ls_tuple *key)
{
	struct ls_record *to = &slot->leg[side].rec, *rec = record_of(slot, key);

	/* A SYN may have taken the record since it was copied. */
	if (!rec || placement_of(rec) != LS_DETACHED)
		return 1;
	__sync_lock_test_and_set(&slot->barrier, 0);
	rec->where = index;
	if (place_in_slot(rec))
		return 1;
	/* Merge what a segment noted meanwhile: see may_still_pass(). */
	merge(to, rec);
	slot->leg[side].rx_ts = to->ts_high - to->tsval_off;
	return 0;
}

/* Notes the last promises to the ends, as far as the far ends' segments show them. */
static __always_inline void note_promised(struct ls_leg *from, const struct ls_leg *to)
{
	from->tx_ack = to->rec.rx_ack + to->rec.ack_off;
	from->tx_edge = to->rec.rx_edge + to->rec.ack_off;
}

/* Moves a flow from its records into a slot, which already has the flow's serial number and is in mode FINAL.
 * Returns 0, or 1 if a record is gone. */
SEC("syscall")
int promote(struct ls_move *move)
{
	struct ls_move copy = *move, *arg = &copy;
	__u32 index = arg->slot;
	struct ls_slot *slot = bpf_map_lookup_elem(&slots, &index);
	int gone;

	if (!slot)
		return 1;
	/* Fill the slot before programs can find it; merge later what was noted meanwhile. */
	gone = copy_side(slot, LS_CLIENT, &arg->key[LS_CLIENT]) |
	       copy_side(slot, LS_SERVER, &arg->key[LS_SERVER]);
	if (gone)
		return gone;
	note_promised(&slot->leg[LS_CLIENT], &slot->leg[LS_SERVER]);
	note_promised(&slot->leg[LS_SERVER], &slot->leg[LS_CLIENT]);
	return promote_side(slot, index, LS_CLIENT, &arg->key[LS_CLIENT]) |
	       promote_side(slot, index, LS_SERVER, &arg->key[LS_SERVER]);
}

/* Makes a transition of a slot. The argument stands behind an Ethernet header in the "packet" of the test
 * run, so the program runs with softirqs off, and no segment on another CPU waits for long. */
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
		arg.mode = wake_slot(skb, slot, stable_mode(slot), 0);
	return bpf_skb_store_bytes(skb, ETH_HLEN, &arg, sizeof(arg), 0) ? TC_ACT_SHOT : TC_ACT_OK;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
