//! Runs the daemon's side of the admin socket.

use std::{io, sync::Arc};

use axum::{
    Json, Router,
    body::Body,
    extract::{Path, Request, State},
    http::{
        StatusCode,
        header::{CONNECTION, UPGRADE},
    },
    response::{IntoResponse, Response},
    routing::{get, post},
};
use hyper_util::{rt::TokioIo, server::conn::auto::upgrade::downcast};
use longsplice_engine::{
    FlowId, RequestError, Returned,
    rules::{Rule, RulesError},
};
use serde::Serialize;
use tokio::{
    net::{TcpStream, UnixListener, UnixStream},
    sync::{mpsc::error::TrySendError, oneshot},
};
use tokio_util::task::AbortOnDropHandle;

use super::{Admin, claim::Claim, error, listing, servers};
use crate::{
    accelerator::AgainReason,
    access_log::End,
    handover::{Handover, PROTOCOL},
    listener::spawn_reclaimed,
};

/// Serves until the handle is dropped.
pub(crate) fn serve(claim: &Claim, admin: Admin) -> io::Result<AbortOnDropHandle<()>> {
    let listener = UnixListener::from_std(claim.listener()?)?;
    let router = router(Arc::new(admin));
    tracing::debug!(socket = %claim.socket().display(), "admin interface open");
    Ok(AbortOnDropHandle::new(tokio::spawn(async move {
        if let Err(error) = axum::serve(listener, router).await {
            tracing::error!(%error, "the admin interface ended");
        }
    })))
}

fn router(admin: Arc<Admin>) -> Router {
    Router::new()
        .route("/status", get(status))
        .route("/flows", get(listing::flows))
        .route("/rules", get(rules).put(load_rules).delete(clear_rules))
        .route("/flows/{id}/splice", post(splice))
        .route("/flows/{id}/unsplice", post(unsplice))
        .route("/flows/{id}/kill", post(kill))
        .route("/reload", post(reload))
        .route("/handover", post(handover))
        .merge(servers::router())
        .fallback(async || error(StatusCode::NOT_FOUND, "there is no such resource"))
        .method_not_allowed_fallback(async || {
            error(StatusCode::METHOD_NOT_ALLOWED, "the resource has no such method")
        })
        .with_state(admin)
}

/// Builds an answer on a blocking thread: connections must not wait for that.
async fn read<T: Serialize>(admin: &Arc<Admin>, what: impl FnOnce(&Admin) -> T + Send + 'static) -> Response {
    let admin = Arc::clone(admin);
    match tokio::task::spawn_blocking(move || Json(what(&admin)).into_response()).await {
        Ok(response) => response,
        Err(_) => error(StatusCode::INTERNAL_SERVER_ERROR, "the answer could not be made"),
    }
}

async fn status(State(admin): State<Arc<Admin>>) -> Response {
    read(&admin, Admin::status).await
}

/// Refusal of a command to a flow.
struct Refused(StatusCode, String);

impl From<RequestError> for Refused {
    fn from(error: RequestError) -> Refused {
        let status = match error {
            RequestError::NoSuchFlow(_) => StatusCode::NOT_FOUND,
            _ => StatusCode::CONFLICT,
        };
        Refused(status, error.to_string())
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        error(self.0, &self.1)
    }
}

fn flow_id(id: &str) -> Result<FlowId, Refused> {
    id.parse()
        .map_err(|_| Refused(StatusCode::BAD_REQUEST, "a flow's id is a number".to_owned()))
}

/// Answers that a command to a flow was carried out.
fn done(id: FlowId) -> Json<serde_json::Value> {
    Json(serde_json::json!({ "id": id }))
}

async fn splice(
    State(admin): State<Arc<Admin>>,
    Path(id): Path<String>,
) -> Result<impl IntoResponse, Refused> {
    let id = flow_id(&id)?;
    admin.shared.splicer.request_splice(id).await?;
    Ok(done(id))
}

async fn unsplice(
    State(admin): State<Arc<Admin>>,
    Path(id): Path<String>,
) -> Result<impl IntoResponse, Refused> {
    let id = flow_id(&id)?;
    // Refuse during a shutdown, also if it begins while the flow is looked for: relayed connections are about to be reset,
    // while spliced ones live on.
    let unspliced = tokio::select! {
        biased;
        () = admin.stopping.cancelled() => {
            let message = format!("flow {id} stays as it is: the daemon is shutting down");
            return Err(Refused(StatusCode::CONFLICT, message));
        }
        unspliced = admin.shared.splicer.request_unsplice(id) => unspliced?,
    };
    // A flow without a handler is forwarded from here.
    if let Some(returned) = unspliced {
        match admin.accelerator.as_ref().filter(|_| is_transparent(&returned)) {
            Some(accelerator) => accelerator.resume(returned, AgainReason::Command),
            None => spawn_reclaimed(returned, &admin.shared, &admin.config_status.listeners()),
        }
    }
    Ok(done(id))
}

