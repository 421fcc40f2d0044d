//! The want of one node: an admission, a new certificate, or an audit.
//!
//! Pure. A want has a key that stays the same as long as its cause does, so that an attempt
//! without effect is recognised.

use super::attempts::elapsed_s;
use super::{DueReason, ScheduleInput, ScheduleSettings, eligibility};
use crate::policy::clean::count_clean_runs;
use crate::policy::journal_state::{JournalState, OwnDrain};
use crate::policy::node_state::DrainOwner;
use crate::policy::{certificate, evidence_checks, node_state};
use model::certificate::Certificate;
use model::id::DomainName;
use model::journal::ClockStamp;
use model::profile::Profile;
use model::scheduler_snapshot::SchedulerNode;
use model::text::clean;
use model::time_format::format_rfc3339;
use model::verdict::Outcome;

#[derive(Clone, Debug, PartialEq)]
pub(super) struct MeasurementWant {
    /// The class of the reason.
    pub(super) cause: DueReason,
    pub(super) profile: Profile,
    /// Unchanged as long as the cause is.
    pub(super) key: String,
    pub(super) why: String,
}

/// The want of a claimed node, or why it has none.
pub(super) fn choose_profile(
    watched: &ScheduleInput<'_>,
    settings: &ScheduleSettings,
    now: &ClockStamp,
    node: &SchedulerNode,
    domain: &DomainName,
) -> Result<MeasurementWant, String> {
    let want = |cause: DueReason, profile: Option<Profile>, key: String, why: String| match profile
    {
        Some(profile) => Ok(MeasurementWant { cause, profile, key: format!("{cause} {key}"), why }),
        None => Err(format!("{why}; no profile is configured for that")),
    };
    let boot = node.boot_id.clone().or_else(|| node.booted.map(|at| at.to_string()));
    let boot = boot.unwrap_or_default();
    if let DrainOwner::ThisGate(drain) = node_state::drain_owner(node, watched.ledger) {
        let why = explain_recheck(drain, node, settings, now)?;
        let key = format!("{} boot {boot} clean {}", drain.id, drain.clean.len());
        return want(DueReason::Repaired, settings.repaired, key, why);
    }
    if eligibility::is_unverified(node) {
        let why = "it carries the start-up taint".to_owned();
        return want(DueReason::Unverified, settings.unverified, format!("boot {boot}"), why);
    }
    let Some(certificate) = watched.certificates.get(&node.name) else {
        let (cause, why) = match watched.unreadable.get(&node.name) {
            None => (DueReason::Missing, "it has no certificate".to_owned()),
            Some(trouble) => {
                (DueReason::Expired, format!("its certificate cannot be read: {}", clean(trouble)))
            }
        };
        let profile = if cause == DueReason::Missing { settings.missing } else { settings.expired };
        return want(cause, profile, format!("boot {boot}"), why);
    };
    if let Some(why) = explain_void_certificate(certificate, node, watched.ledger, now) {
        let key = format!("{} boot {boot}", certificate.run);
        return want(DueReason::Expired, settings.expired, key, why);
    }
    let left = certificate.expires_unix.saturating_sub(now.unix);
    if left <= settings.ahead_s {
        let why = format!("its certificate ends {}", clean(&certificate.expires));
        return want(DueReason::Expiring, settings.expired, certificate.run.clone(), why);
    }
    audit_want(watched, settings, now, certificate, domain)
}

/// Why a node that fabricgate drained is measured again; an error is the reason why not yet.
fn explain_recheck(
    drain: &OwnDrain,
    node: &SchedulerNode,
    settings: &ScheduleSettings,
    now: &ClockStamp,
) -> Result<String, String> {
    let then = &drain.before;
    let differs =
        |a: &Option<String>, b: &Option<String>| matches!((a, b), (Some(a), Some(b)) if a != b);
    if differs(&then.instance, &node.instance) {
        return Ok("fabricgate drained it, and it has been another machine since".to_owned());
    }
    let uid = |node: &SchedulerNode| node.kubernetes.as_ref().map(|it| it.uid.clone());
    if differs(&uid(then), &uid(node)) {
        return Ok("fabricgate drained it, and it has joined again since".to_owned());
    }
    // A boot in the future is a clock error.
    let drained = evidence_checks::moment_unix(&drain.stamp, now);
    let booted = node.booted.is_some_and(|at| drained < at && at <= now.unix);
    if differs(&then.boot_id, &node.boot_id) || booted {
        return Ok("fabricgate drained it, and it has booted since".to_owned());
    }
    if !drain.clean.is_empty() {
        let runs = drain.clean.iter().map(|it| (it.measured, it.run.as_str()));
        let counted = count_clean_runs(runs, settings.clean_apart_s);
        let (passed, of) = (counted.runs.len(), settings.clean_sweeps);
        let why = format!("fabricgate drained it, and it passed {passed} of {of} runs since");
        return match counted.from.filter(|from| now.unix < *from && passed < of) {
            None => Ok(why),
            Some(from) => {
                Err(format!("{why}; the next run counts from {} on", format_rfc3339(from)))
            }
        };
    }
    if elapsed_s(&drain.stamp, now) < settings.cool_down_s {
        return Err(format!(
            "fabricgate drained it at {}, and it shows no change since",
            drain.stamp.at
        ));
    }
    Ok(format!("fabricgate drained it at {}, and it has rested since", drain.stamp.at))
}

