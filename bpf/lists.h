/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Joins the segments of a list: GRO may keep them as packets of their own, each with its headers, in one
 * packet (`ethtool rx-gro-list`). It does so where no local socket has the connection, for TCP since Linux
 * 6.10.
 */
#ifndef LONGSPLICE_LISTS_H
#define LONGSPLICE_LISTS_H

#include <linux/version.h>
#include "csum.h"

/* Bit of the type of a super-packet that is a list (linux/skbuff.h). */
#define SKB_GSO_FRAGLIST (1 << 18)

struct skb_shared_info___ours {
	unsigned int gso_type;
} __attribute__((preserve_access_index));

extern int LINUX_KERNEL_VERSION __kconfig;

static __always_inline int is_list(struct __sk_buff *skb)
{
	struct sk_buff___ours *kernel;
	__u32 type = 0;

	if (!bpf_ksym_exists(bpf_cast_to_kern_ctx))
		return 0;
	kernel = bpf_cast_to_kern_ctx(skb);
	bpf_core_read(&type, sizeof(type),
		      &((struct skb_shared_info___ours *)(kernel->head + kernel->end))->gso_type);
	return type & SKB_GSO_FRAGLIST;
}

/*
 * Turns a super-packet that is a list into a plain one, from which GSO makes the headers of all segments. Of
 * a list it would change only addresses and ports to those of the first segment. The kernel sees by the
 * length of the linear part that the packet is no list any more; before Linux 6.12 it does not look, and the
 * packet must not be forwarded. Returns 0, or -1. The verifier follows this function by itself.
 */
__noinline int join_list(struct __sk_buff *skb)
{
	if (!is_list(skb))
		return 0;
	if (LINUX_KERNEL_VERSION < KERNEL_VERSION(6, 12, 0))
		return -1;
	return bpf_skb_pull_data(skb, skb->len) ? -1 : 0;
}

#endif
