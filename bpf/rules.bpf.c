// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Applies rules to TCP packets that come in (paper 003's packet injection module): the first one that a
 * packet meets decides. The program stands behind `ingress`, so packets of a spliced flow do not come here.
 */
#include <linux/bpf.h>
#include <linux/if_packet.h>
#include <linux/pkt_cls.h>
#include <stddef.h>
#include "corrupted.h"
#include "hold.h"
#include "intercept.h"
#include "lists.h"
#include "quote.h"
#include "rewrite.h"

/* Never read: it brings the types into BTF. */
const volatile struct ls_rule_types rule_types_for_rust = {};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, LS_R_COUNT);
	__type(key, __u32);
	__type(value, __u64);
} rule_verdicts SEC(".maps");

/* Packets for a program in user space: struct ls_rule_packet, then the packet. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 2 << 20);
} rule_packets SEC(".maps");

/* Last look at the reader of `rule_packets`: how far it had read, and when that was news. */
struct reader {
	__u64 position;
	__u64 at; /* bpf_ktime_get_ns() */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct reader);
} rule_reader SEC(".maps");

/* Time after which a reader that has left packets unread is gone. */
#define DESERTED (5 * 1000000000ULL)

static __always_inline void note(enum ls_rule_verdict verdict)
{
	__u32 key = verdict;
	__u64 *n = bpf_map_lookup_elem(&rule_verdicts, &key);

	if (n)
		*n += 1;
}

static __always_inline int fill_sample(struct __sk_buff *skb, void *sample, __u32 room,
				       const struct ls_rule *r, int is_copy)
{
	struct ls_rule_packet *head = sample;

	head->rule = r->rule;
	head->copy = is_copy;
	head->ifindex = skb->ifindex;
	head->len = skb->len;
	head->at = bpf_ktime_get_ns();
	return submit_packet(skb, sample, sizeof(*head), ETH_HLEN, room);
}

/* Returns whether the reader has read nothing for long though packets wait. Before Linux 6.6 the programs
 * stay on their interfaces after it was killed, and what they ask about would be lost until the next one. */
static __always_inline int is_deserted(void)
{
	__u64 position = bpf_ringbuf_query(&rule_packets, BPF_RB_CONS_POS), now = bpf_ktime_get_ns();
	__u32 zero = 0;
	struct reader *last = bpf_map_lookup_elem(&rule_reader, &zero);

	if (!last)
		return 0;
	if (last->at && position == last->position && bpf_ringbuf_query(&rule_packets, BPF_RB_AVAIL_DATA))
		return now - last->at > DESERTED;
	last->position = position;
	last->at = now;
	return 0;
}

/* Fate of a packet for the program in user space. */
enum told {
	TOLD,
	UNTOLD, /* the ring is full, or the packet is too long */
	UNREAD, /* the program is gone */
};

/* Gives a packet to the program in user space. */
static __always_inline enum told tell_program(struct __sk_buff *skb, const struct ls_rule *r, int is_copy)
{
	void *sample;

	if (is_deserted())
		return UNREAD;
	if (skb->len <= SHORT_PACKET) {
		sample = bpf_ringbuf_reserve(&rule_packets, sizeof(struct ls_rule_packet) + SHORT_PACKET, 0);
		return sample && !fill_sample(skb, sample, SHORT_PACKET, r, is_copy) ? TOLD : UNTOLD;
	}
	sample = bpf_ringbuf_reserve(&rule_packets, sizeof(struct ls_rule_packet) + LONG_PACKET, 0);
	return sample && !fill_sample(skb, sample, LONG_PACKET, r, is_copy) ? TOLD : UNTOLD;
}

/* Builds the record for translate() from a rule's target: no side, no state, the same scale on both sides. */
static __always_inline void record_of(struct ls_record *rec, struct ls_tuple *far, const struct ls_target *t,
				      const struct segment *seg)
{
	__builtin_memset(rec, 0, sizeof(*rec));
	__builtin_memcpy(far->daddr, t->saddr, sizeof(far->daddr));
	__builtin_memcpy(far->saddr, t->daddr, sizeof(far->saddr));
	far->dport = t->sport;
	far->sport = t->dport;
	rec->seq_off = t->seq_off;
	rec->ack_off = t->ack_off;
	rec->tsval_off = t->tsval_off;
	rec->tsecr_off = t->tsecr_off;
	rec->ts_high = seg->tsval + t->tsval_off;
}

static __always_inline int untranslatable(void)
{
	note(LS_R_UNTRANSLATABLE);
	return NEXT;
}

static __noinline int translate_by(struct __sk_buff *skb, const struct ls_target *t, struct scratch *scratch)
{
	struct ls_record *rec;
	struct edits edits;
	struct segment *seg;
	struct route route = {};

	if (!t || !scratch)
		return NEXT;
	seg = &scratch->segment;
	if ((skb->gso_size && join_list(skb)) || parse_segment(skb, &scratch->in, seg) != SEGMENT)
		return untranslatable();
	note(LS_R_TRANSLATED);
	if (hops_left(&scratch->in) <= 1)
		return drop(LS_V_DROP_TTL);
	rec = &scratch->record;
	record_of(rec, &scratch->far, t, seg);
	copy_headers(&scratch->out, &scratch->in, seg->opt_len);
	count_hop(&scratch->out);
	translate(&scratch->out, seg, rec, &scratch->far, &edits);
	apply_edits(&scratch->out, seg, &edits);
	if (look_up_route(skb, &scratch->out, 1, 0, &route))
		return drop(route.reason);
	if (write_headers(skb, &scratch->in, &scratch->out, seg->opt_len))
		return drop(LS_V_DROP_REWRITE);
	count(LS_V_FORWARDED);
	return send_by(skb, &scratch->out, &route);
}

