//! The identity of a node's hardware: serial numbers, UUIDs, slots, firmware, as the node, its
//! driver's tool and its worker report them.
//!
//! The first source with a value counts, the most direct one first: the node's own facts,
//! `nvidia-smi -q`, the worker's greeting, the claims.

use schemars::JsonSchema;
use serde::Serialize;

use super::{BundleCase, render_table};
use model::gpu_facts::GpuFacts;
use model::node_facts::NodeFacts;
use model::text::clean;

/// Placeholder of a value that no source reports.
pub(super) const NOT_KNOWN: &str = "not known";

/// A GPU as hardware.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub(crate) struct GpuHardware {
    pub(super) index: u32,
    pub(super) product: Option<String>,
    pub(super) uuid: Option<String>,
    pub(super) board_serial: Option<String>,
    pub(super) board_part_number: Option<String>,
    pub(super) pci_address: Option<String>,
    pub(super) vbios: Option<String>,
    pub(super) module: Option<String>,
    pub(super) chassis_serial: Option<String>,
    pub(super) slot: Option<String>,
    pub(super) tray: Option<String>,
    pub(super) host: Option<String>,
}

/// A network interface as hardware.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub(crate) struct NicHardware {
    pub(super) device: String,
    pub(super) port: Option<String>,
    pub(super) port_guid: Option<String>,
    pub(super) node_guid: Option<String>,
    pub(super) mac: Option<String>,
    pub(super) firmware: Option<String>,
    pub(super) board: Option<String>,
    pub(super) pci_address: Option<String>,
    pub(super) switch: Option<String>,
    pub(super) switch_port: Option<String>,
}

