/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Notes the state of the two ends from their segments: the second half of a record, and the state of a leg
 * with a socket. */
#ifndef LONGSPLICE_TRACK_H
#define LONGSPLICE_TRACK_H

#include "challenge.h"
#include "parse.h"

static __always_inline __u32 mode_of(struct ls_slot *slot)
{
	return *(volatile __u32 *)&slot->mode;
}

/* Notes the acknowledgement of x that the local socket is shown; only one that the socket accepts, because a
 * wake relies on it. */
static __always_inline void note_heard(struct ls_leg *x, const struct segment *s, __u32 ack)
{
	if (s->in_place && s->flags & TCP_ACK)
		raise(&x->loc_acked, ack);
}

static __always_inline void note_ack(struct ls_record *rec, const struct segment *s)
{
	__u32 edge = edge_of(s, scale_in(rec));

	if (!(s->flags & TCP_ACK) || before(s->ack, rec->rx_ack))
		return;
	raise(&rec->rx_ack, s->ack);
	raise(&rec->rx_edge, edge);
}

/* Returns the end of x's stream as far as it passed: behind its FIN, if that passed. */
static __always_inline __u32 end_of(const struct ls_record *rec)
{
	return rec->rx_end + !!(rec->seen & LS_SEEN_FIN);
}

/* Returns whether x has ended its stream and the far end has acknowledged that. `back` is the direction back.
 */
static __always_inline int is_done(const struct ls_record *rec, const struct ls_record *back)
{
	return rec->seen & LS_SEEN_FIN && !before(back->rx_ack, end_of(rec) + rec->seq_off);
}

/* Returns whether x has sent its last byte, `ack` covers it, and x has acknowledged the end of o's stream. */
static __always_inline int is_closed_by(const struct ls_leg *x, const struct ls_leg *o, __u32 ack)
{
	return x->rec.seen & LS_SEEN_FIN && !before(ack, end_of(&x->rec)) && is_done(&o->rec, &x->rec);
}

/*
 * Returns whether x has sent its last byte, was told that it has arrived, and has acknowledged the end of o's
 * stream. Its connection is over then, even if o still misses bytes: x may be gone and answer a late
 * duplicate with a reset, or begin a new connection from the same port.
 */
static __always_inline int is_through(const struct ls_leg *x, const struct ls_leg *o)
{
	return is_closed_by(x, o, x->tx_ack);
}

/* Returns whether a segment of x acknowledges bytes that neither the local socket nor, past it, the far end o
 * has sent to x. */
static __always_inline int acks_unsent(const struct ls_leg *x, const struct ls_leg *o,
				       const struct segment *s)
{
	/* This includes a FIN of o that was forwarded and that the local socket has not repeated. */
	__u32 sent = seq_max(end_of(&o->rec), o->cut) + o->rec.seq_off;

	return s->flags & TCP_ACK && after(s->ack, seq_max(x->loc_end, sent));
}

/* Notes the fields of a segment of x in any mode that has a slot. */
static __always_inline void note_peer(struct ls_leg *x, const struct segment *s)
{
	if (!s->in_place)
		return;
	note_ack(&x->rec, s);
	if (s->flags & TCP_ACK && !before(s->ack, x->rec.rx_ack))
		x->rx_shrunk = x->rec.rx_edge - edge_of(s, scale_in(&x->rec));
	if (!s->ts_at)
		return;
	raise(&x->rx_ts, s->tsval);
	raise(&x->rx_echo, s->tsecr);
}

/* Returns the sequence number nearest to `seq` at which x processes a segment without payload. */
static __always_inline __u32 where_heard(const struct ls_leg *x, __u32 seq)
{
	return seq_max(seq_min(seq, x->rec.rx_edge - x->rx_shrunk), x->rec.rx_ack);
}

