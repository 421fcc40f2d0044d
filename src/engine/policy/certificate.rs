//! Certificates from a run, and what makes one void.
//!
//! Pure. A certificate holds what was measured of one machine in one boot: a
//! node that passed is certified, and nothing is said of one that did not.

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

/// Days that an admission counts at most: it leaves out the tournament, and is
/// made before one job. A day is the age at which others' admission checks
/// expire, too.
const ADMIT_DAYS: u32 = 1;

/// What certificates are made from.
#[derive(Clone, Copy, Debug)]
pub struct CertificateEvidence<'a> {
    /// The run.
    pub run: &'a EvidenceRun,
    /// What the judge says.
    pub verdicts: &'a Verdicts,
    /// What was measured.
    pub cells: &'a [MeasuredCell],
    /// What was claimed of the nodes.
    pub claims: &'a Claims,
    /// What workers said of their machines.
    pub machines: &'a [MachineRecord],
    /// The readings, some of which name GPUs.
    pub results: &'a [RawResult],
    /// The outputs, some of which name GPUs and the driver.
    pub recordings: &'a [ToolRecording],
}

/// How long a run certifies the nodes that pass it, in seconds; an error says
/// why it certifies none.
///
/// An audit measures what is cheap, so it certifies nothing; what it finds
/// well takes nothing from an earlier certificate either.
pub fn run_validity_s(run: &EvidenceRun, policy: &Policy) -> Result<i64, String> {
    let days = match Profile::parse(&run.profile) {
        Some(profile @ (Profile::Admit | Profile::BurnIn | Profile::Recertify)) => {
            certificate_days(profile, policy)
        }
        Some(Profile::Audit) => {
            return Err("an audit measures too little to certify; what was certified before \
                        stays so"
                .to_owned());
        }
        None => return Err(format!("{:?} is no profile that certifies", run.profile)),
    };
    if !run.real && !policy.simulated {
        return Err("the run measured no nodes: it was simulated, or is a stored one".to_owned());
    }
    if let Some(why) = &run.unsigned {
        return Err(why.clone());
    }
    if !run.complete {
        return Err("the run did not come to its end".to_owned());
    }
    if run.created_unix <= 0 {
        return Err("the run does not say when it was made".to_owned());
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

/// How nodes stood when a run was acted on, and what came of that.
#[derive(Clone, Copy, Debug)]
pub struct GateRecord<'a> {
    /// The nodes as they were before anything was done.
    pub live: &'a SchedulerSnapshot,
    /// What was done.
    pub records: &'a [ActionRecord],
    /// The record as it stands since.
    pub ledger: &'a JournalState,
}

/// For how long a run certifies from when it was made, in seconds; an error says
/// why it certifies nothing now.
pub(super) fn remaining_validity_s(
    run: &EvidenceRun,
    policy: &Policy,
    now: i64,
) -> Result<i64, String> {
    let seconds = run_validity_s(run, policy)?;
    if evidence_checks::is_in_future(run.created_unix, now) {
        let created = clean(&run.created);
        return Err(format!("the run was made at {created}, which is not yet"));
    }
    if run.created_unix.saturating_add(seconds) <= now {
        return Err("what the run showed counts no longer".to_owned());
    }
    Ok(seconds)
}

/// Why nothing may be said now of a node that passed, for how it stands: what
/// the scheduler is told and what is kept on disk must not disagree.
pub(super) fn explain_refusal(
    node: &SchedulerNode,
    measured: Option<&String>,
    run: &EvidenceRun,
    policy: &Policy,
) -> Option<String> {
    evidence_checks::explain_slurm_owned(node, policy)
        .or_else(|| evidence_checks::explain_reboot(node, measured, run))
}

/// Why a node that passed gets no certificate for what became of it meanwhile; `own`
/// is what was done to it.
fn explain_withheld(
    node: &NodeName,
    acted: &GateRecord<'_>,
    own: &[&ActionRecord],
    measured: Option<&String>,
    run: &EvidenceRun,
    policy: &Policy,
) -> Option<String> {
    let Some(live) = acted.live.nodes.get(node) else {
        return Some("the scheduler does not tell of it".to_owned());
    };
    let is_done =
        |it: &ActionRecord| matches!(it.result, ActionResult::Done | ActionResult::Already);
    let mut records = own.iter().copied();
    // What was given back is as it was before no more.
    let is_released = records.clone().any(|it| it.kind == ActionKind::Release && is_done(it));
    let stands = if is_released { None } else { node_state::explain_no_certificate(live) };
    stands.or_else(|| explain_refusal(live, measured, run, policy)).or_else(|| {
        let unsaid = records.find(|it| it.kind == ActionKind::Certify && !is_done(it))?;
        Some(format!("it could not be said on it: {}", clean(&unsaid.detail)))
    })
}

/// Certificates of the nodes that passed, and why others that passed have none.
/// Nodes that we drained and did not give back yet wait for that, and one that
/// has booted or was taken out since it was measured waits for another run.
pub fn issue_certificates(
    evidence: &CertificateEvidence<'_>,
    acted: &GateRecord<'_>,
    policy: &Policy,
    now: i64,
) -> (Vec<Certificate>, Vec<WithheldAction>) {
    issue(evidence, Some(acted), policy, now)
}

/// What a run shows by itself: certificates of the nodes that passed it, for a
/// run that no gate acted on. No gate counts them.
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
            refuse("it passed, and is certified once our drain of it is taken back".to_owned());
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

/// Why a certificate says nothing of the machine that is there now; `None`
/// where it still does.
///
/// A reboot alone voids: NVLinks train anew and the fabric is joined anew at
/// every boot, and what was measured is what came of that. What either side
/// does not know is not compared; where nothing can be compared, nobody knows
/// whether this is the machine.
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

/// What is said where nothing of two identities can be compared.
pub const IDENTITY_UNKNOWN: &str = "nothing tells whether it is the machine that was certified";

/// A machine held against the one that was certified, part by part.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IdentityComparison {
    /// Nothing could be compared: nobody knows whether it is the same machine.
    pub is_incomparable: bool,
    /// Parts that are the same.
    pub same: Vec<String>,
    /// Parts that differ.
    pub differs: Vec<IdentityDifference>,
    /// Parts that one side does not tell.
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

/// Holds a machine against the one that was certified.
pub fn compare_machine(certificate: &Certificate, machine: &MachineIdentity) -> IdentityComparison {
    compare_identities(&certificate.identity, certificate.void_on, machine)
}

/// Holds a machine against what it was; `void_on` says which difference counts, beside
/// other GPUs, which always do.
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
            let why = || format!("it booted since: boot {}, certified in boot {then}", clean(now));
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

/// The branch of a driver: what is before the first dot of its version.
fn driver_branch(version: &str) -> &str {
    version.split('.').next().unwrap_or(version)
}

/// Why a certificate counts for no machine any more, whichever is there.
pub fn explain_expiry(certificate: &Certificate, now: i64) -> Option<String> {
    if let Some(voided) = &certificate.voided {
        return Some(format!("voided {}: {}", voided.at, voided.why));
    }
    if certificate.scope.is_none() {
        return Some("it does not say across which boundaries the node was measured".to_owned());
    }
    if certificate.expires_unix <= now {
        return Some(format!("expired {}", certificate.expires));
    }
    if now < certificate.issued_unix {
        return Some(format!("issued {}, which is yet to come", certificate.issued));
    }
    None
}

/// A boundary that a certificate is asked to cover.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CertificateBoundary {
    /// The links inside the node.
    Node,
    /// The node and others of its NVLink domain.
    Domain,
    /// The node and others over the scale-out network.
    Network,
}

