/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Limits the sender of a spliced flow: its rate, what rules say of it, and how often the far end challenges
 * it or gets what it has had before. */
#ifndef LONGSPLICE_LIMIT_H
#define LONGSPLICE_LIMIT_H

#include "flow.h"
#include "parse.h"

/* Returns the side that sends in a direction. */
static __always_inline __u32 side_of(const struct ls_record *rec)
{
	return rec->traits & LS_SIDE_SERVER ? LS_SERVER : LS_CLIENT;
}

/*
 * Limits what a sender may have beside the next bytes of its stream, for each flow by itself: no flow uses up
 * what another one may have. The flows that used theirs longest ago are forgotten first, and begin anew.
 */
struct allowance {
	/* Times at which payload is paid for that the far end has acknowledged before, as in ls_record.tat,
	 * by the side that sends. */
	__u64 repeated[2];
	/* Ticks at which the far end was last made to challenge the sender. */
	__u32 challenged[2];
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, __u32);
	__type(value, struct allowance);
} allowances SEC(".maps");

static const struct allowance unused = {};

/* Returns the allowance of a flow; NULL if there is no memory for one. */
static __always_inline struct allowance *allowance_of(const struct ls_record *rec)
{
	/* Linux 6.1 takes no key from the memory of a caller. */
	__u32 serial = rec->serial;
	struct allowance *known = bpf_map_lookup_elem(&allowances, &serial);

	if (known)
		return known;
	bpf_map_update_elem(&allowances, &serial, &unused, BPF_NOEXIST);
	return bpf_map_lookup_elem(&allowances, &serial);
}

/*
 * Returns whether a segment may go to the far end for it to challenge its sender (RFC 5961 sections 3.2 and
 * 4.2): one per tick and direction, so that a flood of SYNs cannot keep the far end and the path back busy
 * (section 7). A client that lost its connection and sends a SYN needs one challenge, whichever SYN provoked
 * it.
 */
static __always_inline int may_challenge(const struct ls_record *rec)
{
	struct allowance *allowance = allowance_of(rec);
	__u32 *at, now = ticks();

	if (!allowance)
		return 0;
	at = &allowance->challenged[side_of(rec)];
	if (*at == now)
		return 0;
	*at = now;
	return 1;
}

#define NANOSECONDS 1000000000ULL

/* Returns whether more than `burst` bytes are owed by an account that stands this far ahead. The product has
 * up to 96 bits; 2^62 of it are more than any burst. */
static __always_inline int owes_more(__u64 ahead, __u32 rate, __u32 burst)
{
	__u64 high = (ahead >> 32) * rate + ((ahead & ~0U) * rate >> 32);

	return high >> 30 || ahead * rate > burst * NANOSECONDS;
}

/*
 * Returns whether a segment of the sender is beyond a rate; if not, charges for it: a token bucket that is
 * stored as one time (GCRA, ITU-T I.371 appendix I, in the form of virtual scheduling).
 * crates/core/src/limit.rs does the same for the relay (docs/decisions/0015). A segment passes whole while
 * the earlier ones owe no more than the burst, so a super-packet longer than the burst passes, too. A segment
 * without payload is free. Two CPUs may have segments of the same direction: after four failed tries the
 * segment passes unpaid.
 */
__noinline int over_limit(__u64 *account, __u32 rate, __u32 burst, const struct segment *seg)
{
	__u64 now, old, tat;

	if (!account || !seg || !rate || !seg->len)
		return 0;
	now = bpf_ktime_get_ns();
	for (int i = 0; i < 4; i++) {
		old = *(volatile __u64 *)account;
		tat = old > now ? old : now;
		if (owes_more(tat - now, rate, burst))
			return 1;
		tat += seg->len * NANOSECONDS / rate;
		if (__sync_val_compare_and_swap(account, old, tat) == old)
			return 0;
	}
	return 0;
}

/*
 * Returns the account that a segment of the sender is charged to: that of its direction, or one of the same
 * rate beside it if the segment may be a guess, or a repetition. A blind sender must not use up another's
 * rate, and a sender that repeats what has arrived must not be free of it.
 */
static __always_inline __u64 *account_of(const struct ls_record *rec, const struct segment *seg, __u64 *own)
{
	struct allowance *allowance;

	if (seg->in_place)
		return own;
	allowance = allowance_of(rec);
	return allowance ? &allowance->repeated[side_of(rec)] : 0;
}

/* Returns whether a segment of the sender is beyond the flow's own limit: see over_limit(). */
static __always_inline int over_rate(struct ls_record *rec, const struct segment *seg)
{
	/* A burst of 0, with LS_RULED, is no limit. */
	return rec->rate && rec->burst & ~LS_RULED &&
	       over_limit(account_of(rec, seg, &rec->tat), rec->rate, rec->burst & ~LS_RULED, seg);
}

/* Returns whether a rule may say something of the flow. The rate is compared first: only a flow that has one
 * pays for more. */
static __always_inline int is_ruled(const struct ls_record *rec)
{
	return rec->rate && rec->burst & LS_RULED;
}

/* Returns the length of a whole segment, from the IP header on. */
static __always_inline __u32 bytes_of(const struct segment *seg)
{
	return seg->l4 - L3_OFFSET + sizeof(struct tcp) + seg->opt_len + seg->len;
}

/* Counts an admitted segment of a flow with LS_RULED for the rules that it matches. Returns the verdict if
 * one of them drops it; 0, which is no drop, if it may pass. `bytes` is its length, from the IP header on.
 * `goes_on`: it is to be forwarded; otherwise nothing happens unless a rule drops all segments. */
__noinline int judge(const struct ls_record *rec, const struct segment *seg, __u32 bytes, int goes_on)
{
	__u32 serial, verdict = 0;
	struct ls_ruling *ruling;
	struct ls_ruled *ruled;

	if (!rec || !seg)
		return 0;
	serial = rec->serial;
	ruling = bpf_map_lookup_elem(&rulings, &serial);
	if (!ruling || (!goes_on && !ruling->drop))
		return 0;
	ruled = &ruling->from[side_of(rec)];
	__sync_fetch_and_add(&ruled->packets, 1);
	__sync_fetch_and_add(&ruled->bytes, bytes);
	if (ruling->drop)
		verdict = LS_V_DROP_RULE;
	else if (over_limit(account_of(rec, seg, &ruled->tat), ruled->rate, ruled->burst, seg))
		verdict = LS_V_DROP_RATE;
	if (verdict)
		__sync_fetch_and_add(&ruled->dropped, 1);
	return verdict;
}

#endif
