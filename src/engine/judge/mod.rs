//! How far from expectation, whose fault, how sure.
//!
//! Values in, values out: no I/O, no clock. Missing, waived, truncated and
//! unverified data end as unknown by a named rule; they never count for or
//! against a node.

mod again;
mod arrange;
mod asserted;
mod causes;
mod cells;
mod claims;
mod class;
pub mod collective;
mod common;
pub mod compared;
pub mod confirm;
mod covariates;
mod coverage;
mod devices;
mod disputes;
pub mod drift;
mod fabric;
mod far;
mod finding;
mod floor;
mod host;
mod island;
mod leaves;
mod ledger;
mod level;
mod looks;
mod membership;
mod met;
mod network;
mod nic;
mod nodes;
mod own;
mod partners;
pub mod past;
mod paths;
mod peel;
mod peers;
mod problems;
mod rails;
mod reach;
mod roster;
mod runs;
mod senders;
pub mod sequential;
mod severed;
mod state;
mod steady;
mod steady_paths;
mod surroundings;
mod testcase;
#[cfg(test)]
mod tests;
mod topology;
pub mod typical;

pub use again::Levels;
use arrange::Domain;
use fabric::Fabric;
use island::Island;
use ledger::Ledger;
use peers::Peers;

use std::collections::BTreeSet;

use crate::thresholds::Catalogue;
use model::cell::Cell;
use model::claims::Claims;
use model::history::History;
use model::recording::Recording;
use model::rule::RuleKind;
use model::stats;
use model::subject::UnknownSubject;
use model::text::percent;
use model::verdict::VERDICTS_FORMAT;
use model::verdict::Verdicts;

/// What is judged, and against what.
#[derive(Clone, Copy, Debug)]
pub struct Case<'a> {
    /// What was claimed. Domains that only the recordings know are added.
    pub claims: &'a Claims,
    /// Every output that was read.
    pub recordings: &'a [Recording],
    /// The expectations in force.
    pub catalogue: &'a Catalogue,
    /// Digest of those expectations.
    pub thresholds_digest: &'a str,
    /// The platform a person named; it wins over claims and devices.
    pub platform: Option<&'a str>,
    /// Whether every cell is wanted, for a report; verdicts do without.
    pub cells: bool,
    /// Pairs were sampled on purpose: one that no test asked for is no gap.
    pub sampled: bool,
}

/// What came out.
#[derive(Clone, Debug, PartialEq)]
pub struct Judgement {
    /// The claims as judged: those given, and what recordings added.
    pub claims: Claims,
    /// Every measured cell, in the direction of the data.
    pub cells: Vec<Cell>,
    /// The verdicts.
    pub verdicts: Verdicts,
    /// What readings were compared with.
    pub levels: Levels,
    /// Files of pairs over the network that gave nothing usable.
    pub unusable: BTreeSet<String>,
}

/// The smallest loss of a part that a sweep would see, as a share, where the part is read
/// with so many partners, so often with each, and readings scatter by `sigma`.
pub fn would_be_seen(partners: usize, readings: u32, sigma: f64) -> f64 {
    let count = partners.saturating_mul(usize::try_from(readings).unwrap_or(usize::MAX));
    peel::smallest(stats::median_error(sigma, count))
}

/// Judges a case.
pub fn judge(case: &Case<'_>) -> Judgement {
    judge_against(case, &History::default())
}

