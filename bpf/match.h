/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Finds the first rule of the set that a packet meets. */
#ifndef LONGSPLICE_MATCH_H
#define LONGSPLICE_MATCH_H

#include "tcp_packet.h"
#include "rules_abi.h"

struct rule_set {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__uint(value_size, sizeof(struct ls_rules)); /* the type would be a mere name in BTF */
};

/* Holds the set in force. User space replaces it as a whole: a packet looks here once, so it sees the old set
 * or the new one. The kernel frees the old set when no packet uses it any more, and only then tells user
 * space that it is done, so the old half of the counters stands still when it is used again. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, 1);
	__type(key, __u32);
	__array(values, struct rule_set);
} rule_sets SEC(".maps");

/* Counters of each rule, for two generations. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 2 * LS_RULES_MAX);
	__type(key, __u32);
	__type(value, struct ls_rule_count);
} rule_counts SEC(".maps");

static __always_inline const struct ls_rules *current_rules(void)
{
	__u32 zero = 0;
	void *set = bpf_map_lookup_elem(&rule_sets, &zero);

	return set ? bpf_map_lookup_elem(set, &zero) : NULL;
}

static __always_inline int is_within(const __u64 address[2], const __u64 net[2], const __u64 mask[2])
{
	return !(((address[0] ^ net[0]) & mask[0]) | ((address[1] ^ net[1]) & mask[1]));
}

/* Returns whether a packet fits a rule. Compares the flags first: most rules are about packets that open a
 * connection, and most packets do not. */
static __always_inline int fits_rule(const struct ls_rule *r, const struct tcp_packet *p, __u32 ifindex)
{
	return (p->flags & r->flags_mask) == r->flags && (!r->ifindex || r->ifindex == ifindex) &&
	       p->to_port >= r->dport_min && p->to_port <= r->dport_max && p->from_port >= r->sport_min &&
	       p->from_port <= r->sport_max && (!r->family || r->family == p->family) &&
	       is_within(p->dst, r->daddr, r->dmask) && is_within(p->src, r->saddr, r->smask);
}

static __always_inline void count_rule(const struct ls_rules *set, const struct ls_rule *r, __u32 len)
{
	__u32 key = (set->head.generation & 1) * LS_RULES_MAX + r->rule;
	struct ls_rule_count *n = bpf_map_lookup_elem(&rule_counts, &key);

	if (!n)
		return;
	n->packets += 1;
	n->bytes += len;
}

struct search {
	const struct ls_rules *set;
	const struct tcp_packet *packet;
	__u32 ifindex;
	__u32 found;   /* an index, or LS_RULES_MAX */
	__u32 counted; /* the last rule that only counts, so that its entries count a packet once */
};

static long search_step(__u32 n, struct search *s)
{
	const struct ls_rule *r;

	if (n >= LS_RULES_MAX)
		return 1;
	r = &s->set->rule[n];
	if (!fits_rule(r, s->packet, s->ifindex))
		return 0;
	if (r->action == LS_A_COUNT) {
		if (r->rule != s->counted)
			count_rule(s->set, r, s->packet->len);
		s->counted = r->rule;
		return 0;
	}
	s->found = n;
	return 1;
}

/* Finds the first rule that the packet meets and that decides, and counts the packet there. NULL: none. */
static __always_inline const struct ls_rule *first_match(const struct ls_rules *set,
							 const struct tcp_packet *p, __u32 ifindex)
{
	struct search s = {
	    .set = set,
	    .packet = p,
	    .ifindex = ifindex,
	    .found = LS_RULES_MAX,
	    .counted = LS_RULES_MAX,
	};
	const struct ls_rule *r;

	if ((p->flags & set->head.flags) != set->head.flags)
		return NULL;
	bpf_loop(set->head.count, search_step, &s, 0);
	if (s.found >= LS_RULES_MAX)
		return NULL;
	r = &set->rule[s.found];
	count_rule(set, r, p->len);
	return r;
}

#endif
