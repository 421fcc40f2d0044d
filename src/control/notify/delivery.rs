//! Sends one message to one receiver, with retries if they may help, within a time limit.
//!
//! Redirects are not followed, because the token would go with them; parts of the address that
//! an answer or an error repeats are hidden.

use std::time::Duration;

use reqwest::header::{HeaderMap, LOCATION, RETRY_AFTER};
use reqwest::redirect::Policy;
use reqwest::{Client, StatusCode};
use serde_json::Value;
use tokio::time::Instant;

use super::secret::{redact, url_origin};
use super::{NotifyTarget, NotifyTargetKind};
use crate::sources::tls;
use model::text::clean;

/// The first wait between two attempts, and the longest.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));

/// Bytes of an answer that are read.
const MAX_ANSWER_BYTES: usize = 2_048;

/// Characters of an answer that appear in messages.
const MAX_ANSWER_SHOWN: usize = 200;

/// A message that arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// The HTTP status of the answer.
    pub status: u16,
    /// The number of attempts.
    pub attempts: u32,
    /// The receiver's origin, without secrets.
    pub origin: String,
    /// The beginning of the answer.
    pub answer: String,
}

/// The reason why a message did not arrive.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeliveryError {
    /// The address or the token cannot be read.
    #[error("{0}")]
    Unread(String),
    /// The receiver refuses it, and a retry would not help.
    #[error("{place} answers {status}{message}")]
    Refused {
        /// The receiver's origin.
        place: String,
        /// Its HTTP status.
        status: String,
        /// Its message, and the suggested remedy.
        message: String,
    },
    /// All attempts failed, or the time is over.
    #[error("{place}: {why}; given up after {attempts} attempts")]
    GivenUp {
        /// The receiver's origin.
        place: String,
        /// How the last attempt ended.
        why: String,
        /// The number of attempts.
        attempts: u32,
    },
}

enum AttemptResult {
    Done { status: u16, answer: String },
    Never { status: String, answer: String },
    Again { why: String, after: Option<Duration> },
}

/// Sends a message; all attempts and waits end before the deadline.
pub async fn send_message(
    target: &NotifyTarget,
    payload: &Value,
    deadline: Instant,
    seed: u64,
) -> Result<Delivery, DeliveryError> {
    let address = target.address.read().map_err(DeliveryError::Unread)?;
    let bearer = target.bearer.as_ref().map(|it| it.read()).transpose();
    let bearer = bearer.map_err(DeliveryError::Unread)?;
    let mut url =
        address.parse_url().map_err(|why| DeliveryError::Unread(format!("its address: {why}")))?;
    let place = url_origin(&url);
    if target.kind == NotifyTargetKind::Alertmanager && !url.path().contains("/api/") {
        let path = format!("{}/api/v2/alerts", url.path().trim_end_matches('/'));
        url.set_path(&path);
    }
    let mut pieces = address.hidden_pieces();
    pieces.extend(bearer.iter().flat_map(|it| it.hidden_pieces()));
    let client = build_client(target).map_err(DeliveryError::Unread)?;
    let mut attempts = 0;
    let mut last = "no time was left for an attempt".to_owned();
    while attempts < target.attempts.max(1) && Instant::now() < deadline {
        attempts += 1;
        let mut request = client.post(url.clone()).json(payload);
        if let Some(bearer) = &bearer {
            request = request.bearer_auth(bearer.as_str());
        }
        let patience = target.timeout.min(deadline.saturating_duration_since(Instant::now()));
        let tried = tokio::time::timeout(patience, send_once(request)).await;
        let tried = tried.unwrap_or_else(|_| AttemptResult::Again {
            why: format!("no answer within {:.1} s", patience.as_secs_f64()),
            after: None,
        });
        let after = match tried {
            AttemptResult::Done { status, answer } => {
                return Ok(Delivery {
                    status,
                    attempts,
                    origin: place,
                    answer: shorten_answer(&answer, &pieces),
                });
            }
            AttemptResult::Never { status, answer } => {
                return Err(DeliveryError::Refused {
                    place,
                    status,
                    message: shorten_answer(&answer, &pieces),
                });
            }
            AttemptResult::Again { why, after } => {
                last = shorten_answer(&why, &pieces);
                after
            }
        };
        let wait = after.unwrap_or_else(|| backoff_delay(attempts, seed ^ hash(&target.name)));
        if deadline <= Instant::now() + wait {
            if let Some(after) = after {
                last.push_str(&format!(
                    "; it asks to wait {} s, longer than the time left",
                    after.as_secs()
                ));
            }
            break;
        }
        if attempts < target.attempts {
            tokio::time::sleep(wait).await;
        }
    }
    Err(DeliveryError::GivenUp { place, why: last, attempts })
}

