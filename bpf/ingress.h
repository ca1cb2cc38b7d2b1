/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Processes the packets of the peers at tc: from a direction of the table to the step of the flow's mode. */
#ifndef LONGSPLICE_INGRESS_H
#define LONGSPLICE_INGRESS_H

#include "corrupted.h"
#include "disorder.h"
#include "drain.h"
#include "lists.h"
#include "syn.h"
#include "undrain.h"

/* Promises the far end no window that its parked socket could not take. */
static __always_inline void keep_window(const struct flow_ref *flow, struct headers *new,
					const struct segment *seg)
{
	struct ls_leg *to = &flow->slot->leg[!(flow->side & 1)];
	struct ls_record *rec = flow->rec;
	__u32 ack = seg->ack + rec->ack_off, edge = ack + (seg->window << scale_in(rec));

	if (!(flow->slot->flags & LS_KEEP) || !(seg->flags & TCP_ACK))
		return;
	/* Do not count from the cut: a dormant flow outlives its daemon, and the cut may be far behind. */
	edge = kept_edge(flow->slot, to, to->rec.rx_end, edge);
	seq_advance(&to->tx_edge, edge);
	new->tcp.window = bpf_htons(window_field(edge, ack, scale_out(rec)));
}

/* Forwards a segment in FINAL, by the constant translation. */
static __always_inline int forward(struct __sk_buff *skb, struct flow_ref *flow, struct scratch *scratch,
				   struct segment *seg)
{
	struct headers *h = &scratch->in, *new = &scratch->out;
	struct ls_record *rec = flow->rec;
	struct route route = {};
	struct edits edits;
	enum admission admission;
	enum ls_verdict reason;
	int as_it_came;

	if (is_at_its_end(h, far_of(flow)))
		return drop(LS_V_DROP_TTL);
	/* Verify a segment that is copied: the copy may come into a socket's send queue. */
	if (!is_plain_sound(h) ||
	    ((tells_more(rec, seg) || (flow->slot && flow->slot->flags & LS_COPY)) && is_corrupted(skb)))
		return drop(LS_V_DROP_CHECKSUM);
	if (!flow->slot)
		note_disorder(flow, seg);
	admission = admit(flow, seg, &reason);
	if (admission == REFUSED)
		return drop(reason);
	if (admission == REQUEUED)
		return look_again(skb);
	note_fin_or_rst(flow, seg);
	note_translated(rec, seg);
	/* Copy validated segments only: the copies end up in a socket's send queue. */
	if (flow->slot && flow->slot->flags & LS_COPY && seg->len && seg->in_place)
		hand_over(skb, flow, seg, LS_E_COPY);
	as_it_came = leaves_as_it_came(flow, h, seg);
	if (as_it_came) {
		new = h;
	} else {
		copy_headers(new, h, seg->opt_len);
		renew_hops(new, far_of(flow));
		translate(new, seg, rec, far_of(flow), &edits);
		if (flow->slot)
			keep_window(flow, new, seg);
		apply_edits(new, seg, &edits);
	}
	if (find_route_fast(skb, new, rec, flow->slot ? 0 : rec->where, &route))
		return no_route(skb, rec, h, seg, &route);
	if (as_it_came	   ? write_hop(skb, h)
	    : crosses(rec) ? write_across_fast(skb, h, new, seg->opt_len)
			   : write_headers_fast(skb, h, new, seg->opt_len, 1))
		return drop(LS_V_DROP_REWRITE);
	count(LS_V_FORWARDED);
	return send_by(skb, new, &route);
}

/* Sends a copy from the drain, which comes by once more because only a packet itself can wait for a
 * neighbor. It goes to the peer of a flow. Another packet with this tag comes from another namespace of the
 * host, whose root can write it, and passes untouched. */
__noinline int send_translated(struct __sk_buff *skb)
{
	struct scratch *scratch = get_scratch();
	struct headers *h = &scratch->in;
	struct route route = {};

	if (!scratch || parse_tuple(skb, h, &scratch->tuple, REVERSED) != SEGMENT)
		return drop(LS_V_DROP_MALFORMED);
	/* A program of another process has sent it, which comes after this one. */
	if (!table_lookup(&scratch->tuple))
		return NEXT;
	if (load_headers(skb, h) < 0)
		return drop(LS_V_DROP_MALFORMED);
	if (look_up_route(skb, h, 1, 0, &route))
		return drop(route.reason);
	if (L3_OFFSET && !route.resolve && bpf_skb_store_bytes(skb, 0, eth_of(h), 2 * ETH_ALEN, 0))
		return drop(LS_V_DROP_REWRITE);
	return send_by(skb, h, &route);
}

