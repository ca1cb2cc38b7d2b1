/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * What the kernel half shares with Rust. Rust reads these types out of the object's BTF: nothing here is
 * written a second time. A change of any layout or meaning raises LS_ABI_VERSION: pinned maps carry it, and a
 * daemon of another version refuses them.
 */
#ifndef LONGSPLICE_ABI_H
#define LONGSPLICE_ABI_H

#include <linux/types.h>

#define LS_ABI_VERSION 6

/* Time in records: nanoseconds since boot >> LS_TICK_SHIFT, a tick of about 1.07 s. */
#define LS_TICK_SHIFT 30

/* Sides of a flow. */
#define LS_CLIENT 0
#define LS_SERVER 1

/*
 * A connection as it is seen on ingress: from the peer to the forwarder. An IPv4 address stands as the IPv6
 * one that is mapped to it, ::ffff:a.b.c.d (RFC 4291 section 2.5.5.2): no packet of IPv6 may carry such a
 * one, so that no two connections share a tuple.
 */
struct ls_tuple {
	__be32 saddr[4], daddr[4];
	__be16 sport, dport;
};

/* ls_record.traits: constant while the flow is spliced. */
enum ls_trait {
	LS_SIDE_SERVER = 1 << 0, /* the direction server to client */
	LS_TIMESTAMPS = 1 << 1,	 /* both legs use timestamps, RFC 7323 */
	LS_BLANK_SACK = 1 << 2,	 /* the far end did not permit SACK, RFC 2018 */
	LS_FAR_LOCAL = 1 << 3,	 /* the far end is on this host */
	LS_SACK = 1 << 4,	 /* x permitted SACK */
	LS_ECN = 1 << 5,	 /* both legs use ECN, RFC 3168 */
	LS_IDENTITY = 1 << 6,	 /* detached: the translation changes nothing (papers' section III-F) */
};

/* ls_record.seen: what passed. */
enum ls_seen {
	LS_SEEN_FIN = 1 << 0,
	LS_SEEN_RST = 1 << 1,
};

/* ls_record.placement: where the truth about the direction is, with LS_ARMED. */
enum ls_placement {
	LS_NONE = 0,	 /* nowhere: there is no such direction, or not any more */
	LS_DETACHED = 1, /* in this record; `where` is the interface toward the far end, a hint */
	LS_SLOTTED = 2,	 /* in the slot numbered `where` */
	LS_ALONE = 3,	 /* no flow: a leg in control mode whose socket counts otherwise than the wire. On
			    ingress seq_off is added to sequence numbers and ack_off to acknowledgements, on
			    egress they are taken off; ts_high is the highest TSval sent to x itself,
			    tsval_off the highest one of x. */
	LS_ARMED = 0x80, /* a bit: `trap` counts */
};

/* ls_record.will: what a later process does with the flow when its trap is met and who set it is gone.
 * Nothing of it: the connections are joined as they are. The kernel half keeps it, and does not read it. */
enum ls_will {
	LS_WILL_END = 1 << 0,	 /* the rest of the budgets passes, then both connections end in order */
	LS_WILL_FOLLOW = 1 << 1, /* likewise, but what follows passes, too, up to payload beyond a budget that
				    has LS_WILL_DATA */
	LS_WILL_DATA = 1 << 2,	 /* the budget of x ends before the byte at `trap`, and not behind it */
	LS_WILL_FURTHER = 1 << 3, /* the bits from here on: how many times 2^29 bytes further than the trap
				     the budget reaches */
};

/*
 * One direction of a flow, from the peer x to the far end o. The first half is constant while the flow is
 * spliced, and, with the tuples of both directions, all that another node would need to take it over (papers'
 * section III-B); the second half is soft.
 */
struct ls_record {
	__u32 seq_off;	 /* sequence number of x + seq_off = of the same byte toward o */
	__u32 ack_off;	 /* likewise for acknowledgements and SACK edges */
	__u32 tsval_off; /* likewise for TSval */
	__u32 tsecr_off; /* likewise for TSecr */
	__u8 scales;	 /* 0 to 14 each: of the window field that x sends, and << 4 what o applies to it */
	__u8 traits;	 /* enum ls_trait */
	__u8 placement;	 /* enum ls_placement */

