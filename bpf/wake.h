/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * The way back to control mode (papers' section III-D): the sockets of a pair go on where the segments
 * stopped. Their own sequence numbers stay what they were; from now on the wire's are mapped to them.
 */
#ifndef LONGSPLICE_WAKE_H
#define LONGSPLICE_WAKE_H

#include "seq.h"
#include "socket.h"
#include "track.h"
#include "window.h"

/* Whether a segment of x goes beyond a trap. A FIN alone passes, unless there is payload before it that did
 * not. */
static __always_inline int meets_trap(const struct ls_record *rec, const struct segment *s)
{
	return is_armed(rec) && (s->len || s->flags & TCP_FIN) && !(s->flags & TCP_RST) &&
	       !before(s->seq + s->len, rec->trap);
}

static __always_inline __u32 once(const __u32 *field)
{
	return *(const volatile __u32 *)field;
}

/* Whether x's stream went past the local socket. */
static __always_inline int went_past(const struct ls_leg *x)
{
	__u32 cut = once(&x->cut);

	return after(once(&x->rec.rx_end), cut);
}

/* One look at a direction: what is noted later was not forwarded, its packet looks again. */
struct reach {
	__u32 cut; /* where the local socket stands */
	__u32 end; /* where the payload does */
	int fin;   /* a FIN behind it went past the socket */
};

static __always_inline struct reach reach_of(const struct ls_leg *x, __u32 mode)
{
	/* A packet may have raised the cut after the mode was FINAL, and looked again: read_to is what user
	 * space has seen the socket at. */
	struct reach r = {.cut = once(mode == LS_DRAIN ? &x->cut : &x->read_to),
			  .end = once(mode == LS_FREEZE ? &x->base : &x->rec.rx_end)};

	r.fin = x->rec.seen & LS_SEEN_FIN && !after(r.cut, r.end);
	return r;
}

static __always_inline int is_beyond(struct reach r)
{
	return after(r.end, r.cut) || r.fin;
}

/* DRAIN: whether the local sockets could go on in the direction from x to o. They can if nothing of it was
 * forwarded, or if all that they had is through. */
static __always_inline int can_go_on(const struct ls_leg *x, const struct ls_leg *o, struct reach r)
{
	return (!is_beyond(r) && !(x->owed & LS_OWED_DRAIN)) ||
	       (x->read_to == r.cut && o->loc_acked == o->loc_end);
}

/* Where x's own socket goes on. The cut is behind a FIN that the socket was shown. */
static __always_inline __u32 base_of(struct reach r)
{
	return seq_max(r.end, r.cut);
}

/* Where x's own socket goes on: at `base`, which it takes for where it stands. All before it passed by; so
 * did perhaps a FIN there, which is the sockets' all the same: user space has the local one see it. */
static __always_inline void shift_to(struct ls_leg *x, struct ls_leg *o, __u32 base, struct reach r)
{
	__u32 shift = base - r.cut;

	x->owed = r.fin ? LS_OWED | LS_OWED_FIN : LS_OWED;
	x->base = base;
	raise(&x->cut, base);
	x->read_to = base;
	x->adj_seq -= shift;
	x->loc_ack = base;
	x->loc_edge += shift;
	raise(&x->tx_ack, o->rec.rx_ack + o->rec.ack_off);
	raise(&x->tx_edge, seq_min(o->rec.rx_edge + o->rec.ack_off, x->loc_edge));
	o->loc_end = base + x->rec.seq_off;
}

/* The direction from x to o goes on behind all that was forwarded, which stays the two ends' business. */
static __always_inline void go_on(struct ls_leg *x, struct ls_leg *o, struct reach r)
{
	__u32 base = base_of(r);

	/* Without either, what was forwarded is what the sockets have, too. */
	if (!is_beyond(r) && !(x->owed & LS_OWED_NEW)) {
		x->owed = LS_OWED_NOTHING;
		return;
	}
	o->adj_ack -= base - r.cut;
	shift_to(x, o, base, r);
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
 * Whether x's socket has been given something that we do not know of, and would say again what passed
 * meanwhile, with other bytes: a packet that had passed the programs before the flow was registered, on a
 * processor that was stopped then. It is to be asked before the state is looked at.
 */
static __noinline int has_strayed(struct __sk_buff *skb, const struct ls_leg *x, __u32 mode)
{
	struct bpf_sock *sk = socket_of(skb, &x->key);
	struct bpf_tcp_sock *tp;
	__u32 at = 0;

	if (!sk)
		return 0;
	tp = bpf_tcp_sock(sk);
	if (tp)
		at = tp->rcv_nxt - x->adj_seq;
	bpf_sk_release(sk);
	return tp && after(at, reach_of(x, mode).cut);
}

/*
 * Wakes the pair of a slot, if its sockets can go on now. Gives the mode after it, whoever made it: UNDRAIN
 * if the pair is awake. In FINAL user space has said whether they can; in DRAIN we see it, with the mode at
 * WAKING, so that nothing is forwarded between the look and the deed (see claimed() for the barriers).
 * `promised`: only where they can take what their peers were promised; user space sees to that before.
 */
static __always_inline __u32 wake_slot(struct __sk_buff *skb, struct ls_slot *slot, __u32 from, int promised)
{
	struct ls_leg *a = &slot->leg[LS_CLIENT], *b = &slot->leg[LS_SERVER];
	__u32 to = LS_UNDRAIN;
	struct reach at_a, at_b;

	if (from != LS_DRAIN && from != LS_FREEZE && !(from == LS_FINAL && slot->flags & LS_WAKEABLE))
		return from;
	if (has_strayed(skb, a, from) || has_strayed(skb, b, from)) {
		__sync_fetch_and_or(&slot->flags, LS_STRAYED);
		return from;
	}
	if (__sync_val_compare_and_swap(&slot->mode, from, LS_WAKING) != from)
		return settled_mode(slot);
	at_a = reach_of(a, from);
	at_b = reach_of(b, from);
	if ((from == LS_DRAIN && !(can_go_on(a, b, at_a) && can_go_on(b, a, at_b))) ||
	    (promised &&
	     !(keeps_promise(a, at_a.cut, base_of(at_a)) && keeps_promise(b, at_b.cut, base_of(at_b))))) {
		to = from;
	} else {
		go_on(a, b, at_a);
		go_on(b, a, at_b);
		slot->flags = 0;
	}
	__sync_lock_test_and_set(&slot->mode, to);
	return to;
}

/* DRAIN to FINAL, if no local socket was given anything since user space saw them at these cuts; the mode
 * after it. `wakeable`: whether the sockets could go on any moment. */
static __always_inline __u32 finish_slot(struct ls_slot *slot, __u32 client_cut, __u32 server_cut,
					 int wakeable)
{
	struct ls_leg *a = &slot->leg[LS_CLIENT], *b = &slot->leg[LS_SERVER];
	__u32 to = LS_DRAIN;

	if (__sync_val_compare_and_swap(&slot->mode, LS_DRAIN, LS_WAKING) != LS_DRAIN)
		return settled_mode(slot);
	if (once(&a->cut) == client_cut && once(&b->cut) == server_cut) {
		a->read_to = client_cut;
		b->read_to = server_cut;
		a->owed = LS_OWED_NOTHING;
		b->owed = LS_OWED_NOTHING;
		if (wakeable)
			slot->flags |= LS_WAKEABLE;
		to = LS_FINAL;
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
	struct reach r = reach_of(x, LS_FREEZE);

	/* Sockets that were built for the flow may be given what was forwarded before. */
	if (!is_beyond(r) && !(x->owed & LS_OWED_NEW)) {
		x->owed = LS_OWED_NOTHING;
		return;
	}
	o->adj_ack += o->loc_end - acked;
	shift_to(x, o, base_of(r), r);
	raise(&x->tx_ack, x->base);
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