/* Returns whether user space waits for this segment of the sender, which had acknowledged `acked` before:
 * while windows are coupled, for any acknowledgement; in a drain, for that of the last byte below the cut. */
static __always_inline int is_awaited(const struct ls_leg *from, const struct ls_leg *to,
				      const struct segment *seg, __u32 mode, __u32 acked)
{
	__u32 cut = to->cut + to->rec.seq_off;

	if (mode == LS_TRACK)
		return seg->in_place && seg->flags & TCP_ACK;
	return mode == LS_DRAIN && before(acked, cut) && !before(from->rec.rx_ack, cut);
}

/* Processes a segment of a flow whose sockets are in the path, in the direction with this number. The
 * verifier follows this function by itself: once, not for each path that leads here. */
__noinline int with_sockets(struct __sk_buff *skb, __u32 number)
{
	struct scratch *scratch = get_scratch();
	int heard, resets, takes, stands, old, trapped;
	struct ls_leg *from, *to;
	struct segment *seg;
	struct flow_ref ref, *flow = &ref;
	__u32 first, mode, acked;

	if (!scratch || !find_by_number(number, flow))
		return NEXT;
	if (!flow->slot)
		return look_again(skb);
	seg = &scratch->segment;
	first = mode = stable_mode(flow->slot);
	trapped = forget(scratch, meets_trap(flow->rec, seg));
	from = &flow->slot->leg[flow->side & 1];
	to = &flow->slot->leg[!(flow->side & 1)];
	/* True if the far end knows that all of its stream that went past the socket is acknowledged. */
	heard = forget(scratch, has_delivered(to, from) || !before(to->tx_ack, to->base));
	resets = seg->flags & TCP_RST;
	takes = forget(scratch, seg->end != seg->seq && !resets);
	if (mode != LS_TRACK && mode != LS_DRAIN && mode != LS_UNDRAIN)
		return look_again(skb);
	/* Note, show and cut nothing of a corrupted segment: its bytes would be acknowledged in place of the
	 * true ones. */
	if (is_corrupted(skb))
		return drop(LS_V_DROP_CHECKSUM);
	/* This reset answers a late duplicate, and must not end the connection while the far end still waits
	 * for data. */
	if (resets && mode != LS_TRACK && is_through(from, to))
		return drop(LS_V_CONSUMED);
	/* The payload may fit when the socket processes it, and would be taken without being counted. The
	 * socket processes what the rest says. */
	if (!fits_window(from, seg) && seg->end != seg->seq) {
		if (make_bare(skb, scratch, seg))
			return drop(LS_V_DROP_REWRITE);
		takes = trapped = 0;
	}
	if (!fits_window(from, seg) || acks_unsent(from, to, seg))
		return deliver(skb, scratch, seg, mapping_of_leg(from));
	if (acks_too_little(&from->rec, &to->rec, seg))
		return mode == LS_TRACK ? deliver(skb, scratch, seg, mapping_of_leg(from))
					: drop(LS_V_CONSUMED);
	/* A reset changes nothing else: its other numbers are not validated. */
	seg->in_place = !resets && !before(seg->end, from->tx_ack);
	acked = from->rec.rx_ack;
	note_peer(from, seg);
	/* An end that only answers says nothing else that is new, if it has no timestamps. */
	if (mode != LS_TRACK && seg->in_place)
		from->rec.last_seen = ticks();
	if (flow->slot->flags & LS_WATCH && is_awaited(from, to, seg, mode, acked))
		report_news(flow->slot);
	if (mode == LS_DRAIN && trapped)
		return drain_trapped(skb, flow, scratch, seg);
	/* Decide once: another CPU may raise the cut meanwhile. */
	old = forget(scratch,
		     (takes && mode != LS_DRAIN) || ((takes || resets) && before(seg->seq, from->cut)));
	/* The socket is shown this number, and will ignore the window of any lower one (RFC 9293 section
	 * 3.10.7.4, SND.WL1). */
	stands = forget(scratch, seg->end == seg->seq && !resets && seg->in_place && mode != LS_DRAIN);
	/* Raise the cut first, then read the mode: see seq_advance(). */
	if ((takes && old) || stands)
		seq_advance(&from->cut, seg->end);
	mode = mode_of(flow->slot);
	/* A wake that did not see our cut has stored its own, and may be over: the socket's next bytes are
	 * above it. */
	if ((mode == LS_UNDRAIN || mode == LS_TRACK) && first != mode)
		return look_again(skb);
	/* Note the end where the segment goes to the socket; elsewhere it would count as forwarded. */
	if (takes && (mode == LS_TRACK || mode == LS_UNDRAIN || (mode == LS_DRAIN && old && !trapped)))
		seq_advance(&from->rec.rx_end, seg->seq + seg->len);
	if (mode == LS_TRACK) {
		/* Note this no earlier: the socket does not receive a segment that a drain takes over
		 * meanwhile. */
		note_heard(from, seg, seg->ack);
		note_fin_or_rst(flow, seg);
		return deliver_in_window(skb, scratch, seg, from);
	}
	if (mode == LS_DRAIN)
		return trapped ? drain_trapped(skb, flow, scratch, seg) : drain(skb, flow, scratch, seg, old);
	if (mode == LS_UNDRAIN)
		return undrain(skb, flow, scratch, seg, heard);
	return mode == LS_ABORTED ? NEXT : look_again(skb);
}

