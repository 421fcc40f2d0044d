//! When a burn-in ends: for one node, for a domain, for all.
//!
//! Pure. The result names the rule (`StopRule`). A bad node ends only its own burn-in.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use model::acceptance::{Acceptance, AcceptanceOutcome, BurnInRound, BurnInStop, StopRule};
use model::claims::{ClaimedDomain, Claims};
use model::id::{DomainName, NodeName};
use model::raw_result::{ProcessEnding, RawResult};
use model::text::clean;
use model::throttle_reason::ThrottleReason;
use model::tool_recording::{RecordingScope, ToolRecording};
use model::verdict::{Finding, LocusKind, Outcome, Verdicts};

/// The driver's name for a GPU that throttles because it is too hot
/// (`nvmlClocksEventReasonHwThermalSlowdown`). The software thermal slowdown holds a target
/// temperature and is not an emergency.
const TOO_HOT: ThrottleReason = ThrottleReason::HardwareThermalSlowdown;

/// Most rounds that are repeated because of bad or lost nodes. Beyond this, something removes nodes
/// one by one, and more rounds do not help.
pub const MAX_REPEATED_ROUNDS: usize = 2;

/// A round, or the load between two rounds, as the rules see it.
#[derive(Clone, Copy, Debug)]
pub struct BurnInObservation<'a> {
    /// The round, from 1; for load, the round before it.
    pub round: u32,
    /// The judge's verdicts.
    pub verdicts: &'a Verdicts,
    /// The claims about the nodes that took part.
    pub claims: &'a Claims,
    /// The raw results of the steps.
    pub results: &'a [RawResult],
    /// The parsed outputs.
    pub recordings: &'a [ToolRecording],
    /// Number of nodes of one domain whose failure in one round implies a common cause.
    pub freeze_domain: usize,
}

/// The nodes that take no further part, with the reason.
pub fn find_stopped_nodes(seen: &BurnInObservation<'_>) -> BTreeMap<NodeName, BurnInStop> {
    let stop = |rule, why: String| BurnInStop { rule, after_round: seen.round, why };
    let mut out: BTreeMap<NodeName, BurnInStop> = BTreeMap::new();
    for (node, why) in find_frozen_nodes(seen) {
        out.entry(node).or_insert_with(|| stop(StopRule::Frozen, why));
    }
    for (node, why) in find_lost_nodes(seen.results) {
        out.entry(node).or_insert_with(|| stop(StopRule::Lost, why));
    }
    // A fault of the node is more specific than doubt about its domain.
    for (node, gpus) in find_throttled_gpus(seen.recordings) {
        let gpus: Vec<String> = gpus.iter().map(u32::to_string).collect();
        let why = format!("GPU {} throttled because of its temperature", gpus.join(", "));
        out.insert(node, stop(StopRule::TooHot, why));
    }
    for verdict in seen.verdicts.nodes.iter().filter(|it| it.outcome == Outcome::Failed) {
        let why = clean(&verdict.reason);
        out.insert(verdict.node.clone(), stop(StopRule::HardFault, why));
    }
    out
}

/// Nodes that showed wrong data, errors or missing GPUs under load. A low rate is not counted:
/// the load shares the fabric with all other nodes.
pub fn find_failed_under_load(verdicts: &Verdicts) -> BTreeMap<NodeName, String> {
    let hard = |it: &&Finding| it.outcome == Outcome::Failed;
    let mut found = BTreeMap::new();
    for finding in verdicts.findings.iter().filter(hard) {
        if let Some(node) = &finding.locus.node {
            found.entry(node.clone()).or_insert_with(|| clean(&finding.summary));
        }
    }
    found
}

/// Nodes of domains in which the measurement is in doubt or a common cause was found.
fn find_frozen_nodes(seen: &BurnInObservation<'_>) -> Vec<(NodeName, String)> {
    let mut frozen = Vec::new();
    let domains = &seen.claims.domains;
    let mut by_name: BTreeMap<&DomainName, Vec<&ClaimedDomain>> = BTreeMap::new();
    domains.iter().for_each(|it| by_name.entry(&it.name).or_default().push(it));
    // A doubt about the whole fleet has one reason: the first one found.
    let mut everywhere = false;
    for finding in &seen.verdicts.findings {
        if finding.locus.kind != LocusKind::Instrument {
            continue;
        }
        let why = format!("{}: {}", finding.class, clean(&finding.summary));
        let of = |it: &ClaimedDomain| -> Vec<(NodeName, String)> {
            it.nodes.iter().map(|node| (node.clone(), why.clone())).collect()
        };
        match &finding.locus.domain {
            Some(name) => {
                frozen.extend(by_name.get(name).into_iter().flatten().flat_map(|it| of(it)));
            }
            None if everywhere => {}
            None => {
                everywhere = true;
                frozen.extend(domains.iter().flat_map(of));
            }
        }
    }
    let outcomes = seen.verdicts.nodes.iter().map(|it| (&it.node, it.outcome));
    let outcomes: BTreeMap<&NodeName, Outcome> = outcomes.collect();
    for domain in domains {
        let is_bad = |node: &&NodeName| outcomes.get(node).is_some_and(|it| Outcome::Unknown < *it);
        let bad = domain.nodes.iter().filter(is_bad).count();
        if seen.freeze_domain <= bad {
            let why =
                format!("{bad} nodes of {} became bad in one round: a common cause", domain.name);
            frozen.extend(domain.nodes.iter().map(|node| (node.clone(), why.clone())));
        }
    }
    frozen
}