/// Judges a case, what its parts showed in earlier runs among the references.
pub fn judge_against(case: &Case<'_>, history: &History) -> Judgement {
    let (domains, claims) = arrange::arrange(case);
    let mut ledger = Ledger::default();
    for domain in &domains {
        for doubt in &domain.doubts {
            ledger.unknown(doubt.what.clone(), doubt.why.clone());
        }
        for (node, why) in &domain.foreign {
            ledger.doubt(node, why.clone());
        }
        problems::judge(domain, &mut ledger);
        state::judge(domain, &mut ledger);
    }
    let judged = fabrics(&domains, case.sampled, &mut ledger);
    causes::explain_imports(&mut ledger);
    at_once(&domains, &mut ledger);
    steady::judge(&judged, &mut ledger);
    common::judge(&domains, &judged, &mut ledger);
    covariates::judge(&domains, &judged, &claims, &mut ledger);
    asserted::judge(&domains, &judged, &mut ledger);
    host::judge(&domains, &mut ledger);
    nic::judge(&domains, &mut ledger);
    network::judge(&domains, &claims, case.recordings, &mut ledger);
    own::judge(&domains, &judged, &claims, case.recordings, history, &mut ledger);
    let runs: Vec<_> = domains.iter().map(collective::runs).collect();
    let mut peers = Peers::of(&domains, &runs);
    for ((domain, islands), runs) in domains.iter().zip(&judged).zip(&runs) {
        collective::judge((domain, islands), runs, &mut peers, &mut ledger);
        coverage::judge(domain, &mut ledger);
        floor::judge(domain, &mut ledger);
    }
    peers.tell(&mut ledger);
    causes::merge(&domains, &mut ledger);
    senders::judge(case.recordings, &mut ledger);
    surroundings::judge(&domains, &mut ledger);
    if domains.is_empty() {
        ledger.unknown(UnknownSubject::Run, "nothing was measured and nothing is claimed");
    }
    let nodes = nodes::verdicts(&domains, &ledger);
    claims::judge(&domains, &judged, &claims, &mut ledger);
    let outcome = nodes::worst(&nodes, ledger.findings(), &ledger.unknown);
    ledger.unknown.extend(nodes::unknown(&nodes));
    let mut cells = Vec::new();
    for (domain, islands) in domains.iter().zip(&judged).filter(|_| case.cells) {
        cells::cells(domain, islands, &ledger, &mut cells);
    }
    if case.cells {
        paths::cells(&domains, &claims, case.recordings, &ledger, &mut cells);
    }
    let mut findings = ledger.take(|_| true);
    findings.sort_by(|a, b| nodes::by_severity(a).cmp(&nodes::by_severity(b)));
    let verdicts = Verdicts {
        simulated: false,
        format: VERDICTS_FORMAT.to_owned(),
        platform: one_platform(&domains),
        thresholds_digest: case.thresholds_digest.to_owned(),
        outcome,
        findings,
        nodes,
        unknown: ledger.unknown,
        notes: ledger.notes,
    };
    Judgement { claims, cells, verdicts, levels: ledger.levels, unusable: ledger.unusable }
}

