//! Asks Slurm's controller through slurmrestd.
//!
//! Finds out which version of the interface is spoken there, puts the
//! questions in bounded time and space, and tells an answer from none:
//! slurmrestd answers 200 to a ping of a controller that is dead, and 200 to
//! some questions that failed. It has no question for the topology. What an
//! answer means, `inventory::slurm` says. The token is in no message.

mod envelope;

use std::error::Error;
use std::fmt;
use std::time::Duration;

use reqwest::Client;
use reqwest::StatusCode;
use reqwest::Url;
use reqwest::header::HeaderMap;
use reqwest::header::HeaderValue;

use self::envelope::Envelope;
use self::envelope::Fault;
use self::envelope::Ping;
use self::envelope::newest;
use super::http;
use super::http::Address;
use super::http::Cut;
use super::slurm::kind_of;
use super::tls;
use model::said::ProblemKind;
use model::said::Said;
use model::said::SourceKind;
use model::text::clean;
use readers::claims::slurm;

/// Versions of the interface that are known, newest first. Slurm 24.11 speaks
/// v0.0.40 to 42, 25.05 to 43, 25.11 41 to 44, 26.05 42 to 45.
const VERSIONS: [u32; 6] = [45, 44, 43, 42, 41, 40];

/// Bytes of an answer that are taken: 5,000 nodes of Slurm 26.05 are 13 MB.
pub(crate) const MOST: usize = 256 * 1024 * 1024;

/// Where slurmrestd is, and who asks.
#[derive(Clone, PartialEq, Eq)]
pub struct Slurmrestd {
    /// `http://host:6820`, `https://host:6820`, or `unix:/run/slurmrestd.sock`.
    pub address: Address,
    /// The JSON web token, where one is needed.
    pub token: Option<String>,
    /// The user it is for, where the token does not say.
    pub user: Option<String>,
    /// How long one question may take.
    pub limit: Duration,
}

impl fmt::Debug for Slurmrestd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slurmrestd")
            .field("address", &self.address)
            .field("token", &self.token.as_ref().map(|_| "(hidden)"))
            .field("user", &self.user)
            .field("limit", &self.limit)
            .finish()
    }
}

/// Asks for nodes and partitions, after a ping. Ends within three times the
/// limit. One answer a source; where the controller is out of reach, one answer
/// that says so.
pub async fn ask(rest: &Slurmrestd) -> Vec<Said> {
    bounded(rest, MOST).await
}

async fn bounded(rest: &Slurmrestd, most: usize) -> Vec<Said> {
    let line = match Line::open(rest, most) {
        Ok(line) => line,
        // The address is left out: it may hold a password.
        Err(trouble) => return vec![silent("slurmrestd", trouble)],
    };
    let version = match line.version().await {
        Ok(version) => version,
        Err(trouble) => return vec![silent(&line.place, trouble)],
    };
    let (nodes, partitions) = tokio::join!(
        line.ask(format!("slurm/{version}/nodes/")),
        line.ask(format!("slurm/{version}/partitions/")),
    );
    let mut nodes = nodes.read(SourceKind::SlurmNodes, slurm::nodes::read);
    nodes.notes.push(
        "slurmrestd does not tell the topology: blocks and switches are seen by scontrol \
         or in the topology file"
            .to_owned(),
    );
    let partitions = partitions.read(SourceKind::SlurmPartitions, slurm::partitions::read);
    vec![nodes, partitions]
}

fn silent(place: &str, trouble: Trouble) -> Said {
    let mut said = Said::nothing(SourceKind::SlurmNodes, place);
    said.trouble(trouble.kind, None, trouble.message);
    said
}

/// Why there is no answer, or only a part of one.
#[derive(Clone, Debug)]
pub(crate) struct Trouble {
    pub(crate) kind: ProblemKind,
    pub(crate) message: String,
}

fn trouble(kind: ProblemKind, message: impl Into<String>) -> Trouble {
    Trouble { kind, message: message.into() }
}

fn of_fault(fault: &Fault) -> Trouble {
    trouble(fault.kind().unwrap_or(ProblemKind::Incomplete), fault.words())
}

fn late(waited: Duration) -> Trouble {
    let message = format!(
        "no answer within {waited:.0?}; see whether slurmctld runs and answers `scontrol ping` \
         there"
    );
    trouble(ProblemKind::Unreachable, message)
}

