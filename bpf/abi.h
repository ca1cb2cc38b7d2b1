/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Defines the types that the kernel half shares with Rust, which reads them out of the object's BTF: none of
 * them is written a second time. A change of any layout or meaning raises LS_ABI_VERSION: pinned maps carry
 * it, and a daemon of another version converts them. It finds the fields of struct ls_flow and struct ls_slot
 * by their names (docs/decisions/0034). So a name keeps its meaning in all versions, as do the values of enum
 * ls_mode and enum ls_placement; a new meaning gets a new name. The fields of struct ls_meta up to
 * `lo_forwarding` keep their places.
 *
 * LS_OTHER_LAYOUT, a switch for tests alone, stands for another version: fields have other places, one is
 * wider and one is new. Flows pass between daemons of both builds (tests/tests/splice/layouts.rs).
 */
#ifndef LONGSPLICE_ABI_H
#define LONGSPLICE_ABI_H

#include <linux/types.h>

/* Numbers the layouts and meanings in this file. */
enum ls_abi {
#ifndef LS_OTHER_LAYOUT
	LS_ABI_VERSION = 10,
#else
	LS_ABI_VERSION = 0x800a,
#endif
};

/* Defines the unit of time in records: nanoseconds since boot >> LS_TICK_SHIFT, a tick of about 1.07 s. */
#define LS_TICK_SHIFT 30

/* Sides of a flow. */
#define LS_CLIENT 0
#define LS_SERVER 1

/*
 * Identifies a connection as a packet from the peer to the forwarder shows it on ingress. An IPv4 address is
 * stored as the IPv6 address that is mapped to it, ::ffff:a.b.c.d (RFC 4291 section 2.5.5.2). IPv6 packets
 * with such an address are not ours, so no two connections share a tuple.
 */
struct ls_tuple {
	__be32 saddr[4], daddr[4];
	__be16 sport, dport;
};

/* Bits of ls_record.traits, constant while the flow is spliced. */
enum ls_trait {
	LS_SIDE_SERVER = 1 << 0, /* the direction server to client */
	LS_TIMESTAMPS = 1 << 1,	 /* both legs use timestamps, RFC 7323 */
	LS_BLANK_SACK = 1 << 2,	 /* the far end did not permit SACK, RFC 2018 */
	LS_FAR_LOCAL = 1 << 3,	 /* the far end is on this host */
	LS_SACK = 1 << 4,	 /* the sender permitted SACK */
	LS_ECN = 1 << 5,	 /* both legs use ECN, RFC 3168 */
	LS_IDENTITY = 1 << 6,	 /* detached: the translation changes nothing (papers' section III-F) */
	LS_FAMILIES = 1 << 7,	 /* one leg is of IPv4 and the other of IPv6 */
};

/* Bits of ls_record.seen: the ends of the stream that passed. */
enum ls_seen {
	LS_SEEN_FIN = 1 << 0,
	LS_SEEN_RST = 1 << 1,
};

/* Values of ls_record.placement: which copy of the direction's record is current. LS_ARMED may be set beside
 * each. */
enum ls_placement {
	LS_NONE = 0,	 /* none: the direction does not exist, or no longer */
	LS_DETACHED = 1, /* this record; `where` is the interface toward the far end, a hint */
	LS_SLOTTED = 2,	 /* the record in the slot numbered `where` */
	LS_ALONE = 3, /* this record, of a leg in control mode without a flow, whose socket's numbers differ
			 from those of the wire. On ingress seq_off is added to sequence numbers and ack_off
			 to acknowledgements, on egress they are subtracted; ts_high is the highest TSval sent
			 to the sender, tsval_off the highest TSval of the sender. */
	LS_ARMED = 0x80, /* a bit: `trap` counts */
};

/* Bits of ls_record.successor: instructions for a later process that meets the trap after the process that
 * set it has gone. Without any bit the two connections stay joined as they are. The kernel half stores the
 * field and does not read it. */
