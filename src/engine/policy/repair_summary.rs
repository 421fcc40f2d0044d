//! What a repair changed, in sentences: the verdict before and after, the blamed part, the rest
//! of the node, and the hardware itself.
//!
//! Pure, and for information only: `release` decides whether the node returns to service, after
//! the usual clean runs.

use std::collections::BTreeSet;

use model::comparison::{ComparisonOutcome, PartComparison, RunComparison};
use model::id::NodeName;
use model::text::clean;
use model::trend::{FabricPart, RunChange, RunChangeKind};
use model::verdict::{Finding, NodeVerdict, Outcome, Verdicts};

/// A node before and after a repair.
#[derive(Clone, Copy, Debug)]
pub struct RepairSides<'a> {
    /// The node.
    pub node: &'a NodeName,
    /// The earlier verdict.
    pub before: &'a NodeVerdict,
    /// The earlier findings of the whole run.
    pub found: &'a [Finding],
    /// The later verdicts.
    pub after: &'a Verdicts,
    /// Its readings before and after.
    pub comparison: &'a RunComparison,
    /// Other changes of the node.
    pub changes: &'a [RunChange],
}

/// The sentences, the most important first.
pub fn summarize_repair(sides: &RepairSides<'_>) -> Vec<String> {
    let now = sides.after.nodes.iter().find(|it| it.node == *sides.node);
    let outcome = now.map_or(Outcome::Unknown, |it| it.outcome);
    let blamed = blamed_parts(sides);
    let is_blamed = |it: &&PartComparison| blamed.iter().any(|part| part.covers(&it.part));
    let all = |difference: ComparisonOutcome| {
        sides.comparison.parts.iter().filter(move |it| it.difference == difference)
    };
    let better = all(ComparisonOutcome::Better).filter(is_blamed).count();
    let worse = all(ComparisonOutcome::Worse).filter(is_blamed).count();
    let elsewhere: Vec<&PartComparison> =
        all(ComparisonOutcome::Worse).filter(|it| !is_blamed(it)).collect();
    let gone = all(ComparisonOutcome::OnlyBefore).filter(is_blamed).count();
    let mut sentences = vec![describe_verdict(sides.before, now)];
    if blamed.is_empty() && sides.before.outcome <= Outcome::Unknown {
        sentences
            .push("no finding blamed it then, so no part of it is expected to change".to_owned());
    } else if 0 < better && outcome == Outcome::Pass {
        sentences.push(format!(
            "the blamed part is better in {better} readings and at its expected level"
        ));
    } else if 0 < better {
        let still = if Outcome::Unknown < outcome {
            "and still below its expected rate"
        } else {
            "and its level is uncertain"
        };
        sentences.push(format!("the blamed part is better in {better} readings, {still}"));
    } else if 0 < worse {
        sentences.push(format!("the blamed part is worse than before in {worse} readings"));
    } else if 0 < gone {
        sentences.push("the blamed part was not measured now, so its state is unknown".to_owned());
    } else if outcome == Outcome::Pass {
        sentences.push(
            "the blamed part reads the same within noise, and no finding blames it now".to_owned(),
        );
    } else {
        sentences.push("the repair changed no measurement of the blamed part".to_owned());
    }
    if let Some(most) = elsewhere.first() {
        let change = most.change.unwrap_or_default().abs() * 100.0;
        sentences.push(format!(
            "elsewhere {} of its readings are worse than before the repair, most of all {}by \
             {change:.1} % ({})",
            elsewhere.len(),
            gpu_name(&most.part),
            clean(&most.testcase)
        ));
    }
    sentences.extend(describe_changes(sides.changes));
    sentences
}

fn gpu_name(part: &FabricPart) -> String {
    match (part.gpu, &part.rail) {
        (Some(gpu), _) => format!("GPU {gpu} "),
        (None, Some(rail)) => format!("{} ", clean(rail)),
        (None, None) => String::new(),
    }
}

fn describe_verdict(before: &NodeVerdict, now: Option<&NodeVerdict>) -> String {
    let reason = |it: &NodeVerdict| clean(&it.reason);
    match now {
        None => format!("{} then, not measured now", before.outcome),
        Some(now) if now.outcome == before.outcome && now.outcome == Outcome::Pass => {
            "passed then, and passes now".to_owned()
        }
        Some(now) if now.outcome == Outcome::Pass => {
            format!("{} then ({}), passes now", before.outcome, reason(before))
        }
        Some(now) => format!(
            "{} then ({}), {} now ({})",
            before.outcome,
            reason(before),
            now.outcome,
            reason(now)
        ),
    }
}

/// A part that was blamed before the repair.
#[derive(Clone, Debug, PartialEq, Eq)]
struct BlamedPart {
    gpu: Option<u32>,
    rail: Option<String>,
}

impl BlamedPart {
    /// Whether a reading belongs to this part. A node blamed as a whole has all of its parts.
    fn covers(&self, part: &FabricPart) -> bool {
        (self.gpu.is_none() || self.gpu == part.gpu)
            && (self.rail.is_none() || self.rail == part.rail)
    }
}

fn blamed_parts(sides: &RepairSides<'_>) -> Vec<BlamedPart> {
    let own = sides.found.iter().filter(|found| {
        found.locus.node.as_ref() == Some(sides.node) && Outcome::Unknown < found.outcome
    });
    own.map(|found| BlamedPart { gpu: found.locus.gpu, rail: found.locus.rail.clone() }).collect()
}

/// Changes of hardware, software and place, in sentences; each kind once.
fn describe_changes(changes: &[RunChange]) -> Vec<String> {
    let mut sentences = Vec::new();
    let swapped: BTreeSet<&str> = changes
        .iter()
        .filter(|it| it.kind == RunChangeKind::Hardware)
        .map(|it| it.what.trim_end_matches(" UUID").trim_end_matches(" GUID"))
        .collect();
    if !swapped.is_empty() {
        let what: Vec<String> = swapped.into_iter().map(clean).collect();
        sentences.push(format!("it has other hardware: {}", what.join(", ")));
    }
    for changed in changes {
        let what = clean(&changed.what);
        let (was, is) = (clean(&changed.before), clean(&changed.after));
        match changed.kind {
            RunChangeKind::Hardware => {}
            RunChangeKind::Boot if changed.what == "boot" => {
                sentences.push("it has rebooted".to_owned());
            }
            RunChangeKind::Claim => sentences.push(format!("it is claimed differently: {is}")),
            _ => sentences.push(format!("{what} was {was} and is {is}")),
        }
    }
    if changes.is_empty() {
        sentences.push(
            "its hardware, driver and boot are unchanged, as far as both runs show".to_owned(),
        );
    }
    sentences
}

#[cfg(test)]
#[path = "repair_summary_tests.rs"]
mod tests;
