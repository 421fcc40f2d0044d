//! Queries the dashboard of a Ray cluster.
//!
//! At most two requests, each with a limit on time and size. The answers are parsed by
//! `readers::claims::ray`.

use std::time::Duration;

use reqwest::{Client, StatusCode, Url};

use super::http::{ResponseBodyError, ServerAddress};
use super::{http, tls};
use model::source_report::{SourceKind, SourceProblemKind, SourceReport};
use readers::claims::ray;

/// Nodes with their host names.
const SUMMARY_PATH: &str = "nodes?view=summary";

/// The state API used by `ray list nodes`, which knows addresses only. A limit above
/// `RAY_MAX_LIMIT_FROM_API_SERVER`, 10,000 by default, is refused.
const STATE_PATH: &str = "api/v0/nodes?detail=1&limit=10000";

/// Longest answer: 6 kB for each of 10,000 nodes.
const MAX_ANSWER_BYTES: usize = 64 << 20;

/// The dashboard, and the limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RayClientConfig {
    /// `http://head:8265`.
    pub address: ServerAddress,
    /// Time limit of one request.
    pub limit: Duration,
}

/// Why a request has no answer.
struct RayFetchFailure {
    kind: SourceProblemKind,
    message: String,
    /// The server did not respond at all, so no second request is sent.
    is_silent: bool,
}

impl RayFetchFailure {
    fn from_answer(kind: SourceProblemKind, message: String) -> Self {
        Self { kind, message, is_silent: false }
    }

    fn no_answer(message: String) -> Self {
        Self { kind: SourceProblemKind::Unreachable, message, is_silent: true }
    }
}

/// Queries the nodes and their resources.
pub async fn fetch_claims(ray: &RayClientConfig) -> Vec<SourceReport> {
    tls::install_provider();
    let mut failed: Vec<(String, RayFetchFailure)> = Vec::new();
    // Proxies are for external servers; a dashboard is internal.
    let base = base_url(ray.address.as_str());
    let client = || {
        Client::builder()
            .timeout(ray.limit)
            .no_proxy()
            .redirect(reqwest::redirect::Policy::limited(3))
    };
    // It may redirect from http to https, and a machine may have no trusted authority.
    let scheme = base.as_ref().map_or("https", Url::scheme);
    let client = client().build().or_else(|_| tls::configure_for_scheme(client(), scheme).build());
    let client = client.map_err(|error| format!("{error}; {}", tls::MISSING_CA_HINT));
    let (client, base) = match (client, base) {
        (Ok(client), Ok(base)) => (client, base),
        (client, base) => {
            let why = base.err().or(client.err()).unwrap_or_default();
            let why = RayFetchFailure::from_answer(SourceProblemKind::Malformed, why);
            return vec![unanswered_report(&ray.address, vec![(ray.address.to_string(), why)])];
        }
    };
    let mut second_best: Option<SourceReport> = None;
    for question in [SUMMARY_PATH, STATE_PATH] {
        let Ok(url) = base.join(question) else { continue };
        let place = display_url(&url);
        match fetch_within(&client, url, ray.limit).await {
            Ok(text) => {
                let mut report = ray::read(&place, &text);
                if report.nodes.is_empty() && question == SUMMARY_PATH {
                    // Old dashboards report no resources there.
                    second_best = Some(report);
                    continue;
                }
                add_failures(&mut report, failed);
                return vec![report];
            }
            Err(why) => {
                let is_silent = why.is_silent;
                failed.push((place, why));
                if is_silent {
                    break;
                }
            }
        }
    }
    match second_best {
        Some(mut report) => {
            add_failures(&mut report, failed);
            vec![report]
        }
        None => vec![unanswered_report(&ray.address, failed)],
    }
}

fn add_failures(report: &mut SourceReport, failed: Vec<(String, RayFetchFailure)>) {
    for (place, why) in failed {
        report.push_problem(why.kind, place, why.message);
    }
}

fn unanswered_report(
    address: &ServerAddress,
    failed: Vec<(String, RayFetchFailure)>,
) -> SourceReport {
    let mut report = SourceReport::new(SourceKind::Ray, address.to_string());
    add_failures(&mut report, failed);
    report
}

/// The address as a URL that ends with a slash; HTTP by default.
fn base_url(address: &str) -> Result<Url, String> {
    let address = address.trim();
    let full =
        if address.contains("://") { address.to_owned() } else { format!("http://{address}") };
    let full = format!("{}/", full.trim_end_matches('/'));
    let expected = "expected an address such as http://head:8265";
    let url = Url::parse(&full).map_err(|error| format!("{error}, {expected}"))?;
    match url.scheme() {
        "http" | "https" if url.has_host() => Ok(url),
        other => Err(format!("{other}: {expected}")),
    }
}

