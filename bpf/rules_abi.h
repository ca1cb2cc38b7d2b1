/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * What the program `rules` shares with Rust, which reads these types out of its BTF. Nothing of it is pinned:
 * the rules end with the process that has set them, so that there is no version to keep.
 */
#ifndef LONGSPLICE_RULES_ABI_H
#define LONGSPLICE_RULES_ABI_H

#include <linux/types.h>

/* Entries of a set: a rule is one for each combination of its networks and ports. */
#define LS_RULES_MAX   256
#define LS_TARGETS_MAX 64

enum ls_rule_action {
	LS_A_PASS = 0,
	LS_A_DROP = 1,
	LS_A_COUNT = 2,	    /* and on to the next rule */
	LS_A_DELIVER = 3,   /* to the listener at `target` */
	LS_A_TRANSLATE = 4, /* by the record at `target` */
	LS_A_ASK = 5,	    /* into the ring, and not further */
	LS_A_COPY = 6,	    /* into the ring, and further */
};

/* One entry. Addresses are of 16 bytes as on the wire, IPv4 ones v4-mapped; a mask of zeros takes every
 * address. */
struct ls_rule {
	__u64 saddr[2], smask[2];
	__u64 daddr[2], dmask[2];
	__u16 sport_min, sport_max; /* host order, both included */
	__u16 dport_min, dport_max;
	__u32 ifindex; /* 0: any */
	__u8 family;   /* 4 or 6; 0: any */
	__u8 flags;    /* what the flags within flags_mask must be */
	__u8 flags_mask;
	__u8 action;  /* enum ls_rule_action */
	__u32 rule;   /* the rule it belongs to: whose counters, and what the ring says */
	__u32 target; /* in ls_rules.target, for DELIVER and TRANSLATE */
};

/* A listener (`daddr`, `dport`), or a translation: what the headers are to say, and what is added to the
 * numbers. */
struct ls_target {
	__u64 saddr[2], daddr[2];
	__be16 sport, dport;
	__u32 seq_off, ack_off;
	__u32 tsval_off, tsecr_off;
	__u32 reserved;
};

/* Before the entries of a set. */
struct ls_rules_head {
	__u32 count;	  /* of entries */
	__u32 generation; /* 0 or 1: which half of the counters is the set's */
	__u32 flags;	  /* those that every entry wants set: who lacks one need not look further */
	__u32 reserved;
};

/* A whole set: never changed once a packet can see it. */
struct ls_rules {
	struct ls_rules_head head;
	struct ls_rule rule[LS_RULES_MAX];
	struct ls_target target[LS_TARGETS_MAX];
};

/* Packets (a GRO super-packet is one) and bytes of them, from the IP header on. */
struct ls_rule_count {
	__u64 packets, bytes;
};

/* What became of a TCP packet that came by. Each has a counter. */
enum ls_rule_verdict {
	LS_R_UNMATCHED,	     /* no rule: untouched */
	LS_R_PASSED,	     /* pass: untouched */
	LS_R_DROPPED,	     /* drop: the rule names the reason */
	LS_R_OPENED,	     /* deliver: a new connection, given to the listener */
	LS_R_FOLLOWED,	     /* deliver: to the socket that has its connection */
	LS_R_FOREIGN,	     /* deliver: of a connection that was there before, or never was: untouched */
	LS_R_OWN_ADDRESS,    /* deliver: to an address of this host, or one without a route: untouched */
	LS_R_NO_LISTENER,    /* deliver: nobody listens: untouched */
	LS_R_TRANSLATED,     /* translate: what became of it is among the other verdicts, too */
	LS_R_UNTRANSLATABLE, /* translate: not a whole segment with headers that we know: untouched */
	LS_R_ASKED,	     /* ask: the program has it */
	LS_R_COPIED,	     /* copy: the program has a copy */
	LS_R_COPY_LOST,	     /* copy: the ring was full: untouched */
	LS_R_DROP_ASK,	     /* ask: the ring was full, or the packet too long */
	LS_R_ODD,	     /* a later fragment, or headers cut short: untouched */
	LS_R_COUNT,
};

/* An element of the ring `rule_packets`; the packet follows, from its Ethernet header on. */
struct ls_rule_packet {
	__u32 rule;
	__u32 copy; /* 1: it went on; 0: it is the program's now */
	__u32 ifindex;
	__u32 len;
};

/* Names the types for BTF. */
struct ls_rule_types {
	enum ls_rule_action action;
	enum ls_rule_verdict verdict;
	struct ls_rule rule;
	struct ls_target target;
	struct ls_rules_head head;
	struct ls_rule_count count;
	struct ls_rule_packet packet;
};

_Static_assert(sizeof(struct ls_rule) == 88, "no padding");
_Static_assert(sizeof(struct ls_target) == 56, "no padding");
_Static_assert(sizeof(struct ls_rules) == 16 + LS_RULES_MAX * 88 + LS_TARGETS_MAX * 56, "no padding");

#endif
