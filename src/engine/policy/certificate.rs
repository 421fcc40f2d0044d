//! Certificates from a run, and what voids a certificate.
//!
//! Pure. A certificate holds the measurements of one machine in one boot. A node that passed is
//! certified; a node that did not pass gets no certificate.

use std::collections::{BTreeMap, BTreeSet};

use super::action_policy::Policy;
use super::identity::{ObservedIdentity, boot_ids, collect_identities};
use super::journal_state::JournalState;
use super::situation::EvidenceRun;
use super::{evidence_checks, node_state};
use model::action::{ActionKind, ActionRecord, ActionResult, WithheldAction};
use model::certificate::{
    CERTIFICATE_FORMAT, Certificate, CertificateStatus, DriverVoidRule, IdentityDifference,
    MachineIdentity, TestMinimum, VoidPolicy,
};
use model::claims::Claims;
use model::id::NodeName;
use model::journal::ClockStamp;
use model::measured_cell::MeasuredCell;
use model::profile::Profile;
use model::raw_result::RawResult;
use model::scheduler_snapshot::{SchedulerNode, SchedulerSnapshot};
use model::text::clean;
use model::time_format::{DAY_S, format_rfc3339};
use model::tool_recording::ToolRecording;
use model::unit::Unit;
use model::verdict::{NodeVerdict, Outcome, Verdicts};
use model::worker_protocol::MachineRecord;

/// Most days that an admission counts: it leaves out the tournament and is made before one job.
/// Other admission checks also expire after a day.
const ADMIT_DAYS: u32 = 1;

/// The input for certificates.
#[derive(Clone, Copy, Debug)]
pub struct CertificateEvidence<'a> {
    /// The run.
    pub run: &'a EvidenceRun,
    /// The judge's verdicts.
    pub verdicts: &'a Verdicts,
    /// The measured cells.
    pub cells: &'a [MeasuredCell],
    /// The claims about the nodes.
    pub claims: &'a Claims,
    /// The workers' reports about their machines.
    pub machines: &'a [MachineRecord],
    /// The results of the steps, some of which name GPUs.
    pub results: &'a [RawResult],
    /// The parsed outputs, some of which name GPUs and the driver.
    pub recordings: &'a [ToolRecording],
}

/// How long a run certifies the nodes that pass it, in seconds; the error is the reason why it
/// certifies none.
///
/// An audit runs only cheap measurements, so it certifies nothing; its passes do not shorten an
/// earlier certificate either.
pub fn run_validity_s(run: &EvidenceRun, policy: &Policy) -> Result<i64, String> {
    let days = match Profile::parse(&run.profile) {
        Some(profile @ (Profile::Admit | Profile::BurnIn | Profile::Recertify)) => {
            certificate_days(profile, policy)
        }
        Some(Profile::Audit) => {
            return Err("an audit measures too little to certify; earlier certificates \
                        stay valid"
                .to_owned());
        }
        None => return Err(format!("{:?} is not a profile that certifies", run.profile)),
    };
    if !run.real && !policy.simulated {
        return Err("the run measured no nodes: it was simulated, or replays outputs".to_owned());
    }
    if let Some(why) = &run.unsigned {
        return Err(why.clone());
    }
    if !run.complete {
        return Err("the run did not run to completion".to_owned());
    }
    if run.created_unix <= 0 {
        return Err("the run has no time of creation".to_owned());
    }
    Ok(i64::from(days) * DAY_S)
}

/// Days that a pass under this profile counts.
pub fn certificate_days(profile: Profile, policy: &Policy) -> u32 {
    let (own, usual) = match profile {
        Profile::BurnIn => (policy.certificate_days_burn_in, policy.certificate_days),
        Profile::Recertify => (policy.certificate_days_recertify, policy.certificate_days),
        Profile::Admit => (policy.certificate_days_admit, policy.certificate_days.min(ADMIT_DAYS)),
        Profile::Audit => (None, 0),
    };
    own.unwrap_or(usual)
}

