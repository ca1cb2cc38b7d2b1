/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Computes internet checksums (RFC 1071, RFC 1624), and writes headers back into the packet with their
 * checksums, in each state that the kernel has for them. */
#ifndef LONGSPLICE_CSUM_H
#define LONGSPLICE_CSUM_H

#include <linux/types.h>
#include <bpf/bpf_core_read.h>
#include "parse.h"

/* Folds a sum to 16 bits. */
static __always_inline __u16 fold(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return sum;
}

/* Folds a sum to 32 bits. */
static __always_inline __u32 fold32(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	return (sum & 0xffffffff) + (sum >> 32);
}

static __always_inline __u32 add_sums(__u32 a, __u32 b)
{
	return fold32((__u64)a + b);
}

/* Sums up n words. Inline: cheaper than a helper for a few words. */
static __always_inline __u32 sum_words(const void *words, __u32 n)
{
	const __u32 *a = words;
	__u64 sum = 0;

	for (__u32 i = 0; i < n; i++)
		sum += a[i];
	return fold32(sum);
}

/* Returns the change of a header's sum by a change of n of its words. */
static __always_inline __u32 sum_diff(const void *old, const void *new, __u32 n)
{
	const __u32 *a = old, *b = new;
	__u64 sum = 0;

	for (__u32 i = 0; i < n; i++)
		sum += (__u64)(__u32)~a[i] + b[i];
	return fold32(sum);
}

/* Returns the checksum of a header whose sum changed by `diff` (RFC 1624). */
static __always_inline __u16 adjust(__u16 check, __u32 diff)
{
	return ~fold((__u64)(__u16)~check + diff);
}

/* Returns the change of the pseudo-header's sum by other addresses. */
static __always_inline __u32 addresses_diff(const struct headers *old, const struct headers *new)
{
	if (is_v6(old))
		return sum_diff(&old->v6.ip.saddr, &new->v6.ip.saddr, 8);
	return sum_diff(&old->v4.ip.saddr, &new->v4.ip.saddr, 2);
}

/* Returns the change of the sum of an IP header: 0 for an IPv4 header with a correct checksum. */
static __always_inline __u32 ip_diff(const struct headers *old, const struct headers *new)
{
	return is_v6(old) ? sum_diff(&old->v6.ip, &new->v6.ip, sizeof(old->v6.ip) / 4) : 0;
}

static __always_inline __u32 addresses_sum(const struct headers *h)
{
	return is_v6(h) ? sum_words(&h->v6.ip.saddr, 8) : sum_words(&h->v4.ip.saddr, 2);
}

/* Returns the sum of the pseudo-header for `tcp_len` bytes of TCP (RFC 9293 section 3.1, RFC 8200 section
 * 8.1). */
static __always_inline __u32 pseudo_sum(const struct headers *h, __u32 tcp_len)
{
	return add_sums(addresses_sum(h), bpf_htons(IPPROTO_TCP) + bpf_htons(tcp_len));
}

/* Corrects the checksum of an IPv4 header that changed; IPv6 has none. */
static __always_inline void mend_ip_check(const struct headers *old, struct headers *new)
{
	if (is_v6(old))
		return;
	new->v4.ip.check = old->v4.ip.check;
	new->v4.ip.check =
	    adjust(old->v4.ip.check, sum_diff(&old->v4.ip, &new->v4.ip, sizeof(old->v4.ip) / 4));
}

/* Returns whether the checksum of an IPv4 header without options is right (RFC 1812 section 5.2.2): the
 * header has the length of the payload. IPv6 has no checksum of its own. */
static __always_inline int is_plain_sound(const struct headers *h)
{
	return is_v6(h) || h->v4.ip.ihl != sizeof(h->v4.ip) / 4 ||
	       fold(sum_words(&h->v4.ip, sizeof(h->v4.ip) / 4)) == 0xffff;
}

static __always_inline void set_ip_length(struct headers *h, __u32 len)
{
	__be16 old = h->v4.ip.tot_len;

	if (is_v6(h)) {
		h->v6.ip.payload_len = bpf_htons(len - sizeof(h->v6.ip));
		return;
	}
	h->v4.ip.tot_len = bpf_htons(len);
	h->v4.ip.check = adjust(h->v4.ip.check, (__u32)(__u16)~old + h->v4.ip.tot_len);
}

struct sk_buff___ours {
	__u8 ip_summed : 2;
	unsigned char *head;
	unsigned int end; /* offset of struct skb_shared_info */
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
	__u64 field;

