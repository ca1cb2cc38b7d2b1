/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Forwards fragments of a spliced flow. The first one has the ports and is translated like a segment; the
 * others follow it by addresses and identification (docs/decisions/0013). They are not reassembled: each goes
 * on as it comes, and counts as forwarded payload.
 */
#ifndef LONGSPLICE_FRAGMENT_H
#define LONGSPLICE_FRAGMENT_H

#include "admit.h"
#include "rewrite.h"
#include "route.h"

/* State of a datagram whose first fragment was forwarded. */
struct fragmented {
	__be16 sport, dport;
	__u32 seq, ack; /* numbers of its segment */
	__be32 id;	/* toward the far end: two clients may have chosen the same one */
	__u32 since;	/* ticks */
	__u16 header;	/* bytes of its TCP header */
	__u16 flags;	/* TCP's flags */
	__u32 ts_at;	/* see struct segment; only the first fragment has the options */
	__u32 tsval, tsecr;
};

/* Datagrams that are being forwarded. Only plausible first fragments make an entry; if there are too many,
 * the oldest are evicted, and their segments are retransmitted. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1024);
	__type(key, struct fragment_key);
	__type(value, struct fragmented);
} fragments SEC(".maps");

/* Returns whether fragments of this flow may pass: no local program needs the payload. */
static __always_inline int passes_fragments(const struct flow_ref *flow)
{
	if (!flow->slot)
		return flow->placement == LS_DETACHED;
	return mode_of(flow->slot) == LS_FINAL && !(flow->slot->flags & LS_COPY);
}

/* Returns whether the fragment can be the sender's own: in the window, or a repetition. A sender repeats old
 * bytes until it hears an acknowledgement. Forged fragments must not evict others from the table. */
static __always_inline int may_begin(const struct flow_ref *flow, struct segment *seg)
{
	return !admit_segment(flow, seg) && (seg->in_place || find_back(flow));
}

/*
 * Notes the first fragment of a segment, so that the others can follow it. Reduces the segment in the scratch
 * to the part that the fragment holds. Returns 0 if the fragment may be forwarded; otherwise it is to be
 * dropped.
 */
__noinline int begin_fragments(struct __sk_buff *skb)
{
	struct scratch *scratch = get_scratch();
	struct fragmented datagram = {};
	struct fragment_key key;
	struct ls_tuple *tuple;
	struct headers *h;
	struct segment *seg;
	struct fragment f;
	struct flow_ref flow;

	if (!scratch)
		return -1;
	h = &scratch->in;
	seg = &scratch->segment;
	tuple = &scratch->tuple;
	if (!is_plain_sound(h) || read_fragment(skb, h, &f) || f.offset)
		return -1;
	if (l4_of(h) != fragment_l4(h))
		return -1;
	if (seg->flags & (TCP_SYN | TCP_RST) || !find(tuple, &flow) || !passes_fragments(&flow))
		return -1;
	datagram.flags = seg->flags;
	/* The FIN stands at the end of the last fragment. */
	seg->flags &= ~TCP_FIN;
	seg->end = seg->seq + seg->len;
	seg->whole = 0;
	if (meets_trap(flow.rec, seg) || !may_begin(&flow, seg))
		return -1;
	datagram.sport = tuple->sport;
	datagram.dport = tuple->dport;
	datagram.seq = seg->seq;
	datagram.ack = seg->ack;
	datagram.since = ticks();
	datagram.header = sizeof(struct tcp) + seg->opt_len;
	datagram.ts_at = seg->ts_at;
	datagram.tsval = seg->tsval;
	datagram.tsecr = seg->tsecr;
	datagram.id = bpf_get_prandom_u32();
	if (!is_v6(h))
		datagram.id &= 0xffff;
	key_of(h, f.id, &key);
	if (bpf_map_update_elem(&fragments, &key, &datagram, BPF_ANY) || set_fragment_id(skb, h, datagram.id))
		return -1;
	count(LS_V_FRAGMENT);
	return 0;
}

/* Fills in the part of the segment that a later fragment holds. Returns 0; -1 if no honest sender makes such
 * a fragment: over the TCP header (RFC 3128), or beyond the longest datagram. */
static __always_inline int segment_of(const struct fragmented *d, const struct fragment *f,
				      struct segment *seg)
{
	if (f->offset < d->header || f->offset + f->len > 65535)
		return -1;
	seg->seq = d->seq + f->offset - d->header;
	seg->ack = d->ack;
	seg->len = f->len;
	seg->flags = TCP_ACK | (f->last ? d->flags & TCP_FIN : 0);
	seg->end = seg->seq + seg->len + !!(seg->flags & TCP_FIN);
	seg->ts_at = d->ts_at;
	seg->tsval = d->tsval;
	seg->tsecr = d->tsecr;
	return 0;
}

