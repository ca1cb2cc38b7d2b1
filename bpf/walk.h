/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Finds the state of a tuple's flow, wherever it is now, for all steps of a packet's processing. */
#ifndef LONGSPLICE_WALK_H
#define LONGSPLICE_WALK_H

#include "count.h"
#include "maps.h"
#include "rate.h"
#include "table.h"
#include "tags.h"
#include "track.h"

struct walk {
	struct ls_flow *flow;
	struct ls_record *rec; /* current record of the direction */
	struct ls_slot *slot;  /* NULL: detached, or a leg alone */
	__u32 side;
	__u32 placement; /* enum ls_placement */
};

/* Finds the current state of a direction of a flow. Returns the table's record; NULL if the direction does
 * not exist. */
static __always_inline struct ls_record *locate(struct ls_flow *flow, __u32 side, struct walk *w)
{
	struct ls_record *rec = &flow->from[side & 1].rec;
	__u32 index;

	w->flow = flow;
	w->side = side & 1;
	w->slot = NULL;
	w->rec = rec;
	w->placement = placement_of(rec);
	if (w->placement != LS_SLOTTED)
		return w->placement == LS_NONE ? NULL : rec;
	index = rec->where;
	w->slot = bpf_map_lookup_elem(&slots, &index);
	if (!w->slot)
		return NULL;
	/* demote() has put an interface into `where` between our two reads: the record in the table is
	 * current now. */
	if (w->slot->serial != rec->serial) {
		w->slot = NULL;
		w->placement = placement_of(rec);
		return w->placement == LS_DETACHED ? rec : NULL;
	}
	w->rec = &w->slot->leg[side & 1].rec;
	return rec;
}

/* Finds the record of a direction by its number in the table; NULL if it has just been removed. */
static __always_inline struct ls_record *find_by_number(__u32 number, struct walk *w)
{
	struct ls_flow *flow = flow_of(number);

	return flow ? locate(flow, (number - 1) & 1, w) : NULL;
}

/* Finds the record of a tuple; NULL if it is not ours. */
static __always_inline struct ls_record *find(const struct ls_tuple *tuple, struct walk *w)
{
	return find_by_number(table_lookup(tuple), w);
}

/* Finds the record of the direction back; NULL if the flow is incomplete, which only happens while it is
 * being removed. */
static __always_inline struct ls_record *find_back(const struct walk *w)
{
	struct walk back;

	return locate(w->flow, !(w->side & 1), &back) ? back.rec : NULL;
}

/* Returns the tuple of the far end's own segments: those toward it have it reversed. */
static __always_inline const struct ls_tuple *far_of(const struct walk *w)
{
	return &w->flow->from[!(w->side & 1)].key;
}

static __always_inline void note_fin_or_rst(const struct walk *w, const struct segment *s)
{
	struct ls_record *back;

	if (!(s->flags & (TCP_FIN | TCP_RST)))
		return;
	back = find_back(w);
	if (back)
		note_end(w->rec, back, s);
}

/* Returns whether a segment has payload that was not forwarded before; a segment that is not noted must not
 * have any. */
static __always_inline int has_news(const struct ls_record *rec, const struct segment *s)
{
	return s->len && after(s->seq + s->len, rec->rx_end);
}

static __noinline int judge_by_both(const struct walk *w, struct segment *s)
{
	struct ls_record *back = find_back(w);
	__u32 offered;
	int verdict;

	s->in_place = 0;
	if (!back)
		return has_news(w->rec, s) ? LS_V_DROP_WINDOW : 0;
	offered = back->rx_edge + back->ack_off;
	/* A local socket may have offered more before. */
	if (w->slot)
		offered = seq_max(offered, w->slot->leg[w->side & 1].tx_edge);
	verdict = judge_by(w->rec, back, offered, s);
	return !verdict && !s->in_place && !(s->flags & TCP_RST) && has_news(w->rec, s) ? LS_V_DROP_WINDOW
											: verdict;
}

/* Returns the record of the direction back that lies beside a direction's record: out of date while the flow
 * is being moved, but never ahead of the current one. */
