//! Queries Slurm's controller through slurmrestd.
//!
//! Negotiates the version of the interface, sends queries with limits on time and size, and
//! recognises failures: slurmrestd answers 200 to a ping of a dead controller, and 200 to some
//! queries that failed. It has no query for the topology. `readers::claims::slurm`
//! interprets the answers. No message contains the token.

mod envelope;

use std::error::Error;
use std::fmt;
use std::time::Duration;

use reqwest::header::{HeaderMap, HeaderValue};
use reqwest::{Client, StatusCode, Url};

use self::envelope::{SlurmrestdEnvelope, SlurmrestdFault, SlurmrestdPing, newest_version};
use super::http::{ResponseBodyError, ServerAddress};
use super::slurm::classify_complaint;
use super::{http, tls};
use model::source_report::{SourceKind, SourceProblemKind, SourceReport};
use model::text::clean;
use readers::claims::slurm;

/// Known versions of the interface, newest first. Slurm 24.11 supports v0.0.40 to 42, 25.05 to
/// 43, 25.11 41 to 44, 26.05 42 to 45.
const VERSIONS: [u32; 6] = [45, 44, 43, 42, 41, 40];

/// Most bytes of an answer: 5,000 nodes of Slurm 26.05 are 13 MB.
pub(crate) const MAX_ANSWER_BYTES: usize = 256 * 1024 * 1024;

/// slurmrestd's address, and the credentials.
#[derive(Clone, PartialEq, Eq)]
pub struct SlurmrestdClientConfig {
    /// `http://host:6820`, `https://host:6820`, or `unix:/run/slurmrestd.sock`.
    pub address: ServerAddress,
    /// The JSON web token, if one is needed.
    pub token: Option<String>,
    /// The token's user, if the token does not contain it.
    pub user: Option<String>,
    /// Time limit of one request.
    pub limit: Duration,
}

impl fmt::Debug for SlurmrestdClientConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slurmrestd")
            .field("address", &self.address)
            .field("token", &self.token.as_ref().map(|_| "(hidden)"))
            .field("user", &self.user)
            .field("limit", &self.limit)
            .finish()
    }
}

/// Queries nodes and partitions, after a ping, within three times the limit. One report per
/// source; if the controller is unreachable, one report with that problem.
pub async fn fetch_claims(rest: &SlurmrestdClientConfig) -> Vec<SourceReport> {
    fetch_with_limit(rest, MAX_ANSWER_BYTES).await
}

async fn fetch_with_limit(rest: &SlurmrestdClientConfig, most: usize) -> Vec<SourceReport> {
    let line = match SlurmrestdClient::new(rest, most) {
        Ok(line) => line,
        // The address is left out: it may hold a password.
        Err(trouble) => return vec![unanswered_report("slurmrestd", trouble)],
    };
    let version = match line.agree_on_version().await {
        Ok(version) => version,
        Err(trouble) => return vec![unanswered_report(&line.place, trouble)],
    };
    let (nodes, partitions) = tokio::join!(
        line.query(format!("slurm/{version}/nodes/")),
        line.query(format!("slurm/{version}/partitions/")),
    );
    let mut nodes = nodes.into_report(SourceKind::SlurmNodes, slurm::nodes::read);
    nodes.notes.push(
        "slurmrestd does not report the topology: blocks and switches come from scontrol \
         or the topology file"
            .to_owned(),
    );
    let partitions = partitions.into_report(SourceKind::SlurmPartitions, slurm::partitions::read);
    vec![nodes, partitions]
}

fn unanswered_report(place: &str, trouble: SlurmrestdProblem) -> SourceReport {
    let mut report = SourceReport::new(SourceKind::SlurmNodes, place);
    report.push_problem(trouble.kind, None, trouble.message);
    report
}

/// Why an answer is missing or incomplete.
#[derive(Clone, Debug)]
pub(crate) struct SlurmrestdProblem {
    pub(crate) kind: SourceProblemKind,
    pub(crate) message: String,
}

fn new_problem(kind: SourceProblemKind, message: impl Into<String>) -> SlurmrestdProblem {
    SlurmrestdProblem { kind, message: message.into() }
}