	if (!bpf_ksym_exists(bpf_cast_to_kern_ctx))
		return CHECKSUM_UNKNOWN;
	kernel = bpf_cast_to_kern_ctx(skb);
	/* Read the one byte that has the field. BPF_CORE_READ_BITFIELD() has a branch for each size, and the
	 * kernel moves all that follows as it removes those that are not taken. */
	field = *((const __u8 *)kernel + __CORE_RELO(kernel, ip_summed, BYTE_OFFSET));
	field <<= __CORE_RELO(kernel, ip_summed, LSHIFT_U64);
	return field >> __CORE_RELO(kernel, ip_summed, RSHIFT_U64);
}

/* Returns the length of options, at most 40, for a helper. The compiler knows the limit and would drop the
 * mask; verifiers before Linux 6.8 do not follow the limit that far. */
static __always_inline __u32 limited(__u32 opt_len)
{
	barrier_var(opt_len);
	return opt_len & 63;
}

/* Writes `len` bytes and the `opt_len` bytes of TCP options behind them. Returns 0, or -1. */
static __always_inline int store_with_options(struct __sk_buff *skb, __u32 at, const void *from, __u32 len,
					      __u32 opt_len, __u64 flags)
{
	return bpf_skb_store_bytes(skb, at, from, len + limited(opt_len), flags) ? -1 : 0;
}

/* Writes the headers unchanged. Returns 0, or -1 if the packet could not be written. */
static __always_inline int store_headers(struct __sk_buff *skb, struct headers *h, __u32 opt_len, __u64 flags)
{
	__u32 l4 = l4_of(h);
	long err;

	if (is_v6(h)) {
		if (l4 == V6_L4)
			return store_with_options(skb, 0, start_of_v6(h), V6_HEADERS, opt_len, flags);
		err = bpf_skb_store_bytes(skb, 0, start_of_v6(h), V6_L4, flags);
	} else {
		if (l4 == V4_L4)
			return store_with_options(skb, 0, start_of_v4(h), V4_HEADERS, opt_len, flags);
		err = bpf_skb_store_bytes(skb, 0, start_of_v4(h), V4_L4, flags);
	}
	return err ? -1 : store_with_options(skb, l4, &h->tcp, sizeof(h->tcp), opt_len, flags);
}

static __always_inline int store_linear(void *data, void *end, const void *from, __u32 len)
{
	if (data + len > end)
		return -1;
	copy_words(data, from, len);
	return 0;
}

/* Writes headers of the usual layout directly into packet memory, without the cost of a helper. A tc program
 * that does so has the kernel make every packet writable that the program sees and that others share:
 * `egress` must not. Returns 0; -1 if the layout is not the usual one or the packet's linear part is
 * shorter. */
static __always_inline int store_directly(void *data, void *end, struct headers *h, __u32 opt_len)
{
	if (l4_of(h) != (is_v6(h) ? V6_L4 : V4_L4))
		return -1;
	if (opt_len == TS_LAYOUT_LEN)
		return is_v6(h) ? store_linear(data, end, start_of_v6(h), V6_HEADERS + TS_LAYOUT_LEN)
				: store_linear(data, end, start_of_v4(h), V4_HEADERS + TS_LAYOUT_LEN);
	if (opt_len)
		return -1;
	return is_v6(h) ? store_linear(data, end, start_of_v6(h), V6_HEADERS)
			: store_linear(data, end, start_of_v4(h), V4_HEADERS);
}

/* Differences of sums that a change of headers makes. */
struct changes {
	__u32 addresses; /* in the pseudo-header */
	__u32 tcp;	 /* in TCP's header, except for its checksum */
	__u32 whole;	 /* in the whole packet, with all checksums corrected (CHECKSUM_COMPLETE) */
};

/* Returns the change of the sum of TCP's header with its options, of which there are at most 40 bytes. */
static __always_inline __u32 tcp_diff(struct headers *old, struct headers *new, __u32 opt_len)
{
	__u32 diff = sum_diff(&old->tcp, &new->tcp, sizeof(old->tcp) / 4), len = limited(opt_len);

	if (opt_len == TS_LAYOUT_LEN)
		return add_sums(diff, sum_diff(old->opt, new->opt, TS_LAYOUT_LEN / 4));
	return opt_len ? bpf_csum_diff((void *)old->opt, len, (void *)new->opt, len, diff) : diff;
}

/* Corrects the checksum of IP in `new` and returns the changes of all sums. `opt_len` is at most 40. */
static __always_inline struct changes changes_of(struct headers *old, struct headers *new, __u32 opt_len)
{
	struct changes c = {.addresses = addresses_diff(old, new)};

	mend_ip_check(old, new);
	new->tcp.check = old->tcp.check;
	c.tcp = tcp_diff(old, new, opt_len);
	/* TCP's checksum compensates for the pseudo-header, and an IPv4 header's for itself. */
	c.whole = add_sums(~c.addresses, ip_diff(old, new));
	return c;
}

