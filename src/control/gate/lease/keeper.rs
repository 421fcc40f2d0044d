//! Takes the Lease and keeps it, in a thread of its own: whatever the rest of
//! the program waits for, renewing does not wait with it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use kube::Api;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::{Seen, Term, by_us, lease, micro};
use crate::gate::stamp;
use crate::sources::kubernetes::connection::ResponseReadLimit;
use crate::sources::kubernetes::{KubernetesClientConfig, connection};
use model::text::clean;

/// Which Lease, and for whom. The usual durations are those of Kubernetes' own
/// controllers (`leaderelection` of client-go: 15 s, 10 s; renewed here every
/// 5 s, which is a third of the requests of their 2 s).
#[derive(Clone, Debug)]
pub struct Wanted {
    /// The way to the server.
    pub kubernetes: KubernetesClientConfig,
    /// The namespace of the Lease.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Who we are.
    pub holder: String,
    /// How long it counts without a sign of ours.
    pub duration: Duration,
    /// How often it is renewed.
    pub renew: Duration,
}

/// How we stand with it.
#[derive(Clone, Debug, PartialEq)]
pub enum Standing {
    /// Somebody else has it, or nobody can tell.
    Waiting {
        /// Who, or why nobody can tell.
        why: String,
        /// The server answered: we wait knowingly.
        knows: bool,
    },
    /// It is ours.
    Held {
        /// Under this term.
        term: Term,
        /// Until this uptime of our machine, where it is not renewed.
        until_s: f64,
    },
}

impl Standing {
    /// The term under which we hold it at this moment. What was ours when it was
    /// looked at last may be over by now: a process can be paused.
    pub fn held(&self) -> Option<&Term> {
        match self {
            Self::Held { term, until_s } if stamp::stamp().uptime_s < *until_s => Some(term),
            _ => None,
        }
    }
}

/// The thread that keeps the Lease.
#[derive(Debug)]
pub struct Keeper {
    /// How we stand.
    pub standing: watch::Receiver<Standing>,
    /// Requests that were sent.
    pub requests: Arc<AtomicU64>,
    stop: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
}

impl Keeper {
    /// Starts to ask for the Lease.
    pub fn start(wanted: Wanted) -> std::io::Result<Self> {
        let why = "the server was not asked yet".to_owned();
        let (says, standing) = watch::channel(Standing::Waiting { why, knows: false });
        let (stop, stopped) = watch::channel(false);
        let requests = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&requests);
        let thread = std::thread::Builder::new().name("lease".to_owned()).spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let Ok(runtime) = runtime else { return };
            let mut keeping =
                Keeping { wanted, says, seen: None, ours: None, next: 0, requests: counted };
            runtime.block_on(keeping.keep(stopped));
        })?;
        Ok(Self { standing, requests, stop, thread: Some(thread) })
    }

    /// Gives the Lease back, where it is ours, and ends the thread.
    pub fn release(mut self) {
        self.end();
    }

    fn end(&mut self) {
        self.stop.send_replace(true);
        if let Some(thread) = self.thread.take() {
            // A thread that panicked gave nothing back, and it expires.
            let _ = thread.join();
        }
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.end();
    }
}

/// A duration as a Lease has it: rounded up, since others must not take it for
/// expired while we take it for ours.
fn whole_seconds(duration: Duration) -> i32 {
    let part = u64::from(0 < duration.subsec_nanos());
    i32::try_from(duration.as_secs().saturating_add(part).max(1)).unwrap_or(i32::MAX)
}

/// Why a turn did not do what it should.
struct Trouble {
    why: String,
    /// The server does not know us any more.
    is_stranger: bool,
}

impl Trouble {
    fn of(error: &kube::Error) -> Self {
        Self {
            why: connection::refusal_problem(error).1,
            is_stranger: connection::is_unauthenticated(error),
        }
    }
}

/// The Lease as we wrote it last.
struct Ours {
    lease: Lease,
    term: Term,
    /// Our uptime right before it was written.
    at_s: f64,
}

struct Keeping {
    wanted: Wanted,
    says: watch::Sender<Standing>,
    seen: Option<Seen>,
    ours: Option<Ours>,
    /// The least number of our next term: a Lease that was deleted, or restored with an
    /// older store, does not know the last one.
    next: i32,
    requests: Arc<AtomicU64>,
}

