/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Translates a segment (papers' section III-B, with timestamps and SACK), in headers in a buffer. In the
 * identity case (section III-F) only the time to live and the MAC addresses change, in the packet itself.
 */
#ifndef LONGSPLICE_REWRITE_H
#define LONGSPLICE_REWRITE_H

#include "families.h"

enum sack_edit {
	SACK_SHIFT, /* add sack_off to the edges */
	SACK_CLIP,  /* add sack_off, and keep the edges within lo..hi: the kernel discards a block that ends
		       beyond snd_nxt */
	SACK_BLANK, /* overwrite with NOP */
};

/* Edits to make in the options of a segment. */
struct edits {
	__u32 tsval_off;
	__u32 tsecr_off;
	__u32 sack_off;
	__u32 sack; /* enum sack_edit */
	__u32 lo, hi;
};

static __always_inline void shift_timestamps(struct headers *h, __u32 at, const struct edits *edits)
{
	__be32 *tsval, *tsecr;

	if (at > 32)
		return;
	tsval = (__be32 *)&h->opt[at];
	tsecr = (__be32 *)&h->opt[at + 4];

	*tsval = bpf_htonl(bpf_ntohl(*tsval) + edits->tsval_off);
	/* 0 says "nothing to echo" and stays so. */
	if (*tsecr)
		*tsecr = bpf_htonl(bpf_ntohl(*tsecr) + edits->tsecr_off);
}

/* Edits the SACK option at h->opt[at]. The verifier follows a function of its own once, not for each path
 * that leads there. */
__noinline int edit_sack(struct headers *h, __u32 at, __u32 size, const struct edits *edits)
{
	if (!h || !edits)
		return 0;
	for (__u32 k = 0; k < 34; k++) {
		__u32 i = (at + k) & 63, edge;

		if (k >= size)
			return 0;
		if (edits->sack == SACK_BLANK) {
			h->opt[i] = OPT_NOP;
			continue;
		}
		if (k % 4 != 2 || k + 4 > size || i > 60)
			continue;
		edge = load32(&h->opt[i]) + edits->sack_off;
		if (edits->sack == SACK_CLIP)
			edge = seq_min(seq_max(edge, edits->lo), edits->hi);
		*(__be32 *)&h->opt[i] = bpf_htonl(edge);
	}
	return 0;
}

struct editing {
	struct option_walk walk;
	const struct edits *edits;
};

static long edit_options_step(__u32 n, struct editing *c)
{
	struct option_walk *walk = &c->walk;

	if (look_at_option(walk))
		return 1;
	if (walk->kind == OPT_TS && walk->size == 10)
		shift_timestamps(walk->h, (walk->at & 63) + 2, c->edits);
	else if (walk->kind == OPT_SACK && walk->size >= 10)
		edit_sack(walk->h, walk->at, walk->size, c->edits);
	walk->at += walk->size;
	return 0;
}

/* Edits options in an unusual order. The verifier follows this function by itself, as find_timestamp(). */
__noinline int edit_options(struct headers *h, __u32 len, const struct edits *edits)
{
	struct editing c = {.walk = {.h = h, .len = len}, .edits = edits};

	if (!h || !edits)
		return 0;
	bpf_loop(OPTION_STEPS, edit_options_step, &c, 0);
	return 0;
}

static __always_inline void apply_edits(struct headers *h, const struct segment *seg,
					const struct edits *edits)
{
	if (seg->opt_len == 12 && seg->ts_at == 4)
		shift_timestamps(h, 4, edits);
	else if (seg->opt_len)
		edit_options(h, seg->opt_len, edits);
}

/* Returns the number to add to TSval toward the far end. */
static __always_inline __u32 monotonic_tsval(struct ls_record *rec, const struct segment *seg)
{
	__u32 tsval = seg->tsval + rec->tsval_off;

	/* A TSval that is not noted must not be ahead either: the next one would be behind it. */
	tsval = seg->in_place ? tsval_advance(&rec->ts_high, tsval) : rec->ts_high;
	return tsval - seg->tsval;
}

/* Addresses a segment to the far end, whose own segments have the tuple `far`. */
static __always_inline void address_to(struct headers *h, const struct ls_tuple *far)
{
	set_addresses(h, far->daddr, far->saddr);
	h->tcp.sport = far->dport;
	h->tcp.dport = far->sport;
}

/* Turns the headers of a segment of the sender into those for the far end. MAC addresses are set with the
 * route, and hops are counted by the caller. */
static __always_inline void translate(struct headers *h, const struct segment *seg, struct ls_record *rec,
				      const struct ls_tuple *far, struct edits *edits)
{
	__u32 window = (seg->window << scale_in(rec)) >> scale_out(rec);

	if (crosses(rec))
		change_version(h, label_of(rec), seg->whole ? 0 : sizeof(struct fragment_header));
	address_to(h, far);
	h->tcp.seq = bpf_htonl(seg->seq + rec->seq_off);
	h->tcp.ack = bpf_htonl(seg->ack + rec->ack_off);
	h->tcp.window = bpf_htons(window > 65535 ? 65535 : window);
	edits->tsval_off = seg->ts_at ? monotonic_tsval(rec, seg) : 0;
	edits->tsecr_off = rec->tsecr_off;
	edits->sack_off = rec->ack_off;
	edits->sack = rec->traits & LS_BLANK_SACK ? SACK_BLANK : SACK_SHIFT;
}

/* Writes `new` over the headers `old`, for all but the usual path: the verifier follows this function once,
 * and each use costs a call. Both may be of different versions of IP. */
__noinline int write_headers(struct __sk_buff *skb, struct headers *old, struct headers *new, __u32 opt_len)
{
	if (!old || !new)
		return -1;
	return is_v6(old) == is_v6(new) ? write_headers_fast(skb, old, new, opt_len & 63, 0)
					: write_across(skb, old, new, opt_len & 63, 0);
}

/* Writes `new` over the headers `old` of the other version of IP, directly where that is possible. */
__noinline int write_across_fast(struct __sk_buff *skb, struct headers *old, struct headers *new,
				 __u32 opt_len)
{
	return old && new ? write_across(skb, old, new, opt_len & 63, 1) : -1;
}

/* Returns whether a segment is to leave as it came. It may have got another number (admit_against()), and
 * PAWS may require a higher TSval; packets with IP options go the usual way. */
static __always_inline int leaves_as_it_came(const struct flow_ref *flow, const struct headers *h,
					     const struct segment *seg)
{
	return flow->rec->traits & LS_IDENTITY && !flow->slot && l4_of(h) == (is_v6(h) ? V6_L4 : V4_L4) &&
	       seg->seq == bpf_ntohl(h->tcp.seq) && !(seg->ts_at && monotonic_tsval(flow->rec, seg));
}

/* Writes the first `len` bytes of the packet, in linear memory or not. Returns 0, or -1. */
static __always_inline int store_start(struct __sk_buff *skb, const void *from, __u32 len)
{
	if (!store_linear((void *)(long)skb->data, (void *)(long)skb->data_end, from, len))
		return 0;
	return bpf_skb_store_bytes(skb, 0, from, len, 0) ? -1 : 0;
}

/* Writes the time to live and the MAC addresses. Returns 0, or -1. */
static __always_inline int write_hop(struct __sk_buff *skb, struct headers *h)
{
	enum summed summed;

	count_hop(h);
	if (is_v6(h)) {
		summed = summed_of(skb);
		/* A header of IPv4 compensates for itself. */
		if (summed == CHECKSUM_COMPLETE || summed == CHECKSUM_UNKNOWN)
			bpf_csum_update(skb, (__u16)~bpf_htons(1));
		return store_start(skb, start_of_v6(h), V6_L4);
	}
	h->v4.ip.check = adjust(h->v4.ip.check, (__u16)~bpf_htons(1 << 8));
	return store_start(skb, start_of_v4(h), V4_L4);
}

#endif