fn problem_from_fault(fault: &SlurmrestdFault) -> SlurmrestdProblem {
    new_problem(fault.problem_kind().unwrap_or(SourceProblemKind::Incomplete), fault.describe())
}

fn timeout_problem(waited: Duration) -> SlurmrestdProblem {
    let message = format!(
        "no answer within {waited:.0?}; check that slurmctld runs and answers `scontrol ping` \
         there"
    );
    new_problem(SourceProblemKind::Unreachable, message)
}

/// The result of one query.
pub(crate) struct SlurmrestdAnswer {
    pub(crate) place: String,
    pub(crate) text: Result<String, SlurmrestdProblem>,
    /// Problems despite an answer.
    pub(crate) problems: Vec<SlurmrestdProblem>,
}

impl SlurmrestdAnswer {
    fn into_report(self, kind: SourceKind, read: fn(&str, &str) -> SourceReport) -> SourceReport {
        let (mut report, mut troubles) = match self.text {
            Ok(text) => (read(&self.place, &text), self.problems),
            Err(trouble) => (SourceReport::new(kind, self.place), vec![trouble]),
        };
        // The parser may have found the same messages in the text.
        troubles
            .retain(|it| report.problems.iter().all(|known| !known.message.contains(&it.message)));
        for it in troubles {
            report.push_problem(it.kind, None, it.message);
        }
        report
    }
}

pub(crate) struct SlurmrestdClient {
    client: Client,
    base: Url,
    /// The address without credentials.
    place: String,
    is_socket: bool,
    has_token: bool,
    limit: Duration,
    max_answer_bytes: usize,
}

impl SlurmrestdClient {
    pub(crate) fn new(
        rest: &SlurmrestdClientConfig,
        most: usize,
    ) -> Result<Self, SlurmrestdProblem> {
        let expected = "expected http://host:6820, https://host:6820 or unix:/path/of/the/socket";
        let bad = |why: &str| {
            new_problem(
                SourceProblemKind::Malformed,
                format!("the address of slurmrestd: {why}, {expected}"),
            )
        };
        tls::install_provider();
        let headers = auth_headers(rest)?;
        let has_token = headers.contains_key("X-SLURM-USER-TOKEN");
        // A token must not follow a redirect to another server, nor pass through a proxy meant
        // for the web.
        let mut builder = Client::builder()
            .default_headers(headers)
            .timeout(rest.limit)
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy();
        let socket = rest.address.as_str().strip_prefix("unix:");
        let (mut base, place) = match socket {
            Some(path) => {
                let path = path.strip_prefix("//").unwrap_or(path);
                if !path.starts_with('/') {
                    return Err(bad("the path of the socket does not begin with /"));
                }
                builder = builder.unix_socket(path);
                (Url::parse("http://slurmrestd/"), format!("unix:{path}"))
            }
            // slurmrestd does not use credentials in an address.
            None => (Url::parse(rest.address.as_str()).map(http::strip_credentials), String::new()),
        };
        if let Ok(base) = &mut base
            && !base.path().ends_with('/')
        {
            let path = format!("{}/", base.path());
            base.set_path(&path);
        }
        let base = base.map_err(|error| bad(&error.to_string()))?;
        if !matches!(base.scheme(), "http" | "https") || base.host_str().is_none() {
            return Err(bad("it names no host that speaks HTTP"));
        }
        let client =
            tls::configure_for_scheme(builder, base.scheme()).build().map_err(|error| {
                let why =
                    format!("no HTTP client: {}; {}", error_chain(&error), tls::MISSING_CA_HINT);
                new_problem(SourceProblemKind::Unreachable, why)
            })?;
        let place = match socket {
            Some(_) => place,
            None => base.as_str().trim_end_matches('/').to_owned(),
        };
        let is_socket = socket.is_some();
        Ok(Self {
            client,
            base,
            place,
            is_socket,
            has_token,
            limit: rest.limit,
            max_answer_bytes: most,
        })
    }

