/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Processes the segments of the local sockets, while the flow has sockets in the path. `from` is the leg of
 * the peer that such a segment goes to: it answers the direction from that peer to the far end, `to`.
 */
#ifndef LONGSPLICE_EGRESS_H
#define LONGSPLICE_EGRESS_H

#include "local.h"
#include "route.h"
#include "undrain.h"

/* Answers a local SYN to a live tuple with a reset: the connecting program learns of it at once, and the live
 * flow does not notice. */
static __always_inline int refuse_syn(struct __sk_buff *skb, struct scratch *scratch,
				      const struct segment *seg)
{
	struct headers *h = &scratch->in, *new = &scratch->out;

	copy_headers(new, h, seg->opt_len);
	answer_to(new, h);
	new->tcp.sport = h->tcp.dport;
	new->tcp.dport = h->tcp.sport;
	new->tcp.seq = 0;
	new->tcp.ack = bpf_htonl(seg->end);
	new->tcp.flags = TCP_RST | TCP_ACK;
	new->tcp.window = 0;
	if (write_headers(skb, h, new, seg->opt_len))
		return drop(LS_V_DROP_REWRITE);
	count(LS_V_SYN_REFUSED);
	skb->tc_index = TAG_DELIVER;
	return come_in(skb);
}

/* Returns whether the local socket of the peer's leg has closed in order: it has acknowledged the peer's end,
 * and the peer has acknowledged the end of the far end's stream. The peer may not know it yet, because it is
 * told less while the far end lacks bytes. */
static __always_inline int has_closed(const struct ls_leg *from, const struct ls_leg *to)
{
	return is_closed_by(from, to, from->loc_ack);
}

/* Returns whether the peer has the FIN that the local socket has not sent yet: the number of a segment
 * without payload stands behind it. */
static __always_inline int lacks_own_fin(const struct ls_leg *to, const struct segment *seg)
{
	return to->bypassed & LS_BYPASSED_FIN && seg->seq == first_own(to);
}

/*
 * Forwards the reset of a socket that held bytes, in a form that the peer accepts although payload was
 * forwarded past the socket. The kernel would answer the peer's next segment with a reset, too, but an idle
 * peer sends none. A reset below the data that the peer has is not even challenged, so this one stands at the
 * end of all that was sent to it, or of the window that it has taken back: if some of that is still missing
 * there, the peer challenges, and the kernel's answer to the challenge is in place.
 */
static __always_inline int abort_flow(struct __sk_buff *skb, struct flow_ref *flow, struct scratch *scratch,
				      const struct segment *seg, __u32 mode)
{
	struct ls_leg *from = &flow->slot->leg[flow->side & 1], *to = &flow->slot->leg[!(flow->side & 1)];
	struct headers *h = &scratch->in, *new = &scratch->out;
	__u32 end;

	/* This is the kernel's answer, for a socket that is gone, to a segment that came in unchanged. */
	if (mode == LS_ABORTED && !(seg->flags & TCP_ACK))
		return pass_emitted(skb, LS_V_ABORTED);
	/* The pair is awake and nothing is on its way past the sockets: the other leg goes on. */
	if (mode == LS_UNDRAIN && has_delivered(from, to) && has_delivered(to, from)) {
		if (lacks_own_fin(to, seg)) {
			new->tcp.seq = bpf_htonl(seg->seq + 1);
			seq_advance(&from->loc_end, seg->seq + 1);
		}
		return write_headers(skb, h, new, seg->opt_len) ? drop(LS_V_DROP_REWRITE)
								: pass_emitted(skb, LS_V_EMITTED);
	}
	/* The peer is through: it waits for no bytes of the socket. */
	if (mode != LS_ABORTED && is_through(from, to))
		return drop(LS_V_DROP_PARKED);
	/* The kernel answers for a socket that is gone to what the peer repeats: the far end's
	 * acknowledgement will stop the peer. */
	if (mode == LS_UNDRAIN && !(seg->flags & TCP_ACK) && has_closed(from, to))
		return drop(LS_V_DROP_PARKED);
	flow->slot->mode = LS_ABORTED;
	if (seg->flags & TCP_ACK) {
		end = after(end_of(&to->rec), to->cut) ? end_of(&to->rec) + to->rec.seq_off : from->loc_end;
		new->tcp.seq = bpf_htonl(where_heard(from, end));
	}
	return write_headers(skb, h, new, seg->opt_len) ? drop(LS_V_DROP_REWRITE)
							: pass_emitted(skb, LS_V_ABORTED);
}

/* Acknowledgement and window that a socket's segment carries toward the peer. */
struct answer {
	__u32 ack, edge;
	__u32 lowered; /* 1: the acknowledgement was lowered, because the far end does not have those bytes
			  yet */
};

static __always_inline struct answer answer_of(const struct flow_ref *flow, const struct segment *seg,
					       __u32 mode)
{
	struct ls_leg *from = &flow->slot->leg[flow->side & 1], *to = &flow->slot->leg[!(flow->side & 1)];
	struct answer a = {.ack = seg->ack, .edge = edge_of(seg, scale_out(&to->rec))};
	__u32 far = to->rec.rx_ack + to->rec.ack_off;

	if (flow->slot->flags & LS_COUPLE && after(a.edge, coupled_edge(from, to)))
		a.edge = coupled_edge(from, to);
	if (mode == LS_DRAIN) {
		a.edge = kept_edge_in_drain(flow->slot, from, to->rec.rx_edge + to->rec.ack_off);
		a.ack = seq_max(a.ack, from->tx_ack);
		/* The far end may have acknowledged forwarded bytes in segments that the peer never
		 * received. */
		if (!before(far, from->cut))
			a.ack = seq_max(a.ack, far);
	} else if (mode == LS_UNDRAIN) {
		if (!has_delivered(from, to) && before(far, a.ack)) {
			a.ack = seq_max(far, from->tx_ack);
			a.lowered = 1;
		}
		a.edge = seq_max(modest_edge(to, seg->ack, a.edge), from->tx_edge);
	}
	return a;
}