/* Corrects the TCP checksum of `new`, in each of the states of `summed` that the kernel tells. */
static __always_inline void mend_tcp_check(struct __sk_buff *skb, struct headers *new, enum summed summed,
					   const struct changes *c)
{
	if (summed == CHECKSUM_PARTIAL)
		new->tcp.check = fold((__u64) new->tcp.check + c->addresses);
	else
		new->tcp.check = adjust(new->tcp.check, add_sums(c->tcp, c->addresses));
	if (summed == CHECKSUM_COMPLETE)
		bpf_csum_update(skb, c->whole);
}

/* Corrects the TCP checksum in the packet itself, by helpers that know its state; for kernels that do not
 * tell the state. Returns 0, or -1. */
static __always_inline int replace_tcp_check(struct __sk_buff *skb, struct headers *new,
					     const struct changes *c)
{
	__u32 at = tcp_check_at(new);

	if (c->addresses && bpf_l4_csum_replace(skb, at, 0, c->addresses, BPF_F_PSEUDO_HDR))
		return -1;
	if (c->tcp && bpf_l4_csum_replace(skb, at, 0, c->tcp, 0))
		return -1;
	bpf_csum_update(skb, add_sums(c->whole, c->addresses));
	return 0;
}

/* Corrects all checksums of `new` for a packet that has no sk_buff yet: its TCP checksum is complete. */
static __always_inline void mend_checks(struct headers *old, struct headers *new, __u32 opt_len)
{
	struct changes c = changes_of(old, new, opt_len);

	mend_tcp_check(NULL, new, CHECKSUM_NONE, &c);
}

/*
 * Writes `new` over the headers `old` of the packet and corrects all checksums, in any state of TCP's. Both
 * have options of the same length. `directly` allows store_directly(). Returns 0, or -1 if the packet could
 * not be written.
 */
static __always_inline int write_headers_fast(struct __sk_buff *skb, struct headers *old, struct headers *new,
					      __u32 opt_len, int directly)
{
	enum summed summed = summed_of(skb);
	struct changes c;

	if (opt_len > 40)
		return -1;
	c = changes_of(old, new, opt_len);
	if (summed != CHECKSUM_UNKNOWN)
		mend_tcp_check(skb, new, summed, &c);
	if (!(directly &&
	      !store_directly((void *)(long)skb->data, (void *)(long)skb->data_end, new, opt_len)) &&
	    store_headers(skb, new, opt_len, 0))
		return -1;
	return summed == CHECKSUM_UNKNOWN ? replace_tcp_check(skb, new, &c) : 0;
}

/* Reads the TCP checksum of the packet into h, for headers that are about to be overwritten. Returns 0, or
 * -1. */
static __always_inline int read_check(struct __sk_buff *skb, struct headers *h)
{
	return bpf_skb_load_bytes(skb, tcp_check_at(h), &h->tcp.check, sizeof(h->tcp.check)) ? -1 : 0;
}

/* Returns whether a device is to fill in the TCP checksum. On kernels that do not tell the state it tries the
 * helper, which leaves the field unchanged only in that case. */
static __always_inline int is_left_to_device(struct __sk_buff *skb, __u32 check_at)
{
	enum summed summed = summed_of(skb);
	__u16 before = 0, after = 0;

	if (summed != CHECKSUM_UNKNOWN)
		return summed == CHECKSUM_PARTIAL;
	if (bpf_skb_load_bytes(skb, check_at, &before, sizeof(before)) ||
	    bpf_l4_csum_replace(skb, check_at, 0, 1, 0) ||
	    bpf_skb_load_bytes(skb, check_at, &after, sizeof(after)))
		return 0;
	if (before == after)
		return 1;
	bpf_skb_store_bytes(skb, check_at, &before, sizeof(before), 0);
	return 0;
}

/* Cuts the payload off a packet and computes its checksum from scratch. Returns 0, or -1. */
__noinline int trim_payload(struct __sk_buff *skb, struct headers *h, __u32 opt_len)
{
	__u32 tcp_len = sizeof(struct tcp) + (opt_len & 63), l4;
	int partial;
	__s64 sum;

	if (!h || opt_len > 40)
		return -1;
	l4 = l4_of(h);
	partial = is_left_to_device(skb, tcp_check_at(h));
	if (bpf_skb_change_tail(skb, l4 + tcp_len, 0))
		return -1;
	if (!ip_length(h) && drop_jumbo(skb, h))
		return -1;
	set_ip_length(h, l4 - L3_OFFSET + tcp_len);
	h->tcp.check = 0;
	sum = pseudo_sum(h, tcp_len);
	if (!partial)
		sum = bpf_csum_diff(NULL, 0, (void *)&h->tcp, tcp_len, sum);
	h->tcp.check = partial ? fold(sum) : ~fold(sum);
	return store_headers(skb, h, opt_len, BPF_F_RECOMPUTE_CSUM);
}

#endif
