//! The state for monitoring, from runs, certificates and the gate's record.
//!
//! For each node the newest run that judged it counts; an interrupted run counts only for its
//! findings about a node, because it left the rest unmeasured. No file is opened here.

use std::collections::{BTreeMap, BTreeSet};

use super::levels::PathClass;
use super::{
    CertificateValidity, GateMetricsState, MetricsState, NodeMetricsState, ProfileMetricsState,
};
use crate::policy::action_policy::Policy;
use crate::policy::journal_state::JournalState;
use crate::policy::{budget, pause};
use model::certificate::Certificate;
use model::claims::Claims;
use model::id::{DomainName, NodeName};
use model::journal::ClockStamp;
use model::trend::OpenAlarm;
use model::verdict::{Outcome, Verdicts};

/// The verdict of a run on one node.
#[derive(Clone, Debug, PartialEq)]
pub struct RunNodeMetrics {
    /// Its domain.
    pub domain: Option<DomainName>,
    /// Its outcome.
    pub outcome: Outcome,
    /// The smallest degradation that was detectable.
    pub detectable: Option<f64>,
}

/// One completed run, as far as monitoring needs it.
#[derive(Clone, Debug, PartialEq)]
pub struct RunMetrics {
    /// Its profile.
    pub profile: String,
    /// When it was made, in seconds since 1970.
    pub at: i64,
    /// Its duration, if it ran without interruption.
    pub seconds: Option<f64>,
    /// Whether every step of its plan was tried.
    pub is_complete: bool,
    /// Whether it measured a simulated fabric, or replayed a stored run.
    pub is_simulated: bool,
    /// The number of claimed nodes.
    pub fleet: usize,
    /// Whether it proposed nothing, for a reason that concerns more than one node.
    pub is_frozen: bool,
    /// Its counts, for display if it is the last run of its profile.
    pub counts: ProfileMetricsState,
    /// Its nodes.
    pub nodes: BTreeMap<NodeName, RunNodeMetrics>,
}

impl RunMetrics {
    /// Records the verdicts of the judge.
    pub fn record_verdicts(&mut self, verdicts: &Verdicts) {
        self.counts.record_verdicts(verdicts);
        let verdict = verdicts.nodes.iter().map(|it| {
            let (domain, outcome) = (it.domain.clone(), it.outcome);
            (it.node.clone(), RunNodeMetrics { domain, outcome, detectable: it.detectable })
        });
        self.nodes = verdict.collect();
    }

    fn is_counted(&self, verdict: &RunNodeMetrics) -> bool {
        self.is_complete || Outcome::Unknown < verdict.outcome
    }

    /// The nodes with a verdict of this run that counts.
    pub fn counted_nodes(&self) -> impl Iterator<Item = (&NodeName, &RunNodeMetrics)> {
        self.nodes.iter().filter(|(_, verdict)| self.is_counted(verdict))
    }
}

/// The inputs of the state.
#[derive(Clone, Copy, Debug)]
pub struct MetricsInputs<'a> {
    /// Completed runs, newest first.
    pub runs: &'a [&'a RunMetrics],
    /// Levels by index in `runs`, for runs that are the newest of some node.
    pub levels: &'a BTreeMap<usize, BTreeMap<NodeName, BTreeMap<PathClass, f64>>>,
    /// Certificates, void or not.
    pub certificates: &'a [&'a Certificate],
    /// The gate's record, if there is a gate.
    pub ledger: Option<&'a JournalState>,
    /// The claims about the fleet, if available.
    pub fleet: Option<&'a Claims>,
    /// The policy of the gate.
    pub policy: &'a Policy,
    /// Active drift alarms.
    pub alarms: &'a [OpenAlarm],
    /// Whether the history could be read, or does not exist.
    pub is_history_read: bool,
    /// Number of files that could not be read.
    pub problems: usize,
    /// The present time.
    pub now: &'a ClockStamp,
}