/* Forwards only the acknowledgement of a segment, to the far end (TAG_ACK). */
__noinline int acknowledge(struct __sk_buff *skb, __u32 number)
{
	struct scratch *scratch = get_scratch();
	struct flow_ref flow;

	skb->tc_index = 0;
	if (!scratch || !find_by_number(number, &flow))
		return NEXT;
	if (!flow.slot || mode_of(flow.slot) != LS_UNDRAIN)
		return drop(LS_V_CONSUMED);
	/* Believe the copy: it was made because its segment tells() something. A reset tells nothing. */
	scratch->segment.in_place = !(scratch->segment.flags & TCP_RST);
	return undrain_ack_copy(skb, &flow, scratch, &scratch->segment);
}

/* Handles a packet that is not a whole segment with known headers: it goes up to the socket while there is
 * one with the numbers of the wire. */
static __always_inline int odd_packet(const struct flow_ref *flow, enum parsed kind, __u32 mode)
{
	int spliced = mode == LS_FINAL || mode == LS_FREEZE;
	__u32 mapped = flow->placement == LS_ALONE;

	if (flow->slot)
		mapped = flow->slot->leg[flow->side & 1].adj_seq | flow->slot->leg[flow->side & 1].adj_ack;
	if (!spliced && !mapped && mode != LS_DRAIN && mode != LS_UNDRAIN)
		return pass(LS_V_DELIVERED);
	return kind == FRAGMENT	       ? drop(LS_V_DROP_FRAGMENT)
	       : kind == SOURCE_ROUTED ? drop(LS_V_DROP_IP_OPTIONS)
				       : drop(LS_V_DROP_MALFORMED);
}

/* Lets in a packet that user space injects, whatever its Ethernet header says. Returns 1 if it must go
 * through the loopback first: a local peer's packets must bring a route along. */
static __always_inline int let_in(struct __sk_buff *skb)
{
	skb->tc_index = TAG_LET_IN;
	if (skb->ifindex == LOOPBACK)
		return 1;
	bpf_skb_change_type(skb, PACKET_HOST);
	return 0;
}

/* Returns whether a segment that meets a trap can be the sender's own: a blind segment wakes no pair, and is
 * not kept either. */
static __always_inline int is_plausible(const struct flow_ref *flow, struct segment *seg, __u32 mode)
{
	struct ls_leg *from, *to;

	/* Keep no reset, and do not check it here: its check may move it. */
	if (seg->flags & TCP_RST)
		return 0;
	if (!flow->slot || mode == LS_FINAL || mode == LS_FREEZE)
		return !admit_segment(flow, seg) && seg->in_place;
	from = &flow->slot->leg[flow->side & 1];
	to = &flow->slot->leg[!(flow->side & 1)];
	return fits_window(from, seg) && !acks_unsent(from, to, seg) &&
	       !acks_too_little(&from->rec, &to->rec, seg);
}

/* Step that is left to do with a packet of a flow. */
enum step {
	DONE,		/* none: the packet has its action (TC_ACT_*) */
	TO_FAR_END,	/* forward() */
	TO_SOCKETS,	/* with_sockets() */
	TO_ACKNOWLEDGE, /* acknowledge() */
};

/* Processes a segment that meets a trap, or is new in FREEZE: the sockets come back, or user space keeps the
 * segment until they do. The verifier follows this function by itself, as with_sockets(). */
