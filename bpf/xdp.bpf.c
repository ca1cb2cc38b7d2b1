// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Translates the usual segments of detached flows in XDP, before there is an sk_buff (IP/FWD). Every other
 * packet goes unchanged to `ingress` at tc, which alone decides about it (docs/decisions/0014).
 */
#include <linux/bpf.h>
#include <linux/if_packet.h>
#include <linux/pkt_cls.h>
#include <stddef.h>
#include "admit.h"
#include "rewrite.h"
#include "route.h"

#define LOAD_BYTES bpf_xdp_load_bytes
#include "verify.h"

/* Interfaces that take frames from XDP; user space fills it (crates/dataplane, xdp). */
struct {
	__uint(type, BPF_MAP_TYPE_DEVMAP_HASH);
	__uint(max_entries, 256);
	__type(key, __u32);
	__type(value, __u32);
} exits SEC(".maps");

/* Leaves a packet to tc, unchanged. */
static __always_inline int leave(enum ls_verdict verdict)
{
	count(verdict);
	return XDP_PASS;
}

/* Finds the connection of a packet that has nothing between its headers; NOT_OURS for all others. */
static __always_inline enum parsed parse_plain(struct xdp_md *ctx, struct headers *h, struct ls_tuple *t)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct ethhdr *eth = data;

	if (data + V4_HEADERS > end)
		return NOT_OURS;
	if (eth->h_proto == bpf_htons(ETH_P_IP)) {
		struct iphdr *ip = data + L3_OFFSET;

		if (ip->ihl != sizeof(*ip) / 4 || read_v4(ip, h, t->saddr, t->daddr) != SEGMENT)
			return NOT_OURS;
		copy_words(&t->sport, data + V4_L4, 4);
		return SEGMENT;
	}
	if (eth->h_proto == bpf_htons(ETH_P_IPV6) && data + V6_HEADERS <= end) {
		struct ipv6hdr *ip = data + L3_OFFSET;

		if (ip->nexthdr != IPPROTO_TCP || read_v6(ip, h, t->saddr, t->daddr) != SEGMENT)
			return NOT_OURS;
		copy_words(&t->sport, data + V6_L4, 4);
		return SEGMENT;
	}
	return NOT_OURS;
}

/* Loads the headers of a packet that parse_plain() knows. Returns SEGMENT; MALFORMED also if they are not in
 * linear memory. */
static __always_inline enum parsed load_segment(struct xdp_md *ctx, struct headers *h, struct segment *seg)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	int loaded = load_plain(data, end, h);
	__u32 header = (h->tcp.offset >> 4) * 4;

	if (loaded < 0 || header < sizeof(struct tcp))
		return MALFORMED;
	seg->opt_len = header - sizeof(struct tcp);
	if ((__s32)seg->opt_len > loaded &&
	    bpf_xdp_load_bytes(ctx, l4_of(h) + sizeof(struct tcp), h->opt, seg->opt_len))
		return MALFORMED;
	return read_segment(h, seg, ip_length(h), end - data - L3_OFFSET);
}

struct net_device___ours {
	const __u8 *dev_addr;
} __attribute__((preserve_access_index));

struct xdp_rxq_info___ours {
	struct net_device___ours *dev;
} __attribute__((preserve_access_index));

struct xdp_buff___ours {
	struct xdp_rxq_info___ours *rxq;
} __attribute__((preserve_access_index));

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

/* Address of the interface on which the last frame came in, on this CPU. */
struct address {
	__u64 at; /* jiffies */
	__u32 ifindex;
	__u8 mac[ETH_ALEN];
	__u16 unused;
};

PER_CPU(struct address, address);

static __always_inline int same_address(const void *a, const void *b)
{
	const __u16 *left = a, *right = b;

	return !((left[0] ^ right[0]) | (left[1] ^ right[1]) | (left[2] ^ right[2]));
}

/* Returns whether a frame is addressed to its interface. At tc, the kernel marks a frame for another address
 * as PACKET_OTHERHOST: the interface is promiscuous. The address is read once in a tick of the timer: to look
 * into the kernel costs as much as to find the flow. */
static __always_inline int is_for_us(struct xdp_md *ctx, struct headers *h)
{
	__u64 now = bpf_jiffies64();
	__u32 zero = 0, ifindex = ctx->ingress_ifindex;
	struct address *own = bpf_map_lookup_elem(&address, &zero);

	if (!own)
		return 0;
	if (own->at != now || own->ifindex != ifindex) {
		if (own_address(ctx, own->mac))
			return 0;
		own->at = now;
		own->ifindex = ifindex;
	}
	return same_address(own->mac, eth_of(h)->h_dest);
}