/// The state of the nodes when the gate acted on a run, and the result.
#[derive(Clone, Copy, Debug)]
pub struct GateRecord<'a> {
    /// The nodes before any action.
    pub live: &'a SchedulerSnapshot,
    /// The actions and their results.
    pub records: &'a [ActionRecord],
    /// The journal's state after the actions.
    pub ledger: &'a JournalState,
}

/// How long a run certifies, in seconds from its creation; the error is the reason why it
/// certifies nothing now.
pub(super) fn remaining_validity_s(
    run: &EvidenceRun,
    policy: &Policy,
    now: i64,
) -> Result<i64, String> {
    let seconds = run_validity_s(run, policy)?;
    if evidence_checks::is_in_future(run.created_unix, now) {
        let created = clean(&run.created);
        return Err(format!("the run was made at {created}, which is in the future"));
    }
    if run.created_unix.saturating_add(seconds) <= now {
        return Err("the run is too old to certify".to_owned());
    }
    Ok(seconds)
}

/// Why a node that passed gets no mark now because of its state: the scheduler's marks and the
/// certificates on disk must not disagree.
pub(super) fn explain_refusal(
    node: &SchedulerNode,
    measured: Option<&String>,
    run: &EvidenceRun,
    policy: &Policy,
) -> Option<String> {
    evidence_checks::explain_slurm_owned(node, policy)
        .or_else(|| evidence_checks::explain_reboot(node, measured, run))
}

/// Why a node that passed gets no certificate because of events since the run; `own` are the
/// actions on this node.
fn explain_withheld(
    node: &NodeName,
    acted: &GateRecord<'_>,
    own: &[&ActionRecord],
    measured: Option<&String>,
    run: &EvidenceRun,
    policy: &Policy,
) -> Option<String> {
    let Some(live) = acted.live.nodes.get(node) else {
        return Some("the scheduler does not know it".to_owned());
    };
    let is_done =
        |it: &ActionRecord| matches!(it.result, ActionResult::Done | ActionResult::Already);
    let mut records = own.iter().copied();
    // After a release the earlier state no longer applies.
    let is_released = records.clone().any(|it| it.kind == ActionKind::Release && is_done(it));
    let stands = if is_released { None } else { node_state::explain_no_certificate(live) };
    stands.or_else(|| explain_refusal(live, measured, run, policy)).or_else(|| {
        let unmarked = records.find(|it| it.kind == ActionKind::Certify && !is_done(it))?;
        Some(format!("it could not be marked: {}", clean(&unmarked.detail)))
    })
}

/// Certificates of the nodes that passed, and the reasons why other nodes that passed have
/// none. A node drained by fabricgate waits for its release, and a node that was booted or
/// taken out since its measurement waits for another run.
pub fn issue_certificates(
    evidence: &CertificateEvidence<'_>,
    acted: &GateRecord<'_>,
    policy: &Policy,
    now: i64,
) -> (Vec<Certificate>, Vec<WithheldAction>) {
    issue(evidence, Some(acted), policy, now)
}

/// Certificates from a run alone, for a run that no gate acted on. No gate accepts them.
pub fn issue_without_gate(
    evidence: &CertificateEvidence<'_>,
    policy: &Policy,
    now: i64,
) -> (Vec<Certificate>, Vec<WithheldAction>) {
    issue(evidence, None, policy, now)
}

