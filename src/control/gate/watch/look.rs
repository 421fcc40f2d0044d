//! One look: claims, the scheduler, the journal and certificates, and what is
//! due by them. Writes nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use super::state::State;
use super::{AskClaims, Watch};
use crate::gate::journal::Journal;
use crate::gate::lease::Term;
use crate::gate::reassert::Reasserted;
use crate::gate::scheduler::Scheduler;
use crate::gate::{certificates, journal, reassert, stamp};
use crate::store::signing::Trust;
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

/// How long marks rest that could not be put right.
const MARKS_REST: Duration = Duration::from_secs(600);

/// Why a node gets the start-up taint.
const TAINTED: &str = "what certified it counts no more, and it takes no new pods until it passes";

/// What looks remember of each other.
#[derive(Debug, Default)]
pub struct Look {
    claims: Option<(Claims, Instant)>,
    told: Option<(WatchEvent, Vec<schedule::MeasurementJob>)>,
    troubles: BTreeSet<String>,
    took: Duration,
    /// Marks are not tried again before then.
    marks_rest: Option<Instant>,
    told_marks: BTreeMap<NodeName, String>,
}

/// What a look came to.
#[derive(Debug)]
pub struct Looked {
    /// What is due.
    pub due: MeasurementSchedule,
    /// It differs from the last time.
    pub news: bool,
    /// Marks that are not as they should be.
    pub wrong: Wrong,
}

/// Marks that are not as they should be.
#[derive(Debug, Default)]
pub struct Wrong {
    live: SchedulerSnapshot,
    marks: Vec<(NodeName, String)>,
    taints: Vec<(NodeName, NodeUpdate)>,
}

/// Tells of nodes with one reason and one result together.
fn tell_marks<'t>(
    watch: &mut Watch<'_>,
    marks: impl Iterator<Item = (&'t NodeName, &'t str, Option<&'t str>)>,
) {
    let mut groups: BTreeMap<(&str, Option<&str>), Vec<NodeName>> = BTreeMap::new();
    for (node, why, result) in marks {
        groups.entry((why, result)).or_default().push(node.clone());
    }
    for ((why, result), nodes) in groups {
        let (why, result) = (why.to_owned(), result.map(str::to_owned));
        (watch.tell)(WatchEvent::Marks { nodes, why, result });
    }
}

impl Look {
    /// How long the last one took.
    pub fn took(&self) -> Duration {
        self.took
    }

    /// Looks and decides; an error says who could not be asked.
    pub async fn look(&mut self, watch: &mut Watch<'_>, state: &State) -> Result<Looked, String> {
        let began = Instant::now();
        let looked = self.looked(watch, state).await;
        self.took = began.elapsed();
        watch.vitals.looked(looked.is_ok());
        looked
    }

    async fn looked(&mut self, watch: &mut Watch<'_>, state: &State) -> Result<Looked, String> {
        self.refresh(watch).await?;
        let claims = &self.claims.as_ref().expect("they were read right before").0;
        let live = watch.scheduler.read(&[]).await;
        let live = live.map_err(|error| format!("{}: {error}", watch.scheduler.name()))?;
        let ledger = journal::look(&watch.folder).map_err(|error| error.to_string())?;
        let known = Known::read(&watch.folder, claims, watch.trust);
        let running: Vec<RunningMeasurement> =
            state.jobs.iter().map(super::state::Started::running).collect();
        let now = stamp::stamp();
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
            not_due: grouped(&due.not_due),
        };
        watch.vitals.saw(&live, &known.certificates, &ledger, &due, watch.settings.ahead_s, &now);
        let said = (event, due.jobs.clone());
        let news = self.told.as_ref() != Some(&said);
        if news {
            (watch.tell)(said.0.clone());
            self.told = Some(said);
        }
        let troubles: BTreeSet<String> =
            live.troubles.iter().chain(known.unreadable.values()).cloned().collect();
        for what in troubles.difference(&self.troubles) {
            (watch.tell)(WatchEvent::Trouble { what: clean(what) });
        }
        self.troubles = troubles;
        Ok(Looked { due, news, wrong: Wrong { live, marks: wrong, taints } })
    }

    /// Puts marks right that are not, or says that it would.
    pub async fn put_right(&mut self, watch: &mut Watch<'_>, wrong: Wrong, term: Option<&Term>) {
        let Wrong { live, marks: said, taints } = wrong;
        if !watch.apply {
            let taints = taints.iter().map(|(node, _)| (node.clone(), TAINTED.to_owned()));
            let all: BTreeMap<NodeName, String> = said.into_iter().chain(taints).collect();
            if all != self.told_marks {
                tell_marks(watch, all.iter().map(|(node, why)| (node, why.as_str(), None)));
                self.told_marks = all;
            }
            return;
        }
        let rests = self.marks_rest.is_some_and(|until| Instant::now() < until);
        if rests || (said.is_empty() && taints.is_empty()) {
            return;
        }
        self.marks_rest = None;
        // Another turn is at work: it puts them right itself, or the next look.
        let Ok(mut journal) = Journal::open_now(&watch.folder) else { return };
        let writer = term.and_then(|term| watch.writer.map(|writer| writer(term)));
        let scheduler = writer.as_deref().unwrap_or(watch.scheduler);
        // Others may have drained since it was looked.
        let taints = match (&self.claims, watch.taints) {
            (Some((claims, _)), true) => expiry::collect_taint_edits(
                &live,
                claims,
                journal.ledger(),
                watch.policy,
                &stamp::stamp(),
            ),
            _ => Vec::new(),
        };
        let mut done = reassert::reassert(scheduler, &live, journal.ledger(), watch.policy).await;
        // What could not be noted is said again, which changes nothing.
        let _ = journal.write_all(reassert::noted(&done, journal.ledger()));
        let tainted = tainted(scheduler, taints, journal.ledger(), watch.policy).await;
        drop(journal);
        let whys: BTreeMap<NodeName, String> = said.into_iter().collect();
        let taints = done.len()..done.len() + tainted.len();
        done.extend(tainted);
        let is_done =
            |it: &Reasserted| matches!(it.result, ActionResult::Done | ActionResult::Already);
        if !done.iter().all(is_done) {
            self.marks_rest = Some(Instant::now() + MARKS_REST);
        }
        watch.vitals.lapsed(done.iter().filter(|it| is_done(it)).count());
        let told = done.iter().enumerate().map(|(at, it)| {
            let said = whys.get(&it.node).filter(|_| !taints.contains(&at));
            (&it.node, said.map_or(TAINTED, String::as_str), Some(it.detail.as_str()))
        });
        tell_marks(watch, told);
    }

    /// Asks the sources again where it is time. What was claimed before counts on
    /// where they do not answer.
    async fn refresh(&mut self, watch: &mut Watch<'_>) -> Result<(), String> {
        let is_fresh = self.claims.as_ref().is_some_and(|(_, at)| at.elapsed() < watch.pace.claims);
        if is_fresh {
            return Ok(());
        }
        match asked(&watch.claims).await {
            Ok(claims) => {
                watch.vitals.claimed(&claims);
                self.claims = Some((claims, Instant::now()));
            }
            Err(why) => {
                let Some((_, at)) = &mut self.claims else { return Err(why) };
                *at = Instant::now();
                let what = format!("{why}; what was claimed before counts on");
                (watch.tell)(WatchEvent::Trouble { what });
            }
        }
        Ok(())
    }
}

