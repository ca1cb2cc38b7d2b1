use std::{net::SocketAddr, time::Duration};

use longsplice_engine::{RequestError, Side, Summary};
use tokio::{
    io::AsyncWriteExt,
    net::{TcpListener, TcpStream},
    task::JoinHandle,
    time::timeout,
};

use super::*;
use crate::listener::standing::tests::{begin, decided, reload};

/// Limit of a wait for an end that is under way.
const SOON: Duration = Duration::from_secs(30);

const LINES: &str = "on_reload = \"reset\"\n";
const PEER: ([u8; 4], u16) = ([198, 18, 0, 1], 5);

/// Returns a listener, and a connection with a decision.
fn connection() -> (Arc<Service>, Open) {
    let (service, open) = begin(LINES);
    open.decide(Some(*decided(&service.settings())));
    (service, open)
}

fn leave(open: &Open, id: FlowId) -> Option<End> {
    open.leave(id, None, AccessRecord::new("l", PEER.into()), Instant::now())
}

/// Returns the reason that is noted for the end of a flow without a handler.
fn noted(service: &Service, id: FlowId) -> End {
    service.shared.tracker.take(id, PEER.into()).unwrap().record.end
}

/// Connects to a port of this host. Returns both sockets.
async fn connect() -> [TcpStream; 2] {
    let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0)))
        .await
        .unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    [client, listener.accept().await.unwrap().0]
}

/// A relayed pair, in place of a flow in the kernel.
struct Relayed {
    id: FlowId,
    call: JoinHandle<io::Result<Ended>>,
    _ends: [TcpStream; 2],
}

impl Relayed {
    /// Begins to relay a pair as the one of this connection.
    async fn begin(open: &Open) -> Relayed {
        let ([client, accepted], [connected, server]) = (connect().await, connect().await);
        let pair = Pair::new(accepted, connected).with_handle(&open.shown.flow);
        let splicer = open.service.splicer().clone();
        let call = tokio::spawn(async move { splicer.splice(pair, Until::closed()).await });
        let id = timeout(SOON, async {
            loop {
                match open.shown.flow() {
                    Some(id) => return id,
                    None => tokio::task::yield_now().await,
                }
            }
        });
        Relayed {
            id: id.await.unwrap(),
            call,
            _ends: [client, server],
        }
    }

    async fn end(self) -> Summary {
        match timeout(SOON, self.call).await.unwrap().unwrap().unwrap() {
            Ended::Closed(summary) => summary,
            other => panic!("{other:?}"),
        }
    }
}

/// A handler whose call has just returned is told to end its connection: it has nothing to end but the flow.
#[tokio::test]
async fn a_connection_that_was_told_to_end_ends_when_it_is_detached() {
    let (service, open) = connection();
    let flow = Relayed::begin(&open).await;
    let id = flow.id;
    assert!(service.shared.tracker.end(id, End::Admin), "its handler ends it");
    let record = AccessRecord::new("l", PEER.into());
    open.detached(id, None, record, Instant::now()).await;
    assert_eq!(noted(&service, id), End::Admin);
    assert!(flow.end().await.reset);
}

/// The handler goes on with another request, say, which has nothing to do with the flow that came back.
#[tokio::test]
async fn a_flow_that_came_back_has_no_end() {
    let (service, open) = connection();
    let ([mut client, accepted], [connected, _server]) = (connect().await, connect().await);
    client.write_all(b"next").await.unwrap();
    let call = open.splice(Pair::new(accepted, connected), Until::data_from(Side::Client));
    let id = match timeout(SOON, call).await.unwrap().unwrap() {
        Ended::Returned(returned) => returned.id,
        other => panic!("{other:?}"),
    };
    assert!(
        !service.shared.tracker.end(id, End::Admin),
        "its handler has no such flow"
    );
    assert_eq!(open.to_end(), None);
    let error = service.splicer().request_end(id).await.unwrap_err();
    assert!(matches!(error, RequestError::NoSuchFlow(_)), "{error}");
}

#[tokio::test]
async fn a_handler_that_has_left_its_flow_is_not_asked_to_end_it() {
    let (service, open) = connection();
    let flow = Relayed::begin(&open).await;
    assert_eq!(leave(&open, flow.id), None);
    assert!(
        !service.shared.tracker.end(flow.id, End::Admin),
        "its handler would not hear it"
    );
    assert_eq!(noted(&service, flow.id), End::Admin);
}

#[tokio::test]
async fn a_flow_whose_handler_was_told_is_not_ended_by_the_reload() {
    let (service, open) = connection();
    let flow = Relayed::begin(&open).await;
    let tracker = &service.shared.tracker;
    let told = tracker.tell_where(End::Reload, &mut |_, _| true);
    assert_eq!(told.len(), 1);
    assert_eq!(leave(&open, flow.id), Some(End::Reload));
    assert_eq!(tracker.left_where(End::Reload, &told, |_, _| true), []);
}

/// A reload judges all connections before it tells the first one.
#[tokio::test]
async fn a_flow_that_is_left_while_a_reload_judges_others_ends_once() {
    let (service, first) = connection();
    let slot = service.slots.try_take().unwrap();
    let second = Open::new(Arc::clone(&service), slot, None);
    let id: FlowId = "7".parse().unwrap();
    let opens = [first, second];
    for (n, open) in opens.iter().enumerate() {
        let decided = decided(&service.settings());
        open.decide(Some(Decided {
            route: Some(n),
            ..*decided
        }));
    }
    let mut judged = Vec::new();
    let ended = service.shared.tracker.end_where(End::Reload, |decided, _| {
        judged.extend(decided.route);
        if let [first, _] = judged[..] {
            assert_eq!(leave(&opens[first], id), None, "it is told later");
        }
        true
    });
    assert_eq!(ended, (1, vec![id]));
    assert_eq!(noted(&service, id), End::Reload);
}

/// A reload that looks at the open connections before, and at the flows without a handler afterwards, finds no trace of it.
#[tokio::test]
async fn a_flow_that_is_taken_back_during_a_reload_is_judged() {
    let (service, open) = connection();
    let old = *decided(&service.settings());
    open.resume(Some(old.clone()));
    assert_eq!(open.to_end(), None);
    reload(&service, 2, LINES);
    open.resume(Some(old.clone()));
    assert_eq!(open.to_end(), None, "it would be decided about alike");
    reload(&service, 3, &format!("{LINES}protocol = \"tls\"\n"));
    open.resume(None);
    assert_eq!(open.to_end(), None);
    open.resume(Some(old));
    assert_eq!(open.to_end(), Some(End::Reload));
}
