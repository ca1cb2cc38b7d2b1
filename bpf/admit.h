/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Decides whether a segment of a spliced flow may pass: it can be its sender's own, and keeps to its limits.
 * The rules are those of RFC 9293 section 3.10.7.4 and RFC 5961, seen from the middle.
 */
#ifndef LONGSPLICE_ADMIT_H
#define LONGSPLICE_ADMIT_H

#include "limit.h"
#include "track.h"

/* Returns whether a segment of the sender goes beyond a trap. A FIN alone passes, unless payload before it
 * did not. */
static __always_inline int meets_trap(const struct ls_record *rec, const struct segment *seg)
{
	return is_armed(rec) && (seg->len || seg->flags & TCP_FIN) && !(seg->flags & TCP_RST) &&
	       !before(seg->seq + seg->len, rec->trap);
}

/* Returns whether a segment of the sender acknowledges bytes that neither the local socket nor, past it, the
 * far end has sent to the sender. */
static __always_inline int acks_unsent(const struct ls_leg *from, const struct ls_leg *to,
				       const struct segment *seg)
{
	/* This includes a FIN of the far end that was forwarded and that the local socket has not
	 * repeated. */
	__u32 sent = seq_max(end_of(&to->rec), to->cut) + to->rec.seq_off;

	return seg->flags & TCP_ACK && after(seg->ack, seq_max(from->loc_end, sent));
}

/* Returns whether the local socket could take the segment: no other segment may move the cut. */
static __always_inline int fits_window(const struct ls_leg *from, const struct segment *seg)
{
	return !after(seg->end, seq_max(from->loc_edge, from->tx_edge) + 1);
}

/* Largest window (RFC 7323 section 2.3). */
#define LARGEST_WINDOW (1U << 30)

/* Smallest window by which an acknowledgement may lie behind the highest one: segments overtake each
 * other. */
#define LEAST_LATE 65535

static __always_inline int is_long_known(const struct ls_record *rec, __u32 acked)
{
	__u32 ack = rec->rx_ack;

	return before(acked, seq_min(ack - LEAST_LATE, ack - (rec->rx_edge - ack)));
}

/* Returns whether the sender echoes a TSval from the last `span` values that it was sent. */
static __always_inline int echoes(const struct ls_record *back, const struct segment *seg, __u32 span)
{
	return seg->ts_at && !after(seg->tsecr, back->ts_high) && !before(seg->tsecr, back->ts_high - span);
}

/* Distance by which an echo may lie behind the highest TSval that its sender was sent: 4 hours of a clock of
 * milliseconds, and one in 256 of all echoes that can be guessed. */
#define ECHO_SPAN (1 << 24)

/* Returns whether the sender can have sent this TSecr: once agreed, each segment has the option (RFC 7323
 * section 3.2). */
static __always_inline int is_echo(const struct ls_record *rec, const struct ls_record *back,
				   const struct segment *seg)
{
	return !(rec->traits & LS_TIMESTAMPS) || echoes(back, seg, ECHO_SPAN);
}

/* Distance by which the echo of a late segment may lie behind: a second of microseconds, 17 minutes of
 * milliseconds. */
#define LATE_SPAN (1 << 20)

/* Returns whether the payload of a flow that is forwarded as it comes does not continue what passed before: a
 * segment is missing, or comes once more. */
static __always_inline int is_out_of_order(const struct ls_record *rec, const struct segment *seg)
{
	return rec->traits & LS_IDENTITY && seg->len && seg->seq != rec->rx_end;
}

/* Returns whether a segment would change the state of the sender's stream by more than the next bytes in
 * order, which are retransmitted if they were corrupted. (Corruption may change the length of unusual
 * options. TSval grows with each segment; a corrupted one jumps ahead by more than LATE_SPAN.) */
static __always_inline int moves_stream(const struct ls_record *rec, const struct segment *seg)
{
	return (seg->seq != rec->rx_end && after(seg->end, rec->rx_end)) ||
	       seg->flags & (TCP_FIN | TCP_SYN | TCP_RST) ||
	       (seg->opt_len && seg->opt_len != TS_LAYOUT_LEN) ||
	       (seg->ts_at && after(seg->tsval + rec->tsval_off, rec->ts_high + LATE_SPAN));
}

