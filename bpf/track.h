/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* What segments tell about the two ends: the soft half of a record, and what a leg with a socket needs. */
#ifndef LONGSPLICE_TRACK_H
#define LONGSPLICE_TRACK_H

#include "challenge.h"
#include "parse.h"

static __always_inline __u32 mode_of(struct ls_slot *slot)
{
	return *(volatile __u32 *)&slot->mode;
}

/* Notes what the local socket hears of x. Only what it takes: a wake relies on it. */
static __always_inline void note_heard(struct ls_leg *x, const struct segment *s, __u32 ack)
{
	if (s->in_place && s->flags & TCP_ACK)
		x->loc_acked = seq_max(x->loc_acked, ack);
}

static __always_inline void note_ack(struct ls_record *rec, const struct segment *s)
{
	__u32 edge = s->ack + (s->window << scale_in(rec));

	if (!(s->flags & TCP_ACK) || before(s->ack, rec->rx_ack))
		return;
	rec->rx_ack = s->ack;
	rec->rx_edge = seq_max(rec->rx_edge, edge);
}

/* Where x's stream ends as far as it passed: behind its FIN, if that did. */
static __always_inline __u32 end_of(const struct ls_record *rec)
{
	return rec->rx_end + !!(rec->seen & LS_SEEN_FIN);
}

/* Whether a segment of x acknowledges what nobody sent to it: the local socket, or the far end o past it. */
static __always_inline int acks_unsent(const struct ls_leg *x, const struct ls_leg *o,
				       const struct segment *s)
{
	/* With a FIN of o that was forwarded, while the local socket has not said it again. */
	__u32 sent = seq_max(end_of(&o->rec), o->cut) + o->rec.seq_off;

	return s->flags & TCP_ACK && after(s->ack, seq_max(x->loc_end, sent));
}

/* What a segment of x tells in any mode that has a slot. */
static __always_inline void note_peer(struct ls_leg *x, const struct segment *s)
{
	if (!s->in_place)
		return;
	note_ack(&x->rec, s);
	if (!s->ts_at)
		return;
	x->rx_ts = seq_max(x->rx_ts, s->tsval);
	x->rx_echo = seq_max(x->rx_echo, s->tsecr);
}

/* The sequence number nearest to `seq` at which x looks at a segment without payload. */
static __always_inline __u32 where_heard(const struct ls_leg *x, __u32 seq)
{
	return seq_max(seq_min(seq, x->rec.rx_edge), x->rec.rx_ack);
}

/* Whether the local socket could take the segment: nothing else may move the cut. */
static __always_inline int fits_window(const struct ls_leg *x, const struct segment *s)
{
	return !after(s->end, seq_max(x->loc_edge, x->tx_edge) + 1);
}

/* The least window that an acknowledgement may lie behind the highest one: segments overtake each other. */
#define LEAST_LATE 65535

static __always_inline int is_long_known(const struct ls_record *rec, __u32 acked)
{
	__u32 ack = rec->rx_ack;

	return before(acked, seq_min(ack - LEAST_LATE, ack - (rec->rx_edge - ack)));
}

/* Whether x echoes one of the last `span` times that it was sent. */
static __always_inline int echoes(const struct ls_record *back, const struct segment *s, __u32 span)
{
	return s->ts_at && !after(s->tsecr, back->ts_high) && !before(s->tsecr, back->ts_high - span);
}

/* How far an echo may lie behind the highest TSval that its sender was sent: 4 hours of a clock of
 * milliseconds, and of all echoes that can be guessed one in 256. */
#define ECHO_SPAN (1 << 24)

/* Whether x can have echoed that (RFC 7323 section 3.2: once agreed, each segment has the option). */
static __always_inline int is_echo(const struct ls_record *rec, const struct ls_record *back,
				   const struct segment *s)
{
	return !(rec->traits & LS_TIMESTAMPS) || echoes(back, s, ECHO_SPAN);
}

/* How far the echo of a late segment may: a second of microseconds, 17 minutes of milliseconds. */
#define LATE_SPAN (1 << 20)

/*
 * Whether what is long known comes late, and is no guess. RFC 5961 section 5.2 would take what lies as far
 * back as the largest window that x ever offered. Nobody keeps that one; but a fresh echo and an
 * acknowledgement in the largest window that x could offer are guessed less often, up to a scale of 11, than
 * an acknowledgement in LEAST_LATE.
 */
