/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Finds segments that were corrupted on their way, before a checksum computed anew hides that. */
#ifndef LONGSPLICE_CORRUPTED_H
#define LONGSPLICE_CORRUPTED_H

#include "rewrite.h"

#define LOAD_BYTES bpf_skb_load_bytes
#include "verify.h"

/* Returns whether the checksum of the IPv4 header is right, options included. */
static __always_inline int is_ip_sound(struct __sk_buff *skb, const struct headers *h)
{
	return is_plain_sound(h) &&
	       (is_v6(h) || l4_of(h) == V4_L4 || sums_up(skb, L3_OFFSET, l4_of(h) - L3_OFFSET, 0));
}

/* Returns whether the checksum of TCP needs no check: a device or GRO has verified it, or a device is still
 * to write it. A super-packet comes from GRO, which verified its segments, or from a socket. */
static __always_inline int is_verified(struct __sk_buff *skb, struct headers *h)
{
	enum summed summed = summed_of(skb);

	if (summed == CHECKSUM_UNKNOWN)
		return skb->gso_size || is_left_to_device(skb, tcp_check_at(h));
	return skb->gso_size || summed == CHECKSUM_PARTIAL || summed == CHECKSUM_UNNECESSARY;
}

/*
 * Returns whether the segment in the scratch was corrupted, before it is held, cut or noted: a checksum
 * computed anew would hide that, and the wrong fields would count as the sender's. Also true for its IPv4
 * header, with which no receiver accepts it either (RFC 1122 section 3.2.1.2). Only its receiver can verify a
 * fragment. The verifier follows this function by itself.
 */
__noinline int is_corrupted(struct __sk_buff *skb)
{
	struct scratch *scratch = get_scratch();

	if (!scratch || !scratch->segment.whole)
		return !scratch;
	if (!is_ip_sound(skb, &scratch->in))
		return 1;
	return !is_verified(skb, &scratch->in) && !is_sound(skb, &scratch->in, &scratch->segment);
}

#endif
