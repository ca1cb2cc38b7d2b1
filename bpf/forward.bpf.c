// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Forwards and translates at tc (FWD). The code follows the walk of a packet: find the connection, read the
 * mode, and go from there to the verdict. Two programs: `ingress` processes the peers' packets, `egress`
 * those of our own sockets.
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
#include "spoilt.h"
#include "syn.h"
#include "too_big.h"
#include "undrain.h"
#include "wake.h"
#include "walk.h"
#include "window.h"

/* Promises the far end no window that its parked socket could not take. */
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

/* Forwards a segment in FINAL, by the constant translation. */
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
	/* Verify a segment that is copied: the copy may come into a socket's send queue. */
	if (!is_plain_sound(h) ||
	    ((tells_more(rec, s) || (w->slot && w->slot->flags & LS_COPY)) && is_spoilt(skb)))
		return drop(LS_V_DROP_CHECKSUM);
	verdict = admit(w, s);
	if (verdict > 0)
		return drop(verdict);
	if (verdict == ELSEWHERE)
		return look_again(skb);
	note_fin_or_rst(w, s);
	note_translated(rec, s);
	/* Copy validated segments only: the copies end up in a socket's send queue. */
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

/* Sends a copy from the drain, which comes by once more because only a packet itself can wait for a
 * neighbor. */
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

