/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
#ifndef LONGSPLICE_TAGS_H
#define LONGSPLICE_TAGS_H

/* Values of skb->tc_index that tell our next program what to do with the packet. (skb->mark is left to the
 * user's rules.) */
#define TAG_FORWARDED 0x4c53 /* for egress: not from a local socket */
#define TAG_DELIVER   0x4c54 /* for ingress: pass it to the local stack unchanged */
#define TAG_SEND      0x4c55 /* for ingress: send it, it is translated already */
#define TAG_INJECT    0x4c57 /* for ingress: user space lets it in */
#define TAG_ACK	      0x4c56 /* for ingress: forward only its acknowledgement, to the far end */
#define TAG_EMITTED   0x4c58 /* for egress: of a local socket, in the numbers of the wire already */
#define TAG_LET_IN    0x4c59 /* for ingress: user space has let it in; for egress like TAG_FORWARDED */

/* Returns whether one of our programs has tagged the packet for the next one. */
static __always_inline int is_tagged(const struct __sk_buff *skb)
{
	return skb->tc_index >= TAG_FORWARDED && skb->tc_index <= TAG_LET_IN;
}

#endif