enum ls_successor {
	LS_SUCCESSOR_END = 1 << 0, /* deliver the rest of the budgets, then end both connections in order */
	/* Deliver the rest of the budgets and what follows, up to payload beyond a budget that has
	 * LS_SUCCESSOR_DATA; then end both. */
	LS_SUCCESSOR_FOLLOW = 1 << 1,
	/* The budget of the sender ends before the byte at `trap`, not behind it. */
	LS_SUCCESSOR_DATA = 1 << 2,
	/* And above: 2^29-byte units that the budget extends beyond the trap. */
	LS_SUCCESSOR_FURTHER = 1 << 3,
};

/*
 * Record of one direction of a flow, from the sender to the far end. The first half is constant while the
 * flow is spliced: with the tuples of both directions, it is all that another node needs to take the flow
 * over (papers' section III-B). The second half changes with the segments.
 */
struct ls_record {
#ifdef LS_OTHER_LAYOUT
	__u64 tat;
	__u32 burst, rate, trap, bytes_low, successor, mss;
	__u16 bytes_high;
	__u16 new_field[3];
#endif
	/* Added to a sequence number of the sender, gives that of the same byte toward the far end. */
	__u32 seq_off;
	__u32 ack_off;	 /* added to acknowledgements and SACK edges of the sender */
	__u32 tsval_off; /* added to TSval of the sender */
	__u32 tsecr_off; /* added to TSecr of the sender */
	/* 0 to 14 each: the scale of the window field that the sender sends, and << 4 the scale that the far
	 * end applies to it. */
	__u8 scales;
	__u8 traits;	/* enum ls_trait */
	__u8 placement; /* enum ls_placement */

	__u8 seen; /* enum ls_seen */
#ifndef LS_OTHER_LAYOUT
	__u16 mss;	  /* MSS that the sender offered (RFC 9293 section 3.7.1), to rebuild its socket */
	__u16 bytes_high; /* payload bytes translated: 2^32 times this, */
	__u32 bytes_low;  /* plus this */
#endif
	__u32 where;	 /* see enum ls_placement */
	__u32 last_seen; /* ticks */
	__u32 serial;	 /* the flow's identity, the same in both directions */
	__u32 rx_end;	 /* highest end of payload of the sender; its FIN (LS_SEEN_FIN) is not counted */
	__u32 rx_ack;	 /* highest acknowledgement of the sender */
	__u32 rx_edge;	 /* highest right edge of the window that the sender offers */
	/* Highest TSval sent to the far end, by the sender or by a local socket, for PAWS. */
	__u32 ts_high;
#ifndef LS_OTHER_LAYOUT
	/* Payload of the sender that ends here or beyond is not forwarded: the sockets come back. */
	__u32 trap;
	__u32 successor; /* enum ls_successor */
	/* Theoretical arrival time (GCRA): nanoseconds since boot at which the forwarded payload is paid
	 * for. */
	__u64 tat;
	__u32 rate;  /* payload bytes of the sender per second; 0: no limit */
	__u32 burst; /* bytes that may pass at once; LS_RULED may be set beside */
#endif
};

/* Bit of ls_record.burst: the map `rulings` may have what a rule says of the flow. With it, a burst of 0 and
 * a rate of 2^32 - 1 mean no limit of the flow's own. */
#define LS_RULED (1U << 31)

/* Entry of a direction in the table. `key` is constant while the direction is in the table; `next` changes
 * only when its neighbor is removed. */
struct ls_direction {
#ifdef LS_OTHER_LAYOUT
	struct ls_record rec;
#endif
	struct ls_tuple key;
	__u32 next; /* next in the chain: 2 * flow + side + 1, or LS_LAST */
#ifndef LS_OTHER_LAYOUT
	struct ls_record rec;
#endif
};

#define LS_LAST (~0U)

/*
 * Element of the table: both directions, by the side that sends. Segments toward an end carry the addresses
 * of that end's own direction, reversed. Two legs in state LS_ALONE in one element need not belong together.
 */
struct ls_flow {
	struct ls_direction from[2];
};

/* First direction of each of two chains, as in ls_direction.next; 0: empty. (An element of an array has at
 * least eight bytes.) */
struct ls_buckets {
	__u32 first[2];
};

/* Number of keys of the table's hash. */
#define LS_HASH_KEYS 10

/*
 * Modes of a slot. User space makes the transitions, except to REPLACED and ABORTED, and the way back: a
 * packet that meets a trap takes FINAL or DRAIN through WAKING to UNDRAIN, and is the first one processed
 * there.
 */