	__u8 seen;	  /* enum ls_seen */
	__u16 mss;	  /* what x offered (RFC 9293 section 3.7.1), to rebuild its socket */
	__u16 bytes_high; /* payload translated: 2^32 times this, */
	__u32 bytes_low;  /* and this */
	__u32 where;	  /* see enum ls_placement */
	__u32 last_seen;  /* ticks */
	__u32 serial;	  /* the flow's identity, the same in both directions */
	__u32 rx_end;	  /* highest end of payload of x; its FIN (LS_SEEN_FIN) is not counted */
	__u32 rx_ack;	  /* highest acknowledgement of x */
	__u32 rx_edge;	  /* highest right edge of the window that x offers */
	__u32 ts_high;	  /* highest TSval sent to o, by whomever: PAWS */
	__u32 trap;	  /* payload of x that ends here or beyond is not forwarded: it brings control back */
	__u32 will;	  /* enum ls_will */
	__u64 paid_until; /* nanoseconds since boot: when what passed is worth its time, at `rate` */
	__u32 rate;	  /* payload bytes of x in a second; 0: no limit */
	__u32 burst;	  /* so many may pass at once */
};

/* A direction in the table. `key` and `next` are constant while it is linked, but for a neighbour's end. */
struct ls_direction {
	struct ls_tuple key;
	__u32 next; /* in its chain: 2 * flow + side + 1, or LS_LAST */
	struct ls_record rec;
};

#define LS_LAST (~0U)

/*
 * An element of the table: both directions, by the side that sends. What one writes toward its far end are
 * the addresses of the other one, turned round. Two legs that stand alone need not belong together.
 */
struct ls_flow {
	struct ls_direction from[2];
};

/* Where two chains of directions begin, as in ls_direction.next; 0: empty. (Elements of an array have eight
 * bytes at least.) */
struct ls_heads {
	__u32 first[2];
};

/* How many keys the hash of the table takes. */
#define LS_HASH_KEYS 10

/*
 * Modes of a slot. Transitions are made by user space, but for REPLACED, ABORTED, and the way back: a packet
 * that meets a trap takes FINAL or DRAIN through WAKING to UNDRAIN, and is the first one processed there.
 */
enum ls_mode {
	LS_FREE = 0,
	LS_TRACK = 1,	 /* local delivery; sequence numbers are noted */
	LS_DRAIN = 2,	 /* new payload is forwarded while the sockets deliver the old */
	LS_FINAL = 3,	 /* constant translation; what the parked sockets emit is dropped */
	LS_REPLACED = 4, /* a new connection took the tuple of a closing flow */
	LS_ABORTED = 5,	 /* a socket was reset while it held bytes: both ends must see a reset */
	LS_UNDRAIN = 6,	 /* new payload goes to the sockets while the ends deliver what was forwarded */
	LS_WAKING = 7,	 /* some CPU is about to make it UNDRAIN, within a microsecond */
	LS_MOVED = 8,	 /* the records have the truth again */
	LS_FREEZE = 9,	 /* as FINAL, but new payload of both directions is held */
};

/* ls_slot.flags */
enum ls_slot_flag {
	LS_COUPLE = 1 << 0,   /* TRACK: offer no window that the far end does not have */
	LS_WAKEABLE = 1 << 1, /* FINAL: the parked sockets can go on where the segments stopped */
	LS_KEEP = 1 << 2,     /* forwarding: promise no window that the parked sockets could not keep */
	LS_COPY = 1 << 3,     /* FINAL: user space gets a copy of the payload that is forwarded */
	LS_STRAYED = 1 << 4,  /* a local socket has what nobody knows of: it cannot go on */
	LS_PAUSE =
	    1 << 5, /* with KEEP: x has nothing to send beyond its trap, and is promised little there */
};

/* ls_leg.owed: whether something of x passed by its socket that the far end may not have acknowledged. */
enum ls_owed {
	LS_OWED_NOTHING = 0,
	LS_OWED = 1 << 0, /* UNDRAIN: anything below `base` */
	LS_OWED_NEW =
	    1 << 1, /* FINAL: the socket was built for the flow, everything before it passed by it */
	LS_OWED_FIN = 1 << 2,	/* and the FIN at `base`, which the socket has not seen */
	LS_OWED_DRAIN = 1 << 3, /* DRAIN: payload was forwarded */
};

/*
 * The leg of the peer x, while the flow has sockets. "local" is the forwarder's socket of that leg. All
 * numbers are those of the wire; the local socket's own are greater by adj_seq (the stream of x) and adj_ack
 * (the stream toward x).
 */