static __always_inline int is_late(const struct ls_record *rec, const struct ls_record *back,
				   const struct segment *s)
{
	return rec->traits & LS_TIMESTAMPS && echoes(back, s, LATE_SPAN) &&
	       !before(s->ack, rec->rx_ack - (65535 << scale_in(rec)));
}

/*
 * Whether x acknowledges so little that no TCP takes the segment: nothing at all (RFC 9293 section 3.10.7.4),
 * or what lies further back than a window. Raised on its way, the acknowledgement would make it acceptable.
 * What is sent again is sent with a new one: nobody waits for this segment for ever. `back` is the direction
 * back.
 */
static __always_inline int acks_too_little(const struct ls_record *rec, const struct ls_record *back,
					   const struct segment *s)
{
	if (!(s->flags & TCP_ACK))
		return !(s->flags & (TCP_SYN | TCP_RST));
	return is_long_known(rec, s->ack) && !is_late(rec, back, s);
}

/*
 * Whether a segment of a spliced flow can be x's own, which is to be noted and forwarded: 0, and s->in_place;
 * or may be, and is forwarded but not noted: 0; or cannot: the verdict of the drop. `offered` is how far x
 * may send.
 *
 * RFC 9293 section 3.10.7.4 and RFC 5961, from the middle: the far end's own check is the same with better
 * knowledge, and answers what it does not take. So what may be honest passes: a reset in the window (section
 * 3.2: challenged), a SYN (section 4.2: likewise), and what repeats old bytes, keep-alives and probes among
 * it, as far back as the far end's window can reach. No guess moves our notes: two of them could do what one
 * cannot, make a reset count or turn TSval back.
 */
static __always_inline int judge_by(const struct ls_record *rec, const struct ls_record *back, __u32 offered,
				    struct segment *s)
{
	__u32 acked = back->rx_ack + back->ack_off;

	s->in_place = 0;
	if (s->flags & TCP_RST) /* one below: that of a FIN before it, which Linux takes */
		return before(s->seq, acked - 1) || after(s->seq, offered + 1) ? LS_V_DROP_WINDOW : 0;
	if (s->flags & TCP_SYN)
		return may_challenge(rec) ? 0 : LS_V_DROP_SYN;
	if (acks_too_little(rec, back, s) || after(s->ack, end_of(back) + back->seq_off))
		return LS_V_DROP_ACK;
	if (after(s->end, offered + 1) || before(s->end, acked - 1 - (65535 << scale_in(back))))
		return LS_V_DROP_WINDOW;
	if (before(s->end, acked))
		return 0;
	/* Without the echo it is not lost for good: repeated after what is missing, it is next in order. */
	if (after(s->seq, end_of(rec)) && !is_echo(rec, back, s))
		return s->end != s->seq ? LS_V_DROP_ECHO : 0;
	s->in_place = 1;
	return 0;
}

/*
 * The end of x's stream. A FIN or RST counts only where it can be in place (RFC 5961 sections 3.2 and 4.2):
 * what is forged elsewhere is left to the far end, which knows better, and marks nothing. `back` is the
 * direction back.
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

/* Notes how far x's payload goes; a full barrier where that is news. A FIN is noted after the claim, in a
 * field of its own: whoever reads both on another CPU must not need them to agree. */
static __always_inline void note_end_of(struct ls_record *rec, const struct segment *s)
{
	/* With it, so that whoever takes the flow elsewhere has both. */
	if (s->in_place && s->ts_at)
		raise(&rec->ts_high, s->tsval + rec->tsval_off);
	/* A pure acknowledgement stands where the sender is, not where its payload has got to. */
	if (s->in_place && s->end != s->seq && !(s->flags & (TCP_SYN | TCP_RST)))
		raise(&rec->rx_end, s->seq + s->len);
}

/* Accounts a segment that is translated. Guesses do not keep a flow alive whose ends are gone. */
static __always_inline void note_translated(struct ls_record *rec, const struct segment *s)
{
	if (s->in_place)
		rec->last_seen = ticks();
	add_bytes(rec, s->len);
}

#endif
