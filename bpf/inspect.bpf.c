// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Reads the state of sockets. User space runs `inspect` (BPF_PROG_RUN) in the daemon's namespace: it reads a
 * connection's sequence numbers, windows and the peer's timestamp in one call and without stopping the
 * socket. No option of getsockopt(2) tells the copied sequence number or ts_recent.
 */
#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include "socket.h"

/* Fields of the kernel's structures that we read; the loader relocates the offsets. */
struct tcp_options_received {
	__u32 ts_recent;
	__u16 mss_clamp;
} __attribute__((preserve_access_index));

struct rb_node;

struct rb_root {
	struct rb_node *rb_node;
} __attribute__((preserve_access_index));

struct inet_connection_sock {
	const void *icsk_ulp_ops;
} __attribute__((preserve_access_index));

struct tcp_sock {
	__u32 rcv_nxt, copied_seq, rcv_wup, rcv_wnd;
	__u32 snd_nxt, snd_una, snd_wnd, max_window, write_seq;
	struct tcp_options_received rx_opt;
	struct rb_root out_of_order_queue;
} __attribute__((preserve_access_index));

static __always_inline void inspect_route(struct __sk_buff *skb, struct ls_inspection *p)
{
	struct bpf_fib_lookup fib = {
	    .family = AF_INET6,
	    .l4_protocol = IPPROTO_TCP,
	    .sport = p->key.dport,
	    .dport = p->key.sport,
	    .ifindex = LOOPBACK,
	};

	if (is_mapped(p->key.saddr)) {
		fib.family = AF_INET;
		fib.ipv4_src = p->key.daddr[3];
		fib.ipv4_dst = p->key.saddr[3];
	} else {
		__builtin_memcpy(fib.ipv6_src, p->key.daddr, sizeof(fib.ipv6_src));
		__builtin_memcpy(fib.ipv6_dst, p->key.saddr, sizeof(fib.ipv6_dst));
	}
	p->fib = bpf_fib_lookup(skb, &fib, sizeof(fib), 0);
	if (p->fib == BPF_FIB_LKUP_RET_NOT_FWDED)
		p->ifindex = LOOPBACK;
	else if (p->fib == BPF_FIB_LKUP_RET_SUCCESS || p->fib == BPF_FIB_LKUP_RET_NO_NEIGH)
		p->ifindex = fib.ifindex;
	else
		p->ifindex = 0;
}

/* Fills in the inspection at `offset` of the packet. The verifier follows this function by itself, once for
 * both of them: it searches all types of the kernel for each pointer that is read of a socket. */
__noinline int inspect_at(struct __sk_buff *skb, __u32 offset)
{
	struct bpf_sock *sk;
	struct tcp_sock *tp;
	struct ls_inspection p;

	if (bpf_skb_load_bytes(skb, offset, &p, sizeof(p)))
		return -1;
	inspect_route(skb, &p);
	p.found = 0;
	sk = socket_of(skb, &p.key);
	if (sk) {
		tp = bpf_skc_to_tcp_sock(sk);
		if (tp) {
			p.found = 1;
			p.rcv_nxt = tp->rcv_nxt;
			p.copied_seq = tp->copied_seq;
			p.rcv_wup = tp->rcv_wup;
			p.rcv_wnd = tp->rcv_wnd;
			p.snd_nxt = tp->snd_nxt;
			p.snd_una = tp->snd_una;
			p.snd_wnd = tp->snd_wnd;
			p.max_window = tp->max_window;
			p.write_seq = tp->write_seq;
			p.ts_recent = tp->rx_opt.ts_recent;
			p.mss_clamp = tp->rx_opt.mss_clamp;
			p.out_of_order = !!tp->out_of_order_queue.rb_node;
			/* A tcp_sock begins with an inet_connection_sock. */
			p.layered = !!((struct inet_connection_sock *)tp)->icsk_ulp_ops;
		}
		bpf_sk_release(sk);
	}
	return bpf_skb_store_bytes(skb, offset, &p, sizeof(p), 0);
}

SEC("tc")
int inspect(struct __sk_buff *skb)
{
	if (inspect_at(skb, ETH_HLEN))
		return TC_ACT_SHOT;
	if (skb->len >= ETH_HLEN + 2 * sizeof(struct ls_inspection) &&
	    inspect_at(skb, ETH_HLEN + sizeof(struct ls_inspection)))
		return TC_ACT_SHOT;
	return TC_ACT_OK;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