impl Keeping {
    async fn keep(&mut self, mut stop: watch::Receiver<bool>) {
        loop {
            let api = tokio::select! {
                api = self.connect() => api,
                _ = stop.wait_for(|stop| *stop) => return,
            };
            let api = match api {
                Ok(api) => api,
                Err(why) => {
                    self.troubled(why);
                    tokio::select! {
                        () = sleep(self.wanted.renew) => continue,
                        _ = stop.wait_for(|stop| *stop) => return,
                    }
                }
            };
            loop {
                // Not in a select: a write that was sent is waited for.
                let is_known = self.turn(&api).await;
                // An error says that nobody is left who could want it.
                let is_over = async { drop(stop.wait_for(|stop| *stop).await) };
                tokio::select! {
                    () = sleep(self.pause()) => if !is_known { break },
                    () = is_over => {
                        self.give_back(&api).await;
                        return;
                    }
                }
            }
        }
    }

    async fn connect(&self) -> Result<Api<Lease>, String> {
        let limit = self.wanted.renew;
        match timeout(
            limit,
            connection::connect(&self.wanted.kubernetes, ResponseReadLimit::Bounded),
        )
        .await
        {
            Ok(Ok(access)) => Ok(Api::namespaced(access.client, &self.wanted.namespace)),
            Ok(Err(problem)) => Err(problem.to_string()),
            Err(_) => Err(format!("the kubeconfig gave nothing within {limit:?}")),
        }
    }

    /// Sooner where it is about to be lost.
    fn pause(&self) -> Duration {
        let is_fresh = self.ours.as_ref().is_none_or(|ours| {
            stamp::stamp().uptime_s - ours.at_s < self.wanted.renew.as_secs_f64()
        });
        if is_fresh { self.wanted.renew } else { self.wanted.renew / 5 }
    }

    /// How long after a write that worked we take it for ours: before the others
    /// take it for lost, with time to tell whoever works.
    fn ours_s(&self) -> f64 {
        self.wanted.duration.as_secs_f64() * 2.0 / 3.0
    }

    /// Renews or takes it; false where the server does not know who asks.
    async fn turn(&mut self, api: &Api<Lease>) -> bool {
        // One question must not take the time of the next.
        let limit = self.wanted.renew;
        let done = timeout(limit, self.renewed_or_taken(api)).await;
        let Trouble { why, is_stranger } = match done {
            Ok(Ok(())) => return true,
            Ok(Err(trouble)) => trouble,
            Err(_) => Trouble { why: format!("no answer within {limit:?}"), is_stranger: false },
        };
        self.troubled(why);
        !is_stranger
    }

    /// It could not be renewed: it is ours for as long as others keep off it.
    fn troubled(&mut self, why: String) {
        let is_over = self
            .ours
            .as_ref()
            .is_none_or(|ours| self.ours_s() <= stamp::stamp().uptime_s - ours.at_s);
        if is_over {
            self.ours = None;
            self.waits(why, false);
        }
    }

    async fn renewed_or_taken(&mut self, api: &Api<Lease>) -> Result<(), Trouble> {
        let refused = |error: kube::Error| Trouble::of(&error);
        let at_s = stamp::stamp().uptime_s;
        if let Some(ours) = &self.ours
            && let Some(spec) = ours.lease.spec.clone()
        {
            let mut renewed = ours.lease.clone();
            renewed.spec = Some(LeaseSpec { renew_time: micro(), ..spec });
            self.count();
            match api.replace(&self.wanted.name, &by_us(), &renewed).await {
                Ok(lease) => {
                    self.is_ours(lease, at_s);
                    return Ok(());
                }
                // Somebody wrote it: who has it now, a look tells.
                Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {}
                Err(error) => return Err(refused(error)),
            }
        }
        self.count();
        let Some(found) = api.get_opt(&self.wanted.name).await.map_err(refused)? else {
            self.ours = None;
            let made = lease(&self.wanted.name, self.taken(self.next));
            self.count();
            return match api.create(&by_us(), &made).await {
                Ok(lease) => {
                    self.is_ours(lease, at_s);
                    Ok(())
                }
                Err(kube::Error::Api(status)) if status.code == 409 => {
                    self.waits("somebody else has just made it".to_owned(), true);
                    Ok(())
                }
                Err(error) => Err(refused(error)),
            };
        };
        let spec = found.spec.clone().unwrap_or_default();
        let seen = Seen::look(self.seen.take(), &spec, at_s);
        self.seen = Some(seen.clone());
        let is_still_ours = self.ours.as_ref().is_some_and(|ours| {
            ours.term.holder == seen.holder && ours.term.transitions == seen.transitions
        });
        if is_still_ours {
            // Somebody annotated it, say: ours is the newer version from here on.
            if let Some(ours) = &mut self.ours {
                ours.lease = found;
            }
            let why = "somebody else wrote it in the meantime".to_owned();
            return Err(Trouble { why, is_stranger: false });
        }
        if self.ours.take().is_some() {
            self.waits(format!("{} has taken it", clean(&seen.holder)), true);
            return Ok(());
        }
        if !seen.has_expired(&spec, self.wanted.duration.as_secs_f64(), at_s) {
            self.waits(format!("{} holds it", clean(&seen.holder)), true);
            return Ok(());
        }
        let mut taken = found;
        taken.spec = Some(self.taken(self.next.max(seen.transitions.saturating_add(1))));
        self.count();
        match api.replace(&self.wanted.name, &by_us(), &taken).await {
            Ok(lease) => self.is_ours(lease, at_s),
            Err(kube::Error::Api(status)) if status.code == 409 => {
                self.waits("somebody else was quicker".to_owned(), true);
            }
            Err(error) => return Err(refused(error)),
        }
        Ok(())
    }