    /// The interface version that both sides know, from a ping that the controller answered,
    /// within twice the limit: versions are tried one after another, and a slow server is slow
    /// for each.
    pub(crate) async fn agree_on_version(&self) -> Result<String, SlurmrestdProblem> {
        let patience = self.limit * 2;
        let negotiated = tokio::time::timeout(patience, self.negotiate()).await;
        negotiated.unwrap_or_else(|_| Err(timeout_problem(patience)))
    }

    async fn negotiate(&self) -> Result<String, SlurmrestdProblem> {
        for version in VERSIONS {
            let version = format!("v0.0.{version}");
            if let Some(text) = self.ping(&version).await? {
                return self.check_controller(&text, &version).await.map(|()| version);
            }
        }
        // Newer (or much older) than all known versions. The document that lists the versions
        // is a megabyte, so it is requested only now.
        let unknown = || {
            let (first, last) = (VERSIONS[VERSIONS.len() - 1], VERSIONS[0]);
            new_problem(
                SourceProblemKind::Unsupported,
                format!(
                    "it supports none of v0.0.{first} to v0.0.{last}: is this slurmrestd, started \
                     with its slurmctld part (-s openapi/slurmctld)?"
                ),
            )
        };
        let document = self.get("openapi/v3").await?;
        if document.status != StatusCode::OK {
            return Err(unknown());
        }
        let version = newest_version(&document.text()).ok_or_else(unknown)?;
        match self.ping(&version).await? {
            Some(text) => self.check_controller(&text, &version).await.map(|()| version),
            None => Err(unknown()),
        }
    }

    /// The answer to a ping, or `None` if this version is not supported.
    async fn ping(&self, version: &str) -> Result<Option<String>, SlurmrestdProblem> {
        let reply = self.get(&format!("slurm/{version}/ping/")).await?;
        match reply.status {
            StatusCode::OK => self.json_object_text(&reply).map(Some),
            StatusCode::NOT_FOUND => Ok(None),
            _ => Err(self.refusal_problem(&reply)),
        }
    }

    /// Whether a controller answered: slurmrestd always answers a ping with 200, and a token
    /// that slurmctld rejects looks like an unreachable slurmctld.
    async fn check_controller(&self, text: &str, version: &str) -> Result<(), SlurmrestdProblem> {
        let envelope: SlurmrestdEnvelope = serde_json::from_str(text).map_err(|error| {
            new_problem(SourceProblemKind::Malformed, format!("the answer to a ping: {error}"))
        })?;
        let Some(pings) = envelope.pings else {
            let why = envelope.errors.first().map_or_else(String::new, SlurmrestdFault::describe);
            let message = format!("it answers a ping without naming the responding host {why}");
            return Err(new_problem(SourceProblemKind::Unreachable, message.trim_end()));
        };
        if pings.iter().any(SlurmrestdPing::is_up) {
            return Ok(());
        }
        let hosts: Vec<String> =
            pings.iter().filter_map(|ping| ping.hostname.as_deref()).map(clean).collect();
        let hosts = if hosts.is_empty() { "any host".to_owned() } else { hosts.join(", ") };
        let status = pings.iter().find_map(|ping| ping.status.as_deref()).map(clean);
        if let Some(status) = &status
            && classify_complaint(status) == SourceProblemKind::Denied
        {
            let remedy = self.remedy(SourceProblemKind::Denied);
            let message = format!("slurmctld at {hosts} reports: {status}{remedy}");
            return Err(new_problem(SourceProblemKind::Denied, message));
        }
        // Up to v0.0.44 a ping gives no reason.
        if status.is_none() && self.has_token {
            let nodes = self.query(format!("slurm/{version}/nodes/")).await;
            if let Err(denied) = nodes.text
                && denied.kind == SourceProblemKind::Denied
            {
                return Err(denied);
            }
        }
        let why = status.map_or_else(String::new, |status| format!(" ({status})"));
        let message = format!(
            "slurmrestd answers, slurmctld at {hosts} does not{why}{}",
            self.remedy(SourceProblemKind::Unreachable)
        );
        Err(new_problem(SourceProblemKind::Unreachable, message))
    }

