/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Returns a pair to control mode (papers' section III-D): its sockets continue where the segments stopped.
 * Their own sequence numbers stay the same; from now on the wire's are mapped to them.
 */
#ifndef LONGSPLICE_WAKE_H
#define LONGSPLICE_WAKE_H

#include "socket.h"
#include "window.h"

/* Returns whether the sender's stream went past the local socket. */
static __always_inline int went_past(const struct ls_leg *from)
{
	__u32 cut = once(&from->cut);

	return after(once(&from->rec.rx_end), cut);
}

/* State of a direction, read once: a segment noted later was not forwarded, and its packet is processed
 * again. */
struct reach {
	__u32 cut; /* end of the local socket's part */
	__u32 end; /* end of the payload */
	int fin;   /* 1: a FIN behind it went past the socket */
};

static __always_inline struct reach reach_of(const struct ls_leg *from, __u32 mode)
{
	/* A packet may have raised the cut after the mode was FINAL, and been processed again: user space has
	 * stored in delivered where the socket stands. */
	struct reach r = {.cut = once(mode == LS_DRAIN ? &from->cut : &from->delivered),
			  .end = once(mode == LS_FREEZE ? &from->base : &from->rec.rx_end)};

	r.fin = from->rec.seen & LS_SEEN_FIN && !after(r.cut, r.end);
	return r;
}

static __always_inline int is_beyond(struct reach r)
{
	return after(r.end, r.cut) || r.fin;
}

/* Returns whether, in FINAL, the stream is so far beyond the sender's socket that the socket would take it
 * for old. (A FIN that the socket was shown lies one before the cut.) */
static __always_inline int is_lost(struct reach r)
{
	__u32 beyond = r.end - r.cut;

	return beyond >= 1U << 31 && beyond != ~0U;
}

/* Returns whether, in DRAIN, the local sockets could continue in the direction from the sender to the far
 * end. They can if nothing of it was forwarded, or if all of the sockets' payload is delivered. */
static __always_inline int can_go_on(const struct ls_leg *from, const struct ls_leg *to, struct reach r)
{
	return (!is_beyond(r) && !(from->bypassed & LS_BYPASSED_DRAIN)) ||
	       (from->delivered == r.cut && to->loc_acked == to->loc_end);
}

/* Returns the number at which the sender's own socket continues. The cut is behind a FIN that the socket was
 * shown. */
static __always_inline __u32 base_of(struct reach r)
{
	return seq_max(r.end, r.cut);
}

/* Has the sender's own socket continue at `base`, which the socket takes for its present number. All bytes
 * before `base` went past the socket; a FIN there may have passed, too, but the sockets deliver it: user
 * space shows it to the local one. */
static __always_inline void shift_to(struct ls_leg *from, struct ls_leg *to, __u32 base, struct reach r)
{
	__u32 shift = base - r.cut;

	from->bypassed = r.fin ? LS_BYPASSED | LS_BYPASSED_FIN : LS_BYPASSED;
	from->base = base;
	seq_advance(&from->cut, base);
	from->delivered = base;
	from->adj_seq -= shift;
	from->loc_ack = base;
	from->loc_edge += shift;
	seq_advance(&from->tx_ack, to->rec.rx_ack + to->rec.ack_off);
	seq_advance(&from->tx_edge, seq_min(to->rec.rx_edge + to->rec.ack_off, from->loc_edge));
	to->loc_end = base + from->rec.seq_off;
}

/* Has the direction from the sender to the far end continue behind all forwarded payload, which the two ends
 * deliver. */
static __always_inline void go_on(struct ls_leg *from, struct ls_leg *to, struct reach r)
{
	__u32 base = base_of(r);

	/* In this case the sockets have all that was forwarded. */
	if (!is_beyond(r) && !(from->bypassed & LS_BYPASSED_NEW)) {
		from->bypassed = LS_BYPASSED_NOTHING;
		return;
	}
	to->adj_ack -= base - r.cut;
	shift_to(from, to, base, r);
	to->loc_acked = to->loc_end;
}

/* Returns whether the mode of a slot is settled: a CPU that wakes a pair needs some hundred instructions. */
static long is_stable(__u32 n, struct ls_slot **slot)
{
	return mode_of(*slot) != LS_WAKING;
}

static __always_inline __u32 stable_mode(struct ls_slot *slot)
{
	__u32 mode = mode_of(slot);

	if (mode != LS_WAKING)
		return mode;
	bpf_loop(256, is_stable, &slot, 0);
	return mode_of(slot);
}

/* Reads the next number that the sender's socket expects in the sender's stream. Returns 0; -1 if there is no
 * socket. */
static __noinline int read_next(struct __sk_buff *skb, const struct ls_leg *from, __u32 *next)
{
	struct bpf_sock *sk = socket_of(skb, &from->key);
	struct bpf_tcp_sock *tp;

	if (!sk)
		return -1;
	tp = bpf_tcp_sock(sk);
	if (tp)
		*next = tp->rcv_nxt - from->adj_seq;
	bpf_sk_release(sk);
	return tp ? 0 : -1;
}

/*
 * Returns whether the sender's socket received a packet that was not noted. It would then send the forwarded
 * bytes a second time, with other contents. Such a packet had passed the programs before the flow was
 * registered, on a processor that was stopped then. Call this before the state is read.
 */
static __always_inline int has_strayed(struct __sk_buff *skb, const struct ls_leg *from, __u32 mode)
{
	__u32 next = 0;

	return !read_next(skb, from, &next) && after(next, reach_of(from, mode).cut);
}

/*
 * Wakes the pair of a slot, if its sockets can continue now. Returns the mode afterwards, also if another CPU
 * stored it: UNDRAIN if the pair is awake. In FINAL user space has said whether they can; in DRAIN this
 * function checks, with the mode at WAKING, so that nothing is forwarded between the check and the change
 * (see may_still_pass() for the barriers). `promised`: wake only if the sockets can take all that their peers
 * were promised; without it, user space has seen to that before.
 */
static __always_inline __u32 wake_slot(struct __sk_buff *skb, struct ls_slot *slot, __u32 mode, int promised)
{
	struct ls_leg *client = &slot->leg[LS_CLIENT], *server = &slot->leg[LS_SERVER];
	__u32 next = LS_UNDRAIN;
	struct reach at_client, at_server;

	if (mode != LS_DRAIN && mode != LS_FREEZE && !(mode == LS_FINAL && slot->flags & LS_WAKEABLE))
		return mode;
	if (has_strayed(skb, client, mode) || has_strayed(skb, server, mode)) {
		__sync_fetch_and_or(&slot->flags, LS_STRAYED);
		return mode;
	}
	if (__sync_val_compare_and_swap(&slot->mode, mode, LS_WAKING) != mode)
		return stable_mode(slot);
	at_client = reach_of(client, mode);
	at_server = reach_of(server, mode);
	if ((mode == LS_DRAIN &&
	     !(can_go_on(client, server, at_client) && can_go_on(server, client, at_server))) ||
	    (mode == LS_FINAL && (is_lost(at_client) || is_lost(at_server))) ||
	    (promised && !(keeps_promise(client, at_client.cut, base_of(at_client)) &&
			   keeps_promise(server, at_server.cut, base_of(at_server))))) {
		next = mode;
	} else {
		go_on(client, server, at_client);
		go_on(server, client, at_server);
		slot->flags = 0;
	}
	__sync_lock_test_and_set(&slot->mode, next);
	return next;
}

/* Goes from DRAIN to FINAL, if no local socket received anything since user space saw them at these cuts.
 * Returns the mode afterwards. `wakeable`: the sockets can continue at any moment. */
static __always_inline __u32 finish_slot(struct ls_slot *slot, __u32 client_cut, __u32 server_cut,
					 int wakeable)
{
	struct ls_leg *client = &slot->leg[LS_CLIENT], *server = &slot->leg[LS_SERVER];
	__u32 next = LS_DRAIN;

	if (__sync_val_compare_and_swap(&slot->mode, LS_DRAIN, LS_WAKING) != LS_DRAIN)
		return stable_mode(slot);
	if (once(&client->cut) == client_cut && once(&server->cut) == server_cut) {
		client->delivered = client_cut;
		server->delivered = server_cut;
		client->bypassed = LS_BYPASSED_NOTHING;
		server->bypassed = LS_BYPASSED_NOTHING;
		/* Later offers of the ends are not compared with this edge. */
		client->rx_shrunk = 0;
		server->rx_shrunk = 0;
		if (wakeable)
			slot->flags |= LS_WAKEABLE;
		next = LS_FINAL;
	}
	__sync_lock_test_and_set(&slot->mode, next);
	return next;
}

/* Goes from FINAL to FREEZE: no new payload is forwarded from `base` on. Returns the mode afterwards. */
static __always_inline __u32 freeze_slot(struct ls_slot *slot)
{
	struct ls_leg *client = &slot->leg[LS_CLIENT], *server = &slot->leg[LS_SERVER];

	if (__sync_val_compare_and_swap(&slot->mode, LS_FINAL, LS_WAKING) != LS_FINAL)
		return stable_mode(slot);
	client->base = once(&client->rec.rx_end);
	server->base = once(&server->rec.rx_end);
	__sync_lock_test_and_set(&slot->mode, LS_FREEZE);
	return LS_FREEZE;
}

/* Has the sockets take over the direction from the sender to the far end: the sender's socket acknowledges
 * the forwarded payload, and the part that the far end may lack, from `acked` on, is in the send queue of the
 * far end's socket. */
static __always_inline void take_over(struct ls_leg *from, struct ls_leg *to, __u32 acked)
{
	struct reach r = reach_of(from, LS_FREEZE);

	/* Sockets that were built for the flow may be given payload that was forwarded before. */
	if (!is_beyond(r) && !(from->bypassed & LS_BYPASSED_NEW)) {
		from->bypassed = LS_BYPASSED_NOTHING;
		return;
	}
	to->adj_ack += to->loc_end - acked;
	shift_to(from, to, base_of(r), r);
	seq_advance(&from->tx_ack, from->base);
	to->loc_acked = acked;
}

/* Goes from FREEZE to TRACK. Returns the mode afterwards. */
static __always_inline __u32 take_over_slot(struct ls_slot *slot, __u32 acked_by_client,
					    __u32 acked_by_server)
{
	struct ls_leg *client = &slot->leg[LS_CLIENT], *server = &slot->leg[LS_SERVER];

	if (__sync_val_compare_and_swap(&slot->mode, LS_FREEZE, LS_WAKING) != LS_FREEZE)
		return stable_mode(slot);
	take_over(client, server, acked_by_server);
	take_over(server, client, acked_by_client);
	slot->flags = 0;
	__sync_lock_test_and_set(&slot->mode, LS_TRACK);
	return LS_TRACK;
}

/* Returns the mode in which packets of a flow are processed: enum ls_mode, with TRACK for a leg alone and
 * FINAL for a flow without sockets. */
static __always_inline __u32 mode_of_flow(const struct flow_ref *flow)
{
	return flow->slot ? stable_mode(flow->slot) : flow->placement == LS_ALONE ? LS_TRACK : LS_FINAL;
}

#endif