/// The runs, newest first, that are the newest of some node.
pub fn newest_runs(runs: &[&RunMetrics]) -> BTreeMap<NodeName, usize> {
    let mut newest = BTreeMap::new();
    for (at, run) in runs.iter().enumerate() {
        for (node, _) in run.counted_nodes() {
            newest.entry(node.clone()).or_insert(at);
        }
    }
    newest
}

/// Builds the state.
pub fn build_state(from: &MetricsInputs<'_>) -> MetricsState {
    let nodes = build_nodes(from);
    MetricsState {
        now: from.now.unix,
        drifting: build_drifts(from, &nodes),
        is_history_read: from.is_history_read,
        nodes,
        profiles: build_profiles(from.runs),
        gate: from.ledger.map(|ledger| build_gate(from, ledger)),
        problems: from.problems,
        is_simulated: from.runs.iter().any(|run| run.is_simulated),
    }
}

fn build_nodes(from: &MetricsInputs<'_>) -> BTreeMap<NodeName, NodeMetricsState> {
    let mut nodes: BTreeMap<NodeName, NodeMetricsState> = BTreeMap::new();
    let claimed = from.fleet.into_iter().flat_map(|fleet| &fleet.domains);
    for (domain, node) in claimed.flat_map(|it| it.nodes.iter().map(move |node| (&it.name, node))) {
        nodes.entry(node.clone()).or_default().domain = Some(domain.clone());
    }
    for run in from.runs {
        // A node that appears without a verdict in interrupted runs only is known by name.
        for (node, verdict) in &run.nodes {
            let it = nodes.entry(node.clone()).or_default();
            it.domain = it.domain.take().or_else(|| verdict.domain.clone());
        }
    }
    for (node, at) in newest_runs(from.runs) {
        let run = from.runs[at];
        let (Some(verdict), Some(it)) = (run.nodes.get(&node), nodes.get_mut(&node)) else {
            continue;
        };
        it.outcome = Some(verdict.outcome);
        it.measured = Some(run.at);
        it.detectable = verdict.detectable;
        let levels = from.levels.get(&at).and_then(|of_run| of_run.get(&node));
        it.worst = levels.cloned().unwrap_or_default();
    }
    for certificate in from.certificates {
        let it = nodes.entry(certificate.node.clone()).or_default();
        it.certificate = Some(CertificateValidity::from(*certificate));
        it.domain = it.domain.take().or_else(|| certificate.domain.clone());
    }
    for alarm in from.alarms {
        // The history contains nodes that no longer exist; they are not added again.
        if let Some(it) = alarm.part.node.as_ref().and_then(|node| nodes.get_mut(node)) {
            it.alarms.push(alarm.clone());
        }
    }
    nodes
}

/// The alarms of domains that contain a known node.
fn build_drifts(
    from: &MetricsInputs<'_>,
    nodes: &BTreeMap<NodeName, NodeMetricsState>,
) -> BTreeMap<DomainName, Vec<OpenAlarm>> {
    let known: BTreeSet<&DomainName> = nodes.values().filter_map(|it| it.domain.as_ref()).collect();
    let mut drifting: BTreeMap<DomainName, Vec<OpenAlarm>> = BTreeMap::new();
    for alarm in from.alarms.iter().filter(|it| it.part.node.is_none()) {
        if let Some(domain) = alarm.part.domain.as_ref().filter(|it| known.contains(it)) {
            drifting.entry(domain.clone()).or_default().push(alarm.clone());
        }
    }
    drifting
}

fn build_profiles(runs: &[&RunMetrics]) -> BTreeMap<String, ProfileMetricsState> {
    let mut profiles: BTreeMap<String, ProfileMetricsState> = BTreeMap::new();
    for run in runs {
        let last = profiles.entry(run.profile.clone()).or_insert_with(|| ProfileMetricsState {
            at: run.at,
            seconds: run.seconds,
            is_complete: run.is_complete,
            is_frozen: run.is_frozen,
            conclusive: None,
            passed: None,
            ..run.counts.clone()
        });
        let outcome = run.counts.outcome.filter(|_| run.is_complete);
        if outcome.is_some_and(|it| it != Outcome::Unknown) {
            last.conclusive.get_or_insert(run.at);
        }
        if outcome == Some(Outcome::Pass) {
            last.passed.get_or_insert(run.at);
        }
    }
    profiles
}