/* Returns whether a packet was corrupted, or is not all there. The program sends packets on with checksums
 * computed anew, so their receiver could not tell. */
static __always_inline int is_spoilt(struct __sk_buff *skb, struct scratch *scratch)
{
	__u32 len = skb->len - L3_OFFSET;

	/* The offset of the payload may be wrong, too: options count as payload here. */
	scratch->segment.opt_len = 0;
	return load_headers(skb, &scratch->in) < 0 ||
	       read_segment(&scratch->in, &scratch->segment, skb->gso_size ? len : ip_length(&scratch->in),
			    len) != SEGMENT ||
	       is_corrupted(skb);
}

static __always_inline int copy(struct __sk_buff *skb, const struct ls_rule *r)
{
	note(tell_program(skb, r, 1) == TOLD ? LS_R_COPIED : LS_R_COPY_LOST);
	return NEXT;
}

static __always_inline int ask(struct __sk_buff *skb, const struct ls_rule *r, const struct tcp_packet *p,
			       struct scratch *scratch)
{
	enum told told;

	if (!p->fragment && is_spoilt(skb, scratch)) {
		note(LS_R_DROP_CHECKSUM);
		return TC_ACT_SHOT;
	}
	told = tell_program(skb, r, 0);
	if (told == TOLD) {
		note(LS_R_ASKED);
		return TC_ACT_SHOT;
	}
	if (told == UNREAD || r->action == LS_A_ASK_OR_PASS) {
		note(LS_R_ASK_LOST);
		return NEXT;
	}
	note(LS_R_DROP_ASK);
	return TC_ACT_SHOT;
}

static __always_inline int act(struct __sk_buff *skb, const struct tcp_packet *p, const struct ls_rules *set,
			       const struct ls_rule *r, struct scratch *scratch)
{
	const struct ls_target *target = &set->target[r->target % LS_TARGETS_MAX];
	int is_awaited = 0;

	switch (r->action) {
	case LS_A_DROP:
		note(LS_R_DROPPED);
		return TC_ACT_SHOT;
	case LS_A_DELIVER:
		note(intercept(skb, p, target, &is_awaited));
		if (is_awaited)
			copy(skb, r);
		return NEXT;
	case LS_A_TRANSLATE:
		return p->fragment ? untranslatable() : translate_by(skb, target, scratch);
	case LS_A_ASK:
	case LS_A_ASK_OR_PASS:
		return ask(skb, r, p, scratch);
	case LS_A_COPY:
		return copy(skb, r);
	default:
		note(LS_R_PASSED);
		return NEXT;
	}
}

/* Brings an error about a segment of an intercepted connection to the socket that sent the segment: it is
 * addressed to the far end in whose name the socket sends. */
__noinline int follow_error(struct __sk_buff *skb)
{
	struct scratch *scratch = get_scratch();
	struct tcp_packet p = {};
	struct quote *q;
	__u32 zero = 0;

	q = bpf_map_lookup_elem(&quotes, &zero);
	if (!scratch || !q || load_error(skb, &scratch->in, q) || !came_to_sender(&scratch->in, &q->old))
		return NEXT;
	answering_tuple(&q->old, &p.tuple);
	p.family = is_v6(&q->old) ? 6 : 4;
	if (state_of(skb, &p, NULL) && !is_own_address(skb, &p.tuple)) {
		note(LS_R_FOLLOWED);
		route_to_us(skb);
	}
	return NEXT;
}

/* Brings a packet without ports to a socket of an intercepted connection: an error about one of its segments,
 * or a later fragment of one. Both are known by the first header behind IP's. */
static __always_inline int follow(struct __sk_buff *skb)
{
	__u8 next;

	if (is_of_vlan(skb))
		return NEXT;
	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		if (bpf_skb_load_bytes(skb, L3_OFFSET + offsetof(struct iphdr, protocol), &next, 1))
			return NEXT;
		if (next == IPPROTO_ICMP)
			return follow_error(skb);
		if (next != IPPROTO_TCP)
			return NEXT;
	} else {
		if (skb->protocol != bpf_htons(ETH_P_IPV6) ||
		    bpf_skb_load_bytes(skb, L3_OFFSET + offsetof(struct ipv6hdr, nexthdr), &next, 1))
			return NEXT;
		if (next == IPPROTO_ICMPV6)
			return follow_error(skb);
		if (next != NEXT_FRAGMENT)
			return NEXT;
	}
	if (follows_delivery(skb)) {
		note(LS_R_FOLLOWED);
		route_to_us(skb);
	}
	return NEXT;
}

SEC("tc")
int rules(struct __sk_buff *skb)
{
	struct scratch *scratch = get_scratch();
	const struct ls_rules *set;
	const struct ls_rule *r;
	struct tcp_packet p;
	int skipped = 0;
	enum seen seen;

	/* The stack would discard the packet. */
	if (!scratch || skb->pkt_type == PACKET_OTHERHOST)
		return NEXT;
	seen = see(skb, &scratch->in, &p);
	if (seen == NOT_TCP)
		return follow(skb);
	if (seen == CUT_SHORT) {
		note(LS_R_ODD);
		return NEXT;
	}
	set = current_rules();
	r = set ? first_match(set, &p, skb->ifindex, skb->tc_index == TAG_LET_IN, &skipped) : NULL;
	if (!r) {
		note(skipped ? LS_R_PASSED : LS_R_UNMATCHED);
		return NEXT;
	}
	return act(skb, &p, set, r, scratch);
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
