//! Sends the list of flows part by part: a million of them would take a gigabyte.

use std::{convert::Infallible, sync::Arc, time::Duration};

use axum::{
    body::{Body, Bytes},
    extract::State,
    http::{StatusCode, header::CONTENT_TYPE},
    response::{IntoResponse, Response},
};
use futures_util::stream;
use tokio::{
    sync::mpsc,
    task::spawn_blocking,
    time::{error::Elapsed, timeout},
};

use super::{Admin, Listed, error};

/// Number of lists that are sent at a time; each holds less than 100 bytes for a flow.
pub(crate) const AT_ONCE: usize = 4;

/// Size of a part, about.
const PART: usize = 64 << 10;

/// Longest time to wait for a client that does not read.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

type Listing = Box<dyn Iterator<Item = Listed> + Send>;

/// Answers with all flows, then the connections that were passed through.
pub(super) async fn flows(State(admin): State<Arc<Admin>>) -> Response {
    let Ok(place) = Arc::clone(&admin.listings).try_acquire_owned() else {
        let message = format!("{AT_ONCE} lists of flows are being sent already; ask again when one is done");
        return error(StatusCode::SERVICE_UNAVAILABLE, &message);
    };
    let (sender, receiver) = mpsc::channel(1);
    tokio::spawn(async move {
        if send(move || list(&admin), sender, LONGEST_PAUSE).await.is_err() {
            tracing::debug!("a client does not read the flows that it asked for: given up");
        }
        drop(place);
    });
    let parts = stream::unfold(receiver, async |mut receiver: mpsc::Receiver<Bytes>| {
        let part = receiver.recv().await?;
        Some((Ok::<_, Infallible>(part), receiver))
    });
    ([(CONTENT_TYPE, "application/json")], Body::from_stream(parts)).into_response()
}

fn list(admin: &Admin) -> Listing {
    let passed = admin.accelerator.as_ref().map(|a| a.passed_through());
    let flows = admin.shared.splicer.flows().map(Box::new).map(Listed::Flow);
    Box::new(flows.chain(passed.into_iter().flatten().map(Listed::PassedThrough)))
}

/// Sends a list as JSON until its end, or the client's. Each part is made on a blocking thread: it takes thousands of system
/// calls, and connections must not wait for those.
async fn send(
    list: impl FnOnce() -> Listing + Send + 'static,
    sender: mpsc::Sender<Bytes>,
    longest_pause: Duration,
) -> Result<(), Elapsed> {
    let mut next = spawn_blocking(move || part(list(), b'[')).await;
    while let Ok((bytes, left)) = next {
        let sent = timeout(longest_pause, sender.send(bytes.into())).await?;
        let (Ok(()), Some(left)) = (sent, left) else {
            break;
        };
        next = spawn_blocking(move || part(left, b',')).await;
    }
    Ok(())
}

/// Returns the next part of a list, which begins with this byte, and what is left of the list; `None`: it is complete.
fn part(mut list: Listing, mut before: u8) -> (Vec<u8>, Option<Listing>) {
    let mut bytes = Vec::with_capacity(PART + PART / 8);
    for one in list.by_ref() {
        bytes.push(before);
        before = b',';
        // All its keys are strings, and the vector takes every byte: this cannot fail.
        let _ = serde_json::to_writer(&mut bytes, &one);
        if bytes.len() >= PART {
            return (bytes, Some(list));
        }
    }
    if before == b'[' {
        bytes.push(b'[');
    }
    bytes.push(b']');
    (bytes, None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::accelerator::{PassedThrough, passed::PassedState};

    fn listing(length: u16) -> Listing {
        let one = |port| {
            Listed::PassedThrough(PassedThrough {
                state: PassedState::PassedThrough,
                client: ([198, 18, 0, 1], port).into(),
                server: ([198, 18, 1, 1], 80).into(),
                reason: "limit".to_owned(),
                age_seconds: 1,
            })
        };
        Box::new((0..length).map(one))
    }

    #[tokio::test]
    async fn a_list_comes_whole_in_parts() {
        for length in [0, 1, 2, 2_000] {
            let (sender, mut receiver) = mpsc::channel(1);
            let sending = tokio::spawn(send(move || listing(length), sender, LONGEST_PAUSE));
            let (mut parts, mut text) = (0, Vec::new());
            while let Some(part) = receiver.recv().await {
                assert!(part.len() < PART * 2, "{}", part.len());
                parts += 1;
                text.extend(part);
            }
            sending.await.unwrap().unwrap();
            let all: Vec<serde_json::Value> = serde_json::from_slice(&text).unwrap();
            assert_eq!(all.len(), usize::from(length));
            assert_eq!(parts > 1, length > 2, "{parts}");
            assert!((all.iter().enumerate()).all(|(n, one)| one["client"] == format!("198.18.0.1:{n}")));
        }
    }

    #[tokio::test]
    async fn a_client_that_does_not_read_is_given_up() {
        let (sender, receiver) = mpsc::channel(1);
        let sent = send(|| listing(2_000), sender, Duration::from_millis(10)).await;
        assert!(sent.is_err());
        drop(receiver);
    }

    #[tokio::test]
    async fn nothing_is_left_when_the_client_ends() {
        let (sender, receiver) = mpsc::channel(1);
        drop(receiver);
        send(|| listing(2_000), sender, LONGEST_PAUSE).await.unwrap();
    }
}
