//! Acquires and renews the Lease in a separate thread, so that blocking work elsewhere
//! cannot delay a renewal.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use kube::Api;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::{LeaseObservation, LeaseTerm, build_lease, micro_time_now, post_params};
use crate::gate::clock;
use crate::sources::kubernetes::connection::ResponseReadLimit;
use crate::sources::kubernetes::{KubernetesClientConfig, connection};
use model::text::clean;

/// The Lease and its holder. Default durations follow client-go's `leaderelection` (15 s,
/// 10 s). The renewal interval is 5 s instead of 2 s, for a third of the requests.
#[derive(Clone, Debug)]
pub struct LeaderElectionConfig {
    /// Connection to the API server.
    pub kubernetes: KubernetesClientConfig,
    /// The namespace of the Lease.
    pub namespace: String,
    /// The name of the Lease.
    pub name: String,
    /// The identity of this instance.
    pub holder: String,
    /// Time without a renewal until the Lease expires.
    pub duration: Duration,
    /// Renewal interval.
    pub renew: Duration,
}

/// Leadership of this instance.
#[derive(Clone, Debug, PartialEq)]
pub enum LeadershipStatus {
    /// Another instance holds the Lease, or the holder is unknown.
    Waiting {
        /// The holder, or why it is unknown.
        why: String,
        /// The server has answered, so waiting is the known state.
        is_confirmed: bool,
    },
    /// This instance holds the Lease.
    Leading {
        /// The current term.
        term: LeaseTerm,
        /// Local uptime at which leadership ends without a renewal.
        until_s: f64,
    },
}

impl LeadershipStatus {
    /// The term, if it is still valid now: after the last renewal the process may have
    /// been paused.
    pub fn current_term(&self) -> Option<&LeaseTerm> {
        match self {
            Self::Leading { term, until_s } if clock::now().uptime_s < *until_s => Some(term),
            _ => None,
        }
    }
}

/// Handle of the election thread; dropping it releases the Lease.
#[derive(Debug)]
pub struct LeaderElector {
    /// The current leadership, updated by the thread.
    pub status: watch::Receiver<LeadershipStatus>,
    /// Number of requests sent to the server.
    pub requests: Arc<AtomicU64>,
    stop: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
}

impl LeaderElector {
    /// Starts the election thread.
    pub fn start(wanted: LeaderElectionConfig) -> std::io::Result<Self> {
        let why = "no request was sent yet".to_owned();
        let (sender, standing) =
            watch::channel(LeadershipStatus::Waiting { why, is_confirmed: false });
        let (stop, stopped) = watch::channel(false);
        let requests = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&requests);
        let thread = std::thread::Builder::new().name("lease".to_owned()).spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let Ok(runtime) = runtime else { return };
            let mut keeping = LeaderElectionLoop {
                config: wanted,
                status: sender,
                observation: None,
                held: None,
                next: 0,
                requests: counted,
            };
            runtime.block_on(keeping.run(stopped));
        })?;
        Ok(Self { status: standing, requests, stop, thread: Some(thread) })
    }

    /// Releases the Lease, if held, and ends the thread.
    pub fn release(mut self) {
        self.stop_thread();
    }

    fn stop_thread(&mut self) {
        self.stop.send_replace(true);
        if let Some(thread) = self.thread.take() {
            // A thread that panicked released nothing; the Lease expires.
            let _ = thread.join();
        }
    }
}

impl Drop for LeaderElector {
    fn drop(&mut self) {
        self.stop_thread();
    }
}

/// The duration for the Lease, rounded up: other instances must not treat it as expired
/// while this one still relies on it.
fn whole_seconds(duration: Duration) -> i32 {
    let part = u64::from(0 < duration.subsec_nanos());
    i32::try_from(duration.as_secs().saturating_add(part).max(1)).unwrap_or(i32::MAX)
}

/// A failed request to acquire or renew.
struct LeaseRequestFailure {
    why: String,
    /// The server rejected the credentials.
    is_unauthenticated: bool,
}

