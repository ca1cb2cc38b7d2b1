/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Gives user space packets: those that must wait for a socket, and copies of forwarded ones. */
#ifndef LONGSPLICE_HOLD_H
#define LONGSPLICE_HOLD_H

#include "count.h"
#include "flow.h"
#include "parse.h"

/* Sizes of a sample in the ring, by the length of the packet: the verifier needs constants. The longest
 * super-packet except for BIG TCP is 64 kB and its headers. */
#define SHORT_PACKET 2048
#define LONG_PACKET  65664

/* Bytes of Ethernet header that a packet in the ring has, and the packet here has not. */
#define MISSING (ETH_HLEN - L3_OFFSET)

/* Submits a sample with the packet behind its head, which leaves `room` bytes for it. Returns 0; -1 if the
 * packet is longer, or shorter than `least`. */
static __always_inline int submit_packet(struct __sk_buff *skb, void *sample, __u32 head, __u32 least,
					 __u32 room)
{
	__u32 len = skb->len;

	barrier_var(len);
	if (len < least || len > room || bpf_skb_load_bytes(skb, 0, sample + head, len)) {
		bpf_ringbuf_discard(sample, BPF_RB_NO_WAKEUP);
		return -1;
	}
	bpf_ringbuf_submit(sample, 0);
	return 0;
}

/* Writes an Ethernet header for a packet that has none: user space has one layout for all. It is taken off
 * when the packet comes in again. */
static __always_inline void fill_ethernet(struct __sk_buff *skb, struct ethhdr *eth)
{
	__builtin_memset(eth, 0, sizeof(*eth));
	eth->h_proto = skb->protocol;
}

static __always_inline int fill_event(struct __sk_buff *skb, void *sample, __u32 room, __u32 kind,
				      const struct flow_ref *flow, const struct segment *seg)
{
	struct ls_event *event = sample;

	event->kind = kind;
	event->serial = flow->rec->serial;
	event->side = flow->side;
	event->ifindex = skb->ifindex;
	event->len = skb->len + MISSING;
	event->seq = seg->seq;
	event->payload = seg->len;
	event->offset = seg->l4 + MISSING + sizeof(struct tcp) + seg->opt_len;
	event->tcp = seg->l4 + MISSING;
	event->reserved = 0;
	if (MISSING)
		fill_ethernet(skb, sample + sizeof(*event));
	return submit_packet(skb, sample, sizeof(*event) + MISSING, V4_HEADERS, room - MISSING);
}

/* Gives user space the packet unchanged. Returns 0; -1 if the ring is full, or the packet is too long. */
static __noinline int hand_over(struct __sk_buff *skb, const struct flow_ref *flow, const struct segment *seg,
				__u32 kind)
{
	void *sample;

	if (skb->len + MISSING <= SHORT_PACKET) {
		sample = bpf_ringbuf_reserve(&events, sizeof(struct ls_event) + SHORT_PACKET, 0);
		return sample ? fill_event(skb, sample, SHORT_PACKET, kind, flow, seg) : -1;
	}
	sample = bpf_ringbuf_reserve(&events, sizeof(struct ls_event) + LONG_PACKET, 0);
	return sample ? fill_event(skb, sample, LONG_PACKET, kind, flow, seg) : -1;
}

/* Keeps a packet for which there is no socket yet: otherwise it would wait for the sender's retransmission
 * timer. */
static __always_inline int hold(struct __sk_buff *skb, const struct flow_ref *flow, const struct segment *seg)
{
	if (hand_over(skb, flow, seg, LS_E_HELD))
		return drop(LS_V_DROP_RING_FULL);
	count(LS_V_QUEUED);
	return TC_ACT_SHOT;
}

/* Tells user space once that an acknowledgement came for which it waits. It looks again by itself after a
 * while, so a full ring costs time only. */
__noinline int report_news(struct ls_slot *slot)
{
	struct ls_event *event;

	if (!slot || !(__sync_fetch_and_and(&slot->flags, ~LS_WATCH) & LS_WATCH))
		return 0;
	event = bpf_ringbuf_reserve(&events, sizeof(*event), 0);
	if (!event)
		return 0;
	__builtin_memset(event, 0, sizeof(*event));
	event->kind = LS_E_NEWS;
	event->serial = slot->serial;
	bpf_ringbuf_submit(event, 0);
	return 0;
}

#endif
