/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Returns a pair to control mode (papers' section III-D): its sockets continue where the segments stopped.
 * Their own sequence numbers stay the same; from now on the wire's are mapped to them.
 */
#ifndef LONGSPLICE_WAKE_H
#define LONGSPLICE_WAKE_H

#include "seq.h"
#include "socket.h"
#include "track.h"
#include "window.h"

/* Returns whether a segment of x goes beyond a trap. A FIN alone passes, unless payload before it did not. */
static __always_inline int meets_trap(const struct ls_record *rec, const struct segment *s)
{
	return is_armed(rec) && (s->len || s->flags & TCP_FIN) && !(s->flags & TCP_RST) &&
	       !before(s->seq + s->len, rec->trap);
}

static __always_inline __u32 once(const __u32 *field)
{
	return *(const volatile __u32 *)field;
}

/* Returns whether x's stream went past the local socket. */
static __always_inline int went_past(const struct ls_leg *x)
{
	__u32 cut = once(&x->cut);

	return after(once(&x->rec.rx_end), cut);
}

/* State of a direction, read once: a segment noted later was not forwarded, and its packet is processed
 * again. */
struct reach {
	__u32 cut; /* end of the local socket's part */
	__u32 end; /* end of the payload */
	int fin;   /* 1: a FIN behind it went past the socket */
};

static __always_inline struct reach reach_of(const struct ls_leg *x, __u32 mode)
{
	/* A packet may have raised the cut after the mode was FINAL, and been processed again: user space has
	 * stored in delivered where the socket stands. */
	struct reach r = {.cut = once(mode == LS_DRAIN ? &x->cut : &x->delivered),
			  .end = once(mode == LS_FREEZE ? &x->base : &x->rec.rx_end)};

	r.fin = x->rec.seen & LS_SEEN_FIN && !after(r.cut, r.end);
	return r;
}

static __always_inline int is_beyond(struct reach r)
{
	return after(r.end, r.cut) || r.fin;
}

/* Returns whether, in DRAIN, the local sockets could continue in the direction from x to o. They can if
 * nothing of it was forwarded, or if all of the sockets' payload is delivered. */
static __always_inline int can_go_on(const struct ls_leg *x, const struct ls_leg *o, struct reach r)
{
	return (!is_beyond(r) && !(x->bypassed & LS_BYPASSED_DRAIN)) ||
	       (x->delivered == r.cut && o->loc_acked == o->loc_end);
}

/* Returns the number at which x's own socket continues. The cut is behind a FIN that the socket was shown. */
static __always_inline __u32 base_of(struct reach r)
{
	return seq_max(r.end, r.cut);
}

/* Has x's own socket continue at `base`, which the socket takes for its present number. All bytes before
 * `base` went past the socket; a FIN there may have passed, too, but the sockets deliver it: user space shows
 * it to the local one. */
static __always_inline void shift_to(struct ls_leg *x, struct ls_leg *o, __u32 base, struct reach r)
{
	__u32 shift = base - r.cut;

	x->bypassed = r.fin ? LS_BYPASSED | LS_BYPASSED_FIN : LS_BYPASSED;
	x->base = base;
	raise(&x->cut, base);
	x->delivered = base;
	x->adj_seq -= shift;
	x->loc_ack = base;
	x->loc_edge += shift;
	raise(&x->tx_ack, o->rec.rx_ack + o->rec.ack_off);
	raise(&x->tx_edge, seq_min(o->rec.rx_edge + o->rec.ack_off, x->loc_edge));
	o->loc_end = base + x->rec.seq_off;
}

/* Has the direction from x to o continue behind all forwarded payload, which the two ends deliver. */
static __always_inline void go_on(struct ls_leg *x, struct ls_leg *o, struct reach r)
{
	__u32 base = base_of(r);

	/* In this case the sockets have all that was forwarded. */
	if (!is_beyond(r) && !(x->bypassed & LS_BYPASSED_NEW)) {
		x->bypassed = LS_BYPASSED_NOTHING;
		return;
	}
	o->adj_ack -= base - r.cut;
	shift_to(x, o, base, r);
	o->loc_acked = o->loc_end;
}

/* Returns whether the mode of a slot is settled: a CPU that wakes a pair needs some hundred instructions. */
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

/* Reads the next number that x's socket expects in x's stream. Returns 0; -1 if there is no socket. */
static __noinline int read_next(struct __sk_buff *skb, const struct ls_leg *x, __u32 *next)
{
	struct bpf_sock *sk = socket_of(skb, &x->key);
	struct bpf_tcp_sock *tp;

	if (!sk)
		return -1;
	tp = bpf_tcp_sock(sk);
	if (tp)
		*next = tp->rcv_nxt - x->adj_seq;
	bpf_sk_release(sk);
	return tp ? 0 : -1;
}

/*
 * Returns whether x's socket received a packet that was not noted. It would then send the forwarded bytes a
 * second time, with other contents. Such a packet had passed the programs before the flow was registered, on
 * a processor that was stopped then. Call this before the state is read.
 */
static __always_inline int has_strayed(struct __sk_buff *skb, const struct ls_leg *x, __u32 mode)
{
	__u32 next = 0;

	return !read_next(skb, x, &next) && after(next, reach_of(x, mode).cut);
}

/*
 * Wakes the pair of a slot, if its sockets can continue now. Returns the mode afterwards, also if another CPU
 * stored it: UNDRAIN if the pair is awake. In FINAL user space has said whether they can; in DRAIN this
 * function checks, with the mode at WAKING, so that nothing is forwarded between the check and the change
 * (see claimed() for the barriers). `promised`: wake only if the sockets can take all that their peers were
 * promised; without it, user space has seen to that before.
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

/* Goes from DRAIN to FINAL, if no local socket received anything since user space saw them at these cuts.
 * Returns the mode afterwards. `wakeable`: the sockets can continue at any moment. */
static __always_inline __u32 finish_slot(struct ls_slot *slot, __u32 client_cut, __u32 server_cut,
					 int wakeable)
{
	struct ls_leg *a = &slot->leg[LS_CLIENT], *b = &slot->leg[LS_SERVER];
	__u32 to = LS_DRAIN;

	if (__sync_val_compare_and_swap(&slot->mode, LS_DRAIN, LS_WAKING) != LS_DRAIN)
		return settled_mode(slot);
	if (once(&a->cut) == client_cut && once(&b->cut) == server_cut) {
		a->delivered = client_cut;
		b->delivered = server_cut;
		a->bypassed = LS_BYPASSED_NOTHING;
		b->bypassed = LS_BYPASSED_NOTHING;
		/* Later offers of the ends are not compared with this edge. */
		a->rx_shrunk = 0;
		b->rx_shrunk = 0;
		if (wakeable)
			slot->flags |= LS_WAKEABLE;
		to = LS_FINAL;
	}
	__sync_lock_test_and_set(&slot->mode, to);
	return to;
}

/* Goes from FINAL to FREEZE: no new payload is forwarded from `base` on. Returns the mode afterwards. */
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

/* Has the sockets take over the direction from x to o: x's socket acknowledges the forwarded payload, and the
 * part that o may lack, from `acked` on, is in the send queue of o's socket. */
static __always_inline void take_over(struct ls_leg *x, struct ls_leg *o, __u32 acked)
{
	struct reach r = reach_of(x, LS_FREEZE);

	/* Sockets that were built for the flow may be given payload that was forwarded before. */
	if (!is_beyond(r) && !(x->bypassed & LS_BYPASSED_NEW)) {
		x->bypassed = LS_BYPASSED_NOTHING;
		return;
	}
	o->adj_ack += o->loc_end - acked;
	shift_to(x, o, base_of(r), r);
	raise(&x->tx_ack, x->base);
	o->loc_acked = acked;
}

/* Goes from FREEZE to TRACK. Returns the mode afterwards. */
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
