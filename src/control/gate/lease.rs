//! Leader election with a Kubernetes Lease: a single active instance, whose term fences
//! all its writes.
//!
//! Clocks of different machines are never compared: a Lease has expired when its
//! `renewTime` did not change for its duration by the local clock. A paused holder does
//! not notice the loss, so its child processes check the Lease again before each write.

pub mod leader_elector;

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::Api;
use kube::api::{ObjectMeta, PostParams};
use tokio::time::timeout;

use super::clock;
use super::kubernetes::WriteFence;
use super::scheduler::{SchedulerError, SchedulerFuture};
use crate::sources::kubernetes::connection::ResponseReadLimit;
use crate::sources::kubernetes::{KubernetesClientConfig as Server, connection};
use model::source_report::SourceProblemKind;
use model::text::clean;

/// The environment variable that passes the term to child processes.
pub const TERM_VARIABLE: &str = "FABRICGATE_TERM";

/// Duration of a Lease that does not specify one: the default of Kubernetes controllers.
const DEFAULT_LEASE_DURATION_S: f64 = 15.0;

/// One term of one holder; never reused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseTerm {
    /// The namespace of the Lease.
    pub namespace: String,
    /// The name of the Lease.
    pub name: String,
    /// The identity of the holder.
    pub holder: String,
    /// `leaseTransitions` of the Lease: the fencing number.
    pub transitions: i32,
}

impl LeaseTerm {
    /// Parses `namespace/name/holder/transitions`.
    pub fn parse(text: &str) -> Result<Self, String> {
        let parts: Vec<&str> = text.split('/').collect();
        let wrong =
            || format!("{:?} is not a term (namespace/name/holder/transitions)", clean(text));
        let [namespace, name, holder, transitions] = parts[..] else { return Err(wrong()) };
        if [namespace, name, holder].iter().any(|part| part.is_empty()) {
            return Err(wrong());
        }
        let transitions = transitions.parse().map_err(|_| wrong())?;
        let owned = |part: &str| part.to_owned();
        Ok(Self {
            namespace: owned(namespace),
            name: owned(name),
            holder: owned(holder),
            transitions,
        })
    }

    /// The term passed by the parent process; `None` if there is none. A malformed term
    /// is an error, because writes without a fence were not intended.
    pub fn from_env() -> Result<Option<Self>, String> {
        match std::env::var(TERM_VARIABLE) {
            Ok(text) if text.is_empty() => Ok(None),
            Ok(text) => {
                Self::parse(&text).map(Some).map_err(|why| format!("{TERM_VARIABLE}: {why}"))
            }
            Err(std::env::VarError::NotPresent) => Ok(None),
            Err(std::env::VarError::NotUnicode(_)) => {
                Err(format!("{TERM_VARIABLE}: not UTF-8 text"))
            }
        }
    }
}

impl fmt::Display for LeaseTerm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { namespace, name, holder, transitions } = self;
        write!(f, "{namespace}/{name}/{holder}/{transitions}")
    }
}

/// The last observed state of a Lease, and when it last changed by the local clock.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct LeaseObservation {
    renewed: Option<MicroTime>,
    holder: String,
    transitions: i32,
    since_s: f64,
}

impl LeaseObservation {
    /// Observes a Lease: the time stays if nothing changed.
    pub(super) fn observe(before: Option<Self>, spec: &LeaseSpec, now_s: f64) -> Self {
        let renewed = spec.renew_time.clone();
        let holder = spec.holder_identity.clone().unwrap_or_default();
        let transitions = spec.lease_transitions.unwrap_or(0);
        match before {
            Some(seen)
                if (&seen.renewed, &seen.holder, seen.transitions)
                    == (&renewed, &holder, transitions) =>
            {
                seen
            }
            _ => Self { renewed, holder, transitions, since_s: now_s },
        }
    }

    /// Whether the duration has passed without a renewal. A Lease without a duration gets
    /// the usual one.
    pub(super) fn has_expired(&self, spec: &LeaseSpec, usual_s: f64, now_s: f64) -> bool {
        let duration = spec.lease_duration_seconds.map_or(usual_s, f64::from);
        self.holder.is_empty() || duration <= now_s - self.since_s
    }
}

/// Checks before each write that a term is still current.
pub struct LeaseFence {
    server: Server,
    term: Result<LeaseTerm, String>,
    /// Created on first use, because a client belongs to a runtime. Recreated when the
    /// server refuses it, because its token may have expired.
    api: Mutex<Option<Api<Lease>>>,
    observation: Mutex<Option<LeaseObservation>>,
}

impl fmt::Debug for LeaseFence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TermFence").field("term", &self.term).finish_non_exhaustive()
    }
}

impl LeaseFence {
    /// The fence of this term on this server. A malformed term refuses every write.
    pub fn new(server: Server, term: Result<LeaseTerm, String>) -> Self {
        Self { server, term, api: Mutex::new(None), observation: Mutex::new(None) }
    }