enum ls_mode {
	LS_FREE = 0,
	LS_TRACK = 1,	 /* segments go to the local sockets; sequence numbers are noted */
	LS_DRAIN = 2,	 /* new payload is forwarded while the sockets deliver the old */
	LS_FINAL = 3,	 /* constant translation; segments of the parked sockets are dropped */
	LS_REPLACED = 4, /* a new connection took the tuple of a closing flow */
	LS_ABORTED = 5,	 /* a socket was reset while it held bytes: both ends must see a reset */
	LS_UNDRAIN = 6,	 /* new payload goes to the sockets while the ends deliver what was forwarded */
	LS_WAKING = 7,	 /* a CPU changes the mode, for about a microsecond */
	LS_MOVED = 8,	 /* the records are current again */
	LS_FREEZE = 9,	 /* like FINAL, but new payload of both directions is held */
};

/* Bits of ls_slot.flags. */
enum ls_slot_flag {
	LS_COUPLE = 1 << 0,   /* TRACK: offer no larger window than the far end does */
	LS_WAKEABLE = 1 << 1, /* FINAL: the parked sockets can continue where the segments stopped */
	LS_KEEP = 1 << 2,     /* forwarding: promise no window that the parked sockets could not take */
	LS_COPY = 1 << 3,     /* FINAL: user space gets a copy of the payload that is forwarded */
	LS_STRAYED = 1 << 4,  /* a local socket has a packet that was not counted: it cannot continue */
	/* With KEEP: the sender has nothing to send beyond its trap, so only a small window is promised
	 * there. */
	LS_PAUSE = 1 << 5,
	/* TRACK, DRAIN: user space waits for an acknowledgement; cleared by the event that reports it. */
	LS_WATCH = 1 << 6,
};

/* Bits of ls_leg.bypassed: stream bytes of the peer that bypassed its local socket and that the far end may
 * not have acknowledged. */
enum ls_bypassed {
	LS_BYPASSED_NOTHING = 0,
	LS_BYPASSED = 1 << 0, /* UNDRAIN: all bytes below `base` */
	/* FINAL: the socket was built for the flow, all earlier bytes bypassed it. */
	LS_BYPASSED_NEW = 1 << 1,
	LS_BYPASSED_FIN = 1 << 2,   /* and the FIN at `base`, which the socket has not received */
	LS_BYPASSED_DRAIN = 1 << 3, /* DRAIN: payload was forwarded */
};

/*
 * State of the leg of a peer, while the flow has sockets. "local" is the forwarder's socket of that leg. All
 * numbers are those of the wire; the local socket's own are greater by adj_seq (the stream of the peer) and
 * adj_ack (the stream toward the peer).
 */
struct ls_leg {
	struct ls_record rec; /* the direction from the peer; of its placement only LS_ARMED is used */
	struct ls_tuple key;  /* tuple of the peer */
	__u32 cut;     /* end of the payload shown to the local socket: the sockets deliver the bytes below */
	__u32 rx_ts;   /* highest TSval of the peer */
	__u32 rx_echo; /* highest TSecr of the peer: the latest TSval of ours that it received */
	__u32 loc_acked; /* highest acknowledgement of the peer that was shown to the local socket */
	__u32 loc_end;	 /* end of the payload that the local socket sent to the peer */
	__u32 loc_ack;	 /* highest acknowledgement of the local socket itself */
	__u32 loc_edge;	 /* highest window edge that the local socket itself offered to the peer */
	/* Sent and offered to the peer, by the local socket or forwarded from the far end: */
	__u32 tx_ack;  /* the highest acknowledgement, */
	__u32 tx_edge; /* and the latest window edge */
	__u32
	    max_inflight; /* COUPLE: bytes that the peer may send beyond the acknowledged ones; 0: no limit */
	__u32 adj_seq;	  /* see above */
	__u32 adj_ack;
	/* UNDRAIN: payload of the peer below it was forwarded; the local socket does not deliver it. */
	__u32 base;
	__u32 bypassed; /* enum ls_bypassed */
	/* DRAIN: equal to `cut` once user space has passed on all that the local socket received; FINAL:
	 * where the local socket stands. */
	__u32 delivered;
	/* Bytes by which the peer, short of memory, has taken its window back from rec.rx_edge, */
	__u32 rx_shrunk;
	__u32 loc_shrunk; /* and the local socket its own from loc_edge */
};