/* Returns whether a segment of a spliced flow must be verified before it is noted: it changes more of the
 * stream than the next bytes do, or it acknowledges or offers something. */
static __always_inline int tells_more(const struct ls_record *rec, const struct segment *seg)
{
	return moves_stream(rec, seg) || seg->ack != rec->rx_ack ||
	       after(edge_of(seg, scale_in(rec)), rec->rx_edge);
}

/*
 * Returns whether an old acknowledgement is delayed rather than forged: recent TSecr, within the largest
 * window. RFC 5961 section 5.2 would accept acknowledgements as far back as the largest window that the
 * sender ever offered, which is not stored. A guess of a fresh echo and of an acknowledgement in the largest
 * window that the sender could offer succeeds less often, up to a scale of 11, than a guess of an
 * acknowledgement in LEAST_LATE.
 */
static __always_inline int is_late(const struct ls_record *rec, const struct ls_record *back,
				   const struct segment *seg)
{
	return rec->traits & LS_TIMESTAMPS && echoes(back, seg, LATE_SPAN) &&
	       !before(seg->ack, rec->rx_ack - (65535 << scale_in(rec)));
}

/*
 * Returns whether the sender acknowledges so little that no TCP accepts the segment: nothing at all (RFC 9293
 * section 3.10.7.4), or a number further back than a window. Raised on its way, the acknowledgement would
 * make the segment acceptable. A retransmission comes with a new acknowledgement, so no receiver waits for
 * this segment for ever. `back` is the direction back.
 */
static __always_inline int acks_too_little(const struct ls_record *rec, const struct ls_record *back,
					   const struct segment *seg)
{
	if (!(seg->flags & TCP_ACK))
		return !(seg->flags & (TCP_SYN | TCP_RST));
	return is_long_known(rec, seg->ack) && !is_late(rec, back, seg);
}

/* Decision on a segment of a spliced flow. The reason of a refusal, a verdict that begins with DROP, stands
 * aside. */
enum admission {
	ADMITTED,
	REFUSED,
	REQUEUED, /* the flow is about to move: its packet must be processed again */
};

/*
 * Returns whether a segment without payload has a number below `acked`, which the far end has acknowledged,
 * because the window of its sender was taken back below what it had sent: before a drain (coupled_edge()), or
 * by the far end itself. Linux numbers an acknowledgement by the edge that holds then. The far end does not
 * read what it takes for old, and if both windows were taken back, neither end would hear the other again.
 * An acknowledgement that is late says less than a later one did, and stays as it is; so do keep-alives and
 * probes, which are answered because they are old: they have the number of the last byte sent.
 */
static __always_inline int is_held_back(const struct ls_record *rec, const struct ls_record *back,
					__u32 acked, const struct segment *seg)
{
	return before(seg->seq, acked) && before(seg->seq, end_of(rec) - 1) && seg->end == seg->seq &&
	       seg->flags & TCP_ACK && !before(seg->ack, rec->rx_ack) &&
	       !before(edge_of(seg, scale_in(rec)), rec->rx_edge) && is_echo(rec, back, seg);
}

/* Returns whether a segment ends further below `acked` than a window of this scale reaches. */
static __always_inline int ends_too_early(const struct segment *seg, __u32 acked, __u32 scale)
{
	return before(seg->end, acked - 1 - (65535 << scale));
}

/* Returns whether the far end is to learn what a segment acknowledges and offers, while the sockets are in
 * the path: it is in place, or is_held_back() from there by no more than a window. A guess of any old number
 * tells nothing. */
static __always_inline int tells(const struct ls_leg *from, const struct ls_leg *to,
				 const struct segment *seg)
{
	return seg->in_place || (is_held_back(&from->rec, &to->rec, from->tx_ack, seg) &&
				 !ends_too_early(seg, from->tx_ack, scale_out(&to->rec)));
}

/*
 * Returns the verdict if it refuses a reset; 0, which is no drop, if it may pass. It may be one below what
 * the far end acknowledges: the number of a FIN before it, which Linux accepts.
 *
 * A sender to which a socket of ours offered more may be ahead of the far end's window, and its reset with
 * it; the reset of one that is_held_back() is behind it. The far end would drop both without an answer, and
 * wait for a sender that is gone. So such a reset moves into the window, next to its edge, where the far end
 * challenges it (RFC 5961 section 3.2); the answer to the challenge has the number that counts. As many pass
 * as SYNs, which are challenged alike.
 */
