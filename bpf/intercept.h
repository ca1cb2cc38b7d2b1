/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Delivers packets to a local listener, whatever their destination is. */
#ifndef LONGSPLICE_INTERCEPT_H
#define LONGSPLICE_INTERCEPT_H

#include <linux/tcp.h>
#include "intercept_fragment.h"
#include "match.h"
#include "own_address.h"
#include "route.h"
#include "withhold.h"

/* Mark that the routing rule looks for, and its bits. The other bits of the mark are not ours. */
const volatile __u32 mark = 0, mark_mask = 0;

/* Finds the socket that a packet between these ends would reach: its connection's, or else a listener. */
static __always_inline struct bpf_sock *find_socket(struct __sk_buff *skb, __u32 family, const __be32 *src,
						    __be16 sport, const __be32 *dst, __be16 dport)
{
	struct bpf_sock_tuple t = {};

	if (family == 4) {
		t.ipv4.saddr = src[3];
		t.ipv4.daddr = dst[3];
		t.ipv4.sport = sport;
		t.ipv4.dport = dport;
		return bpf_skc_lookup_tcp(skb, &t, sizeof(t.ipv4), BPF_F_CURRENT_NETNS, 0);
	}
	__builtin_memcpy(t.ipv6.saddr, src, sizeof(t.ipv6.saddr));
	__builtin_memcpy(t.ipv6.daddr, dst, sizeof(t.ipv6.daddr));
	t.ipv6.sport = sport;
	t.ipv6.dport = dport;
	return bpf_skc_lookup_tcp(skb, &t, sizeof(t.ipv6), BPF_F_CURRENT_NETNS, 0);
}

/* Marks sockets whose segments a program in user space awaits: it gets a copy of the next one, or of all
 * until it removes the mark. */
#define AWAIT_NEXT 1
#define AWAIT_ALL  2

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, __u32);
} awaited_sockets SEC(".maps");

/* Holds connections without a socket here of which a program in user space awaits a segment, by the tuple of
 * that segment. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 4096);
	__type(key, struct ls_tuple);
	__type(value, __u32);
} awaited_tuples SEC(".maps");

/* Switches the look-up of such connections: 1 while there are any. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} awaiting_any SEC(".maps");

/* Returns whether a segment without a socket here was awaited; the next one is not. */
static __always_inline int is_awaited_tuple(const struct ls_tuple *tuple)
{
	__u32 zero = 0;
	__u32 *n = bpf_map_lookup_elem(&awaiting_any, &zero);

	return n && *n && !bpf_map_delete_elem(&awaited_tuples, tuple);
}

/* Returns whether a segment of this socket is awaited. */
static __always_inline int is_awaited_socket(struct bpf_sock *sk)
{
	__u32 *awaits = bpf_sk_storage_get(&awaited_sockets, sk, NULL, 0);

	return awaits && (*awaits == AWAIT_ALL || !bpf_sk_storage_delete(&awaited_sockets, sk));
}

/* Returns the state of the socket of a connection between these ends (enum BPF_TCP_*); 0: there is none.
 * Tells in *is_awaited whether a segment of it was awaited. */
static __always_inline __u32 state_between(struct __sk_buff *skb, __u32 family, const __be32 *src,
					   __be16 sport, const __be32 *dst, __be16 dport, int *is_awaited)
{
	struct bpf_sock *sk = find_socket(skb, family, src, sport, dst, dport);
	__u32 state;

	if (!sk)
		return 0;
	state = sk->state;
	if (is_awaited)
		*is_awaited = is_awaited_socket(sk);
	bpf_sk_release(sk);
	return state == BPF_TCP_LISTEN ? 0 : state;
}

/* Returns the state of the connection's own socket, as state_between(). */
static __always_inline __u32 state_of(struct __sk_buff *skb, const struct tcp_packet *p, int *is_awaited)
{
	const struct ls_tuple *t = &p->tuple;

	return state_between(skb, p->family, t->saddr, t->sport, t->daddr, t->dport, is_awaited);
}

/* Returns whether a socket of this host has sent the SYN, and waits for the answer: the routes have brought
 * it back. Its interception would be connected in its turn, and so on. */
static __always_inline int is_own_syn(struct __sk_buff *skb, const struct tcp_packet *p)
{
	const struct ls_tuple *t = &p->tuple;

	return state_between(skb, p->family, t->daddr, t->dport, t->saddr, t->sport, NULL) ==
	       BPF_TCP_SYN_SENT;
}

static __always_inline void route_to_us(struct __sk_buff *skb)
{
	skb->mark = (skb->mark & ~mark_mask) | mark;
}