fn build_client(target: &NotifyTarget) -> Result<Client, String> {
    tls::install_provider();
    let mut builder = Client::builder()
        .redirect(Policy::none())
        .connect_timeout(target.timeout)
        .user_agent(concat!("fabricgate/", env!("CARGO_PKG_VERSION")));
    if let Some(file) = &target.ca_file {
        let shown = file.display();
        let pem = std::fs::read(file).map_err(|error| format!("{shown}: {error}"))?;
        let certificates = reqwest::Certificate::from_pem_bundle(&pem)
            .ok()
            .filter(|it| !it.is_empty())
            .ok_or_else(|| format!("{shown}: expected certificates in PEM"))?;
        builder = builder.tls_certs_merge(certificates);
    }
    builder.build().map_err(|error| {
        format!("no HTTP client: {}; {}", error_chain(error), tls::MISSING_CA_HINT)
    })
}

async fn send_once(request: reqwest::RequestBuilder) -> AttemptResult {
    let mut response = match request.send().await {
        Ok(response) => response,
        Err(error) => return AttemptResult::Again { why: error_chain(error), after: None },
    };
    let status = response.status();
    let headers = response.headers().clone();
    let mut body = Vec::new();
    while let Ok(Some(piece)) = response.chunk().await {
        body.extend_from_slice(&piece);
        if MAX_ANSWER_BYTES <= body.len() {
            body.truncate(MAX_ANSWER_BYTES);
            break;
        }
    }
    let answer = String::from_utf8_lossy(&body).trim().to_owned();
    let quoted = if answer.is_empty() { String::new() } else { format!(": {answer}") };
    if status.is_success() {
        return AttemptResult::Done { status: status.as_u16(), answer };
    }
    let shown = status.to_string();
    if status == StatusCode::TOO_MANY_REQUESTS || status.is_server_error() {
        return AttemptResult::Again {
            why: format!("it answers {shown}{quoted}"),
            after: retry_after(&headers),
        };
    }
    let answer = match status.is_redirection() {
        true => redirect_host(&headers),
        false => quoted,
    };
    AttemptResult::Never { status: shown, answer }
}

/// The target of a redirect, by its host: the rest may contain credentials.
fn redirect_host(headers: &HeaderMap) -> String {
    let to = headers.get(LOCATION).and_then(|it| it.to_str().ok());
    let to = to.and_then(|it| reqwest::Url::parse(it).ok());
    let to = to.map(|it| format!(" to {}", url_origin(&it))).unwrap_or_default();
    format!(", a redirection{to}, which is not followed: correct the address")
}

/// How long a receiver asks to wait: seconds, or a time by its own clock.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let wait = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    if let Ok(seconds) = wait.parse::<u32>() {
        return Some(Duration::from_secs(u64::from(seconds)));
    }
    let moment =
        |text: &str| jiff::fmt::rfc2822::parse(text).ok().map(|it| it.timestamp().as_second());
    let now = headers.get(reqwest::header::DATE).and_then(|it| moment(it.to_str().ok()?))?;
    Some(Duration::from_secs(u64::try_from(moment(wait)? - now).unwrap_or(0)))
}

/// The wait after this many attempts: doubled each time, with a random factor between one half
/// and one, so that many gates do not retry together.
fn backoff_delay(attempts: u32, seed: u64) -> Duration {
    let full = BACKOFF.0.saturating_mul(1 << attempts.saturating_sub(1).min(16)).min(BACKOFF.1);
    let mixed = seed.wrapping_add(u64::from(attempts)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let share = u32::try_from(mixed >> 48).unwrap_or(0);
    full.mul_f64(0.5 + f64::from(share) / f64::from(u16::MAX) / 2.0)
}

fn hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// An error with its causes, without the address.
fn error_chain(error: reqwest::Error) -> String {
    let error = error.without_url();
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(&error);
    while let Some(it) = cause {
        text.push_str(": ");
        text.push_str(&it.to_string());
        cause = it.source();
    }
    let lower = text.to_lowercase();
    if lower.contains("certificate") || lower.contains("unknownissuer") {
        text.push_str(
            "; if its certificate is signed by the site's own authority, name that with ca_file",
        );
    }
    text
}

fn shorten_answer(text: &str, pieces: &[String]) -> String {
    let text = clean(&redact(text, pieces));
    let mut shown: String = text.chars().take(MAX_ANSWER_SHOWN).collect();
    if shown.len() < text.len() {
        shown.push_str("...");
    }
    shown
}

#[cfg(test)]
#[path = "delivery_tests.rs"]
mod tests;
