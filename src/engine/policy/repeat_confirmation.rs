//! A node in service that works below its level is drained when a second run
//! confirms it, hours after the first: a transient cause looks in one run like a
//! fault, even in that run's second measurement (docs/false-drains.md).
//!
//! Pure. The plan lists what waits; the journal keeps the first observation
//! (`journal_events::collect_suspicions`), and a pass in between clears it
//! (`journal_events::collect_events`).

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

/// Why these findings, all confirmed by a second measurement, do not drain this node before another
/// run agrees, and the result that run must have; `None` if they drain it immediately, or if an
/// earlier run agrees. `all` holds every finding about the node.
pub(super) fn pending_confirmation(
    situation: &Situation<'_>,
    policy: &Policy,
    node: &SchedulerNode,
    findings: &[&Finding],
    all: &[&Finding],
) -> Option<(String, PendingConfirmation)> {
    let run = situation.run;
    // A burn-in measures for hours or days itself.
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
        "{}, which may be transient: {since} to find it, and one made from {from} on must confirm \
         it (policy.again_hours)",
        findings.first().map_or("slow", |found| found.class.as_str()),
    );
    Some((
        why,
        PendingConfirmation { first: first.run.clone(), classes: first.classes.clone(), from },
    ))
}

/// Whether an earlier suspicion is the same: the same boot, one class in common, and recent
/// enough.
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

/// Whether a suspicion still counts at this time.
pub fn is_open(known: &Suspicion, policy: &Policy, at_unix: i64) -> bool {
    at_unix.saturating_sub(known.measured) <= confirmation_ages_s(policy)[1]
}

/// The least and the greatest age of the first run, in seconds, at which another run confirms
/// it.
pub fn confirmation_ages_s(policy: &Policy) -> [i64; 2] {
    // Casts saturate, so any configured number of hours is valid.
    #[expect(clippy::cast_possible_truncation, reason = "hours and days of a policy")]
    let whole = |seconds: f64| seconds as i64;
    [whole(policy.again_hours * HOUR_S), whole(policy.again_days * DAY_S)]
}

/// Whether a pass in the current run clears a suspicion.
pub(super) fn can_clear(situation: &Situation<'_>, policy: &Policy, known: &Suspicion) -> bool {
    let run = situation.run;
    release::is_eligible_run(run, policy)
        && run.id != known.run
        && known.measured < run.created_unix
}

#[cfg(test)]
#[path = "repeat_confirmation_tests.rs"]
mod tests;
