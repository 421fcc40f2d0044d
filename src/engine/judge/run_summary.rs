//! The readings of parts in a run, and the usual readings in earlier runs.
//!
//! Runs are comparable if platform and driver match; parts with a finding do not enter the history.
//! `history_baseline` judges against it.

use std::collections::BTreeMap;

use super::domain_recordings::DomainRecordings;
use super::fabric::FabricJudgement;
use super::fabric_group::{FabricGroup, PairReading};
use super::finding_set::FindingSet;
use super::node_verdicts::FindingsByLocus;
use super::{JudgeInput, Judgement, network, peel, rail_readings};
use model::claims::Claims;
use model::finding_class::FindingClass;
use model::id::{DomainName, NodeName};
use model::part_history::{PartHistory, PartReading, PartTestKey, UsualLevel};
use model::stats;
use model::tool_recording::ToolRecording;
use model::verdict::{Direction, Finding, LocusKind, Outcome};

/// Fewer runs define no spread: one of two may be the outlier.
pub(super) const FEWEST_RUNS: usize = 3;

/// The reading of every part in a run.
pub type RunSummary = BTreeMap<PartTestKey, PartReading>;

/// The readings of a case's parts without findings.
pub fn summarize_sound_parts(case: &JudgeInput<'_>) -> RunSummary {
    let (domains, _) = super::domain_recordings::group_by_domain(case);
    let mut ledger = FindingSet::default();
    let judged = super::judge_fabrics(&domains, case.sampled, &mut ledger);
    let Judgement { claims, verdicts, .. } =
        super::judge_without_history(&JudgeInput { cells: false, ..*case });
    let mut all = summarize_case(&domains, &judged, &claims, case.recordings);
    let against =
        FindingsByLocus::new(verdicts.findings.iter().filter(|f| Outcome::Unknown < f.outcome));
    let mut node_domains: BTreeMap<&NodeName, &DomainName> = BTreeMap::new();
    for (domain, node) in domains.iter().flat_map(|d| d.nodes.iter().map(move |n| (d, n))) {
        node_domains.entry(node).or_insert(&domain.name);
    }
    // A finding without node or domain, for example about a rail, counts for all parts without one.
    let is_of_none = |f: &&Finding| f.locus.domain.is_none() && Outcome::Unknown < f.outcome;
    let of_none: Vec<&Finding> = verdicts.findings.iter().filter(is_of_none).collect();
    all.retain(|part, _| {
        let home = node_domains.get(&part.node).copied();
        let about = against.findings_about(&[&part.node], home);
        let anywhere = of_none.iter().filter(|_| home.is_none());
        !about.iter().chain(anywhere).any(|found| marks_faulty(found, part, home))
    });
    all
}

/// Whether a finding marks a part's reading as faulty.
fn marks_faulty(found: &Finding, part: &PartTestKey, domain: Option<&DomainName>) -> bool {
    let locus = &found.locus;
    if locus.rail.is_some() && locus.rail != part.rail {
        return false;
    }
    match (&locus.node, locus.kind) {
        // A single path is not the part.
        (_, LocusKind::Pair) => false,
        (Some(node), _) => *node == part.node && (locus.gpu.is_none() || locus.gpu == part.gpu),
        (None, _) => found.class != FindingClass::ClaimedApart && locus.domain.as_ref() == domain,
    }
}

/// Builds the usual readings of parts from runs, each with its time.
pub fn build_history(runs: &[(String, RunSummary)]) -> PartHistory {
    let mut all: BTreeMap<&PartTestKey, Vec<(&str, PartReading)>> = BTreeMap::new();
    for (when, run) in runs {
        for (part, reading) in run {
            all.entry(part).or_default().push((when, *reading));
        }
    }
    let usual = all.into_iter().filter_map(|(part, runs)| {
        let mut values: Vec<f64> = runs.iter().map(|(_, reading)| reading.value).collect();
        let median = stats::median(&mut values).filter(|m| 0.0 < *m)?;
        let shares: Vec<f64> = values.iter().map(|value| value / median).collect();
        let spread = stats::spread(&shares, 1.0).filter(|_| FEWEST_RUNS <= runs.len());
        let mut errors: Vec<f64> = runs.iter().map(|(_, reading)| reading.error).collect();
        let mut times: Vec<&str> = runs.iter().map(|(when, _)| *when).collect();
        times.sort_unstable();
        let usual = UsualLevel {
            median,
            spread,
            error: stats::median(&mut errors)?,
            count: runs.len(),
            first: (*times.first()?).to_owned(),
            last: (*times.last()?).to_owned(),
        };
        Some((part.clone(), usual))
    });
    PartHistory { usual: usual.collect() }
}

