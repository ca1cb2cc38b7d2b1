//! Builds the sockets of a connection from the segments of its handshake.

use std::{io, os::fd::OwnedFd, time::Duration};

use longsplice_dataplane::PerSide;
use longsplice_repair::{
    Image, ImageOptions, Window, close_silently, first_clock, options, thaw_transparent,
};

use super::opening::Opening;
use crate::{
    kernel::{
        packet::{ETHERNET, FLAG_ACK, Segment},
        socket::mark,
    },
    services::rules::RulePacket,
};

/// Returns the MSS of an end that sends none (RFC 9293 section 3.7.1).
const fn default_mss(v4: bool) -> u16 {
    if v4 { 536 } else { 1_220 }
}

/// Returns the client's acknowledgement of the server's answer.
pub(super) fn acknowledgement(syn: &Opening, answer: &Opening) -> Segment {
    let (scale, _) = syn.offer.scale.zip(answer.offer.scale).unwrap_or_default();
    Segment {
        from: syn.from,
        to: syn.to,
        seq: syn.seq + 1,
        ack: answer.seq + 1,
        flags: FLAG_ACK,
        window: syn.window >> scale,
        timestamps: syn.offer.clock.zip(answer.offer.clock),
        class: syn.offer.class,
    }
}

/// Builds both sockets: toward the client as the server, toward the server as the client. The client's measures its round-trip
/// time by the acknowledgement that is still to come; the server's by [`confirmation`], if `is_timed`.
pub(super) fn build(syn: &Opening, answer: &Opening, is_timed: bool) -> io::Result<PerSide<OwnedFd>> {
    let client = toward_client(syn, answer)?;
    let server = match build_one(&image(syn, answer), is_timed, syn.offer.class) {
        Ok(server) => server,
        Err(e) => {
            // Close it in silence: its peer has not heard of it yet.
            let _ = close_silently(client);
            return Err(e);
        }
    };
    Ok(PerSide::new(client, server))
}

/// Builds the socket toward a client.
pub(super) fn toward_client(syn: &Opening, answer: &Opening) -> io::Result<OwnedFd> {
    let image = image(answer, syn);
    build_one(&image, image.options.timestamps, answer.offer.class)
}

/// Builds a marked socket that sends with the traffic class of its end's SYN. `is_timed`: it measures its round-trip time by the
/// acknowledgement of its SYN.
fn build_one(image: &Image, is_timed: bool, class: u8) -> io::Result<OwnedFd> {
    let socket = thaw_transparent(image, is_timed)?;
    if let Err(error) = mark(&socket).and_then(|()| Ok(options::set_traffic_class(&socket, class)?)) {
        let _ = close_silently(socket);
        return Err(error);
    }
    Ok(socket)
}

/// Returns the acknowledgement of the SYN for the socket toward the server, as if the answer came in once more, without its
/// SYN, `round_trip` after the socket had sent its own. `None` without timestamps, which alone tell the socket the time.
pub(super) fn confirmation(
    packet: &RulePacket,
    syn: &Opening,
    answer: &Opening,
    round_trip: Duration,
) -> Option<RulePacket> {
    let (own, theirs) = syn.offer.clock.zip(answer.offer.clock)?;
    let millis = u32::try_from(round_trip.as_millis()).ok()?;
    let (_, scale) = syn.offer.scale.zip(answer.offer.scale).unwrap_or_default();
    let segment = Segment {
        from: answer.from,
        to: answer.to,
        seq: answer.seq + 1,
        ack: answer.ack,
        flags: FLAG_ACK,
        window: answer.window >> scale,
        timestamps: Some((theirs, first_clock(own).wrapping_sub(millis))),
        class: answer.offer.class,
    };
    let mut frame = packet.packet.get(..ETHERNET)?.to_vec();
    frame.extend(segment.bytes());
    Some(RulePacket {
        packet: frame,
        ..packet.clone()
    })
}

/// Returns the image of the connection in which we have sent `ours` and the peer `theirs`.
fn image(ours: &Opening, theirs: &Opening) -> Image {
    let (mine, other) = (ours.offer, theirs.offer);
    let (receive_scale, send_scale) = mine.scale.zip(other.scale).unwrap_or_default();
    Image {
        local: ours.from,
        peer: theirs.from,
        send_next: ours.seq + 1,
        receive_next: theirs.seq + 1,
        options: ImageOptions {
            mss: other.mss.unwrap_or(default_mss(theirs.from.is_ipv4())),
            send_scale,
            receive_scale,
            sack: mine.sack && other.sack,
            timestamps: mine.clock.is_some() && other.clock.is_some(),
        },
        timestamp_clock: mine.clock.unwrap_or_default(),
        window: Window {
            send: theirs.window.into(),
            send_wl1: theirs.seq + 1,
            largest: u16::MAX.into(),
            receive: ours.window.into(),
        },
    }
}