/* Writes the IP header toward the far end into the scratch, for a packet that is no segment, and finds its
 * route: that of the flow's segments, whichever routing rule decides it. Returns 0; -1 with the reason in
 * `route`. */
static __always_inline int head_for_far_end(struct __sk_buff *skb, const struct flow_ref *flow,
					    struct scratch *scratch, struct route *route)
{
	struct headers *new = &scratch->out;
	struct ls_record *rec = flow->rec;

	__builtin_memcpy(new, &scratch->in, offsetof(struct headers, tcp));
	__builtin_memset(&new->tcp, 0, sizeof(new->tcp));
	renew_hops(new, far_of(flow));
	if (crosses(rec))
		change_version(new, label_of(rec), sizeof(struct fragment_header));
	address_to(new, far_of(flow));
	if (find_route(skb, new, rec, flow->slot ? 0 : rec->where, route))
		return -1;
	if (!crosses(rec))
		mend_ip_check(&scratch->in, new);
	return 0;
}

/* Writes the IP header of a later fragment: of its own version, or of the other one. Returns 0, or -1. */
static __always_inline int write_fragment(struct __sk_buff *skb, struct scratch *scratch,
					  const struct fragment *f)
{
	struct headers *old = &scratch->in, *new = &scratch->out;

	if (is_v6(old) != is_v6(new))
		return change_packet(skb, old, new) || become_fragment(skb, new, f) ? -1 : 0;
	return store_ip(skb, new) || set_fragment_id(skb, new, f->id) ? -1 : 0;
}

/* Translates a later fragment and sends it: it has no header but IP's. */
static __always_inline int forward_fragment(struct __sk_buff *skb, const struct flow_ref *flow,
					    struct scratch *scratch, const struct fragment *f)
{
	struct route route = {};

	if (head_for_far_end(skb, flow, scratch, &route))
		return drop(route.reason);
	if (write_fragment(skb, scratch, f))
		return drop(LS_V_DROP_REWRITE);
	count(LS_V_FRAGMENT);
	count(LS_V_FORWARDED);
	return send_by(skb, &scratch->out, &route);
}

/* Processes a fragment without ports. If its first fragment was forwarded, so is this one; any other goes up
 * the stack. */
__noinline int later_fragment(struct __sk_buff *skb)
{
	struct scratch *scratch = get_scratch();
	struct fragmented *d;
	struct fragment_key key;
	struct ls_tuple tuple;
	struct segment *seg;
	struct fragment f;
	struct flow_ref flow;
	enum ls_verdict reason;

	if (!scratch || load_ip(skb, &scratch->in) || read_fragment(skb, &scratch->in, &f) || !f.offset)
		return NEXT;
	seg = &scratch->segment;
	key_of(&scratch->in, f.id, &key);
	d = bpf_map_lookup_elem(&fragments, &key);
	if (!d || ticks() - d->since > FRAGMENT_TICKS)
		return NEXT;
	__builtin_memcpy(&tuple, &key, offsetof(struct ls_tuple, sport));
	tuple.sport = d->sport;
	tuple.dport = d->dport;
	if (!find(&tuple, &flow))
		return NEXT;
	if (!is_plain_sound(&scratch->in))
		return drop(LS_V_DROP_CHECKSUM);
	if (!passes_fragments(&flow) || segment_of(d, &f, seg) || meets_trap(flow.rec, seg))
		return drop(LS_V_DROP_FRAGMENT);
	if (is_at_its_end(&scratch->in, far_of(&flow)))
		return drop(LS_V_DROP_TTL);
	reason = admit_segment(&flow, seg);
	if (reason)
		return drop(reason);
	reason = is_ruled(flow.rec) ? judge(flow.rec, seg, ip_length(&scratch->in), 1) : 0;
	if (reason)
		return drop(reason);
	if (over_rate(flow.rec, seg))
		return drop(LS_V_DROP_RATE);
	/* Note first, then check that the fragment may still pass, as in forward(). The receiver accepts none
	 * of it without the rest. */
	note_end_of(flow.rec, seg);
	if (!may_still_pass(&flow, seg))
		return drop(LS_V_DROP_FRAGMENT);
	if (seg->in_place)
		note_fin_or_rst(&flow, seg);
	note_translated(flow.rec, seg);
	/* Leave the extension header behind, if the version of IP changes. */
	scratch->in.l4 = fragment_l4(&scratch->in);
	f.id = d->id;
	return forward_fragment(skb, &flow, scratch, &f);
}

#endif
