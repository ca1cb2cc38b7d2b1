/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Finds the local socket of a connection. */
#ifndef LONGSPLICE_SOCKET_H
#define LONGSPLICE_SOCKET_H

#include "headers.h"

static __always_inline struct bpf_sock *look_up_socket(struct __sk_buff *skb, const struct ls_tuple *key)
{
	struct bpf_sock_tuple tuple = {};

	if (!is_mapped(key->saddr)) {
		/* Both have the same order, without padding. */
		__builtin_memcpy(&tuple.ipv6, key, sizeof(tuple.ipv6));
		return bpf_sk_lookup_tcp(skb, &tuple, sizeof(tuple.ipv6), BPF_F_CURRENT_NETNS, 0);
	}
	tuple.ipv4.saddr = key->saddr[3];
	tuple.ipv4.daddr = key->daddr[3];
	tuple.ipv4.sport = key->sport;
	tuple.ipv4.dport = key->dport;
	return bpf_sk_lookup_tcp(skb, &tuple, sizeof(tuple.ipv4), BPF_F_CURRENT_NETNS, 0);
}

/* Finds the socket of a connection, in the namespace of the packet; the caller releases it. After a
 * connection has ended the kernel finds the listener at its port: this returns NULL then. */
static __always_inline struct bpf_sock *socket_of(struct __sk_buff *skb, const struct ls_tuple *key)
{
	struct bpf_sock *sk = look_up_socket(skb, key);

	if (sk && sk->state == BPF_TCP_LISTEN) {
		bpf_sk_release(sk);
		return NULL;
	}
	return sk;
}

#endif
