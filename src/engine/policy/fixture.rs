//! A small test fixture for decisions: a fleet of blocks, all idle, and a current run.

use std::collections::{BTreeMap, BTreeSet};

use super::action_policy::Policy;
use super::journal_state::{JournalState, OwnDrain};
use super::situation::{EvidenceRun, PlanCoverage, Situation};
use super::{action_policy, drain_reason, release};
use model::action::{Action, ActionKind, ActionPlan, VerdictMark};
use model::claims::{ClaimedDomain, ClaimedLeaf, Claims};
use model::finding_class::FindingClass;
use model::finding_rule::FindingRule;
use model::id::NodeName;
use model::journal::ClockStamp;
use model::kubernetes_node::{KubernetesNode, Taint};
use model::node_update::NodeUpdate;
use model::scheduler_snapshot::{SchedulerNode, SchedulerSnapshot};
use model::verdict::{Finding, Locus, LocusKind, NodeVerdict, Outcome, Verdicts};

/// The present time, in seconds since 1970.
pub(super) const NOW: i64 = 1_795_000_000;

#[derive(Clone, Debug)]
pub(super) struct PolicyFixture {
    pub verdicts: Verdicts,
    pub fleet: Claims,
    pub coverage: Option<PlanCoverage>,
    pub run: EvidenceRun,
    pub live: Option<SchedulerSnapshot>,
    pub ledger: JournalState,
    pub controls: BTreeSet<NodeName>,
    pub drivers: BTreeMap<NodeName, String>,
    pub boots: BTreeMap<NodeName, String>,
    pub now: ClockStamp,
    pub policy: Policy,
}

impl PolicyFixture {
    /// `domains` blocks of `nodes` nodes, `d0n0` to `d<d>n<n>`, all idle and passing.
    pub(super) fn with_blocks(domains: usize, nodes: usize) -> Self {
        let names = |d: usize| -> Vec<NodeName> {
            (0..nodes).map(|n| NodeName::from(format!("d{d}n{n}"))).collect()
        };
        let domain = |d: usize| ClaimedDomain {
            name: format!("d{d}").into(),
            nodes: names(d),
            platform: None,
            gpus_per_node: None,
            nic: None,
        };
        let fleet = Claims { domains: (0..domains).map(domain).collect(), ..Claims::default() };
        let all: Vec<NodeName> = (0..domains).flat_map(names).collect();
        let idle = |node: &NodeName| {
            let live = SchedulerNode {
                booted: Some(NOW - 90_000),
                allocated_cpus: Some(0),
                ..SchedulerNode::new(node.clone(), &["IDLE"])
            };
            (node.clone(), live)
        };
        let pass = |node: &NodeName| NodeVerdict {
            node: node.clone(),
            domain: fleet.domain_of(node).map(|d| d.name.clone()),
            outcome: Outcome::Pass,
            reason: String::new(),
            kept_by: None,
            detectable: None,
            detectable_together: None,
            fabric_detectable: None,
            scope: None,
        };
        let live =
            SchedulerSnapshot { nodes: all.iter().map(idle).collect(), troubles: Vec::new() };
        let verdicts =
            Verdicts { nodes: all.iter().map(pass).collect(), ..Verdicts::empty(Outcome::Pass) };
        let run = EvidenceRun {
            id: "run2".to_owned(),
            profile: "recertify".to_owned(),
            created: "2026-11-18T12:00:00Z".to_owned(),
            created_unix: NOW - 600,
            complete: true,
            real: true,
            simulated: false,
            unsigned: None,
            unsure: BTreeMap::new(),
        };
        let now = ClockStamp {
            at: "2026-11-18T12:10:00Z".to_owned(),
            unix: NOW,
            boot: "boot-a".to_owned(),
            uptime_s: 500_000.0,
        };
        Self {
            verdicts,
            fleet,
            coverage: None,
            run,
            live: Some(live),
            ledger: JournalState { epoch: 7, ..JournalState::default() },
            controls: BTreeSet::new(),
            drivers: BTreeMap::new(),
            boots: BTreeMap::new(),
            now,
            // Generous budgets leave room for the limits under test, and one run is enough.
            policy: Policy {
                per_hour: 1.0,
                outstanding: 1.0,
                again_hours: 0.0,
                ..Policy::default()
            },
        }
    }

