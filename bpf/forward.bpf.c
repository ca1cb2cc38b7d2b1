// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * FWD: the translation at tc. It reads like the walk of a packet: which connection, which mode, and from
 * there to the verdict. Two programs: `ingress` sees what the peers send, `egress` what our own sockets send.
 */
#include <linux/bpf.h>
#include <linux/if_packet.h>
#include <linux/pkt_cls.h>
#include <stddef.h>
#include "drain.h"
#include "emit.h"
#include "hold.h"
#include "identity.h"
#include "local.h"
#include "rate.h"
#include "route.h"
#include "too_big.h"
#include "undrain.h"
#include "wake.h"
#include "walk.h"
#include "window.h"

/* Whether x has ended its stream and the far end has acknowledged that. */
static __always_inline int is_done(const struct ls_record *rec, const struct ls_record *back)
{
	return rec->seen & LS_SEEN_FIN && !before(back->rx_ack, end_of(rec) + rec->seq_off);
}

/*
 * A SYN on a spliced tuple. If both ends have closed, the connection is a new one: the record goes, and the
 * listener gets it (RFC 9293 section 3.6.1, from TIME-WAIT). Otherwise the far end is asked: it challenges
 * (RFC 5961 section 4).
 */
static __always_inline int replaced_by_syn(struct walk *w, const struct segment *s)
{
	struct ls_record *back = find_back(w);
	struct ls_slot *slot = w->slot;

	if (!back)
		return 0;
	if (!((w->rec->seen | back->seen) & LS_SEEN_RST) && !(is_done(w->rec, back) && is_done(back, w->rec)))
		return 0;
	/* An old duplicate is not a new connection. */
	if (!after(s->seq, w->rec->rx_end) &&
	    !(s->ts_at && after(s->tsval + w->rec->tsval_off, w->rec->ts_high)))
		return 0;
	barrier_var(slot); /* or the compiler tests `placement` instead, and the verifier does not follow */
	if (slot)
		slot->mode = LS_REPLACED;
	/* User space collects what is left of it. */
	*(volatile __u8 *)&w->flow->from[LS_CLIENT].rec.placement = LS_NONE;
	*(volatile __u8 *)&w->flow->from[LS_SERVER].rec.placement = LS_NONE;
	return 1;
}

/* Promises the far end no window that its parked socket could not keep. */
static __always_inline void keep_window(const struct walk *w, struct headers *new, const struct segment *s)
{
	struct ls_leg *o = &w->slot->leg[!(w->side & 1)];
	struct ls_record *rec = w->rec;
	__u32 ack = s->ack + rec->ack_off, edge = ack + (s->window << scale_in(rec));

	if (!(w->slot->flags & LS_KEEP) || !(s->flags & TCP_ACK))
		return;
	edge = kept_edge(w->slot, o, edge);
	raise(&o->tx_edge, edge);
	new->tcp.window = bpf_htons(window_field(edge, ack, scale_out(rec)));
}

/* FINAL: constant translation, and away. */
static __always_inline int forward(struct __sk_buff *skb, struct walk *w, struct scratch *b,
				   struct segment *s)
{
	struct headers *h = &b->in, *new = &b->out;
	struct ls_record *rec = w->rec;
	struct route route = {};
	struct edits edits;
	int verdict, as_it_came;

	if (hops_left(h) <= 1)
		return drop(LS_V_DROP_TTL);
	verdict = admit(w, s);
	if (verdict > 0)
		return drop(verdict);
	if (verdict == ELSEWHERE)
		return look_again(skb);
	note_fin_or_rst(w, s);
	note_translated(rec, s);
	/* What a stranger sends must not come into a socket's send queue. */
	if (w->slot && w->slot->flags & LS_COPY && s->len && s->in_place)
		hand_over(skb, w, s, LS_E_COPY);
	as_it_came = leaves_as_it_came(w, h, s);
	if (as_it_came) {
		new = h;
	} else {
		copy_headers(new, h, s->opt_len);
		translate(new, s, rec, far_of(w), &edits);
		if (w->slot)
			keep_window(w, new, s);
		apply_edits(new, s, &edits);
	}
	verdict = find_route_fast(skb, new, rec, w->slot ? 0 : rec->where, &route);
	if (verdict)
		return no_way(skb, h, s, verdict, &route);
	if (as_it_came ? write_hop(skb, h) : write_headers_fast(skb, h, new, s->opt_len, 1))
		return drop(LS_V_DROP_REWRITE);
	count(LS_V_FORWARDED);
	return send_by(skb, &route);
}

