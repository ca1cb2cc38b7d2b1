/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Defines the maps. The loader sets their sizes. */
#ifndef LONGSPLICE_MAPS_H
#define LONGSPLICE_MAPS_H

#include "abi.h"
#include <bpf/bpf_helpers.h>

/* Both directions of every flow. A look-up by the tuple seen on ingress begins at `buckets` (flow.h). */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 65536);
	__type(key, __u32);
	__type(value, struct ls_flow);
} flows SEC(".maps");

/* First directions of the chains, by the hash of the key. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 65536);
	__type(key, __u32);
	__type(value, struct ls_buckets);
} buckets SEC(".maps");

/* Flows that have sockets. User space maps this memory: a change of mode is one store. */
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

/* Holds the rulings on spliced flows, by serial number. Programs look here only for flows with LS_RULED;
 * memory is allocated for those only. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, __u32);
	__type(value, struct ls_ruling);
} rulings SEC(".maps");

/* Packets for user space: struct ls_event, then the packet. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 8 << 20);
} events SEC(".maps");

#endif
