//! Runs one call of `splice`: relay, splice, and return.

mod coupling;
mod detached;
mod dormant;
mod draining;
mod exit;
mod finish;
mod looks;
mod pair;
mod parting;
mod relaying;
mod resuming;
mod state;
mod yielding;

use std::{io, sync::Arc};

use longsplice_core::reason::RelayReason;

use crate::{
    api::{Ended, Pair, Summary, until::Until},
    context::Context,
};
use pair::Session;
use state::{Relaying, State};

/// Carries a pair to its end, back to its caller, or to the point at which it needs no process any more. Begins at once,
/// and not when the future is first polled: the future would hold the pair for all of its life.
pub(crate) fn run(
    context: &Arc<Context>,
    pair: Pair,
    until: Until,
) -> impl Future<Output = io::Result<Ended>> + Send {
    let begun = begin(context, pair, until);
    async move { carry(begun?).await }
}

/// Returns the first state of a call.
fn begin(context: &Arc<Context>, pair: Pair, until: Until) -> io::Result<State<'_>> {
    match Session::new(context, pair, until) {
        // One of the connections had ended before: both sockets are dropped by now, and the other connection is reset.
        Err(e) if e.kind() == io::ErrorKind::NotConnected => {
            Ok(State::over(Ended::Closed(stillborn(context))))
        }
        session => Ok(State::Relaying(Relaying {
            session: Box::new(session?),
        })),
    }
}

/// Goes from state to state until the call is over.
async fn carry(mut state: State<'_>) -> io::Result<Ended> {
    loop {
        // Box what is short, or has given up its buffers: a relayed pair would hold the memory of the largest of them.
        state = match state {
            State::Relaying(relaying) => relaying.run().await?,
            State::Coupling(coupling) => Box::pin(coupling.run()).await,
            State::Draining(draining) => Box::pin(draining.run()).await?,
            State::Dormant(dormant) => Box::pin(dormant.run()).await?,
            State::Detached(detached) => Box::pin(detached.run()).await?,
            State::Resuming(resuming) => Box::pin(resuming.run()).await,
            State::Over(ended) => return Ok(*ended),
        };
    }
}

/// Returns the summary of a pair with a socket that was not connected any more.
fn stillborn(context: &Context) -> Summary {
    context.stats.relayed(RelayReason::NotEstablished);
    Summary {
        id: context.next_id(),
        bytes_to_server: 0,
        bytes_to_client: 0,
        bytes_spliced: 0,
        spliced: false,
        relay_reason: Some(RelayReason::NotEstablished),
        reset: true,
        idle: false,
        replaced: false,
    }
}
