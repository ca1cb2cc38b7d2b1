/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Processes packets in DRAIN (papers' section III-C): new payload is forwarded, old payload is delivered,
 * acknowledgements go to the sender that waits for them.
 */
#ifndef LONGSPLICE_DRAIN_H
#define LONGSPLICE_DRAIN_H

#include "admit.h"
#include "hold.h"
#include "local.h"
#include "too_big.h"
#include "wake.h"

/* Makes the far end's copy: of segments with payload, and of acknowledgements with news for it. Returns 0; -1
 * if it has no route. */
static __always_inline int drain_far_copy(struct __sk_buff *skb, const struct flow_ref *flow,
					  struct ls_leg *from, struct ls_leg *to, struct headers *new,
					  const struct segment *seg, struct route *route)
{
	__u32 ack = seg->ack + from->rec.ack_off, edge;
	int told = tells(from, to, seg), raised = !told || before(ack, to->tx_ack);
	struct edits edits;

	edge = kept_edge_in_drain(flow->slot, to, ack + (seg->window << scale_in(&from->rec)));
	renew_hops(new, far_of(flow));
	translate(new, seg, &from->rec, far_of(flow), &edits);
	if (!(seg->flags & TCP_ACK)) {
		apply_edits(new, seg, &edits);
		return find_route(skb, new, &from->rec, 0, route);
	}
	/* The local socket may have acknowledged more already: an acknowledgement never decreases. */
	if (raised)
		ack = to->tx_ack;
	else
		seq_advance(&to->tx_ack, ack);
	/* Missing bytes below the cut are on their way through the sockets: the far end must not consider
	 * them lost. */
	if (raised || before(ack, to->cut))
		edits.sack = SACK_BLANK;
	if (told)
		seq_advance(&to->tx_edge, edge);
	new->tcp.ack = bpf_htonl(ack);
	new->tcp.window = bpf_htons(window_field(edge, ack, scale_out(&from->rec)));
	apply_edits(new, seg, &edits);
	return find_route(skb, new, &from->rec, 0, route);
}

/* Makes the local socket's copy: payload below the cut, and acknowledgements of its own bytes. `written` are
 * the headers in the packet now. */
static __always_inline int drain_local_copy(struct __sk_buff *skb, struct ls_leg *from,
					    const struct ls_leg *to, struct headers *h,
					    struct headers *written, const struct segment *seg, int old)
{
	__u32 ack = seq_min(seg->ack, from->loc_end);
	struct edits edits = {
	    .sack = ack == from->loc_end ? SACK_BLANK : SACK_CLIP, .lo = ack, .hi = from->loc_end};

	note_heard(from, seg, ack);
	h->tcp.ack = bpf_htonl(ack);
	/* Any other reset keeps its number: moved to the cut, a forged one would be in place. */
	if (!old &&
	    (!(seg->flags & TCP_RST) || ends_stream(&from->rec, to->rec.rx_ack + to->rec.ack_off, seg)))
		h->tcp.seq = bpf_htonl(seq_min(seg->seq, from->cut));
	keep_in_window(from, h, seg, !old || seg->end == seg->seq);
	if (!old && !(seg->flags & TCP_RST))
		h->tcp.flags &= ~(TCP_FIN | TCP_PSH | TCP_URG);
	if (write_for_socket(skb, written, h, seg, &edits, mapping_of_leg(from)))
		return -1;
	return !old && seg->len ? trim_payload(skb, h, seg->opt_len) : 0;
}

static __always_inline int drain_to_socket(struct __sk_buff *skb, struct ls_leg *from,
					   const struct ls_leg *to, struct scratch *scratch,
					   const struct segment *seg, int old)
{
	copy_headers(&scratch->out, &scratch->in, seg->opt_len);
	return drain_local_copy(skb, from, to, &scratch->out, &scratch->in, seg, old)
		   ? drop(LS_V_DROP_REWRITE)
		   : pass(LS_V_LOCAL_ONLY);
}

/* Returns whether the sender was sent an acknowledgement of more than its socket has received: the rest
 * bypassed the socket. The socket's own acknowledgements lag behind its data by the delayed acknowledgement
 * (RFC 9293 section 3.8.6.3). */
static __always_inline int is_overtaken(struct __sk_buff *skb, const struct ls_leg *from)
{
	__u32 next = 0;

	return before(from->loc_ack, from->tx_ack) &&
	       (read_next(skb, from, &next) || before(next, from->tx_ack));
}

/* Processes a segment in DRAIN. `old`: the segment began below the cut when the cut was raised over it. */
static __always_inline int drain(struct __sk_buff *skb, struct flow_ref *flow, struct scratch *scratch,
				 const struct segment *seg, int old)
{
	struct ls_leg *from = &flow->slot->leg[flow->side & 1], *to = &flow->slot->leg[!(flow->side & 1)];
	int has_data = seg->len || seg->flags & (TCP_FIN | TCP_RST), wanted, waits;
	__u32 ack = seg->ack + from->rec.ack_off;
	struct headers *h = &scratch->in, *new = &scratch->out;
	struct route route = {};

	waits = before(from->loc_acked, to->cut + to->rec.seq_off);
	/* Forward every probe of an end that waits for a window: it must be answered. An end that is gone
	 * would answer with a reset. */
	wanted = has_data || (!is_through(to, from) &&
			      (!before(ack, to->tx_ack) || before(seg->seq, end_of(&from->rec)) ||
			       after(ack + (seg->window << scale_in(&from->rec)), to->tx_edge)));
	/* Old payload of a pair that is to come back goes to its socket only. If the far end had it sooner,
	 * its acknowledgement would keep the sender from retransmitting the bytes that the local socket
	 * missed. */
	if (old && !(seg->flags & TCP_RST) && flow->slot->flags & LS_KEEP && !is_overtaken(skb, from)) {
		note_fin_or_rst(flow, seg);
		return drain_to_socket(skb, from, to, scratch, seg, old);
	}
	if (!wanted)
		return waits ? drain_to_socket(skb, from, to, scratch, seg, old) : drop(LS_V_CONSUMED);
	if (is_at_its_end(h, far_of(flow)))
		return drop(LS_V_DROP_TTL);
	/* Charge new payload only: bytes that a socket waits for as well are not new. */
	if (!old && over_rate(&from->rec, seg))
		return drop(LS_V_DROP_RATE);
	/* Note the segment first, then read the mode: see may_still_pass(). */
	if (seg->end != seg->seq && !(from->bypassed & LS_BYPASSED_DRAIN))
		__sync_fetch_and_or(&from->bypassed, LS_BYPASSED_DRAIN);
	if (!old)
		note_end_of(&from->rec, seg);
	if (!may_still_pass(flow, seg))
		return look_again(skb);
	note_fin_or_rst(flow, seg);
	if (!old)
		note_translated(&from->rec, seg);
	copy_headers(new, h, seg->opt_len);
	if (drain_far_copy(skb, flow, from, to, new, seg, &route))
		return no_route(skb, &from->rec, h, seg, &route);
	if (write_headers(skb, h, new, seg->opt_len))
		return drop(LS_V_DROP_REWRITE);
	if (!old && !waits && !(seg->flags & TCP_RST)) {
		count(LS_V_FORWARDED);
		return send_by(skb, new, &route);
	}
	if (read_check(skb, new))
		return drop(LS_V_DROP_REWRITE);
	send_copy_by(skb, &route);
	return drain_local_copy(skb, from, to, h, new, seg, old) ? drop(LS_V_DROP_REWRITE)
								 : pass(LS_V_DUPLICATED);
}

/*
 * Processes payload that met a trap while the sockets cannot continue yet. If none of the stream bypassed the
 * local socket, that socket gets the payload at once: the cut moves on.
 */
static __always_inline int drain_trapped(struct __sk_buff *skb, struct flow_ref *flow,
					 struct scratch *scratch, const struct segment *seg)
{
	struct ls_leg *from = &flow->slot->leg[flow->side & 1], *to = &flow->slot->leg[!(flow->side & 1)];

	/* The socket still waits for the payload below the cut. */
	if ((went_past(from) || from->bypassed & LS_BYPASSED_DRAIN) && after(seg->end, from->cut))
		return hold(skb, flow, seg);
	seq_advance(&from->cut, seg->end);
	/* A socket that was parked meanwhile gets nothing more. */
	if (mode_of(flow->slot) != LS_DRAIN)
		return look_again(skb);
	seq_advance(&from->rec.rx_end, seg->seq + seg->len);
	note_fin_or_rst(flow, seg);
	return drain_to_socket(skb, from, to, scratch, seg, 1);
}

#endif