/// A request's URL for messages: without the password of a dashboard behind an authenticating
/// proxy.
fn display_url(url: &Url) -> String {
    let mut place = http::strip_credentials(url.clone());
    place.set_query(url.query());
    place.into()
}

/// The body of one answer, or the reason why it is missing.
async fn fetch_within(
    client: &Client,
    url: Url,
    limit: Duration,
) -> Result<String, RayFetchFailure> {
    // The client's own limit restarts at some redirects; this one does not.
    match tokio::time::timeout(limit, fetch(client, url, limit)).await {
        Ok(answer) => answer,
        Err(_) => Err(timeout_failure(limit)),
    }
}

fn timeout_failure(limit: Duration) -> RayFetchFailure {
    RayFetchFailure::no_answer(format!("no answer within {} s", limit.as_secs_f64()))
}

async fn fetch(client: &Client, url: Url, limit: Duration) -> Result<String, RayFetchFailure> {
    let unreachable = |error: &reqwest::Error| {
        if error.is_timeout() {
            timeout_failure(limit)
        } else {
            RayFetchFailure::no_answer(root_cause(error))
        }
    };
    let response = client.get(url).send().await.map_err(|e| unreachable(&e))?;
    let status = response.status();
    if !status.is_success() {
        let kind = match status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => SourceProblemKind::Denied,
            StatusCode::NOT_FOUND => SourceProblemKind::Missing,
            _ => SourceProblemKind::Unreachable,
        };
        return Err(RayFetchFailure::from_answer(
            kind,
            format!("status {status}, expected the nodes of a Ray cluster"),
        ));
    }
    match http::read_body(response, MAX_ANSWER_BYTES).await {
        Ok(body) => Ok(String::from_utf8_lossy(&body).into_owned()),
        Err(ResponseBodyError::ConnectionLost(error)) => Err(unreachable(&error)),
        Err(ResponseBodyError::TooLong) => {
            let message = format!("more than {MAX_ANSWER_BYTES} bytes, expected fewer");
            Err(RayFetchFailure::from_answer(SourceProblemKind::Unsupported, message))
        }
    }
}

/// The cause of an error: the outermost message only states that a request failed.
fn root_cause(error: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(next) = cause.source() {
        cause = next;
    }
    cause.to_string()
}

#[cfg(test)]
mod tests {
    use wiremock::matchers::{header, path};
    use wiremock::{Mock, MockServer, ResponseTemplate};

    use super::*;

    /// Long enough for an answer on a busy machine.
    const PATIENT: Duration = Duration::from_secs(60);