/// The platform that all domains share.
fn one_platform(domains: &[Domain<'_>]) -> Option<String> {
    let mut names = domains.iter().map(|d| d.platform.map(|p| p.name.clone()));
    let first = names.next()??;
    names.all(|name| name.as_ref() == Some(&first)).then_some(first)
}

/// Judges the islands of every domain; returns them for the cells.
fn fabrics<'a>(
    domains: &[Domain<'a>],
    sampled: bool,
    ledger: &mut Ledger,
) -> Vec<Vec<(Island<'a>, Fabric)>> {
    let islands: Vec<Vec<Island<'a>>> = domains.iter().map(island::islands).collect();
    let fleet = level::Fleet::of(islands.iter().flatten());
    let mut judged = Vec::new();
    for islands in islands {
        let mut here = Vec::new();
        for island in islands {
            let mut fabric = fabric::judge(&island, &fleet);
            enter(&island, &mut fabric, ledger);
            coverage::pairs(&island, &fabric, sampled, ledger);
            let parts: Vec<Island<'a>> =
                fabric.parts.iter().map(|gpus| island.part(gpus)).collect();
            here.push((island, fabric));
            here.extend(parts.into_iter().map(|island| {
                let fabric = part(&island, &fleet, ledger);
                (island, fabric)
            }));
        }
        judged.push(here);
    }
    judged
}

/// Judges what reaches each other and not the rest of its island. What is said of its
/// level concerns its nodes and not all of the domain.
fn part(island: &Island<'_>, fleet: &level::Fleet, ledger: &mut Ledger) -> Fabric {
    let mut fabric = fabric::judge(island, fleet);
    let findings = std::mem::take(&mut fabric.findings);
    let (own, whole): (Vec<_>, Vec<_>) =
        findings.into_iter().partition(|found| found.locus.node.is_some());
    fabric.findings = own;
    enter(island, &mut fabric, ledger);
    for found in whole {
        for node in island.nodes().into_keys() {
            ledger.doubt(node, found.summary.clone());
        }
        ledger.notes.push(found.summary);
    }
    fabric
}

/// Judges what pairs show while others copy too: whose share is less than that of
/// the others of its node. Whether all of them have what a pair has alone was
/// never measured on such a machine, so that the level itself is a remark.
fn at_once(domains: &[Domain<'_>], ledger: &mut Ledger) {
    let islands: Vec<Island<'_>> = domains.iter().flat_map(island::at_once).collect();
    let fleet = level::Fleet::of(islands.iter());
    for island in &islands {
        let mut fabric = fabric::judge(island, &fleet);
        for mut found in std::mem::take(&mut fabric.findings) {
            found.summary = format!("{}; while all pairs of a round copied at once", found.summary);
            if found.rule.kind == RuleKind::Level {
                ledger.notes.push(found.summary);
            } else {
                ledger.find(found);
            }
        }
        ledger.notes.append(&mut fabric.notes);
        for (_, why) in fabric.unknown {
            ledger.notes.push(format!("{why}; while all pairs of a round copied at once"));
        }
    }
}

/// Enters what was found out about an island.
fn enter(island: &Island<'_>, fabric: &mut Fabric, ledger: &mut Ledger) {
    std::mem::take(&mut fabric.findings).into_iter().for_each(|f| ledger.find(f));
    ledger.notes.append(&mut fabric.notes);
    for (what, why) in std::mem::take(&mut fabric.unknown) {
        match what {
            UnknownSubject::Node(node) => ledger.doubt(&node, why),
            what => ledger.unknown(what, why),
        }
    }
    ledger.levels.of_island(island, fabric);
    let read: BTreeSet<usize> =
        island.directed.iter().chain(&island.both_ways).flat_map(|r| [r.src, r.dst]).collect();
    for gpu in read {
        let id = &island.gpus[gpu];
        ledger.measure(&id.node);
        if fabric.level.is_some_and(|l| l.absolute) {
            ledger.compare(&id.node);
        }
        if let Some(together) = fabric.level.and_then(|level| level.together) {
            ledger.could_have_seen_together(&id.node, together);
        }
        let Some(detectable) = fabric.peeled.detectable[gpu] else { continue };
        ledger.could_have_seen(&id.node, detectable);
        // More readings help against noise, and not where healthy parts differ: that is in
        // what the node declares.
        let errors = fabric.peeled.shown[gpu].iter().flatten().map(|shown| shown.error);
        too_noisy(island, gpu, peel::smallest(errors.fold(0.0, f64::max)), ledger);
    }
}

/// A sweep that could not have seen the loss of one link says so.
fn too_noisy(island: &Island<'_>, gpu: usize, detectable: f64, ledger: &mut Ledger) {
    let links =
        island.platform.and_then(|p| p.nvlink.as_ref()).filter(|n| n.switched).map(|n| n.links);
    let Some(one_link) = links.map(|links| 1.0 / f64::from(links.max(1))) else { return };
    if one_link < detectable {
        let node = &island.gpus[gpu].node;
        ledger.doubt(
            node,
            format!(
                "too noisy: a loss of less than {} could not have been seen, one link is {}: more readings of every \
                 pair would tell",
                percent(detectable),
                percent(one_link)
            ),
        );
    }
}