/* Returns whether a packet ends a handshake of which the listener stores only a cookie (RFC 4987 section
 * 3.6). Used for an acknowledgement without a connection; the answer is quick while the listener's queue does
 * not overflow. */
static __always_inline int brings_cookie(struct __sk_buff *skb, const struct tcp_packet *p,
					 struct bpf_sock *listener)
{
	union {
		struct iphdr v4;
		struct ipv6hdr v6;
	} ip = {};
	__u32 len = p->family == 4 ? sizeof(ip.v4) : sizeof(ip.v6);
	struct tcphdr tcp;

	if (p->family == 4 ? bpf_skb_load_bytes(skb, L3_OFFSET, &ip.v4, sizeof(ip.v4))
			   : bpf_skb_load_bytes(skb, L3_OFFSET, &ip.v6, sizeof(ip.v6)))
		return 0;
	if (bpf_skb_load_bytes(skb, p->l4, &tcp, sizeof(tcp)))
		return 0;
	return !bpf_tcp_check_syncookie(listener, &ip, len, &tcp, sizeof(tcp));
}

/* Gives a packet to the listener: one that opens a connection, or the end of a handshake by cookie. */
static __always_inline enum ls_rule_verdict open_at(struct __sk_buff *skb, const struct tcp_packet *p,
						    const struct ls_target *at, int opens)
{
	const struct ls_tuple *t = &p->tuple;
	struct bpf_sock *sk =
	    find_socket(skb, p->family, t->saddr, t->sport, (const __be32 *)at->daddr, at->dport);
	enum ls_rule_verdict verdict = LS_R_NO_LISTENER;
	struct scratch *scratch = get_scratch();
	__u32 withheld = 0;

	if (!sk)
		return verdict;
	if (sk->state != BPF_TCP_LISTEN)
		goto out;
	verdict = LS_R_FOREIGN;
	if (!opens && !brings_cookie(skb, p, sk))
		goto out;
	verdict = bpf_sk_assign(skb, sk, 0) ? LS_R_NO_LISTENER : LS_R_OPENED;
	if (opens)
		withheld = withheld_of(sk);
out:
	bpf_sk_release(sk);
	if (verdict != LS_R_OPENED)
		return verdict;
	route_to_us(skb);
	/* `ingress` does not know that this SYN is for a listener of ours. */
	if (scratch && may_have(skb, &scratch->in, withheld))
		withhold(skb, withheld);
	return verdict;
}

/* Brings the first fragment of a segment to the socket of its connection. A connection is not opened by
 * fragments. */
static __always_inline enum ls_rule_verdict intercept_fragment(struct __sk_buff *skb,
							       const struct tcp_packet *p)
{
	if (!state_of(skb, p, NULL))
		return LS_R_ODD;
	if (is_own_address(skb, &p->tuple))
		return LS_R_OWN_ADDRESS;
	if (begin_delivery(skb))
		return LS_R_ODD;
	route_to_us(skb);
	return LS_R_FOLLOWED;
}

/*
 * Gives a packet that opens a connection to the listener. A packet of a connection that has a socket here
 * finds that socket by itself, and only needs a route to this host. Every other packet belongs to a
 * connection older than the rule.
 */
static __always_inline enum ls_rule_verdict intercept(struct __sk_buff *skb, const struct tcp_packet *p,
						      const struct ls_target *at, int *is_awaited)
{
	int opens = (p->flags & (TCP_SYN | TCP_ACK | TCP_RST | TCP_FIN)) == TCP_SYN;
	int answers = (p->flags & (TCP_SYN | TCP_ACK | TCP_RST)) == TCP_ACK;
	enum ls_rule_verdict verdict;
	__u32 state;

	if (p->fragment)
		return intercept_fragment(skb, p);
	state = state_of(skb, p, is_awaited);
	if (!state && answers)
		*is_awaited = is_awaited_tuple(&p->tuple);
	if (!state && ((!opens && !answers) || !at->dport))
		return LS_R_FOREIGN;
	if ((state || opens) && is_own_address(skb, &p->tuple))
		return LS_R_OWN_ADDRESS;
	if (!state && opens && is_own_syn(skb, p))
		return LS_R_LOOPED;
	if (!state) {
		verdict = open_at(skb, p, at, opens);
		/* An acknowledgement was not an attempt to connect. */
		return verdict == LS_R_NO_LISTENER && !opens ? LS_R_FOREIGN : verdict;
	}
	route_to_us(skb);
	return LS_R_FOLLOWED;
}

#endif
