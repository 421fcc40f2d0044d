//! The identity of a node's machine: GPUs, boot, driver and firmware, from its facts, its
//! workers and the tools' outputs.
//!
//! Pure. It collects and compares nothing: `certificate` compares.

use std::collections::{BTreeMap, BTreeSet};

use model::certificate::MachineIdentity;
use model::gpu_facts::GpuFacts;
use model::id::NodeName;
use model::node_facts::NodeFacts;
use model::raw_result::RawResult;
use model::tool_recording::{RecordingScope, ToolRecording};
use model::worker_protocol::MachineRecord;

/// Longest part of an identity that is taken from a tool's output.
const LONGEST: usize = 80;

/// The identity in a node's facts. Parts in a form that no certificate stores are left out.
pub fn identity_from_facts(facts: &NodeFacts) -> MachineIdentity {
    let gpus = facts.gpus.as_deref().unwrap_or_default();
    let uuids: Option<Vec<String>> =
        gpus.iter().map(|gpu| gpu.uuid.as_deref().and_then(parse_value)).collect();
    let vbios = |gpu: &GpuFacts| {
        let version = gpu.vbios.as_deref().and_then(parse_value)?;
        Some((format!("GPU {} VBIOS", gpu.index), version))
    };
    MachineIdentity {
        // If one GPU has no UUID, the set cannot be compared.
        gpus: uuids.unwrap_or_default(),
        boot_id: facts.boot_id.as_deref().and_then(parse_value),
        driver: facts.driver.as_ref().and_then(|it| it.version.as_deref()).and_then(parse_value),
        firmware: gpus.iter().filter_map(vbios).collect(),
    }
}

/// The identity of a node's machine during a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct ObservedIdentity {
    pub(super) identity: MachineIdentity,
    /// Why it was not the same machine throughout.
    pub(super) problem: Option<String>,
}

impl ObservedIdentity {
    fn add_gpus(&mut self, lines: &[String]) {
        let gpus = parse_gpus(lines);
        let uuids: Vec<String> = gpus.values().map(|gpu| gpu.uuid.clone()).collect();
        self.add_uuids(uuids);
        for (index, gpu) in gpus {
            if let Some(vbios) = gpu.vbios {
                self.identity.firmware.insert(format!("GPU {index} VBIOS"), vbios);
            }
        }
    }

    fn add_uuids(&mut self, uuids: Vec<String>) {
        if uuids.is_empty() || uuids == self.identity.gpus {
            return;
        }
        if self.identity.gpus.is_empty() {
            self.identity.gpus = uuids;
        } else {
            self.problem = Some("it had other GPUs during the run than before".to_owned());
        }
    }

    fn add_driver(&mut self, driver: Option<&str>) {
        let Some(driver) = driver.and_then(parse_value) else { return };
        match &self.identity.driver {
            Some(known) if *known != driver => {
                self.problem = Some(format!("drivers {known} and {driver} in one run"));
            }
            _ => self.identity.driver = Some(driver),
        }
    }

    fn add_boot(&mut self, boot: Option<&str>) {
        let Some(boot) = boot.and_then(parse_value) else { return };
        match &self.identity.boot_id {
            Some(known) if *known != boot => {
                self.problem = Some("it rebooted during the run".to_owned());
            }
            _ => self.identity.boot_id = Some(boot),
        }
    }
}

fn reported_boots(machines: &[MachineRecord]) -> BTreeMap<&NodeName, BTreeSet<String>> {
    let mut reported: BTreeMap<&NodeName, BTreeSet<String>> = BTreeMap::new();
    for MachineRecord { node, environment, .. } in machines {
        reported
            .entry(node)
            .or_default()
            .extend(environment.boot_id.as_deref().and_then(parse_value));
    }
    reported
}

/// Nodes that rebooted during a run: their workers reported several boots.
pub fn find_rebooted(machines: &[MachineRecord]) -> BTreeSet<NodeName> {
    let reported = reported_boots(machines).into_iter();
    reported.filter(|(_, boots)| 1 < boots.len()).map(|(node, _)| node.clone()).collect()
}

/// The boot in which a run measured each node, as workers reported it; absent for a node that
/// rebooted during the run.
pub fn boot_ids(machines: &[MachineRecord]) -> BTreeMap<NodeName, String> {
    let one = |(node, boots): (&NodeName, BTreeSet<String>)| {
        let is_one = boots.len() == 1;
        boots.into_iter().next().filter(|_| is_one).map(|boot| (node.clone(), boot))
    };
    reported_boots(machines).into_iter().filter_map(one).collect()
}

/// UUIDs of the GPUs of each node in order of index, as workers reported them; absent if
/// reports differ, or an index is missing.
pub fn gpu_uuids(machines: &[MachineRecord]) -> BTreeMap<NodeName, Vec<String>> {
    let mut reported: BTreeMap<&NodeName, Option<Vec<String>>> = BTreeMap::new();
    for MachineRecord { node, environment, .. } in machines {
        let found = parse_gpus(&environment.gpus);
        let is_whole = found.len() == environment.gpus.len()
            && (0..).zip(found.keys()).all(|(at, index): (u32, _)| at == *index);
        let found: Option<Vec<String>> =
            is_whole.then(|| found.into_values().map(|gpu| gpu.uuid).collect());
        match reported.get(node) {
            Some(known) if *known != found => drop(reported.insert(node, None)),
            Some(_) => {}
            None => drop(reported.insert(node, found)),
        }
    }
    let reported = reported.into_iter().filter_map(|(node, found)| Some((node.clone(), found?)));
    reported.filter(|(_, found)| !found.is_empty()).collect()
}

