//! Whether one GPU is taken out instead of its node, and which.
//!
//! Pure. A GPU alone goes only where everything that acts is held against it,
//! its UUID is known from the run at hand, and the policy says so; else the node
//! goes, and it is said why. Such a drain counts as one of the node in every
//! budget. Whatever is held against more than the GPU that is out later takes the
//! node as well; the GPU stays out until both are given back.

use std::collections::BTreeMap;

use super::action_policy::Devices;
use super::journal_state::OwnDrain;
use super::{class_actions, suspects};
use model::finding_class::FindingClass;
use model::id::NodeName;
use model::kubernetes_node::{GpuCordon, GpuCordonMethod, is_uuid};
use model::scheduler_snapshot::SchedulerNode;
use model::text::clean;
use model::verdict::{Finding, LocusKind, Outcome};

/// What is known of a node whose GPUs are accused.
#[derive(Clone, Copy, Debug)]
pub(super) struct Known<'a> {
    /// The node as its scheduler shows it.
    pub live: Option<&'a SchedulerNode>,
    /// UUIDs of its GPUs in order of index, as the run told them.
    pub uuids: Option<&'a Vec<String>>,
    /// How many GPUs it is claimed to have.
    pub claimed: Option<u32>,
}

/// The GPU that is taken out instead of the node: none where the policy asks for
/// none, and in words why not where it does.
pub(super) fn to_blame(
    devices: Devices,
    findings: &[&Finding],
    known: Known<'_>,
) -> Result<Option<GpuCordon>, String> {
    let way = match devices {
        Devices::None => return Ok(None),
        Devices::TaintRule => GpuCordonMethod::TaintRule,
        Devices::Hami => GpuCordonMethod::Hami,
    };
    let live = known.live.ok_or("the scheduler was not asked")?;
    if live.kubernetes.is_none() {
        return Err("Slurm keeps no single GPU from jobs".to_owned());
    }
    let uuids = known.uuids.ok_or("the run did not tell the UUIDs of its GPUs")?;
    let uuids: BTreeMap<u32, &str> = (0..).zip(uuids.iter().map(String::as_str)).collect();
    let (index, uuid) = alone(findings, &uuids, known.claimed)?;
    Ok(Some(GpuCordon { way, index, uuid }))
}

/// The one GPU that the findings of a run hold against a node, by index and UUID, as
/// the gate takes it out and exports name it: nothing where no finding acts against the
/// node, and in words why it is the node that is to blame where it is. `uuids` are those
/// of its GPUs by index, `claimed` is how many it must have.
pub fn of_findings(
    node: &NodeName,
    findings: &[&Finding],
    uuids: &BTreeMap<u32, &str>,
    claimed: Option<u32>,
) -> Result<Option<(u32, String)>, String> {
    let acts =
        |it: &&Finding| Outcome::Unknown < it.outcome && suspects::accused_node(it) == Ok(node);
    let findings: Vec<&Finding> = findings.iter().copied().filter(acts).collect();
    if findings.is_empty() {
        return Ok(None);
    }
    let sure = class_actions::confirmed_findings(&findings);
    if sure.is_empty() {
        return Err("nothing against it was confirmed by a second measurement".to_owned());
    }
    alone(&sure, uuids, claimed).map(Some)
}

/// The GPU that alone is accused, where it is known which one that is.
fn alone(
    findings: &[&Finding],
    uuids: &BTreeMap<u32, &str>,
    claimed: Option<u32>,
) -> Result<(u32, String), String> {
    let index = accused(findings)?;
    if let Some(claimed) = claimed.filter(|claimed| *claimed as usize != uuids.len()) {
        let told = uuids.len();
        return Err(format!("{told} GPUs were told and {claimed} are claimed"));
    }
    let uuid = uuids.get(&index);
    let uuid = *uuid.ok_or_else(|| format!("the run did not tell the UUID of GPU {index}"))?;
    if !is_uuid(uuid) {
        return Err(format!("{:?} is no UUID of a GPU", clean(uuid)));
    }
    if 1 < uuids.values().filter(|it| **it == uuid).count() {
        return Err(format!("two of its GPUs have the UUID {uuid}"));
    }
    Ok((index, uuid.to_owned()))
}

/// The one GPU that all of these accuse.
pub(super) fn accused(findings: &[&Finding]) -> Result<u32, String> {
    let mut one = None;
    for finding in findings {
        if finding.class == FindingClass::GpuMissing {
            return Err("a GPU that is not there cannot be taken out".to_owned());
        }
        let is_own = matches!(finding.locus.kind, LocusKind::Gpu | LocusKind::Direction);
        match finding.locus.gpu.filter(|_| is_own && finding.locus.peer.is_none()) {
            None => return Err(format!("{} is not one GPU's", clean(finding.class.as_str()))),
            Some(gpu) if one.is_some_and(|known| known != gpu) => {
                return Err("more than one of its GPUs is accused".to_owned());
            }
            Some(gpu) => one = Some(gpu),
        }
    }
    one.ok_or_else(|| "nothing is held against a GPU".to_owned())
}

/// Whether all that keeps pods away by us is that one of its GPUs is out.
pub fn is_alone(node: &SchedulerNode) -> bool {
    let it = node.kubernetes.as_deref();
    node.has_state("DRAIN")
        && it.is_some_and(|it| !it.has_drain_taint() && it.cordoned_gpu().is_some())
}

/// The GPU that goes back with this drain: the one that it took out, or that was
/// out already when the whole node went. An error where the node names another
/// one now: then nobody knows which is to be given back.
pub fn of_release(node: &SchedulerNode, drain: &OwnDrain) -> Result<Option<GpuCordon>, String> {
    let shown = node.kubernetes.as_deref().and_then(|it| it.cordoned_gpu());
    let before = drain.before.kubernetes.as_deref().and_then(|it| it.cordoned_gpu());
    let ours = drain.action.device.clone().or(before);
    match (&shown, &ours) {
        (_, None) => return Ok(None),
        // Nobody else's list can be meant by a rule, which has our label.
        (None, Some(mark)) => {
            return Ok((mark.way == GpuCordonMethod::TaintRule).then(|| mark.clone()));
        }
        (Some(now), Some(mark)) if now == mark => return Ok(ours),
        _ => {}
    }
    let name = |mark: Option<GpuCordon>| mark.map_or_else(|| "none".to_owned(), |it| told(&it));
    Err(format!(
        "we took out {} and the node names {}: a person should look",
        name(ours),
        name(shown)
    ))
}

/// A GPU, for people.
pub fn told(mark: &GpuCordon) -> String {
    format!("GPU {} ({}, {})", mark.index, mark.uuid, mark.way.as_str())
}

#[cfg(test)]
#[path = "device_tests.rs"]
mod tests;