impl LeaseRequestFailure {
    fn from_kube_error(error: &kube::Error) -> Self {
        Self {
            why: connection::refusal_problem(error).1,
            is_unauthenticated: connection::is_unauthenticated(error),
        }
    }
}

/// The Lease as last written by this instance.
struct HeldLease {
    lease: Lease,
    term: LeaseTerm,
    /// Local uptime right before the write.
    at_s: f64,
}

struct LeaderElectionLoop {
    config: LeaderElectionConfig,
    status: watch::Sender<LeadershipStatus>,
    observation: Option<LeaseObservation>,
    held: Option<HeldLease>,
    /// Lower bound of the next term's number: a Lease that was deleted, or restored from
    /// an older backup, lacks the last one.
    next: i32,
    requests: Arc<AtomicU64>,
}

impl LeaderElectionLoop {
    async fn run(&mut self, mut stop: watch::Receiver<bool>) {
        loop {
            let api = tokio::select! {
                api = self.connect() => api,
                _ = stop.wait_for(|stop| *stop) => return,
            };
            let api = match api {
                Ok(api) => api,
                Err(why) => {
                    self.handle_failure(why);
                    tokio::select! {
                        () = sleep(self.config.renew) => continue,
                        _ = stop.wait_for(|stop| *stop) => return,
                    }
                }
            };
            loop {
                // Not in a select: a request that was sent must complete.
                let is_known = self.renew_or_acquire(&api).await;
                // An error means that all senders are dropped, so the result is
                // irrelevant.
                let is_over = async { drop(stop.wait_for(|stop| *stop).await) };
                tokio::select! {
                    () = sleep(self.pause()) => if !is_known { break },
                    () = is_over => {
                        self.release_lease(&api).await;
                        return;
                    }
                }
            }
        }
    }

    async fn connect(&self) -> Result<Api<Lease>, String> {
        let limit = self.config.renew;
        match timeout(
            limit,
            connection::connect(&self.config.kubernetes, ResponseReadLimit::Bounded),
        )
        .await
        {
            Ok(Ok(access)) => Ok(Api::namespaced(access.client, &self.config.namespace)),
            Ok(Err(problem)) => Err(problem.to_string()),
            Err(_) => Err(format!("the kubeconfig gave no client within {limit:?}")),
        }
    }

    /// Shorter if the last renewal failed.
    fn pause(&self) -> Duration {
        let is_fresh = self
            .held
            .as_ref()
            .is_none_or(|held| clock::now().uptime_s - held.at_s < self.config.renew.as_secs_f64());
        if is_fresh { self.config.renew } else { self.config.renew / 5 }
    }

    /// How long after a successful write this instance counts as leader: shorter than the
    /// Lease's duration, with time to stop running work.
    fn validity_s(&self) -> f64 {
        self.config.duration.as_secs_f64() * 2.0 / 3.0
    }

    /// Renews or acquires the Lease; false if the server rejected the credentials.
    async fn renew_or_acquire(&mut self, api: &Api<Lease>) -> bool {
        // A slow request must not delay the next one.
        let limit = self.config.renew;
        let done = timeout(limit, self.try_renew_or_acquire(api)).await;
        let LeaseRequestFailure { why, is_unauthenticated: is_unknown } = match done {
            Ok(Ok(())) => return true,
            Ok(Err(trouble)) => trouble,
            Err(_) => LeaseRequestFailure {
                why: format!("no answer within {limit:?}"),
                is_unauthenticated: false,
            },
        };
        self.handle_failure(why);
        !is_unknown
    }

    /// After a failed renewal, leadership continues until its validity ends.
    fn handle_failure(&mut self, why: String) {
        let is_over = self
            .held
            .as_ref()
            .is_none_or(|held| self.validity_s() <= clock::now().uptime_s - held.at_s);
        if is_over {
            self.held = None;
            self.set_waiting(why, false);
        }
    }