struct ls_slot {
#ifdef LS_OTHER_LAYOUT
	struct ls_leg leg[2];
#endif
	__u32 mode;  /* enum ls_mode */
	__u32 flags; /* enum ls_slot_flag */
	__u32 serial;
	__u32 barrier; /* atomically exchanged where the order of memory accesses matters */
#ifndef LS_OTHER_LAYOUT
	struct ls_leg leg[2]; /* LS_CLIENT, LS_SERVER */
#endif
};

/* Bits of ls_handshake.withheld: what is taken out of the SYNs of a connecting socket, or out of
 * those that come to a listening one, so that both legs of a pair agree on the same options. */
enum ls_withheld {
	LS_WITHHOLD_TIMESTAMPS = 1 << 0, /* RFC 7323 section 3 */
	LS_WITHHOLD_SACK = 1 << 1,	 /* RFC 2018 */
	LS_WITHHOLD_SCALE = 1 << 2,	 /* RFC 7323 section 2 */
	LS_WITHHOLD_ECN = 1 << 3,	 /* RFC 3168, and AccECN with it */
	LS_WITHHOLD_ACCURATE = 1 << 4, /* AccECN: what is left asks for RFC 3168, or for nothing (RFC 9768) */
	/* Connecting: ECT in the IP header of the SYN and of acknowledgements without payload (RFC 3168
	 * section 6.1.1, 6.1.4). */
	LS_WITHHOLD_ECT = 1 << 5,
};

/* Element of the map `handshakes`, of a connecting socket of ours or of a listening one. */
struct ls_handshake {
	__u32 withheld; /* enum ls_withheld */
	/* Connecting: MSS of the peer's SYN-ACK, which the socket itself limits to its own; 0: none came
	 * yet. */
	__u32 mss;
};

/* Holds the ruling on one direction of a spliced flow, and the counts of its segments. */
struct ls_ruled {
	__u64 tat;     /* as ls_record.tat, for the rate below */
	__u64 packets; /* segments that were admitted, or dropped by a rule */
	__u64 bytes;   /* of them, from the IP header on */
	__u64 dropped; /* segments that a rule dropped, or that were beyond the rate below */
	__u32 rate;    /* as ls_record.rate: a second limit */
	__u32 burst;
};

/* Element of the map `rulings`, by the serial number of a flow. Only flows that match a rule have one. */
struct ls_ruling {
	struct ls_ruled from[2]; /* by the side that sends */
	__u32 drop;		 /* 1: drop the flow's segments */
	__u32 unused;
};