/* Returns whether a segment only needs its route to be decided. */
static __always_inline int is_usual(const struct ls_record *rec, struct headers *h, const struct segment *seg)
{
	return (seg->flags & (TCP_FIN | TCP_SYN | TCP_RST | TCP_URG | TCP_ACK)) == TCP_ACK &&
	       hops_left(h) > FEW_HOPS && !(rec->traits & (LS_FAR_LOCAL | LS_FAMILIES)) && !rec->rate &&
	       !meets_trap(rec, seg) && !is_out_of_order(rec, seg);
}

/*
 * Returns whether the TCP checksum is left to a device, or was to be, as on a veth pair: the field has the
 * sum of the pseudo-header. One in 65,536 others looks so by chance, and only takes the longer way.
 */
static __always_inline int is_unsummed(struct headers *h, const struct segment *seg)
{
	return h->tcp.check == fold(pseudo_sum(h, sizeof(struct tcp) + seg->opt_len + seg->len));
}

/* Returns whether a segment that would change more of the state than usual ones do was corrupted. (The
 * acknowledgement of a segment with payload is believed: docs/threat-model.md.) */
static __always_inline int is_doubtful(struct xdp_md *ctx, const struct ls_record *rec, struct headers *h,
				       const struct segment *seg)
{
	return !is_plain_sound(h) ||
	       ((seg->len ? moves_stream(rec, seg) : tells_more(rec, seg)) && !is_sound(ctx, h, seg));
}

/* Writes the headers over those of the packet. Returns 0, or -1 if the packet could not be written. */
static __always_inline int store(struct xdp_md *ctx, struct headers *h, __u32 opt_len)
{
	__u32 len = (is_v6(h) ? V6_HEADERS : V4_HEADERS) + (opt_len & 63);

	if (!store_directly((void *)(long)ctx->data, (void *)(long)ctx->data_end, h, opt_len))
		return 0;
	return bpf_xdp_store_bytes(ctx, 0, eth_of(h), len) ? -1 : 0;
}

/* Returns the action that sends the frame of `new`, which has its addresses and ports; XDP_PASS if no
 * interface would take it. */
static __always_inline int exit_of(struct xdp_md *ctx, struct headers *new, const struct ls_record *rec)
{
	struct route route = {};
	int action;

	if (route_of(ctx, new, ip_length(new), rec, 0, &route) || route.resolve)
		return XDP_PASS;
	action = bpf_redirect_map(&exits, route.ifindex, XDP_PASS);
	return action == XDP_REDIRECT && route.ifindex == ctx->ingress_ifindex ? XDP_TX : action;
}

SEC("xdp")
int fast(struct xdp_md *ctx)
{
	struct scratch *scratch = get_scratch();
	struct ls_tuple tuple;
	struct edits edits;
	struct segment *seg;
	struct flow_ref flow;
	enum ls_verdict reason;
	int action;

	if (!scratch || parse_plain(ctx, &scratch->in, &tuple) != SEGMENT || !find(&tuple, &flow) ||
	    flow.placement != LS_DETACHED)
		return XDP_PASS;
	seg = &scratch->segment;
	if (load_segment(ctx, &scratch->in, seg) != SEGMENT || !is_usual(flow.rec, &scratch->in, seg) ||
	    !is_for_us(ctx, &scratch->in))
		return leave(LS_V_PASSED_XDP);
	if (is_unsummed(&scratch->in, seg))
		return leave(LS_V_CSUM_PARTIAL_XDP);
	if (is_doubtful(ctx, flow.rec, &scratch->in, seg))
		return leave(LS_V_PASSED_XDP);
	/* Find the exit before the segment is noted: tc would take a noted segment for a repetition. */
	copy_headers(&scratch->out, &scratch->in, seg->opt_len);
	address_to(&scratch->out, far_of(&flow));
	action = exit_of(ctx, &scratch->out, flow.rec);
	if (action == XDP_PASS || admit(&flow, seg, &reason) != ADMITTED || !seg->in_place)
		return leave(LS_V_PASSED_XDP);
	count_hop(&scratch->out);
	translate(&scratch->out, seg, flow.rec, far_of(&flow), &edits);
	apply_edits(&scratch->out, seg, &edits);
	mend_checks(&scratch->in, &scratch->out, seg->opt_len);
	if (store(ctx, &scratch->out, seg->opt_len))
		return leave(LS_V_PASSED_XDP);
	note_translated(flow.rec, seg);
	count(LS_V_FORWARDED_XDP);
	return action;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