/// The node, its GPUs and its network interfaces.
#[derive(Clone, Debug, Default, Serialize, JsonSchema)]
pub(crate) struct HardwareSerials {
    /// Of the node: attribute and value.
    pub(super) node: Vec<(&'static str, Option<String>)>,
    pub(super) gpus: Vec<GpuHardware>,
    pub(super) nics: Vec<NicHardware>,
}

/// Collects all known values; `raw` are the packed outputs.
pub(super) fn collect_serials(case: &BundleCase, raw: &[(String, Vec<u8>)]) -> HardwareSerials {
    let machines = || case.machines.iter().filter(|it| it.node == case.node);
    let environment = machines().next_back().map(|it| &it.environment);
    let claimed = case.run.claims.nodes.get(&case.node);
    let facts = case.facts.as_ref();
    let parsed = || {
        let own = |it: &&model::tool_recording::ToolRecording| matches!(&it.scope, model::tool_recording::RecordingScope::Node(node) if *node == case.node);
        case.recordings.iter().filter(own).map(|it| &it.parsed.facts)
    };

    let mut gpus: Vec<GpuHardware> = Vec::new();
    for gpu in facts.and_then(|it| it.gpus.as_deref()).unwrap_or_default() {
        merge_gpu(&mut gpus, gpu_from_facts(gpu));
    }
    for gpu in raw.iter().filter_map(|(_, bytes)| gpus_from_query(bytes)).flatten() {
        merge_gpu(&mut gpus, gpu);
    }
    for gpu in parsed().flat_map(|it| &it.fabric) {
        merge_gpu(
            &mut gpus,
            GpuHardware {
                index: gpu.gpu,
                product: gpu.name.clone(),
                uuid: gpu.uuid.clone(),
                pci_address: gpu.bus_id.clone(),
                ..GpuHardware::default()
            },
        );
    }
    for line in environment.map(|it| it.gpus.as_slice()).unwrap_or_default() {
        if let Some(gpu) = gpu_from_line(line) {
            merge_gpu(&mut gpus, gpu);
        }
    }
    gpus.sort_by_key(|it| it.index);

    let driver = facts.and_then(|it| it.driver.as_ref());
    let first = |all: &mut dyn Iterator<Item = Option<String>>| all.flatten().next();
    let text = |it: Option<&String>| it.cloned();
    let mut node = vec![
        (
            "host name",
            text(facts.and_then(|it| it.hostname.as_ref()))
                .or_else(|| environment.map(|it| it.hostname.clone()).filter(|it| !it.is_empty())),
        ),
        ("machine", text(facts.and_then(|it| it.machine.as_ref()))),
        ("machine firmware", text(facts.and_then(|it| it.machine_firmware.as_ref()))),
        ("rack, as claimed", text(claimed.and_then(|it| it.rack.as_ref()))),
        ("slot, as claimed", text(claimed.and_then(|it| it.slot.as_ref()))),
        (
            "driver",
            text(driver.and_then(|it| it.version.as_ref()))
                .or_else(|| first(&mut parsed().map(|it| it.driver.clone())))
                .or_else(|| environment.and_then(|it| it.driver.clone()))
                .or_else(|| claimed.and_then(|it| it.driver.clone())),
        ),
        (
            "CUDA",
            text(driver.and_then(|it| it.cuda_version.as_ref()))
                .or_else(|| first(&mut parsed().map(|it| it.cuda_driver.clone()))),
        ),
        ("NCCL", first(&mut parsed().map(|it| it.nccl.clone()))),
        (
            "kernel",
            text(facts.and_then(|it| it.kernel.as_ref()))
                .or_else(|| environment.and_then(|it| it.kernel.clone())),
        ),
        (
            "boot id",
            text(facts.and_then(|it| it.boot_id.as_ref()))
                .or_else(|| environment.and_then(|it| it.boot_id.clone())),
        ),
    ];
    for (_, value) in &mut node {
        *value = value.take().map(|it| clean(&it)).filter(|it| !it.is_empty());
    }
    HardwareSerials { node, gpus, nics: collect_nics(facts, case) }
}

fn collect_nics(facts: Option<&NodeFacts>, case: &BundleCase) -> Vec<NicHardware> {
    if let Some(facts) = facts.filter(|it| !it.nics.is_empty()) {
        let one = |nic: &model::node_facts::NicFacts| {
            let cable = facts.neighbours.iter().find(|it| it.is_attached_to(nic));
            NicHardware {
                device: nic.device.clone(),
                port: nic.port.map(|it| it.to_string()),
                port_guid: nic.port_guid.clone(),
                node_guid: nic.node_guid.clone(),
                mac: nic.mac.clone(),
                firmware: nic.firmware.clone(),
                board: nic.board.clone(),
                pci_address: nic.pci_address.clone(),
                switch: cable.and_then(|it| it.switch.clone()),
                switch_port: cable.and_then(|it| it.port.clone()),
            }
        };
        return facts.nics.iter().map(one).collect();
    }
    let claimed = case.run.claims.nodes.get(&case.node);
    let one = |nic: &model::source_report::NicReport| NicHardware {
        device: nic.device.clone().unwrap_or_else(|| NOT_KNOWN.to_owned()),
        port_guid: nic.guid.clone(),
        switch: nic.leaf.clone(),
        switch_port: nic.port.clone(),
        ..NicHardware::default()
    };
    claimed.iter().flat_map(|it| &it.nics).map(one).collect()
}

/// Adds values that are not known yet of the GPU with this index. A GPU with another UUID is
/// another GPU, and its values must not be mixed with this one's.
fn merge_gpu(gpus: &mut Vec<GpuHardware>, new: GpuHardware) {
    let Some(known) = gpus.iter_mut().find(|it| it.index == new.index) else {
        gpus.push(new);
        return;
    };
    if known.uuid.is_some() && new.uuid.is_some() && known.uuid != new.uuid {
        return;
    }
    let GpuHardware { index: _, product, uuid, board_serial, board_part_number, .. } = &new;
    let fill = |old: &mut Option<String>, new: &Option<String>| {
        if old.is_none() {
            old.clone_from(new);
        }
    };
    fill(&mut known.product, product);
    fill(&mut known.uuid, uuid);
    fill(&mut known.board_serial, board_serial);
    fill(&mut known.board_part_number, board_part_number);
    fill(&mut known.pci_address, &new.pci_address);
    fill(&mut known.vbios, &new.vbios);
    fill(&mut known.module, &new.module);
    fill(&mut known.chassis_serial, &new.chassis_serial);
    fill(&mut known.slot, &new.slot);
    fill(&mut known.tray, &new.tray);
    fill(&mut known.host, &new.host);
}

fn gpu_from_facts(gpu: &GpuFacts) -> GpuHardware {
    let place = gpu.platform.as_ref();
    GpuHardware {
        index: gpu.index,
        product: gpu.product.clone(),
        uuid: gpu.uuid.clone(),
        board_serial: gpu.serial.clone(),
        board_part_number: gpu.board_part_number.clone(),
        pci_address: gpu.pci_address.clone(),
        vbios: gpu.vbios.clone(),
        module: gpu.module_id.map(|it| it.to_string()),
        chassis_serial: place.and_then(|it| it.chassis_serial.clone()),
        slot: place.map(|it| it.slot.to_string()),
        tray: place.map(|it| it.tray.to_string()),
        host: place.map(|it| it.host.to_string()),
    }
}

/// A line of a worker's greeting: index, UUID, clocks, temperature, power, VBIOS.
fn gpu_from_line(line: &str) -> Option<GpuHardware> {
    let fields: Vec<&str> = line.split(',').map(str::trim).collect();
    let [index, uuid, .., vbios] = fields.as_slice() else { return None };
    let uuid = uuid.starts_with("GPU-").then(|| clean(uuid))?;
    let vbios = known_value(vbios).filter(|_| 3 < fields.len());
    Some(GpuHardware {
        index: index.parse().ok()?,
        uuid: Some(uuid),
        vbios,
        ..GpuHardware::default()
    })
}

/// The GPUs of an output of `nvidia-smi -q`, in the printed order, which is the order of their
/// indices.
fn gpus_from_query(bytes: &[u8]) -> Option<Vec<GpuHardware>> {
    const MARK: &str = "NVSMI LOG";
    let start = &bytes[..bytes.len().min(4096)];
    if !String::from_utf8_lossy(start).contains(MARK) {
        return None;
    }
    let text = String::from_utf8_lossy(bytes);
    let mut gpus: Vec<GpuHardware> = Vec::new();
    for line in text.lines() {
        let is_gpu = line.strip_prefix("GPU ").filter(|id| id.matches(':').count() == 2);
        if let Some(id) = is_gpu {
            let index = u32::try_from(gpus.len()).unwrap_or(u32::MAX);
            gpus.push(GpuHardware {
                index,
                pci_address: known_value(id),
                ..GpuHardware::default()
            });
            continue;
        }
        let Some(gpu) = gpus.last_mut() else { continue };
        let Some((key, value)) = line.split_once(" : ") else { continue };
        let field = match key.trim() {
            "Product Name" => &mut gpu.product,
            "GPU UUID" => &mut gpu.uuid,
            "Serial Number" => &mut gpu.board_serial,
            "Board Part Number" => &mut gpu.board_part_number,
            "VBIOS Version" => &mut gpu.vbios,
            "Chassis Serial Number" => &mut gpu.chassis_serial,
            "Slot Number" => &mut gpu.slot,
            "Tray Index" => &mut gpu.tray,
            "Host ID" => &mut gpu.host,
            "Module Id" | "Module ID" => &mut gpu.module,
            _ => continue,
        };
        if field.is_none() {
            *field = known_value(value);
        }
    }
    Some(gpus)
}

fn known_value(text: &str) -> Option<String> {
    let text = clean(text.trim());
    (!text.is_empty() && !matches!(text.as_str(), "N/A" | "[N/A]" | "Unknown")).then_some(text)
}

/// All values as a table: part, attribute, value.
pub(super) fn render_csv(serials: &HardwareSerials) -> Vec<u8> {
    let mut rows = vec![["part", "what", "value"].map(str::to_owned).to_vec()];
    let mut row = |part: &str, what: &str, value: Option<&String>| {
        let value = value.cloned().unwrap_or_else(|| NOT_KNOWN.to_owned());
        rows.push(vec![part.to_owned(), what.to_owned(), value]);
    };
    for (what, value) in &serials.node {
        row("node", what, value.as_ref());
    }
    for gpu in &serials.gpus {
        let part = format!("GPU {}", gpu.index);
        for (what, value) in [
            ("product", &gpu.product),
            ("UUID", &gpu.uuid),
            ("board serial", &gpu.board_serial),
            ("board part number", &gpu.board_part_number),
            ("PCI address", &gpu.pci_address),
            ("VBIOS", &gpu.vbios),
            ("module", &gpu.module),
            ("chassis serial", &gpu.chassis_serial),
            ("slot", &gpu.slot),
            ("tray", &gpu.tray),
            ("host in tray", &gpu.host),
        ] {
            row(&part, what, value.as_ref());
        }
    }
    for nic in &serials.nics {
        let part = format!("NIC {}", nic.device);
        for (what, value) in [
            ("port", &nic.port),
            ("port GUID", &nic.port_guid),
            ("node GUID", &nic.node_guid),
            ("MAC", &nic.mac),
            ("firmware", &nic.firmware),
            ("board", &nic.board),
            ("PCI address", &nic.pci_address),
            ("switch", &nic.switch),
            ("switch port", &nic.switch_port),
        ] {
            row(&part, what, value.as_ref());
        }
    }
    if serials.nics.is_empty() {
        row("NIC", "all", None);
    }
    render_table(&rows)
}
