/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Reads the fields of a packet that rules match, and finds the first rule of the set that it meets. */
#ifndef LONGSPLICE_MATCH_H
#define LONGSPLICE_MATCH_H

#include "parse.h"
#include "rules_abi.h"

struct tcp_packet {
	union {
		struct ls_tuple tuple;
		struct {
			__u64 src[2], dst[2];
		}; /* the addresses of the tuple */
	};
	__u16 from_port, to_port; /* in host order */
	__u32 len;		  /* from the IP header on */
	__u32 l4;		  /* offset of the TCP header */
	__u8 family;		  /* 4 or 6 */
	__u8 flags;
	__u8 fragment; /* 1: first fragment of several */
};

enum seen {
	NOT_TCP, /* another protocol, or a packet without ports */
	TCP_PACKET,
	CUT_SHORT, /* the packet ends before the flags */
};

static __always_inline enum seen see(struct __sk_buff *skb, struct headers *h, struct tcp_packet *p)
{
	enum parsed kind;

	__builtin_memset(p, 0, sizeof(*p));
	kind = parse_tuple(skb, h, &p->tuple, AS_SENT);
	if (kind == NOT_OURS)
		return NOT_TCP;
	p->from_port = bpf_ntohs(p->tuple.sport);
	p->to_port = bpf_ntohs(p->tuple.dport);
	p->len = skb->len - L3_OFFSET;
	p->l4 = l4_of(h);
	p->family = is_v6(h) ? 6 : 4;
	p->fragment = kind == FRAGMENT;
	if (bpf_skb_load_bytes(skb, p->l4 + offsetof(struct tcp, flags), &p->flags, 1))
		return CUT_SHORT;
	return TCP_PACKET;
}

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

/* Returns whether a packet fits a rule. */
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
	__u64 left;  /* entries of this word that the packet may fit, and that it was not compared with */
	__u32 first; /* entry of the word's lowest bit */
	__u32 ifindex;
	__u32 found;   /* an index, or LS_RULES_MAX */
	__u32 let_in;  /* a program has let the packet in: it is not asked about again */
	__u32 skipped; /* a rule that asks or copies was passed over for that */
	__u32 counted; /* the last rule that only counts, so that its entries count a packet once */
};

/* Returns the entries that the packet may fit, of one word of them: those that fit each of its bytes. */
static __always_inline __u64 may_fit(const struct ls_rules *set, const struct tcp_packet *p, __u32 ifindex,
				     __u32 word)
{
	const __u8 *source = (const __u8 *)p->src, *destination = (const __u8 *)p->dst;

	return set->bits[LS_B_FLAGS][p->flags].word[word] &
	       set->bits[LS_B_IFINDEX][ifindex & 255].word[word] &
	       set->bits[LS_B_SPORT_HIGH][p->from_port >> 8].word[word] &
	       set->bits[LS_B_SPORT_LOW][p->from_port & 255].word[word] &
	       set->bits[LS_B_DPORT_HIGH][p->to_port >> 8].word[word] &
	       set->bits[LS_B_DPORT_LOW][p->to_port & 255].word[word] &
	       set->bits[LS_B_SADDR][source[15]].word[word] &
	       set->bits[LS_B_DADDR][destination[15]].word[word];
}

/* Returns the place of the lowest bit, of which there is one: the number of bits below it. Without a branch,
 * since the verifier would follow each of them. */
static __always_inline __u32 lowest_of(__u64 bits)
{
	__u64 below = (bits & -bits) - 1;

	below -= below >> 1 & 0x5555555555555555ULL;
	below = (below & 0x3333333333333333ULL) + (below >> 2 & 0x3333333333333333ULL);
	below = (below + (below >> 4)) & 0x0f0f0f0f0f0f0f0fULL;
	return below * 0x0101010101010101ULL >> 56;
}

static long search_step(__u32 step, struct search *search)
{
	const struct ls_rule *r;
	__u32 n;

	if (!search->left)
		return 1;
	n = search->first + lowest_of(search->left);
	search->left &= search->left - 1;
	if (n >= LS_RULES_MAX)
		return 1;
	r = &search->set->rule[n];
	if (!fits_rule(r, search->packet, search->ifindex))
		return 0;
	if (search->let_in && r->action >= LS_A_ASK) {
		search->skipped = 1;
		return 0;
	}
	if (r->action == LS_A_COUNT) {
		if (r->rule != search->counted)
			count_rule(search->set, r, search->packet->len);
		search->counted = r->rule;
		return 0;
	}
	search->found = n;
	return 1;
}

/* Finds the first rule that the packet meets and that decides, and counts the packet there. NULL: none; then
 * *skipped tells whether only rules that ask or copy would have decided. Most packets fit no entry, however
 * many there are: a look at eight bytes says so. */
static __always_inline const struct ls_rule *
first_match(const struct ls_rules *set, const struct tcp_packet *p, __u32 ifindex, int let_in, int *skipped)
{
	struct search search = {
	    .set = set,
	    .packet = p,
	    .ifindex = ifindex,
	    .let_in = let_in,
	    .found = LS_RULES_MAX,
	    .counted = LS_RULES_MAX,
	};
	const struct ls_rule *r;

	for (__u32 word = 0; word < LS_RULES_WORDS; word++) {
		if (search.first >= set->head.count || search.found < LS_RULES_MAX)
			break;
		search.left = may_fit(set, p, ifindex, word);
		if (search.left)
			bpf_loop(64, search_step, &search, 0);
		search.first += 64;
	}
	*skipped = search.skipped;
	if (search.found >= LS_RULES_MAX)
		return NULL;
	r = &set->rule[search.found];
	count_rule(set, r, p->len);
	return r;
}

#endif
