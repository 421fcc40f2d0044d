//! The nodes that one audit measures: the options that override `[audit]`, and the facts for the
//! selection (`engine::plan::audit_selection`).

use std::collections::{BTreeMap, BTreeSet};

use crate::cli::gate_apply;
use crate::cli::plan_scope::{PlanBasis, PlanScope};
use crate::cli::stdout::note;
use crate::config::Config;
use crate::config::audit::{AuditConfig, AuditMinutes, AuditNodeCount, AuditShare};
use crate::config::gate::GateConfig;
use crate::exit::CommandError;
use control::gate::{certificates, clock, journal};
use control::store::history::RunHistory;
use control::store::last_measured;
use engine::plan;
use engine::plan::audit_selection;
use engine::plan::audit_selection::{
    AuditBudget, AuditNodeState, AuditSelection, AuditSelectionRequest,
};
use engine::policy::{node_state, repeat_confirmation};
use engine::thresholds::PlatformCatalogue;
use model::claims::Claims;
use model::hostlist;
use model::id::NodeName;
use model::profile::Profile;
use model::scheduler_snapshot::SchedulerNode;
use model::source_report::NodeReport;
use model::text::clean;

/// Options that override `[audit]`.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Budget of an audit")]
pub struct AuditOptions {
    /// Most minutes of the planned audit; the nodes whose last measurement is oldest come first.
    #[arg(long, value_name = "M")]
    minutes: Option<AuditMinutes>,
    /// Most nodes to measure.
    #[arg(long, value_name = "N")]
    nodes_at_most: Option<AuditNodeCount>,
    /// Most nodes to measure as a share of all claimed nodes, such as 0.05, but at least two nodes.
    #[arg(long, value_name = "SHARE")]
    share: Option<AuditShare>,
    /// Most nodes to measure of each domain as a share, such as 0.25, but at least two nodes.
    #[arg(long, value_name = "SHARE")]
    share_of_domain: Option<AuditShare>,
    /// Measure every idle node, without the limits of [audit].
    #[arg(long, conflicts_with_all = ["minutes", "nodes_at_most", "share", "share_of_domain"])]
    all: bool,
}

impl AuditOptions {
    /// Whether any option is given.
    pub fn are_given(&self) -> bool {
        self.all || self.is_limited()
    }

    fn is_limited(&self) -> bool {
        let shares = self.share.is_some() || self.share_of_domain.is_some();
        shares || self.minutes.is_some() || self.nodes_at_most.is_some()
    }

    /// The effective budget. [audit] does not limit nodes that the operator names; only options do.
    pub fn budget(&self, configured: &AuditConfig, named: bool) -> AuditBudget {
        let given = AuditConfig {
            minutes: self.minutes,
            nodes_at_most: self.nodes_at_most,
            share: self.share,
            share_of_domain: self.share_of_domain,
        };
        let given = given.budget();
        let base = if self.all || named { AuditBudget::default() } else { configured.budget() };
        AuditBudget {
            seconds: given.seconds.or(base.seconds),
            nodes: given.nodes.or(base.nodes),
            share: given.share.or(base.share),
            share_of_domain: given.share_of_domain.or(base.share_of_domain),
        }
    }
}

/// Selects the nodes that an audit measures if a budget limits it, and prints why each other node
/// is left out. The selection may be empty.
pub fn select_audit_nodes(
    config: &Config,
    catalogue: &PlatformCatalogue,
    chosen: PlanScope,
    budget: AuditBudget,
    seed: u64,
) -> Result<PlanScope, CommandError> {
    if budget.is_unlimited() {
        return Ok(chosen);
    }
    // Configuration errors surface here; the cost function below cannot return them.
    PlanBasis::new(config, &chosen.claims, catalogue, Profile::Audit, seed)?;
    let facts = gather_node_facts(config, &chosen.claims);
    let cost = |claims: &Claims| {
        PlanBasis::new(config, claims, catalogue, Profile::Audit, seed)
            .map_or(f64::INFINITY, |basis| plan::plan_sweep(&basis.request()).estimate_s)
    };
    let choice = audit_selection::select_nodes(&AuditSelectionRequest {
        claims: &chosen.claims,
        known: &facts,
        budget,
        seed,
        cost: &cost,
    });
    for line in describe_choice(&choice) {
        note(&line);
    }
    Ok(PlanScope { claims: choice.restrict_claims(&chosen.claims), ..chosen })
}

/// The selection in lines: the selected nodes, then the others by reason.
fn describe_choice(choice: &AuditSelection) -> Vec<String> {
    let count = choice.nodes.len();
    let mut lines = vec![match count {
        0 => "no node is measured".to_owned(),
        _ => format!(
            "selected {count} of {} nodes, about {:.0} min: {}",
            count + choice.left_out.len(),
            (choice.estimate_s / 60.0).ceil(),
            hostlist::fold(choice.nodes.iter().map(NodeName::as_str))
        ),
    }];
    let mut by_why: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (node, left) in &choice.left_out {
        // The record has the time of each measurement; here only the reason matters.
        by_why.entry(&left.why).or_default().push(node.as_str());
    }
    for (why, nodes) in by_why {
        lines.push(format!("not selected: {}: {why}", hostlist::fold(nodes)));
    }
    lines
}