    /// Reads the Lease. An error means that writing is no longer allowed, or that this
    /// cannot be determined.
    async fn check_lease(&self) -> Result<(), SchedulerError> {
        let LeaseTerm { namespace, name, holder, transitions } = self
            .term
            .as_ref()
            .map_err(|why| SchedulerError::new(SourceProblemKind::Malformed, why.clone()))?;
        let of = format!("the Lease {namespace}/{name}");
        let unknown = |kind: SourceProblemKind, why: String| {
            SchedulerError::new(kind, format!("{of} cannot be read: {why}"))
        };
        let lost = |why: String| {
            let message = format!("{of} {why}; another instance is active");
            SchedulerError::new(SourceProblemKind::Contradictory, message)
        };
        let lease = match self.read_lease(namespace, name, &unknown).await {
            Err(SchedulerError { kind: SourceProblemKind::Denied, .. }) if self.drop_client() => {
                self.read_lease(namespace, name, &unknown).await?
            }
            read => read?,
        };
        let spec = lease.spec.unwrap_or_default();
        let now = clock::now().uptime_s;
        let seen = {
            let mut slot = lock_slot(&self.observation);
            let seen = LeaseObservation::observe(slot.take(), &spec, now);
            *slot = Some(seen.clone());
            seen
        };
        if seen.holder != *holder {
            let by = if seen.holder.is_empty() { "no one".to_owned() } else { clean(&seen.holder) };
            return Err(lost(format!("is held by {by}, no longer by {holder}")));
        }
        if seen.transitions != *transitions {
            let is = seen.transitions;
            return Err(lost(format!("is in term {is}, this one started in term {transitions}")));
        }
        if seen.has_expired(&spec, DEFAULT_LEASE_DURATION_S, now) {
            return Err(lost(format!("was not renewed by {holder} for its whole duration")));
        }
        Ok(())
    }

    /// Drops the cached client; returns whether there was one.
    fn drop_client(&self) -> bool {
        lock_slot(&self.api).take().is_some()
    }

    async fn read_lease(
        &self,
        namespace: &str,
        name: &str,
        unknown: &impl Fn(SourceProblemKind, String) -> SchedulerError,
    ) -> Result<Lease, SchedulerError> {
        let kept = lock_slot(&self.api).clone();
        let api = match kept {
            Some(api) => api,
            None => {
                let access = connection::connect(&self.server, ResponseReadLimit::Bounded).await;
                let access = access.map_err(|it| unknown(it.kind, it.message))?;
                Api::namespaced(access.client, namespace)
            }
        };
        let lease = match timeout(self.server.limit, api.get(name)).await {
            Ok(Ok(lease)) => lease,
            Ok(Err(error)) => {
                let (kind, message) = connection::refusal_problem(&error);
                return Err(unknown(kind, message));
            }
            Err(_) => {
                let why = format!("no answer within {:?}", self.server.limit);
                return Err(unknown(SourceProblemKind::Unreachable, why));
            }
        };
        *lock_slot(&self.api) = Some(api);
        Ok(lease)
    }
}

fn lock_slot<T>(slot: &Mutex<T>) -> MutexGuard<'_, T> {
    slot.lock().unwrap_or_else(PoisonError::into_inner)
}

impl WriteFence for LeaseFence {
    fn check<'a>(&'a self) -> SchedulerFuture<'a, ()> {
        Box::pin(self.check_lease())
    }
}

fn build_lease(name: &str, spec: LeaseSpec) -> Lease {
    let metadata = ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() };
    Lease { metadata, spec: Some(spec) }
}

/// The current time in the format of Leases.
fn micro_time_now() -> Option<MicroTime> {
    // An unparsable clock is left out: no instance compares it.
    clock::now().at.parse::<jiff::Timestamp>().ok().map(MicroTime)
}

fn post_params() -> PostParams {
    PostParams { field_manager: Some("fabricgate".to_owned()), ..PostParams::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(holder: &str, renewed: i64, transitions: i32) -> LeaseSpec {
        let at = jiff::Timestamp::from_second(renewed).expect("a moment");
        LeaseSpec {
            holder_identity: Some(holder.to_owned()),
            lease_duration_seconds: Some(15),
            lease_transitions: Some(transitions),
            renew_time: Some(MicroTime(at)),
            ..LeaseSpec::default()
        }
    }

    #[test]
    fn a_term_is_parsed_back_and_an_invalid_one_is_refused() {
        let text = "fabricgate/watch/pod-7/12";
        let term = LeaseTerm::parse(text).expect("a term");
        assert_eq!((term.transitions, term.to_string()), (12, text.to_owned()));
        for wrong in ["", "a/b/c", "a/b/c/d", "a/b//1", "a/b/c/1/2"] {
            assert!(LeaseTerm::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn expiry_depends_on_the_local_clock_since_the_last_change() {
        // The holder's clock is years ahead, then behind; neither matters.
        let first = LeaseObservation::observe(None, &spec("a", 4_000_000_000, 1), 100.0);
        let same =
            LeaseObservation::observe(Some(first.clone()), &spec("a", 4_000_000_000, 1), 114.0);
        assert!(!same.has_expired(&spec("a", 4_000_000_000, 1), 15.0, 114.0));
        assert!(same.has_expired(&spec("a", 4_000_000_000, 1), 15.0, 115.0));
        let renewed = LeaseObservation::observe(Some(same), &spec("a", 5, 1), 115.0);
        assert!(!renewed.has_expired(&spec("a", 5, 1), 15.0, 129.0));
        let released = LeaseObservation::observe(Some(renewed), &spec("", 5, 1), 116.0);
        assert!(released.has_expired(&spec("", 5, 1), 15.0, 116.0));
    }
}
