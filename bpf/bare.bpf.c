// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Builds the programs of forward.bpf.c for devices whose packets begin with their IP header: tun, WireGuard,
 * tunnels of IP (docs/decisions/0031). The offset is a constant, because it costs nothing that way. The
 * length of the MAC header in the sk_buff is no guide: behind bpf_redirect_neigh() it is 14 where there is
 * no header.
 */
#define L3_OFFSET 0
#include "forward.bpf.c"
