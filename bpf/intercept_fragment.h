/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Brings the fragments of a segment to the socket of an intercepted connection, where the stack reassembles
 * them. The first one has the ports; the others follow it by addresses and identification.
 */
#ifndef LONGSPLICE_INTERCEPT_FRAGMENT_H
#define LONGSPLICE_INTERCEPT_FRAGMENT_H

#include "fragment_header.h"
#include "parse.h"

/* Times, in ticks, at which the first fragments of datagrams were delivered. If there are too many, the
 * oldest are evicted, and their segments are retransmitted. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1024);
	__type(key, struct fragment_key);
	__type(value, __u32);
} delivered SEC(".maps");

/* Notes the first fragment of a segment that is for a socket here. Returns 0; -1 if the others could not
 * follow it. */
__noinline int begin_delivery(struct __sk_buff *skb)
{
	struct scratch *scratch = get_scratch();
	struct fragment_key key;
	struct fragment f;
	__u32 now = ticks();

	if (!scratch || load_ip(skb, &scratch->in) || read_fragment(skb, &scratch->in, &f) || f.offset)
		return -1;
	key_of(&scratch->in, f.id, &key);
	return bpf_map_update_elem(&delivered, &key, &now, BPF_ANY) ? -1 : 0;
}

/* Returns whether the packet is a later fragment of which the first one was delivered. */
__noinline int follows_delivery(struct __sk_buff *skb)
{
	struct scratch *scratch = get_scratch();
	struct fragment_key key;
	struct fragment f;
	__u32 *since;

	if (!scratch || load_ip(skb, &scratch->in) || read_fragment(skb, &scratch->in, &f) || !f.offset)
		return 0;
	key_of(&scratch->in, f.id, &key);
	since = bpf_map_lookup_elem(&delivered, &key);
	return since && ticks() - *since <= FRAGMENT_TICKS;
}

#endif
