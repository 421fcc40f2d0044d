//! Reduces findings to causes: duplicate findings about a part become one, and a state that nearly
//! all GPUs of a domain share has one common cause.
//!
//! Works on findings alone; it measures nothing and blames no additional part.

use std::collections::{BTreeMap, BTreeSet};

use super::domain_recordings::DomainRecordings;
use super::finding::{domain_locus, new_finding, node_locus};
use super::finding_set::FindingSet;
use model::finding_class::FindingClass;
use model::finding_rule::FindingRule;
use model::id::{DomainName, NodeName};
use model::verdict::{Evidence, Finding, Locus, LocusKind, Outcome};

/// States of single GPUs that a switch, a partition or a host can cause in all GPUs together, in
/// merge order.
const SHARED_CAUSE_CLASSES: &[FindingClass] = &[
    FindingClass::NvlinkInactive,
    FindingClass::NvlinkRate,
    FindingClass::NvlinkAbsent,
    FindingClass::FabricState,
    FindingClass::FabricHealth,
];

/// Reported states that explain a low bandwidth on the same GPU, and the bandwidth class.
const STATE_EXPLAINS: &[(FindingClass, FindingClass)] = &[
    (FindingClass::NvlinkInactive, FindingClass::NvlinkLow),
    (FindingClass::NvlinkInactive, FindingClass::PlaneLow),
    (FindingClass::NvlinkRate, FindingClass::NvlinkLow),
    (FindingClass::FabricHealth, FindingClass::NvlinkLow),
    (FindingClass::FabricState, FindingClass::NvlinkAbsent),
    (FindingClass::FabricState, FindingClass::FabricNotConfigured),
    (FindingClass::NvlinkAbsent, FindingClass::FabricNotConfigured),
];

/// If this share of all GPUs is alike, the cause is shared.
const NEARLY_ALL: f64 = 0.75;

/// In a smaller domain, a shared cause and single faults look the same.
const SMALLEST_DOMAIN: usize = 4;

pub(super) fn merge(domains: &[DomainRecordings<'_>], ledger: &mut FindingSet) {
    // Most nodes have no such finding, and a large fleet has many nodes.
    let reported: BTreeSet<(DomainName, NodeName, &FindingClass)> = ledger
        .findings()
        .filter(|f| f.locus.kind == LocusKind::Gpu)
        .filter_map(|f| {
            let class = SHARED_CAUSE_CLASSES.iter().find(|class| **class == f.class)?;
            Some((f.locus.domain.clone()?, f.locus.node.clone()?, class))
        })
        .collect();
    let classes_by_domain: BTreeSet<(&DomainName, &FindingClass)> =
        reported.iter().map(|(domain, _, class)| (domain, *class)).collect();
    for domain in domains {
        for class in SHARED_CAUSE_CLASSES
            .iter()
            .filter(|class| classes_by_domain.contains(&(&domain.name, *class)))
        {
            if domain.spans_nodes() {
                lift_to_domain(domain, class, ledger);
            }
            for node in &domain.nodes {
                if reported.contains(&(domain.name.clone(), node.clone(), class)) {
                    lift_to_node(domain, node, class, ledger);
                }
            }
        }
    }
    join_states(ledger);
}

/// Memory of a node without IMEX cannot be imported anywhere, which is not evidence of another
/// domain. A copy with a measured rate is, and stays.
pub(super) fn drop_explained_imports(ledger: &mut FindingSet) {
    let gone: BTreeSet<NodeName> = ledger
        .findings()
        .filter(|f| f.class == FindingClass::ImexPeerMissing)
        .filter_map(|f| f.locus.node.clone())
        .collect();
    let ends = |f: &Finding| -> Vec<NodeName> {
        let peer = f.locus.peer.as_deref().map(NodeName::from);
        f.locus.node.iter().cloned().chain(peer).filter(|node| gone.contains(node)).collect()
    };
    let is_effect = |f: &Finding| {
        f.class == FindingClass::WrongDomain && f.measured == Some(0.0) && !ends(f).is_empty()
    };
    for effect in ledger.take(is_effect) {
        for node in ends(&effect) {
            ledger.update_of_node(&node, |f| {
                if f.class == FindingClass::ImexPeerMissing {
                    f.evidence.extend(effect.evidence.iter().cloned());
                }
            });
        }
    }
}

fn is_gpu_finding(finding: &Finding, domain: &DomainRecordings<'_>, class: &FindingClass) -> bool {
    finding.class == *class
        && finding.locus.kind == LocusKind::Gpu
        && finding.locus.domain.as_ref() == Some(&domain.name)
}

/// Replaces findings of this class about nearly all GPUs of a domain with one about the domain (a
/// plane, if links are missing).
fn lift_to_domain(domain: &DomainRecordings<'_>, class: &FindingClass, ledger: &mut FindingSet) {
    let all = domain.nodes.len() * domain.gpus_per_node.unwrap_or(0) as usize;
    let here = |f: &Finding| is_gpu_finding(f, domain, class);
    let alike: Vec<&Finding> =
        ledger.findings_of_domain(&domain.name).filter(|f| here(f)).collect();
    let nodes: BTreeSet<&NodeName> = alike.iter().filter_map(|f| f.locus.node.as_ref()).collect();
    if all < SMALLEST_DOMAIN || nodes.len() < 2 || !is_nearly_all(alike.len(), all) {
        return;
    }
    let Some(typical) = most_common(&alike) else { return };
    let kind =
        if *class == FindingClass::NvlinkInactive { LocusKind::Plane } else { LocusKind::Domain };
    let summary = format!(
        "{} of {all} GPUs of {} report the same: {}; one shared cause, such as a switch",
        alike.len(),
        domain.name,
        ledger.gpu_summary(typical)
    );
    let lifted = new_lifted_finding(typical, domain_locus(kind, &domain.name), summary);
    // A GPU that exceeds the common loss keeps its own finding.
    let (measured, outcome) = (typical.measured, typical.outcome);
    ledger.take_of_domain(&domain.name, |f| {
        let is_worse = outcome < f.outcome
            || f.measured.zip(measured).is_some_and(|(own, common)| own < common);
        here(f) && !is_worse
    });
    ledger.add(lifted);
}

/// The same for all GPUs of one node.
fn lift_to_node(
    domain: &DomainRecordings<'_>,
    node: &NodeName,
    class: &FindingClass,
    ledger: &mut FindingSet,
) {
    let here =
        |f: &Finding| is_gpu_finding(f, domain, class) && f.locus.node.as_ref() == Some(node);
    let alike: Vec<&Finding> = ledger.findings_of_node(node).filter(|f| here(f)).collect();
    let all = domain.gpus_per_node.unwrap_or(0) as usize;
    if all < 2 || alike.len() < all {
        return;
    }
    let Some(typical) = most_common(&alike) else { return };
    let summary = format!("all {all} GPUs of {node}: {}", ledger.gpu_summary(typical));
    let lifted = new_lifted_finding(typical, node_locus(&domain.name, node), summary);
    ledger.take_of_node(node, here);
    ledger.add(lifted);
}

#[expect(clippy::cast_precision_loss, reason = "counts of GPUs")]
fn is_nearly_all(some: usize, all: usize) -> bool {
    NEARLY_ALL <= some as f64 / all.max(1) as f64
}

/// The finding whose numbers are most frequent.
fn most_common<'f>(findings: &[&'f Finding]) -> Option<&'f Finding> {
    let mut counts: BTreeMap<(Outcome, Option<u64>), (usize, &Finding)> = BTreeMap::new();
    for finding in findings {
        let key = (finding.outcome, finding.measured.map(f64::to_bits));
        counts.entry(key).or_insert((0, finding)).0 += 1;
    }
    counts.into_values().max_by_key(|(count, _)| *count).map(|(_, finding)| finding)
}