/* Returns whether the local socket could take the segment: no other segment may move the cut. */
static __always_inline int fits_window(const struct ls_leg *x, const struct segment *s)
{
	return !after(s->end, seq_max(x->loc_edge, x->tx_edge) + 1);
}

/* Smallest window by which an acknowledgement may lie behind the highest one: segments overtake each
 * other. */
#define LEAST_LATE 65535

static __always_inline int is_long_known(const struct ls_record *rec, __u32 acked)
{
	__u32 ack = rec->rx_ack;

	return before(acked, seq_min(ack - LEAST_LATE, ack - (rec->rx_edge - ack)));
}

/* Returns whether x echoes a TSval from the last `span` values that it was sent. */
static __always_inline int echoes(const struct ls_record *back, const struct segment *s, __u32 span)
{
	return s->ts_at && !after(s->tsecr, back->ts_high) && !before(s->tsecr, back->ts_high - span);
}

/* Distance by which an echo may lie behind the highest TSval that its sender was sent: 4 hours of a clock of
 * milliseconds, and one in 256 of all echoes that can be guessed. */
#define ECHO_SPAN (1 << 24)

/* Returns whether x can have sent this TSecr: once agreed, each segment has the option (RFC 7323 section
 * 3.2). */
static __always_inline int is_echo(const struct ls_record *rec, const struct ls_record *back,
				   const struct segment *s)
{
	return !(rec->traits & LS_TIMESTAMPS) || echoes(back, s, ECHO_SPAN);
}

/* Distance by which the echo of a late segment may lie behind: a second of microseconds, 17 minutes of
 * milliseconds. */
#define LATE_SPAN (1 << 20)

/* Returns whether a segment would change the state of x's stream by more than the next bytes in order, which
 * are retransmitted if they were corrupted. (Corruption may change the length of unusual options. TSval grows
 * with each segment; a corrupted one jumps ahead by more than LATE_SPAN.) */
static __always_inline int moves_stream(const struct ls_record *rec, const struct segment *s)
{
	return (s->seq != rec->rx_end && after(s->end, rec->rx_end)) ||
	       s->flags & (TCP_FIN | TCP_SYN | TCP_RST) || (s->opt_len && s->opt_len != TS_LAYOUT_LEN) ||
	       (s->ts_at && after(s->tsval + rec->tsval_off, rec->ts_high + LATE_SPAN));
}

/* Returns whether a segment of a spliced flow must be verified before it is noted: it changes more of the
 * stream than the next bytes do, or it acknowledges or offers something. */
static __always_inline int tells_more(const struct ls_record *rec, const struct segment *s)
{
	return moves_stream(rec, s) || s->ack != rec->rx_ack ||
	       after(edge_of(s, scale_in(rec)), rec->rx_edge);
}

/*
 * Returns whether an old acknowledgement is delayed rather than forged: recent TSecr, within the largest
 * window. RFC 5961 section 5.2 would accept acknowledgements as far back as the largest window that x ever
 * offered, which is not stored. A guess of a fresh echo and of an acknowledgement in the largest window that
 * x could offer succeeds less often, up to a scale of 11, than a guess of an acknowledgement in LEAST_LATE.
 */
static __always_inline int is_late(const struct ls_record *rec, const struct ls_record *back,
				   const struct segment *s)
{
	return rec->traits & LS_TIMESTAMPS && echoes(back, s, LATE_SPAN) &&
	       !before(s->ack, rec->rx_ack - (65535 << scale_in(rec)));
}

/*
 * Returns whether x acknowledges so little that no TCP accepts the segment: nothing at all (RFC 9293 section
 * 3.10.7.4), or a number further back than a window. Raised on its way, the acknowledgement would make the
 * segment acceptable. A retransmission comes with a new acknowledgement, so no receiver waits for this
 * segment for ever. `back` is the direction back.
 */
