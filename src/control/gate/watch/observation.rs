//! One observation: reads claims, scheduler, journal and certificates, and decides which
//! measurements are due. Only corrections of marks are written.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use super::state::WatchState;
use super::{ClaimsFetcher, WatchLoop};
use crate::gate::journal::Journal;
use crate::gate::lease::LeaseTerm;
use crate::gate::mark_reassertion::ReassertResult;
use crate::gate::scheduler::Scheduler;
use crate::gate::{certificates, clock, journal, mark_reassertion};
use crate::store::document_signature::SignatureTrust;
use engine::policy::action_policy::Policy;
use engine::policy::journal_state::JournalState;
use engine::policy::schedule::{MeasurementSchedule, RunningMeasurement, ScheduleInput, expiry};
use engine::policy::{certificate, pause, schedule};
use model::action::ActionResult;
use model::certificate::Certificate;
use model::claims::Claims;
use model::hostlist;
use model::id::NodeName;
use model::node_update::NodeUpdate;
use model::scheduler_snapshot::SchedulerSnapshot;
use model::text::clean;
use model::watch::{DeferredNodes, WatchEvent};

/// Pause after marks could not be corrected.
const MARK_RETRY_INTERVAL: Duration = Duration::from_secs(600);

/// Reason for the start-up taint.
const STARTUP_TAINT_REASON: &str =
    "its certificate is no longer valid; it takes no new pods until it passes";

/// State kept between observations.
#[derive(Debug, Default)]
pub struct WatchObserver {
    claims: Option<(Claims, Instant)>,
    last_emitted: Option<(WatchEvent, Vec<schedule::MeasurementJob>)>,
    problems: BTreeSet<String>,
    last_duration: Duration,
    /// Earliest time of the next correction of marks.
    marks_retry_after: Option<Instant>,
    emitted_marks: BTreeMap<NodeName, String>,
}

/// Result of an observation.
#[derive(Debug)]
pub struct WatchObservation {
    /// The measurements that are due.
    pub due: MeasurementSchedule,
    /// Whether the result differs from the last one.
    pub is_changed: bool,
    /// Marks to correct.
    pub corrections: MarkCorrections,
}

/// Marks that differ from their expected state.
#[derive(Debug, Default)]
pub struct MarkCorrections {
    live: SchedulerSnapshot,
    marks: Vec<(NodeName, String)>,
    taints: Vec<(NodeName, NodeUpdate)>,
}

/// Reports marks, grouped by reason and result.
fn emit_marks<'t>(
    watch: &mut WatchLoop<'_>,
    marks: impl Iterator<Item = (&'t NodeName, &'t str, Option<&'t str>)>,
) {
    let mut groups: BTreeMap<(&str, Option<&str>), Vec<NodeName>> = BTreeMap::new();
    for (node, why, result) in marks {
        groups.entry((why, result)).or_default().push(node.clone());
    }
    for ((why, result), nodes) in groups {
        let (why, result) = (why.to_owned(), result.map(str::to_owned));
        (watch.emit)(WatchEvent::Marks { nodes, why, result });
    }
}

impl WatchObserver {
    /// Duration of the last observation.
    pub fn last_duration(&self) -> Duration {
        self.last_duration
    }

    /// Reads everything and decides; the error names the source that could not be read.
    pub async fn observe(
        &mut self,
        watch: &mut WatchLoop<'_>,
        state: &WatchState,
    ) -> Result<WatchObservation, String> {
        let began = Instant::now();
        let observed = self.observe_nodes(watch, state).await;
        self.last_duration = began.elapsed();
        watch.metrics.record_observation(observed.is_ok());
        observed
    }

