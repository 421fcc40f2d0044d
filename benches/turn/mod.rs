//! A timed turn of the gate: 1,000 drains decided and applied, with all the work behind the lock.
//! For benches of any scheduler.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use control::gate::executor::Executor;
use control::gate::journal::Journal;
use control::gate::scheduler::Scheduler;
use control::gate::{clock, executor};
use engine::policy::action_policy;
use engine::policy::action_policy::Policy;
use engine::policy::situation::{EvidenceRun, Situation};
use model::action::ActionResult;
use model::claims::{ClaimedDomain, Claims};
use model::finding_class::FindingClass;
use model::finding_rule::FindingRule;
use model::id::NodeName;
use model::verdict::{Finding, Locus, LocusKind, Outcome, VERDICTS_FORMAT, Verdicts};

/// Duration of each part, and the number of nodes.
pub(crate) struct Timed {
    pub(crate) nodes: usize,
    pub(crate) read: Duration,
    pub(crate) planned: usize,
    pub(crate) decided: Duration,
    pub(crate) done: usize,
    pub(crate) carried: Duration,
}

/// Drains these nodes of the scheduler in one turn. `between` is called before the drains are
/// applied.
pub(crate) fn timed(
    scheduler: &dyn Scheduler,
    names: &[NodeName],
    between: impl FnOnce(),
) -> Timed {
    let domain = ClaimedDomain {
        name: "ext".into(),
        nodes: names.to_vec(),
        platform: None,
        gpus_per_node: None,
        nic: None,
    };
    let fleet = Claims { domains: vec![domain], ..Claims::default() };
    let finding = |node: &NodeName| Finding {
        id: format!("fg-{node}"),
        outcome: Outcome::Failed,
        class: FindingClass::NvlinkAbsent,
        locus: Locus { node: Some(node.clone()), gpu: Some(0), ..Locus::new(LocusKind::Gpu) },
        measured: None,
        expected: None,
        unit: None,
        ratio: Some(0.1),
        peers: None,
        ratio_to_peers: None,
        own: None,
        ratio_to_own: None,
        confirmed: true,
        detectable: None,
        from_first_reading: false,
        rule: FindingRule::parse("bench"),
        summary: "made up".to_owned(),
        evidence: Vec::new(),
    };
    let verdicts = Verdicts {
        format: VERDICTS_FORMAT.to_owned(),
        platform: None,
        thresholds_digest: String::new(),
        simulated: false,
        outcome: Outcome::Failed,
        findings: names.iter().map(finding).collect(),
        nodes: Vec::new(),
        unknown: Vec::new(),
        notes: Vec::new(),
    };
    // Without limits: the bench times the work, not the limits.
    let policy = Policy {
        per_domain: names.len(),
        per_hour: 1.0,
        outstanding: 1.0,
        freeze_domain: names.len() + 1,
        freeze_fleet: 1.0,
        ..Policy::default()
    };
    let folder = tempfile::tempdir().expect("a folder");
    let mut journal = Journal::open(folder.path()).expect("a journal");
    let at = clock::now();
    let seen = EvidenceRun {
        id: "bench".to_owned(),
        profile: "audit".to_owned(),
        created: at.at.clone(),
        created_unix: at.unix,
        complete: true,
        real: true,
        simulated: false,
        unsigned: None,
        unsure: BTreeMap::new(),
    };
    let began = Instant::now();
    let live = super::now(scheduler.read_nodes(&[])).expect("read");
    let read = began.elapsed();
    // Where boots have ids, the nodes were measured in the current one.
    let boots =
        live.nodes.iter().filter_map(|(name, node)| Some((name.clone(), node.boot_id.clone()?)));
    let boots = boots.collect();
    let began = Instant::now();
    let plan = action_policy::propose_actions(
        &Situation {
            verdicts: &verdicts,
            fleet: &fleet,
            coverage: None,
            run: &seen,
            live: Some(&live),
            ledger: journal.state(),
            controls: &BTreeSet::new(),
            drivers: &BTreeMap::new(),
            now: &at,
            boots: &boots,
        },
        &policy,
    );
    let decided = began.elapsed();
    assert_eq!(plan.actions.len(), names.len(), "{:?}", plan.withheld.first());
    between();
    let began = Instant::now();
    let (_sender, stop) = tokio::sync::watch::channel(false);
    let carrier = Executor {
        scheduler,
        journal: &mut journal,
        names: &policy.marks,
        settle: executor::DEFAULT_SETTLE_TIME,
        log: &mut |_| {},
        stop,
    };
    let records = super::now(executor::execute_plan(carrier, "bench", &plan)).expect("carried out");
    let carried = began.elapsed();
    let done = records.iter().filter(|it| it.result == ActionResult::Done).count();
    Timed { nodes: live.nodes.len(), read, planned: plan.actions.len(), decided, done, carried }
}