fn build_gate(from: &MetricsInputs<'_>, ledger: &JournalState) -> GateMetricsState {
    let claimed = from.fleet.map(|it| it.domains.iter().map(|domain| domain.nodes.len()).sum());
    let fleet: Option<usize> = claimed.or_else(|| from.runs.first().map(|run| run.fleet));
    let budgets =
        fleet.map(|fleet| budget::budget_shares(ledger, fleet, from.policy, from.now).into());
    GateMetricsState {
        is_tripped: ledger.breaker.is_some(),
        is_paused: pause::active_pause(ledger, from.now).is_some(),
        drains: ledger.drains.len(),
        open: ledger.open_intents.len(),
        budgets: budgets.unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn test_run(profile: &str, at: i64, complete: bool, nodes: &[(&str, Outcome)]) -> RunMetrics {
        let verdict =
            |outcome| RunNodeMetrics { domain: Some("d".into()), outcome, detectable: Some(0.01) };
        let nodes: BTreeMap<NodeName, RunNodeMetrics> =
            nodes.iter().map(|(name, outcome)| ((*name).into(), verdict(*outcome))).collect();
        let outcome = nodes.values().map(|it| it.outcome).max();
        RunMetrics {
            profile: profile.to_owned(),
            at,
            seconds: Some(9.0),
            is_complete: complete,
            is_simulated: false,
            fleet: 200,
            is_frozen: false,
            counts: ProfileMetricsState { outcome, ..ProfileMetricsState::default() },
            nodes,
        }
    }

    fn build_test_state(runs: &[&RunMetrics]) -> MetricsState {
        let ledger = JournalState::default();
        build_state(&MetricsInputs {
            runs,
            levels: &BTreeMap::new(),
            certificates: &[],
            ledger: Some(&ledger),
            fleet: None,
            policy: &Policy::default(),
            alarms: &[],
            is_history_read: true,
            problems: 0,
            now: &ClockStamp::default(),
        })
    }

    #[test]
    fn the_newest_run_of_a_node_counts_and_one_that_was_interrupted_only_against_it() {
        let older = test_run("admit", 10, true, &[("n1", Outcome::Pass), ("n2", Outcome::Pass)]);
        let newer = test_run("audit", 20, true, &[("n1", Outcome::Degraded)]);
        let cut = test_run(
            "audit",
            30,
            false,
            &[("n1", Outcome::Unknown), ("n2", Outcome::Failed), ("n3", Outcome::Pass)],
        );
        let state = build_test_state(&[&cut, &newer, &older]);
        let of = |node: &str| state.nodes[&NodeName::from(node)].clone();
        assert_eq!((of("n1").outcome, of("n1").measured), (Some(Outcome::Degraded), Some(20)));
        assert_eq!((of("n2").outcome, of("n2").measured), (Some(Outcome::Failed), Some(30)));
        assert_eq!(of("n3").outcome, None, "an interrupted run makes no pass");
    }

    #[test]
    fn each_profile_has_its_last_run_and_its_last_conclusive_one() {
        let runs = [
            test_run("audit", 50, false, &[("n1", Outcome::Pass)]),
            test_run("audit", 40, true, &[("n1", Outcome::Unknown)]),
            test_run("audit", 30, true, &[("n1", Outcome::Degraded)]),
            test_run("admit", 20, true, &[("n1", Outcome::Pass)]),
            test_run("audit", 10, true, &[("n1", Outcome::Pass)]),
        ];
        let state = build_test_state(&runs.iter().collect::<Vec<_>>());
        let audit = &state.profiles["audit"];
        assert_eq!((audit.at, audit.is_complete), (50, false));
        assert_eq!((audit.conclusive, audit.passed), (Some(30), Some(10)));
        assert_eq!(state.profiles["admit"].passed, Some(20));
        let gate = state.gate.expect("a gate");
        assert!(gate.budgets.iter().all(|it| 0 < it.limit && it.left == it.limit), "{gate:?}");
    }
}