struct ls_leg {
	struct ls_record rec; /* the direction from x; its placement is unused, but for LS_ARMED */
	struct ls_tuple key;  /* of x */
	__u32 cut;	      /* end of what was shown to the local socket: below it, the sockets deliver */
	__u32 rx_ts;	      /* highest TSval of x */
	__u32 rx_echo;	      /* highest TSecr of x: the latest it has heard from us */
	__u32 loc_acked;      /* highest acknowledgement of x that the local socket was shown */
	__u32 loc_end;	      /* end of what the local socket sent to x */
	__u32 loc_ack;	      /* highest acknowledgement of the local socket itself */
	__u32 loc_edge;	      /* highest window edge that the local socket itself offered to x */
	__u32 tx_ack;	      /* highest acknowledgement sent to x, by whomever */
	__u32 tx_edge;	      /* window edge last offered to x, by whomever */
	__u32 room;    /* COUPLE: bytes that x may have beyond what the far end acknowledged; 0: no limit */
	__u32 adj_seq; /* see above */
	__u32 adj_ack;
	__u32 base; /* UNDRAIN: what x sent below it was forwarded, and is not the local socket's business */
	__u32 owed; /* enum ls_owed */
	__u32 read_to; /* DRAIN: if it equals `cut`, user space has passed on all that the local socket had;
			  FINAL: where the local socket stands */
};

struct ls_slot {
	__u32 mode;  /* enum ls_mode */
	__u32 flags; /* enum ls_slot_flag */
	__u32 serial;
	__u32 barrier;	      /* exchanged where the order of memory matters */
	struct ls_leg leg[2]; /* LS_CLIENT, LS_SERVER */
};

/* What became of a packet of a flow: each has a counter. Names of drops begin with DROP. */
enum ls_verdict {
	LS_V_DELIVERED,	      /* to the local socket, as it came */
	LS_V_FORWARDED,	      /* translated and sent on */
	LS_V_SHARED,	      /* drain: forwarded, and a copy to the local socket */
	LS_V_LOCAL_ONLY,      /* drain: to the local socket only */
	LS_V_ABSORBED,	      /* drain: an acknowledgement with nothing new for anybody */
	LS_V_EMITTED,	      /* a local socket's segment, as it was */
	LS_V_CLAMPED,	      /* a local socket's segment with another window, ACK or TSval */
	LS_V_SYN_REPLACED,    /* a new connection took over the tuple of a closing flow */
	LS_V_SYN_REFUSED,     /* a local SYN onto a live tuple was answered with a reset */
	LS_V_ABORTED,	      /* a local socket was reset during the drain */
	LS_V_WOKEN,	      /* it met a trap and woke its pair (what became of it is counted, too) */
	LS_V_HELD,	      /* user space keeps it until there is a socket for it */
	LS_V_AGAIN,	      /* its flow changed under it: looked at once more */
	LS_V_FRAGMENT,	      /* a fragment, translated (and counted as forwarded, too) */
	LS_V_ICMP_TRANSLATED, /* an ICMP error, told to the far end whose segment it is about */
	LS_V_ICMP_DELIVERED,  /* an ICMP error, to the local socket whose segment it is about */
	LS_V_TOO_BIG_TOLD,    /* the sender of a segment that was too big was told what passes */
	LS_V_FORWARDED_XDP,   /* translated and sent on in XDP: tc has not seen it */
	LS_V_PASSED_XDP,      /* XDP has left it to tc, which counts what became of it */
	LS_V_UNSUMMED_XDP,    /* likewise, because its TCP checksum is left to a device */
	LS_V_DROP_PARKED,     /* emission of a parked or closed socket */
	LS_V_DROP_FRAGMENT,   /* a fragment that cannot follow, or that somebody here would have to read */
	LS_V_DROP_IP_OPTIONS, /* a source route on a spliced flow */
	LS_V_DROP_MALFORMED,  /* lengths that contradict each other */
	LS_V_DROP_TTL,	      /* time to live exceeded */
	LS_V_DROP_NO_ROUTE,   /* unreachable, blackhole or prohibited */
	LS_V_DROP_TOO_BIG,    /* longer than what its way takes */
	LS_V_DROP_REWRITE,    /* the kernel had no memory to rewrite it */
	LS_V_DROP_WINDOW,     /* sequence numbers that its receiver neither offers nor had lately */
	LS_V_DROP_HOLD,	      /* to be held, but user space does not keep up */
	LS_V_DROP_ICMP,	      /* an ICMP error about no segment that is on its way */
	LS_V_DROP_ACK,	      /* it acknowledges nothing, or what its sender cannot mean */
	LS_V_DROP_ECHO,	      /* payload behind a gap, that echoes no timestamp its sender was sent */
	LS_V_DROP_SYN,	      /* a SYN on a live flow, of which too many come */
	LS_V_DROP_RATE,	      /* payload beyond the rate of its direction */
	LS_V_COUNT,
};