static __always_inline int acks_too_little(const struct ls_record *rec, const struct ls_record *back,
					   const struct segment *s)
{
	if (!(s->flags & TCP_ACK))
		return !(s->flags & (TCP_SYN | TCP_RST));
	return is_long_known(rec, s->ack) && !is_late(rec, back, s);
}

/*
 * Judges a segment of a spliced flow. Returns 0 and sets s->in_place if it can be x's own: it is to be noted
 * and forwarded. Returns 0 without s->in_place if it may be: it is to be forwarded and not noted. Otherwise
 * returns the verdict of the drop. `offered` is the edge up to which x may send.
 *
 * The rules are those of RFC 9293 section 3.10.7.4 and RFC 5961, seen from the middle: the far end's own
 * check is the same with better knowledge, and answers segments that it does not accept. So segments that may
 * be honest pass: a reset in the window, which is challenged (section 3.2), a SYN, which is challenged, too
 * (section 4.2), and repetitions of old bytes, keep-alives and probes among them, as far back as the far
 * end's window can reach. No guess changes our notes: two guesses could achieve what one cannot, make a reset
 * count or turn TSval back.
 */
static __always_inline int judge_by(const struct ls_record *rec, const struct ls_record *back, __u32 offered,
				    struct segment *s)
{
	__u32 acked = back->rx_ack + back->ack_off;

	s->in_place = 0;
	if (s->flags & TCP_RST) /* one below: the number of a FIN before it, which Linux accepts */
		return before(s->seq, acked - 1) || after(s->seq, offered + 1) ? LS_V_DROP_WINDOW : 0;
	if (s->flags & TCP_SYN)
		return may_challenge(rec) ? 0 : LS_V_DROP_SYN;
	if (acks_too_little(rec, back, s) || after(s->ack, end_of(back) + back->seq_off))
		return LS_V_DROP_ACK;
	if (after(s->end, offered + 1) || before(s->end, acked - 1 - (65535 << scale_in(back))))
		return LS_V_DROP_WINDOW;
	if (before(s->end, acked))
		return 0;
	/* The segment is not lost for good: retransmitted after the missing bytes, it is next in order. */
	if (after(s->seq, end_of(rec)) && !is_echo(rec, back, s))
		return s->end != s->seq ? LS_V_DROP_TSECR : 0;
	s->in_place = 1;
	return 0;
}

/*
 * Notes the end of x's stream. A FIN or RST counts only where it can be in place (RFC 5961 sections 3.2 and
 * 4.2): elsewhere it may be forged, so the far end, which knows better, decides, and nothing is noted. `back`
 * is the direction back.
 */
static __always_inline void note_end(struct ls_record *rec, const struct ls_record *back,
				     const struct segment *s)
{
	__u32 acked = back->rx_ack + back->ack_off;

	if (s->flags & TCP_RST) {
		if (s->seq == acked || s->seq == end_of(rec))
			rec->seen |= LS_SEEN_RST;
	} else if (s->in_place) {
		rec->seen |= LS_SEEN_FIN;
	}
}

/* Notes the end of x's payload, with a full barrier if that is news. A FIN is noted after the claim, in a
 * field of its own: another CPU that reads both must not need them to agree. */
static __always_inline void note_end_of(struct ls_record *rec, const struct segment *s)
{
	/* Note TSval with it: code that moves the flow must have both. */
	if (s->in_place && s->ts_at)
		raise(&rec->ts_high, s->tsval + rec->tsval_off);
	/* A pure acknowledgement stands where the sender is, which may be ahead of the payload that
	 * arrived. */
	if (s->in_place && s->end != s->seq && !(s->flags & (TCP_SYN | TCP_RST)))
		raise(&rec->rx_end, s->seq + s->len);
}

/* Accounts a segment that is translated. A guessed segment does not keep a flow alive whose ends are gone. */
static __always_inline void note_translated(struct ls_record *rec, const struct segment *s)
{
	if (s->in_place)
		rec->last_seen = ticks();
	add_bytes(rec, s->len);
}

#endif
