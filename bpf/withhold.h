/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Withholds options from the SYNs of connections that are to be spliced: a splice needs two legs that agreed
 * on the same. A socket believes its peer's SYN-ACK, not its own SYN, so an option that is taken out of a SYN
 * is agreed on by neither end. A SYN-ACK is read, and never changed.
 */
#ifndef LONGSPLICE_WITHHOLD_H
#define LONGSPLICE_WITHHOLD_H

#include "csum.h"
#include "own_address.h"
#include "socket.h"

/* MSS of a peer that offers none (RFC 9293 section 3.7.1). */
#define DEFAULT_MSS_V4 536
#define DEFAULT_MSS_V6 1220

/* Holds what is to happen to the handshakes of a socket of ours: a connecting one or a listening one. An
 * element ends with its socket. */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct ls_handshake);
} handshakes SEC(".maps");

/* State of a walk that overwrites options. */
struct blank_walk {
	struct option_walk options;
	__u32 withheld;
};

/* Overwrites the current option with NOPs if it is of this kind and size, and withheld. */
static __always_inline void blank(const struct blank_walk *walk, __u32 kind, __u32 size, __u32 bit)
{
	__u8 *option = &walk->options.h->opt[walk->options.at & 63];

	if (walk->options.kind == kind && walk->options.size == size && walk->withheld & bit)
		__builtin_memset(option, OPT_NOP, size);
}

static long blank_step(__u32 n, struct blank_walk *walk)
{
	if (look_at_option(&walk->options))
		return 1;
	blank(walk, OPT_TS, 10, LS_WITHHOLD_TIMESTAMPS);
	blank(walk, OPT_SACK_PERMITTED, 2, LS_WITHHOLD_SACK);
	blank(walk, OPT_SCALE, 3, LS_WITHHOLD_SCALE);
	walk->options.at += walk->options.size;
	return 0;
}

/* Takes what is withheld out of a SYN in the buffer. */
static __always_inline void edit_syn(struct headers *h, __u32 opt_len, __u32 withheld)
{
	struct blank_walk walk = {.options = {.h = h, .len = opt_len}, .withheld = withheld};

	bpf_loop(OPTION_STEPS, blank_step, &walk, 0);
	if (withheld & (LS_WITHHOLD_ECN | LS_WITHHOLD_ACCURATE))
		h->tcp.offset &= ~TCP_AE;
	if (withheld & LS_WITHHOLD_ECN)
		h->tcp.flags &= ~(TCP_ECE | TCP_CWR);
}

/* Takes what is withheld out of a packet that parse_tuple() knows; a SYN that cannot be written stays as it
 * is. */
__noinline int withhold(struct __sk_buff *skb, __u32 withheld)
{
	struct scratch *scratch = get_scratch();
	struct segment *seg;

	if (!scratch)
		return 0;
	seg = &scratch->segment;
	if (parse_segment(skb, &scratch->in, seg) != SEGMENT || seg->opt_len > 40)
		return 0;
	copy_headers(&scratch->out, &scratch->in, seg->opt_len);
	if (seg->flags & TCP_SYN)
		edit_syn(&scratch->out, seg->opt_len, withheld);
	if (withheld & LS_WITHHOLD_ECT && (seg->flags & TCP_SYN || !seg->len))
		clear_ecn(&scratch->out);
	return write_headers(skb, &scratch->in, &scratch->out, seg->opt_len);
}

/* Returns whether a packet that parse_tuple() knows may have something that is withheld. Most sockets
 * withhold AccECN only, and hardly any SYN asks for that. */
static __always_inline int may_have(struct __sk_buff *skb, const struct headers *h, __u32 withheld)
{
	__u8 offset = 0;

	if (withheld != LS_WITHHOLD_ACCURATE)
		return withheld;
	bpf_skb_load_bytes(skb, l4_of(h) + offsetof(struct tcp, offset), &offset, sizeof(offset));
	return offset & TCP_AE;
}

/* Returns what is withheld from the handshakes of a socket. */
static __always_inline __u32 withheld_of(struct bpf_sock *sk)
{
	struct ls_handshake *handshake = bpf_sk_storage_get(&handshakes, sk, 0, 0);

	return handshake ? handshake->withheld : 0;
}

static long find_mss_step(__u32 n, struct option_walk *walk)
{
	if (look_at_option(walk))
		return 1;
	return ends_at(walk, walk->kind == OPT_MSS && walk->size == 4);
}

