//! Segments that GRO has merged as a list of packets, each with its own headers (`ethtool rx-gro-list`; TCP since Linux
//! 6.10). It does so where no local socket has the connection: with segments of detached flows.

use longsplice_dataplane::{Framing, Side};

use crate::support::{
    choose,
    flow::{Flow, Plan},
    options::usual,
    packet::*,
    tap::{Offload, Tap},
};

use Side::Client;

const SIZE: usize = 500;

/// Cuts a super-packet as GSO does.
fn cut(whole: &Packet) -> Vec<Vec<u8>> {
    let pieces = whole.payload.chunks(SIZE).enumerate();
    let piece = |(i, payload): (usize, &[u8])| Packet {
        id: whole.id + choose(i as u16, 0),
        seq: whole.seq.wrapping_add((i * SIZE) as u32),
        payload: payload.to_vec(),
        ..whole.clone()
    };
    pieces.map(|at| piece(at).bytes()).collect()
}

/// Each leaves with the headers of the far end: the kernel alone would give all but the first its addresses and ports only.
#[test]
fn every_one_of_them_is_translated() {
    for summed in [" tx off", ""] {
        let flow = Flow::detached(Plan::default());
        // The sender's segments come in as several, are merged, and leave as several again.
        flow.net.features("a1", &format!("tso off{summed}"));
        flow.net.features("a0", "gro on rx-gro-list on");
        flow.net.features("b0", "tx off tso off tx-gso-list off");
        flow.net.features("b1", "gro off");
        let ingress = flow.plane.attach(flow.ifindex(Client), Framing::Ethernet);
        ingress.expect("attached");
        let [sender, receiver] = ["a1", "b1"].map(|name| Tap::with_offload(flow.net.ifindex(name)));
        let whole = Packet {
            payload: pattern(8 * SIZE - 100),
            options: usual(flow.plan.clock[0] + 1, 2),
            ..flow.peer_segment(Client)
        };
        let offload = Offload {
            needs_checksum: true,
            gso_size: SIZE as u16,
        };
        let expected = cut(&flow.reference(Client).translate(&whole));
        // They are merged if they come in together, which is not sure on a busy machine.
        let merged = (0..100).any(|_| {
            let (frames, counted) = flow.counted(|| {
                sender.send(&whole.bytes_for_offload(), offload);
                expected.iter().map_while(|_| receiver.next()).collect::<Vec<_>>()
            });
            assert_eq!(frames.len(), expected.len(), "{counted:?}");
            for (i, (got, expected)) in frames.iter().zip(&expected).enumerate() {
                assert_frame(got, expected, &format!("segment {i}{summed}"));
            }
            counted["forwarded"] < expected.len() as u64
        });
        assert!(merged);
    }
}