    /// The Lease as we take it. Every time counts one on, also where its last
    /// holder had our name: a term is never anybody's twice.
    fn taken(&self, transitions: i32) -> LeaseSpec {
        let seconds = whole_seconds(self.wanted.duration);
        LeaseSpec {
            holder_identity: Some(self.wanted.holder.clone()),
            lease_duration_seconds: Some(seconds),
            acquire_time: micro(),
            renew_time: micro(),
            lease_transitions: Some(transitions),
            ..LeaseSpec::default()
        }
    }

    fn is_ours(&mut self, lease: Lease, at_s: f64) {
        let transitions = lease.spec.as_ref().and_then(|it| it.lease_transitions).unwrap_or(0);
        let term = Term {
            namespace: self.wanted.namespace.clone(),
            name: self.wanted.name.clone(),
            holder: self.wanted.holder.clone(),
            transitions,
        };
        self.seen = None;
        self.next = self.next.max(transitions.saturating_add(1));
        self.ours = Some(Ours { lease, term: term.clone(), at_s });
        let until_s = at_s + self.ours_s();
        self.says.send_replace(Standing::Held { term, until_s });
    }

    fn waits(&self, why: String, knows: bool) {
        let waiting = Standing::Waiting { why, knows };
        self.says.send_if_modified(|says| {
            let is_news = *says != waiting;
            if is_news {
                *says = waiting;
            }
            is_news
        });
    }

    /// So that nobody has to wait for it to expire.
    async fn give_back(&mut self, api: &Api<Lease>) {
        let Some(Ours { mut lease, .. }) = self.ours.take() else { return };
        self.waits("given back".to_owned(), true);
        if let Some(spec) = &mut lease.spec {
            spec.holder_identity = None;
            spec.renew_time = micro();
        }
        self.count();
        // Where it does not work, it expires.
        let _ = timeout(self.wanted.renew, api.replace(&self.wanted.name, &by_us(), &lease)).await;
    }

