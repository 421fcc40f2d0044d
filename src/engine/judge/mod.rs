//! Judges measurements: deviation from the expectation, the faulty part, and the confidence.
//!
//! Pure functions: no I/O, no clock. Missing, waived, truncated and unverified data end as unknown
//! by a named rule; they never count for or against a node.

mod claims;
mod class_traits;
mod clique_claims;
pub mod collective;
mod collective_peers;
mod common_cause;
mod component_state;
pub mod confirm;
mod confirm_coverage;
mod confirm_readings;
mod covariates;
mod coverage;
mod domain_recordings;
pub mod drift;
mod driver_telemetry;
mod fabric;
mod fabric_group;
mod fabric_matrix;
mod finding;
mod finding_set;
mod floor;
mod gpu_product;
mod gpu_stability;
mod history_baseline;
mod host;
mod host_index;
mod isolation;
mod latency_outliers;
mod leaf_uplinks;
mod level;
mod membership;
mod merge_findings;
mod network;
mod network_matrix;
mod nic;
mod node_verdicts;
mod nvlink_matrix;
mod output_participants;
mod output_problems;
mod pair_failures;
mod pair_matrix;
mod path_stability;
mod peel;
mod rail_readings;
pub mod run_comparison;
mod run_levels;
pub mod run_summary;
pub mod sequential_test;
pub mod site_levels;
mod testcase;
#[cfg(test)]
mod tests;
mod tool_disputes;
mod unreached_pairs;

use collective_peers::CollectivePeers;
pub use confirm_readings::ReferenceLevels;
use domain_recordings::DomainRecordings;
use fabric::FabricJudgement;
use fabric_group::FabricGroup;
use finding_set::FindingSet;

use std::collections::BTreeSet;

use crate::thresholds::PlatformCatalogue;
use model::claims::Claims;
use model::finding_rule::RuleKind;
use model::measured_cell::MeasuredCell;
use model::part_history::PartHistory;
use model::stats;
use model::text::format_percent;
use model::tool_recording::ToolRecording;
use model::unknown_subject::UnknownSubject;
use model::verdict::{VERDICTS_FORMAT, Verdicts};

/// The input of a judgement.
#[derive(Clone, Copy, Debug)]
pub struct JudgeInput<'a> {
    /// The claims. Domains that appear only in the recordings are added.
    pub claims: &'a Claims,
    /// Every output that was read.
    pub recordings: &'a [ToolRecording],
    /// The expectations to compare with.
    pub catalogue: &'a PlatformCatalogue,
    /// Digest of those expectations.
    pub thresholds_digest: &'a str,
    /// The platform that the operator named; overrides claims and devices.
    pub platform: Option<&'a str>,
    /// Whether to return every cell, for a report; verdicts do not need them.
    pub cells: bool,
    /// Pairs were sampled on purpose: a pair that no test selected is not a gap.
    pub sampled: bool,
}

/// The result of a judgement.
#[derive(Clone, Debug, PartialEq)]
pub struct Judgement {
    /// The claims as judged: the given ones, plus those derived from recordings.
    pub claims: Claims,
    /// Every measured cell, in the direction of the data.
    pub cells: Vec<MeasuredCell>,
    /// The verdicts of all nodes and of the run.
    pub verdicts: Verdicts,
    /// The levels that readings were compared with.
    pub levels: ReferenceLevels,
    /// Files of network pairs without a usable result.
    pub unusable: BTreeSet<String>,
}

/// The smallest loss of a part that a sweep can detect, as a share, for this many partners, this
/// many readings with each, and readings that scatter by `sigma`.
pub fn detectable_loss(partners: usize, readings: u32, sigma: f64) -> f64 {
    let count = partners.saturating_mul(usize::try_from(readings).unwrap_or(usize::MAX));
    peel::smallest_detectable(stats::median_error(sigma, count))
}

/// Judges a case without earlier runs.
pub fn judge_without_history(case: &JudgeInput<'_>) -> Judgement {
    judge_run(case, &PartHistory::default())
}