/* The only element of the map `meta`. */
struct ls_meta {
	__u32 version; /* LS_ABI_VERSION */
	__u32 next_serial;
	__u64 netns;	     /* inode of the network namespace */
	__u32 lo_forwarding; /* what was on before, to restore it: 1 net.ipv4.conf.lo.forwarding, 2 the
				same of net.ipv6 */
	__u32 max_flows;     /* the table has some elements more */
	__u32 hash_keys[LS_HASH_KEYS];
};

/* Argument of `link`. */
struct ls_link {
	__u32 number;	 /* 2 * flow + side + 1 */
	__u32 placement; /* enum ls_placement, with which it comes to be there */
	__u32 replace;	 /* 1: in the place of another one with the same key, if there is one */
};

/* Argument of `release` and `attach`: moves a flow from its slot into its records, and back. */
struct ls_move {
	struct ls_tuple key[2];
	__u32 slot;
	__u32 where[2];	   /* release: interface hints */
	__u32 identity[2]; /* release: whether the direction changes nothing */
};

/* What the program `wake` is to do. */
enum ls_wake_how {
	LS_W_GO_ON = 0,	 /* to UNDRAIN: the ends deliver what was forwarded */
	LS_W_FREEZE = 1, /* FINAL to FREEZE */
	LS_W_FINISH = 3, /* DRAIN to FINAL, if the cuts are still those of `at` */
	LS_W_TAKE_OVER =
	    2, /* FREEZE to TRACK: the sockets have been given what was forwarded and not acknowledged */
};

/* Argument of the program `wake`, and its answer. */
struct ls_wake {
	__u32 slot;
	__u32 serial;
	__u32 how;	/* enum ls_wake_how */
	__u32 at[2];	/* FINISH: the cuts; TAKE_OVER: from where on the socket toward each side has what its
			   peer lacks */
	__u32 wakeable; /* FINISH: whether the sockets could go on any moment */
	__u32 mode;	/* out: the mode after it */
};

/* What a ls_event brings. */
enum ls_event_kind {
	LS_E_HELD = 0, /* a packet that was not forwarded: user space injects it later */
	LS_E_COPY = 1, /* the copy of a packet that was forwarded */
};

/* An element of the ring `events`; the packet follows, from its Ethernet header on. */
struct ls_event {
	__u32 kind; /* enum ls_event_kind */
	__u32 serial;
	__u32 side;    /* whose packet it is */
	__u32 ifindex; /* where it came in */
	__u32 len;     /* of the packet */
	__u32 seq;     /* of its payload */
	__u32 payload; /* bytes of it */
	__u32 offset;  /* where it begins in the packet */
	__u32 tcp;     /* where the TCP header does */
	__u32 reserved;
};

/* Answer of the program `peek`: what a socket knows of its connection. */
struct ls_peek {
	struct ls_tuple key; /* in: the connection, as seen on ingress */
	__u32 found;	     /* out: 1 if there is an established (or closing) socket */
	__u32 rcv_nxt, copied_seq, snd_nxt, snd_una, write_seq;
	__u32 rcv_wup, rcv_wnd, snd_wnd;
	__u32 ts_recent;
	__u32 mss_clamp;    /* the MSS that the peer offered, or less if the socket was told so */
	__u32 ifindex;	    /* of the route to the peer; 1 (the loopback) where the peer is local; 0: none */
	__u32 fib;	    /* what the route look-up said */
	__u32 out_of_order; /* 1 if it holds segments beyond a hole */
	__u32 layered;	    /* 1 if its bytes are not those on the wire: kTLS, MPTCP */
};

/* The program `peek` looks at one connection or at two. */
struct ls_peeks {
	struct ls_peek leg[2];
};

/* Names every type above once, so that BTF has them all and Rust gets them from there. */
struct ls_types {
	enum ls_mode mode;
	enum ls_slot_flag slot_flag;
	enum ls_trait trait;
	enum ls_seen seen;
	enum ls_placement placement;
	enum ls_will will;
	enum ls_verdict verdict;
	struct ls_move move;
	struct ls_flow flow;
	struct ls_heads heads;
	struct ls_link link;
	struct ls_wake wake;
	enum ls_wake_how wake_how;
	enum ls_event_kind event_kind;
	enum ls_owed owed;
	struct ls_event event;
	struct ls_peek peek;
	struct ls_peeks peeks;
};

_Static_assert(sizeof(struct ls_tuple) == 36, "a key of the map");
_Static_assert(sizeof(struct ls_record) == 80, "no padding");
_Static_assert(sizeof(struct ls_flow) == 240, "no padding");
_Static_assert(sizeof(struct ls_slot) == 368, "no padding");
_Static_assert(sizeof(struct ls_slot) % 8 == 0, "where the next one stands in the mapping");

#endif
