//! A node's identity in a run (driver, firmware, GPUs, boot, slot, switch ports), and its
//! differences from the run before.
//!
//! Each field has a name of its own, so that a field that a run does not report is not taken for a
//! change. Pure.

use std::collections::{BTreeMap, BTreeSet};

use model::claims::Claims;
use model::id::NodeName;
use model::source_report::FabricReport;
use model::tool_recording::{RecordingScope, ToolRecording};
use model::trend::RunChangeKind;
use model::worker_protocol::MachineRecord;

/// The identity of a node by field name: `driver`, `boot`, `GPU 2 UUID`.
pub type NodeIdentity = BTreeMap<String, String>;

/// The identity of every node from its worker, its tools and its claims.
pub fn node_identities(
    claims: &Claims,
    machines: &[MachineRecord],
    recordings: &[ToolRecording],
) -> BTreeMap<NodeName, NodeIdentity> {
    let mut all: BTreeMap<NodeName, NodeIdentity> = BTreeMap::new();
    for (node, claimed) in &claims.nodes {
        let is = all.entry(node.clone()).or_default();
        let mut put = |name: &str, value: &Option<String>| {
            if let Some(value) = value {
                is.insert(name.to_owned(), value.clone());
            }
        };
        put("driver", &claimed.driver);
        put("boot", &claimed.boot_id);
        put("rack", &claimed.rack);
        put("slot", &claimed.slot);
        for nic in &claimed.nics {
            let (Some(device), Some(leaf)) = (&nic.device, &nic.leaf) else { continue };
            let port = nic.port.as_deref().map(|port| format!(" port {port}")).unwrap_or_default();
            put(&format!("neighbour of {device}"), &Some(format!("{leaf}{port}")));
            put(&format!("{device} GUID"), &nic.guid);
        }
        // The clique of the node, or of all of its GPUs that report one.
        let cliques: BTreeSet<String> =
            claimed.fabric.iter().filter_map(FabricReport::clique).collect();
        if let (1, clique) = (cliques.len(), cliques.into_iter().next()) {
            put("clique", &clique);
        }
    }
    for recording in recordings {
        let RecordingScope::Node(node) = &recording.scope else { continue };
        let facts = &recording.parsed.facts;
        let is = all.entry(node.clone()).or_default();
        if let Some(driver) = &facts.driver {
            is.insert("driver".to_owned(), driver.clone());
        }
        for device in &facts.devices {
            if let Some(uuid) = &device.uuid {
                is.insert(format!("GPU {} UUID", device.index), uuid.clone());
            }
            if let Some(address) = device.bus_id.as_deref().and_then(parse_pci_address) {
                is.insert(format!("GPU {} PCI address", device.index), address);
            }
        }
    }
    // A machine's own report overrides the claims; the report of its last start counts.
    for machine in machines {
        let is = all.entry(machine.node.clone()).or_default();
        let environment = &machine.environment;
        for (name, value) in [
            ("driver", &environment.driver),
            ("boot", &environment.boot_id),
            ("kernel", &environment.kernel),
        ] {
            if let Some(value) = value {
                is.insert(name.to_owned(), value.clone());
            }
        }
        for line in &environment.gpus {
            let fields: Vec<&str> = line.split(", ").collect();
            // Index, UUID, four changing values, VBIOS: the query of `probe::environment`.
            let [index, uuid, _, _, _, _, vbios] = fields.as_slice() else { continue };
            if index.parse::<u32>().is_err() {
                continue;
            }
            for (name, value) in [("UUID", uuid), ("VBIOS", vbios)] {
                if is_known_value(value) {
                    is.insert(format!("GPU {index} {name}"), (*value).to_owned());
                }
            }
        }
    }
    all
}

/// Whether a text is a UUID or a version: for a GPU that does not answer, nvidia-smi prints
/// `[N/A]`, `[Unknown Error]` or `ERR!`, which is not another GPU.
fn is_known_value(value: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ':');
    !value.is_empty() && value.chars().all(fits)
}