    /// The same fixture with Kubernetes as the scheduler: each node ready in its own boot, in
    /// which the run measured it.
    pub(super) fn on_kubernetes(mut self) -> Self {
        let live = self.live.as_mut().expect("a scheduler that was asked");
        for (name, node) in &mut live.nodes {
            let boot = format!("boot-{name}");
            let object = KubernetesNode { uid: format!("uid-{name}"), ..Default::default() };
            node.kubernetes = Some(Box::new(object));
            node.booted = None;
            node.allocated_cpus = None;
            self.boots.insert(name.clone(), boot.clone());
            node.boot_id = Some(boot);
        }
        self
    }

    /// The Kubernetes object of a node.
    pub(super) fn object(&mut self, node: &str) -> &mut KubernetesNode {
        self.node(node).kubernetes.as_mut().expect("a node of Kubernetes")
    }

    pub(super) fn situation(&self) -> Situation<'_> {
        Situation {
            verdicts: &self.verdicts,
            fleet: &self.fleet,
            coverage: self.coverage,
            run: &self.run,
            live: self.live.as_ref(),
            ledger: &self.ledger,
            controls: &self.controls,
            drivers: &self.drivers,
            now: &self.now,
            boots: &self.boots,
        }
    }

    /// Drains and marks only; releases and certificates are tested in `release`.
    pub(super) fn plan(&self) -> ActionPlan {
        let mut plan = action_policy::propose_actions(&self.situation(), &self.policy);
        let (_, kept) = release::propose_releases(&self.situation(), &self.policy);
        plan.actions.retain(|a| matches!(a.kind, ActionKind::Drain | ActionKind::Relabel));
        plan.withheld.retain(|withheld| !kept.contains(withheld));
        plan
    }

    /// A confirmed finding against a node.
    pub(super) fn accuse(&mut self, node: &str, class: &str, outcome: Outcome, ratio: f64) {
        self.verdicts.findings.push(finding(node, class, outcome, ratio));
        let verdict = self.verdicts.nodes.iter_mut().find(|v| v.node.as_str() == node);
        if let Some(verdict) = verdict {
            verdict.outcome = verdict.outcome.max(outcome);
        }
    }

    /// The node as its scheduler reports it.
    pub(super) fn node(&mut self, node: &str) -> &mut SchedulerNode {
        let live = self.live.as_mut().expect("a scheduler that was asked");
        live.nodes.get_mut(&NodeName::from(node)).expect("a node of the fleet")
    }

    pub(super) fn state(&mut self, node: &str, words: &[&str]) -> &mut SchedulerNode {
        let live = self.node(node);
        live.state = words.iter().map(|word| (*word).to_owned()).collect();
        live
    }

    /// A drain by fabricgate in force, made `ago` seconds ago for `run1`.
    pub(super) fn drained(&mut self, node: &str, class: &str, ratio: f64, ago: i64) -> OwnDrain {
        let own = drain(&self.fleet, node, class, ratio, stamp(ago));
        self.ledger.drains.insert(NodeName::from(node), own.clone());
        self.ledger.spent.push(super::journal_state::BudgetSpend {
            id: own.id.clone(),
            stamp: own.stamp.clone(),
            action: own.action.clone(),
        });
        let reason = own.action.reason.clone();
        self.state(node, &["IDLE", "DRAIN"]).reason = Some(reason);
        own
    }

    pub(super) fn leaf(&mut self, name: &str, nodes: &[&str]) {
        let nodes = nodes.iter().map(|node| NodeName::from(*node)).collect();
        self.fleet.leaves.push(ClaimedLeaf { name: name.to_owned(), nodes });
    }

    /// Why nothing is proposed for a node.
    pub(super) fn why(&self, node: &str) -> String {
        let plan = self.plan();
        assert!(plan.actions.iter().all(|a| a.node.as_str() != node), "{node}: {plan:#?}");
        let withheld = plan.withheld.iter().find(|w| w.what == node);
        withheld.unwrap_or_else(|| panic!("{node} in {plan:#?}")).why.clone()
    }

    pub(super) fn proposed(&self) -> Vec<String> {
        let plan = self.plan();
        plan.actions
            .iter()
            .map(|a| format!("{} {}", format!("{:?}", a.kind).to_lowercase(), a.node))
            .collect()
    }
}

