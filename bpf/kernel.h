/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Reads fields that only the kernel's own sk_buff has. This needs Linux 6.2; on older kernels, helpers must
 * do without. */
#ifndef LONGSPLICE_KERNEL_H
#define LONGSPLICE_KERNEL_H

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>

struct sk_buff___ours {
	__u8 ip_summed : 2;
} __attribute__((preserve_access_index));

struct net_device___ours {
	const __u8 *dev_addr;
} __attribute__((preserve_access_index));

struct xdp_rxq_info___ours {
	struct net_device___ours *dev;
} __attribute__((preserve_access_index));

struct xdp_buff___ours {
	struct xdp_rxq_info___ours *rxq;
} __attribute__((preserve_access_index));

void *bpf_cast_to_kern_ctx(void *ctx) __ksym __weak;

/* State of the TCP checksum (linux/skbuff.h). */
enum summed {
	CHECKSUM_NONE = 0,
	CHECKSUM_UNNECESSARY = 1, /* verified by the device */
	CHECKSUM_COMPLETE = 2,	  /* skb->csum is the sum of the whole packet */
	CHECKSUM_PARTIAL = 3,	  /* the field has the sum of the pseudo-header, the device adds the rest */
	CHECKSUM_UNKNOWN = 4,	  /* this kernel does not tell */
};

static __always_inline enum summed summed_of(struct __sk_buff *skb)
{
	struct sk_buff___ours *kernel;

	if (!bpf_ksym_exists(bpf_cast_to_kern_ctx))
		return CHECKSUM_UNKNOWN;
	kernel = bpf_cast_to_kern_ctx(skb);
	return BPF_CORE_READ_BITFIELD(kernel, ip_summed);
}

/* Reads the MAC address of the interface on which a frame came in. Returns 0, or -1 if this kernel does not
 * tell. */
static __always_inline int own_address(struct xdp_md *ctx, __u8 *mac)
{
	struct xdp_buff___ours *kernel;

	if (!bpf_ksym_exists(bpf_cast_to_kern_ctx))
		return -1;
	kernel = bpf_cast_to_kern_ctx(ctx);
	return bpf_probe_read_kernel(mac, ETH_ALEN, kernel->rxq->dev->dev_addr) ? -1 : 0;
}

#endif