    fn count(&self) {
        self.requests.fetch_add(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Mutex;

    use serde_json::{Value, json};
    use wiremock::matchers::any;
    use wiremock::{Mock, MockServer, Request, ResponseTemplate};

    use super::*;

    #[test]
    fn others_wait_no_shorter_than_we_take_it_for_ours() {
        for millis in [1_000, 1_001, 1_400, 1_999, 2_000, 15_000] {
            let duration = Duration::from_millis(millis);
            let theirs = f64::from(whole_seconds(duration));
            assert!(duration.as_secs_f64() <= theirs, "{millis} ms: others wait {theirs} s");
        }
        assert_eq!(whole_seconds(Duration::from_secs(15)), 15);
    }

    /// A server that lets in whoever has this token, and has no Lease yet.
    async fn server(token: &str) -> MockServer {
        let server = MockServer::start().await;
        let known = format!("Bearer {token}");
        let answer = move |request: &Request| {
            let is_known = request.headers.get("authorization").is_some_and(|it| *it == *known);
            let refused = |code: u16, reason: &str| {
                ResponseTemplate::new(code).set_body_json(json!({"kind": "Status",
                    "apiVersion": "v1", "status": "Failure", "reason": reason, "code": code}))
            };
            match request.method.as_str() {
                _ if !is_known => refused(401, "Unauthorized"),
                "GET" => refused(404, "NotFound"),
                _ => ResponseTemplate::new(200)
                    .set_body_raw(request.body.clone(), "application/json"),
            }
        };
        Mock::given(any()).respond_with(answer).mount(&server).await;
        server
    }

    fn kubeconfig(file: &Path, server: &str, token: &str) {
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\n\
             clusters: [{{name: c, cluster: {{server: \"{server}\"}}}}]\n\
             contexts: [{{name: c, context: {{cluster: c, user: u}}}}]\n\
             users: [{{name: u, user: {{token: {token}}}}}]\n"
        );
        std::fs::write(file, text).expect("written");
    }

    /// A server with one Lease, which a test may take away or put back.
    async fn store(lease: Arc<Mutex<Option<Value>>>) -> MockServer {
        let server = MockServer::start().await;
        let versions = AtomicU64::new(100);
        let answer = move |request: &Request| {
            let mut lease = lease.lock().expect("no panic");
            let refused = |code: u16| {
                let reason = if code == 404 { "NotFound" } else { "Conflict" };
                ResponseTemplate::new(code).set_body_json(json!({"kind": "Status",
                    "apiVersion": "v1", "status": "Failure", "reason": reason, "code": code}))
            };
            match (request.method.as_str(), &*lease) {
                ("GET", Some(lease)) => ResponseTemplate::new(200).set_body_json(lease),
                ("GET" | "PUT", None) => refused(404),
                ("POST", Some(_)) => refused(409),
                (_, is) => {
                    let mut sent: Value = serde_json::from_slice(&request.body).expect("JSON");
                    let version = |it: &Value| it["metadata"]["resourceVersion"].clone();
                    if is.as_ref().is_some_and(|is| version(is) != version(&sent)) {
                        return refused(409);
                    }
                    let next = versions.fetch_add(1, Ordering::Relaxed).to_string();
                    sent["metadata"]["resourceVersion"] = json!(next);
                    *lease = Some(sent.clone());
                    ResponseTemplate::new(200).set_body_json(sent)
                }
            }
        };
        Mock::given(any()).respond_with(answer).mount(&server).await;
        server
    }

    #[tokio::test]
    async fn a_term_is_never_had_twice_though_the_lease_is_deleted_or_an_older_one_put_back() {
        let lease = Arc::default();
        let server = store(Arc::clone(&lease)).await;
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("kubeconfig");
        kubeconfig(&file, &server.uri(), "t");
        let limit = Duration::from_secs(20);
        let keeper = Keeper::start(Wanted {
            kubernetes: KubernetesClientConfig { kubeconfig: Some(file), context: None, limit },
            namespace: "ns".to_owned(),
            name: "w".to_owned(),
            holder: "us".to_owned(),
            duration: Duration::from_secs(3),
            renew: Duration::from_millis(200),
        })
        .expect("a thread");
        let mut standing = keeper.standing.clone();
        let mut had: Vec<i32> = Vec::new();
        let older = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": {"name": "w", "resourceVersion": "1"},
            "spec": {"holderIdentity": "", "leaseTransitions": 0}});
        for put in [None, Some(older), None] {
            let held = standing.wait_for(
                |it| matches!(it, Standing::Held { term, .. } if !had.contains(&term.transitions)),
            );
            let held = timeout(Duration::from_secs(60), held).await.expect("a new term in time");
            let held = held.expect("it keeps on").clone();
            let Standing::Held { term, .. } = held else { unreachable!("waited for") };
            had.push(term.transitions);
            *lease.lock().expect("no panic") = put;
        }
        assert!(had.is_sorted_by(|a, b| a < b), "{had:?}");
    }

    #[tokio::test]
    async fn a_token_that_was_renewed_in_the_kubeconfig_is_taken_up() {
        let server = server("second").await;
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("kubeconfig");
        kubeconfig(&file, &server.uri(), "first");
        let limit = Duration::from_secs(20);
        let mut keeper = Keeper::start(Wanted {
            kubernetes: KubernetesClientConfig {
                kubeconfig: Some(file.clone()),
                context: None,
                limit,
            },
            namespace: "ns".to_owned(),
            name: "w".to_owned(),
            holder: "us".to_owned(),
            duration: Duration::from_secs(60),
            renew: Duration::from_secs(1),
        })
        .expect("a thread");
        let patience = Duration::from_secs(60);
        let is_refused = |it: &Standing| matches!(it, Standing::Waiting { why, .. } if why.contains("expired token?"));
        let refused = timeout(patience, keeper.standing.wait_for(is_refused)).await;
        drop(refused.expect("in time").expect("it keeps on"));
        kubeconfig(&file, &server.uri(), "second");
        let held = timeout(patience, keeper.standing.wait_for(|it| it.held().is_some())).await;
        drop(held.expect("in time").expect("it keeps on"));
    }
}
