//! Whether a run's evidence still counts: its age, its coverage, later events on the node, and a
//! user's later decision about the same evidence.
//!
//! Pure. All checks need the scheduler's present state; without it a plan is only displayed, and no
//! check applies.

use super::action_policy::{Policy, SlinkyOwner};
use super::drain_reason;
use super::journal_state::UndoneDrain;
use super::situation::{EvidenceRun, Situation};
use model::id::NodeName;
use model::journal::ClockStamp;
use model::scheduler_snapshot::SchedulerNode;
use model::text::clean;
use model::verdict::{Finding, Outcome};

/// A ratio lower by more than this is a new observation, not noise: half of one lost link of
/// eighteen (5.6 %).
const CLEARLY_LOWER: f64 = 0.028;

/// A run may lie this many seconds in the future before the clocks are in doubt.
const SKEW_S: i64 = 300;

/// Slurm derives the time of a boot from the uptime each time a node registers, and two
/// readings of one boot differ by a second (26.05 and 24.11, observed); no server boots within
/// a minute.
const BOOT_JITTER_S: i64 = 60;

const HOUR_S: f64 = 3_600.0;
const DAY_S: f64 = 86_400.0;

/// Why no action of this run is carried out.
pub(super) fn explain_unusable(situation: &Situation<'_>, policy: &Policy) -> Option<String> {
    situation.live?;
    let (run, now) = (situation.run, situation.now);
    if !run.real && !policy.simulated {
        return Some(
            "the run measured a simulated fabric or replayed a stored run, and no nodes \
             (policy.simulated)"
                .to_owned(),
        );
    }
    let created = clean(&run.created);
    if run.created_unix <= 0 {
        return Some("the time of the run is unknown".to_owned());
    }
    let age = now.unix.saturating_sub(run.created_unix);
    if is_in_future(run.created_unix, now.unix) {
        return Some(format!(
            "the run was made at {created}, which is in the future: a clock has jumped"
        ));
    }
    #[expect(clippy::cast_precision_loss, reason = "ages are far below 2^52 seconds")]
    let hours = age as f64 / HOUR_S;
    (policy.evidence_hours < hours).then(|| {
        format!(
            "the run is {hours:.0} hours old (made at {created}; limit {} hours)",
            policy.evidence_hours
        )
    })
}

/// Whether a run lies in the future by more than clocks differ.
pub(super) fn is_in_future(created_unix: i64, now_unix: i64) -> bool {
    now_unix.saturating_sub(created_unix) < -SKEW_S
}

/// Why this run is not evidence about this node: the node booted since, or an action of
/// fabricgate is under way on it.
pub(super) fn explain_overtaken(situation: &Situation<'_>, node: &SchedulerNode) -> Option<String> {
    explain_other_boot(situation, node).or_else(|| explain_open_intent(situation, &node.name))
}

/// Why the run's measurement of this node may not be of its present boot.
///
/// If the scheduler names the boot, only that counts, and clocks and times do not matter. If it
/// names the boot and the run does not, the boot is unknown.
pub(super) fn explain_other_boot(
    situation: &Situation<'_>,
    node: &SchedulerNode,
) -> Option<String> {
    explain_reboot(node, situation.boots.get(&node.name), situation.run)
}

/// The same check for a run that measured the node in this boot.
pub(super) fn explain_reboot(
    node: &SchedulerNode,
    measured: Option<&String>,
    run: &EvidenceRun,
) -> Option<String> {
    let measured = measured.map(String::as_str);
    match is_of_boot(node, measured) {
        Some(true) => None,
        Some(false) => {
            let name = |id: Option<&str>| clean(id.unwrap_or_default());
            let (now, then) = (name(node.boot_id.as_deref()), name(measured));
            Some(match measured {
                Some(_) => format!(
                    "it has booted since it was measured (present boot {now}, measured boot {then})"
                ),
                None => {
                    format!("the run does not name the boot that it measured (present boot {now})")
                }
            })
        }
        None => {
            let is_later = node.booted.is_some_and(|at| run.created_unix < at);
            is_later.then(|| "it has booted since it was measured".to_owned())
        }
    }
}

/// Whether a boot is the node's present one; `None` if only times can decide, because the
/// scheduler does not name boots.
pub(super) fn is_of_boot(node: &SchedulerNode, boot_id: Option<&str>) -> Option<bool> {
    let now = node.boot_id.as_deref()?;
    match boot_id {
        Some(then) => Some(then == now),
        None if node.booted.is_some() => None,
        None => Some(false),
    }
}

/// Whether a measurement in a boot, at a time in seconds since 1970, is of the node's present
/// boot. If the scheduler names no boots, the time decides.
pub(super) fn is_of_this_boot(node: &SchedulerNode, boot_id: Option<&str>, measured: i64) -> bool {
    let by_time = || node.booted.is_none_or(|booted| booted < measured);
    is_of_boot(node, boot_id).unwrap_or_else(by_time)
}

/// Why the Kubernetes gate leaves a node alone on which Slurm's daemon runs: only one of the
/// two gates handles it, and the policy selects which.
pub(super) fn explain_slurm_owned(node: &SchedulerNode, policy: &Policy) -> Option<String> {
    let is_slinky = node.kubernetes.as_ref().is_some_and(|it| it.slinky);
    (is_slinky && policy.slinky == SlinkyOwner::Slurm).then(|| {
        "Slurm's daemon runs on it (Slinky), and it is left to the gate of Slurm (policy.slinky)"
            .to_owned()
    })
}

