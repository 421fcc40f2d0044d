//! Whether the sweep itself is in doubt: control nodes that fail, suspects with a common trait that
//! no fault explains, a plan with missing steps.
//!
//! Pure. A doubt found here freezes every drain and blames no node.

use std::collections::{BTreeMap, BTreeSet};

use super::action_policy::Policy;
use super::situation::{PlanCoverage, Situation};
use super::suspects::SuspectNode;
use super::{budget, marks, node_state, stale_journal};
use model::claim_index::ClaimIndex;
use model::hostlist;
use model::id::{DomainName, NodeName};
use model::scheduler_snapshot::SchedulerNode;
use model::text::clean;
use model::verdict::{LocusKind, Outcome};

/// Below this share of planned steps that returned, the instrument is in doubt and not the nodes
/// (algorithms, section 6.1).
const LEAST_COVERAGE: f64 = 0.8;

/// Fewest failing control nodes that are significant.
const FEWEST_CONTROLS: usize = 2;

/// Fewest suspects whose common trait is significant.
const FEWEST_ALIKE: usize = 3;

/// Reasons to propose nothing in a domain, or nothing at all.
#[derive(Debug, Default)]
pub(super) struct DrainFreeze {
    /// No proposal at all.
    pub everywhere: Option<FreezeCause>,
    /// No proposal in these domains.
    pub domains: BTreeMap<DomainName, String>,
}

/// The cause of a freeze of everything.
#[derive(Debug)]
pub(super) struct FreezeCause {
    pub why: String,
    /// Whether it outlasts this run until a user resets it.
    pub is_lasting: bool,
}