/* Returns the MSS that a SYN-ACK in the buffer offers. */
static __always_inline __u32 offered_mss(struct headers *h, __u32 opt_len)
{
	struct option_walk walk = {.h = h, .len = opt_len};

	bpf_loop(OPTION_STEPS, find_mss_step, &walk, 0);
	if (walk.len)
		return is_v6(h) ? DEFAULT_MSS_V6 : DEFAULT_MSS_V4;
	return bpf_ntohs(*(__be16 *)&h->opt[(walk.at + 2) & 63]);
}

/* Returns the flags of a packet that parse_tuple() called a SEGMENT. */
static __always_inline __u8 flags_of(struct __sk_buff *skb, const struct headers *h)
{
	__u8 flags = 0;

	bpf_skb_load_bytes(skb, l4_of(h) + offsetof(struct tcp, flags), &flags, sizeof(flags));
	return flags;
}

/* Returns whether these are the flags of a packet that begins a connection. */
static __always_inline int begins(__u8 flags)
{
	return (flags & (TCP_SYN | TCP_ACK | TCP_RST | TCP_FIN)) == TCP_SYN;
}

/* Returns whether a packet is for this host. The stack has no room for it within its caller, which calls
 * withhold(). */
__noinline int is_for_us(struct __sk_buff *skb)
{
	struct scratch *scratch = get_scratch();

	return scratch && is_own_address(skb, &scratch->tuple);
}

/* Withholds from a client's SYN what the servers behind its listener do not agree to. The SYN of another
 * listener stays as it is, and so does one that this host forwards: the look-up finds a listener at the
 * wildcard address for any destination. */
__noinline int withhold_from_client(struct __sk_buff *skb)
{
	struct scratch *scratch = get_scratch();
	struct bpf_sock *sk;
	__u32 withheld = 0;

	if (!scratch)
		return 0;
	sk = look_up_socket(skb, &scratch->tuple);
	if (!sk)
		return 0;
	if (sk->state == BPF_TCP_LISTEN)
		withheld = withheld_of(sk);
	bpf_sk_release(sk);
	if (!may_have(skb, &scratch->in, withheld) || !is_for_us(skb))
		return 0;
	return withhold(skb, withheld);
}

/* Notes the MSS of a server, for user space: our socket limits what it keeps of it to its own. */
__noinline int note_mss(struct __sk_buff *skb)
{
	struct scratch *scratch = get_scratch();
	struct ls_handshake *handshake;
	struct segment *seg;
	struct bpf_sock *sk;

	if (!scratch)
		return 0;
	seg = &scratch->segment;
	sk = look_up_socket(skb, &scratch->tuple);
	if (!sk)
		return 0;
	handshake = sk->state == BPF_TCP_SYN_SENT ? bpf_sk_storage_get(&handshakes, sk, 0, 0) : NULL;
	if (handshake && parse_segment(skb, &scratch->in, seg) == SEGMENT)
		handshake->mss = offered_mss(&scratch->in, seg->opt_len);
	bpf_sk_release(sk);
	return 0;
}

/* Withholds from a SYN of our own what the client's leg does not have, and ECT from what must not have it. */
__noinline int withhold_from_own(struct __sk_buff *skb)
{
	struct scratch *scratch = get_scratch();
	struct bpf_sock *sk = skb->sk;
	__u32 withheld;

	if (!scratch || !sk)
		return 0;
	sk = bpf_sk_fullsock(sk);
	if (!sk)
		return 0;
	withheld = withheld_of(sk);
	return may_have(skb, &scratch->in, withheld) ? withhold(skb, withheld) : 0;
}

/* Processes a packet of a peer that belongs to no flow. */
static __always_inline int pass_foreign(struct __sk_buff *skb, const struct headers *h)
{
	__u8 flags = flags_of(skb, h);

	if (begins(flags))
		withhold_from_client(skb);
	else if ((flags & (TCP_SYN | TCP_ACK | TCP_RST)) == (TCP_SYN | TCP_ACK))
		note_mss(skb);
	return NEXT;
}

/* Processes a packet of a local socket that belongs to no flow. */
static __always_inline int pass_own(struct __sk_buff *skb, const struct headers *h)
{
	__u8 flags = flags_of(skb, h), class[2] = {};

	if (flags == TCP_ACK && !bpf_skb_load_bytes(skb, L3_OFFSET, class, sizeof(class)) &&
	    (is_v6(h) ? class[1] >> 4 : class[1]) & 3)
		withhold_from_own(skb);
	else if (begins(flags))
		withhold_from_own(skb);
	return NEXT;
}

#endif
