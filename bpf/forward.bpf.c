// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Forwards and translates at tc (FWD). The code follows the walk of a packet: find the connection, read the
 * mode, and go from there to the verdict. Two programs: `ingress` processes the peers' packets, `egress`
 * those of our own sockets.
 */
#include <linux/bpf.h>
#include <linux/if_packet.h>
#include <linux/pkt_cls.h>
#include <stddef.h>
#include "egress.h"
#include "ingress.h"
#include "withhold.h"

SEC("tc")
int ingress(struct __sk_buff *skb)
{
	struct scratch *scratch = get_scratch();
	__u32 tag = skb->tc_index, number;
	enum parsed kind;
	enum step step;
	int action = NEXT;

	if (!scratch || tag == TAG_DELIVER)
		return NEXT;
	if (tag == TAG_SEND)
		return send_translated(skb);
	if (tag == TAG_INJECT && let_in(skb))
		return come_in(skb);
	/* The interface is promiscuous, or a switch floods: the stack would discard the packet. */
	if (skb->pkt_type == PACKET_OTHERHOST)
		return NEXT;
	kind = parse_tuple(skb, &scratch->in, &scratch->tuple, AS_SENT);
	if (kind == NOT_OURS)
		return without_ports(skb);
	number = table_lookup(&scratch->tuple);
	if (!number)
		return kind == SEGMENT ? pass_foreign(skb, &scratch->in) : NEXT;
	/* Call these from here: the stack of all nested calls is bounded, and each function needs much of
	 * it. */
	step = by_mode(skb, number, kind, &action);
	if (step == TO_SOCKETS)
		return with_sockets(skb, number);
	return step == TO_ACKNOWLEDGE ? acknowledge(skb, number) : action;
}

SEC("tc")
int egress(struct __sk_buff *skb)
{
	struct scratch *scratch = get_scratch();
	struct ls_tuple tuple;
	struct edits edits = {};
	struct segment *seg;
	enum parsed kind;
	struct flow_ref flow;
	__u32 mode;

	if (is_tagged(skb)) {
		/* Another namespace may receive it with this tag: there it was not let in. The loopback
		 * brings it back. */
		if (skb->tc_index == TAG_LET_IN && skb->ifindex != LOOPBACK)
			skb->tc_index = TAG_FORWARDED;
		return NEXT;
	}
	/* The host forwards what came in: it is of no local socket. */
	if (!scratch || skb->ingress_ifindex)
		return NEXT;
	seg = &scratch->segment;
	kind = parse_tuple(skb, &scratch->in, &tuple, REVERSED);
	if (kind == NOT_OURS)
		return NEXT;
	if (!find(&tuple, &flow))
		return kind == SEGMENT ? pass_own(skb, &scratch->in) : NEXT;
	mode = mode_of_flow(&flow);
	if (mode == LS_FREE || mode == LS_REPLACED)
		return NEXT;
	if (mode == LS_FREEZE || mode == LS_MOVED || mode == LS_WAKING)
		mode = LS_FINAL;
	if (kind == SEGMENT)
		kind = parse_segment(skb, &scratch->in, seg);
	if (kind != SEGMENT)
		return mode == LS_FINAL ? drop(LS_V_DROP_PARKED) : pass(LS_V_EMITTED);
	if (mode == LS_FINAL && flow.slot)
		note_parked(flow.slot, &flow.slot->leg[flow.side & 1], &flow.slot->leg[!(flow.side & 1)],
			    seg);
	if (mode == LS_FINAL)
		return (seg->flags & (TCP_SYN | TCP_ACK)) == TCP_SYN ? refuse_syn(skb, scratch, seg)
								     : drop(LS_V_DROP_PARKED);
	if (!flow.slot)
		return emit_alone(skb, flow.rec, scratch, seg);
	to_wire(scratch, seg, &edits, mapping_of_leg(&flow.slot->leg[flow.side & 1]));
	if (mode != LS_TRACK && seg->flags & TCP_RST)
		return abort_flow(skb, &flow, scratch, seg, mode);
	/* A segment that cannot be mapped any more is dropped. */
	if (mode == LS_ABORTED)
		return scratch->out.tcp.seq == scratch->in.tcp.seq && !edits.sack_off
			   ? NEXT
			   : drop(LS_V_DROP_PARKED);
	return emit(skb, &flow, scratch, seg, &edits, mode);
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
