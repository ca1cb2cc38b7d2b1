/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Defines the types that the program `rules` shares with Rust, which reads them out of its BTF. None of its
 * state is pinned: the rules end with the process that set them, so there is no version.
 */
#ifndef LONGSPLICE_RULES_ABI_H
#define LONGSPLICE_RULES_ABI_H

#include <linux/types.h>

/* Limits the entries of a set: a rule has one for each combination of its networks and ports. */
#define LS_RULES_MAX   256
#define LS_TARGETS_MAX 64

/* Counts the words that hold one bit for each entry. */
#define LS_RULES_WORDS (LS_RULES_MAX / 64)

enum ls_rule_action {
	LS_A_PASS = 0,
	LS_A_DROP = 1,
	LS_A_COUNT = 2,	    /* and continue with the next rule */
	LS_A_DELIVER = 3,   /* give to the listener at `target` */
	LS_A_TRANSLATE = 4, /* translate by the record at `target` */
	/* These and all that follow put packets into the ring: not again what a program has let in. */
	LS_A_ASK = 5,	      /* put into the ring, and drop here */
	LS_A_COPY = 6,	      /* put a copy into the ring, and pass on */
	LS_A_ASK_OR_PASS = 7, /* put into the ring, and drop here; pass on if the ring is full */
};

/* Entry of a set. Addresses are 16 bytes as on the wire, IPv4 ones v4-mapped; a mask of zeros matches every
 * address. */
struct ls_rule {
	__u64 saddr[2], smask[2];
	__u64 daddr[2], dmask[2];
	__u16 sport_min, sport_max; /* host order, both included */
	__u16 dport_min, dport_max;
	__u32 ifindex; /* 0: any */
	__u8 family;   /* 4 or 6; 0: any */
	__u8 flags;    /* required values of the flags within flags_mask */
	__u8 flags_mask;
	__u8 action;  /* enum ls_rule_action */
	__u32 rule;   /* number of the rule that the entry belongs to, for counters and for the ring */
	__u32 target; /* index into ls_rules.target, for DELIVER and TRANSLATE */
};

/* Target of a rule: a listener (`daddr`, `dport`), or a translation with the headers' new addresses and
 * ports, and the offsets added to the numbers. */
struct ls_target {
	__u64 saddr[2], daddr[2];
	__be16 sport, dport;
	__u32 seq_off, ack_off;
	__u32 tsval_off, tsecr_off;
	__u32 reserved;
};

/* Head of a set, before its entries. */
struct ls_rules_head {
	__u32 count;	  /* number of entries */
	__u32 generation; /* 0 or 1: the set's half of the counters */
};

/* Bytes of a packet by which its entries are found. */
enum ls_rule_byte {
	LS_B_FLAGS = 0,
	LS_B_SPORT_HIGH = 1,
	LS_B_SPORT_LOW = 2,
	LS_B_DPORT_HIGH = 3,
	LS_B_DPORT_LOW = 4,
	LS_B_SADDR = 5,	  /* the last one of the source */
	LS_B_DADDR = 6,	  /* the last one of the destination */
	LS_B_IFINDEX = 7, /* the lowest one of the interface's number */
	LS_B_COUNT = 8,
};

/* Entries that fit a value of one byte: one bit for each, the first one the lowest of the first word. */
struct ls_rule_bits {
	__u64 word[LS_RULES_WORDS];
};

/* Whole set, which never changes once a packet can see it. A packet fits none but the entries whose bit is
 * set for each of its bytes. */
struct ls_rules {
	struct ls_rules_head head;
	struct ls_rule rule[LS_RULES_MAX];
	struct ls_target target[LS_TARGETS_MAX];
	struct ls_rule_bits bits[LS_B_COUNT][256];
};

/* Counts of packets (a GRO super-packet is one) and of their bytes, from the IP header on. */
struct ls_rule_count {
	__u64 packets, bytes;
};

/* Outcomes of a TCP packet that came in. Each has a counter. */
enum ls_rule_verdict {
	LS_R_UNMATCHED,	     /* no rule: untouched */
	LS_R_PASSED,	     /* pass: untouched */
	LS_R_DROPPED,	     /* drop: the rule names the reason */
	LS_R_OPENED,	     /* deliver: a new connection, given to the listener */
	LS_R_FOLLOWED,	     /* deliver: to the socket that has its connection */
	LS_R_FOREIGN,	     /* deliver: of an older connection, or of none: untouched */
	LS_R_OWN_ADDRESS,    /* deliver: to an address of this host, or to one without a route: untouched */
	LS_R_LOOPED,	     /* deliver: this host's own SYN, which came back: untouched */
	LS_R_NO_LISTENER,    /* deliver: there is no listener: untouched */
	LS_R_TRANSLATED,     /* translate: the packet's outcome is among the other verdicts, too */
	LS_R_UNTRANSLATABLE, /* translate: not a whole segment with known headers: untouched */
	LS_R_ASKED,	     /* ask: the program gets the packet */
	LS_R_COPIED,	     /* copy: the program gets a copy */
	LS_R_COPY_LOST,	     /* copy: the ring was full: untouched */
	LS_R_DROP_ASK,	     /* ask: the ring was full, or the packet too long */
	LS_R_ASK_LOST,	     /* ask or pass: the same; or the program reads nothing: untouched */
	LS_R_DROP_CHECKSUM,  /* ask, ask or pass: a wrong checksum */
	LS_R_ODD,	     /* a later fragment, or headers cut short: untouched */
	LS_R_COUNT,
};

/* An element of the ring `rule_packets`; the packet follows, from its Ethernet header on. */
struct ls_rule_packet {
	__u32 rule;
	__u32 copy; /* 1: the packet went on; 0: only the program has it */
	__u32 ifindex;
	__u32 len;
	__u64 at; /* CLOCK_MONOTONIC, in nanoseconds */
};

/* Names the types for BTF. */
struct ls_rule_types {
	enum ls_rule_action action;
	enum ls_rule_byte byte;
	enum ls_rule_verdict verdict;
	struct ls_rule rule;
	struct ls_target target;
	struct ls_rules_head head;
	struct ls_rule_bits bits;
	struct ls_rule_count count;
	struct ls_rule_packet packet;
};

_Static_assert(sizeof(struct ls_rule) == 88, "no padding");
_Static_assert(sizeof(struct ls_target) == 56, "no padding");
_Static_assert(sizeof(struct ls_rules) ==
		   8 + LS_RULES_MAX * 88 + LS_TARGETS_MAX * 56 + LS_B_COUNT * 256 * LS_RULES_WORDS * 8,
	       "no padding");

#endif