/* A copy from the drain that comes by once more, because only a packet itself can wait for a neighbour. */
__noinline int send_translated(struct __sk_buff *skb)
{
	struct scratch *b = get_scratch();
	struct headers *h = &b->in;
	struct ls_tuple unused;
	struct route route = {};
	int verdict;

	if (!b || parse_tuple(skb, h, &unused, AS_SENT) != SEGMENT || load_headers(skb, h) < 0)
		return drop(LS_V_DROP_MALFORMED);
	verdict = look_up_route(skb, h, 1, 0, &route);
	if (verdict)
		return drop(verdict);
	if (!route.resolve && bpf_skb_store_bytes(skb, 0, eth_of(h), 2 * ETH_ALEN, 0))
		return drop(LS_V_DROP_REWRITE);
	return send_by(skb, &route);
}

/* A segment of a flow whose sockets are in the path, in the direction with this number. The verifier follows
 * it by itself: once, and not for each of the ways that lead here. */
__noinline int with_sockets(struct __sk_buff *skb, __u32 number)
{
	struct scratch *b = get_scratch();
	int heard, resets, takes, stands, old, trapped;
	struct ls_leg *x, *o;
	struct segment *s;
	struct walk walk, *w = &walk;
	__u32 first, mode;

	if (!b || !find_by_number(number, w))
		return NEXT;
	if (!w->slot)
		return look_again(skb);
	s = &b->segment;
	first = mode = settled_mode(w->slot);
	trapped = meets_trap(w->rec, s);
	x = &w->slot->leg[w->side & 1];
	o = &w->slot->leg[!(w->side & 1)];
	/* What passed by of o's stream is acknowledged, and o knows. */
	heard = settled(o, x) || !before(o->tx_ack, o->base);
	resets = s->flags & TCP_RST;
	takes = s->end != s->seq && !resets;
	if (mode != LS_TRACK && mode != LS_DRAIN && mode != LS_UNDRAIN)
		return look_again(skb);
	if (!fits_window(x, s))
		return deliver_bare(skb, b, s, mapping_of_leg(x));
	if (acks_unsent(x, o, s))
		return deliver(skb, b, s, mapping_of_leg(x));
	if (acks_too_little(&x->rec, &o->rec, s))
		return mode == LS_TRACK ? deliver(skb, b, s, mapping_of_leg(x)) : drop(LS_V_ABSORBED);
	/* A reset has no say but that: its numbers are checked by nobody. */
	s->in_place = !resets && !before(s->end, x->tx_ack);
	note_peer(x, s);
	if (mode == LS_DRAIN && trapped)
		return drain_trapped(skb, w, b, s);
	/* Decided once: another CPU may raise the cut meanwhile. */
	old = (takes && mode != LS_DRAIN) || ((takes || resets) && before(s->seq, x->cut));
	/* Its number is shown to the socket, which will ignore the window of any lower one (RFC 9293 section
	 * 3.10.7.4, SND.WL1). */
	stands = s->end == s->seq && !resets && s->in_place && mode != LS_DRAIN;
	/* The cut first, then the mode: see raise(). */
	if ((takes && old) || stands)
		raise(&x->cut, s->end);
	mode = mode_of(w->slot);
	/* A wake that did not see our cut has stored its own, and may be over: what the socket is given now
	 * is above it. */
	if ((mode == LS_UNDRAIN || mode == LS_TRACK) && first != mode)
		return look_again(skb);
	/* Where it goes to the socket; elsewhere it would count as forwarded. */
	if (takes && (mode == LS_TRACK || mode == LS_UNDRAIN || (mode == LS_DRAIN && old && !trapped)))
		raise(&x->rec.rx_end, s->seq + s->len);
	if (mode == LS_TRACK) {
		/* Not before: what a drain takes over meanwhile the socket has not heard. */
		note_heard(x, s, s->ack);
		note_fin_or_rst(w, s);
		return deliver_in_window(skb, b, s, x);
	}
	if (mode == LS_DRAIN)
		return trapped ? drain_trapped(skb, w, b, s) : drain(skb, w, b, s, old);
	if (mode == LS_UNDRAIN)
		return undrain(skb, w, b, s, heard);
	return mode == LS_ABORTED ? NEXT : look_again(skb);
}

/* A segment that is only for the far end to hear of its acknowledgement (TAG_ACK). */
__noinline int acknowledge(struct __sk_buff *skb, __u32 number)
{
	struct scratch *b = get_scratch();
	struct walk w;

	skb->tc_index = 0;
	if (!b || !find_by_number(number, &w))
		return NEXT;
	if (!w.slot || mode_of(w.slot) != LS_UNDRAIN)
		return drop(LS_V_ABSORBED);
	return undrain_ack_copy(skb, &w, b, &b->segment);
}