/// A PCI address as domain, bus and device, which tools pad to different widths.
fn parse_pci_address(text: &str) -> Option<String> {
    let hex = |text: &str| u32::from_str_radix(text, 16).ok();
    let (place, device) = text.trim().rsplit_once(':')?;
    let (domain, bus) = place.rsplit_once(':').unwrap_or(("0", place));
    let device = device.split('.').next()?;
    Some(format!("{:04x}:{:02x}:{:02x}", hex(domain)?, hex(bus)?, hex(device)?))
}

/// The tools of the run, with their versions.
pub(super) fn tool_versions(recordings: &[ToolRecording], own: &str) -> BTreeMap<String, String> {
    let mut tools = BTreeMap::from([("fabricgate".to_owned(), own.to_owned())]);
    for recording in recordings {
        let parsed = &recording.parsed;
        if let (Some(tool), Some(version)) = (parsed.tool, &parsed.tool_version) {
            tools.insert(tool.to_string(), version.clone());
        }
        if let Some(nccl) = &parsed.facts.nccl {
            tools.insert("NCCL".to_owned(), nccl.clone());
        }
    }
    tools
}

/// The meaning of an identity's field name: names are stored, and parsed here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdentityField {
    /// The kind of change that a new value is.
    pub kind: RunChangeKind,
    /// The GPU of the field, if it is one of a GPU.
    pub gpu: Option<u32>,
}

impl IdentityField {
    /// Parses a field name.
    pub fn from_name(name: &str) -> Self {
        let kind = match name {
            "driver" => RunChangeKind::Driver,
            // Another kernel requires another boot, and counts as one.
            "boot" | "kernel" => RunChangeKind::Boot,
            "rack" | "slot" => RunChangeKind::Slot,
            _ if name.ends_with(" PCI address") => RunChangeKind::Slot,
            "clique" | "domain" => RunChangeKind::Claim,
            _ if name.ends_with(" VBIOS") || name.ends_with(" firmware") => RunChangeKind::Firmware,
            _ if name.starts_with("neighbour of ") => RunChangeKind::Neighbour,
            _ => RunChangeKind::Hardware,
        };
        let gpu = name.strip_prefix("GPU ").and_then(|rest| rest.split(' ').next()?.parse().ok());
        Self { kind, gpu }
    }
}

/// The fields that both identities have with different values: name, before, after.
pub fn identity_differences(
    before: &NodeIdentity,
    after: &NodeIdentity,
) -> Vec<(String, String, String)> {
    let both = after.iter().filter_map(|(name, is)| Some((name, before.get(name)?, is)));
    both.filter(|(_, was, is)| was != is)
        .map(|(name, was, is)| (name.clone(), was.clone(), is.clone()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::worker_protocol::{MACHINE_FORMAT, MachineEnvironment};

    #[test]
    fn a_tools_placeholder_does_not_count_as_another_gpu_or_firmware() {
        let of = |uuid: &str, vbios: &str| {
            let line = format!("0, {uuid}, 1980 MHz, 2619 MHz, 31, 118.2 W, {vbios}");
            let environment =
                MachineEnvironment { gpus: vec![line], ..MachineEnvironment::default() };
            let format = MACHINE_FORMAT.to_owned();
            let machine = MachineRecord { format, node: "n1".into(), environment };
            node_identities(&Claims::default(), &[machine], &[]).remove(&NodeName::from("n1"))
        };
        let before = of("GPU-a", "96.00.74.00.01").expect("one");
        assert_eq!(before.len(), 2);
        for nothing in ["[N/A]", "[Unknown Error]", "[GPU requires reset]", "ERR!", "N/A", ""] {
            let after = of(nothing, nothing).expect("one");
            assert_eq!(identity_differences(&before, &after), [], "{nothing}");
        }
        assert_eq!(
            identity_differences(&before, &of("GPU-b", "96.00.74.00.01").expect("one")).len(),
            1
        );
    }
}
