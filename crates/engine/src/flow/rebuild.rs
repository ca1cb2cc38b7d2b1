//! Brings a pair back from a splice (papers' section III-D): wakes parked sockets, and builds those of a detached flow
//! first.

use std::{io, net::TcpStream as StdStream, sync::Arc};

use longsplice_core::coupling;
use longsplice_dataplane::{Leg, LegState, Mode, PerSide, Side, Sockets};
use longsplice_repair::{Image, ImageOptions, Window, fit_receive_buffer, options, set_receive_window, thaw};
use tokio::net::TcpStream;

use super::Flow;
use crate::kernel::{
    Kernel, held,
    packet::end_of_stream,
    socket::{mark, prepare_socket},
};

/// Least window of a rebuilt socket, in bytes: its peer may have been promised next to nothing.
const LEAST_WINDOW: u32 = 64 << 10;

/// Returns the largest window that a TCP header can announce at a scale (RFC 7323 section 2.3).
fn largest_window(scale: u8) -> u32 {
    65_535 << scale.min(14)
}

impl Flow {
    /// Makes room in the parked sockets for the data that their peers were promised, and stops further promises (section
    /// III-E). Returns true if all of it fits. Takes a few system calls for each socket with too small a window.
    /// `pauses`: the value given to [`Slot::set_pausing`](longsplice_dataplane::Slot::set_pausing).
    pub(crate) fn keep_promises(&self, sockets: PerSide<&TcpStream>, pauses: bool) -> bool {
        self.slot().set_keeping(true);
        let mut kept_all = true;
        for side in Side::BOTH {
            let (x, o) = (self.leg(side), self.leg(side.other()));
            let offered = o.rx_edge + o.ack_off;
            let offered = match x.trap.filter(|_| pauses) {
                Some(trap) => offered.min(trap + coupling::LEAST_WINDOW),
                None => offered,
            };
            let promised = x.tx_edge.max(offered);
            let wanted = promised.bytes_since(x.rx_end.max(x.cut));
            let kept = x.loc_edge.distance_from(x.cut);
            if wanted <= kept {
                continue;
            }
            let wanted = wanted.min(largest_window(x.scale_out));
            let socket = sockets[side];
            // Fit the buffer first: a promise without room is broken by a segment that comes at once.
            match fit_receive_buffer(socket, wanted).and_then(|()| set_receive_window(socket, wanted)) {
                Ok(()) => self.slot().set_edge(side, x.cut + wanted),
                Err(error) => {
                    tracing::warn!(%error, wanted, "cannot widen the window of a parked socket");
                    kept_all = false;
                }
            }
        }
        kept_all
    }

    /// Wakes the pair if that is possible now. Returns true if it is awake.
    pub(crate) fn wake(&self) -> io::Result<bool> {
        Ok(self.mode() == Mode::Undrain || self.plane().wake(self.slot())? == Mode::Undrain)
    }

    /// Injects the held packets after a wake, and shows the sockets the FINs that were forwarded. `ended`: sides whose
    /// end the socket knows already. Returns true if anything is on its way to a socket.
    pub(crate) fn welcome(&self, ended: PerSide<bool>) -> bool {
        let states = PerSide::from_fn(|side| self.leg(side));
        let bases = held::bases(states.map(|s| s.bypassed), states.map(|s| s.base));
        let comes = self.held().let_in(self.plane(), bases);
        for side in Side::BOTH {
            let x = &states[side];
            if !x.bypassed_fin || ended[side] {
                continue;
            }
            let leg = self.legs()[side];
            let sent = self
                .plane()
                .inspect(leg)
                .and_then(|inspection| self.plane().inject(inspection.ifindex, &end_of_stream(leg, x)));
            if let Err(error) = sent {
                tracing::warn!(%error, ?leg, "cannot pass on the end of a stream");
            }
        }
        comes
    }
}

/// Gives a detached flow a slot and sockets, parked; segments pass all the while. Fails with `NotFound` if there is no
/// such flow, or it is ending; with other errors if there is no slot, conntrack cannot be told, or the kernel refused a
/// socket. The flow is detached as before then.
pub(crate) fn rebuild(
    kernel: &Arc<Kernel>,
    serial: u32,
    legs: PerSide<Leg>,
) -> io::Result<(Flow, PerSide<TcpStream>)> {
    let plane = &kernel.plane;
    let slot = plane
        .take_slot()
        .ok_or_else(|| io::Error::new(io::ErrorKind::QuotaExceeded, "no slot is free: raise max_dormant"))?;
    kernel.conntrack.expect_return(legs)?;
    plane.promote(&slot, serial, legs)?;
    let flow = Flow::attached(kernel, slot, legs);
    let states = PerSide::from_fn(|side| flow.leg(side));
    let built = build(&flow, &states);
    match built {
        Ok(sockets) => {
            // Segments have passed since the sockets' windows were chosen.
            flow.keep_promises(sockets.as_ref(), false);
            Ok((flow, sockets))
        }
        Err(error) => {
            // It always succeeds: no packet wakes a flow that was not made wakeable.
            drop(flow.abandon());
            Err(error)
        }
    }
}

fn build(flow: &Flow, states: &PerSide<LegState>) -> io::Result<PerSide<TcpStream>> {
    if states.iter().any(|s| s.reset) || states.iter().all(|s| s.fin) {
        return Err(io::Error::new(io::ErrorKind::NotFound, "the flow is ending"));
    }
    let places = PerSide::from_fn(|side| place(&states[side], &states[side.other()]));
    let legs = flow.legs();
    let sockets =
        PerSide::try_from_fn(|side| build_one(legs[side], &states[side], &places[side], flow.marked[side]))?;
    flow.slot().set_sockets(places);
    flow.slot().set_keeping(true);
    let PerSide {
        client: Ok(client),
        server: Ok(server),
    } = sockets.map(TcpStream::from_std)
    else {
        return Err(io::Error::other("the runtime takes no more sockets"));
    };
    Ok(PerSide { client, server })
}

/// Returns the sequence numbers at which a leg's socket carries on. The sockets send a FIN again themselves.
fn place(x: &LegState, o: &LegState) -> Sockets {
    let receive_next = x.rx_end;
    let promised = (o.rx_edge + o.ack_off).bytes_since(receive_next);
    let window = promised.max(LEAST_WINDOW).min(largest_window(x.scale_out));
    Sockets {
        receive_next,
        send_next: o.rx_end + o.seq_off,
        edge: receive_next + window,
    }
}

fn build_one(leg: Leg, x: &LegState, place: &Sockets, is_marked: bool) -> io::Result<StdStream> {
    let offered = x.rx_edge.bytes_since(place.send_next);
    let image = Image {
        local: leg.local,
        peer: leg.peer,
        send_next: place.send_next,
        receive_next: place.receive_next,
        options: ImageOptions {
            mss: x.mss,
            send_scale: x.scale_in,
            receive_scale: x.scale_out,
            sack: x.sack,
            timestamps: x.timestamps,
        },
        timestamp_clock: x.ts_sent,
        window: Window {
            send: offered,
            send_wl1: place.receive_next,
            largest: offered.max(65_535),
            receive: place.edge.bytes_since(place.receive_next),
        },
    };
    let socket = StdStream::from(thaw(&image)?);
    if is_marked {
        mark(&socket)?;
    }
    prepare_socket(&socket)?;
    options::set_keepalive(&socket, false)?;
    Ok(socket)
}
