//! Assesses two sockets for a flow: reads their kernel state, checks that they can be matched, and computes the offsets.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    os::fd::{AsFd, BorrowedFd},
    time::Duration,
};

use longsplice_core::{
    advisor::{CongestionControl, EARLIER_SPANS, LegSample},
    plan::{LegOptions, Plan, match_legs, timestamps_length},
    reason::RelayReason,
    seq::{Offset, Seq},
};
use longsplice_dataplane::{Alone, Dataplane, Inspection, Leg, LegStart, Mapping, PerSide, Side};
use longsplice_repair::{State, TcpInfo, canonical, options, tcp_info};
use socket2::{SockAddr, SockRef};
use tokio::net::TcpStream;

use crate::{api::LegInfo, kernel::packet::headers, relay::pump::Pump};

/// State of a leg before its flow is registered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// Its numbers are those on the wire.
    Plain,
    /// It was spliced before, and has parted from its flow.
    Alone(Alone),
    /// Bytes that bypassed its socket are not acknowledged yet.
    Unsettled,
}

/// Reason that a pair cannot be spliced now.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) reason: RelayReason,
    /// True if a later attempt may succeed.
    pub(crate) passing: bool,
}

impl Refusal {
    pub(crate) fn for_good(reason: RelayReason) -> Refusal {
        Refusal {
            reason,
            passing: false,
        }
    }

    pub(crate) fn for_now(reason: RelayReason) -> Refusal {
        Refusal {
            reason,
            passing: true,
        }
    }

    pub(crate) fn system(what: &str, error: &dyn std::error::Error) -> Refusal {
        tracing::warn!(%error, "{what}: the pair is relayed");
        Refusal::for_now(RelayReason::System)
    }
}

/// Returns the addresses of a socket's connection, v4-mapped ones in their form on the wire.
pub(crate) fn addresses(socket: impl AsFd) -> io::Result<LegInfo> {
    Ok(LegInfo {
        peer: peer(&socket)?,
        local: local(&socket)?,
    })
}

/// Returns the address of the peer of a socket, as [`addresses`] does.
pub(crate) fn peer(socket: impl AsFd) -> io::Result<SocketAddr> {
    of_tcp(SockRef::from(&socket.as_fd()).peer_addr()?)
}

/// Returns the local address of a socket, as [`addresses`] does.
pub(crate) fn local(socket: impl AsFd) -> io::Result<SocketAddr> {
    of_tcp(SockRef::from(&socket.as_fd()).local_addr()?)
}

fn of_tcp(address: SockAddr) -> io::Result<SocketAddr> {
    let address = address.as_socket().ok_or(io::ErrorKind::InvalidInput)?;
    Ok(canonical(address))
}

/// Returns true if a leg to this address could be spliced. A link-local address needs an interface, which records and
/// route look-ups do not have.
pub(crate) fn is_global(address: SocketAddr) -> bool {
    !matches!(address.ip(), IpAddr::V6(ip) if ip.is_unicast_link_local())
}

fn leg(addresses: &LegInfo) -> Result<Leg, Refusal> {
    match is_global(addresses.peer) && is_global(addresses.local) {
        true => Ok(Leg::new(addresses.peer, addresses.local)),
        false => Err(Refusal::for_good(RelayReason::LinkLocal)),
    }
}

/// Returns both legs, or an error if they cannot be spliced because of their addresses.
pub(crate) fn both(addresses: &PerSide<LegInfo>) -> Result<PerSide<Leg>, Refusal> {
    PerSide::try_from_fn(|side| leg(&addresses[side]))
}

/// Returns the longest segment that may be sent to the peer of a socket that connected with a limit of its MSS; `None` if it
/// had no limit. The limit is for what the peer sends. The socket takes it for the other direction, too, even for a peer that
/// offers no MSS.
pub(crate) fn unlimited_segment(plane: &Dataplane, socket: impl AsFd, info: &TcpInfo) -> Option<u32> {
    let mss = plane.peer_mss(&socket)?;
    Some(mss.min(path_segment(info, peer(&socket).ok()?.ip())))
}

/// Returns the longest segment that the path to a peer takes, in terms of an MSS option.
pub(crate) fn path_segment(info: &TcpInfo, peer: IpAddr) -> u32 {
    info.pmtu().saturating_sub(headers(peer))
}