fn new_lifted_finding(typical: &Finding, locus: Locus, summary: String) -> Finding {
    let id =
        new_finding(typical.outcome, typical.class.clone(), locus.clone(), FindingRule::default())
            .id;
    Finding { id, locus, summary, ..typical.clone() }
}

/// Joins a reported state with the bandwidth finding it explains: the bandwidth finding stays, with
/// the state in its evidence.
fn join_states(ledger: &mut FindingSet) {
    let states = ledger.take(|f| STATE_EXPLAINS.iter().any(|(state, _)| *state == f.class));
    let left: Vec<Finding> = states.into_iter().filter_map(|it| join_state(it, ledger)).collect();
    // Among the states themselves: a GPU without links is not registered either.
    for state in left {
        if let Some(alone) = join_state(state, ledger) {
            ledger.add(alone);
        }
    }
}

/// Adds a state to the first finding that it explains; returns it if none exists.
fn join_state(state: Finding, ledger: &mut FindingSet) -> Option<Finding> {
    let Locus { node, domain, .. } = state.locus.clone();
    let mut left = Some(state);
    let mut add = |effect: &mut Finding| {
        if let Some(state) = left.take_if(|state| explains(state, effect)) {
            let Finding { class, evidence, .. } = state;
            // A state that absorbed others keeps its own finding.
            let of_state =
                |it: Evidence| Evidence { class: it.class.or(Some(class.clone())), ..it };
            effect.evidence.extend(evidence.into_iter().map(of_state));
        }
    };
    match (node, domain) {
        (Some(node), _) => ledger.update_of_node(&node, &mut add),
        (None, Some(domain)) => ledger.update_of_domain(&domain, &mut add),
        (None, None) => ledger.update(&mut add),
    }
    left
}

fn explains(state: &Finding, effect: &Finding) -> bool {
    let known = STATE_EXPLAINS.iter().any(|(s, e)| *s == state.class && *e == effect.class);
    let whole_node = effect.locus.kind == LocusKind::Node;
    known
        && (&state.locus.domain, &state.locus.node) == (&effect.locus.domain, &effect.locus.node)
        && (state.locus.gpu == effect.locus.gpu || whole_node)
        && state.outcome <= effect.outcome
}