/// Nodes that were not the same machine throughout a run, and why: such a node gets neither a
/// mark nor a certificate.
pub fn find_unsure(
    machines: &[MachineRecord],
    results: &[RawResult],
    recordings: &[ToolRecording],
) -> BTreeMap<NodeName, String> {
    let seen = collect_identities(machines, results, recordings).into_iter();
    seen.filter_map(|(node, seen)| Some((node, seen.problem?))).collect()
}

/// The identity of every node, from workers, results and outputs.
pub(super) fn collect_identities(
    machines: &[MachineRecord],
    results: &[RawResult],
    recordings: &[ToolRecording],
) -> BTreeMap<NodeName, ObservedIdentity> {
    let mut seen: BTreeMap<NodeName, ObservedIdentity> = BTreeMap::new();
    for MachineRecord { node, environment, .. } in machines {
        let one = seen.entry(node.clone()).or_default();
        one.add_boot(environment.boot_id.as_deref());
        one.add_driver(environment.driver.as_deref());
        one.add_gpus(&environment.gpus);
    }
    for result in results.iter().filter(|result| !result.gpus.is_empty()) {
        if let Some(first) = result.nodes.first() {
            seen.entry(first.clone()).or_default().add_gpus(&result.gpus);
        }
    }
    for recording in recordings {
        let RecordingScope::Node(node) = &recording.scope else { continue };
        let facts = &recording.parsed.facts;
        let one = seen.entry(node.clone()).or_default();
        one.add_driver(facts.driver.as_deref());
        let by_index: BTreeMap<u32, Option<String>> = facts
            .devices
            .iter()
            .map(|device| (device.index, device.uuid.as_deref().and_then(parse_value)))
            .collect();
        // An output without the UUID of one GPU lists none of them.
        if let Some(uuids) = by_index.into_values().collect::<Option<Vec<String>>>() {
            one.add_uuids(uuids);
        }
    }
    seen
}

/// One GPU as a line of a worker's report names it.
struct WorkerGpuLine {
    uuid: String,
    vbios: Option<String>,
}

/// `index, UUID, clocks, clocks, temperature, power, VBIOS`, by index. Older workers leave out
/// the last.
fn parse_gpus(lines: &[String]) -> BTreeMap<u32, WorkerGpuLine> {
    let mut gpus = BTreeMap::new();
    for line in lines {
        let mut fields = line.split(',').map(str::trim);
        let index = fields.next().and_then(|index| index.parse().ok());
        let uuid = fields.next().filter(|uuid| uuid.starts_with("GPU-")).and_then(parse_value);
        if let (Some(index), Some(uuid)) = (index, uuid) {
            gpus.insert(index, WorkerGpuLine { uuid, vbios: fields.nth(4).and_then(parse_value) });
        }
    }
    gpus
}

/// A version or an id as a tool printed it; `None` if it cannot be one, such as `[N/A]`.
fn parse_value(text: &str) -> Option<String> {
    let text = text.trim();
    let harmless = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ':');
    let fits = !text.is_empty() && text.len() <= LONGEST;
    (fits && text.chars().all(harmless)).then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_are_no_gpus_are_no_identity() {
        let lines = [
            "No devices were found",
            "0",
            "x, GPU-a",
            "1, [N/A]",
            "2, GPU-\u{1b}[31m",
            "3, GPU-d, 1980 MHz, 2619 MHz, 31, 118.2 W, [N/A]",
            "10, GPU-k",
            "9, GPU-j",
        ];
        let found = parse_gpus(&lines.map(str::to_owned));
        let uuids: Vec<&str> = found.values().map(|gpu| gpu.uuid.as_str()).collect();
        assert_eq!(uuids, ["GPU-d", "GPU-j", "GPU-k"]);
        assert!(found.values().all(|gpu| gpu.vbios.is_none()));
    }

    #[test]
    fn an_identity_contains_the_reported_parts_only() {
        let gpu = |index, uuid: Option<&str>, vbios: &str| GpuFacts {
            index,
            uuid: uuid.map(str::to_owned),
            vbios: Some(vbios.to_owned()),
            ..GpuFacts::default()
        };
        let mut facts = NodeFacts {
            boot_id: Some("b-1\n".to_owned()),
            gpus: Some(vec![gpu(0, Some("GPU-a"), "96.1"), gpu(1, Some("GPU-b"), "[N/A]")]),
            ..NodeFacts::default()
        };
        let identity = identity_from_facts(&facts);
        assert_eq!(identity.gpus, ["GPU-a", "GPU-b"]);
        assert_eq!((identity.boot_id.as_deref(), identity.driver), (Some("b-1"), None));
        assert_eq!(identity.firmware, [("GPU 0 VBIOS".to_owned(), "96.1".to_owned())].into());
        facts.gpus = Some(vec![gpu(0, Some("GPU-a"), "96.1"), gpu(1, None, "96.1")]);
        assert!(identity_from_facts(&facts).gpus.is_empty(), "one missing UUID makes all unknown");
    }
}
