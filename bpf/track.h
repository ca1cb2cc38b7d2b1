/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* What segments tell about the two ends: the soft half of a record, and what a leg with a socket needs. */
#ifndef LONGSPLICE_TRACK_H
#define LONGSPLICE_TRACK_H

#include "maps.h"
#include "parse.h"
#include "record.h"

/* The time of records. Asked for once in a tick of the kernel's timer: the helper costs as much as a look-up.
 */
static __always_inline __u32 ticks(void)
{
	struct scratch *b = get_scratch();
	__u64 now = bpf_jiffies64();

	if (!b)
		return 0;
	if (b->jiffies != now) {
		b->jiffies = now;
		b->ticks = bpf_ktime_get_coarse_ns() >> LS_TICK_SHIFT;
	}
	return b->ticks;
}

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

/* Whether x acknowledges so little that no TCP takes the segment (RFC 5961 section 5.2): raised on its way,
 * the acknowledgement would make it acceptable. */
static __always_inline int acks_too_little(const struct ls_record *rec, const struct segment *s)
{
	return s->flags & TCP_ACK && before(s->ack, rec->rx_ack - (65535 << scale_in(rec)));
}

/*
 * Whether a translated segment can be x's own (RFC 9293 section 3.10.7.4, RFC 5961 section 5.2). One that is
 * forged from afar is forwarded like any other, and the far end discards it; but if it moved our notes, two
 * of them could do what one cannot: make a reset count, or turn TSval back.
 */
static __always_inline int in_window(const struct ls_record *rec, const struct ls_record *back, __u32 edge,
				     const struct segment *s)
{
	__u32 acked = back->rx_ack + back->ack_off;

	return !before(s->end, acked) && !after(s->end, edge + 1) && !acks_too_little(rec, s) &&
	       !(s->flags & TCP_ACK && after(s->ack, end_of(back) + back->seq_off));
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

/* Accounts a segment that is translated. */
static __always_inline void note_translated(struct ls_record *rec, const struct segment *s)
{
	rec->last_seen = ticks();
	add_bytes(rec, s->len);
}

#endif