/// Finds doubts. Nodes that fabricgate drained before are not new suspects.
pub(super) fn find_freeze(
    situation: &Situation<'_>,
    places: &ClaimIndex<'_>,
    policy: &Policy,
    suspects: &[SuspectNode<'_>],
) -> DrainFreeze {
    let is_fresh = |s: &&SuspectNode<'_>| !situation.ledger.drains.contains_key(s.node);
    // A finding that the policy only displays freezes nothing.
    let acts =
        |s: &&SuspectNode<'_>| s.findings.iter().any(|it| !policy.shadow.contains(&it.class));
    let fresh: Vec<&SuspectNode<'_>> =
        suspects.iter().filter(|s| s.domain.is_some()).filter(is_fresh).filter(acts).collect();
    let mut domains = find_crowded_domains(policy, &fresh);
    let mut measurement = None;
    for finding in &situation.verdicts.findings {
        if finding.locus.kind == LocusKind::Instrument {
            let why = format!("the measurement is in doubt ({})", finding.class);
            match &finding.locus.domain {
                Some(domain) => {
                    domains.entry(domain.clone()).or_insert(why);
                }
                None => measurement = Some(why),
            }
        }
    }
    let of_run = |why: String| FreezeCause { why, is_lasting: false };
    let lasting = |why: String| FreezeCause { why, is_lasting: true };
    let everywhere = explain_lost_journal(situation)
        .or_else(|| {
            stale_journal::explain_stale(situation.live?, situation.ledger, &situation.run.id)
        })
        .map(lasting)
        .or_else(|| explain_low_coverage(situation.coverage).or(measurement).map(of_run))
        .or_else(|| explain_control_failures(situation, policy).map(lasting))
        .or_else(|| explain_fleet_share(places, policy, fresh.len()).map(lasting))
        .or_else(|| explain_shared_trait(situation, places, &fresh).map(of_run));
    DrainFreeze { everywhere, domains }
}

/// Domains with too many suspects in one run.
fn find_crowded_domains(
    policy: &Policy,
    fresh: &[&SuspectNode<'_>],
) -> BTreeMap<DomainName, String> {
    let mut counts: BTreeMap<&DomainName, usize> = BTreeMap::new();
    for domain in fresh.iter().filter_map(|s| s.domain) {
        *counts.entry(domain).or_default() += 1;
    }
    let crowded = counts.into_iter().filter(|(_, count)| policy.freeze_domain <= *count);
    let reasons = crowded.map(|(domain, count)| {
        let why = format!(
            "{count} nodes of {domain} are suspect in one run (limit {}), which points to a common \
             cause",
            policy.freeze_domain
        );
        (domain.clone(), why)
    });
    reasons.collect()
}

/// Whether the journal belongs to another gate: it contains no action, and nodes carry marks that
/// only a gate writes. The folder may be on a file system that is not mounted; the undos, the spent
/// budgets and the breaker's state are then missing.
fn explain_lost_journal(situation: &Situation<'_>) -> Option<String> {
    let ledger = situation.ledger;
    // An action with another result than intended is also recorded.
    let knows =
        ledger.was_reset || !ledger.known_intents.is_empty() || !ledger.recent_intents.is_empty();
    if knows || !ledger.drains.is_empty() || !ledger.undone_drains.is_empty() {
        return None;
    }
    let is_written_on = |node: &&SchedulerNode| {
        node_state::own_reason(node).is_some() || marks::has_gate_marks(node)
    };
    let nodes = situation.live?.nodes.values().filter(is_written_on);
    let nodes = hostlist::fold(nodes.map(|node| node.name.as_str()));
    (!nodes.is_empty()).then(|| {
        format!(
            "the journal contains no action, and a gate has marked {}: check that the state \
             folder is mounted, and that no other gate with its own state folder runs here",
            clean(&nodes)
        )
    })
}

fn explain_low_coverage(coverage: Option<PlanCoverage>) -> Option<String> {
    let PlanCoverage { planned, returned } = coverage?;
    #[expect(clippy::cast_precision_loss, reason = "plans have far fewer than 2^52 steps")]
    let enough = planned as f64 * LEAST_COVERAGE <= returned as f64;
    (!enough).then(|| {
        format!("only {returned} of {planned} steps returned, so the sweep itself is in doubt")
    })
}

/// Nodes that were certified within the day and fail now: either the instrument is wrong, or
/// something affects healthy nodes.
fn explain_control_failures(situation: &Situation<'_>, policy: &Policy) -> Option<String> {
    let nodes = situation.verdicts.nodes.iter();
    let measured: Vec<Outcome> = nodes
        .filter(|n| situation.controls.contains(&n.node) && n.outcome != Outcome::Unknown)
        .map(|n| n.outcome)
        .collect();
    let failing = measured.iter().filter(|outcome| Outcome::Unknown < **outcome).count();
    let is_much = policy.freeze_controls < ratio(failing, measured.len());
    (FEWEST_CONTROLS <= failing && is_much).then(|| {
        format!(
            "{failing} of {} nodes that were certified within the day fail now (limit {:.0} %), so \
             the sweep itself is in doubt",
            measured.len(),
            policy.freeze_controls * 100.0
        )
    })
}

fn explain_fleet_share(places: &ClaimIndex<'_>, policy: &Policy, fresh: usize) -> Option<String> {
    let fleet = places.node_count();
    let is_much = policy.freeze_domain <= fresh && policy.freeze_fleet <= ratio(fresh, fleet);
    is_much.then(|| {
        format!(
            "{fresh} of {fleet} claimed nodes are suspect in one run ({:.0} %, limit {:.0} %), \
             which points to a common cause",
            ratio(fresh, fleet) * 100.0,
            policy.freeze_fleet * 100.0
        )
    })
}

/// A trait that all suspects share and the other measured nodes do not. The first occurrence of
/// a finding is not recorded; nodes that booted in the same minute are the closest evidence.
fn explain_shared_trait(
    situation: &Situation<'_>,
    places: &ClaimIndex<'_>,
    fresh: &[&SuspectNode<'_>],
) -> Option<String> {
    if fresh.len() < FEWEST_ALIKE {
        return None;
    }
    let suspects: BTreeSet<&NodeName> = fresh.iter().map(|s| s.node).collect();
    let measured = situation.verdicts.nodes.iter().filter(|n| n.outcome != Outcome::Unknown);
    let others: Vec<&NodeName> =
        measured.map(|n| &n.node).filter(|node| !suspects.contains(node)).collect();
    let suspects: Vec<&NodeName> = suspects.into_iter().collect();
    let describe = |what: String| {
        format!(
            "all {} suspects {what}, and the other measured nodes do not, which points to a common \
             cause",
            suspects.len()
        )
    };
    let driver = |node: &NodeName| situation.drivers.get(node).map(String::as_str);
    if let Some(driver) = shared_value(&suspects, &others, driver) {
        return Some(describe(format!("run driver {driver}")));
    }
    let booted = |node: &NodeName| {
        let live = situation.live?.nodes.get(node)?;
        live.booted.map(|at| at.div_euclid(60))
    };
    if shared_value(&suspects, &others, booted).is_some() {
        return Some(describe("booted in the same minute".to_owned()));
    }
    explain_shared_leaf(situation, places, &suspects, &others).map(|leaf| {
        let count = suspects.len();
        format!(
            "all {count} suspects are attached to leaf {leaf}, and at most half of the other \
             measured nodes are, which points to a common cause"
        )
    })
}

/// The one value of all suspects, if it is known for each of them and for others, and no other
/// node has it.
fn shared_value<T: PartialEq>(
    suspects: &[&NodeName],
    others: &[&NodeName],
    of: impl Fn(&NodeName) -> Option<T>,
) -> Option<T> {
    let first = of(suspects.first()?)?;
    let all = suspects.iter().all(|node| of(node).as_ref() == Some(&first));
    let mut known = others.iter().filter_map(|node| of(node)).peekable();
    known.peek()?;
    (all && known.all(|value| value != first)).then_some(first)
}

/// A leaf that all suspects are attached to and at most half of the other measured nodes are:
/// in a network of one leaf, all nodes share it.
fn explain_shared_leaf(
    situation: &Situation<'_>,
    places: &ClaimIndex<'_>,
    suspects: &[&NodeName],
    others: &[&NodeName],
) -> Option<String> {
    let of = |node: &&NodeName| places.leaves_of(node);
    let common = suspects.iter().map(of).reduce(|a, b| a.intersection(&b).copied().collect())?;
    let leaf = common.into_iter().find(|leaf| {
        let under = budget::nodes_under_leaf(situation.fleet, leaf);
        let there = others.iter().filter(|node| under.contains(**node)).count();
        !others.is_empty() && there * 2 <= others.len()
    });
    leaf.map(str::to_owned)
}

fn ratio(part: usize, whole: usize) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "fleets have far fewer than 2^52 nodes")]
    let share = if whole == 0 { 0.0 } else { part as f64 / whole as f64 };
    share
}

#[cfg(test)]
#[path = "freeze_tests.rs"]
mod tests;
