//! Serves `/healthz`, `/readyz` and `/metrics` from a separate thread, so that a hanging
//! loop is visible.
//!
//! Read-only; of a request only the path is used.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::get;

use super::connection_limit::{ConnectionLimiter, ConnectionTimeouts};
use super::self_metrics::WatchMetrics;

/// Concurrent connections: a few scrapers, a few probes, and a reserve.
const MAX_CONNECTIONS: usize = 64;

/// Answers take milliseconds; a client that keeps a connection between scrapes has to
/// reconnect.
const TIMEOUTS: ConnectionTimeouts =
    ConnectionTimeouts { request_head: Duration::from_secs(2), total: Duration::from_secs(20) };

#[derive(Clone, Debug)]
struct WatchHttpState {
    vitals: Arc<WatchMetrics>,
    within_s: f64,
}

/// Listens and answers until the program ends. Returns the bound address.
pub fn serve(
    address: SocketAddr,
    vitals: Arc<WatchMetrics>,
    within_s: f64,
) -> io::Result<SocketAddr> {
    let listener = std::net::TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    let bound = listener.local_addr()?;
    let shown = WatchHttpState { vitals, within_s };
    let app = Router::new()
        .route("/healthz", get(get_health))
        .route("/readyz", get(get_readiness))
        .route("/metrics", get(get_metrics))
        .with_state(shown);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    std::thread::Builder::new().name("http".to_owned()).spawn(move || {
        // Returns an error only if the listener is gone.
        let _ = runtime.block_on(async {
            let listener = tokio::net::TcpListener::from_std(listener)?;
            axum::serve(ConnectionLimiter::new(listener, MAX_CONNECTIONS, TIMEOUTS), app).await
        });
    })?;
    Ok(bound)
}

async fn get_health(State(shown): State<WatchHttpState>) -> Response {
    to_response(shown.vitals.check_health(shown.within_s))
}

async fn get_readiness(State(shown): State<WatchHttpState>) -> Response {
    to_response(shown.vitals.check_readiness(shown.within_s))
}

fn to_response(result: Result<String, String>) -> Response {
    match result {
        Ok(text) => (StatusCode::OK, text).into_response(),
        Err(text) => (StatusCode::SERVICE_UNAVAILABLE, text).into_response(),
    }
}

async fn get_metrics(State(shown): State<WatchHttpState>) -> Response {
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(CONTENT_TYPE, kind)], shown.vitals.encode_metrics()).into_response()
}
