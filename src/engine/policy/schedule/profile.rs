//! What one node wants: to be admitted, certified again, or looked at.
//!
//! Pure. A want has a key: words that stay the same as long as nothing about it
//! changes, so that an attempt that changed nothing is told from one that did.

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

/// What a node wants.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct MeasurementWant {
    /// Why, as a class.
    pub(super) cause: DueReason,
    /// What it gets.
    pub(super) profile: Profile,
    /// The same as long as nothing changed.
    pub(super) key: String,
    /// Why, in words.
    pub(super) why: String,
}

/// What a claimed node wants, or why it wants nothing.
pub(super) fn choose_profile(
    watched: &ScheduleInput<'_>,
    settings: &ScheduleSettings,
    now: &ClockStamp,
    node: &SchedulerNode,
    domain: &DomainName,
) -> Result<MeasurementWant, String> {
    let asked = |cause: DueReason, profile: Option<Profile>, key: String, why: String| match profile
    {
        Some(profile) => Ok(MeasurementWant { cause, profile, key: format!("{cause} {key}"), why }),
        None => Err(format!("{why}; nothing is configured to be done about that")),
    };
    let boot = node.boot_id.clone().or_else(|| node.booted.map(|at| at.to_string()));
    let boot = boot.unwrap_or_default();
    if let DrainOwner::ThisGate(drain) = node_state::drain_owner(node, watched.ledger) {
        let why = explain_recheck(drain, node, settings, now)?;
        let key = format!("{} boot {boot} clean {}", drain.id, drain.clean.len());
        return asked(DueReason::Repaired, settings.repaired, key, why);
    }
    if eligibility::is_unverified(node) {
        let why = "it carries the start-up taint".to_owned();
        return asked(DueReason::Unverified, settings.unverified, format!("boot {boot}"), why);
    }
    let Some(certificate) = watched.certificates.get(&node.name) else {
        let (cause, why) = match watched.unreadable.get(&node.name) {
            None => (DueReason::Missing, "it has no certificate".to_owned()),
            Some(trouble) => {
                (DueReason::Expired, format!("its certificate cannot be read: {}", clean(trouble)))
            }
        };
        let profile = if cause == DueReason::Missing { settings.missing } else { settings.expired };
        return asked(cause, profile, format!("boot {boot}"), why);
    };
    if let Some(why) = explain_void_certificate(certificate, node, watched.ledger, now) {
        let key = format!("{} boot {boot}", certificate.run);
        return asked(DueReason::Expired, settings.expired, key, why);
    }
    let left = certificate.expires_unix.saturating_sub(now.unix);
    if left <= settings.ahead_s {
        let why = format!("its certificate ends {}", clean(&certificate.expires));
        return asked(DueReason::Expiring, settings.expired, certificate.run.clone(), why);
    }
    audit_want(watched, settings, now, certificate, domain)
}

/// Why a node that we drained is measured again; an error says why not yet.
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
        return Ok("we drained it, and it is another machine since".to_owned());
    }
    let uid = |node: &SchedulerNode| node.kubernetes.as_ref().map(|it| it.uid.clone());
    if differs(&uid(then), &uid(node)) {
        return Ok("we drained it, and it joined anew since".to_owned());
    }
    // A boot that is yet to come is a clock's mistake.
    let drained = evidence_checks::moment_unix(&drain.stamp, now);
    let booted = node.booted.is_some_and(|at| drained < at && at <= now.unix);
    if differs(&then.boot_id, &node.boot_id) || booted {
        return Ok("we drained it, and it has booted since".to_owned());
    }
    if !drain.clean.is_empty() {
        let runs = drain.clean.iter().map(|it| (it.measured, it.run.as_str()));
        let counted = count_clean_runs(runs, settings.clean_apart_s);
        let (passed, of) = (counted.runs.len(), settings.clean_sweeps);
        let told = format!("we drained it, and it passed {passed} of {of} runs since");
        return match counted.from.filter(|from| now.unix < *from && passed < of) {
            None => Ok(told),
            Some(from) => Err(format!("{told}; the next counts from {} on", format_rfc3339(from))),
        };
    }
    if elapsed_s(&drain.stamp, now) < settings.cool_down_s {
        return Err(format!("we drained it at {}, and it shows no change since", drain.stamp.at));
    }
    Ok(format!("we drained it at {}, and it has rested since", drain.stamp.at))
}

/// Why a certificate says nothing of the node as it is.
fn explain_void_certificate(
    certificate: &Certificate,
    node: &SchedulerNode,
    ledger: &JournalState,
    now: &ClockStamp,
) -> Option<String> {
    if let Some(why) = certificate::explain_expiry(certificate, now.unix) {
        return Some(format!("its certificate counts no more: {}", clean(&why)));
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

/// Whether the file says another end than our journal does of the same run. What
/// the node itself carries is not looked at: that is said again without measuring.
fn explain_edited(certificate: &Certificate, ledger: &JournalState) -> Option<String> {
    let mark = ledger.marks.get(&certificate.node)?;
    let is_same = mark.run == certificate.run && mark.outcome == Outcome::Pass;
    let end = mark.expires.as_ref().filter(|_| is_same)?;
    (*end != certificate.expires).then(|| {
        let (says, end) = (clean(&certificate.expires), clean(end));
        format!("its certificate is not as it was issued: it says {says}, and was to end {end}")
    })
}

/// How the want of a node begins that nobody looked at for long.
const AUDIT_KEY_PREFIX: &str = "audit ";

/// Whether a want is a look for the domain's own sake, and not at one suspect.
pub(super) fn is_idle_audit(want: &str) -> bool {
    want.starts_with(AUDIT_KEY_PREFIX)
}

/// A look at a node whose certificate holds, where it is time for one.
fn audit_want(
    watched: &ScheduleInput<'_>,
    settings: &ScheduleSettings,
    now: &ClockStamp,
    certificate: &Certificate,
    domain: &DomainName,
) -> Result<MeasurementWant, String> {
    let suspicion = watched.ledger.suspicions.get(&certificate.node).filter(|it| {
        let age = now.unix.saturating_sub(it.measured);
        // With no hours to wait, one run is enough and nobody is suspected.
        0 < settings.confirmation_ages_s[0]
            && (settings.confirmation_ages_s[0]..=settings.confirmation_ages_s[1]).contains(&age)
    });
    if let Some(first) = suspicion {
        return Ok(MeasurementWant {
            cause: DueReason::Audit,
            profile: Profile::Audit,
            key: format!("again {}", first.run),
            why: format!("run {} found it slow, and another has to say so", first.run),
        });
    }
    let holds = || Err("its certificate holds".to_owned());
    if settings.audit_every_s <= 0 {
        return holds();
    }
    // What was measured to certify it was more than an audit.
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
        why: "it was not looked at for long".to_owned(),
    })
}

/// What is told of a node that no domain claims: only where something of ours is
/// on it, since clusters have nodes without GPUs.
pub(super) fn explain_unclaimed(node: &SchedulerNode, ledger: &JournalState) -> Option<String> {
    let is_ours = eligibility::is_unverified(node) || ledger.drains.contains_key(&node.name);
    is_ours.then(|| "no domain claims it, so nobody can say with whom to measure it".to_owned())
}