/// What one question came to.
pub(crate) struct Answer {
    pub(crate) place: String,
    pub(crate) text: Result<String, Trouble>,
    /// What went wrong though there is an answer.
    pub(crate) troubles: Vec<Trouble>,
}

impl Answer {
    fn read(self, kind: SourceKind, read: fn(&str, &str) -> Said) -> Said {
        let (mut said, mut troubles) = match self.text {
            Ok(text) => (read(&self.place, &text), self.troubles),
            Err(trouble) => (Said::nothing(kind, self.place), vec![trouble]),
        };
        // The reader may have found the same words in the text.
        troubles
            .retain(|it| said.problems.iter().all(|known| !known.message.contains(&it.message)));
        for it in troubles {
            said.trouble(it.kind, None, it.message);
        }
        said
    }
}

/// A way to slurmrestd.
pub(crate) struct Line {
    client: Client,
    base: Url,
    /// The address without what must not be shown.
    place: String,
    is_socket: bool,
    has_token: bool,
    limit: Duration,
    most: usize,
}

impl Line {
    pub(crate) fn open(rest: &Slurmrestd, most: usize) -> Result<Self, Trouble> {
        let expected = "expected http://host:6820, https://host:6820 or unix:/path/of/the/socket";
        let bad = |why: &str| {
            trouble(ProblemKind::Malformed, format!("the address of slurmrestd: {why}, {expected}"))
        };
        tls::install();
        let headers = headers(rest)?;
        let has_token = headers.contains_key("X-SLURM-USER-TOKEN");
        // A token follows no redirection to somebody else, and passes through
        // no proxy that is there for the web.
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
            // Credentials in an address are not what slurmrestd asks for.
            None => (Url::parse(rest.address.as_str()).map(http::bare), String::new()),
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
        let client = tls::for_scheme(builder, base.scheme()).build().map_err(|error| {
            let why = format!("no HTTP client: {}; {}", chain(&error), tls::NEEDS);
            trouble(ProblemKind::Unreachable, why)
        })?;
        let place = match socket {
            Some(_) => place,
            None => base.as_str().trim_end_matches('/').to_owned(),
        };
        let is_socket = socket.is_some();
        Ok(Self { client, base, place, is_socket, has_token, limit: rest.limit, most })
    }

    /// The version of the interface that both sides know, from a ping that the
    /// controller answered, within twice the limit: versions are tried one after
    /// the other, and a slow server has all of them slow.
    pub(crate) async fn version(&self) -> Result<String, Trouble> {
        let patience = self.limit * 2;
        let negotiated = tokio::time::timeout(patience, self.negotiate()).await;
        negotiated.unwrap_or_else(|_| Err(late(patience)))
    }

    async fn negotiate(&self) -> Result<String, Trouble> {
        for version in VERSIONS {
            let version = format!("v0.0.{version}");
            if let Some(text) = self.ping(&version).await? {
                return self.responding(&text, &version).await.map(|()| version);
            }
        }
        // Newer (or much older) than all of them. The document that lists what
        // is there is a megabyte, so it is asked for only now.
        let unknown = || {
            let (first, last) = (VERSIONS[VERSIONS.len() - 1], VERSIONS[0]);
            trouble(
                ProblemKind::Unsupported,
                format!(
                    "it speaks none of v0.0.{first} to v0.0.{last}: is this slurmrestd, started \
                     with its slurmctld part (-s openapi/slurmctld)?"
                ),
            )
        };
        let document = self.get("openapi/v3").await?;
        if document.status != StatusCode::OK {
            return Err(unknown());
        }
        let version = newest(&document.text()).ok_or_else(unknown)?;
        match self.ping(&version).await? {
            Some(text) => self.responding(&text, &version).await.map(|()| version),
            None => Err(unknown()),
        }
    }

    /// The answer to a ping, or nothing where this version is not spoken.
    async fn ping(&self, version: &str) -> Result<Option<String>, Trouble> {
        let reply = self.get(&format!("slurm/{version}/ping/")).await?;
        match reply.status {
            StatusCode::OK => self.object(&reply).map(Some),
            StatusCode::NOT_FOUND => Ok(None),
            _ => Err(self.refusal(&reply)),
        }
    }