    async fn observe_nodes(
        &mut self,
        watch: &mut WatchLoop<'_>,
        state: &WatchState,
    ) -> Result<WatchObservation, String> {
        self.refresh_claims(watch).await?;
        let claims = &self.claims.as_ref().expect("they were read right before").0;
        let live = watch.scheduler.read_nodes(&[]).await;
        let live = live.map_err(|error| format!("{}: {error}", watch.scheduler.name()))?;
        let ledger = journal::read_state(&watch.folder).map_err(|error| error.to_string())?;
        let known = CertificatesOnDisk::read(&watch.folder, claims, watch.trust);
        let running: Vec<RunningMeasurement> =
            state.jobs.iter().map(super::state::StartedJob::to_running_measurement).collect();
        let now = clock::now();
        let due = schedule::schedule_measurements(
            &ScheduleInput {
                live: &live,
                fleet: claims,
                certificates: &known.certificates,
                unreadable: &known.unreadable,
                ledger: &ledger,
                attempts: &state.attempts,
                running: &running,
            },
            &watch.settings,
            &now,
        );
        let counts = |it: &&Certificate| {
            let node = live.nodes.get(&it.node);
            certificate::explain_expiry(it, now.unix).is_none()
                && node.is_some_and(|node| certificate::explain_outlived(it, node).is_none())
        };
        let wrong = expiry::collect_mark_edits(&live, &ledger, watch.policy, &now);
        let taints = match watch.taints {
            true => expiry::collect_taint_edits(&live, claims, &ledger, watch.policy, &now),
            false => Vec::new(),
        };
        let event = WatchEvent::Looked {
            nodes: live.nodes.len(),
            claimed: claims.domains.iter().map(|domain| domain.nodes.len()).sum(),
            certified: known.certificates.values().filter(counts).count(),
            drained: ledger.drains.len(),
            breaker: ledger.breaker.as_ref().map(|it| format!("{}: {}", it.stamp.at, it.why)),
            paused: pause::active_pause(&ledger, &now).map(pause::describe_pause),
            not_due: group_deferred(&due.not_due),
        };
        watch.metrics.set_node_states(
            &live,
            &known.certificates,
            &ledger,
            &due,
            watch.settings.ahead_s,
            &now,
        );
        let emitted = (event, due.jobs.clone());
        let news = self.last_emitted.as_ref() != Some(&emitted);
        if news {
            (watch.emit)(emitted.0.clone());
            self.last_emitted = Some(emitted);
        }
        let troubles: BTreeSet<String> =
            live.troubles.iter().chain(known.unreadable.values()).cloned().collect();
        for what in troubles.difference(&self.problems) {
            (watch.emit)(WatchEvent::Trouble { what: clean(what) });
        }
        self.problems = troubles;
        Ok(WatchObservation {
            due,
            is_changed: news,
            corrections: MarkCorrections { live, marks: wrong, taints },
        })
    }

    /// Corrects marks, or without `apply` reports the corrections.
    pub async fn apply_corrections(
        &mut self,
        watch: &mut WatchLoop<'_>,
        wrong: MarkCorrections,
        term: Option<&LeaseTerm>,
    ) {
        let MarkCorrections { live, marks: reasons, taints } = wrong;
        if !watch.apply {
            let taints =
                taints.iter().map(|(node, _)| (node.clone(), STARTUP_TAINT_REASON.to_owned()));
            let all: BTreeMap<NodeName, String> = reasons.into_iter().chain(taints).collect();
            if all != self.emitted_marks {
                emit_marks(watch, all.iter().map(|(node, why)| (node, why.as_str(), None)));
                self.emitted_marks = all;
            }
            return;
        }
        let rests = self.marks_retry_after.is_some_and(|until| Instant::now() < until);
        if rests || (reasons.is_empty() && taints.is_empty()) {
            return;
        }
        self.marks_retry_after = None;
        // Another turn holds the lock: it corrects the marks itself, or the next
        // observation does.
        let Ok(mut journal) = Journal::open_without_waiting(&watch.folder) else { return };
        let writer = term.and_then(|term| watch.writer.map(|writer| writer(term)));
        let scheduler = writer.as_deref().unwrap_or(watch.scheduler);
        // Nodes may have been drained since the observation.
        let taints = match (&self.claims, watch.taints) {
            (Some((claims, _)), true) => expiry::collect_taint_edits(
                &live,
                claims,
                journal.state(),
                watch.policy,
                &clock::now(),
            ),
            _ => Vec::new(),
        };
        let mut done =
            mark_reassertion::reassert_marks(scheduler, &live, journal.state(), watch.policy).await;
        // A condition event that cannot be journaled is repeated later, without effect.
        let _ = journal.append_all(mark_reassertion::condition_events(&done, journal.state()));
        let tainted = write_startup_taints(scheduler, taints, journal.state(), watch.policy).await;
        drop(journal);
        let whys: BTreeMap<NodeName, String> = reasons.into_iter().collect();
        let taints = done.len()..done.len() + tainted.len();
        done.extend(tainted);
        let is_done =
            |it: &ReassertResult| matches!(it.result, ActionResult::Done | ActionResult::Already);
        if !done.iter().all(is_done) {
            self.marks_retry_after = Some(Instant::now() + MARK_RETRY_INTERVAL);
        }
        watch.metrics.count_expired_marks(done.iter().filter(|it| is_done(it)).count());
        let lines = done.iter().enumerate().map(|(at, it)| {
            let why = whys.get(&it.node).filter(|_| !taints.contains(&at));
            (&it.node, why.map_or(STARTUP_TAINT_REASON, String::as_str), Some(it.detail.as_str()))
        });
        emit_marks(watch, lines);
    }