/* Not a whole segment with headers that we know: up to the socket while there is one, with its own numbers.
 */
static __always_inline int odd_packet(const struct walk *w, enum parsed kind, __u32 mode)
{
	int spliced = mode == LS_FINAL || mode == LS_FREEZE;
	__u32 mapped = w->placement == LS_ALONE;

	if (w->slot)
		mapped = w->slot->leg[w->side & 1].adj_seq | w->slot->leg[w->side & 1].adj_ack;
	if (!spliced && !mapped && mode != LS_DRAIN && mode != LS_UNDRAIN)
		return pass(LS_V_DELIVERED);
	return kind == FRAGMENT	       ? drop(LS_V_DROP_FRAGMENT)
	       : kind == SOURCE_ROUTED ? drop(LS_V_DROP_IP_OPTIONS)
				       : drop(LS_V_DROP_MALFORMED);
}

/* A packet of user space's, whatever its Ethernet header says. 1 if it must take the way through the loopback
 * first: a local peer's packets must bring a route along. */
static __always_inline int let_in(struct __sk_buff *skb)
{
	skb->tc_index = TAG_FORWARDED;
	if (skb->ifindex == LOOPBACK)
		return 1;
	bpf_skb_change_type(skb, PACKET_HOST);
	return 0;
}

/* Whether what meets a trap can be x's own: a blind segment wakes nobody, and is not kept either. */
static __always_inline int is_plausible(const struct walk *w, struct segment *s, __u32 mode)
{
	struct ls_leg *x, *o;

	if (!w->slot || mode == LS_FINAL || mode == LS_FREEZE) {
		judge(w, s);
		return s->in_place;
	}
	x = &w->slot->leg[w->side & 1];
	o = &w->slot->leg[!(w->side & 1)];
	return fits_window(x, s) && !acks_unsent(x, o, s) && !acks_too_little(&x->rec, &o->rec, s);
}

/* Whom the packets of a flow concern now: enum ls_mode, with TRACK for a leg alone and FINAL for a flow
 * without sockets. */
static __always_inline __u32 mode_of_walk(const struct walk *w)
{
	return w->slot ? settled_mode(w->slot) : w->placement == LS_ALONE ? LS_TRACK : LS_FINAL;
}

/* Verdicts that say what is still to be done: forward() it, as it meets no trap; or with_sockets(). */
#define PASSES	   -2
#define TO_SOCKETS -3

/* A segment that meets a trap, or is new in FREEZE: control comes back, or user space keeps it until it does.
 * By itself for the verifier, as with_sockets(). */
__noinline int stop(struct __sk_buff *skb, __u32 number, __u32 mode)
{
	struct scratch *b = get_scratch();
	int plausible, verdict;
	struct segment *s;
	struct walk w;

	if (!b || !find_by_number(number, &w))
		return NEXT;
	s = &b->segment;
	plausible = is_plausible(&w, s, mode);
	if (plausible && w.slot && (mode == LS_FINAL || mode == LS_DRAIN)) {
		mode = wake_slot(skb, w.slot, mode, 1);
		if (mode == LS_UNDRAIN)
			count(LS_V_WOKEN);
	}
	if (w.slot && mode != LS_FINAL && mode != LS_FREEZE)
		return TO_SOCKETS;
	if (plausible)
		return hold(skb, &w, s);
	if (!after(s->end, w.rec->rx_end) && !(mode == LS_FREEZE && is_new(&w, s)))
		return PASSES;
	verdict = judge(&w, s);
	return drop(verdict ? verdict : LS_V_DROP_WINDOW);
}

/* A packet of the direction with this number that has ports: SEGMENT, or what parse_tuple() says that it is
 * instead. The first fragment of a segment is translated as one, if the others may follow it. */
