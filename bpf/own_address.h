/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Tells the packets that are for this host from those that it forwards. */
#ifndef LONGSPLICE_OWN_ADDRESS_H
#define LONGSPLICE_OWN_ADDRESS_H

#include "headers.h"

static __always_inline long look_up_destination(struct __sk_buff *skb, const struct ls_tuple *t,
						__u32 ifindex)
{
	struct bpf_fib_lookup fib = {.l4_protocol = IPPROTO_TCP, .ifindex = ifindex};

	if (is_mapped(t->saddr)) {
		fib.family = AF_INET;
		fib.ipv4_src = t->saddr[3];
		fib.ipv4_dst = t->daddr[3];
	} else {
		fib.family = AF_INET6;
		__builtin_memcpy(fib.ipv6_src, t->saddr, sizeof(fib.ipv6_src));
		__builtin_memcpy(fib.ipv6_dst, t->daddr, sizeof(fib.ipv6_dst));
	}
	return bpf_fib_lookup(skb, &fib, sizeof(fib), 0);
}

/* Returns whether the destination is an address of this host, which has its own listeners. A destination
 * without a route looks the same, and cannot be connected to either. */
static __always_inline int is_own_address(struct __sk_buff *skb, const struct ls_tuple *t)
{
	long found = look_up_destination(skb, t, skb->ifindex);

	/* An interface that does not forward gives no answer; the daemon enables forwarding on the
	 * loopback. */
	if (found == BPF_FIB_LKUP_RET_FWD_DISABLED)
		found = look_up_destination(skb, t, LOOPBACK);
	return found == BPF_FIB_LKUP_RET_NOT_FWDED;
}

#endif