/// The node after a change, as an API server stores it; its version changes.
pub(super) fn written(node: &SchedulerNode, change: &NodeUpdate) -> SchedulerNode {
    let mut node = node.clone();
    let object = node.kubernetes.as_mut().expect("a node of Kubernetes");
    let marks = change.kubernetes.clone().unwrap_or_default();
    for edit in marks.taints {
        object.taints.retain(|it| (&it.key, &it.effect) != (&edit.key, &edit.effect));
        let (key, effect) = (edit.key, edit.effect);
        object.taints.extend(edit.value.map(|value| Taint { key, value, effect }));
    }
    let set = |map: &mut BTreeMap<String, String>, edits: BTreeMap<String, Option<String>>| {
        for (key, value) in edits {
            match value {
                Some(value) => map.insert(key, value),
                None => map.remove(&key),
            };
        }
    };
    set(&mut object.labels, marks.labels);
    set(&mut object.annotations, marks.annotations);
    object.condition = marks.condition.or(object.condition.take());
    node
}

/// A time `ago` seconds before now, in the same boot.
#[expect(clippy::cast_precision_loss, reason = "tests count in days")]
pub(super) fn stamp(ago: i64) -> ClockStamp {
    ClockStamp {
        at: format!("{ago} s ago"),
        unix: NOW - ago,
        boot: "boot-a".to_owned(),
        uptime_s: 500_000.0 - ago as f64,
    }
}

/// A confirmed finding against a node.
pub(super) fn finding(node: &str, class: &str, outcome: Outcome, ratio: f64) -> Finding {
    let mut locus = Locus::new(LocusKind::Gpu);
    locus.node = Some(NodeName::from(node));
    Finding {
        ratio: Some(ratio),
        confirmed: true,
        from_first_reading: false,
        rule: FindingRule::parse("r"),
        summary: "too slow".to_owned(),
        ..Finding::new(format!("{class}-{node}"), outcome, FindingClass::from_name(class), locus)
    }
}

/// A drain by fabricgate, for `run1`.
pub(super) fn drain(
    fleet: &Claims,
    node: &str,
    class: &str,
    ratio: f64,
    stamp: ClockStamp,
) -> OwnDrain {
    let node = NodeName::from(node);
    let outcome = Outcome::Degraded;
    OwnDrain {
        id: format!("run1/{node}/drain"),
        epoch: 3,
        stamp,
        run: "run1".to_owned(),
        action: Action {
            domain: fleet.domain_of(&node).map(|d| d.name.clone()),
            reason: drain_reason::format_reason("run1", class, 3),
            mark: Some(VerdictMark {
                outcome,
                class: Some(FindingClass::from_name(class)),
                run: "run1".to_owned(),
                at: String::new(),
                expires: None,
                boot_id: None,
                domain: None,
            }),
            findings: vec![format!("{class}-{node}")],
            ratio: Some(ratio),
            ..Action::new(ActionKind::Drain, node.clone())
        },
        before: SchedulerNode { booted: Some(NOW - 90_000), ..SchedulerNode::new(node, &["IDLE"]) },
        clean: Vec::new(),
    }
}