/// Why a certificate does not cover what is asked for; `None` where it does.
pub fn explain_uncovered(certificate: &Certificate, asked: CertificateBoundary) -> Option<String> {
    let scope = certificate.scope.clone().unwrap_or_default();
    let (covers, what) = match asked {
        CertificateBoundary::Node => (scope.inside, "the links inside the node"),
        CertificateBoundary::Domain => (scope.domain.is_some(), "other nodes of its NVLink domain"),
        CertificateBoundary::Network => (scope.network.is_some(), "other nodes over the network"),
    };
    (!covers).then(|| format!("the node was not measured across what is asked for: {what}"))
}

/// How a certificate stands, whichever machine is there, and why it does not
/// count. `refusal` says why its signature does not.
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

/// Why a certificate is of an earlier boot, as the scheduler tells; for those
/// who have no worker to ask.
pub fn explain_outlived(certificate: &Certificate, node: &SchedulerNode) -> Option<String> {
    if !certificate.void_on.boot {
        return None;
    }
    let boots = certificate.identity.boot_id.as_ref().zip(node.boot_id.as_ref());
    if let Some((then, now)) = boots {
        return (then != now).then(|| {
            let (then, now) = (clean(then), clean(now));
            format!("it booted since: boot {now}, certified in boot {then}")
        });
    }
    let booted = node.booted.filter(|booted| certificate.issued_unix < *booted)?;
    Some(format!("it booted {}, after it was certified", format_rfc3339(booted)))
}

/// Whether a new certificate takes the place of one that is there: not where
/// that one still holds for the same machine, and for longer.
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
        (0, 0) => Some("its GPUs come in another order than when it was certified".to_owned()),
        (0, gone) => Some(format!("{gone} of the {} GPUs that were certified are gone", was.len())),
        (new, _) => Some(format!("{new} of its {} GPUs are not those certified", is.len())),
    }
}

/// One cell whatever its reading: the test and its two ends.
type CertifiedCellKey<'a> =
    (&'a str, Unit, CertifiedCellEnd<'a>, CertifiedCellEnd<'a>, Option<&'a str>);
type CertifiedCellEnd<'a> = (Option<&'a NodeName>, Option<u32>);
/// What was measured, and what was expected.
type CertifiedCellLevel = (f64, Option<f64>);

/// The least bandwidth of every node by test. A cell counts with the median of
/// its readings, as the judge takes it: one dip is no level. Latencies have no
/// floor and are left out.
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
        // The lower one of two middle readings: never more than was measured.
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