/// Why a certificate does not apply to the node in its present state.
fn explain_void_certificate(
    certificate: &Certificate,
    node: &SchedulerNode,
    ledger: &JournalState,
    now: &ClockStamp,
) -> Option<String> {
    if let Some(why) = certificate::explain_expiry(certificate, now.unix) {
        return Some(format!("its certificate no longer counts: {}", clean(&why)));
    }
    if let (Some(then), Some(is)) = (&certificate.identity.boot_id, &node.boot_id)
        && then != is
        && certificate.void_on.boot
    {
        return Some("it has booted since it was certified".to_owned());
    }
    if let Some(why) = certificate::explain_outlived(certificate, node) {
        return Some(why);
    }
    explain_edited(certificate, ledger)
}

/// Whether the certificate's end differs from the journal's for the same run. The node's own marks
/// are not checked: they are restored without a measurement.
fn explain_edited(certificate: &Certificate, ledger: &JournalState) -> Option<String> {
    let mark = ledger.marks.get(&certificate.node)?;
    let is_same = mark.run == certificate.run && mark.outcome == Outcome::Pass;
    let end = mark.expires.as_ref().filter(|_| is_same)?;
    (*end != certificate.expires).then(|| {
        let (stated, end) = (clean(&certificate.expires), clean(end));
        format!("its certificate differs from the issued one: it ends {stated}, issued until {end}")
    })
}

/// Prefix of the key of an idle node's audit.
const AUDIT_KEY_PREFIX: &str = "audit ";

/// Whether a want is an audit of the domain, and not a second measurement of one suspect.
pub(super) fn is_idle_audit(want: &str) -> bool {
    want.starts_with(AUDIT_KEY_PREFIX)
}

/// An audit of a node whose certificate holds, if one is due.
fn audit_want(
    watched: &ScheduleInput<'_>,
    settings: &ScheduleSettings,
    now: &ClockStamp,
    certificate: &Certificate,
    domain: &DomainName,
) -> Result<MeasurementWant, String> {
    let suspicion = watched.ledger.suspicions.get(&certificate.node).filter(|it| {
        let age = now.unix.saturating_sub(it.measured);
        // With no hours to wait, one run suffices and no node is a suspect.
        0 < settings.confirmation_ages_s[0]
            && (settings.confirmation_ages_s[0]..=settings.confirmation_ages_s[1]).contains(&age)
    });
    if let Some(first) = suspicion {
        return Ok(MeasurementWant {
            cause: DueReason::Audit,
            profile: Profile::Audit,
            key: format!("again {}", first.run),
            why: format!("run {} found it slow, and another run must confirm it", first.run),
        });
    }
    let holds = || Err("its certificate holds".to_owned());
    if settings.audit_every_s <= 0 {
        return holds();
    }
    // A certifying run measured more than an audit does.
    let certified = now.unix.saturating_sub(certificate.issued_unix).max(0);
    let age =
        watched.attempts.seconds_since_audit(domain, now).map_or(certified, |it| it.min(certified));
    if age < settings.audit_every_s {
        return holds();
    }
    Ok(MeasurementWant {
        cause: DueReason::Audit,
        profile: Profile::Audit,
        key: format!("{AUDIT_KEY_PREFIX}{}", certificate.run),
        why: "its last audit is too long ago".to_owned(),
    })
}

/// The remark about a node that no domain claims: only if it carries a mark of fabricgate,
/// since clusters have nodes without GPUs.
pub(super) fn explain_unclaimed(node: &SchedulerNode, ledger: &JournalState) -> Option<String> {
    let is_ours = eligibility::is_unverified(node) || ledger.drains.contains_key(&node.name);
    is_ours.then(|| "no domain claims it, so its partners for a measurement are unknown".to_owned())
}