/* Outcomes of a packet of a flow: each has a counter. Names of drops begin with DROP. */
enum ls_verdict {
	LS_V_DELIVERED,	       /* to the local socket, unchanged */
	LS_V_FORWARDED,	       /* translated and sent on */
	LS_V_DUPLICATED,       /* drain: forwarded, and a copy to the local socket */
	LS_V_LOCAL_ONLY,       /* drain: to the local socket only */
	LS_V_CONSUMED,	       /* drain, undrain: a segment with nothing new for either receiver */
	LS_V_EMITTED,	       /* a local socket's segment, unchanged */
	LS_V_CLAMPED,	       /* a local socket's segment with another window, ACK or TSval */
	LS_V_SYN_REPLACED,     /* a new connection took over the tuple of a closing flow */
	LS_V_SYN_REFUSED,      /* a local SYN to a live tuple was answered with a reset */
	LS_V_ABORTED,	       /* a local socket was reset while the flow needed it */
	LS_V_WOKEN,	       /* a packet met a trap and woke its pair (its own outcome is counted, too) */
	LS_V_QUEUED,	       /* user space keeps the packet until there is a socket for it */
	LS_V_REQUEUED,	       /* the flow's mode or place changed: the packet is processed once more */
	LS_V_FRAGMENT,	       /* a fragment, translated (and counted as forwarded, too) */
	LS_V_ICMP_TRANSLATED,  /* an ICMP error, translated for the far end that sent the segment */
	LS_V_ICMP_DELIVERED,   /* an ICMP error, to the local socket that sent the segment */
	LS_V_TOO_BIG_TOLD,     /* an error about a segment that was too big went to its sender */
	LS_V_FORWARDED_XDP,    /* translated and sent on in XDP: tc does not see it */
	LS_V_PASSED_XDP,       /* XDP left it to tc, which counts its outcome */
	LS_V_CSUM_PARTIAL_XDP, /* XDP left it to tc because a device is to fill in its TCP checksum */
	LS_V_DROP_PARKED,      /* segment of a parked or closed socket */
	LS_V_DROP_FRAGMENT,    /* a fragment that cannot follow its first one, or that would have to be
				  reassembled here */
	LS_V_DROP_IP_OPTIONS,  /* a source route on a spliced flow */
	LS_V_DROP_MALFORMED,   /* lengths that contradict each other */
	LS_V_DROP_TTL,	       /* time to live exceeded */
	LS_V_DROP_NO_ROUTE,    /* unreachable, blackhole or prohibited */
	LS_V_DROP_TOO_BIG,     /* longer than the MTU of its route */
	LS_V_DROP_REWRITE,     /* the kernel could not rewrite it, mostly for want of memory */
	LS_V_DROP_WINDOW,      /* sequence numbers that the receiver neither offers nor offered lately */
	LS_V_DROP_RING_FULL,   /* a packet to be held, while the ring is full */
	LS_V_DROP_ICMP,	       /* an ICMP error about no outstanding segment */
	LS_V_DROP_ACK,	       /* no acknowledgement, or one that its sender cannot mean */
	LS_V_DROP_TSECR,       /* payload behind a gap, with a TSecr that was not sent to its sender */
	LS_V_DROP_SYN,	       /* a SYN on a live flow: beyond the limit, or its sockets have not finished */
	LS_V_DROP_RATE,	       /* payload beyond the rate of its direction */
	LS_V_DROP_CHECKSUM,    /* a wrong checksum, of a packet to be held, cut or noted */
	LS_V_DROP_RULE,	       /* segment of a spliced flow that a rule drops */
	LS_V_COUNT,
};

/* Sole element of the map `meta`. */
struct ls_meta {
	__u32 version; /* LS_ABI_VERSION */
	__u32 next_serial;
	__u64 netns;	     /* inode of the network namespace */
	__u32 lo_forwarding; /* forwarding that was on before, to restore it: 1 net.ipv4.conf.lo.forwarding, 2
				net.ipv6.conf.lo.forwarding */
	__u32 max_flows;     /* the table has some elements more */
	__u32 hash_keys[LS_HASH_KEYS];
};

/* Argument of the program `insert`. */
struct ls_entry {
	__u32 number;	 /* 2 * flow + side + 1 */
	__u32 placement; /* enum ls_placement that the direction gets */
	__u32 replace;	 /* 1: insert even if the table has a direction with this key */
};

/* Argument of the programs `demote` and `promote`, which move a flow from its slot into its records, and
 * back. */
struct ls_move {
	struct ls_tuple key[2];
	__u32 slot;
	__u32 where[2];	   /* demote: interface hints */
	__u32 identity[2]; /* demote: 1 if the direction changes nothing */
};

/* Argument of the program `catch_up`: what segments noted in a predecessor's record after it was copied. */
struct ls_catch_up {
	__u32 number;	      /* 2 * flow + side + 1 */
	__u32 bytes;	      /* payload bytes translated since */
	struct ls_record rec; /* the predecessor's record now */
};

/* Argument of the program `mark_ruled`, which sets LS_RULED in both directions of a flow, or clears it. */
struct ls_mark {
	struct ls_tuple key; /* either direction */
	__u32 serial;
	__u32 is_ruled; /* 1: set it */
};

/* Transitions that the program `wake` can make. */
enum ls_wake_how {
	LS_W_GO_ON = 0,	    /* to UNDRAIN: the ends deliver the forwarded payload */
	LS_W_FREEZE = 1,    /* FINAL to FREEZE */
	LS_W_FINISH = 3,    /* DRAIN to FINAL, if the cuts equal `at` */
	LS_W_TAKE_OVER = 2, /* FREEZE to TRACK: the sockets were given the payload that was forwarded and not
			       acknowledged */
};