    async fn try_renew_or_acquire(&mut self, api: &Api<Lease>) -> Result<(), LeaseRequestFailure> {
        let refused = |error: kube::Error| LeaseRequestFailure::from_kube_error(&error);
        let at_s = clock::now().uptime_s;
        if let Some(held) = &self.held
            && let Some(spec) = held.lease.spec.clone()
        {
            let mut renewed = held.lease.clone();
            renewed.spec = Some(LeaseSpec { renew_time: micro_time_now(), ..spec });
            self.count_request();
            match api.replace(&self.config.name, &post_params(), &renewed).await {
                Ok(lease) => {
                    self.set_leading(lease, at_s);
                    return Ok(());
                }
                // Another writer changed it; read it to find the holder.
                Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {}
                Err(error) => return Err(refused(error)),
            }
        }
        self.count_request();
        let Some(found) = api.get_opt(&self.config.name).await.map_err(refused)? else {
            self.held = None;
            let made = build_lease(&self.config.name, self.acquired_spec(self.next));
            self.count_request();
            return match api.create(&post_params(), &made).await {
                Ok(lease) => {
                    self.set_leading(lease, at_s);
                    Ok(())
                }
                Err(kube::Error::Api(status)) if status.code == 409 => {
                    self.set_waiting("another instance has just created it".to_owned(), true);
                    Ok(())
                }
                Err(error) => Err(refused(error)),
            };
        };
        let spec = found.spec.clone().unwrap_or_default();
        let seen = LeaseObservation::observe(self.observation.take(), &spec, at_s);
        self.observation = Some(seen.clone());
        let is_still_held = self.held.as_ref().is_some_and(|held| {
            held.term.holder == seen.holder && held.term.transitions == seen.transitions
        });
        if is_still_held {
            // For example, another client annotated it; continue from the new version.
            if let Some(held) = &mut self.held {
                held.lease = found;
            }
            let why = "another writer changed it in the meantime".to_owned();
            return Err(LeaseRequestFailure { why, is_unauthenticated: false });
        }
        if self.held.take().is_some() {
            self.set_waiting(format!("{} has acquired it", clean(&seen.holder)), true);
            return Ok(());
        }
        if !seen.has_expired(&spec, self.config.duration.as_secs_f64(), at_s) {
            self.set_waiting(format!("{} holds it", clean(&seen.holder)), true);
            return Ok(());
        }
        let mut taken = found;
        taken.spec = Some(self.acquired_spec(self.next.max(seen.transitions.saturating_add(1))));
        self.count_request();
        match api.replace(&self.config.name, &post_params(), &taken).await {
            Ok(lease) => self.set_leading(lease, at_s),
            Err(kube::Error::Api(status)) if status.code == 409 => {
                self.set_waiting("another instance acquired it first".to_owned(), true);
            }
            Err(error) => return Err(refused(error)),
        }
        Ok(())
    }

    /// The spec for a new term. The number increases on every acquisition, even if the
    /// last holder has the same name: a term is never reused.
    fn acquired_spec(&self, transitions: i32) -> LeaseSpec {
        let seconds = whole_seconds(self.config.duration);
        LeaseSpec {
            holder_identity: Some(self.config.holder.clone()),
            lease_duration_seconds: Some(seconds),
            acquire_time: micro_time_now(),
            renew_time: micro_time_now(),
            lease_transitions: Some(transitions),
            ..LeaseSpec::default()
        }
    }

    fn set_leading(&mut self, lease: Lease, at_s: f64) {
        let transitions = lease.spec.as_ref().and_then(|it| it.lease_transitions).unwrap_or(0);
        let term = LeaseTerm {
            namespace: self.config.namespace.clone(),
            name: self.config.name.clone(),
            holder: self.config.holder.clone(),
            transitions,
        };
        self.observation = None;
        self.next = self.next.max(transitions.saturating_add(1));
        self.held = Some(HeldLease { lease, term: term.clone(), at_s });
        let until_s = at_s + self.validity_s();
        self.status.send_replace(LeadershipStatus::Leading { term, until_s });
    }

