/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* From a tuple to what is known of its flow, wherever that is now: the steps of a walk share it. */
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
	struct ls_record *rec; /* of the direction, wherever the truth is */
	struct ls_slot *slot;  /* NULL: detached, or alone */
	__u32 side;
	__u32 placement; /* enum ls_placement */
};

/* Where the truth about a direction of a flow is; NULL if there is none. */
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
	/* release() has put an interface into `where` between our two looks: the record has the truth now. */
	if (w->slot->serial != rec->serial) {
		w->slot = NULL;
		w->placement = placement_of(rec);
		return w->placement == LS_DETACHED ? rec : NULL;
	}
	w->rec = &w->slot->leg[side & 1].rec;
	return rec;
}

/* The record of a direction by its number in the table; NULL if it has just been removed. */
static __always_inline struct ls_record *find_by_number(__u32 number, struct walk *w)
{
	struct ls_flow *flow = flow_of(number);

	return flow ? locate(flow, (number - 1) & 1, w) : NULL;
}

/* The record of a tuple; NULL if it is none of ours. */
static __always_inline struct ls_record *find(const struct ls_tuple *tuple, struct walk *w)
{
	return find_by_number(look_up(tuple), w);
}

/* The record of the direction back; NULL if the flow is incomplete, which only happens while it is being
 * removed. */
static __always_inline struct ls_record *find_back(const struct walk *w)
{
	struct walk back;

	return locate(w->flow, !(w->side & 1), &back) ? back.rec : NULL;
}

/* How the far end's segments are addressed: those toward it are the other way round. */
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

/* What of a segment is payload that was not forwarded before; what is not noted must not have any. */
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

/* Whether a segment of a spliced flow can be x's own: see judge_by(). The next one in order is nobody's
 * guess, and needs no look at the direction back. */
static __always_inline int judge(const struct walk *w, struct segment *s)
{
	if (s->seq != w->rec->rx_end || (s->flags & (TCP_ACK | TCP_SYN | TCP_RST)) != TCP_ACK ||
	    is_long_known(w->rec, s->ack) || after(s->ack, w->rec->rx_ack + (1 << 30)))
		return judge_by_both(w, s);
	s->in_place = 1;
	return 0;
}

/* FREEZE: not among what was forwarded before. */
static __always_inline int is_new(const struct walk *w, const struct segment *s)
{
	return w->slot && s->end != s->seq && after(s->end, w->slot->leg[w->side & 1].base);
}

/*
 * Whether the segment may still be forwarded, after its end was noted in rx_end. Who takes a flow elsewhere
 * stores that first and reads rx_end then, with a full barrier between, as raise() has one: either he counts
 * the segment among the forwarded ones, or we see that he has been here. Nothing is forwarded behind his
 * back.
 */
static __always_inline int claimed(const struct walk *w, const struct segment *s)
{
	__u32 mode;

	/* Moved to a slot and back meanwhile, the record has the slot's numbers over ours. */
	if (!w->slot)
		return placement_of(w->rec) == LS_DETACHED &&
		       (!s->len || s->flags & TCP_RST ||
			!after(s->seq + s->len, *(volatile __u32 *)&w->rec->rx_end));
	mode = mode_of(w->slot);
	return mode == LS_FINAL || mode == LS_DRAIN || (mode == LS_FREEZE && !is_new(w, s));
}

/* The flow of a segment is about to be somewhere else: it must look again. */
#define ELSEWHERE (-1)

/* Judges a segment of a spliced flow and notes what it says, at tc and in XDP alike; to ask again changes
 * nothing more, but for a direction with a rate. 0 if it may be translated; the verdict of the drop;
 * ELSEWHERE. */
static __always_inline int admit(const struct walk *w, struct segment *s)
{
	struct ls_record *rec = w->rec;
	int verdict = judge(w, s);

	if (verdict)
		return verdict;
	if (s->in_place)
		note_ack(rec, s);
	/* Before it counts as forwarded. Its sender takes it for lost, and slows down. */
	if (over_rate(rec, s))
		return LS_V_DROP_RATE;
	note_end_of(rec, s);
	return claimed(w, s) ? 0 : ELSEWHERE;
}

/* Whether packets of such a slot are the stack's alone. */
static __always_inline int is_nobodys(__u32 mode)
{
	return mode == LS_FREE || mode == LS_REPLACED || mode == LS_ABORTED;
}

/* Whether it is about to have another mode, or has been left. */
static __always_inline int is_changing(__u32 mode)
{
	return mode == LS_WAKING || mode == LS_MOVED;
}

/* Has the packet come in. From the loopback it must bring its route along: without one, the stack takes
 * 127.0.0.1 for a martian. It is sent there then: `egress` lets it pass by its tag. */
static __always_inline int come_in(struct __sk_buff *skb)
{
	if (skb->ifindex != LOOPBACK)
		return bpf_redirect(skb->ifindex, BPF_F_INGRESS);
	if (!is_tagged(skb))
		skb->tc_index = TAG_FORWARDED;
	return bpf_redirect_neigh(LOOPBACK, NULL, 0, 0);
}

/* Has the packet come in once more: its flow is elsewhere now. */
static __always_inline int look_again(struct __sk_buff *skb)
{
	count(LS_V_AGAIN);
	return come_in(skb);
}

#endif