__noinline enum step stop(struct __sk_buff *skb, __u32 number, __u32 mode, int *action)
{
	struct scratch *scratch = get_scratch();
	struct segment *seg;
	int plausible;
	struct flow_ref flow;

	if (!action)
		return DONE;
	*action = NEXT;
	if (!scratch || !find_by_number(number, &flow))
		return DONE;
	seg = &scratch->segment;
	/* A held segment gets a new checksum, which would hide the corruption. */
	if (is_corrupted(skb)) {
		*action = drop(LS_V_DROP_CHECKSUM);
		return DONE;
	}
	plausible = forget(scratch, is_plausible(&flow, seg, mode));
	/* Drop it here: the sockets would take what the rule drops. Do not leave it to forward(), which knows
	 * of no trap, if the rule goes meanwhile. */
	if (plausible && (!flow.slot || mode == LS_FINAL || mode == LS_FREEZE) && is_ruled(flow.rec) &&
	    judge(flow.rec, seg, bytes_of(seg), 0)) {
		*action = drop(LS_V_DROP_RULE);
		return DONE;
	}
	if (plausible && flow.slot && (mode == LS_FINAL || mode == LS_DRAIN)) {
		mode = wake_slot(skb, flow.slot, mode, 1);
		if (mode == LS_UNDRAIN)
			count(LS_V_WOKEN);
	}
	if (flow.slot && mode != LS_FINAL && mode != LS_FREEZE)
		return TO_SOCKETS;
	if (plausible) {
		*action = hold(skb, &flow, seg);
		return DONE;
	}
	if (!after(seg->end, flow.rec->rx_end) && !(mode == LS_FREEZE && is_new(&flow, seg)))
		return TO_FAR_END;
	*action = drop(admit_segment(&flow, seg) ?: LS_V_DROP_WINDOW);
	return DONE;
}

/* Forwards a segment of a spliced flow, unless it meets a trap. Returns the step that is left, or DONE with
 * the action. */
static __always_inline enum step forward_untrapped(struct __sk_buff *skb, __u32 number, struct flow_ref *flow,
						   struct scratch *scratch, __u32 mode, int *action)
{
	struct segment *seg = &scratch->segment;
	enum step step = TO_FAR_END;

	if (meets_trap(flow->rec, seg) || (mode == LS_FREEZE && is_new(flow, seg)))
		step = stop(skb, number, mode, action);
	else if (flow->slot && mode != LS_FINAL && mode != LS_FREEZE)
		step = TO_SOCKETS;
	if (step != TO_FAR_END)
		return step;
	*action = forward(skb, flow, scratch, seg);
	return DONE;
}

/*
 * Processes a packet with ports of the direction with this number, up to the mode that decides. `kind` is
 * SEGMENT, or what parse_tuple() found instead. The first fragment of a segment is translated as one, if the
 * others may follow it. Returns the step that is left, or DONE with the action. The verifier follows this
 * function by itself, as with_sockets().
 */
__noinline enum step by_mode(struct __sk_buff *skb, __u32 number, enum parsed kind, int *action)
{
	struct scratch *scratch = get_scratch();
	struct flow_ref ref, *flow = &ref;
	__u32 mode, tag = skb->tc_index;
	struct segment *seg;
	int is_first;

	if (!action)
		return DONE;
	*action = NEXT;
	if (!scratch || !find_by_number(number, flow))
		return DONE;
	seg = &scratch->segment;
	mode = mode_of_flow(flow);
	is_first = kind == FRAGMENT && mode == LS_FINAL;
	if (is_over(mode))
		return DONE;
	if (is_changing(mode)) {
		*action = look_again(skb);
		return DONE;
	}
	if (skb->gso_size && join_list(skb)) {
		*action = drop(LS_V_DROP_REWRITE);
		return DONE;
	}
	if (kind == SEGMENT || is_first)
		kind = parse_segment(skb, &scratch->in, seg);
	if (is_first && (kind != SEGMENT || begin_fragments(skb)))
		*action = drop(LS_V_DROP_FRAGMENT);
	else if (kind != SEGMENT)
		*action = odd_packet(flow, kind, mode);
	else if (tag == TAG_ACK)
		return TO_ACKNOWLEDGE;
	else if (flow->placement == LS_ALONE)
		*action = deliver(skb, scratch, seg, mapping_of_record(flow->rec));
	else if (seg->flags & TCP_SYN && flow->slot && mode != LS_FINAL)
		*action = syn_with_sockets(skb, flow, scratch, seg, mode);
	else if (seg->flags & TCP_SYN && syn_of_spliced(skb, flow, seg, mode, action))
		return DONE;
	else
		return forward_untrapped(skb, number, flow, scratch, mode, action);
	return DONE;
}

#endif