static __always_inline enum ls_verdict admit_reset(const struct ls_record *rec, const struct ls_record *back,
						   __u32 offered, struct segment *seg)
{
	__u32 acked = back->rx_ack + back->ack_off, edge = back->rx_edge + back->ack_off;

	if (!is_held_back(rec, back, acked, seg)) {
		if (before(seg->seq, acked - 1) || after(seg->seq, acked + (65535 << scale_out(back))))
			return LS_V_DROP_WINDOW;
		if (!after(seg->seq, edge))
			return 0;
	}
	/* A smaller window may have no number that counts for nothing. */
	if (!after(edge, acked + 2))
		return after(seg->seq, offered + 1) ? LS_V_DROP_WINDOW : 0;
	if (!may_challenge(rec))
		return LS_V_DROP_WINDOW;
	/* A reset next to what was forwarded would count (note_end()). */
	seg->seq = seg->end = edge - 1 == end_of(rec) ? edge - 2 : edge - 1;
	return 0;
}

/*
 * Returns the verdict if it refuses a segment of a spliced flow; 0, which is no drop, if it may pass: with
 * seg->in_place if it can be the sender's own, and is to be noted and forwarded; without it if it may be, and
 * is to be forwarded and not noted. `offered` is the edge up to which the sender may send.
 *
 * The rules are those of RFC 9293 section 3.10.7.4 and RFC 5961, seen from the middle: the far end's own
 * check is the same with better knowledge, and answers segments that it does not accept. So segments that may
 * be honest pass: a reset, which is challenged (section 3.2), a SYN, which is challenged, too
 * (section 4.2), and repetitions of old bytes, keep-alives and probes among them, as far back as the far
 * end's window can reach. So does a segment that begins in the window and ends beyond it: the sender may not
 * know the window, if it was told of more before or an update was lost, and learns of it by the answer alone.
 * An acknowledgement that is_held_back() gets the number at which the far end reads it. No guess changes our
 * notes: two guesses could achieve what one cannot, make a reset count or turn TSval back.
 */
__noinline int admit_against(const struct ls_record *rec, const struct ls_record *back, __u32 offered,
			     struct segment *seg)
{
	__u32 acked;

	if (!rec || !back || !seg)
		return LS_V_DROP_WINDOW;
	acked = back->rx_ack + back->ack_off;
	seg->in_place = 0;
	if (seg->flags & TCP_RST)
		return admit_reset(rec, back, offered, seg);
	if (seg->flags & TCP_SYN)
		return may_challenge(rec) ? 0 : LS_V_DROP_SYN;
	if (acks_too_little(rec, back, seg) || after(seg->ack, end_of(back) + back->seq_off))
		return LS_V_DROP_ACK;
	if ((after(seg->seq, offered) && after(seg->end, offered + 1)) ||
	    ends_too_early(seg, acked, scale_in(back)))
		return LS_V_DROP_WINDOW;
	if (is_held_back(rec, back, acked, seg))
		seg->seq = seg->end = acked;
	if (before(seg->end, acked))
		return 0;
	/* The segment is not lost for good: retransmitted after the missing bytes, it is next in order. */
	if (after(seg->seq, end_of(rec)) && !is_echo(rec, back, seg))
		return seg->end != seg->seq ? LS_V_DROP_TSECR : 0;
	seg->in_place = 1;
	return 0;
}

/* Returns whether a segment has payload that was not forwarded before. */
static __always_inline int has_news(const struct ls_record *rec, const struct segment *seg)
{
	return seg->len && after(seg->seq + seg->len, rec->rx_end);
}

/* Returns whether a segment may have such payload: one that is noted, and not behind a FIN. The payload of a
 * reset is not read. */
static __always_inline int may_have_news(const struct ls_record *rec, const struct segment *seg)
{
	return seg->flags & TCP_RST || (seg->in_place && !(rec->seen & LS_SEEN_FIN));
}