    fn set_waiting(&self, why: String, knows: bool) {
        let waiting = LeadershipStatus::Waiting { why, is_confirmed: knows };
        self.status.send_if_modified(|status| {
            let is_news = *status != waiting;
            if is_news {
                *status = waiting;
            }
            is_news
        });
    }

    /// Releases the Lease, so that other instances need not wait until it expires.
    async fn release_lease(&mut self, api: &Api<Lease>) {
        let Some(HeldLease { mut lease, .. }) = self.held.take() else { return };
        self.set_waiting("released".to_owned(), true);
        if let Some(spec) = &mut lease.spec {
            spec.holder_identity = None;
            spec.renew_time = micro_time_now();
        }
        self.count_request();
        // If this fails, the Lease expires.
        let _ = timeout(self.config.renew, api.replace(&self.config.name, &post_params(), &lease))
            .await;
    }

    fn count_request(&self) {
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
    fn others_wait_at_least_as_long_as_this_instance_holds_it() {
        for millis in [1_000, 1_001, 1_400, 1_999, 2_000, 15_000] {
            let duration = Duration::from_millis(millis);
            let theirs = f64::from(whole_seconds(duration));
            assert!(duration.as_secs_f64() <= theirs, "{millis} ms: others wait {theirs} s");
        }
        assert_eq!(whole_seconds(Duration::from_secs(15)), 15);
    }

    /// A server that accepts only this token and has no Lease yet.
    async fn token_server(token: &str) -> MockServer {
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

    /// A server with one Lease that a test may remove or restore.
    async fn lease_server(lease: Arc<Mutex<Option<Value>>>) -> MockServer {
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
    async fn a_term_is_never_reused_after_the_lease_is_deleted_or_restored() {
        let lease = Arc::default();
        let server = lease_server(Arc::clone(&lease)).await;
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("kubeconfig");
        kubeconfig(&file, &server.uri(), "t");
        let limit = Duration::from_secs(20);
        let keeper = LeaderElector::start(LeaderElectionConfig {
            kubernetes: KubernetesClientConfig { kubeconfig: Some(file), context: None, limit },
            namespace: "ns".to_owned(),
            name: "w".to_owned(),
            holder: "us".to_owned(),
            duration: Duration::from_secs(3),
            renew: Duration::from_millis(200),
        })
        .expect("a thread");
        let mut standing = keeper.status.clone();
        let mut had: Vec<i32> = Vec::new();
        let older = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": {"name": "w", "resourceVersion": "1"},
            "spec": {"holderIdentity": "", "leaseTransitions": 0}});
        for put in [None, Some(older), None] {
            let held = standing.wait_for(
                |it| matches!(it, LeadershipStatus::Leading { term, .. } if !had.contains(&term.transitions)),
            );
            let held = timeout(Duration::from_secs(60), held).await.expect("a new term in time");
            let held = held.expect("it keeps on").clone();
            let LeadershipStatus::Leading { term, .. } = held else { unreachable!("waited for") };
            had.push(term.transitions);
            *lease.lock().expect("no panic") = put;
        }
        assert!(had.is_sorted_by(|a, b| a < b), "{had:?}");
    }

    #[tokio::test]
    async fn a_renewed_token_in_the_kubeconfig_is_used() {
        let server = token_server("second").await;
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("kubeconfig");
        kubeconfig(&file, &server.uri(), "first");
        let limit = Duration::from_secs(20);
        let mut keeper = LeaderElector::start(LeaderElectionConfig {
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
        let is_refused = |it: &LeadershipStatus| matches!(it, LeadershipStatus::Waiting { why, .. } if why.contains("expired token?"));
        let refused = timeout(patience, keeper.status.wait_for(is_refused)).await;
        drop(refused.expect("in time").expect("it keeps on"));
        kubeconfig(&file, &server.uri(), "second");
        let held =
            timeout(patience, keeper.status.wait_for(|it| it.current_term().is_some())).await;
        drop(held.expect("in time").expect("it keeps on"));
    }
}
