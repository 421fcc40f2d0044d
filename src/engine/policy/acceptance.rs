//! Combines all rounds of a burn-in into one result per node (accepted, not accepted or unknown)
//! and its reason.
//!
//! Pure. It reads verdicts and never makes one: a node that is bad in one round is not accepted,
//! regardless of the other rounds.

use std::collections::{BTreeMap, BTreeSet};

use super::burn_in_termination;
use model::acceptance::{
    Acceptance, AcceptanceOutcome, BurnInRound, BurnInState, BurnInStop, NodeAcceptance, NodeRound,
    StopRule,
};
use model::certificate::{MachineIdentity, TestMinimum};
use model::claims::Claims;
use model::comparison::{ComparisonOutcome, PartComparison, RunComparison};
use model::hostlist;
use model::id::NodeName;
use model::tool_recording::ToolRecording;
use model::trend::FabricPartKind;
use model::verdict::{Outcome, Verdicts};

/// The initial state of all nodes: unknown, because no round has run.
pub fn new_acceptances(claims: &Claims) -> Vec<NodeAcceptance> {
    let mut nodes: Vec<NodeAcceptance> = claims
        .domains
        .iter()
        .flat_map(|domain| domain.nodes.iter().map(move |node| (domain, node)))
        .map(|(domain, node)| NodeAcceptance {
            node: node.clone(),
            domain: Some(domain.name.clone()),
            accepted: AcceptanceOutcome::Unknown,
            reason: "no round has run yet".to_owned(),
            rounds: 0,
            passed: 0,
            anew: None,
            out: None,
            minima: Vec::new(),
            detectable: None,
            drift: None,
        })
        .collect();
    nodes.sort_by(|a, b| a.node.cmp(&b.node));
    nodes
}

/// The claims of the nodes that still take part.
pub fn participating_claims(claims: &Claims, nodes: &[NodeAcceptance]) -> Claims {
    let out: BTreeSet<&NodeName> =
        nodes.iter().filter(|it| it.out.is_some()).map(|it| &it.node).collect();
    claims.with_nodes(|node| !out.contains(node))
}

/// Merges the numbers of a round: the lowest rate and the coarsest sensitivity of all rounds.
pub fn add_round(
    nodes: &mut [NodeAcceptance],
    minima: &BTreeMap<NodeName, Vec<TestMinimum>>,
    verdicts: &Verdicts,
) {
    let seen: BTreeMap<&NodeName, Option<f64>> =
        verdicts.nodes.iter().rev().map(|it| (&it.node, it.detectable)).collect();
    for node in nodes {
        for minimum in minima.get(&node.node).into_iter().flatten() {
            let known = node
                .minima
                .iter_mut()
                .find(|it| it.testcase == minimum.testcase && it.unit == minimum.unit);
            match known {
                Some(known) if minimum.value < known.value => *known = minimum.clone(),
                Some(_) => {}
                None => node.minima.push(minimum.clone()),
            }
        }
        let detectable = seen.get(&node.node).copied().flatten();
        node.detectable = match (node.detectable, detectable) {
            (Some(known), Some(now)) => Some(known.max(now)),
            (known, now) => known.or(now),
        };
    }
}

/// Adds the versions that tool outputs name to those already known.
pub fn add_versions(versions: &mut BTreeMap<String, Vec<String>>, recordings: &[ToolRecording]) {
    for recording in recordings {
        let facts = &recording.parsed.facts;
        let tool = recording
            .parsed
            .tool
            .map(|tool| (tool.as_str(), recording.parsed.tool_version.clone()));
        let named = [
            ("driver", facts.driver.clone()),
            ("CUDA driver API", facts.cuda_driver.clone()),
            ("CUDA runtime", facts.cuda_runtime.clone()),
            ("NCCL", facts.nccl.clone()),
        ];
        for (name, version) in named.into_iter().chain(tool) {
            let Some(version) = version else { continue };
            let known = versions.entry(name.to_owned()).or_default();
            if !known.contains(&version) {
                known.push(version);
                known.sort();
            }
        }
    }
}