/// GPUs that throttled because of heat, by node.
fn find_throttled_gpus(recordings: &[ToolRecording]) -> BTreeMap<NodeName, BTreeSet<u32>> {
    let mut hot: BTreeMap<NodeName, BTreeSet<u32>> = BTreeMap::new();
    for recording in recordings {
        for (host, around) in &recording.parsed.facts.around {
            let node = match &recording.scope {
                RecordingScope::Node(node) => Some(node),
                _ => recording.nodes.iter().find(|node| node.matches_host(host)),
            };
            let throttled = around.gpus.iter().filter(|gpu| {
                let state = gpu.under_load.as_ref();
                state.is_some_and(|state| state.throttled.contains(&TOO_HOT))
            });
            if let Some(node) = node {
                for gpu in throttled {
                    hot.entry(node.clone()).or_default().insert(gpu.index);
                }
            }
        }
    }
    hot
}

/// Nodes that are unreachable at the end. Any node of a step that did not start may be the cause:
/// the rule blames the node with the most such steps and no later step that started.
pub fn find_lost_nodes(results: &[RawResult]) -> BTreeMap<NodeName, String> {
    // The steps of each node that contain no other node known to be lost.
    let mut taking: BTreeMap<&NodeName, NodeSteps<'_>> = BTreeMap::new();
    for (at, result) in results.iter().enumerate() {
        for node in &result.nodes {
            let part = taking.entry(node).or_default();
            part.steps.push(at);
            part.not_started += usize::from(explain_not_started(result).is_some());
        }
    }
    let mut is_left = vec![true; results.len()];
    let mut gone: BTreeSet<(LostNodeRank, Reverse<&NodeName>)> = BTreeSet::new();
    for (node, part) in &mut taking {
        part.update_last(node, results, &is_left);
        gone.extend(part.rank.map(|rank| (rank, Reverse(*node))));
    }
    let mut lost: BTreeMap<NodeName, String> = BTreeMap::new();
    while let Some((_, Reverse(node))) = gone.pop_last() {
        let Some(part) = taking.remove(node) else { continue };
        lost.insert(node.clone(), clean(part.why));
        // The lost node's steps no longer count for the others.
        let mut others: BTreeSet<&NodeName> = BTreeSet::new();
        for at in part.steps {
            if !std::mem::take(&mut is_left[at]) {
                continue;
            }
            let failed = usize::from(explain_not_started(&results[at]).is_some());
            for other in &results[at].nodes {
                if let Some(part) = taking.get_mut(other) {
                    part.not_started -= failed;
                    others.insert(other);
                }
            }
        }
        for other in others {
            let Some(part) = taking.get_mut(other) else { continue };
            if let Some(before) = part.rank {
                gone.remove(&(before, Reverse(other)));
            }
            part.update_last(other, results, &is_left);
            gone.extend(part.rank.map(|rank| (rank, Reverse(other))));
        }
    }
    lost
}

/// Evidence that a node is lost: the number of its steps that did not start; whether it was alone
/// in the last of them, whether the error names it, and whether it is first there.
type LostNodeRank = (usize, bool, bool, bool);

/// The steps of a node in which no other node is known to be lost.
#[derive(Debug, Default)]
struct NodeSteps<'r> {
    /// Indices of its results; the last one still counts.
    steps: Vec<usize>,
    /// How many of the counted steps did not start.
    not_started: usize,
    /// Set if the last of them did not start.
    rank: Option<LostNodeRank>,
    /// Why the last of them did not start.
    why: &'r str,
}

impl<'r> NodeSteps<'r> {
    /// Updates the rank from the last result that still counts.
    fn update_last(&mut self, node: &NodeName, results: &'r [RawResult], is_left: &[bool]) {
        while self.steps.pop_if(|at| !is_left[*at]).is_some() {}
        self.rank = None;
        let Some(result) = self.steps.last().map(|at| &results[*at]) else { return };
        let Some((why, absent)) = explain_not_started(result) else { return };
        let alone = result.nodes.len() == 1;
        // For a pair, the error names the unreachable node if it is the other one.
        let first = result.nodes.first() == Some(node);
        let named = absent == Some(node);
        let other = absent.is_some_and(|absent| result.nodes.contains(absent));
        self.rank = Some((self.not_started, alone, named, first && !other));
        self.why = why;
    }
}