    /// Whether a controller answered: a ping is answered with 200 in any case,
    /// and a token that slurmctld does not take looks like a slurmctld that is
    /// not there.
    async fn responding(&self, text: &str, version: &str) -> Result<(), Trouble> {
        let envelope: Envelope = serde_json::from_str(text).map_err(|error| {
            trouble(ProblemKind::Malformed, format!("the answer to a ping: {error}"))
        })?;
        let Some(pings) = envelope.pings else {
            let why = envelope.errors.first().map_or_else(String::new, Fault::words);
            let message = format!("it answers a ping without saying who responds {why}");
            return Err(trouble(ProblemKind::Unreachable, message.trim_end()));
        };
        if pings.iter().any(Ping::is_up) {
            return Ok(());
        }
        let hosts: Vec<String> =
            pings.iter().filter_map(|ping| ping.hostname.as_deref()).map(clean).collect();
        let hosts = if hosts.is_empty() { "any host".to_owned() } else { hosts.join(", ") };
        let status = pings.iter().find_map(|ping| ping.status.as_deref()).map(clean);
        if let Some(status) = &status
            && kind_of(status) == ProblemKind::Denied
        {
            let remedy = self.remedy(ProblemKind::Denied);
            let message = format!("slurmctld at {hosts} says: {status}{remedy}");
            return Err(trouble(ProblemKind::Denied, message));
        }
        // Up to v0.0.44 a ping does not say why.
        if status.is_none() && self.has_token {
            let nodes = self.ask(format!("slurm/{version}/nodes/")).await;
            if let Err(denied) = nodes.text
                && denied.kind == ProblemKind::Denied
            {
                return Err(denied);
            }
        }
        let why = status.map_or_else(String::new, |status| format!(" ({status})"));
        let message = format!(
            "slurmrestd answers, slurmctld at {hosts} does not{why}{}",
            self.remedy(ProblemKind::Unreachable)
        );
        Err(trouble(ProblemKind::Unreachable, message))
    }

    pub(crate) async fn ask(&self, path: String) -> Answer {
        let place = format!("{}/{path}", self.place);
        let reply = match self.get(&path).await {
            Ok(reply) => reply,
            Err(trouble) => return Answer { place, text: Err(trouble), troubles: Vec::new() },
        };
        if reply.status != StatusCode::OK {
            return Answer { place, text: Err(self.refusal(&reply)), troubles: Vec::new() };
        }
        let text = self.object(&reply);
        // 200 does not mean that it went well.
        let troubles = reply.faults().iter().map(of_fault).collect();
        Answer { place, text, troubles }
    }

    /// Tells it something. 200 does not mean that it was done, nor that all of
    /// it was understood.
    pub(crate) async fn tell(&self, path: &str, body: &serde_json::Value) -> Result<(), Trouble> {
        let reply = self.reply(self.client.post(self.url(path)?).json(body)).await?;
        if reply.status != StatusCode::OK {
            // From 2000 on, numbers are the controller's own: it answered, with
            // 500 (24.11) or 422 (26.05), and may have done a part.
            return Err(match reply.faults().first() {
                Some(fault) if fault.kind().is_none() && 2000 <= fault.error_number => {
                    let message = format!("HTTP {}: {}", reply.status.as_u16(), fault.words());
                    trouble(ProblemKind::Incomplete, message)
                }
                _ => self.refusal(&reply),
            });
        }
        let envelope: Envelope = serde_json::from_slice(&reply.body).map_err(|error| {
            trouble(ProblemKind::Malformed, format!("the answer to a change: {error}"))
        })?;
        if let Some(fault) = envelope.errors.first() {
            return Err(of_fault(fault));
        }
        // The words of data_parser, in 24.11 and 26.05 alike.
        let ignored = envelope.warnings.iter().map(Fault::words).find(|it| it.contains("gnoring"));
        match ignored {
            Some(words) => Err(trouble(ProblemKind::Unsupported, words)),
            None => Ok(()),
        }
    }

    fn url(&self, path: &str) -> Result<Url, Trouble> {
        self.base.join(path).map_err(|error| {
            trouble(ProblemKind::Malformed, format!("the address of slurmrestd: {error}"))
        })
    }

    async fn get(&self, path: &str) -> Result<Reply, Trouble> {
        self.reply(self.client.get(self.url(path)?)).await
    }

    async fn reply(&self, request: reqwest::RequestBuilder) -> Result<Reply, Trouble> {
        let failed = |error: reqwest::Error| self.failed(&error);
        let response = request.send().await.map_err(failed)?;
        let status = response.status();
        match http::body(response, self.most).await {
            Ok(body) => Ok(Reply { status, body }),
            Err(Cut::Lost(error)) => Err(failed(error)),
            Err(Cut::TooLong) => {
                let most = format!("the answer is longer than the {} bytes taken", self.most);
                Err(trouble(ProblemKind::Incomplete, most))
            }
        }
    }