static __always_inline const struct ls_record *beside(const struct walk *w)
{
	return w->slot ? &w->slot->leg[!(w->side & 1)].rec : &w->flow->from[!(w->side & 1)].rec;
}

/* Returns whether a segment is the next one in order, within the window, and acknowledges sent bytes: most
 * are. */
static __always_inline int is_next(const struct walk *w, const struct segment *s)
{
	const struct ls_record *back = beside(w);

	return s->seq == w->rec->rx_end && (s->flags & (TCP_ACK | TCP_SYN | TCP_RST)) == TCP_ACK &&
	       !is_long_known(w->rec, s->ack) && !after(s->ack, end_of(back) + back->seq_off) &&
	       !after(s->end, back->rx_edge + back->ack_off + 1);
}

/* Returns 0 if a segment of a spliced flow can be x's own, or the verdict of the drop: see judge_by(). */
static __always_inline int judge(const struct walk *w, struct segment *s)
{
	if (!is_next(w, s))
		return judge_by_both(w, s);
	s->in_place = 1;
	return 0;
}

/* Returns whether, in FREEZE, a segment has payload that was not forwarded before. */
static __always_inline int is_new(const struct walk *w, const struct segment *s)
{
	return w->slot && s->end != s->seq && after(s->end, w->slot->leg[w->side & 1].base);
}

/*
 * Returns whether the segment may still be forwarded, after its end was noted in rx_end. A CPU or a process
 * that moves a flow stores the new mode or placement first and reads rx_end then, with a full barrier
 * between, as raise() has one: either it counts the segment among the forwarded ones, or we see its store. No
 * segment is forwarded unnoticed.
 */
static __always_inline int claimed(const struct walk *w, const struct segment *s)
{
	__u32 mode;

	/* A flow that moved to a slot and back meanwhile has the slot's numbers over ours. */
	if (!w->slot)
		return placement_of(w->rec) == LS_DETACHED &&
		       (!s->len || s->flags & TCP_RST ||
			!after(s->seq + s->len, *(volatile __u32 *)&w->rec->rx_end));
	mode = mode_of(w->slot);
	return mode == LS_FINAL || mode == LS_DRAIN || (mode == LS_FREEZE && !is_new(w, s));
}

/* Result of a segment whose flow is about to move: its packet must be processed again. */
#define ELSEWHERE (-1)

/* Judges a segment of a spliced flow and notes its fields, at tc and in XDP alike; a repeated call changes
 * nothing more, except for a direction with a rate. Returns 0 if the segment may be translated; the verdict
 * of the drop; ELSEWHERE. */
static __always_inline int admit(const struct walk *w, struct segment *s)
{
	struct ls_record *rec = w->rec;
	int verdict = judge(w, s);

	if (verdict)
		return verdict;
	if (s->in_place)
		note_ack(rec, s);
	/* Charge before the segment counts as forwarded. Its sender takes a dropped segment for lost, and
	 * slows down. */
	if (over_rate(rec, s))
		return LS_V_DROP_RATE;
	note_end_of(rec, s);
	return claimed(w, s) ? 0 : ELSEWHERE;
}

/* Returns whether packets of a slot in this mode go to the stack only. */
static __always_inline int is_nobodys(__u32 mode)
{
	return mode == LS_FREE || mode == LS_REPLACED || mode == LS_ABORTED;
}

/* Returns whether the slot is about to have another mode, or has been left. */
static __always_inline int is_changing(__u32 mode)
{
	return mode == LS_WAKING || mode == LS_MOVED;
}

/* Has the packet come in. From the loopback it must bring its route along: without one, the stack takes
 * 127.0.0.1 for a martian. So the packet goes out there: `egress` passes it by its tag. */
static __always_inline int come_in(struct __sk_buff *skb)
{
	if (skb->ifindex != LOOPBACK)
		return bpf_redirect(skb->ifindex, BPF_F_INGRESS);
	if (!is_tagged(skb))
		skb->tc_index = TAG_FORWARDED;
	return bpf_redirect_neigh(LOOPBACK, NULL, 0, 0);
}

/* Has the packet come in once more, because its flow has moved. */
static __always_inline int look_again(struct __sk_buff *skb)
{
	count(LS_V_REQUEUED);
	return come_in(skb);
}

#endif