/// Why a step did not start, and the node that could not be reached.
fn explain_not_started(result: &RawResult) -> Option<(&str, Option<&NodeName>)> {
    match &result.ending {
        ProcessEnding::NotStarted { why, node } => Some((why, node.as_ref())),
        _ => None,
    }
}

/// Nodes that booted or have other GPUs than before. Their burn-in restarts after that round;
/// the last such round counts.
pub fn find_replaced_machines(rounds: &[BurnInRound]) -> BTreeMap<NodeName, BurnInStop> {
    let mut others = BTreeMap::new();
    let mut known: BTreeMap<&NodeName, (&Option<String>, &[String])> = BTreeMap::new();
    for round in rounds {
        let before = round.round.saturating_sub(1);
        for it in &round.nodes {
            let (boot, gpus) =
                known.get(&it.node).copied().unwrap_or((&it.boot_id, it.gpus.as_slice()));
            let why = match (boot, &it.boot_id) {
                _ if !gpus.is_empty() && !it.gpus.is_empty() && *gpus != it.gpus => {
                    let why = "it has other GPUs than in the round before";
                    Some((StopRule::OtherMachine, before, why.to_owned()))
                }
                _ if it.rebooted => {
                    let why = format!("it rebooted while round {} measured it", round.round);
                    Some((StopRule::Rebooted, round.round, why))
                }
                (Some(then), Some(now)) if then != now => {
                    let why = "it has rebooted since the round before";
                    Some((StopRule::Rebooted, before, why.to_owned()))
                }
                _ => None,
            };
            if let Some((rule, after_round, why)) = why {
                others.insert(it.node.clone(), BurnInStop { rule, after_round, why });
            }
            // The worker reported two boots within the round. The next round shows the later one;
            // that is not another reboot.
            let boot = match (&it.boot_id, it.rebooted) {
                (_, true) => &None,
                (Some(_), false) => &it.boot_id,
                (None, false) => boot,
            };
            let gpus = if it.gpus.is_empty() { gpus } else { &it.gpus };
            known.insert(&it.node, (boot, gpus));
        }
    }
    others
}

/// Whether the whole burn-in ends here. `hours` is the time so far, `next` the time of a
/// further round with its load, as long as the last one.
pub fn check_stop(acceptance: &Acceptance, hours: f64, next: f64) -> Option<BurnInStop> {
    let request = &acceptance.asked;
    let done: Vec<&BurnInRound> =
        acceptance.rounds.iter().filter(|round| round.ended.is_some()).collect();
    let last = done.last().map_or(0, |round| round.round);
    let stop = |rule, why: String| Some(BurnInStop { rule, after_round: last, why });
    let taking_part = acceptance.nodes.iter().filter(|node| node.out.is_none()).count();
    if !done.is_empty() && taking_part == 0 {
        let mut rules: BTreeMap<StopRule, usize> = BTreeMap::new();
        for out in acceptance.nodes.iter().filter_map(|node| node.out.as_ref()) {
            *rules.entry(out.rule).or_default() += 1;
        }
        let most = rules.into_iter().max_by_key(|(_, count)| *count).map(|(rule, _)| rule);
        return stop(most.unwrap_or(StopRule::HardFault), "no node is left to measure".to_owned());
    }
    let counted = done.iter().filter(|round| !round.set_aside).count();
    if let Some(rounds) = request.rounds
        && rounds as usize <= counted
    {
        return stop(StopRule::Rounds, format!("{counted} of {rounds} rounds are complete"));
    }
    if let Some(clean) = request.clean_rounds {
        let row = done
            .iter()
            .rev()
            .filter(|round| !round.set_aside)
            .take_while(|round| round.outcome == Some(Outcome::Pass))
            .count();
        if clean as usize <= row {
            return stop(StopRule::CleanRounds, format!("{row} consecutive rounds were clean"));
        }
    }
    if let Some(wanted) = request.hours
        && wanted <= hours
        && !done.is_empty()
    {
        return stop(StopRule::Hours, format!("{hours:.2} of {wanted} hours have passed"));
    }
    if let Some(budget) = request.budget_hours
        && !done.is_empty()
        && budget < hours + next
    {
        let why = format!(
            "{hours:.2} of {budget} hours are used, and a further round would take about {next:.2}"
        );
        return stop(StopRule::Budget, why);
    }
    None
}

/// The worst outcome of all nodes; unknown if there are no nodes.
pub fn overall_outcome(acceptance: &Acceptance) -> AcceptanceOutcome {
    acceptance.nodes.iter().map(|node| node.accepted).max().unwrap_or(AcceptanceOutcome::Unknown)
}

#[cfg(test)]
#[path = "burn_in_termination_tests.rs"]
pub(crate) mod tests;