__noinline int segment_of_flow(struct __sk_buff *skb, __u32 number, enum parsed kind)
{
	struct scratch *b = get_scratch();
	__u32 mode, tag = skb->tc_index;
	int is_first, verdict;
	struct segment *s;
	struct walk w;

	if (!b || !find_by_number(number, &w))
		return NEXT;
	s = &b->segment;
	mode = mode_of_walk(&w);
	if (is_nobodys(mode))
		return NEXT;
	if (is_changing(mode))
		return look_again(skb);
	is_first = kind == FRAGMENT && mode == LS_FINAL;
	if (kind == SEGMENT || is_first)
		kind = parse_segment(skb, &b->in, s);
	if (is_first && (kind != SEGMENT || begin_fragments(skb)))
		return drop(LS_V_DROP_FRAGMENT);
	if (kind != SEGMENT)
		return odd_packet(&w, kind, mode);
	if (tag == TAG_ACK)
		return acknowledge(skb, number);
	if (w.placement == LS_ALONE)
		return deliver(skb, b, s, mapping_of_record(w.rec));
	if (s->flags & TCP_SYN) {
		if (w.slot && mode != LS_FINAL)
			return deliver(skb, b, s, mapping_of_leg(&w.slot->leg[w.side & 1]));
		if (!(s->flags & TCP_ACK) && replaced_by_syn(&w, s))
			return pass(LS_V_SYN_REPLACED);
	}
	if (meets_trap(w.rec, s) || (mode == LS_FREEZE && is_new(&w, s)))
		verdict = stop(skb, number, mode);
	else
		verdict = w.slot && mode != LS_FINAL && mode != LS_FREEZE ? TO_SOCKETS : PASSES;
	return verdict == PASSES ? forward(skb, &w, b, s) : verdict;
}

SEC("tc")
int ingress(struct __sk_buff *skb)
{
	struct scratch *b = get_scratch();
	__u32 tag = skb->tc_index, number;
	enum parsed kind;
	int verdict;

	if (!b || tag == TAG_DELIVER)
		return NEXT;
	if (tag == TAG_SEND)
		return send_translated(skb);
	if (tag == TAG_INJECT && let_in(skb))
		return come_in(skb);
	/* Seen because the interface is promiscuous, or a switch floods: the stack would discard it. */
	if (skb->pkt_type == PACKET_OTHERHOST)
		return NEXT;
	kind = parse_tuple(skb, &b->in, &b->tuple, AS_SENT);
	if (kind == NOT_OURS)
		return without_ports(skb);
	number = look_up(&b->tuple);
	if (!number)
		return NEXT;
	verdict = segment_of_flow(skb, number, kind);
	/* From here: the stack of all that is called is bounded, and both need much. */
	return verdict == TO_SOCKETS ? with_sockets(skb, number) : verdict;
}

/* What a parked socket says is not sent, but it stands by the window that it offers. One that resets is gone,
 * with its process: a trap must not wake it. */
static __always_inline void note_parked(struct ls_slot *slot, struct ls_leg *x, const struct ls_leg *o,
					const struct segment *s)
{
	if (s->flags & TCP_RST)
		__sync_fetch_and_and(&slot->flags, ~LS_WAKEABLE);
	else if (s->flags & TCP_ACK && mode_of(slot) == LS_FINAL)
		raise(&x->loc_edge, s->ack - x->adj_seq + (s->window << scale_out(&o->rec)));
}

SEC("tc")
int egress(struct __sk_buff *skb)
{
	struct scratch *b = get_scratch();
	struct ls_tuple tuple;
	struct edits edits = {};
	struct segment *s;
	enum parsed kind;
	struct walk w;
	__u32 mode;

	if (is_tagged(skb) || !b)
		return NEXT;
	s = &b->segment;
	kind = parse_tuple(skb, &b->in, &tuple, REVERSED);
	if (kind == NOT_OURS || !find(&tuple, &w))
		return NEXT;
	mode = mode_of_walk(&w);
	if (mode == LS_FREE || mode == LS_REPLACED)
		return NEXT;
	if (mode == LS_FREEZE || mode == LS_MOVED || mode == LS_WAKING)
		mode = LS_FINAL;
	if (kind == SEGMENT)
		kind = parse_segment(skb, &b->in, s);
	if (kind != SEGMENT)
		return mode == LS_FINAL ? drop(LS_V_DROP_PARKED) : pass(LS_V_EMITTED);
	if (mode == LS_FINAL && w.slot)
		note_parked(w.slot, &w.slot->leg[w.side & 1], &w.slot->leg[!(w.side & 1)], s);
	if (mode == LS_FINAL)
		return (s->flags & (TCP_SYN | TCP_ACK)) == TCP_SYN ? refuse_syn(skb, b, s)
								   : drop(LS_V_DROP_PARKED);
	if (!w.slot)
		return emit_alone(skb, w.rec, b, s);
	to_wire(b, s, &edits, mapping_of_leg(&w.slot->leg[w.side & 1]));
	if (mode != LS_TRACK && s->flags & TCP_RST)
		return abort_flow(skb, &w, b, s, mode);
	/* What cannot be understood any more is not said. */
	if (mode == LS_ABORTED)
		return b->out.tcp.seq == b->in.tcp.seq && !edits.sack_off ? NEXT : drop(LS_V_DROP_PARKED);
	return emit(skb, &w, b, s, &edits, mode);
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
