//! What a node was in a run: driver, firmware, GPUs, boot, slot, neighbours, and
//! what of that is no longer as it was in the run before.
//!
//! Everything under a name of its own, so that what one run did not say is not
//! taken for a change. Pure.

use std::collections::{BTreeMap, BTreeSet};

use model::claims::Claims;
use model::id::NodeName;
use model::source_report::FabricReport;
use model::tool_recording::{RecordingScope, ToolRecording};
use model::trend::RunChangeKind;
use model::worker_protocol::MachineRecord;

/// What a node was, by name: `driver`, `boot`, `GPU 2 UUID`.
pub type NodeIdentity = BTreeMap<String, String>;

/// Every node as its worker, its tools and its claims describe it.
pub fn node_identities(
    claims: &Claims,
    machines: &[MachineRecord],
    recordings: &[ToolRecording],
) -> BTreeMap<NodeName, NodeIdentity> {
    let mut all: BTreeMap<NodeName, NodeIdentity> = BTreeMap::new();
    for (node, said) in &claims.nodes {
        let is = all.entry(node.clone()).or_default();
        let mut put = |name: &str, value: &Option<String>| {
            if let Some(value) = value {
                is.insert(name.to_owned(), value.clone());
            }
        };
        put("driver", &said.driver);
        put("boot", &said.boot_id);
        put("rack", &said.rack);
        put("slot", &said.slot);
        for nic in &said.nics {
            let (Some(device), Some(leaf)) = (&nic.device, &nic.leaf) else { continue };
            let port = nic.port.as_deref().map(|port| format!(" port {port}")).unwrap_or_default();
            put(&format!("neighbour of {device}"), &Some(format!("{leaf}{port}")));
            put(&format!("{device} GUID"), &nic.guid);
        }
        // Of the node, or of all of its GPUs that say one.
        let cliques: BTreeSet<String> =
            said.fabric.iter().filter_map(FabricReport::clique).collect();
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
    // What a machine says of itself counts more than what is said of it; the
    // last word of one that was started again counts.
    for machine in machines {
        let is = all.entry(machine.node.clone()).or_default();
        let said = &machine.environment;
        for (name, value) in
            [("driver", &said.driver), ("boot", &said.boot_id), ("kernel", &said.kernel)]
        {
            if let Some(value) = value {
                is.insert(name.to_owned(), value.clone());
            }
        }
        for line in &said.gpus {
            let fields: Vec<&str> = line.split(", ").collect();
            // Index, UUID, four that move, VBIOS: what `probe::environment` asks for.
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

/// Whether a UUID or a version is one: where a GPU does not answer, nvidia-smi puts
/// `[N/A]`, `[Unknown Error]` or `ERR!` in its place, and another GPU it is not.
fn is_known_value(value: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ':');
    !value.is_empty() && value.chars().all(fits)
}

/// A PCI address as domain, bus and device, which tools write with other widths.
fn parse_pci_address(text: &str) -> Option<String> {
    let hex = |text: &str| u32::from_str_radix(text, 16).ok();
    let (place, device) = text.trim().rsplit_once(':')?;
    let (domain, bus) = place.rsplit_once(':').unwrap_or(("0", place));
    let device = device.split('.').next()?;
    Some(format!("{:04x}:{:02x}:{:02x}", hex(domain)?, hex(bus)?, hex(device)?))
}

/// The tools that measured, with their versions.
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

/// What a name of an identity stands for: names are stored, and read back here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdentityField {
    /// What kind of thing.
    pub kind: RunChangeKind,
    /// The GPU that it is of.
    pub gpu: Option<u32>,
}

impl IdentityField {
    /// Takes a name apart.
    pub fn from_name(name: &str) -> Self {
        let kind = match name {
            "driver" => RunChangeKind::Driver,
            // Another kernel takes another boot, and counts as one.
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

/// What is known in both and not the same: name, before, after.
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
    fn what_a_tool_prints_instead_of_a_value_is_no_other_gpu_and_no_other_firmware() {
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