/// Sets the result of every node over all rounds, and the result of the whole burn-in.
pub fn conclude(acceptance: &mut Acceptance) {
    let others = burn_in_termination::find_replaced_machines(&acceptance.rounds);
    let (rounds, request, stop) = (&acceptance.rounds, &acceptance.asked, &acceptance.stop);
    let wanted = match (request.rounds, stop.as_ref().map(|stop| stop.rule)) {
        // Completing all hours, or enough clean rounds in a row, also satisfies the request.
        (_, Some(StopRule::CleanRounds)) => request.clean_rounds.unwrap_or(1),
        (Some(rounds), _) => rounds,
        (None, Some(StopRule::Hours)) => count_rounds(rounds),
        // The burn-in did not complete the request, however many rounds it ran.
        (None, _) => u32::MAX,
    };
    for node in &mut acceptance.nodes {
        node.anew = others.get(&node.node).cloned();
        let since = node.anew.as_ref().map_or(0, |anew| anew.after_round + 1);
        let own: Vec<(&BurnInRound, &NodeRound)> = rounds
            .iter()
            .filter(|round| round.ended.is_some())
            .filter_map(|round| Some((round, round.nodes.iter().find(|it| it.node == node.node)?)))
            .collect();
        let counts = |(round, it): &&(&BurnInRound, &NodeRound)| {
            since <= round.round && !(round.set_aside && it.outcome == Outcome::Unknown)
        };
        let counted: Vec<_> = own.iter().filter(counts).collect();
        let of = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        node.rounds = of(counted.len());
        let passed = counted.iter().filter(|(_, it)| it.outcome == Outcome::Pass).count();
        node.passed = of(passed);
        let comparisons = acceptance.comparison.iter().chain(&acceptance.since_anew);
        node.drift = worst_drift(comparisons, &node.node);
        let anew = node.anew.as_ref().map(describe_restart);
        let soaked = acceptance.soaks.iter();
        let found = soaked.clone().find_map(|soak| Some((soak, soak.found.get(&node.node)?)));
        let unsoaked = soaked.clone().find_map(|soak| Some((soak, soak.not_on.get(&node.node)?)));
        let bad = own.iter().find(|(_, it)| Outcome::Unknown < it.outcome);
        let (accepted, reason) = if let Some((round, it)) = bad {
            let (number, run) = (round.round, &round.run);
            (AcceptanceOutcome::Fail, format!("round {number} (run {run}): {}", it.reason))
        } else if let Some((soak, why)) = found {
            (AcceptanceOutcome::Fail, format!("under load after round {}: {why}", soak.after_round))
        } else if let Some(out) = node.out.as_ref().filter(|out| out.rule == StopRule::TooHot) {
            (AcceptanceOutcome::Fail, describe_stop(out))
        } else if let Some(out) = &node.out {
            (AcceptanceOutcome::Unknown, describe_stop(out))
        } else if let Some((round, it)) =
            counted.iter().find(|(_, it)| it.outcome == Outcome::Unknown)
        {
            (AcceptanceOutcome::Unknown, format!("round {}: {}", round.round, it.reason))
        } else if let Some((soak, why)) = unsoaked {
            let after = soak.after_round;
            (AcceptanceOutcome::Unknown, format!("no load ran on it after round {after}: {why}"))
        } else if node.passed < wanted {
            let why = anew.map_or(String::new(), |anew| format!(", and {anew}"));
            let wanted =
                if wanted == u32::MAX { "the requested".to_owned() } else { wanted.to_string() };
            let passed = node.passed;
            (AcceptanceOutcome::Unknown, format!("passed {passed} of {wanted} rounds{why}"))
        } else if let Some(drift) =
            node.drift.as_ref().filter(|it| request.drift < relative_loss(it))
        {
            (
                AcceptanceOutcome::Unknown,
                format!(
                    "{}: more than the accepted {}",
                    describe_drift(drift),
                    format_share(request.drift)
                ),
            )
        } else {
            let mut reason = format!("passed all {} rounds", node.passed);
            if let Some(drift) = &node.drift {
                reason.push_str(&format!("; {}", describe_drift(drift)));
            }
            if let Some(anew) = anew {
                reason.push_str(&format!("; {anew}"));
            }
            (AcceptanceOutcome::Pass, reason)
        };
        node.accepted = accepted;
        node.reason = reason;
    }
    acceptance.accepted = burn_in_termination::overall_outcome(acceptance);
}

/// Reasons why a document accepts nothing, for a reader who did not run the burn-in: first the
/// faults, then the unknowns. With `stand_ins`, simulated nodes count.
pub fn list_doubts(acceptance: &Acceptance, stand_ins: bool) -> (Vec<String>, Vec<String>) {
    let (mut wrong, mut unknowns) = (Vec::new(), Vec::new());
    let comes_to = burn_in_termination::overall_outcome(acceptance);
    if comes_to != acceptance.accepted {
        let (stated, is) = (acceptance.accepted.as_str(), comes_to.as_str());
        wrong.push(format!(
            "the document's overall result is {stated}, but the result of its nodes \
             is {is}"
        ));
    }
    if acceptance.state != BurnInState::Complete {
        unknowns.push("the burn-in did not run to completion".to_owned());
    }
    if !acceptance.real && !stand_ins {
        unknowns.push("no real node was measured: it accepts nothing".to_owned());
    }
    if acceptance.nodes.is_empty() {
        unknowns.push("the document names no node".to_owned());
    }
    let of = |accepted| acceptance.nodes.iter().filter(move |it| it.accepted == accepted);
    let word = |it: &NodeAcceptance| format!("{}: {}", it.node, it.reason);
    wrong.extend(of(AcceptanceOutcome::Fail).map(|it| format!("not accepted: {}", word(it))));
    unknowns.extend(of(AcceptanceOutcome::Unknown).map(|it| format!("unknown: {}", word(it))));
    (wrong, unknowns)
}

