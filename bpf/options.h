/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Walks over TCP options in a buffer. */
#ifndef LONGSPLICE_OPTIONS_H
#define LONGSPLICE_OPTIONS_H

#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>
#include "headers.h"

#define OPT_EOL	 0
#define OPT_NOP	 1
#define OPT_SACK 5
#define OPT_TS	 8

/* Identifies the usual layout of a lone timestamp option: NOP NOP TS 10 (RFC 7323 appendix A). */
#define TS_LAYOUT     bpf_htonl(0x0101080a)
#define TS_LAYOUT_LEN 12

static __always_inline __u32 load32(const __u8 *p)
{
	return bpf_ntohl(*(const __be32 *)p);
}

/* State of a walk over options of any order. bpf_loop() keeps the verifier from following every possible
 * order. */
struct option_walk {
	struct headers *h;
	__u32 at, len;	  /* current offset; end of the options */
	__u32 kind, size; /* kind and size of the option at `at` */
};

/* Number of steps that is enough for 40 bytes. */
#define OPTION_STEPS 40

/* Parses the option at w->at. Returns 0, or 1 at the end of the options. On 0, w->at is below 40 and the
 * option lies within the options. */
static __always_inline int look_at_option(struct option_walk *w)
{
	__u32 at = w->at & 63;

	if (w->at >= w->len || w->at > 39)
		return 1;
	w->kind = w->h->opt[at];
	w->size = 1;
	if (w->kind == OPT_EOL)
		return 1;
	if (w->kind == OPT_NOP)
		return 0;
	w->size = w->h->opt[(at + 1) & 63];
	return w->size < 2 || w->at + w->size > w->len || w->at + w->size > 40;
}

static long find_timestamp_step(__u32 n, struct option_walk *w)
{
	if (look_at_option(w))
		return 1;
	if (w->kind == OPT_TS && w->size == 10) {
		w->len = 0;
		return 1;
	}
	w->at += w->size;
	return 0;
}

/* Returns the offset of TSval among options in an unusual order; 0: there is none. */
static __always_inline __u32 find_timestamp(struct headers *h, __u32 len)
{
	struct option_walk w = {.h = h, .len = len};

	bpf_loop(OPTION_STEPS, find_timestamp_step, &w, 0);
	return w.len ? 0 : w.at + 2;
}

#endif