fn issue(
    evidence: &CertificateEvidence<'_>,
    acted: Option<&GateRecord<'_>>,
    policy: &Policy,
    now: i64,
) -> (Vec<Certificate>, Vec<WithheldAction>) {
    let run = evidence.run;
    let seconds = match remaining_validity_s(run, policy, now) {
        Ok(seconds) => seconds,
        Err(why) => {
            return (Vec::new(), vec![WithheldAction::new("certificates", why)]);
        }
    };
    let mut minima = node_minima(evidence.cells);
    let mut identities =
        collect_identities(evidence.machines, evidence.results, evidence.recordings);
    let boots = boot_ids(evidence.machines);
    let platforms: BTreeMap<&NodeName, &str> = evidence
        .claims
        .domains
        .iter()
        .filter_map(|domain| Some((domain, domain.platform.as_deref()?)))
        .flat_map(|(domain, platform)| domain.nodes.iter().map(move |node| (node, platform)))
        .collect();
    let mut records: BTreeMap<&NodeName, Vec<&ActionRecord>> = BTreeMap::new();
    for record in acted.iter().flat_map(|it| it.records) {
        records.entry(&record.node).or_default().push(record);
    }
    let (mut made, mut withheld) = (Vec::new(), Vec::new());
    for NodeVerdict { node, domain, outcome, detectable, scope, .. } in &evidence.verdicts.nodes {
        if *outcome != Outcome::Pass {
            continue;
        }
        let mut refuse = |why: String| withheld.push(WithheldAction::new(node.to_string(), why));
        if !node.is_one_node() {
            refuse(node_state::explain_not_one_node(node));
            continue;
        }
        if acted.is_some_and(|it| it.ledger.drains.contains_key(node)) {
            refuse("it passed, and is certified when fabricgate releases it".to_owned());
            continue;
        }
        let own = records.get(node).map(Vec::as_slice).unwrap_or_default();
        let why =
            acted.and_then(|it| explain_withheld(node, it, own, boots.get(node), run, policy));
        if let Some(why) = why {
            refuse(format!("passed, not certified: {why}"));
            continue;
        }
        let identity = match identities.remove(node).unwrap_or_default() {
            ObservedIdentity { problem: Some(why), .. } => {
                refuse(why);
                continue;
            }
            ObservedIdentity { identity, .. } => identity,
        };
        let platform = platforms.get(node).copied().or(evidence.verdicts.platform.as_deref());
        made.push(Certificate {
            format: CERTIFICATE_FORMAT.to_owned(),
            node: node.clone(),
            identity,
            domain: domain.clone(),
            platform: platform.map(str::to_owned),
            profile: run.profile.clone(),
            scope: scope.clone(),
            simulated: run.simulated,
            minima: minima.remove(node).unwrap_or_default(),
            detectable: *detectable,
            thresholds_digest: evidence.verdicts.thresholds_digest.clone(),
            run: run.id.clone(),
            issued: run.created.clone(),
            issued_unix: run.created_unix,
            expires: format_rfc3339(run.created_unix.saturating_add(seconds)),
            expires_unix: run.created_unix.saturating_add(seconds),
            void_on: policy.certificate_void,
            voided: None,
            signature: None,
        });
    }
    (made, withheld)
}

/// Why a certificate does not hold for this machine; `None` if it does.
///
/// A reboot alone voids it: NVLinks train and the fabric is joined again at every boot, and the
/// measurements are a result of that. A part that one side does not report is not compared; if
/// nothing can be compared, the machine's identity is unknown.
pub fn explain_void(
    certificate: &Certificate,
    machine: &MachineIdentity,
    now: i64,
) -> Option<String> {
    if let Some(why) = explain_expiry(certificate, now) {
        return Some(why);
    }
    let compared = compare_machine(certificate, machine);
    if let Some(voids) = compared.differs.into_iter().find(|it| it.voids) {
        return Some(voids.why);
    }
    compared.is_incomparable.then(|| IDENTITY_UNKNOWN.to_owned())
}

/// The message for identities that have no part in common to compare.
pub const IDENTITY_UNKNOWN: &str = "nothing identifies it as the certified machine";

/// A machine compared with the certified one, part by part.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IdentityComparison {
    /// Whether nothing could be compared: the machine may be another one.
    pub is_incomparable: bool,
    /// Parts that are the same.
    pub same: Vec<String>,
    /// Parts that differ.
    pub differs: Vec<IdentityDifference>,
    /// Parts that one side does not report.
    pub unknown: Vec<String>,
}

impl IdentityComparison {
    fn add_part(&mut self, part: &str, voids: bool, why: Option<String>) {
        match why {
            None => self.same.push(part.to_owned()),
            Some(why) => {
                self.differs.push(IdentityDifference { part: part.to_owned(), why, voids });
            }
        }
    }
}

/// Compares a machine with the certified one.
pub fn compare_machine(certificate: &Certificate, machine: &MachineIdentity) -> IdentityComparison {
    compare_identities(&certificate.identity, certificate.void_on, machine)
}

