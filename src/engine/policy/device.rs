//! Selects the single GPU to blame instead of its node, for exports that name it; and reports GPUs
//! that an earlier version took out alone.
//!
//! Pure. A GPU is named only if all acting findings blame it and the current run reports its UUID;
//! otherwise the node is named, with the reason. The gate drains nodes and never a single GPU.

use std::collections::BTreeMap;

use super::{class_actions, suspects};
use model::finding_class::FindingClass;
use model::id::NodeName;
use model::kubernetes_node::{DEVICE, GpuCordon, GpuCordonMethod, is_uuid};
use model::scheduler_snapshot::SchedulerNode;
use model::text::clean;
use model::verdict::{Finding, LocusKind, Outcome};

/// The single GPU, by index and UUID, that the findings of a run blame on a node, for exports
/// that name it. `None` if no finding acts against the node; the error is the reason why the
/// node as a whole is to blame. `uuids` are its GPUs' UUIDs by index, `claimed` is its claimed
/// number of GPUs.
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
        return Err("no finding about it was confirmed by a second measurement".to_owned());
    }
    alone(&sure, uuids, claimed).map(Some)
}

/// The only GPU that the findings blame, if its identity is certain.
fn alone(
    findings: &[&Finding],
    uuids: &BTreeMap<u32, &str>,
    claimed: Option<u32>,
) -> Result<(u32, String), String> {
    let index = accused(findings)?;
    if let Some(claimed) = claimed.filter(|claimed| *claimed as usize != uuids.len()) {
        let reported = uuids.len();
        return Err(format!("{reported} GPUs were reported and {claimed} are claimed"));
    }
    let uuid = uuids.get(&index);
    let uuid = *uuid.ok_or_else(|| format!("the run did not report the UUID of GPU {index}"))?;
    if !is_uuid(uuid) {
        return Err(format!("{:?} is not a GPU's UUID", clean(uuid)));
    }
    if 1 < uuids.values().filter(|it| **it == uuid).count() {
        return Err(format!("two of its GPUs have the UUID {uuid}"));
    }
    Ok((index, uuid.to_owned()))
}

/// The one GPU that all of these findings blame.
fn accused(findings: &[&Finding]) -> Result<u32, String> {
    let mut one = None;
    for finding in findings {
        if finding.class == FindingClass::GpuMissing {
            return Err("a missing GPU cannot be taken out of service".to_owned());
        }
        let is_own = matches!(finding.locus.kind, LocusKind::Gpu | LocusKind::Direction);
        match finding.locus.gpu.filter(|_| is_own && finding.locus.peer.is_none()) {
            None => return Err(format!("{} blames no single GPU", clean(finding.class.as_str()))),
            Some(gpu) if one.is_some_and(|known| known != gpu) => {
                return Err("more than one of its GPUs is blamed".to_owned());
            }
            Some(gpu) => one = Some(gpu),
        }
    }
    one.ok_or_else(|| "no finding blames a GPU".to_owned())
}

/// The commands by which a user can return a GPU of this node that an earlier version took out
/// alone; fabricgate does not do it.
pub fn left_out(node: &SchedulerNode) -> Option<String> {
    let seen = node.kubernetes.as_deref()?;
    let mark = seen.cordoned_gpu()?;
    let name = clean(node.name.as_str());
    let uuid = mark.uuid.to_ascii_lowercase();
    let first = match mark.way {
        GpuCordonMethod::TaintRule => {
            format!("`kubectl delete devicetaintrule fabricgate-{}-{uuid}`", clean(&seen.uid))
        }
        GpuCordonMethod::Hami => {
            format!("remove {} from its annotation hami.io/device-cordon", mark.uuid)
        }
    };
    Some(format!(
        "{name}: an earlier version took out {}, and this version cannot undo it: {first}, then \
         `kubectl annotate node {name} {DEVICE}-`",
        describe_cordon(&mark)
    ))
}

/// Describes a GPU for users.
pub fn describe_cordon(mark: &GpuCordon) -> String {
    format!("GPU {} ({}, {})", mark.index, mark.uuid, mark.way.as_str())
}

#[cfg(test)]
#[path = "device_tests.rs"]
mod tests;