    pub(crate) async fn query(&self, path: String) -> SlurmrestdAnswer {
        let place = format!("{}/{path}", self.place);
        let reply = match self.get(&path).await {
            Ok(reply) => reply,
            Err(trouble) => {
                return SlurmrestdAnswer { place, text: Err(trouble), problems: Vec::new() };
            }
        };
        if reply.status != StatusCode::OK {
            return SlurmrestdAnswer {
                place,
                text: Err(self.refusal_problem(&reply)),
                problems: Vec::new(),
            };
        }
        let text = self.json_object_text(&reply);
        // 200 does not mean success.
        let troubles = reply.faults().iter().map(problem_from_fault).collect();
        SlurmrestdAnswer { place, text, problems: troubles }
    }

    /// Sends a change. 200 does not mean that it was made, nor that all of it was understood.
    pub(crate) async fn send_update(
        &self,
        path: &str,
        body: &serde_json::Value,
    ) -> Result<(), SlurmrestdProblem> {
        let reply = self.send_request(self.client.post(self.build_url(path)?).json(body)).await?;
        if reply.status != StatusCode::OK {
            // Error numbers from 2000 come from the controller itself: it answered with 500
            // (24.11) or 422 (26.05), and may have made a part of the change.
            return Err(match reply.faults().first() {
                Some(fault) if fault.problem_kind().is_none() && 2000 <= fault.error_number => {
                    let message = format!("HTTP {}: {}", reply.status.as_u16(), fault.describe());
                    new_problem(SourceProblemKind::Incomplete, message)
                }
                _ => self.refusal_problem(&reply),
            });
        }
        let envelope: SlurmrestdEnvelope =
            serde_json::from_slice(&reply.body).map_err(|error| {
                new_problem(
                    SourceProblemKind::Malformed,
                    format!("the answer to a change: {error}"),
                )
            })?;
        if let Some(fault) = envelope.errors.first() {
            return Err(problem_from_fault(fault));
        }
        // The messages of data_parser, equal in 24.11 and 26.05.
        let ignored = envelope
            .warnings
            .iter()
            .map(SlurmrestdFault::describe)
            .find(|it| it.contains("gnoring"));
        match ignored {
            Some(words) => Err(new_problem(SourceProblemKind::Unsupported, words)),
            None => Ok(()),
        }
    }

    fn build_url(&self, path: &str) -> Result<Url, SlurmrestdProblem> {
        self.base.join(path).map_err(|error| {
            new_problem(SourceProblemKind::Malformed, format!("the address of slurmrestd: {error}"))
        })
    }

    async fn get(&self, path: &str) -> Result<SlurmrestdReply, SlurmrestdProblem> {
        self.send_request(self.client.get(self.build_url(path)?)).await
    }

    async fn send_request(
        &self,
        request: reqwest::RequestBuilder,
    ) -> Result<SlurmrestdReply, SlurmrestdProblem> {
        let failed = |error: reqwest::Error| self.request_problem(&error);
        let response = request.send().await.map_err(failed)?;
        let status = response.status();
        match http::read_body(response, self.max_answer_bytes).await {
            Ok(body) => Ok(SlurmrestdReply { status, body }),
            Err(ResponseBodyError::ConnectionLost(error)) => Err(failed(error)),
            Err(ResponseBodyError::TooLong) => {
                let most = format!(
                    "the answer is longer than the limit of {} bytes",
                    self.max_answer_bytes
                );
                Err(new_problem(SourceProblemKind::Incomplete, most))
            }
        }
    }

    fn request_problem(&self, error: &reqwest::Error) -> SlurmrestdProblem {
        if error.is_timeout() {
            return timeout_problem(self.limit);
        }
        let why = error_chain(error);
        if error.is_connect() {
            let remedy = if why.to_lowercase().contains("certificate") {
                "; SSL_CERT_FILE can name the site's own authority"
            } else {
                "; check that slurmrestd runs and listens there"
            };
            return new_problem(SourceProblemKind::Unreachable, format!("{why}{remedy}"));
        }
        new_problem(SourceProblemKind::Incomplete, format!("the answer broke off: {why}"))
    }