/// Compares a machine with an earlier identity; `void_on` selects which differences void, in
/// addition to other GPUs, which always do.
pub fn compare_identities(
    then: &MachineIdentity,
    void_on: VoidPolicy,
    machine: &MachineIdentity,
) -> IdentityComparison {
    let mut all = IdentityComparison::default();
    if then.gpus.is_empty() || machine.gpus.is_empty() {
        all.unknown.push("gpus".to_owned());
    } else {
        all.add_part("gpus", true, explain_other_gpus(&then.gpus, &machine.gpus));
    }
    match (&then.driver, &machine.driver) {
        (Some(then), Some(now)) => {
            let voids = match void_on.driver {
                DriverVoidRule::Any => true,
                DriverVoidRule::Major => driver_branch(then) != driver_branch(now),
                DriverVoidRule::Never => false,
            };
            let why = || format!("another driver: {}, certified with {then}", clean(now));
            all.add_part("driver", voids, (then != now).then(why));
        }
        _ => all.unknown.push("driver".to_owned()),
    }
    match (&then.boot_id, &machine.boot_id) {
        (Some(then), Some(now)) => {
            let why = || format!("it has rebooted: boot {}, certified in boot {then}", clean(now));
            all.add_part("boot", void_on.boot, (then != now).then(why));
        }
        _ => all.unknown.push("boot".to_owned()),
    }
    for (part, then) in &then.firmware {
        let name = format!("firmware of {part}");
        match machine.firmware.get(part) {
            None => all.unknown.push(name),
            Some(now) => {
                let why =
                    || format!("other firmware of {part}: {}, certified with {then}", clean(now));
                all.add_part(&name, void_on.firmware, (then != now).then(why));
            }
        }
    }
    all.is_incomparable = all.same.is_empty() && all.differs.is_empty();
    all
}

/// The branch of a driver version: the part before the first dot.
fn driver_branch(version: &str) -> &str {
    version.split('.').next().unwrap_or(version)
}

/// Why a certificate no longer counts, independent of the machine.
pub fn explain_expiry(certificate: &Certificate, now: i64) -> Option<String> {
    if let Some(voided) = &certificate.voided {
        return Some(format!("voided {}: {}", voided.at, voided.why));
    }
    if certificate.scope.is_none() {
        return Some("it does not name the boundaries across which the run measured".to_owned());
    }
    if certificate.expires_unix <= now {
        return Some(format!("expired {}", certificate.expires));
    }
    if now < certificate.issued_unix {
        return Some(format!("issued {}, which is in the future", certificate.issued));
    }
    None
}

/// A boundary that a certificate can be asked to cover.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CertificateBoundary {
    /// The links inside the node.
    Node,
    /// The node and others of its NVLink domain.
    Domain,
    /// The node and others over the scale-out network.
    Network,
}

/// Why a certificate does not cover the requested boundary; `None` if it does.
pub fn explain_uncovered(
    certificate: &Certificate,
    boundary: CertificateBoundary,
) -> Option<String> {
    let scope = certificate.scope.clone().unwrap_or_default();
    let (covers, what) = match boundary {
        CertificateBoundary::Node => (scope.inside, "the links inside the node"),
        CertificateBoundary::Domain => (scope.domain.is_some(), "other nodes of its NVLink domain"),
        CertificateBoundary::Network => (scope.network.is_some(), "other nodes over the network"),
    };
    (!covers).then(|| format!("the node was not measured across the requested boundary: {what}"))
}

/// The status of a certificate, independent of the machine, and why it does not count.
/// `refusal` is the reason why its signature does not count.
pub fn certificate_standing(
    certificate: &Certificate,
    refusal: Option<String>,
    now: i64,
) -> (CertificateStatus, Option<String>) {
    let why = explain_expiry(certificate, now);
    if certificate.voided.is_some() {
        return (CertificateStatus::Void, why);
    }
    match (refusal, why) {
        (Some(refusal), _) => (CertificateStatus::Untrusted, Some(refusal)),
        (None, Some(why)) => (CertificateStatus::Expired, Some(why)),
        (None, None) => (CertificateStatus::Valid, None),
    }
}