/// Judges a case, with its parts' readings from earlier runs as an additional reference.
pub fn judge_run(case: &JudgeInput<'_>, history: &PartHistory) -> Judgement {
    let (domains, claims) = domain_recordings::group_by_domain(case);
    let mut ledger = FindingSet::default();
    for domain in &domains {
        for doubt in &domain.doubts {
            ledger.add_unknown(doubt.what.clone(), doubt.why.clone());
        }
        for (node, why) in &domain.foreign {
            ledger.add_doubt(node, why.clone());
        }
        output_problems::judge(domain, &mut ledger);
        component_state::judge(domain, &mut ledger);
    }
    let judged = judge_fabrics(&domains, case.sampled, &mut ledger);
    merge_findings::drop_explained_imports(&mut ledger);
    judge_concurrent(&domains, &mut ledger);
    gpu_stability::judge(&judged, &mut ledger);
    common_cause::judge(&domains, &judged, &mut ledger);
    covariates::judge(&domains, &judged, &claims, &mut ledger);
    clique_claims::judge(&domains, &judged, &mut ledger);
    host::judge(&domains, &mut ledger);
    nic::judge(&domains, &mut ledger);
    network::judge(&domains, &claims, case.recordings, &mut ledger);
    history_baseline::judge(&domains, &judged, &claims, case.recordings, history, &mut ledger);
    let runs: Vec<_> = domains.iter().map(collective::group_readings).collect();
    let mut peers = CollectivePeers::from_runs(&domains, &runs);
    for ((domain, islands), runs) in domains.iter().zip(&judged).zip(&runs) {
        collective::judge((domain, islands), runs, &mut peers, &mut ledger);
        coverage::judge(domain, &mut ledger);
        floor::judge(domain, &mut ledger);
    }
    peers.report_low(&mut ledger);
    merge_findings::merge(&domains, &mut ledger);
    output_participants::judge(case.recordings, &mut ledger);
    driver_telemetry::judge(&domains, &mut ledger);
    if domains.is_empty() {
        ledger.add_unknown(UnknownSubject::Run, "nothing was measured and nothing is claimed");
    }
    let nodes = node_verdicts::judge_nodes(&domains, &ledger);
    claims::judge(&domains, &judged, &claims, &mut ledger);
    let outcome = node_verdicts::worst_outcome(&nodes, ledger.findings(), &ledger.unknown);
    ledger.unknown.extend(node_verdicts::list_unknown_nodes(&nodes));
    let mut cells = Vec::new();
    for (domain, islands) in domains.iter().zip(&judged).filter(|_| case.cells) {
        fabric_matrix::add_cells(domain, islands, &ledger, &mut cells);
    }
    if case.cells {
        network_matrix::add_cells(&domains, &claims, case.recordings, &ledger, &mut cells);
    }
    let mut findings = ledger.take(|_| true);
    findings.sort_by(|a, b| node_verdicts::severity_key(a).cmp(&node_verdicts::severity_key(b)));
    let verdicts = Verdicts {
        simulated: false,
        format: VERDICTS_FORMAT.to_owned(),
        platform: shared_platform(&domains),
        thresholds_digest: case.thresholds_digest.to_owned(),
        outcome,
        findings,
        nodes,
        unknown: ledger.unknown,
        notes: ledger.notes,
    };
    Judgement { claims, cells, verdicts, levels: ledger.levels, unusable: ledger.unusable }
}

