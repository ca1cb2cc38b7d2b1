/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Notes the state of the two ends from their segments: the second half of a record, and the state of a leg
 * with a socket. */
#ifndef LONGSPLICE_TRACK_H
#define LONGSPLICE_TRACK_H

#include "flow.h"
#include "parse.h"

/* Notes the acknowledgement of the sender that the local socket is shown; only one that the socket accepts,
 * because a wake relies on it. */
static __always_inline void note_heard(struct ls_leg *from, const struct segment *seg, __u32 ack)
{
	if (seg->in_place && seg->flags & TCP_ACK)
		seq_advance(&from->loc_acked, ack);
}

static __always_inline void note_ack(struct ls_record *rec, const struct segment *seg)
{
	__u32 edge = edge_of(seg, scale_in(rec));

	if (!(seg->flags & TCP_ACK) || before(seg->ack, rec->rx_ack))
		return;
	seq_advance(&rec->rx_ack, seg->ack);
	seq_advance(&rec->rx_edge, edge);
}

/* Returns the end of the sender's stream as far as it passed: behind its FIN, if that passed. */
static __always_inline __u32 end_of(const struct ls_record *rec)
{
	return rec->rx_end + !!(rec->seen & LS_SEEN_FIN);
}

/* Returns whether the sender has ended its stream and the far end has acknowledged that. `back` is the
 * direction back. */
static __always_inline int is_done(const struct ls_record *rec, const struct ls_record *back)
{
	return rec->seen & LS_SEEN_FIN && !before(back->rx_ack, end_of(rec) + rec->seq_off);
}

/* Returns whether the sender has sent its last byte, `ack` covers it, and the sender has acknowledged the end
 * of the far end's stream. */
static __always_inline int is_closed_by(const struct ls_leg *from, const struct ls_leg *to, __u32 ack)
{
	return from->rec.seen & LS_SEEN_FIN && !before(ack, end_of(&from->rec)) &&
	       is_done(&to->rec, &from->rec);
}

/*
 * Returns whether the sender has sent its last byte, was told that it has arrived, and has acknowledged the
 * end of the far end's stream. Its connection is over then, even if the far end still misses bytes: the
 * sender may be gone and answer a late duplicate with a reset, or begin a new connection from the same port.
 */
static __always_inline int is_through(const struct ls_leg *from, const struct ls_leg *to)
{
	return is_closed_by(from, to, from->tx_ack);
}

/* Notes the fields of a segment of the sender in any mode that has a slot. */
static __always_inline void note_peer(struct ls_leg *from, const struct segment *seg)
{
	if (!seg->in_place)
		return;
	note_ack(&from->rec, seg);
	if (seg->flags & TCP_ACK && !before(seg->ack, from->rec.rx_ack))
		from->rx_shrunk = from->rec.rx_edge - edge_of(seg, scale_in(&from->rec));
	if (!seg->ts_at)
		return;
	seq_advance(&from->rx_ts, seg->tsval);
	seq_advance(&from->rx_echo, seg->tsecr);
}

/* Returns the sequence number nearest to `seq` at which the sender processes a segment without payload. */
static __always_inline __u32 where_heard(const struct ls_leg *from, __u32 seq)
{
	return seq_max(seq_min(seq, from->rec.rx_edge - from->rx_shrunk), from->rec.rx_ack);
}

/*
 * Returns whether a reset of the sender stands where it counts: at the end of its stream, at `acked`, where
 * the far end expects it, or at its FIN that the far end has acknowledged. A Mac whose program was
 * interrupted sends the last one, and Linux accepts it (tcp_reset_check()).
 */
static __always_inline int ends_stream(const struct ls_record *rec, __u32 acked, const struct segment *seg)
{
	return seg->seq == acked || seg->seq == end_of(rec) ||
	       (rec->seen & LS_SEEN_FIN && acked == end_of(rec) && seg->seq == rec->rx_end);
}

/*
 * Notes the end of the sender's stream. A FIN or RST counts only where it can be in place (RFC 5961 sections
 * 3.2 and 4.2): elsewhere it may be forged, so the far end, which knows better, decides, and nothing is
 * noted. `back` is the direction back.
 */
static __always_inline void note_end(struct ls_record *rec, const struct ls_record *back,
				     const struct segment *seg)
{
	if (seg->flags & TCP_RST) {
		if (ends_stream(rec, back->rx_ack + back->ack_off, seg))
			rec->seen |= LS_SEEN_RST;
	} else if (seg->in_place && !before(seg->seq + seg->len, rec->rx_end)) {
		rec->seen |= LS_SEEN_FIN;
	}
}

static __always_inline void note_fin_or_rst(const struct flow_ref *flow, const struct segment *seg)
{
	struct ls_record *back;

	if (!(seg->flags & (TCP_FIN | TCP_RST)))
		return;
	back = find_back(flow);
	if (back)
		note_end(flow->rec, back, seg);
}

/* Notes the end of the sender's payload, with a full barrier if that is news. A FIN is noted after the claim,
 * in a field of its own: another CPU that reads both must not need them to agree. */
static __always_inline void note_end_of(struct ls_record *rec, const struct segment *seg)
{
	/* Note TSval with it: code that moves the flow must have both. */
	if (seg->in_place && seg->ts_at)
		seq_advance(&rec->ts_high, seg->tsval + rec->tsval_off);
	/* A pure acknowledgement stands where the sender is, which may be ahead of the payload that
	 * arrived. No end reads payload behind a FIN (RFC 9293 section 3.10.7.4). */
	if (seg->in_place && seg->end != seg->seq && !(seg->flags & (TCP_SYN | TCP_RST)) &&
	    !(rec->seen & LS_SEEN_FIN))
		seq_advance(&rec->rx_end, seg->seq + seg->len);
}

/* Accounts a segment that is translated. A guessed segment does not keep a flow alive whose ends are gone. */
static __always_inline void note_translated(struct ls_record *rec, const struct segment *seg)
{
	if (seg->in_place)
		rec->last_seen = ticks();
	add_bytes(rec, seg->len);
}

#endif
