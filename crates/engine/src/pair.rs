//! Runs one call of `splice`: relay, splice, and return.

use std::{io, os::fd::AsFd, sync::Arc, time::Duration};

use longsplice_core::reason::RelayReason;
use longsplice_repair::options;
use socket2::SockRef;
use tokio::{net::TcpStream, time::Instant};

use crate::{
    api::{Ended, Pair, Summary},
    driver::Driver,
    gate::Gate,
    over::Over,
    parked::{self, Left},
    splicer::Inner,
    splicing::{self, Drained, Spliced},
    until::Until,
};

/// Time that a packet may take from user space to a socket.
const ON_ITS_WAY: Duration = Duration::from_millis(1);

/// Carries a pair to its end, back to its caller, or to the point at which it needs no process any more.
pub(crate) async fn run(splicer: &Arc<Inner>, pair: Pair, until: Until) -> io::Result<Ended> {
    let length = pair.length;
    let mut driver = match Driver::new(splicer, pair, until) {
        // One of the connections had ended before: both sockets are dropped by now, and the other connection is reset.
        Err(e) if e.kind() == io::ErrorKind::NotConnected => return Ok(Ended::Closed(stillborn(splicer))),
        driver => driver?,
    };
    let mut gate = Gate::new(driver.splice, Instant::now()).of_length(length);
    let id = driver.id();
    loop {
        match driver.relay(&mut gate).await {
            Ok(()) => {}
            Err(Over::Trapped(_)) if driver.entry.is_to_end() => {
                return Ok(driver.conclude(Over::asked(), None));
            }
            Err(Over::Trapped(trap)) => return driver.give_back(trap).await,
            Err(over) => return Ok(driver.conclude(over, None)),
        }
        let (mut flow, mut drained) = match splicing::splice(&mut driver).await {
            Ok(spliced) => spliced,
            Err(Spliced::Refused(refusal)) => {
                tracing::debug!(flow = %id, reason = %refusal.reason, passing = refusal.passing, "not spliced");
                driver.entry.set_reason(Some(refusal.reason));
                driver.entry.refuse(refusal.reason);
                gate.refused(Instant::now(), refusal.passing);
                continue;
            }
            Err(Spliced::Over(over, flow)) => return Ok(driver.conclude(over, flow.map(|f| *f))),
        };
        let flow = loop {
            let Drained::Drained(cuts, parkable) = drained else {
                driver.note_spliced(&flow);
                driver.note_awake(&flow);
                break flow;
            };
            match parked::park(driver, flow, cuts, parkable).await? {
                Left::Ended(ended) => return Ok(ended),
                Left::Awake(awake, flow) => {
                    driver = awake;
                    break flow;
                }
                Left::Draining(draining, again) => (driver, flow) = (draining, again),
            }
            drained = match splicing::drain(&mut driver, &mut flow).await {
                Ok(how) => how,
                Err(over) => return Ok(driver.conclude(over, Some(flow))),
            };
        };
        if driver.welcome(flow) {
            // Let the injected segment reach its socket first: a splice that began before would be brought back by it.
            driver.wait(Some(Instant::now() + ON_ITS_WAY)).await;
        }
        if driver.fired(Instant::now()).is_none() {
            // The trap was only a step to one that is too far for a sequence number, or a part of the budget is left.
            driver.entry.ask();
        }
    }
}

/// Returns `SO_COOKIE` of two sockets: no two sockets of a machine have the same.
pub(crate) fn cookies(client: &TcpStream, server: &TcpStream) -> io::Result<[u64; 2]> {
    Ok([SockRef::from(client).cookie()?, SockRef::from(server).cookie()?])
}

/// Returns the summary of a pair with a socket that was not connected any more.
fn stillborn(splicer: &Inner) -> Summary {
    splicer.stats.relayed(RelayReason::NotEstablished);
    Summary {
        id: splicer.next_id(),
        bytes_to_server: 0,
        bytes_to_client: 0,
        bytes_spliced: 0,
        spliced: false,
        relay_reason: Some(RelayReason::NotEstablished),
        reset: true,
        idle: false,
    }
}

/// Makes a socket reset its connection if it closes because its process died: the bytes in our buffers are lost then, and
/// an orderly end would hide that.
pub(crate) fn prepare_socket(socket: impl AsFd) -> io::Result<()> {
    options::set_reset_on_close(&socket, true)?;
    options::set_nodelay(&socket, true)?;
    // Otherwise an urgent byte is left out of the read data (RFC 6093 section 3.2), and would be lost here. MPTCP has no
    // urgent data, and does not support the option.
    match SockRef::from(&socket.as_fd()).set_out_of_band_inline(true) {
        Err(e) if e.kind() == io::ErrorKind::Unsupported => Ok(()),
        done => done,
    }
}
