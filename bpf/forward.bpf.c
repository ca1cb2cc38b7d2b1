// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * FWD: the translation at tc. It reads like the walk of a packet: which connection, which mode, and from
 * there to the verdict. Two programs: `ingress` sees what the peers send, `egress` what our own sockets send.
 */
#include <linux/bpf.h>
#include <linux/if_packet.h>
#include <linux/pkt_cls.h>
#include <stddef.h>
#include "checksum.h"
#include "count.h"
#include "maps.h"
#include "route.h"
#include "track.h"
#include "translate.h"

/* Everything the steps of a walk share. */
struct walk {
	struct ls_record *rec; /* of the direction, wherever the truth is */
	struct ls_slot *slot;  /* NULL: detached */
	__u32 side;
};

/* The record of a tuple; NULL if it is none of ours. */
static __always_inline struct ls_record *find(const struct ls_tuple *tuple, struct walk *w)
{
	struct ls_record *rec = bpf_map_lookup_elem(&flows, tuple);
	__u32 index;

	w->slot = NULL;
	w->rec = rec;
	if (!rec)
		return NULL;
	w->side = rec->traits & LS_SIDE_SERVER ? LS_SERVER : LS_CLIENT;
	if (*(volatile __u8 *)&rec->placement != LS_SLOTTED)
		return rec;
	index = rec->where;
	w->slot = bpf_map_lookup_elem(&slots, &index);
	if (!w->slot)
		return NULL;
	/* release() has put an interface into `where` between our two looks: the record has the truth now. */
	if (w->slot->serial != rec->serial) {
		w->slot = NULL;
		return *(volatile __u8 *)&rec->placement == LS_DETACHED ? rec : NULL;
	}
	w->rec = &w->slot->leg[w->side & 1].rec;
	return rec;
}

/* The record of the direction back; NULL if the flow is incomplete, which only happens while it is being
 * removed. */
