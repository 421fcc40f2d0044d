//! `/healthz`, `/readyz` and `/metrics`, in a thread of its own: whoever asks
//! hears of a loop that hangs.
//!
//! Only ever answers; nothing that comes in is read beyond its path.

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

use super::door::{Door, Patience};
use super::vitals::Vitals;

/// How many may ask at once: a few that scrape, a few that probe, and room.
const MOST: usize = 64;

/// How long one connection may last. An answer takes milliseconds; who keeps one open
/// between two scrapes opens another.
const PATIENCE: Patience =
    Patience { asking: Duration::from_secs(2), lasts: Duration::from_secs(20) };

/// What is asked about.
#[derive(Clone, Debug)]
struct Shown {
    vitals: Arc<Vitals>,
    within_s: f64,
}

/// Listens and answers until the program ends; the address it has.
pub fn serve(address: SocketAddr, vitals: Arc<Vitals>, within_s: f64) -> io::Result<SocketAddr> {
    let listener = std::net::TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    let bound = listener.local_addr()?;
    let shown = Shown { vitals, within_s };
    let app = Router::new()
        .route("/healthz", get(health))
        .route("/readyz", get(readiness))
        .route("/metrics", get(metrics))
        .with_state(shown);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    std::thread::Builder::new().name("http".to_owned()).spawn(move || {
        // It ends with an error only where the listener is gone.
        let _ = runtime.block_on(async {
            let listener = tokio::net::TcpListener::from_std(listener)?;
            axum::serve(Door::new(listener, MOST, PATIENCE), app).await
        });
    })?;
    Ok(bound)
}

async fn health(State(shown): State<Shown>) -> Response {
    told(shown.vitals.health(shown.within_s))
}

async fn readiness(State(shown): State<Shown>) -> Response {
    told(shown.vitals.readiness(shown.within_s))
}

fn told(result: Result<String, String>) -> Response {
    match result {
        Ok(text) => (StatusCode::OK, text).into_response(),
        Err(text) => (StatusCode::SERVICE_UNAVAILABLE, text).into_response(),
    }
}

async fn metrics(State(shown): State<Shown>) -> Response {
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(CONTENT_TYPE, kind)], shown.vitals.metrics()).into_response()
}