    /// Reads the claims again if they are too old. If the sources fail, the earlier
    /// claims stay in use.
    async fn refresh_claims(&mut self, watch: &mut WatchLoop<'_>) -> Result<(), String> {
        let is_fresh = self
            .claims
            .as_ref()
            .is_some_and(|(_, at)| at.elapsed() < watch.intervals.claims_refresh);
        if is_fresh {
            return Ok(());
        }
        match fetch_in_thread(&watch.fetch_claims).await {
            Ok(claims) => {
                watch.metrics.set_claims(&claims);
                self.claims = Some((claims, Instant::now()));
            }
            Err(why) => {
                let Some((_, at)) = &mut self.claims else { return Err(why) };
                *at = Instant::now();
                let what = format!("{why}; the earlier claims stay in use");
                (watch.emit)(WatchEvent::Trouble { what });
            }
        }
        Ok(())
    }
}

/// Writes the start-up taint on the nodes where it is still allowed. Reads them again
/// first, because their marks were just written.
async fn write_startup_taints(
    scheduler: &dyn Scheduler,
    wanted: Vec<(NodeName, NodeUpdate)>,
    ledger: &JournalState,
    policy: &Policy,
) -> Vec<ReassertResult> {
    if wanted.is_empty() || ledger.breaker.is_some() {
        return Vec::new();
    }
    let nodes: Vec<NodeName> = wanted.iter().map(|(node, _)| node.clone()).collect();
    // On an error, the next observation tries again.
    let Ok(fresh) = scheduler.read_nodes(&nodes).await else { return Vec::new() };
    let now = clock::now();
    let may = |node: &NodeName| {
        let node = fresh.nodes.get(node);
        node.is_some_and(|node| expiry::can_taint(node, ledger, policy, &now))
    };
    let wanted = wanted.into_iter().filter(|(node, _)| may(node)).collect();
    mark_reassertion::write_marks(scheduler, wanted, &fresh).await
}

/// Reads claims in a thread: sources block on servers and programs.
async fn fetch_in_thread(claims: &ClaimsFetcher) -> Result<Claims, String> {
    let (answer, received) = oneshot::channel();
    let claims = ClaimsFetcher::clone(claims);
    let thread = std::thread::Builder::new().name("claims".to_owned()).spawn(move || {
        // An error means that the receiver is gone.
        let _ = answer.send(claims());
    });
    thread.map_err(|error| format!("cannot start the thread that reads claims: {error}"))?;
    received.await.map_err(|_| "the thread that reads claims ended without an answer".to_owned())?
}

struct CertificatesOnDisk {
    certificates: BTreeMap<NodeName, Certificate>,
    unreadable: BTreeMap<NodeName, String>,
}

impl CertificatesOnDisk {
    fn read(folder: &Path, claims: &Claims, trust: &SignatureTrust) -> Self {
        let (found, troubles) = certificates::read_all(folder, trust);
        let certificates: BTreeMap<NodeName, Certificate> =
            found.into_iter().map(|it| (it.node.clone(), it)).collect();
        let mut unreadable = BTreeMap::new();
        if !troubles.is_empty() {
            let nodes = claims.domains.iter().flat_map(|domain| &domain.nodes);
            for node in nodes.filter(|node| !certificates.contains_key(*node)) {
                if let Err(error) = certificates::read_trusted(folder, node, trust) {
                    unreadable.insert(node.clone(), error.to_string());
                }
            }
        }
        Self { certificates, unreadable }
    }
}

/// Groups nodes by reason, sorted by reason.
fn group_deferred(not_due: &BTreeMap<NodeName, String>) -> Vec<DeferredNodes> {
    let mut by_why: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (node, why) in not_due {
        by_why.entry(why).or_default().push(node.as_str());
    }
    let groups = by_why.into_iter().map(|(why, nodes)| DeferredNodes {
        why: why.to_owned(),
        count: nodes.len(),
        nodes: hostlist::fold(nodes),
    });
    groups.collect()
}
