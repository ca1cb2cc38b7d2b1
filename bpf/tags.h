/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
#ifndef LONGSPLICE_TAGS_H
#define LONGSPLICE_TAGS_H

/* Marks on skb->tc_index, for our own programs that the packet will pass. (skb->mark is left to the user's
 * rules.) */
#define TAG_FORWARDED 0x4c53 /* for egress: not from a local socket */
#define TAG_DELIVER   0x4c54 /* for ingress: to the local stack, as it is */
#define TAG_SEND      0x4c55 /* for ingress: translated already, to be sent */
#define TAG_INJECT    0x4c57 /* for ingress: let in by user space */
#define TAG_ACK	      0x4c56 /* for ingress: the far end is to have its acknowledgement, nobody the rest */

/* Whether one of our programs has seen the packet, and said what the next one is to do. */
static __always_inline int is_tagged(const struct __sk_buff *skb)
{
	return skb->tc_index >= TAG_FORWARDED && skb->tc_index <= TAG_INJECT;
}

#endif