    const NODES: &str = r#"{"result": true, "msg": "", "data": {"result": {"total": 1, "result": [
        {"node_id": "i", "node_ip": "10.0.0.1", "node_name": "10.0.0.1", "state": "ALIVE",
         "resources_total": {"GPU": 4.0, "topo_rank": 3.0}}]}}}"#;

    const HOSTS: &str = r#"{"result": true, "msg": "", "data": {"summary": [
        {"hostname": "n1", "ip": "10.0.0.1", "raylet": {"nodeId": "i", "state": "ALIVE",
         "resourcesTotal": {"GPU": 4.0, "topo_rank": 3.0}}}]}}"#;

    /// Runs a query against a dashboard with these answers.
    fn fetch_from(
        limit: Duration,
        summary: ResponseTemplate,
        state: ResponseTemplate,
    ) -> SourceReport {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let server = MockServer::start().await;
            Mock::given(path("/nodes")).respond_with(summary).mount(&server).await;
            Mock::given(path("/api/v0/nodes")).respond_with(state).mount(&server).await;
            let mut all =
                fetch_claims(&RayClientConfig { address: server.uri().into(), limit }).await;
            assert_eq!(all.len(), 1);
            all.remove(0)
        })
    }

    fn text(body: &str) -> ResponseTemplate {
        ResponseTemplate::new(200).set_body_string(body)
    }

    fn status(code: u16) -> ResponseTemplate {
        ResponseTemplate::new(code)
    }

    fn names(report: &SourceReport) -> Vec<&str> {
        report.nodes.keys().map(model::id::NodeName::as_str).collect()
    }

    fn kinds(report: &SourceReport) -> Vec<SourceProblemKind> {
        report.problems.iter().map(|problem| problem.kind).collect()
    }

    #[test]
    fn host_names_are_preferred_to_addresses() {
        let report = fetch_from(PATIENT, text(HOSTS), text(NODES));
        assert!(report.problems.is_empty(), "{report:?}");
        assert_eq!(names(&report), ["n1"]);
        assert!(report.source.place.ends_with("/nodes?view=summary"), "{report:?}");
    }

    #[test]
    fn a_dashboard_without_one_answer_is_queried_for_the_other() {
        let report = fetch_from(PATIENT, status(404), text(NODES));
        assert_eq!(
            (names(&report), kinds(&report)),
            (vec!["10.0.0.1"], vec![SourceProblemKind::Missing])
        );
        let empty = r#"{"result": true, "data": {"summary": []}}"#;
        let report = fetch_from(PATIENT, text(empty), text(NODES));
        assert_eq!((names(&report), kinds(&report)), (vec!["10.0.0.1"], vec![]));
    }

    #[test]
    fn refusals_and_failures_are_distinguished() {
        let of = |code| kinds(&fetch_from(PATIENT, status(code), status(code)));
        assert_eq!(of(404), [SourceProblemKind::Missing; 2]);
        assert_eq!(of(401), [SourceProblemKind::Denied; 2]);
        assert_eq!(of(403), [SourceProblemKind::Denied; 2]);
        assert_eq!(of(500), [SourceProblemKind::Unreachable; 2]);
        let report = fetch_from(PATIENT, status(500), status(500));
        assert!(report.problems[0].message.starts_with("status 500"), "{report:?}");
    }

    #[test]
    fn garbage_is_a_problem_at_its_place() {
        let report = fetch_from(PATIENT, text("<html>"), text("\u{0}\u{1}"));
        assert_eq!(kinds(&report), [SourceProblemKind::Malformed], "{report:?}");
        let bytes = ResponseTemplate::new(200).set_body_bytes(vec![0xff; 4096]);
        assert_eq!(
            kinds(&fetch_from(PATIENT, bytes.clone(), bytes)),
            [SourceProblemKind::Malformed]
        );
    }

    #[test]
    fn an_endless_answer_is_cut_off() {
        let large = ResponseTemplate::new(200).set_body_bytes(vec![b' '; MAX_ANSWER_BYTES + 1]);
        let report = fetch_from(PATIENT, large, status(404));
        assert_eq!(kinds(&report), [SourceProblemKind::Unsupported, SourceProblemKind::Missing]);
    }

    #[test]
    fn a_missing_answer_is_not_waited_for() {
        let slow = text(HOSTS).set_delay(Duration::from_secs(3600));
        let report = fetch_from(Duration::from_millis(200), slow, text(NODES));
        assert_eq!(kinds(&report), [SourceProblemKind::Unreachable]);
        assert_eq!(report.problems[0].message, "no answer within 0.2 s");
    }

    #[test]
    fn a_password_in_the_address_is_sent_and_never_displayed() {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let (ray, report) = runtime.block_on(async {
            let server = MockServer::start().await;
            // me:secret, as RFC 7617 writes it.
            Mock::given(path("/nodes"))
                .and(header("authorization", "Basic bWU6c2VjcmV0"))
                .respond_with(text(HOSTS))
                .mount(&server)
                .await;
            let address = server.uri().replace("http://", "http://me:secret@");
            let ray = RayClientConfig { address: address.into(), limit: PATIENT };
            let report = fetch_claims(&ray).await.remove(0);
            (ray, report)
        });
        assert_eq!(names(&report), ["n1"]);
        assert!(report.source.place.ends_with("/nodes?view=summary"), "{report:?}");
        let refused = RayClientConfig { address: "ftp://me:secret@head".into(), ..ray.clone() };
        let shown = format!(
            "{ray:?} {report:?} {refused:?} {:?}",
            runtime.block_on(fetch_claims(&refused))
        );
        assert!(!shown.contains("secret"), "{shown}");
    }

    #[test]
    fn a_missing_server_and_an_invalid_address_are_problems() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.expect("a runtime");
        let of = |address: &str| {
            let ray = RayClientConfig { address: address.into(), limit: PATIENT };
            runtime.block_on(fetch_claims(&ray)).remove(0)
        };
        // Bound and closed again: no server listens there.
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address").to_string();
        drop(listener);
        let report = of(&address);
        assert_eq!(kinds(&report), [SourceProblemKind::Unreachable], "{report:?}");
        for address in ["", "http://", "ftp://head", "a b"] {
            assert_eq!(kinds(&of(address)), [SourceProblemKind::Malformed], "{address}");
        }
    }
}