/// Returns the longest segment that may be sent to the peer of a leg; `None` if it is unknown. An MSS counts no header of IP,
/// so it means the same on a leg of either family.
pub(crate) fn longest_segment(plane: &Dataplane, socket: BorrowedFd<'_>, info: &TcpInfo) -> Option<u32> {
    let peer = peer(socket).ok()?;
    let fits = path_segment(info, peer.ip());
    if segment_sent(info) == fits {
        // The socket sends segments of that length, so the peer's MSS option allows them.
        return Some(fits);
    }
    let local = local(socket).ok()?;
    let leg = leg(&LegInfo { peer, local }).ok()?;
    let inspection = plane.inspect(leg).ok()?;
    // (`snd_mss` would be too low: the kernel keeps it below half of the peer's window.)
    Some(inspection.mss_clamp.min(fits))
}

/// Returns the length of the longest segments that a socket sends now, in terms of an MSS option.
pub(crate) fn segment_sent(info: &TcpInfo) -> u32 {
    info.snd_mss() + timestamps_length(info.timestamps())
}

/// Returns the longest segments that the path to each peer takes. For ends that see each other's addresses there is no limit:
/// they agreed on their MSS, and each hears of a narrow path as without us (RFC 1191, RFC 8201).
fn path_segments(legs: &PerSide<Leg>, infos: &PerSide<TcpInfo>) -> PerSide<u32> {
    if legs.client.local == legs.server.peer && legs.client.peer == legs.server.local {
        return PerSide::both(u32::MAX);
    }
    PerSide::from_fn(|side| path_segment(&infos[side], legs[side].peer.ip()))
}

/// Returns the options of a leg whose path takes segments of this length.
fn leg_options(info: &TcpInfo, inspection: &Inspection, fits: u32) -> LegOptions {
    let scale = |n| if info.window_scaling() { n } else { 0 };
    LegOptions {
        timestamps: info.timestamps(),
        sack: info.sack(),
        ecn: info.ecn(),
        peer_scale: scale(info.snd_wscale()),
        our_scale: scale(info.rcv_wscale()),
        offered_mss: info.advmss(),
        peer_mss: inspection.mss_clamp.min(fits),
        peer_window: inspection.peer_window,
    }
}

/// Returns a leg's sample for the advisor, without what needs two samples, and without bytes that wait outside of its
/// socket.
pub(crate) fn sample(socket: &TcpStream, info: &TcpInfo) -> LegSample {
    let us = |n: u32| Duration::from_micros(n.into());
    let name = options::congestion_control(socket).unwrap_or_default();
    LegSample {
        rtt: us(info.rtt_us()),
        min_rtt: info.min_rtt_us().map(us),
        cwnd: info.snd_cwnd(),
        ssthresh: info.snd_ssthresh(),
        mss: info.snd_mss(),
        recovering: info.ca_state().is_recovering(),
        congestion_control: CongestionControl::from(name.as_str()),
        bytes_sent: info.bytes_sent(),
        waiting: info.notsent_bytes().into(),
        delivered: info.delivered(),
        bytes_retransmitted: info.bytes_retrans(),
        segments_received: info.data_segs_in(),
        out_of_order: info.rcv_ooopack().unwrap_or(0),
        received_rate: 0,
        received_earlier: [0; EARLIER_SPANS],
        received_peak: 0,
        receive_window: info.rcv_wnd().unwrap_or(u32::MAX),
        receive_buffer: 0,
        peer_window: info.snd_wnd().unwrap_or(u32::MAX),
        send_buffer_limited: 0,
        receives: false,
        standing_queue: None,
    }
}

/// Holds all that is needed from two sockets to register their flow.
#[derive(Debug)]
pub(crate) struct Assessment {
    pub(crate) legs: PerSide<Leg>,
    pub(crate) plan: Plan,
    /// State of both sockets, in the numbers of the wire.
    inspections: PerSide<Inspection>,
    mappings: PerSide<Mapping>,
    alone: PerSide<bool>,
    /// Highest TSval that each socket has sent.
    clocks: PerSide<u32>,
    /// State of TCP at the time of the assessment.
    pub(crate) infos: PerSide<TcpInfo>,
}