/* Processes a segment of the local socket of the peer's leg. `seg` and `edits` are in the numbers of the wire
 * already. */
static __always_inline int emit(struct __sk_buff *skb, struct flow_ref *flow, struct scratch *scratch,
				const struct segment *seg, struct edits *edits, __u32 mode)
{
	struct ls_leg *from = &flow->slot->leg[flow->side & 1], *to = &flow->slot->leg[!(flow->side & 1)];
	struct headers *h = &scratch->in, *new = &scratch->out;
	__u32 scale = scale_out(&to->rec);
	__u32 edge = edge_of(seg, scale);
	__u32 window = seg->window;
	struct answer a;
	int bare;

	/* Drop a retransmission from before the socket's own stream: its peer has acknowledged those bytes,
	 * but the socket has not received that. The next acknowledgement repeats it. */
	if (mode == LS_UNDRAIN && to->bypassed & LS_BYPASSED && seg->end != seg->seq &&
	    before(seg->seq, first_own(to)))
		return drop(LS_V_DROP_PARKED);
	seq_advance(&from->loc_end, seg->end);
	if (seg->ts_at)
		edits->tsval_off = tsval_advance(&to->rec.ts_high, seg->tsval) - seg->tsval;
	if (seg->flags & TCP_ACK) {
		/* The socket acknowledges bytes that came to it between the program and the registration of
		 * the flow: the sockets deliver them. A socket parked at this moment must not acknowledge
		 * them, because user space would not pass them on. */
		if (mode != LS_UNDRAIN && after(seg->ack, from->cut)) {
			seq_advance(&from->cut, seg->ack);
			if (mode_of(flow->slot) != mode)
				return drop(LS_V_DROP_PARKED);
		}
		seq_advance(&from->loc_ack, seg->ack);
		seq_advance(&from->loc_edge, edge);
		if (!before(seg->ack, from->loc_ack))
			from->loc_shrunk = from->loc_edge - edge;
		a = answer_of(flow, seg, mode);
		if (a.ack != seg->ack || a.edge != edge)
			window = window_field(a.edge, a.ack, scale);
		/* A peer without SACK would take the third repetition for a loss. */
		if (a.lowered && !(from->rec.traits & LS_SACK) && seg->end == seg->seq &&
		    !after(a.ack, from->tx_ack) && !after(a.edge, from->tx_edge))
			return drop(LS_V_CONSUMED);
		seq_advance(&from->tx_ack, a.ack);
		a.edge = a.ack + (window << scale);
		if (mode == LS_TRACK)
			from->tx_edge = a.edge;
		else
			seq_advance(&from->tx_edge, a.edge);
		/* A probe has a number below the sent data on purpose: the peer answers because the number is
		 * old. */
		bare = seg->end == seg->seq && seg->seq == from->loc_end && !(seg->flags & TCP_RST);
		/* The peer ignores a number below the payload that was forwarded meanwhile. */
		if (bare && mode == LS_DRAIN)
			new->tcp.seq = bpf_htonl(seq_max(seg->seq, end_of(&to->rec) + to->rec.seq_off));
		if (bare && mode == LS_UNDRAIN && lacks_own_fin(to, seg))
			new->tcp.seq = bpf_htonl(seg->seq + 1);
		/* The peer ignores a number beyond a window that it has taken back. The socket may not know
		 * of that, because the kernel lets no window shrink except to 0. */
		if (bare)
			new->tcp.seq = bpf_htonl(where_heard(from, bpf_ntohl(new->tcp.seq)));
		new->tcp.ack = bpf_htonl(a.ack);
		new->tcp.window = bpf_htons(window);
		if (a.ack != seg->ack)
			edits->sack = SACK_BLANK;
	}
	if (new->tcp.seq == h->tcp.seq &&new->tcp.ack == h->tcp.ack && window == seg->window &&
	    !edits->tsval_off && !(from->adj_seq | from->adj_ack))
		return pass_emitted(skb, LS_V_EMITTED);
	apply_edits(new, seg, edits);
	return write_headers(skb, h, new, seg->opt_len) ? drop(LS_V_DROP_REWRITE)
							: pass_emitted(skb, LS_V_CLAMPED);
}

/* Notes a parked socket's segment, which is dropped: the window that it offers stays promised. A socket that
 * resets is gone, with its process: a trap must not wake it. */
static __always_inline void note_parked(struct ls_slot *slot, struct ls_leg *from, const struct ls_leg *to,
					const struct segment *seg)
{
	if (seg->flags & TCP_RST)
		__sync_fetch_and_and(&slot->flags, ~LS_WAKEABLE);
	else if (seg->flags & TCP_ACK && mode_of(slot) == LS_FINAL)
		seq_advance(&from->loc_edge, edge_of(seg, scale_out(&to->rec)) - from->adj_seq);
}

#endif