/* Processes a segment of a flow whose sockets are in the path, in the direction with this number. The
 * verifier follows this function by itself: once, not for each path that leads here. */
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
	/* True if o knows that all of its stream that went past the socket is acknowledged. */
	heard = settled(o, x) || !before(o->tx_ack, o->base);
	resets = s->flags & TCP_RST;
	takes = s->end != s->seq && !resets;
	if (mode != LS_TRACK && mode != LS_DRAIN && mode != LS_UNDRAIN)
		return look_again(skb);
	/* Note, show and cut nothing of a corrupted segment: its bytes would be acknowledged in place of the
	 * true ones. */
	if (is_spoilt(skb))
		return drop(LS_V_DROP_CHECKSUM);
	/* This reset answers a late duplicate, and must not end the connection while o still waits for
	 * data. */
	if (resets && mode != LS_TRACK && is_through(x, o))
		return drop(LS_V_CONSUMED);
	if (!fits_window(x, s))
		return deliver_bare(skb, b, s, mapping_of_leg(x));
	if (acks_unsent(x, o, s))
		return deliver(skb, b, s, mapping_of_leg(x));
	if (acks_too_little(&x->rec, &o->rec, s))
		return mode == LS_TRACK ? deliver(skb, b, s, mapping_of_leg(x)) : drop(LS_V_CONSUMED);
	/* A reset changes nothing else: its other numbers are not validated. */
	s->in_place = !resets && !before(s->end, x->tx_ack);
	note_peer(x, s);
	if (mode == LS_DRAIN && trapped)
		return drain_trapped(skb, w, b, s);
	/* Decide once: another CPU may raise the cut meanwhile. */
	old = (takes && mode != LS_DRAIN) || ((takes || resets) && before(s->seq, x->cut));
	/* The socket is shown this number, and will ignore the window of any lower one (RFC 9293 section
	 * 3.10.7.4, SND.WL1). */
	stands = s->end == s->seq && !resets && s->in_place && mode != LS_DRAIN;
	/* Raise the cut first, then read the mode: see raise(). */
	if ((takes && old) || stands)
		raise(&x->cut, s->end);
	mode = mode_of(w->slot);
	/* A wake that did not see our cut has stored its own, and may be over: the socket's next bytes are
	 * above it. */
	if ((mode == LS_UNDRAIN || mode == LS_TRACK) && first != mode)
		return look_again(skb);
	/* Note the end where the segment goes to the socket; elsewhere it would count as forwarded. */
	if (takes && (mode == LS_TRACK || mode == LS_UNDRAIN || (mode == LS_DRAIN && old && !trapped)))
		raise(&x->rec.rx_end, s->seq + s->len);
	if (mode == LS_TRACK) {
		/* Note this no earlier: the socket does not receive a segment that a drain takes over
		 * meanwhile. */
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

/* Forwards only the acknowledgement of a segment, to the far end (TAG_ACK). */
__noinline int acknowledge(struct __sk_buff *skb, __u32 number)
{
	struct scratch *b = get_scratch();
	struct walk w;

	skb->tc_index = 0;
	if (!b || !find_by_number(number, &w))
		return NEXT;
	if (!w.slot || mode_of(w.slot) != LS_UNDRAIN)
		return drop(LS_V_CONSUMED);
	return undrain_ack_copy(skb, &w, b, &b->segment);
}

/* Handles a packet that is not a whole segment with known headers: it goes up to the socket while there is
 * one with the numbers of the wire. */
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

/* Lets in a packet that user space injects, whatever its Ethernet header says. Returns 1 if it must go
 * through the loopback first: a local peer's packets must bring a route along. */
static __always_inline int let_in(struct __sk_buff *skb)
{
	skb->tc_index = TAG_FORWARDED;
	if (skb->ifindex == LOOPBACK)
		return 1;
	bpf_skb_change_type(skb, PACKET_HOST);
	return 0;
}

/* Returns whether a segment that meets a trap can be x's own: a blind segment wakes no pair, and is not kept
 * either. */
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

/* Returns the mode in which packets of a flow are processed: enum ls_mode, with TRACK for a leg alone and
 * FINAL for a flow without sockets. */
static __always_inline __u32 mode_of_walk(const struct walk *w)
{
	return w->slot ? settled_mode(w->slot) : w->placement == LS_ALONE ? LS_TRACK : LS_FINAL;
}

/* Verdicts that name the next step: forward() the segment, as it meets no trap; or with_sockets(). */
#define PASSES	   -2
#define TO_SOCKETS -3

/* Processes a segment that meets a trap, or is new in FREEZE: the sockets come back, or user space keeps the
 * segment until they do. The verifier follows this function by itself, as with_sockets(). */
__noinline int stop(struct __sk_buff *skb, __u32 number, __u32 mode)
{
	struct scratch *b = get_scratch();
	int plausible, verdict;
	struct segment *s;
	struct walk w;

	if (!b || !find_by_number(number, &w))
		return NEXT;
	s = &b->segment;
	/* A held segment gets a new checksum, which would hide the corruption. */
	if (is_spoilt(skb))
		return drop(LS_V_DROP_CHECKSUM);
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

/* Processes a packet with ports of the direction with this number. `kind` is SEGMENT, or what parse_tuple()
 * found instead. The first fragment of a segment is translated as one, if the others may follow it. */
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
		verdict = w.slot && mode != LS_FINAL ? syn_with_sockets(skb, &w, b, s, mode)
						     : syn_of_spliced(skb, &w, s, mode);
		if (verdict != GOES_ON)
			return verdict;
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
	/* The interface is promiscuous, or a switch floods: the stack would discard the packet. */
	if (skb->pkt_type == PACKET_OTHERHOST)
		return NEXT;
	kind = parse_tuple(skb, &b->in, &b->tuple, AS_SENT);
	if (kind == NOT_OURS)
		return without_ports(skb);
	number = table_lookup(&b->tuple);
	if (!number)
		return NEXT;
	verdict = segment_of_flow(skb, number, kind);
	/* Call this from here: the stack of all nested calls is bounded, and both functions need much of
	 * it. */
	return verdict == TO_SOCKETS ? with_sockets(skb, number) : verdict;
}

/* Notes a parked socket's segment, which is dropped: the window that it offers stays promised. A socket that
 * resets is gone, with its process: a trap must not wake it. */
static __always_inline void note_parked(struct ls_slot *slot, struct ls_leg *x, const struct ls_leg *o,
					const struct segment *s)
{
	if (s->flags & TCP_RST)
		__sync_fetch_and_and(&slot->flags, ~LS_WAKEABLE);
	else if (s->flags & TCP_ACK && mode_of(slot) == LS_FINAL)
		raise(&x->loc_edge, edge_of(s, scale_out(&o->rec)) - x->adj_seq);
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
	/* A segment that cannot be mapped any more is dropped. */
	if (mode == LS_ABORTED)
		return b->out.tcp.seq == b->in.tcp.seq && !edits.sack_off ? NEXT : drop(LS_V_DROP_PARKED);
	return emit(skb, &w, b, s, &edits, mode);
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