/// Reads the state of TCP of both sockets.
pub(crate) fn infos(pump: &Pump) -> io::Result<PerSide<TcpInfo>> {
    Ok(PerSide::try_from_fn(|side| tcp_info(pump.socket(side)))?)
}

/// Reads the state of both sockets and matches them. `place` returns the offset of a leg's numbers from those on the
/// wire.
pub(crate) fn assess(
    plane: &Dataplane,
    addresses: &PerSide<LegInfo>,
    pump: &Pump,
    watched: impl Fn(u32) -> bool,
    mut place: impl FnMut(Side, Leg) -> Place,
) -> Result<Assessment, Refusal> {
    let legs = both(addresses)?;
    let mut mappings = PerSide::both(Mapping::default());
    let mut is_alone = PerSide::both(false);
    let looked = plane.inspect_both(legs).map_err(|e| match e.kind() {
        io::ErrorKind::NotFound => Refusal::for_now(RelayReason::NotEstablished),
        _ => Refusal::system("cannot inspect the sockets", &e),
    })?;
    let mut clocks = PerSide::both(0);
    let assessed = PerSide::try_from_fn(|side| {
        let socket = pump.socket(side);
        let system = |e: longsplice_repair::Error| Refusal::system("cannot ask a socket", &e);
        let inspection = looked[side];
        // Read it after the inspection: if no FIN has come by now, the inspected sequence numbers include none.
        let info = tcp_info(socket).map_err(system)?;
        check_state(pump, side, &info)?;
        if inspection.layered {
            return Err(Refusal::for_good(RelayReason::SocketOption));
        }
        // Data beyond a hole came to the socket before the programs noted it.
        if inspection.out_of_order {
            return Err(Refusal::for_now(RelayReason::Recovery));
        }
        match inspection.ifindex {
            0 => return Err(Refusal::for_now(RelayReason::Route)),
            n if !watched(n) => return Err(Refusal::for_now(RelayReason::Interface)),
            _ => {}
        }
        if info.timestamps() {
            clocks[side] = options::latest_timestamp(socket).map_err(system)?;
        }
        let inspection = match place(side, legs[side]) {
            Place::Plain => inspection,
            Place::Unsettled => return Err(Refusal::for_now(RelayReason::Unsettled)),
            Place::Alone(alone) => {
                mappings[side] = alone.mapping;
                is_alone[side] = true;
                let clock = &mut clocks[side];
                *clock = later(*clock, alone.sent);
                Inspection {
                    // A rebuilt socket has received nothing yet.
                    ts_recent: match inspection.ts_recent {
                        0 => alone.heard,
                        heard => later(heard, alone.heard),
                    },
                    ..inspection.on_the_wire(alone.mapping)
                }
            }
        };
        Ok((inspection, info))
    })?;
    let (inspections, infos) = (
        assessed.map(|(inspection, _)| inspection),
        assessed.map(|(_, info)| info),
    );
    let fits = path_segments(&legs, &infos);
    let mut options = PerSide::from_fn(|side| leg_options(&infos[side], &inspections[side], fits[side]));
    if let Some(mss) = plane.peer_mss(pump.socket(Side::Server)) {
        options.server.peer_mss = mss.min(fits.server);
    }
    let plan = match_legs(&options.client, &options.server).map_err(|reason| Refusal {
        reason,
        // Windows grow.
        passing: reason == RelayReason::SmallWindow,
    })?;
    Ok(Assessment {
        legs,
        plan,
        inspections,
        mappings,
        alone: is_alone,
        clocks,
        infos,
    })
}

/// Returns the later of two TSvals, which are compared like sequence numbers (RFC 7323 section 5.2).
fn later(a: u32, b: u32) -> u32 {
    Seq::new(a).max(Seq::new(b)).raw()
}

/// Checks that both sockets agree on a FIN. Offsets are differences of bytes read here and bytes written there. A FIN
/// counts as a byte on both sides, or must not have come yet; in between, the difference would be off by one.
fn check_state(pump: &Pump, side: Side, info: &TcpInfo) -> Result<(), Refusal> {
    if info.state() == State::Closed || pump.finished() {
        return Err(Refusal::for_good(RelayReason::NotEstablished));
    }
    match has_ended(info) == pump.passed_eof(side) {
        true => Ok(()),
        false => Err(Refusal::for_now(RelayReason::NotEstablished)),
    }
}