fn shared_platform(domains: &[DomainRecordings<'_>]) -> Option<String> {
    let mut names = domains.iter().map(|d| d.platform.map(|p| p.name.clone()));
    let first = names.next()??;
    names.all(|name| name.as_ref() == Some(&first)).then_some(first)
}

/// Judges the islands of every domain; returns them for the cells.
fn judge_fabrics<'a>(
    domains: &[DomainRecordings<'a>],
    sampled: bool,
    ledger: &mut FindingSet,
) -> Vec<Vec<(FabricGroup<'a>, FabricJudgement)>> {
    let islands: Vec<Vec<FabricGroup<'a>>> =
        domains.iter().map(fabric_group::fabric_groups).collect();
    let fleet = level::FleetLevels::from_groups(islands.iter().flatten());
    let mut judged = Vec::new();
    for islands in islands {
        let mut here = Vec::new();
        for island in islands {
            let mut fabric = fabric::judge(&island, &fleet);
            record_fabric(&island, &mut fabric, ledger);
            coverage::judge_pairs(&island, &fabric, sampled, ledger);
            let parts: Vec<FabricGroup<'a>> =
                fabric.parts.iter().map(|gpus| island.subset(gpus)).collect();
            here.push((island, fabric));
            here.extend(parts.into_iter().map(|island| {
                let fabric = judge_part(&island, &fleet, ledger);
                (island, fabric)
            }));
        }
        judged.push(here);
    }
    judged
}

/// Judges a set of GPUs that reach each other and not the rest of its island. Level findings
/// concern its nodes, not the whole domain.
fn judge_part(
    island: &FabricGroup<'_>,
    fleet: &level::FleetLevels,
    ledger: &mut FindingSet,
) -> FabricJudgement {
    let mut fabric = fabric::judge(island, fleet);
    let findings = std::mem::take(&mut fabric.findings);
    let (own, whole): (Vec<_>, Vec<_>) =
        findings.into_iter().partition(|found| found.locus.node.is_some());
    fabric.findings = own;
    record_fabric(island, &mut fabric, ledger);
    for found in whole {
        for node in island.gpus_by_node().into_keys() {
            ledger.add_doubt(node, found.summary.clone());
        }
        ledger.notes.push(found.summary);
    }
    fabric
}

/// Judges pairs that copy while others copy too: finds GPUs that get a smaller share than the
/// others of their node. Full concurrent rate was never measured on such a machine, so the level
/// itself produces a note only.
fn judge_concurrent(domains: &[DomainRecordings<'_>], ledger: &mut FindingSet) {
    let islands: Vec<FabricGroup<'_>> =
        domains.iter().flat_map(fabric_group::concurrent_fabric_groups).collect();
    let fleet = level::FleetLevels::from_groups(islands.iter());
    for island in &islands {
        let mut fabric = fabric::judge(island, &fleet);
        for mut found in std::mem::take(&mut fabric.findings) {
            found.summary =
                format!("{}; while all pairs of a round copied concurrently", found.summary);
            if found.rule.kind == RuleKind::Level {
                ledger.notes.push(found.summary);
            } else {
                ledger.add(found);
            }
        }
        ledger.notes.append(&mut fabric.notes);
        for (_, why) in fabric.unknown {
            ledger.notes.push(format!("{why}; while all pairs of a round copied concurrently"));
        }
    }
}

/// Records the result for an island.
fn record_fabric(island: &FabricGroup<'_>, fabric: &mut FabricJudgement, ledger: &mut FindingSet) {
    std::mem::take(&mut fabric.findings).into_iter().for_each(|f| ledger.add(f));
    ledger.notes.append(&mut fabric.notes);
    for (what, why) in std::mem::take(&mut fabric.unknown) {
        match what {
            UnknownSubject::Node(node) => ledger.add_doubt(&node, why),
            what => ledger.add_unknown(what, why),
        }
    }
    ledger.levels.add_fabric_group(island, fabric);
    let read: BTreeSet<usize> =
        island.directed.iter().chain(&island.both_ways).flat_map(|r| [r.src, r.dst]).collect();
    for gpu in read {
        let id = &island.gpus[gpu];
        ledger.mark_measured(&id.node);
        if fabric.level.is_some_and(|l| l.absolute) {
            ledger.mark_compared(&id.node);
        }
        if let Some(together) = fabric.level.and_then(|level| level.detectable_overall) {
            ledger.record_detectable_overall(&id.node, together);
        }
        let Some(detectable) = fabric.peeled.detectable[gpu] else { continue };
        ledger.record_detectable(&id.node, detectable);
        // More readings reduce noise, but not differences between healthy parts: those are in the
        // node's declared detection limit.
        let errors = fabric.peeled.end_levels[gpu].iter().flatten().map(|end| end.error);
        report_too_noisy(
            island,
            gpu,
            peel::smallest_detectable(errors.fold(0.0, f64::max)),
            ledger,
        );
    }
}

/// Reports a sweep that could not detect the loss of one link.
fn report_too_noisy(
    island: &FabricGroup<'_>,
    gpu: usize,
    detectable: f64,
    ledger: &mut FindingSet,
) {
    let links =
        island.platform.and_then(|p| p.nvlink.as_ref()).filter(|n| n.switched).map(|n| n.links);
    let Some(one_link) = links.map(|links| 1.0 / f64::from(links.max(1))) else { return };
    if one_link < detectable {
        let node = &island.gpus[gpu].node;
        ledger.add_doubt(
            node,
            format!(
                "too noisy: a loss of less than {} could not be detected, one link is {}: take \
                 more readings of every pair",
                format_percent(detectable),
                format_percent(one_link)
            ),
        );
    }
}
