/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Translates a segment (papers' section III-B, with timestamps and SACK), in headers in a buffer. */
#ifndef LONGSPLICE_TRANSLATE_H
#define LONGSPLICE_TRANSLATE_H

#include "parse.h"
#include "record.h"

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

static __always_inline void shift_timestamps(struct headers *h, __u32 at, const struct edits *e)
{
	__be32 *tsval, *tsecr;

	if (at > 32)
		return;
	tsval = (__be32 *)&h->opt[at];
	tsecr = (__be32 *)&h->opt[at + 4];

	*tsval = bpf_htonl(bpf_ntohl(*tsval) + e->tsval_off);
	/* 0 says "nothing to echo" and stays so. */
	if (*tsecr)
		*tsecr = bpf_htonl(bpf_ntohl(*tsecr) + e->tsecr_off);
}

/* Edits the SACK option at h->opt[at]. The verifier follows a function of its own once, not for each path
 * that leads there. */
__noinline int edit_sack(struct headers *h, __u32 at, __u32 size, const struct edits *e)
{
	if (!h || !e)
		return 0;
	for (__u32 k = 0; k < 34; k++) {
		__u32 i = (at + k) & 63, edge;

		if (k >= size)
			return 0;
		if (e->sack == SACK_BLANK) {
			h->opt[i] = OPT_NOP;
			continue;
		}
		if (k % 4 != 2 || k + 4 > size || i > 60)
			continue;
		edge = load32(&h->opt[i]) + e->sack_off;
		if (e->sack == SACK_CLIP)
			edge = seq_min(seq_max(edge, e->lo), e->hi);
		*(__be32 *)&h->opt[i] = bpf_htonl(edge);
	}
	return 0;
}

struct editing {
	struct option_walk walk;
	struct edits edits;
};

static long edit_options_step(__u32 n, struct editing *c)
{
	struct option_walk *w = &c->walk;

	if (look_at_option(w))
		return 1;
	if (w->kind == OPT_TS && w->size == 10)
		shift_timestamps(w->h, (w->at & 63) + 2, &c->edits);
	else if (w->kind == OPT_SACK && w->size >= 10)
		edit_sack(w->h, w->at, w->size, &c->edits);
	w->at += w->size;
	return 0;
}

static __always_inline void edit_options(struct headers *h, __u32 len, const struct edits *e)
{
	struct editing c = {.walk = {.h = h, .len = len}, .edits = *e};

	bpf_loop(OPTION_STEPS, edit_options_step, &c, 0);
}

static __always_inline void apply_edits(struct headers *h, const struct segment *s, const struct edits *e)
{
	if (s->opt_len == 12 && s->ts_at == 4)
		shift_timestamps(h, 4, e);
	else if (s->opt_len)
		edit_options(h, s->opt_len, e);
}

/* Returns the number to add to TSval toward the far end. */
static __always_inline __u32 monotonic_tsval(struct ls_record *rec, const struct segment *s)
{
	__u32 tsval = s->tsval + rec->tsval_off;

	/* A TSval that is not noted must not be ahead either: the next one would be behind it. */
	tsval = s->in_place ? never_back(&rec->ts_high, tsval) : rec->ts_high;
	return tsval - s->tsval;
}

/* Addresses a segment to the far end, whose own segments have the tuple `far`. */
static __always_inline void address_to(struct headers *h, const struct ls_tuple *far)
{
	set_addresses(h, far->daddr, far->saddr);
	h->tcp.sport = far->dport;
	h->tcp.dport = far->sport;
}

/* Turns the headers of a segment of x into those for the far end. MAC addresses are set with the route. */
static __always_inline void translate(struct headers *h, const struct segment *s, struct ls_record *rec,
				      const struct ls_tuple *far, struct edits *e)
{
	__u32 window = (s->window << scale_in(rec)) >> scale_out(rec);

	address_to(h, far);
	count_hop(h);
	h->tcp.seq = bpf_htonl(s->seq + rec->seq_off);
	h->tcp.ack = bpf_htonl(s->ack + rec->ack_off);
	h->tcp.window = bpf_htons(window > 65535 ? 65535 : window);
	e->tsval_off = s->ts_at ? monotonic_tsval(rec, s) : 0;
	e->tsecr_off = rec->tsecr_off;
	e->sack_off = rec->ack_off;
	e->sack = rec->traits & LS_BLANK_SACK ? SACK_BLANK : SACK_SHIFT;
}

#endif