    fn failed(&self, error: &reqwest::Error) -> Trouble {
        if error.is_timeout() {
            return late(self.limit);
        }
        let why = chain(error);
        if error.is_connect() {
            let remedy = if why.to_lowercase().contains("certificate") {
                "; SSL_CERT_FILE names the authority that a site signs its own with"
            } else {
                "; see whether slurmrestd runs and listens there"
            };
            return trouble(ProblemKind::Unreachable, format!("{why}{remedy}"));
        }
        trouble(ProblemKind::Incomplete, format!("the answer broke off: {why}"))
    }

    /// The text of an answer that should be a JSON object.
    fn object(&self, reply: &Reply) -> Result<String, Trouble> {
        let text = reply.text();
        if serde_json::from_str::<Envelope>(&text).is_ok() {
            return Ok(text);
        }
        if text.trim_start().starts_with('{') {
            // Whatever of it is whole may be of use; the reader says what is not.
            return Ok(text);
        }
        let begins = clean(&text.chars().take(80).collect::<String>());
        let message = format!(
            "{} bytes that are not JSON and begin with {begins:?}; is this slurmrestd?",
            reply.body.len()
        );
        Err(trouble(ProblemKind::Malformed, message))
    }

    /// What an answer other than 200 means.
    fn refusal(&self, reply: &Reply) -> Trouble {
        let status = reply.status;
        let faults = reply.faults();
        let mut came = format!("HTTP {}", status.as_u16());
        if let Some(fault) = faults.first() {
            came = format!("{came}: {}", fault.words());
        } else if !reply.body.is_empty() {
            let begins: String = reply.text().chars().take(120).collect();
            came = format!("{came}: {}", clean(&begins));
        }
        let kind = faults.first().and_then(Fault::kind).unwrap_or(match status.as_u16() {
            401 | 403 | 511 => ProblemKind::Denied,
            500.. => ProblemKind::Unreachable,
            _ => ProblemKind::Unsupported,
        });
        let remedy = if status.is_redirection() {
            "; redirections are not followed"
        } else {
            self.remedy(kind)
        };
        trouble(kind, format!("{came}{remedy}"))
    }

    /// What to do about it.
    fn remedy(&self, kind: ProblemKind) -> &'static str {
        match (kind, self.has_token) {
            (ProblemKind::Denied, true) => {
                "; the token may have run out, `scontrol token` makes a new one"
            }
            (ProblemKind::Denied, false) if self.is_socket => {
                "; give a token (`scontrol token`): without, only the user that slurmrestd runs \
                 as is let in"
            }
            (ProblemKind::Denied, false) => "; give a token: `scontrol token` makes one",
            (ProblemKind::Unreachable, _) => {
                "; see whether slurmctld runs and answers `scontrol ping` there"
            }
            _ => "",
        }
    }
}

/// Who asks. Values are marked as secret, so that nothing prints them.
fn headers(rest: &Slurmrestd) -> Result<HeaderMap, Trouble> {
    let value = |what: &str, text: &str| {
        HeaderValue::from_str(text).map_err(|_| {
            let message = format!("{what} contains characters that cannot be sent");
            trouble(ProblemKind::Malformed, message)
        })
    };
    let mut headers = HeaderMap::new();
    if let Some(token) = &rest.token {
        // As `scontrol token` prints it, with the line end of a file.
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

/// What came back.
struct Reply {
    status: StatusCode,
    body: Vec<u8>,
}

impl Reply {
    fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    fn faults(&self) -> Vec<Fault> {
        serde_json::from_slice::<Envelope>(&self.body).unwrap_or_default().errors
    }
}

/// An error and what is behind it, without the address that it would repeat.
fn chain(error: &reqwest::Error) -> String {
    let mut words = Vec::new();
    let mut source = error.source();
    while let Some(error) = source {
        words.push(clean(&error.to_string()));
        source = error.source();
    }
    words.dedup();
    match words.as_slice() {
        [] => "it failed without saying why".to_owned(),
        // What the layers in between say is in the last of them.
        [.., last] if 2 < words.len() => format!("{}: {last}", words[0]),
        _ => words.join(": "),
    }
}

#[cfg(test)]
mod tests;