static __always_inline struct ls_record *find_back(const struct walk *w)
{
	struct ls_tuple tuple = reverse_of(w->rec);
	struct walk back;

	return find(&tuple, &back) ? back.rec : NULL;
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

/*
 * A SYN on a spliced tuple. If both ends have closed, the connection is a new one: the record goes, and the
 * listener gets it (RFC 9293 section 3.6.1, from TIME-WAIT). Otherwise the far end is asked: it challenges
 * (RFC 5961 section 4).
 */
static __always_inline int replaced_by_syn(struct walk *w, const struct ls_tuple *tuple,
					   const struct segment *s)
{
	struct ls_tuple back_key = reverse_of(w->rec);
	struct ls_record *back = find_back(w);
	struct ls_slot *slot = w->slot;

	if (!back)
		return 0;
	if (!((w->rec->seen | back->seen) & LS_SEEN_RST) && !(w->rec->seen & back->seen & LS_SEEN_FIN))
		return 0;
	/* An old duplicate is not a new connection. */
	if (!after(s->seq, w->rec->rx_end) &&
	    !(s->ts_at && after(s->tsval + w->rec->tsval_off, w->rec->ts_high)))
		return 0;
	barrier_var(slot); /* or the compiler tests `placement` instead, and the verifier does not follow */
	if (slot)
		slot->mode = LS_REPLACED;
	bpf_map_delete_elem(&flows, tuple);
	bpf_map_delete_elem(&flows, &back_key);
	return 1;
}

/* Whether what a segment says is to be noted. The next one in order is nobody's guess, and needs no look at
 * the direction back. */
static __always_inline void judge(const struct walk *w, struct segment *s)
{
	struct ls_record *back;

	if (s->seq == w->rec->rx_end && !(s->flags & TCP_SYN))
		return;
	back = find_back(w);
	s->in_place = back && !(s->flags & TCP_SYN) && in_window(back, s);
}

/* FINAL: constant translation, and away. */
static __always_inline int forward(struct __sk_buff *skb, struct walk *w, struct scratch *b,
				   struct segment *s)
{
	struct headers *h = &b->in, *new = &b->out;
	struct ls_record *rec = w->rec;
	struct route route;
	struct edits edits;
	int verdict;

	if (h->ip.ttl <= 1)
		return drop(LS_V_DROP_TTL);
	judge(w, s);
	if (s->in_place)
		note_ack(rec, s);
	note_fin_or_rst(w, s);
	note_translated(rec, s, skb->gso_segs);
	copy_headers(new, h, s->opt_len);
	translate(new, s, rec, &edits);
	apply_edits(new, s, &edits);
	verdict = find_route(skb, new, rec->traits & LS_FAR_LOCAL, w->slot ? 0 : rec->where, &route);
	if (verdict)
		return drop(verdict);
	if (write_headers(skb, h, new, s->opt_len))
		return drop(LS_V_DROP_REWRITE);
	count(LS_V_FORWARDED);
	return send_by(skb, &route);
}

/* DRAIN, the far end's copy: whatever has payload, and acknowledgements that tell it something new. */
static __always_inline int drain_far_copy(struct __sk_buff *skb, struct ls_leg *x, struct ls_leg *o,
					  struct headers *new, const struct segment *s, struct route *route)
{
	__u32 ack = s->ack + x->rec.ack_off, edge = ack + (s->window << (x->rec.wscale_in & 15));
	int raised = before(ack, o->tx_ack);
	struct edits edits;

	translate(new, s, &x->rec, &edits);
	/* The local socket may have acknowledged more already: an acknowledgement never goes back. */
	if (raised)
		ack = o->tx_ack;
	else
		raise(&o->tx_ack, ack);
	/* What is missing below the cut is on its way through the sockets: o must not take it for lost. */
	if (raised || before(ack, o->cut))
		edits.sack = SACK_BLANK;
	raise(&o->tx_edge, edge);
	new->tcp.ack = bpf_htonl(ack);
	new->tcp.window = bpf_htons(window_field(edge, ack, x->rec.wscale_out));
	apply_edits(new, s, &edits);
	return find_route(skb, new, x->rec.traits & LS_FAR_LOCAL, 0, route);
}

/* DRAIN, the local socket's copy: payload below the cut, and acknowledgements of what it sent itself. */
static __always_inline int drain_local_copy(struct __sk_buff *skb, struct ls_leg *x, struct headers *h,
					    struct headers *written, const struct segment *s, int old)
{
	__u32 ack = seq_min(s->ack, x->loc_end);
	struct edits edits = {.sack = SACK_CLIP, .lo = ack, .hi = x->loc_end};

	x->loc_acked = seq_max(x->loc_acked, ack);
	h->tcp.ack = bpf_htonl(ack);
	if (!old) {
		h->tcp.seq = bpf_htonl(seq_min(s->seq, x->cut));
		if (!(s->flags & TCP_RST))
			h->tcp.flags &= ~(TCP_FIN | TCP_PSH | TCP_URG);
	}
	apply_edits(h, s, &edits);
	if (write_headers(skb, written, h, s->opt_len))
		return -1;
	return !old && s->len ? trim_payload(skb, h, s->opt_len) : 0;
}

/* DRAIN (splice.md): new payload is forwarded, old payload is delivered, acknowledgements go where they are
 * waited for. */
static __always_inline int drain(struct __sk_buff *skb, struct walk *w, struct scratch *b,
				 const struct segment *s)
{
	struct ls_leg *x = &w->slot->leg[w->side & 1], *o = &w->slot->leg[!(w->side & 1)];
	int has_data = s->len || s->flags & (TCP_FIN | TCP_RST), old, wanted, waits;
	__u32 ack = s->ack + x->rec.ack_off, cut = x->cut;
	struct headers *h = &b->in, *new = &b->out;
	struct route route;
	int verdict;

	copy_headers(new, h, s->opt_len);
	old = has_data && before(s->seq, cut);
	waits = before(x->loc_acked, o->cut + o->rec.seq_off);
	/* A probe of an end that waits for its window must be answered. */
	wanted = has_data || !before(ack, o->tx_ack) || before(s->seq, x->rec.rx_end) ||
		 after(ack + (s->window << (x->rec.wscale_in & 15)), o->tx_edge);
	if (!wanted)
		return waits ? (drain_local_copy(skb, x, h, new, s, old) ? drop(LS_V_DROP_REWRITE)
									 : pass(LS_V_LOCAL_ONLY))
			     : drop(LS_V_ABSORBED);
	if (h->ip.ttl <= 1)
		return drop(LS_V_DROP_TTL);
	note_fin_or_rst(w, s);
	verdict = drain_far_copy(skb, x, o, new, s, &route);
	if (verdict)
		return drop(verdict);
	if (!old)
		note_translated(&x->rec, s, skb->gso_segs);
	if (write_headers(skb, h, new, s->opt_len))
		return drop(LS_V_DROP_REWRITE);
	if (!old && !waits && !(s->flags & TCP_RST)) {
		count(LS_V_FORWARDED);
		return send_by(skb, &route);
	}
	if (read_check(skb, new))
		return drop(LS_V_DROP_REWRITE);
	send_copy_by(skb, &route);
	return drain_local_copy(skb, x, h, new, s, old) ? drop(LS_V_DROP_REWRITE) : pass(LS_V_SHARED);
}

/* A copy from the drain that comes by once more, because only a packet itself can wait for a neighbour. */
static __always_inline int send_translated(struct __sk_buff *skb, struct scratch *b)
{
	struct headers *h = &b->in;
	struct route route;
	int verdict;

	if (bpf_skb_load_bytes(skb, 0, &h->eth, OPT_OFFSET))
		return drop(LS_V_DROP_MALFORMED);
	verdict = find_route(skb, h, 1, 0, &route);
	if (verdict)
		return drop(verdict);
	if (!route.resolve && bpf_skb_store_bytes(skb, 0, &h->eth, 2 * ETH_ALEN, 0))
		return drop(LS_V_DROP_REWRITE);
	return send_by(skb, &route);
}

SEC("tc")
int ingress(struct __sk_buff *skb)
{
	struct scratch *b = get_scratch();
	struct ls_tuple tuple;
	struct segment s;
	enum parsed kind;
	struct walk w;
	__u32 mode;

	if (!b)
		return NEXT;
	if (skb->tc_index == TAG_DELIVER)
		return NEXT;
	if (skb->tc_index == TAG_SEND)
		return send_translated(skb, b);
	/* Seen because the interface is promiscuous, or a switch floods: the stack would discard it. */
	if (skb->pkt_type == PACKET_OTHERHOST)
		return NEXT;
	kind = parse_tuple(skb, &tuple);
	if (kind == NOT_OURS || !find(&tuple, &w))
		return NEXT;
	mode = w.slot ? mode_of(w.slot) : LS_FINAL;
	if (mode != LS_TRACK && mode != LS_DRAIN && mode != LS_FINAL)
		return NEXT;
	if (kind != SEGMENT)
		return mode == LS_TRACK	  ? pass(LS_V_DELIVERED)
		       : kind == FRAGMENT ? drop(LS_V_DROP_FRAGMENT)
					  : drop(LS_V_DROP_IP_OPTIONS);
	if (parse_segment(skb, &b->in, &s))
		return mode == LS_TRACK ? pass(LS_V_DELIVERED) : drop(LS_V_DROP_MALFORMED);
	if (s.flags & TCP_SYN) {
		if (mode != LS_FINAL)
			return pass(LS_V_DELIVERED);
		if (!(s.flags & TCP_ACK) && replaced_by_syn(&w, &tuple, &s))
			return pass(LS_V_SYN_REPLACED);
	}
	if (w.slot && mode != LS_FINAL) {
		struct ls_leg *x = &w.slot->leg[w.side & 1], *o = &w.slot->leg[!(w.side & 1)];
		int unsent = acks_unsent(x, o, &s);

		if (!fits_window(x, &s))
			return pass(LS_V_DELIVERED);
		s.in_place = !unsent && !before(s.end, x->tx_ack);
		note_peer(x, &s);
		if (mode == LS_TRACK) {
			if (s.in_place)
				x->loc_acked = seq_max(x->loc_acked, s.ack);
			raise(&x->rec.rx_end, s.end);
			mode = raise_cut(w.slot, x, s.end);
		} else if (before(s.seq, x->cut) && s.end != s.seq) {
			raise(&x->rec.rx_end, s.end);
			mode = raise_cut(w.slot, x, s.end);
		}
		if (mode == LS_TRACK) {
			note_fin_or_rst(&w, &s);
			return pass(LS_V_DELIVERED);
		}
		if (mode == LS_DRAIN)
			return unsent ? pass(LS_V_DELIVERED) : drain(skb, &w, b, &s);
		if (mode != LS_FINAL)
			return NEXT;
	}
	return forward(skb, &w, b, &s);
}

/* A local SYN onto a live tuple: the program that connects is told at once, and the live flow does not
 * notice. */
static __always_inline int refuse_syn(struct __sk_buff *skb, struct scratch *b, const struct segment *s)
{
	struct headers *h = &b->in, *new = &b->out;

	copy_headers(new, h, s->opt_len);
	__builtin_memcpy(new->eth.h_dest, h->eth.h_source, ETH_ALEN);
	__builtin_memcpy(new->eth.h_source, h->eth.h_dest, ETH_ALEN);
	new->ip.saddr = h->ip.daddr;
	new->ip.daddr = h->ip.saddr;
	new->tcp.sport = h->tcp.dport;
	new->tcp.dport = h->tcp.sport;
	new->tcp.seq = 0;
	new->tcp.ack = bpf_htonl(s->end);
	new->tcp.flags = TCP_RST | TCP_ACK;
	new->tcp.window = 0;
	if (write_headers(skb, h, new, s->opt_len))
		return drop(LS_V_DROP_REWRITE);
	count(LS_V_SYN_REFUSED);
	skb->tc_index = TAG_DELIVER;
	return bpf_redirect(skb->ifindex, BPF_F_INGRESS);
}

/*
 * A socket that held bytes was reset: the peer must believe it, whatever was forwarded past the socket
 * meanwhile. Its next segment would be answered by the kernel, too, but an idle peer sends none. A reset
 * below what the peer has is not even challenged, so this one goes to the end of all that was sent to it:
 * where something is still missing, the peer challenges, and the kernel's answer to that is in place by
 * itself.
 */
static __always_inline int abort_flow(struct __sk_buff *skb, struct walk *w, struct scratch *b,
				      const struct segment *s)
{
	struct ls_leg *x = &w->slot->leg[w->side & 1], *o = &w->slot->leg[!(w->side & 1)];
	struct headers *h = &b->in, *new = &b->out;

	w->slot->mode = LS_ABORTED;
	if (!(s->flags & TCP_ACK))
		return pass(LS_V_ABORTED);
	copy_headers(new, h, s->opt_len);
	new->tcp.seq = bpf_htonl(after(o->rec.rx_end, o->cut) ? o->rec.rx_end + o->rec.seq_off : x->loc_end);
	return write_headers(skb, h, new, s->opt_len) ? drop(LS_V_DROP_REWRITE) : pass(LS_V_ABORTED);
}

/* The right edge that x may be offered: what the far end has, and no more than `room` beyond what it
 * acknowledged. */
static __always_inline __u32 coupled_edge(const struct ls_leg *x, const struct ls_leg *o)
{
	__u32 edge = o->rec.rx_edge + o->rec.ack_off;

	if (x->room)
		edge = seq_min(edge, o->rec.rx_ack + o->rec.ack_off + x->room);
	return edge;
}

/* What the local socket of x's leg sends, while the flow has sockets that speak. */
static __always_inline int emit(struct __sk_buff *skb, struct walk *w, struct scratch *b,
				const struct segment *s, __u32 mode)
{
	struct ls_leg *x = &w->slot->leg[w->side & 1], *o = &w->slot->leg[!(w->side & 1)];
	__u8 scale = o->rec.wscale_out;
	__u32 edge = s->ack + (s->window << (scale & 15)), ack = s->ack, window = s->window;
	struct edits edits = {};
	struct headers *h = &b->in, *new = &b->out;

	copy_headers(new, h, s->opt_len);
	raise(&x->loc_end, s->end);
	if (s->ts_at) {
		if (before(s->tsval, o->rec.ts_high))
			edits.tsval_off = o->rec.ts_high - s->tsval;
		else
			o->rec.ts_high = s->tsval;
	}
	if (s->flags & TCP_ACK) {
		raise(&x->loc_edge, edge);
		if (mode == LS_DRAIN) {
			ack = seq_max(ack, x->tx_ack);
			edge = o->rec.rx_edge + o->rec.ack_off;
			window = window_field(edge, ack, scale);
		} else if (w->slot->flags & LS_COUPLE && after(edge, coupled_edge(x, o))) {
			window = window_field(coupled_edge(x, o), ack, scale);
			edge = ack + (window << (scale & 15));
		}
		raise(&x->tx_ack, ack);
		if (mode == LS_DRAIN)
			raise(&x->tx_edge, edge);
		else
			x->tx_edge = edge;
	}
	if (ack != s->ack)
		edits.sack = SACK_BLANK;
	new->tcp.ack = s->flags &TCP_ACK ? bpf_htonl(ack) : h->tcp.ack;
	new->tcp.window = bpf_htons(window);
	if (!edits.tsval_off && ack == s->ack && window == s->window)
		return pass(LS_V_EMITTED);
	apply_edits(new, s, &edits);
	return write_headers(skb, h, new, s->opt_len) ? drop(LS_V_DROP_REWRITE) : pass(LS_V_CLAMPED);
}

SEC("tc")
int egress(struct __sk_buff *skb)
{
	struct scratch *b = get_scratch();
	struct ls_tuple out, tuple;
	struct segment s;
	enum parsed kind;
	struct walk w;
	__u32 mode;

	if (skb->tc_index == TAG_FORWARDED || !b)
		return NEXT;
	kind = parse_tuple(skb, &out);
	if (kind == NOT_OURS)
		return NEXT;
	tuple.saddr = out.daddr;
	tuple.daddr = out.saddr;
	tuple.sport = out.dport;
	tuple.dport = out.sport;
	if (!find(&tuple, &w))
		return NEXT;
	mode = w.slot ? mode_of(w.slot) : LS_FINAL;
	if (mode == LS_FREE || mode == LS_REPLACED)
		return NEXT;
	if (kind != SEGMENT || parse_segment(skb, &b->in, &s))
		return mode == LS_FINAL ? drop(LS_V_DROP_PARKED) : pass(LS_V_EMITTED);
	if (mode == LS_FINAL)
		return (s.flags & (TCP_SYN | TCP_ACK)) == TCP_SYN ? refuse_syn(skb, b, &s)
								  : drop(LS_V_DROP_PARKED);
	if (mode != LS_TRACK && s.flags & TCP_RST)
		return abort_flow(skb, &w, b, &s);
	return mode == LS_ABORTED ? NEXT : emit(skb, &w, b, &s, mode);
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
