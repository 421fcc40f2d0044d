//! A node in service that works below its level is drained when a second run says
//! so, hours after the first: what made it slow for an hour looks in one run like a
//! fault, also in that run's second look (docs/false-drains.md).
//!
//! Pure. What waits is told in the plan; the journal keeps the first sight
//! (`notice::suspicions`), and a pass in between ends it (`notice::events`).

use super::action_policy::Policy;
use super::journal_state::Suspicion;
use super::situation::Situation;
use super::{class_actions, evidence_checks, release};
use model::action::PendingConfirmation;
use model::finding_class::FindingClass;
use model::profile::Profile;
use model::scheduler_snapshot::SchedulerNode;
use model::text::clean;
use model::time_format::format_rfc3339;
use model::verdict::Finding;

const HOUR_S: f64 = 3_600.0;
const DAY_S: f64 = 86_400.0;

/// Why these findings, all of which a second look confirmed, drain this node only
/// when another run says the same, and what that must say; `None` where they do
/// at once, or where an earlier run said it. `all` is everything held against it.
pub(super) fn pending_confirmation(
    situation: &Situation<'_>,
    policy: &Policy,
    node: &SchedulerNode,
    findings: &[&Finding],
    all: &[&Finding],
) -> Option<(String, PendingConfirmation)> {
    let run = situation.run;
    // A burn-in measures for hours and days by itself.
    let is_burn_in = Profile::parse(&run.profile) == Some(Profile::BurnIn);
    if policy.again_hours <= 0.0
        || is_burn_in
        || !class_actions::is_possibly_transient(findings, all)
    {
        return None;
    }
    let mut classes: Vec<FindingClass> = findings.iter().map(|found| found.class.clone()).collect();
    classes.sort();
    classes.dedup();
    let own = Suspicion {
        run: run.id.clone(),
        measured: run.created_unix,
        boot_id: situation.boots.get(&node.name).cloned(),
        classes,
    };
    let known = situation.ledger.suspicions.get(&node.name);
    let first = known.filter(|it| is_same_suspicion(it, &own, policy, node)).unwrap_or(&own);
    let from = first.measured.saturating_add(confirmation_ages_s(policy)[0]);
    if first.run != run.id && from <= run.created_unix {
        return None;
    }
    let from = format_rfc3339(from);
    let since = if first.run == run.id {
        "this run is the first".to_owned()
    } else {
        format!("run {} was the first", clean(&first.run))
    };
    let why = format!(
        "{}, which may pass by itself: {since} to say so, and one made from {from} on has to say it \
         again (policy.again_hours)",
        findings.first().map_or("slow", |found| found.class.as_str()),
    );
    Some((
        why,
        PendingConfirmation { first: first.run.clone(), classes: first.classes.clone(), from },
    ))
}

/// Whether an earlier suspicion is of the same: the same boot, one class in
/// common, and not too long ago.
fn is_same_suspicion(
    known: &Suspicion,
    own: &Suspicion,
    policy: &Policy,
    node: &SchedulerNode,
) -> bool {
    evidence_checks::is_of_this_boot(node, known.boot_id.as_deref(), known.measured)
        && is_open(known, policy, own.measured)
        && known.classes.iter().any(|class| own.classes.contains(class))
}

/// Whether a suspicion still counts at a moment.
pub fn is_open(known: &Suspicion, policy: &Policy, at_unix: i64) -> bool {
    at_unix.saturating_sub(known.measured) <= confirmation_ages_s(policy)[1]
}

/// Between which ages of the first run, in seconds, another says it again.
pub fn confirmation_ages_s(policy: &Policy) -> [i64; 2] {
    // Beyond any time there is, where somebody writes so: casts saturate.
    #[expect(clippy::cast_possible_truncation, reason = "hours and days of a policy")]
    let whole = |seconds: f64| seconds as i64;
    [whole(policy.again_hours * HOUR_S), whole(policy.again_days * DAY_S)]
}

/// Whether the run at hand ends a suspicion where it finds the node well.
pub(super) fn can_clear(situation: &Situation<'_>, policy: &Policy, known: &Suspicion) -> bool {
    let run = situation.run;
    release::is_eligible_run(run, policy)
        && run.id != known.run
        && known.measured < run.created_unix
}

#[cfg(test)]
#[path = "repeat_confirmation_tests.rs"]
mod tests;
