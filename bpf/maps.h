/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* The maps. Sizes are set by the loader. */
#ifndef LONGSPLICE_MAPS_H
#define LONGSPLICE_MAPS_H

#include "abi.h"
#include <bpf/bpf_helpers.h>

/* Both directions of every flow; who looks for one by what is seen on ingress begins at `heads` (table.h). */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 65536);
	__type(key, __u32);
	__type(value, struct ls_flow);
} flows SEC(".maps");

/* Where the chains of directions begin, by the hash of the key. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 65536);
	__type(key, __u32);
	__type(value, struct ls_heads);
} heads SEC(".maps");

/* Flows that have sockets. Mapped by user space: a change of mode is one store. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 4096);
	__type(key, __u32);
	__type(value, struct ls_slot);
} slots SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, LS_V_COUNT);
	__type(key, __u32);
	__type(value, __u64);
} verdicts SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct ls_meta);
} meta SEC(".maps");

/* Packets that user space must have: struct ls_event, then the packet. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 8 << 20);
} events SEC(".maps");

#endif
