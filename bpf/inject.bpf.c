// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Has a packet come in on an interface as if its peer had just sent it. User space runs this over packets
 * that were held while there was no socket for them. The packet passes `ingress` there, any number of times:
 * it is a retransmission.
 */
#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_helpers.h>
#include "tags.h"

SEC("tc")
int inject(struct __sk_buff *skb)
{
	skb->tc_index = TAG_INJECT;
	return bpf_clone_redirect(skb, skb->ifindex, BPF_F_INGRESS) ? TC_ACT_SHOT : TC_ACT_OK;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
