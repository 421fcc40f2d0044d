//! The nodes that one audit measures: the options that override `[audit]`, and the facts that
//! the selection (`engine::plan::audit_selection`) needs.

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

/// Options that stand over `[audit]`.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Budget of an audit")]
pub struct AuditOptions {
    /// Most minutes that the audit is planned to take; the nodes that were not measured for longest
    /// come first.
    #[arg(long, value_name = "M")]
    minutes: Option<AuditMinutes>,
    /// Most nodes.
    #[arg(long, value_name = "N")]
    nodes_at_most: Option<AuditNodeCount>,
    /// Most of all claimed nodes, such as 0.05, but at least two nodes.
    #[arg(long, value_name = "SHARE")]
    share: Option<AuditShare>,
    /// Most of the nodes of each domain, such as 0.25, but at least two nodes.
    #[arg(long, value_name = "SHARE")]
    share_of_domain: Option<AuditShare>,
    /// Every idle node, whatever [audit] says.
    #[arg(long, conflicts_with_all = ["minutes", "nodes_at_most", "share", "share_of_domain"])]
    all: bool,
}

impl AuditOptions {
    /// Whether any is given.
    pub fn are_given(&self) -> bool {
        self.all || self.is_limited()
    }

    fn is_limited(&self) -> bool {
        let shares = self.share.is_some() || self.share_of_domain.is_some();
        shares || self.minutes.is_some() || self.nodes_at_most.is_some()
    }

    /// The limits of the audit. Without a limit on the command line, all nodes that the operator
    /// names are measured.
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

/// Chooses whom an audit measures, where something limits it, and tells why not
/// the others. What was chosen may be nobody.
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
    // What is wrong with the configuration is said here; below it cannot be.
    PlanBasis::new(config, &chosen.claims, catalogue, Profile::Audit, seed)?;
    let known = gather_node_facts(config, &chosen.claims);
    let cost = |claims: &Claims| {
        PlanBasis::new(config, claims, catalogue, Profile::Audit, seed)
            .map_or(f64::INFINITY, |basis| plan::plan_sweep(&basis.request()).estimate_s)
    };
    let choice = audit_selection::select_nodes(&AuditSelectionRequest {
        claims: &chosen.claims,
        known: &known,
        budget,
        seed,
        cost: &cost,
    });
    for line in describe_choice(&choice) {
        note(&line);
    }
    Ok(PlanScope { claims: choice.restrict_claims(&chosen.claims), ..chosen })
}

/// The choice in lines: who, and the others by the reason why not.
fn describe_choice(choice: &AuditSelection) -> Vec<String> {
    let count = choice.nodes.len();
    let mut lines = vec![match count {
        0 => "nobody is measured".to_owned(),
        _ => format!(
            "measured {} {count} of {} nodes, about {:.0} min: {}",
            if count == 1 { "is" } else { "are" },
            count + choice.left_out.len(),
            (choice.estimate_s / 60.0).ceil(),
            hostlist::fold(choice.nodes.iter().map(NodeName::as_str))
        ),
    }];
    let mut by_why: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (node, left) in &choice.left_out {
        // When each was measured is in the record; here the reason is what matters.
        by_why.entry(&left.why).or_default().push(node.as_str());
    }
    for (why, nodes) in by_why {
        lines.push(format!("not {}: {why}", hostlist::fold(nodes)));
    }
    lines
}

/// What is known of every claimed node.
fn gather_node_facts(config: &Config, claims: &Claims) -> BTreeMap<NodeName, AuditNodeState> {
    let nodes: BTreeSet<NodeName> =
        claims.domains.iter().flat_map(|domain| domain.nodes.iter().cloned()).collect();
    let (mut lately, troubles) =
        last_measured::read_last_measured(&config.run_dir, &nodes, &config.launcher);
    for trouble in troubles {
        note(&format!("not known from this run when nodes were measured: {trouble}"));
    }
    let index = config.history.path_for(&config.run_dir);
    // Run folders are thinned out, and what they showed stays in the history.
    let older = RunHistory::open_read_only(&index).and_then(|history| history.last_measured());
    for (node, last) in older.unwrap_or_default() {
        if last.is_complete && nodes.contains(&node) {
            let it = lately.entry(node).or_default();
            it.last_result = it.last_result.max(Some(last.at_unix));
        }
    }
    let mut known: BTreeMap<NodeName, AuditNodeState> = BTreeMap::new();
    for node in nodes {
        let lately = lately.remove(&node).unwrap_or_default();
        let unfit = claims.nodes.get(&node).and_then(|said| unfit_reason(&node, said));
        let (measured, tried, misses) =
            (lately.last_result, lately.last_attempt, lately.failures_since);
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

/// Notes whom the gate's journal has as slow and not yet seen again.
fn mark_suspects(
    config: &Config,
    gate: &GateConfig,
    known: &mut BTreeMap<NodeName, AuditNodeState>,
) {
    let ledger = match journal::read_state(&gate.folder) {
        Ok(ledger) => ledger,
        Err(error) => {
            note(&format!("not known whom a run found slow: {error}"));
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

/// Why a node is not idle in service, as far as sources say. What they do not say
/// is found out when it is to be held.
pub(crate) fn unfit_reason(node: &NodeName, said: &NodeReport) -> Option<String> {
    if let Some(mark) = said.opt_out.first() {
        return Some(format!("it is left alone: {}", clean(mark)));
    }
    if said.busy == Some(true) {
        return Some("it is busy".to_owned());
    }
    let words: Vec<&str> = said.state.iter().map(String::as_str).collect();
    // Slurm's words are in capitals; Kubernetes' are `Ready` and what speaks against it.
    let is_slurms = words.iter().all(|word| !word.chars().any(|c| c.is_ascii_lowercase()));
    match words.as_slice() {
        [] => None,
        words if is_slurms => {
            let mut live = SchedulerNode::new(node.clone(), words);
            live.reason.clone_from(&said.reason);
            node_state::explain_no_measurement(&live)
        }
        words if words.contains(&"SchedulingDisabled") => Some("it is cordoned".to_owned()),
        words if words.contains(&"Ready") => None,
        _ => Some("it is not ready".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_stand_over_the_section_which_nodes_that_are_named_are_not_limited_by() {
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
        assert!(unfit_reason(&"n1".into(), &left).expect("left alone").contains("label x"));
    }
}