/// Writes the start-up taint on those of the nodes that may still get it. They
/// are read first: their marks were written right before.
async fn tainted(
    scheduler: &dyn Scheduler,
    wanted: Vec<(NodeName, NodeUpdate)>,
    ledger: &JournalState,
    policy: &Policy,
) -> Vec<Reasserted> {
    if wanted.is_empty() || ledger.breaker.is_some() {
        return Vec::new();
    }
    let nodes: Vec<NodeName> = wanted.iter().map(|(node, _)| node.clone()).collect();
    // The next look tries again where nobody answers.
    let Ok(fresh) = scheduler.read(&nodes).await else { return Vec::new() };
    let now = stamp::stamp();
    let may = |node: &NodeName| {
        let node = fresh.nodes.get(node);
        node.is_some_and(|node| expiry::can_taint(node, ledger, policy, &now))
    };
    let wanted = wanted.into_iter().filter(|(node, _)| may(node)).collect();
    reassert::write(scheduler, wanted, &fresh).await
}

/// Asks in a thread: sources wait for servers and programs in their own way.
async fn asked(claims: &AskClaims) -> Result<Claims, String> {
    let (answer, answered) = oneshot::channel();
    let claims = AskClaims::clone(claims);
    let thread = std::thread::Builder::new().name("claims".to_owned()).spawn(move || {
        // Nobody to hear it is nobody who waits.
        let _ = answer.send(claims());
    });
    thread.map_err(|error| format!("no thread to ask for claims: {error}"))?;
    answered.await.map_err(|_| "who asked for claims has ended without an answer".to_owned())?
}

/// Certificates as they are on disk.
struct Known {
    certificates: BTreeMap<NodeName, Certificate>,
    unreadable: BTreeMap<NodeName, String>,
}

impl Known {
    fn read(folder: &Path, claims: &Claims, trust: &Trust) -> Self {
        let (found, troubles) = certificates::all(folder, trust);
        let certificates: BTreeMap<NodeName, Certificate> =
            found.into_iter().map(|it| (it.node.clone(), it)).collect();
        let mut unreadable = BTreeMap::new();
        if !troubles.is_empty() {
            let nodes = claims.domains.iter().flat_map(|domain| &domain.nodes);
            for node in nodes.filter(|node| !certificates.contains_key(*node)) {
                if let Err(error) = certificates::trusted(folder, node, trust) {
                    unreadable.insert(node.clone(), error.to_string());
                }
            }
        }
        Self { certificates, unreadable }
    }
}

/// Nodes with one reason together, in order of the reason.
fn grouped(not_due: &BTreeMap<NodeName, String>) -> Vec<DeferredNodes> {
    let mut by_why: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (node, why) in not_due {
        by_why.entry(why).or_default().push(node.as_str());
    }
    let told = by_why.into_iter().map(|(why, nodes)| DeferredNodes {
        why: why.to_owned(),
        count: nodes.len(),
        nodes: hostlist::fold(nodes),
    });
    told.collect()
}