/// Returns true if a socket has received its peer's FIN, or is gone.
pub(crate) fn has_ended(info: &TcpInfo) -> bool {
    !matches!(
        info.state(),
        State::Established | State::FinWait1 | State::FinWait2
    )
}

impl Assessment {
    /// Returns the offset of each direction. The pump must not have moved since the assessment.
    pub(crate) fn offsets(&self, pump: &Pump) -> PerSide<Offset> {
        PerSide::from_fn(|side| {
            let (x, o) = (side, side.other());
            // The next byte to be read from x will be written behind the held ones: both numbers are of that byte.
            let there = self.inspections[o].write_seq + pump.held(side) as u32;
            Offset::between(self.inspections[x].copied_seq, there)
        })
    }

    /// Returns `copied_seq` of each socket less the bytes that the pump has consumed.
    pub(crate) fn copied_base(&self, pump: &Pump) -> PerSide<Seq> {
        PerSide::from_fn(|side| self.inspections[side].copied_seq - pump.consumed(side) as u32)
    }

    /// Returns the interfaces toward the far ends.
    pub(crate) fn interfaces(&self) -> PerSide<u32> {
        self.inspections.map(|inspection| inspection.ifindex).swap()
    }

    /// Returns true if a leg stands alone in the table.
    pub(crate) fn stood_alone(&self) -> bool {
        self.alone.iter().any(|&alone| alone)
    }

    /// Returns the start values for the kernel half. The pump must not have moved since the assessment.
    pub(crate) fn start(&self, pump: &Pump) -> PerSide<LegStart> {
        let offsets = self.offsets(pump);
        PerSide::from_fn(|side| {
            let (x, o) = (side, side.other());
            let info = &self.infos[x];
            // A rebuilt socket offers its peer as much as it sends. A peer that offered nothing may take more than it was
            // offered on account of the far end.
            let offered = info.advmss() + timestamps_length(info.timestamps());
            let mss = self.inspections[x].mss_clamp.min(offered);
            LegStart {
                leg: self.legs[x],
                seq_off: offsets[x],
                tsval_off: self.clocks[o].wrapping_sub(self.inspections[x].ts_recent),
                wscale_in: self.plan.directions[x].scale_in,
                wscale_out: self.plan.directions[x].scale_out,
                blank_sack: self.plan.directions[x].blank_sack,
                ended: pump.passed_eof(side),
                inspection: self.inspections[x],
                mapping: self.mappings[x],
                alone: self.alone[x],
                mss: u16::try_from(mss).unwrap_or(u16::MAX),
                sack: info.sack(),
                ecn: self.infos.client.ecn(),
                ts_high: self.clocks[o],
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(peer: &str, local: &str) -> LegInfo {
        LegInfo {
            peer: canonical(peer.parse().unwrap()),
            local: canonical(local.parse().unwrap()),
        }
    }

    #[test]
    fn legs_are_of_any_family_and_known_everywhere() {
        let v4 = info("198.18.1.1:4000", "198.18.1.2:80");
        let mapped = info("[::ffff:198.18.2.1]:80", "[::ffff:198.18.2.2]:4000");
        let v6 = info("[2001:db8::1]:4000", "[2001:db8::2]:80");
        let linked = info("[fe80::1%2]:4000", "[fe80::2%2]:80");
        let matched = |legs: [LegInfo; 2]| both(&legs.into()).map_err(|refusal| refusal.reason);
        assert!(matched([v4, mapped]).is_ok_and(|legs| legs.server.peer.to_string() == "198.18.2.1:80"));
        assert!(matched([v6, v6]).is_ok());
        assert!(matched([v4, v6]).is_ok());
        assert!(matched([v6, mapped]).is_ok_and(|legs| legs.server.peer.is_ipv4()));
        for (legs, reason) in [
            ([v6, linked], RelayReason::LinkLocal),
            ([linked, v4], RelayReason::LinkLocal),
        ] {
            assert_eq!(matched(legs), Err(reason), "{legs:?}");
        }
    }
}