/// The machine of a node in the last round that it took part in, as its worker reported it. The
/// acceptance document does not record driver and firmware.
pub fn last_identity(acceptance: &Acceptance, node: &NodeName) -> MachineIdentity {
    let own = acceptance.rounds.iter().rev().filter(|round| round.ended.is_some());
    let last = own.flat_map(|round| &round.nodes).find(|it| it.node == *node);
    last.map_or_else(MachineIdentity::default, |it| MachineIdentity {
        gpus: it.gpus.clone(),
        boot_id: it.boot_id.clone(),
        ..MachineIdentity::default()
    })
}

fn count_rounds(rounds: &[BurnInRound]) -> u32 {
    let held = rounds.iter().filter(|round| round.ended.is_some() && !round.set_aside).count();
    u32::try_from(held).unwrap_or(u32::MAX)
}

fn describe_stop(out: &BurnInStop) -> String {
    let when = match out.after_round {
        0 => "before the first round".to_owned(),
        round => format!("out since round {round}"),
    };
    format!("{when} ({}): {}", out.rule.as_str().replace('_', " "), out.why)
}

fn describe_restart(anew: &BurnInStop) -> String {
    format!("its burn-in restarted after round {}: {}", anew.after_round, anew.why)
}

/// The part of a node with the largest loss.
fn worst_drift<'a>(
    comparisons: impl Iterator<Item = &'a RunComparison>,
    node: &NodeName,
) -> Option<PartComparison> {
    let own = comparisons.flat_map(|comparison| &comparison.parts).filter(|it| {
        it.difference == ComparisonOutcome::Worse
            && it.part.node.as_ref() == Some(node)
            && matches!(
                it.part.kind,
                FabricPartKind::Gpu | FabricPartKind::Node | FabricPartKind::Rail
            )
    });
    own.max_by(|a, b| relative_loss(a).total_cmp(&relative_loss(b))).cloned()
}

/// The loss as a share, 0 to 1.
fn relative_loss(compared: &PartComparison) -> f64 {
    compared.change.map_or(0.0, f64::abs)
}

fn format_share(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

fn describe_drift(compared: &PartComparison) -> String {
    let what = match (compared.part.gpu, &compared.part.rail) {
        (Some(gpu), _) => format!("GPU {gpu}"),
        (None, Some(rail)) => format!("rail {rail}"),
        (None, None) => "it".to_owned(),
    };
    format!(
        "{what} is {} slower in the last round than in the first ({})",
        format_share(relative_loss(compared)),
        compared.testcase
    )
}

/// Remarks that a reader needs in addition to the numbers.
pub fn list_notes(acceptance: &Acceptance) -> Vec<String> {
    let mut notes = Vec::new();
    if !acceptance.real {
        notes.push("no real node was measured: this accepts nothing".to_owned());
    }
    let digests: BTreeSet<&String> =
        acceptance.rounds.iter().filter_map(|it| it.thresholds_digest.as_ref()).collect();
    if 1 < digests.len() {
        notes.push("the expectations changed between rounds".to_owned());
    }
    for (node, anew) in burn_in_termination::find_replaced_machines(&acceptance.rounds) {
        let (round, rule) = (anew.after_round, anew.rule.as_str().replace('_', " "));
        notes.push(format!("{node} restarted after round {round} ({rule}): {}", anew.why));
    }
    for round in acceptance.rounds.iter().filter(|round| round.set_aside) {
        notes.push(format!(
            "round {} was repeated because a node was bad or lost in it; it does not count for \
             nodes that were only unknown in it",
            round.round
        ));
    }
    let mut out: BTreeMap<(u32, StopRule), Vec<&NodeName>> = BTreeMap::new();
    for node in &acceptance.nodes {
        if let Some(stop) = &node.out {
            out.entry((stop.after_round, stop.rule)).or_default().push(&node.node);
        }
    }
    for ((round, rule), nodes) in out {
        let nodes = hostlist::fold(nodes.into_iter().map(NodeName::as_str));
        let rule = rule.as_str().replace('_', " ");
        notes.push(format!("after round {round} without {nodes} ({rule})"));
    }
    notes
}

#[cfg(test)]
#[path = "acceptance_tests.rs"]
mod tests;