/// Returns whether both ends see each other's address, as in a connection that was taken over.
fn is_transparent(returned: &Returned) -> bool {
    let addresses = |socket: &TcpStream| Some((socket.peer_addr().ok()?, socket.local_addr().ok()?));
    let (client, server) = (addresses(&returned.client), addresses(&returned.server));
    client.is_some() && client == server.map(|(peer, local)| (local, peer))
}

async fn kill(State(admin): State<Arc<Admin>>, Path(id): Path<String>) -> Result<impl IntoResponse, Refused> {
    let id = flow_id(&id)?;
    // Let the connection's handler end it; end it here if it has none.
    if !admin.shared.tracker.end(id, End::Admin) {
        admin.shared.splicer.request_end(id).await?;
    }
    Ok(done(id))
}

async fn reload(State(admin): State<Arc<Admin>>) -> Response {
    let stopping = || error(StatusCode::CONFLICT, "the daemon is shutting down");
    if admin.stopping.is_cancelled() {
        return stopping();
    }
    let (asked, done) = oneshot::channel();
    match admin.reload.try_send(asked) {
        Ok(()) => {}
        Err(TrySendError::Full(_)) => {
            let message = "reloads are under way already; ask again when they are done";
            return error(StatusCode::SERVICE_UNAVAILABLE, message);
        }
        Err(TrySendError::Closed(_)) => return stopping(),
    }
    match done.await {
        Ok(Ok(reloaded)) => Json(reloaded).into_response(),
        Ok(Err(e)) => error(StatusCode::CONFLICT, &e.to_string()),
        Err(_) => stopping(),
    }
}

/// Passes the connection on to the daemon, once the client has the answer.
async fn handover(State(admin): State<Arc<Admin>>, mut request: Request) -> Response {
    if admin.stopping.is_cancelled() {
        return error(StatusCode::CONFLICT, "it is shutting down");
    }
    if request
        .headers()
        .get(UPGRADE)
        .is_none_or(|protocol| protocol != PROTOCOL)
    {
        return error(StatusCode::UPGRADE_REQUIRED, "it knows another protocol");
    }
    let Ok(place) = Arc::clone(&admin.successor).try_acquire_owned() else {
        return error(StatusCode::CONFLICT, "another successor is starting");
    };
    let upgrade = hyper::upgrade::on(&mut request);
    tokio::spawn(async move {
        let stream = async {
            let parts = downcast::<TokioIo<UnixStream>>(upgrade.await.map_err(io::Error::other)?);
            parts
                .map_err(|_| io::ErrorKind::Unsupported)?
                .io
                .into_inner()
                .into_std()
        };
        match stream.await {
            // The daemon may be shutting down.
            Ok(stream) => drop(admin.handover.send(Handover { stream, place }).await),
            Err(error) => tracing::warn!(%error, "a successor broke off"),
        }
    });
    let head = Response::builder()
        .status(StatusCode::SWITCHING_PROTOCOLS)
        .header(CONNECTION, "upgrade")
        .header(UPGRADE, PROTOCOL);
    head.body(Body::empty())
        .unwrap_or_else(|_| error(StatusCode::INTERNAL_SERVER_ERROR, "the answer could not be made"))
}

async fn rules(State(admin): State<Arc<Admin>>) -> Response {
    read(&admin, |admin| admin.rules.info()).await
}

async fn load_rules(State(admin): State<Arc<Admin>>, body: String) -> Response {
    match serde_json::from_str(&body) {
        Ok(rules) => set_rules(&admin, rules).await,
        Err(e) => error(StatusCode::BAD_REQUEST, &format!("these are no rules: {e}")),
    }
}

async fn clear_rules(State(admin): State<Arc<Admin>>) -> Response {
    set_rules(&admin, Vec::new()).await
}

async fn set_rules(admin: &Arc<Admin>, rules: Vec<Rule>) -> Response {
    if admin.stopping.is_cancelled() {
        let message = "the rules stay as they are: the daemon is shutting down";
        return error(StatusCode::CONFLICT, message);
    }
    match admin.rules.load(rules).await {
        Ok(()) => read(admin, |admin| admin.rules.info()).await,
        Err(e @ RulesError::Wrong(_)) => error(StatusCode::BAD_REQUEST, &e.to_string()),
        Err(e) => error(StatusCode::CONFLICT, &e.to_string()),
    }
}
