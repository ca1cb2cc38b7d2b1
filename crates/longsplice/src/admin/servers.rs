//! Serves `GET /servers`, `POST /servers/drain` and `POST /servers/ready`.

use std::sync::Arc;

use axum::{
    Json, Router,
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::{get, post},
};
use serde::{Deserialize, Serialize};

use super::{Admin, error};
use crate::upstream::UpstreamStatus;

/// Name of a server. It is in the body, because a path could not hold names with slashes.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Which {
    pub upstream: String,
    /// Name or address of the server.
    pub server: String,
}

/// Number of servers that a request concerned.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Concerned {
    /// A name may have several addresses, or none yet.
    pub servers: usize,
}

pub(super) fn router() -> Router<Arc<Admin>> {
    Router::new()
        .route("/servers", get(servers))
        .route("/servers/drain", post(drain))
        .route("/servers/ready", post(ready))
}

async fn servers(State(admin): State<Arc<Admin>>) -> Json<Vec<UpstreamStatus>> {
    Json(admin.config_status.upstreams().status())
}

async fn drain(State(admin): State<Arc<Admin>>, body: String) -> Response {
    set_drained(&admin, &body, true)
}

async fn ready(State(admin): State<Arc<Admin>>, body: String) -> Response {
    set_drained(&admin, &body, false)
}

fn set_drained(admin: &Admin, body: &str, drain: bool) -> Response {
    let which: Which = match serde_json::from_str(body) {
        Ok(which) => which,
        Err(e) => return error(StatusCode::BAD_REQUEST, &format!("this names no server: {e}")),
    };
    let upstreams = admin.config_status.upstreams();
    match upstreams.drain(&which.upstream, &which.server, drain) {
        Ok(servers) => Json(Concerned { servers }).into_response(),
        Err(e) => error(StatusCode::NOT_FOUND, &e.to_string()),
    }
}
