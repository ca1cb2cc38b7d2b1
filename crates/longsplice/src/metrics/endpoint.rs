//! Serves metrics, health and readiness on a socket.

use std::{
    convert::Infallible,
    io,
    net::{SocketAddr, TcpListener},
    os::fd::{AsFd, OwnedFd},
    pin::pin,
    sync::Arc,
    time::Duration,
};

use axum::{
    body::Body,
    http::{Method, Request, Response, StatusCode, header::CONTENT_TYPE},
};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use socket2::SockRef;
use tokio::{net::TcpStream, sync::Semaphore, time};
use tokio_util::{
    sync::{CancellationToken, DropGuard},
    task::AbortOnDropHandle,
};

use super::Subject;
use crate::listener::socket_for;

/// Limit of connections that are served at once; others wait.
const MOST: usize = 32;
/// Limit of connections that wait.
const BACKLOG: u32 = 128;
/// Longest time for the head of a request.
const HEAD: Duration = Duration::from_secs(5);
/// Longest time in which a client takes nothing of its answer.
const UNREAD: Duration = Duration::from_secs(5);
/// Longest life of a connection; the client can open another one.
const LONGEST: Duration = Duration::from_secs(300);
/// Pause after an error of accept(2).
const RETRY: Duration = Duration::from_secs(1);

/// A bound socket that is not served yet.
#[derive(Debug)]
pub(crate) struct Place {
    address: SocketAddr,
    listener: TcpListener,
}

/// Reason why the socket could not be opened.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address} for metrics: {source}")]
pub(crate) struct EndpointError {
    address: SocketAddr,
    source: io::Error,
}

/// A served socket, until it is dropped. Its open connections end then with their next answer.
#[derive(Debug)]
pub(crate) struct Endpoint {
    address: SocketAddr,
    listener: Arc<tokio::net::TcpListener>,
    _task: AbortOnDropHandle<()>,
    _closing: DropGuard,
}

impl Place {
    /// Binds the address.
    pub(crate) fn bind(address: SocketAddr) -> Result<Place, EndpointError> {
        let bind = || {
            let socket = socket_for(address)?;
            socket.bind(address)?;
            socket.listen(BACKLOG)?.into_std()
        };
        match bind() {
            Ok(listener) => Ok(Place { address, listener }),
            Err(source) => Err(EndpointError { address, source }),
        }
    }

    /// Uses a socket that another process has passed.
    pub(crate) fn inherit(address: SocketAddr, socket: OwnedFd) -> Result<Place, EndpointError> {
        let listener = TcpListener::from(socket);
        match listener.set_nonblocking(true) {
            Ok(()) => Ok(Place { address, listener }),
            Err(source) => Err(EndpointError { address, source }),
        }
    }

    /// Serves requests from now on.
    pub(crate) fn serve(self, subject: Arc<Subject>) -> Result<Endpoint, EndpointError> {
        let Place { address, listener } = self;
        let listener = tokio::net::TcpListener::from_std(listener)
            .map_err(|source| EndpointError { address, source })?;
        tracing::info!(%address, "metrics are at http://{address}/metrics");
        let listener = Arc::new(listener);
        let closing = CancellationToken::new();
        let task = tokio::spawn(accept(Arc::clone(&listener), subject, closing.clone()));
        Ok(Endpoint {
            address,
            listener,
            _task: AbortOnDropHandle::new(task),
            _closing: closing.drop_guard(),
        })
    }
}

impl Endpoint {
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns a descriptor of the socket, for another process.
    pub(crate) fn descriptor(&self) -> io::Result<OwnedFd> {
        self.listener.as_fd().try_clone_to_owned()
    }
}

async fn accept(listener: Arc<tokio::net::TcpListener>, subject: Arc<Subject>, closing: CancellationToken) {
    let places = Arc::new(Semaphore::new(MOST));
    loop {
        // The semaphore is never closed.
        let Ok(place) = Arc::clone(&places).acquire_owned().await else {
            return;
        };
        match listener.accept().await {
            Ok((stream, _)) => {
                let (subject, closing) = (Arc::clone(&subject), closing.clone());
                tokio::spawn(async move {
                    let _ = time::timeout(LONGEST, serve(stream, subject, closing)).await;
                    drop(place);
                });
            }
            Err(error) => {
                tracing::debug!(%error, "metrics: a connection could not be accepted");
                time::sleep(RETRY).await;
            }
        }
    }
}

async fn serve(stream: TcpStream, subject: Arc<Subject>, closing: CancellationToken) {
    // Clients that do not read must not keep the places of others for long.
    if let Err(error) = SockRef::from(&stream).set_tcp_user_timeout(Some(UNREAD)) {
        tracing::debug!(%error, "metrics: a connection has no limit for what is unread");
    }
    let service = service_fn(move |request: Request<Incoming>| {
        let subject = Arc::clone(&subject);
        async move { Ok::<_, Infallible>(answer(request.method(), request.uri().path(), subject).await) }
    });
    let mut connection = pin!(
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD)
            .serve_connection(TokioIo::new(stream), service)
    );
    let served = tokio::select! {
        served = connection.as_mut() => served,
        () = closing.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = served {
        tracing::debug!(%error, "metrics: a connection broke");
    }
}

async fn answer(method: &Method, path: &str, subject: Arc<Subject>) -> Response<Body> {
    if !matches!(*method, Method::GET | Method::HEAD) {
        return text(
            StatusCode::METHOD_NOT_ALLOWED,
            "only GET and HEAD are answered here\n",
        );
    }
    match path {
        "/metrics" => metrics(subject).await,
        "/health" => text(StatusCode::OK, "alive\n"),
        "/ready" => match subject.not_ready() {
            None => text(StatusCode::OK, "ready\n"),
            Some(why) => text(StatusCode::SERVICE_UNAVAILABLE, &format!("not ready: {why}\n")),
        },
        _ => text(StatusCode::NOT_FOUND, "there are /metrics, /health and /ready\n"),
    }
}

/// Collects the metrics on a blocking thread, apart from connections: it sorts thousands of times, and reads the
/// counters of each CPU.
async fn metrics(subject: Arc<Subject>) -> Response<Body> {
    match tokio::task::spawn_blocking(move || subject.metrics()).await {
        Ok(Ok(body)) => {
            let mut response = Response::new(Body::from(body));
            let openmetrics = "application/openmetrics-text; version=1.0.0; charset=utf-8";
            response
                .headers_mut()
                .insert(CONTENT_TYPE, axum::http::HeaderValue::from_static(openmetrics));
            response
        }
        _ => text(
            StatusCode::INTERNAL_SERVER_ERROR,
            "the metrics could not be read\n",
        ),
    }
}

fn text(status: StatusCode, body: &str) -> Response<Body> {
    let mut response = Response::new(Body::from(body.to_owned()));
    *response.status_mut() = status;
    response
}