/* Argument of the program `wake`, and its answer. */
struct ls_wake {
	__u32 slot;
	__u32 serial;
	__u32 how;   /* enum ls_wake_how */
	__u32 at[2]; /* FINISH: the cuts; TAKE_OVER: start of the payload that the socket toward each side has
			for its peer */
	__u32 wakeable; /* FINISH: 1 if the sockets can continue at any moment */
	__u32 mode;	/* out: the mode afterwards */
};

/* Kinds of a ls_event. */
enum ls_event_kind {
	LS_E_HELD = 0, /* a packet that was not forwarded: user space injects it later */
	LS_E_COPY = 1, /* the copy of a packet that was forwarded */
	LS_E_NEWS = 2, /* no packet: an acknowledgement came for which LS_WATCH was set */
};

/* An element of the ring `events`; the packet follows, from its Ethernet header on. */
struct ls_event {
	__u32 kind; /* enum ls_event_kind */
	__u32 serial;
	__u32 side;    /* side that sent the packet */
	__u32 ifindex; /* interface on which it came in */
	__u32 len;     /* length of the packet */
	__u32 seq;     /* sequence number of its payload */
	__u32 payload; /* bytes of its payload */
	__u32 offset;  /* offset of the payload in the packet */
	__u32 tcp;     /* offset of the TCP header in the packet */
	__u32 reserved;
};

/* Answer of the program `inspect`: a socket's state of its connection. */
struct ls_inspection {
	struct ls_tuple key; /* in: the connection, as seen on ingress */
	__u32 found;	     /* out: 1 if there is an established (or closing) socket */
	__u32 rcv_nxt, copied_seq, snd_nxt, snd_una, write_seq;
	__u32 rcv_wup, rcv_wnd, snd_wnd;
	__u32 max_window; /* largest window that the peer has offered */
	__u32 ts_recent;
	__u32 mss_clamp;    /* MSS that the peer offered, or less if an option of the socket limits it */
	__u32 ifindex;	    /* interface toward the peer; 1 (the loopback): the peer is local; 0: none */
	__u32 fib;	    /* result of the route look-up */
	__u32 out_of_order; /* 1 if it holds segments beyond a hole */
	__u32 layered;	    /* 1 if its bytes are not those on the wire: kTLS, MPTCP */
};

/* Argument of the program `inspect`: one connection or two. */
struct ls_inspections {
	struct ls_inspection leg[2];
};

/* Names every type above once, so that BTF has them all and Rust gets them from there. */
struct ls_types {
	enum ls_abi abi;
	enum ls_mode mode;
	enum ls_slot_flag slot_flag;
	enum ls_trait trait;
	enum ls_seen seen;
	enum ls_placement placement;
	enum ls_successor successor;
	enum ls_withheld withheld;
	struct ls_handshake handshake;
	enum ls_verdict verdict;
	struct ls_move move;
	struct ls_catch_up catch_up;
	struct ls_mark mark;
	struct ls_ruling ruling;
	struct ls_flow flow;
	struct ls_buckets buckets;
	struct ls_entry entry;
	struct ls_wake wake;
	enum ls_wake_how wake_how;
	enum ls_event_kind event_kind;
	enum ls_bypassed bypassed;
	struct ls_event event;
	struct ls_inspection inspection;
	struct ls_inspections inspections;
};

_Static_assert(sizeof(struct ls_tuple) == 36, "a key of the map");
#ifndef LS_OTHER_LAYOUT
_Static_assert(sizeof(struct ls_record) == 80, "no padding");
_Static_assert(sizeof(struct ls_flow) == 240, "no padding");
_Static_assert(sizeof(struct ls_ruling) == 88, "no padding");
_Static_assert(sizeof(struct ls_mark) == 44, "no padding");
_Static_assert(sizeof(struct ls_slot) == 384, "no padding");
#else
_Static_assert(sizeof(struct ls_record) == 88, "no padding");
_Static_assert(sizeof(struct ls_flow) == 256, "no padding");
_Static_assert(sizeof(struct ls_slot) == 400, "no padding");
#endif
_Static_assert(sizeof(struct ls_slot) % 8 == 0, "where the next one stands in the mapping");

#endif