/// The known facts of every claimed node.
fn gather_node_facts(config: &Config, claims: &Claims) -> BTreeMap<NodeName, AuditNodeState> {
    let nodes: BTreeSet<NodeName> =
        claims.domains.iter().flat_map(|domain| domain.nodes.iter().cloned()).collect();
    let (mut attempts, troubles) =
        last_measured::read_last_measured(&config.run_dir, &nodes, &config.launcher);
    for trouble in troubles {
        note(&format!("the time of earlier measurements is unknown from this run: {trouble}"));
    }
    let index = config.history.path_for(&config.run_dir);
    // Run folders are pruned; the history keeps their results.
    let older = RunHistory::open_read_only(&index).and_then(|history| history.last_measured());
    for (node, last) in older.unwrap_or_default() {
        if last.is_complete && nodes.contains(&node) {
            let it = attempts.entry(node).or_default();
            it.last_result = it.last_result.max(Some(last.at_unix));
        }
    }
    let mut known: BTreeMap<NodeName, AuditNodeState> = BTreeMap::new();
    for node in nodes {
        let attempt = attempts.remove(&node).unwrap_or_default();
        let unfit = claims.nodes.get(&node).and_then(|report| unfit_reason(&node, report));
        let (measured, tried, misses) =
            (attempt.last_result, attempt.last_attempt, attempt.failures_since);
        let of_node =
            AuditNodeState { measured, tried, misses, unfit, ..AuditNodeState::default() };
        known.insert(node, of_node);
    }
    if let Some(gate) = &config.gate {
        mark_suspects(config, gate, &mut known);
        let (issued, _) =
            certificates::read_all(&gate.folder, &gate_apply::read_trusted_keys(Some(config)));
        for certificate in issued {
            if let Some(it) = known.get_mut(&certificate.node) {
                it.certified = Some(certificate.issued_unix);
            }
        }
    }
    known
}

/// Marks nodes that the gate's journal lists as slow and not yet confirmed.
fn mark_suspects(
    config: &Config,
    gate: &GateConfig,
    known: &mut BTreeMap<NodeName, AuditNodeState>,
) {
    let ledger = match journal::read_state(&gate.folder) {
        Ok(ledger) => ledger,
        Err(error) => {
            note(&format!("the suspects of earlier runs are unknown: {error}"));
            return;
        }
    };
    let now = clock::now().unix;
    for (node, suspicion) in &ledger.suspicions {
        let open = repeat_confirmation::is_open(suspicion, &config.policy, now);
        if let Some(it) = known.get_mut(node).filter(|_| open) {
            it.suspected = true;
        }
    }
}

/// Why a node is not idle and in service, as far as the sources report. The allocation finds out
/// what they do not report.
pub(crate) fn unfit_reason(node: &NodeName, report: &NodeReport) -> Option<String> {
    if let Some(mark) = report.opt_out.first() {
        return Some(format!("it opted out: {}", clean(mark)));
    }
    if report.busy == Some(true) {
        return Some("it is busy".to_owned());
    }
    let states: Vec<&str> = report.state.iter().map(String::as_str).collect();
    // Slurm's states are in capitals; Kubernetes' are `Ready` and conditions against it.
    let is_slurms = states.iter().all(|word| !word.chars().any(|c| c.is_ascii_lowercase()));
    match states.as_slice() {
        [] => None,
        states if is_slurms => {
            let mut live = SchedulerNode::new(node.clone(), states);
            live.reason.clone_from(&report.reason);
            node_state::explain_no_measurement(&live)
        }
        states if states.contains(&"SchedulingDisabled") => Some("it is cordoned".to_owned()),
        states if states.contains(&"Ready") => None,
        _ => Some("it is not ready".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_override_the_section_and_named_nodes_ignore_the_section() {
        let configured = AuditConfig {
            minutes: Some(1.0.into()),
            nodes_at_most: Some(4.into()),
            ..AuditConfig::default()
        };
        let options = AuditOptions { nodes_at_most: Some(2.into()), ..AuditOptions::default() };
        let both = AuditBudget { nodes: Some(2), ..configured.budget() };
        assert_eq!(options.budget(&configured, false), both);
        let own = AuditBudget { nodes: Some(2), ..AuditBudget::default() };
        assert_eq!(options.budget(&configured, true), own);
        let none = AuditOptions::default();
        assert_eq!(none.budget(&configured, false), configured.budget());
        assert!(none.budget(&configured, true).is_unlimited());
        let all = AuditOptions { all: true, ..AuditOptions::default() };
        assert!(all.budget(&configured, false).is_unlimited());
    }

    #[test]
    fn only_nodes_that_are_idle_in_service_are_fit() {
        let of = |state: &[&str]| {
            let state = state.iter().map(|word| (*word).to_owned()).collect();
            unfit_reason(&"n1".into(), &NodeReport { state, ..NodeReport::default() })
        };
        for fit in [&[][..], &["IDLE"], &["Ready"]] {
            assert_eq!(of(fit), None, "{fit:?}");
        }
        for not in [
            &["ALLOCATED"][..],
            &["IDLE", "DRAIN"],
            &["DOWN"],
            &["Ready", "SchedulingDisabled"],
            &["NotReady"],
        ] {
            assert!(of(not).is_some(), "{not:?}");
        }
        let busy = NodeReport { busy: Some(true), ..NodeReport::default() };
        assert_eq!(unfit_reason(&"n1".into(), &busy).as_deref(), Some("it is busy"));
        let left = NodeReport { opt_out: vec!["label x".to_owned()], ..NodeReport::default() };
        assert!(unfit_reason(&"n1".into(), &left).expect("opted out").contains("label x"));
    }
}