/// The action of fabricgate that is under way on a node.
fn explain_open_intent(situation: &Situation<'_>, node: &NodeName) -> Option<String> {
    let ledger = situation.ledger;
    if let Some(open) = ledger.open_intents.iter().find(|open| open.action.node == *node) {
        let id = clean(&open.id);
        return Some(format!("an earlier action on it is not concluded yet ({id})"));
    }
    let holds = ledger.allocations.iter();
    let held = holds.filter(|(_, hold)| hold.drained.iter().any(|(held, _)| held == node));
    held.map(|(name, _)| clean(name)).next().map(|name| {
        format!("it is held for measuring ({name}) and is drained again when that ends")
    })
}

/// Why findings do not act on a node whose drain a user undid: they contain nothing new since
/// then.
pub(super) fn explain_acknowledged(
    situation: &Situation<'_>,
    policy: &Policy,
    node: &SchedulerNode,
    findings: &[&Finding],
) -> Option<String> {
    let undone = situation.ledger.undone_drains.get(&node.name)?;
    let is_new = situation.run.id != undone.drain.run
        && (is_other_machine_or_boot(undone, node)
            || has_undo_lapsed(situation, policy, undone)
            || is_new_evidence(undone, findings));
    if is_new {
        return None;
    }
    let at = clean(&undone.stamp.at);
    Some(format!(
        "its drain ({}) was undone manually, observed at {at}; the evidence is the same, so the \
         undo is respected",
        clean(&undone.drain.action.reason)
    ))
}

/// Whether the machine was replaced or booted since the drain that was undone.
fn is_other_machine_or_boot(undone: &UndoneDrain, node: &SchedulerNode) -> bool {
    let then = &undone.drain.before;
    let objects = then.kubernetes.as_ref().zip(node.kubernetes.as_ref());
    if objects.is_some_and(|(then, now)| then.uid != now.uid) {
        return true;
    }
    if let Some((then, now)) = then.boot_id.as_ref().zip(node.boot_id.as_ref()) {
        return then != now;
    }
    let has_booted = then
        .booted
        .zip(node.booted)
        .is_some_and(|(then, now)| BOOT_JITTER_S < now.saturating_sub(then));
    let instances = then.instance.as_ref().zip(node.instance.as_ref());
    has_booted || instances.is_some_and(|(then, now)| then != now)
}

/// The time of a record by the present clock: within one boot the uptime gives its age, regardless
/// of the wall clock at that time. Never earlier than the true time.
pub(super) fn moment_unix(then: &ClockStamp, now: &ClockStamp) -> i64 {
    if then.boot.is_empty() || then.boot != now.boot {
        return then.unix;
    }
    #[expect(clippy::cast_possible_truncation, reason = "an uptime is far below 2^63 seconds")]
    let ago = (now.uptime_s - then.uptime_s).max(0.0) as i64;
    now.unix.saturating_sub(ago)
}

/// Whether an undo has been respected for the configured time and the run is newer.
fn has_undo_lapsed(situation: &Situation<'_>, policy: &Policy, undone: &UndoneDrain) -> bool {
    let since = moment_unix(&undone.stamp, situation.now);
    #[expect(clippy::cast_precision_loss, reason = "ages are far below 2^52 seconds")]
    let days = situation.now.unix.saturating_sub(since) as f64 / DAY_S;
    policy.acknowledged_days <= days && since < situation.run.created_unix
}

/// Whether these findings, worst first, are new since the drain was undone: another class, a
/// worse outcome, or a clearly lower rate in the same class.
fn is_new_evidence(undone: &UndoneDrain, findings: &[&Finding]) -> bool {
    let then = &undone.drain.action;
    let written = drain_reason::parse_reason(&then.reason);
    let is_same_class = |found: &Finding| {
        written.as_ref().is_some_and(|own| drain_reason::is_class(own, found.class.as_str()))
    };
    // A missing outcome counts as the worst.
    let outcome = then.mark.as_ref().map_or(Outcome::Failed, |mark| mark.outcome);
    let is_unheard = |found: &Finding| !is_same_class(found) && !then.findings.contains(&found.id);
    if findings.iter().any(|found| outcome < found.outcome || is_unheard(found)) {
        return true;
    }
    // Only the deciding finding stored its ratio.
    let same = findings.iter().find(|found| is_same_class(found));
    let ratios = then.ratio.zip(same.and_then(|found| found.deciding_share()));
    ratios.is_some_and(|(then, now)| CLEARLY_LOWER < then - now)
}

/// Why this finding alone drains no node yet: the run is not complete, and its missing
/// measurements may contradict. A node that cannot be used at all is drained regardless.
pub(super) fn explain_unfinished(situation: &Situation<'_>, is_hard: bool) -> Option<String> {
    (situation.live.is_some() && !situation.run.complete && !is_hard)
        .then(|| "an incomplete run drains only nodes that cannot be used at all".to_owned())
}

/// Whether the node already carries this mark.
pub(super) fn is_marked(situation: &Situation<'_>, node: &NodeName, found: &Finding) -> bool {
    let mark_now = situation.ledger.marks.get(node);
    mark_now.is_some_and(|mark| {
        mark.outcome == found.outcome && mark.class.as_ref() == Some(&found.class)
    })
}

#[cfg(test)]
#[path = "evidence_checks_tests.rs"]
mod tests;
