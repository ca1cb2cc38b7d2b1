/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Processes a SYN on a tuple of the table: of an end that lost its connection, or of a new connection from
 * its port. */
#ifndef LONGSPLICE_SYN_H
#define LONGSPLICE_SYN_H

#include "local.h"
#include "route.h"
#include "track.h"
#include "withhold.h"

/* Returns whether a SYN of the sender is newer than its connection: an old duplicate begins no connection. */
static __always_inline int is_newer(const struct ls_record *rec, const struct segment *seg)
{
	return after(seg->seq, rec->rx_end) ||
	       (seg->ts_at && after(seg->tsval + rec->tsval_off, rec->ts_high));
}

/* Takes the flow out of the table for a new connection: user space collects the rest of the flow. The stack
 * gets the SYN. */
static __always_inline int give_way(struct __sk_buff *skb, struct flow_ref *flow, __u32 mode)
{
	struct ls_slot *slot = flow->slot;

	barrier_var(slot); /* Without the barrier the compiler tests `placement` instead, and the verifier
			      does not follow. */
	/* User space may be moving the flow at this moment. */
	if (slot && __sync_val_compare_and_swap(&slot->mode, mode, LS_REPLACED) != mode)
		return look_again(skb);
	*(volatile __u8 *)&flow->element->from[LS_CLIENT].rec.placement = LS_NONE;
	*(volatile __u8 *)&flow->element->from[LS_SERVER].rec.placement = LS_NONE;
	withhold_from_client(skb);
	return pass(LS_V_SYN_REPLACED);
}

/* Returns whether the sockets have the numbers of the wire and received all that passed. */
static __always_inline int is_plain_relay(const struct ls_leg *from, const struct ls_leg *to, __u32 mode)
{
	return mode == LS_TRACK && !(from->adj_seq | from->adj_ack | to->adj_seq | to->adj_ack);
}

/*
 * Answers a SYN on a flow whose sockets are in the path. The sender's own socket answers while the sender can
 * still be there. Afterwards the listener answers: a new connection's numbers must not be mistaken for those
 * of the old one, nor come to leg B. If the old flow has nothing left to do, it gives way; otherwise the SYN
 * is dropped, and the sender retransmits it.
 */
static __always_inline int syn_with_sockets(struct __sk_buff *skb, struct flow_ref *flow,
					    struct scratch *scratch, const struct segment *seg, __u32 mode)
{
	struct ls_leg *from = &flow->slot->leg[flow->side & 1], *to = &flow->slot->leg[!(flow->side & 1)];

	if (seg->flags & TCP_ACK || !is_through(from, to))
		return deliver(skb, scratch, seg, mapping_of_leg(from));
	if (!is_newer(&from->rec, seg) ||
	    !(is_plain_relay(from, to, mode) || (mode == LS_DRAIN && is_through(to, from))))
		return drop(LS_V_DROP_SYN);
	return give_way(skb, flow, mode);
}

/*
 * Answers a SYN on a spliced tuple. If both ends have closed, the connection is a new one: the record goes,
 * and the listener gets the SYN (RFC 9293 section 3.6.1, from TIME-WAIT). Otherwise the SYN goes to the far
 * end, which challenges it (RFC 5961 section 4). Returns whether the SYN is answered, with the action; 0: it
 * is forwarded like any segment.
 */
static __always_inline int syn_of_spliced(struct __sk_buff *skb, struct flow_ref *flow,
					  const struct segment *seg, __u32 mode, int *action)
{
	struct flow_ref back;

	if (seg->flags & TCP_ACK || !locate(flow->element, !(flow->side & 1), &back))
		return 0;
	if (!((flow->rec->seen | back.rec->seen) & LS_SEEN_RST) &&
	    !(is_done(flow->rec, back.rec) && is_done(back.rec, flow->rec)))
		return 0;
	if (!is_newer(flow->rec, seg))
		return 0;
	/* One direction has left its slot, and the other one is about to. */
	if (!flow->slot && back.slot)
		*action = look_again(skb);
	else
		*action = give_way(skb, flow, mode);
	return 1;
}

#endif