/// Why a certificate belongs to an earlier boot, by the scheduler's data; for callers without a
/// worker on the node.
pub fn explain_outlived(certificate: &Certificate, node: &SchedulerNode) -> Option<String> {
    if !certificate.void_on.boot {
        return None;
    }
    let boots = certificate.identity.boot_id.as_ref().zip(node.boot_id.as_ref());
    if let Some((then, now)) = boots {
        return (then != now).then(|| {
            let (then, now) = (clean(then), clean(now));
            format!("it has rebooted: boot {now}, certified in boot {then}")
        });
    }
    let booted = node.booted.filter(|booted| certificate.issued_unix < *booted)?;
    Some(format!("it booted {}, after it was certified", format_rfc3339(booted)))
}

/// Whether a new certificate replaces an existing one: no, if that one still holds for the same
/// machine, and for longer.
pub fn replaces(new: &Certificate, old: &Certificate, now: &ClockStamp) -> bool {
    old.expires_unix <= new.expires_unix || explain_void(old, &new.identity, now.unix).is_some()
}

fn explain_other_gpus(then: &[String], now: &[String]) -> Option<String> {
    let (was, is): (BTreeSet<&String>, BTreeSet<&String>) =
        (then.iter().collect(), now.iter().collect());
    let new = is.difference(&was).count();
    let gone = was.difference(&is).count();
    match (new, gone) {
        (0, 0) if then == now => None,
        (0, 0) => Some("its GPUs are in another order than at certification".to_owned()),
        (0, gone) => Some(format!("{gone} of the {} certified GPUs are missing", was.len())),
        (new, _) => Some(format!("{new} of its {} GPUs are not the certified ones", is.len())),
    }
}

/// Identifies one cell over all its readings: the test and its two ends.
type CertifiedCellKey<'a> =
    (&'a str, Unit, CertifiedCellEnd<'a>, CertifiedCellEnd<'a>, Option<&'a str>);
type CertifiedCellEnd<'a> = (Option<&'a NodeName>, Option<u32>);
/// The measured and the expected value.
type CertifiedCellLevel = (f64, Option<f64>);

/// The lowest bandwidth of every node by test. A cell counts with the median of its readings,
/// as in the judge, because one dip is not a level. Latencies have no floor and are left out.
pub fn node_minima(cells: &[MeasuredCell]) -> BTreeMap<NodeName, Vec<TestMinimum>> {
    let mut readings: BTreeMap<CertifiedCellKey<'_>, Vec<CertifiedCellLevel>> = BTreeMap::new();
    for cell in cells.iter().filter(|cell| cell.unit.is_bandwidth()) {
        let Some(value) = cell.value.filter(|value| value.is_finite()) else { continue };
        let (src, dst) =
            ((cell.src_node.as_ref(), cell.src_gpu), (cell.dst_node.as_ref(), cell.dst_gpu));
        let place = (&*cell.testcase, cell.unit, src, dst, cell.rail.as_deref());
        readings.entry(place).or_default().push((value, cell.expected));
    }
    let mut least: BTreeMap<&NodeName, BTreeMap<(&str, Unit), CertifiedCellLevel>> =
        BTreeMap::new();
    for ((testcase, unit, src, dst, _), mut values) in readings {
        values.sort_by(|a, b| a.0.total_cmp(&b.0));
        // The lower of two middle readings, so that the level is never above the readings.
        let (value, expected) = values[(values.len() - 1) / 2];
        for node in [src.0, dst.0].into_iter().flatten() {
            let slot =
                least.entry(node).or_default().entry((testcase, unit)).or_insert((value, expected));
            if value < slot.0 {
                *slot = (value, expected);
            }
        }
    }
    least
        .into_iter()
        .map(|(node, tests)| {
            let minima = tests
                .into_iter()
                .map(|((testcase, unit), (value, expected))| TestMinimum {
                    testcase: testcase.to_owned(),
                    value,
                    unit,
                    expected,
                })
                .collect();
            (node.clone(), minima)
        })
        .collect()
}

#[cfg(test)]
#[path = "certificate_tests.rs"]
mod tests;
