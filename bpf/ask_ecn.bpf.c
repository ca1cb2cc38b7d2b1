// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Asks for ECN in the handshake of one socket: a congestion control that needs ECN makes the kernel ask,
 * whatever net.ipv4.tcp_ecn says. User space sets it before connect(), and puts the former one back once the
 * connection is up: ECN stays agreed. Until then the handshake is all that it controls.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

/* Flag of the kernel's struct tcp_congestion_ops. */
#define TCP_CONG_NEEDS_ECN 2

/* Bounds the congestion window, in segments, as RFC 5681 section 3.1 and RFC 6928 do. */
#define LEAST_WINDOW   2
#define INITIAL_WINDOW 10

struct sock;

/* Fields of the kernel's type that are set here; libbpf finds their places. */
struct tcp_congestion_ops {
	__u32 (*ssthresh)(struct sock *sk);
	void (*cong_avoid)(struct sock *sk, __u32 ack, __u32 acked);
	__u32 (*undo_cwnd)(struct sock *sk);
	__u32 flags;
	char name[16];
};

SEC("struct_ops/least_window")
__u32 least_window(void *ctx)
{
	return LEAST_WINDOW;
}

SEC("struct_ops/keep_window")
void keep_window(void *ctx)
{
}

SEC("struct_ops/initial_window")
__u32 initial_window(void *ctx)
{
	return INITIAL_WINDOW;
}

/* User space completes the name, which is the machine's, by a random number. */
SEC(".struct_ops.link")
struct tcp_congestion_ops ask_ecn = {
    .ssthresh = (void *)least_window,
    .cong_avoid = (void *)keep_window,
    .undo_cwnd = (void *)initial_window,
    .flags = TCP_CONG_NEEDS_ECN,
    .name = "ls_ecn_",
};

char LICENSE[] SEC("license") = "Dual BSD/GPL";