/// The readings of all parts in this case, with or without findings.
pub(super) fn summarize_case(
    domains: &[DomainRecordings<'_>],
    judged: &[Vec<(FabricGroup<'_>, FabricJudgement)>],
    claims: &Claims,
    recordings: &[ToolRecording],
) -> RunSummary {
    let mut run = RunSummary::new();
    for (domain, islands) in domains.iter().zip(judged) {
        for (island, fabric) in islands {
            add_fabric_group(domain, island, fabric, &mut run);
        }
    }
    let node_domains: BTreeMap<&NodeName, &DomainRecordings<'_>> =
        domains.iter().flat_map(|d| d.nodes.iter().map(move |n| (n, d))).collect();
    for rail in &rail_readings::collect_rails(domains, claims, recordings) {
        add_rail(&node_domains, rail, &mut run);
    }
    run
}

/// The driver that a node's outputs name, else that of its domain.
fn driver_version(domain: &DomainRecordings<'_>, node: &NodeName) -> Option<String> {
    let own =
        domain.per_node.get(node).into_iter().flatten().find_map(|r| r.parsed.facts.driver.clone());
    own.or_else(|| domain.across_nodes.iter().find_map(|r| r.parsed.facts.driver.clone()))
}

/// Adds every GPU of an island, in each direction and group: the median over its partners of their
/// readings with it.
fn add_fabric_group(
    domain: &DomainRecordings<'_>,
    island: &FabricGroup<'_>,
    fabric: &FabricJudgement,
    run: &mut RunSummary,
) {
    if !island.is_uniform() {
        return;
    }
    let active = island.directed.iter().filter(|r| fabric.active[r.src] && fabric.active[r.dst]);
    let mut drivers: BTreeMap<&NodeName, Option<String>> = BTreeMap::new();
    for ((gpu, group, sends), partners) in group_by_end(active) {
        let (id, key) = (&island.gpus[gpu], &island.reading_groups[group]);
        let Some(reading) = median_over_partners(&partners, fabric.peeled.sigma) else { continue };
        let driver = drivers.entry(&id.node).or_insert_with(|| driver_version(domain, &id.node));
        let place = [key.across_nodes, key.between_nodes, key.small_buffer].map(u8::from);
        let part = PartTestKey {
            node: id.node.clone(),
            gpu: Some(id.gpu),
            rail: None,
            direction: if sends { Direction::Tx } else { Direction::Rx },
            testcase: key.testcase.to_string(),
            setting: format!("across {} between {} small {}", place[0], place[1], place[2]),
            platform: island.platform.map(|platform| platform.name.clone()),
            driver: driver.clone(),
        };
        run.insert(part, reading);
    }
}

/// Adds every end of a rail with several partners.
fn add_rail(
    node_domains: &BTreeMap<&NodeName, &DomainRecordings<'_>>,
    rail: &rail_readings::RailReadings<'_>,
    run: &mut RunSummary,
) {
    let sigma = network::repeat_sigma(rail).unwrap_or(peel::ASSUMED_SIGMA);
    for ((end, group, sends), partners) in group_by_end(&rail.readings) {
        let (node, group) = (&rail.nodes[end], &rail.groups[group]);
        let Some(reading) = median_over_partners(&partners, sigma) else { continue };
        let in_domain = node_domains.get(node);
        let part = PartTestKey {
            node: node.clone(),
            gpu: None,
            rail: rail.name.clone(),
            direction: if sends { Direction::Tx } else { Direction::Rx },
            testcase: group.testcase.to_string(),
            setting: format!("{} crosses {}", group.settings, u8::from(group.crosses_leaves)),
            platform: group.nic.map(|nic| nic.name.clone()),
            driver: in_domain.and_then(|domain| driver_version(domain, node)),
        };
        run.insert(part, reading);
    }
}

/// Readings by end, group and whether the end sends, then by partner.
fn group_by_end<'r>(
    readings: impl IntoIterator<Item = &'r PairReading>,
) -> BTreeMap<(usize, usize, bool), BTreeMap<usize, Vec<f64>>> {
    let mut ends: BTreeMap<_, BTreeMap<usize, Vec<f64>>> = BTreeMap::new();
    for r in readings {
        ends.entry((r.src, r.group, true)).or_default().entry(r.dst).or_default().push(r.value);
        ends.entry((r.dst, r.group, false)).or_default().entry(r.src).or_default().push(r.value);
    }
    ends
}

/// The median of the readings with each partner, and the number of readings.
pub fn partner_medians<K>(partners: &BTreeMap<K, Vec<f64>>) -> (Vec<f64>, usize) {
    let medians = partners.values().filter_map(|values| stats::median(&mut values.clone()));
    (medians.collect(), partners.values().map(Vec::len).sum())
}

/// The median over partners; a single partner does not define an end's level.
fn median_over_partners(partners: &BTreeMap<usize, Vec<f64>>, sigma: f64) -> Option<PartReading> {
    if partners.len() < 2 {
        return None;
    }
    let (mut cells, readings) = partner_medians(partners);
    // With two partners, one good reading clears, as in peeling.
    let value = match cells.len() {
        2 => cells.into_iter().reduce(f64::max),
        _ => stats::median(&mut cells),
    };
    let error = stats::median_error(sigma, readings);
    value.filter(|value| 0.0 < *value).map(|value| PartReading { value, error })
}