/* Returns the verdict by the records of both directions: see admit_against(). */
static __noinline __u32 admit_by_both(const struct flow_ref *flow, struct segment *seg)
{
	struct ls_record *back = find_back(flow);
	__u32 offered, verdict;

	seg->in_place = 0;
	if (!back)
		return has_news(flow->rec, seg) ? LS_V_DROP_WINDOW : 0;
	offered = back->rx_edge + back->ack_off;
	/* A local socket may have offered more before, by a window at most: one that is parked for long
	 * stands anywhere behind. */
	if (flow->slot && flow->slot->leg[flow->side & 1].tx_edge - offered <= LARGEST_WINDOW)
		offered = flow->slot->leg[flow->side & 1].tx_edge;
	verdict = admit_against(flow->rec, back, offered, seg);
	if (!verdict && !may_have_news(flow->rec, seg) && has_news(flow->rec, seg))
		return LS_V_DROP_WINDOW;
	return verdict;
}

/* Returns the record of the direction back that lies beside a direction's record: out of date while the flow
 * is being moved, but never ahead of the current one. */
static __always_inline const struct ls_record *beside(const struct flow_ref *flow)
{
	return flow->slot ? &flow->slot->leg[!(flow->side & 1)].rec
			  : &flow->element->from[!(flow->side & 1)].rec;
}

/* Returns whether a segment is the next one in order, within the window, and acknowledges sent bytes: most
 * are. */
static __always_inline int is_next(const struct flow_ref *flow, const struct segment *seg)
{
	const struct ls_record *back = beside(flow);

	return seg->seq == flow->rec->rx_end && !(flow->rec->seen & LS_SEEN_FIN) &&
	       (seg->flags & (TCP_ACK | TCP_SYN | TCP_RST)) == TCP_ACK &&
	       !is_long_known(flow->rec, seg->ack) && !after(seg->ack, end_of(back) + back->seq_off) &&
	       !after(seg->end, back->rx_edge + back->ack_off + 1);
}

/* Returns the verdict if it refuses a segment of a spliced flow; 0 if it can be the sender's own, and may
 * pass: see admit_against(). */
static __always_inline __u32 admit_segment(const struct flow_ref *flow, struct segment *seg)
{
	if (!is_next(flow, seg))
		return admit_by_both(flow, seg);
	seg->in_place = 1;
	return 0;
}

/* Returns whether, in FREEZE, a segment has payload that was not forwarded before. */
static __always_inline int is_new(const struct flow_ref *flow, const struct segment *seg)
{
	return flow->slot && seg->end != seg->seq && after(seg->end, flow->slot->leg[flow->side & 1].base);
}

/*
 * Returns whether the segment may still be forwarded, after its end was noted in rx_end. A CPU or a process
 * that moves a flow stores the new mode or placement first and reads rx_end then, with a full barrier
 * between, as seq_advance() has one: either it counts the segment among the forwarded ones, or we see its
 * store. No segment is forwarded unnoticed.
 */
static __always_inline int may_still_pass(const struct flow_ref *flow, const struct segment *seg)
{
	__u32 mode;

	/* A flow that moved to a slot and back meanwhile has the slot's numbers over ours. */
	if (!flow->slot)
		return placement_of(flow->rec) == LS_DETACHED &&
		       (!seg->len || seg->flags & TCP_RST ||
			!after(seg->seq + seg->len, *(volatile __u32 *)&flow->rec->rx_end));
	mode = mode_of(flow->slot);
	return mode == LS_FINAL || mode == LS_DRAIN || (mode == LS_FREEZE && !is_new(flow, seg));
}

/* Admits a segment of a spliced flow and notes its fields, or refuses it, at tc and in XDP alike; a repeated
 * call changes nothing more, except for a direction with a rate. An admitted segment may be translated. */
static __always_inline enum admission admit(const struct flow_ref *flow, struct segment *seg,
					    enum ls_verdict *reason)
{
	struct ls_record *rec = flow->rec;

	*reason = admit_segment(flow, seg);
	if (*reason)
		return REFUSED;
	/* Note nothing of a segment that a rule drops: the far end does not learn of it either. */
	if (is_ruled(rec)) {
		*reason = judge(rec, seg, bytes_of(seg), 1);
		if (*reason)
			return REFUSED;
	}
	if (seg->in_place)
		note_ack(rec, seg);
	/* Charge before the segment counts as forwarded. Its sender takes a dropped segment for lost, and
	 * slows down. */
	if (over_rate(rec, seg)) {
		*reason = LS_V_DROP_RATE;
		return REFUSED;
	}
	note_end_of(rec, seg);
	return may_still_pass(flow, seg) ? ADMITTED : REQUEUED;
}

#endif
