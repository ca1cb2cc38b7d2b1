/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * The way back to control mode (papers' section III-D): the sockets of a pair go on where the segments
 * stopped. Their own sequence numbers stay what they were; from now on the wire's are mapped to them.
 */
#ifndef LONGSPLICE_WAKE_H
#define LONGSPLICE_WAKE_H

#include "seq.h"
#include "track.h"

/* Whether a segment of x goes beyond a trap. A FIN alone passes, unless there is payload before it that did
 * not. */
static __always_inline int meets_trap(const struct ls_record *rec, const struct segment *s)
{
	return rec->armed && (s->len || s->flags & TCP_FIN) && !before(s->seq + s->len, rec->trap);
}

static __always_inline __u32 once(const __u32 *field)
{
	return *(const volatile __u32 *)field;
}

/* Whether x's stream went past the sockets since they stopped. */
static __always_inline int went_past(const struct ls_leg *x)
{
	__u32 cut = once(&x->cut);

	return after(once(&x->rec.rx_end), cut);
}

/* DRAIN: whether the local sockets could go on in the direction from x to o. They can if nothing of it was
 * forwarded, or if all that they had is through. */
static __always_inline int can_go_on(const struct ls_leg *x, const struct ls_leg *o)
{
	return (!went_past(x) && !x->owed) || (x->read_to == x->cut && o->loc_acked == o->loc_end);
}

/* Where the sockets go on in the direction from x to o: behind all that was forwarded. A FIN that was
 * forwarded is theirs all the same: user space has the local socket see it. Other CPUs may raise both fields
 * meanwhile; they look again. */
static __always_inline void go_on(struct ls_leg *x, struct ls_leg *o)
{
	__u32 cut = once(&x->cut), base = once(&x->rec.rx_end), shift;

	/* Without either, what was forwarded is what the sockets have, too. */
	if (!after(base, cut) && x->owed != LS_OWED_NEW) {
		x->owed = LS_OWED_NOTHING;
		return;
	}
	x->owed = LS_OWED;
	if (after(base, cut) && x->rec.seen & LS_SEEN_FIN)
		x->rec.rx_end = --base;
	shift = base - cut;
	x->base = base;
	x->cut = base;
	x->read_to = base - 1;
	x->adj_seq -= shift;
	o->adj_ack -= shift;
	x->loc_ack = base;
	x->loc_edge += shift;
	raise(&x->tx_ack, o->rec.rx_ack + o->rec.ack_off);
	raise(&x->tx_edge, seq_min(o->rec.rx_edge + o->rec.ack_off, x->loc_edge));
	o->loc_end = base + x->rec.seq_off;
	o->loc_acked = o->loc_end;
}

/* The mode, once it is settled: the CPU that wakes a pair needs some hundred instructions for it. */
static long is_settled(__u32 n, struct ls_slot **slot)
{
	return mode_of(*slot) != LS_WAKING;
}

static __always_inline __u32 settled_mode(struct ls_slot *slot)
{
	__u32 mode = mode_of(slot);

	if (mode != LS_WAKING)
		return mode;
	bpf_loop(256, is_settled, &slot, 0);
	return mode_of(slot);
}

/*
 * Wakes the pair of a slot, if its sockets can go on now. Gives the mode after it, whoever made it: UNDRAIN
 * if the pair is awake. In FINAL user space has said whether they can; in DRAIN we see it, with the mode at
 * WAKING, so that nothing is forwarded between the look and the deed (see claimed() for the barriers).
 */
static __always_inline __u32 wake_slot(struct ls_slot *slot, __u32 from)
{
	struct ls_leg *a = &slot->leg[LS_CLIENT], *b = &slot->leg[LS_SERVER];
	__u32 to = LS_UNDRAIN;

	if (from != LS_DRAIN && from != LS_FREEZE && !(from == LS_FINAL && slot->flags & LS_WAKEABLE))
		return from;
	if (__sync_val_compare_and_swap(&slot->mode, from, LS_WAKING) != from)
		return settled_mode(slot);
	if (from == LS_DRAIN && !(can_go_on(a, b) && can_go_on(b, a))) {
		to = LS_DRAIN;
	} else {
		if (from == LS_FREEZE) {
			/* What came since was not forwarded. */
			a->rec.rx_end = a->base;
			b->rec.rx_end = b->base;
		}
		go_on(a, b);
		go_on(b, a);
		slot->flags = 0;
	}
	__sync_lock_test_and_set(&slot->mode, to);
	return to;
}

/* FINAL to FREEZE: nothing new is forwarded from `base` on. The mode after it. */
static __always_inline __u32 freeze_slot(struct ls_slot *slot)
{
	struct ls_leg *a = &slot->leg[LS_CLIENT], *b = &slot->leg[LS_SERVER];

	if (__sync_val_compare_and_swap(&slot->mode, LS_FINAL, LS_WAKING) != LS_FINAL)
		return settled_mode(slot);
	a->base = once(&a->rec.rx_end);
	b->base = once(&b->rec.rx_end);
	__sync_lock_test_and_set(&slot->mode, LS_FREEZE);
	return LS_FREEZE;
}

/* In the direction from x to o the sockets have all: what was forwarded is x's socket's to acknowledge, and
 * what o may lack of it, from `acked` on, is in the send queue of o's. */
static __always_inline void take_over(struct ls_leg *x, struct ls_leg *o, __u32 acked)
{
	__u32 base = x->base, shift;

	if (!after(base, x->cut)) {
		x->owed = LS_OWED_NOTHING;
		return;
	}
	if (x->rec.seen & LS_SEEN_FIN)
		base--;
	shift = base - x->cut;
	x->owed = LS_OWED;
	x->base = base;
	x->cut = base;
	x->read_to = base - 1;
	x->rec.rx_end = base;
	x->adj_seq -= shift;
	x->loc_ack = base;
	x->loc_edge += shift;
	raise(&x->tx_ack, base);
	raise(&x->tx_edge, seq_min(o->rec.rx_edge + o->rec.ack_off, x->loc_edge));
	o->adj_ack += o->loc_end - acked;
	o->loc_end = base + x->rec.seq_off;
	o->loc_acked = acked;
}

/* FREEZE to TRACK; the mode after it. */
static __always_inline __u32 take_over_slot(struct ls_slot *slot, __u32 acked_by_client,
					    __u32 acked_by_server)
{
	struct ls_leg *a = &slot->leg[LS_CLIENT], *b = &slot->leg[LS_SERVER];

	if (__sync_val_compare_and_swap(&slot->mode, LS_FREEZE, LS_WAKING) != LS_FREEZE)
		return settled_mode(slot);
	take_over(a, b, acked_by_server);
	take_over(b, a, acked_by_client);
	slot->flags = 0;
	__sync_lock_test_and_set(&slot->mode, LS_TRACK);
	return LS_TRACK;
}

#endif