    /// The text of an answer that should be a JSON object.
    fn json_object_text(&self, reply: &SlurmrestdReply) -> Result<String, SlurmrestdProblem> {
        let text = reply.text();
        if serde_json::from_str::<SlurmrestdEnvelope>(&text).is_ok() {
            return Ok(text);
        }
        if text.trim_start().starts_with('{') {
            // A truncated answer may still be useful; the parser reports what is missing.
            return Ok(text);
        }
        let begins = clean(&text.chars().take(80).collect::<String>());
        let message = format!(
            "{} bytes that are not JSON and begin with {begins:?}; is this slurmrestd?",
            reply.body.len()
        );
        Err(new_problem(SourceProblemKind::Malformed, message))
    }

    /// The meaning of a status other than 200.
    fn refusal_problem(&self, reply: &SlurmrestdReply) -> SlurmrestdProblem {
        let status = reply.status;
        let faults = reply.faults();
        let mut message = format!("HTTP {}", status.as_u16());
        if let Some(fault) = faults.first() {
            message = format!("{message}: {}", fault.describe());
        } else if !reply.body.is_empty() {
            let begins: String = reply.text().chars().take(120).collect();
            message = format!("{message}: {}", clean(&begins));
        }
        let kind = faults.first().and_then(SlurmrestdFault::problem_kind).unwrap_or(
            match status.as_u16() {
                401 | 403 | 511 => SourceProblemKind::Denied,
                500.. => SourceProblemKind::Unreachable,
                _ => SourceProblemKind::Unsupported,
            },
        );
        let remedy = if status.is_redirection() {
            "; redirections are not followed"
        } else {
            self.remedy(kind)
        };
        new_problem(kind, format!("{message}{remedy}"))
    }

    fn remedy(&self, kind: SourceProblemKind) -> &'static str {
        match (kind, self.has_token) {
            (SourceProblemKind::Denied, true) => {
                "; the token may have expired, `scontrol token` makes a new one"
            }
            (SourceProblemKind::Denied, false) if self.is_socket => {
                "; give a token (`scontrol token`): without one, slurmrestd accepts only the \
                 user that it runs as"
            }
            (SourceProblemKind::Denied, false) => "; give a token: `scontrol token` makes one",
            (SourceProblemKind::Unreachable, _) => {
                "; check that slurmctld runs and answers `scontrol ping` there"
            }
            _ => "",
        }
    }
}

/// The authentication headers. Values are marked as sensitive, so that no debug output shows
/// them.
fn auth_headers(rest: &SlurmrestdClientConfig) -> Result<HeaderMap, SlurmrestdProblem> {
    let value = |what: &str, text: &str| {
        HeaderValue::from_str(text).map_err(|_| {
            let message = format!("{what} contains characters that cannot be sent");
            new_problem(SourceProblemKind::Malformed, message)
        })
    };
    let mut headers = HeaderMap::new();
    if let Some(token) = &rest.token {
        // As `scontrol token` prints it, with a trailing newline of a file.
        let token = token.trim();
        let token = token.strip_prefix("SLURM_JWT=").unwrap_or(token);
        let mut token = value("the token", token)?;
        token.set_sensitive(true);
        headers.insert("X-SLURM-USER-TOKEN", token);
    }
    if let Some(user) = &rest.user {
        headers.insert("X-SLURM-USER-NAME", value("the user's name", user.trim())?);
    }
    Ok(headers)
}

struct SlurmrestdReply {
    status: StatusCode,
    body: Vec<u8>,
}

impl SlurmrestdReply {
    fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    fn faults(&self) -> Vec<SlurmrestdFault> {
        serde_json::from_slice::<SlurmrestdEnvelope>(&self.body).unwrap_or_default().errors
    }
}

/// An error and its causes, without the address, which the message names already.
fn error_chain(error: &reqwest::Error) -> String {
    let mut words = Vec::new();
    let mut source = error.source();
    while let Some(error) = source {
        words.push(clean(&error.to_string()));
        source = error.source();
    }
    words.dedup();
    match words.as_slice() {
        [] => "it failed without a reason".to_owned(),
        // The last message contains those of the layers in between.
        [.., last] if 2 < words.len() => format!("{}: {last}", words[0]),
        _ => words.join(": "),
    }
}

#[cfg(test)]
mod tests;
