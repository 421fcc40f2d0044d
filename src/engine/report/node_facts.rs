//! The facts that a node reports, as tables.
//!
//! Displays the reported and the missing facts; nothing is judged. The JSON is the complete
//! document.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use comfy_table::{Table, presets};

use super::plain_text::{clip, count_noun, to_plain};
use model::gpu_facts::{FabricFacts, GpuFacts, LinkState, NvlinkFacts, PcieFacts};
use model::node_facts::{ImexFacts, MissingFact, NicFacts, NodeFacts, PciDistance};
use model::throttle_reason::ThrottleReason;

/// Placeholder of an unknown value.
const UNKNOWN: &str = "?";

/// The widest token of a table that is not cut.
const WIDEST: usize = 60;

/// Renders the whole report.
pub fn render(facts: &NodeFacts) -> String {
    let mut text = render_head(facts);
    if let Some(gpus) = facts.gpus.as_ref().filter(|gpus| !gpus.is_empty()) {
        push_section(&mut text, &render_table(&GPU, gpus.iter().map(gpu_row)));
        push_lines(&mut text, "Remarks", &collect_remarks(gpus));
    }
    if !facts.nics.is_empty() {
        push_section(
            &mut text,
            &render_table(&NIC, facts.nics.iter().map(|it| nic_row(it, facts))),
        );
    }
    if let Some(imex) = &facts.imex {
        let _ = writeln!(text, "\nIMEX  {}", format_imex(imex));
    }
    let missing: Vec<String> = facts.missing.iter().map(format_missing).collect();
    push_lines(&mut text, "Not reported", &missing);
    text
}

fn render_head(facts: &NodeFacts) -> String {
    let name = facts.hostname.as_deref().map_or(UNKNOWN.into(), to_plain);
    let mut text = format!("{name}\n");
    let mut line = |label: &str, value: Option<String>| {
        let _ = writeln!(text, "  {label:<8} {}", value.unwrap_or_else(|| UNKNOWN.to_owned()));
    };
    line("machine", to_plain_word(facts.machine.as_deref()));
    line("kernel", to_plain_word(facts.kernel.as_deref()));
    line("boot", to_plain_word(facts.boot_id.as_deref()));
    let driver = facts.driver.as_ref().map(|driver| {
        let cuda = driver.cuda_version.as_ref().map(|cuda| format!(", CUDA up to {cuda}"));
        let nvml = driver.nvml_version.as_ref().map(|nvml| format!(", NVML {nvml}"));
        let version = driver.version.as_deref().unwrap_or(UNKNOWN);
        format!("{version}{}{}", cuda.unwrap_or_default(), nvml.unwrap_or_default())
    });
    line("driver", driver);
    let gpus = facts.gpus.as_ref().map(|gpus| {
        let mut products: BTreeMap<&str, usize> = BTreeMap::new();
        for gpu in gpus {
            *products.entry(gpu.product.as_deref().unwrap_or(UNKNOWN)).or_default() += 1;
        }
        let products = products.iter().map(|(product, count)| format!("{count} × {product}"));
        let products: Vec<String> = products.collect();
        if products.is_empty() { "none".to_owned() } else { products.join(", ") }
    });
    line("GPUs", gpus);
    text
}

const GPU: [&str; 9] =
    ["GPU", "PCI address", "module", "NVLinks", "PCIe", "fabric", "ECC", "clock", "processes"];

fn gpu_row(gpu: &GpuFacts) -> Vec<String> {
    vec![
        gpu.index.to_string(),
        or_unknown(gpu.pci_address.as_deref()),
        gpu.module_id.map_or_else(|| UNKNOWN.to_owned(), |id| id.to_string()),
        format_links(gpu),
        format_pcie(&gpu.pcie),
        gpu.fabric.as_ref().map_or_else(|| UNKNOWN.to_owned(), format_fabric),
        match gpu.ecc.enabled {
            None => UNKNOWN.to_owned(),
            Some(false) => "off".to_owned(),
            Some(true) => gpu
                .ecc
                .uncorrected_in_life
                .map_or_else(|| "on".to_owned(), |errors| format!("on, {errors} uncorrected")),
        },
        gpu.clocks.sm_mhz.map_or_else(|| UNKNOWN.to_owned(), |mhz| format!("{mhz} MHz")),
        gpu.processes.as_ref().map_or_else(|| UNKNOWN.to_owned(), |them| them.len().to_string()),
    ]
}

/// For example `18 of 18 at 26562 MB/s`.
fn format_links(gpu: &GpuFacts) -> String {
    let Some(count) = gpu.nvlink_count else { return UNKNOWN.to_owned() };
    if count == 0 {
        return "none".to_owned();
    }
    let is_up = |state: &Option<LinkState>| *state == Some(LinkState::Active);
    let up = gpu.nvlinks.iter().filter(|link| is_up(&link.state)).count();
    let asleep = gpu.nvlinks.iter().filter(|link| link.state == Some(LinkState::Sleep)).count();
    let unusable = gpu.nvlinks.iter().filter(|it| it.state == Some(LinkState::TrafficDisabled));
    let unusable = unusable.count();
    let is_unknown = |link: &&NvlinkFacts| matches!(link.state, None | Some(LinkState::Other(_)));
    let unknown = gpu.nvlinks.iter().filter(is_unknown).count();
    let mut speeds: Vec<u64> =
        gpu.nvlinks.iter().filter_map(|link| link.speed_mbyte_s).filter(|s| *s != 0).collect();
    speeds.sort_unstable();
    speeds.dedup();
    let mut text = format!("{up} of {count} up");
    if 0 < asleep {
        let _ = write!(text, ", {asleep} asleep");
    }
    if 0 < unusable {
        let _ = write!(text, ", {unusable} up without traffic");
    }
    if 0 < unknown {
        let _ = write!(text, ", {unknown} unknown");
    }
    match speeds.as_slice() {
        [] => {}
        [speed] => {
            let _ = write!(text, " at {speed} MB/s");
        }
        [slowest, .., fastest] => {
            let _ = write!(text, " at {slowest} to {fastest} MB/s");
        }
    }
    text
}

/// For example `gen 5 x16`, with the maximum if it is higher.
fn format_pcie(link: &PcieFacts) -> String {
    let one = |generation: Option<u32>, width: Option<u32>| {
        Some(format!("gen {} x{}", generation?, width?))
    };
    let Some(now) = one(link.generation, link.width) else { return UNKNOWN.to_owned() };
    match one(link.generation_max, link.width_max) {
        Some(most) if most != now => format!("{now} of {most}"),
        _ => now,
    }
}

fn format_fabric(fabric: &FabricFacts) -> String {
    let mut text = fabric.state.label().to_owned();
    if let (true, Some(uuid), Some(clique)) =
        (fabric.is_multi_node(), &fabric.cluster_uuid, fabric.clique_id)
    {
        let _ = write!(text, ", {}.{clique}", to_plain(uuid));
    } else if fabric.cluster_uuid.is_some() {
        text.push_str(", this node only");
    }
    text
}

/// Remarks that an operator checks first; a remark about several GPUs is listed once.
fn collect_remarks(gpus: &[GpuFacts]) -> Vec<String> {
    let mut all: Vec<(String, Vec<u32>)> = Vec::new();
    for gpu in gpus {
        for remark in gpu_remarks(gpu) {
            match all.iter_mut().find(|(what, _)| *what == remark) {
                Some((_, gpus_with_it)) => gpus_with_it.push(gpu.index),
                None => all.push((remark, vec![gpu.index])),
            }
        }
    }
    let shown = all.iter().map(|(what, gpus_with_it)| match gpus_with_it.as_slice() {
        [one] => format!("GPU {one}: {what}"),
        gpus_with_it => format!("GPUs {}: {what}", format_ranges(gpus_with_it)),
    });
    shown.collect()
}

fn gpu_remarks(gpu: &GpuFacts) -> Vec<String> {
    let mut all = Vec::new();
    let mut remark = |what: String| all.push(to_plain(&what).into_owned());
    for what in gpu.fabric.iter().flat_map(FabricFacts::health_problems) {
        remark(format!("fabric: {what}"));
    }
    let down = gpu.nvlinks.iter().filter(|link| link.state == Some(LinkState::Inactive));
    let down: Vec<u32> = down.map(|link| link.link).collect();
    if !down.is_empty() {
        remark(format!("NVLinks down: {}", format_ranges(&down)));
    }
    let unusable = gpu.nvlinks.iter().filter(|it| it.state == Some(LinkState::TrafficDisabled));
    let unusable: Vec<u32> = unusable.map(|link| link.link).collect();
    if !unusable.is_empty() {
        remark(format!("NVLinks up, but not usable for traffic: {}", format_ranges(&unusable)));
    }
    for link in &gpu.nvlinks {
        let counted = link.errors.iter().filter(|(_, count)| **count != 0);
        let counted: Vec<String> = counted.map(|(name, count)| format!("{name} {count}")).collect();
        if !counted.is_empty() {
            remark(format!("NVLink {} counts {}", link.link, counted.join(", ")));
        }
    }
    if gpu.nvlink_mode_is_best == Some(false) {
        let mode = gpu.nvlink_mode.map_or_else(String::new, |mode| format!(" ({mode})"));
        remark(format!("its NVLinks are configured to a slower bandwidth mode{mode}"));
    }
    if let Some(rows) = gpu.remapped_rows.as_ref().filter(|rows| rows.pending || rows.failed) {
        let what = if rows.failed { "failed" } else { "pending until the next reset" };
        remark(format!("row remapping {what}"));
    }
    for xid in gpu.xids.iter().flatten() {
        remark(format!(
            "Xid {} × {} in the kernel log: {}",
            xid.xid,
            xid.count,
            clip(&xid.message, 80)
        ));
    }
    if let Some(action) = gpu.recovery_action.as_ref().filter(|action| *action != "none") {
        remark(format!("the driver requests: {action}"));
    }
    if gpu.mig == Some(true) {
        remark("divided into instances (MIG)".to_owned());
    }
    if gpu.persistence == Some(false) {
        remark("persistence mode is off".to_owned());
    }
    let is_normal = |why: &ThrottleReason| {
        matches!(why, ThrottleReason::Idle | ThrottleReason::ApplicationClocks)
    };
    for why in gpu.throttled_by.iter().flatten().filter(|why| !is_normal(why)) {
        remark(format!("clocks limited by: {why}"));
    }
    all
}

const NIC: [&str; 8] =
    ["NIC", "state", "rate", "PCI address", "PCIe", "NUMA", "nearest GPUs", "cabled to"];

fn nic_row(nic: &NicFacts, facts: &NodeFacts) -> Vec<String> {
    let port = nic.port.filter(|port| *port != 1).map(|port| format!(" port {port}"));
    let net = nic.net_devices.iter().filter(|name| **name != nic.device);
    let net: Vec<&str> = net.map(String::as_str).collect();
    let net = if net.is_empty() { String::new() } else { format!(" ({})", net.join(", ")) };
    let nearest = nic.gpus.iter().map(|gpu| gpu.relation).min();
    let near = nearest.filter(|it| *it != PciDistance::Unknown).map(|nearest| {
        let at = nic.gpus.iter().filter(|gpu| gpu.relation == nearest);
        let at: Vec<String> = at.map(|gpu| gpu.gpu.to_string()).collect();
        format!("{} ({})", at.join(", "), nearest.label())
    });
    let cabled = facts.neighbours.iter().find(|neighbour| neighbour.is_attached_to(nic));
    let cabled = cabled.map(|neighbour| {
        let parts = [neighbour.switch.as_deref(), neighbour.port.as_deref()];
        parts.into_iter().flatten().collect::<Vec<_>>().join(" ")
    });
    let width = nic.pcie_width.map(|width| format!(" x{width}")).unwrap_or_default();
    vec![
        format!("{}{}{net}", nic.device, port.unwrap_or_default()),
        or_unknown(nic.state.as_deref()),
        nic.rate_mbit_s.map_or_else(|| UNKNOWN.to_owned(), format_rate),
        or_unknown(nic.pci_address.as_deref()),
        nic.pcie_speed
            .as_ref()
            .map_or_else(|| UNKNOWN.to_owned(), |speed| format!("{speed}{width}")),
        nic.numa_node.map_or_else(|| UNKNOWN.to_owned(), |node| node.to_string()),
        near.unwrap_or_else(|| UNKNOWN.to_owned()),
        cabled.unwrap_or_else(|| UNKNOWN.to_owned()),
    ]
}

fn format_rate(mbit_s: u64) -> String {
    match mbit_s % 1000 {
        0 => format!("{} Gbit/s", mbit_s / 1000),
        _ => format!("{mbit_s} Mbit/s"),
    }
}

fn format_imex(imex: &ImexFacts) -> String {
    let mut parts = Vec::new();
    if let Some(state) = &imex.domain_state {
        let ready = imex.nodes.iter().filter(|node| node.state.as_deref() == Some("READY")).count();
        parts.push(format!(
            "domain {}, {ready} of {} nodes ready",
            to_plain(state),
            imex.nodes.len()
        ));
    }
    parts.push(match (&imex.channels, imex.channels_offered) {
        (Some(channels), _) => count_noun(channels.len(), "channel", "channels"),
        (None, Some(true)) => "channels supported, none created".to_owned(),
        (None, Some(false)) => "no channels offered".to_owned(),
        (None, None) => "channels unknown".to_owned(),
    });
    parts.join("; ")
}

/// For example `serial number of GPUs 0-3: no permission`.
fn format_missing(missing: &MissingFact) -> String {
    let of = |what: &str, numbers: &[u32]| match numbers {
        [] => String::new(),
        [one] => format!(" of {what} {one}"),
        numbers => format!(" of {what}s {}", format_ranges(numbers)),
    };
    let links = of("link", &missing.links);
    let gpus = of("GPU", &missing.gpus);
    to_plain(&format!("{}{links}{gpus}: {}", missing.what, missing.why)).into_owned()
}

/// For example `0-3, 7`.
fn format_ranges(numbers: &[u32]) -> String {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for number in numbers {
        match runs.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(*number) => *last = *number,
            _ => runs.push((*number, *number)),
        }
    }
    let shown =
        runs.iter().map(
            |(first, last)| {
                if first == last { first.to_string() } else { format!("{first}-{last}") }
            },
        );
    shown.collect::<Vec<_>>().join(", ")
}

fn to_plain_word(text: Option<&str>) -> Option<String> {
    text.map(|text| clip(text, WIDEST))
}

fn or_unknown(text: Option<&str>) -> String {
    to_plain_word(text).unwrap_or_else(|| UNKNOWN.to_owned())
}

fn render_table(header: &[&str], rows: impl Iterator<Item = Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(header.iter().copied());
    for row in rows {
        table.add_row(row.iter().map(|cell| clip(cell, WIDEST)));
    }
    let text = table.to_string();
    text.lines().map(|line| format!("{}\n", line.trim_end())).collect()
}

fn push_section(text: &mut String, table: &str) {
    text.push('\n');
    text.push_str(table);
}

fn push_lines(text: &mut String, title: &str, lines: &[String]) {
    if lines.is_empty() {
        return;
    }
    let _ = writeln!(text, "\n{title}");
    for line in lines {
        let _ = writeln!(text, "  {line}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::gpu_facts::{FabricState, NvlinkFacts};
    use model::node_facts::{DriverFacts, GpuDistance, NicNeighbour};

    fn facts() -> NodeFacts {
        let link = |link| NvlinkFacts {
            link,
            state: Some(if link == 3 { LinkState::Inactive } else { LinkState::Active }),
            speed_mbyte_s: Some(26_562),
            ..NvlinkFacts::default()
        };
        let gpu = |index| GpuFacts {
            index,
            product: Some("NVIDIA H200".to_owned()),
            pci_address: Some(format!("0000:{index}b:00.0")),
            nvlink_count: Some(18),
            nvlinks: (0..18).map(link).collect(),
            fabric: Some(FabricFacts {
                state: FabricState::Completed,
                status: Some("insufficient resources".to_owned()),
                cluster_uuid: Some("00000000-0000-0000-0000-000000000000".to_owned()),
                clique_id: Some(0),
                ..FabricFacts::default()
            }),
            ..GpuFacts::default()
        };
        let near = GpuDistance { gpu: 0, relation: PciDistance::SameSwitch };
        let far = GpuDistance { gpu: 1, relation: PciDistance::OtherNuma };
        NodeFacts {
            hostname: Some("node\u{1b}[1m01".to_owned()),
            driver: Some(DriverFacts::default()),
            gpus: Some(vec![gpu(0), gpu(1)]),
            nics: vec![NicFacts {
                device: "mlx5_0".to_owned(),
                net_devices: vec!["ib0".to_owned()],
                rate_mbit_s: Some(400_000),
                gpus: vec![near, far],
                ..NicFacts::default()
            }],
            neighbours: vec![NicNeighbour {
                device_port: None,
                device: "ib0".to_owned(),
                switch: Some("leaf01".to_owned()),
                port: Some("Ethernet8".to_owned()),
            }],
            missing: vec![MissingFact {
                what: "serial number".to_owned(),
                gpus: vec![0, 1],
                why: "no permission".to_owned(),
                ..MissingFact::default()
            }],
            ..NodeFacts::default()
        }
    }

    #[test]
    fn the_account_names_what_is_there_what_is_odd_and_what_is_missing() {
        let text = render(&facts());
        for expected in [
            "2 × NVIDIA H200",
            "17 of 18 up at 26562 MB/s",
            "completed, this node only",
            "GPUs 0-1: NVLinks down: 3",
            "fabric: registration ended with: insufficient resources",
            "mlx5_0 (ib0)",
            "400 Gbit/s",
            "0 (same switch)",
            "leaf01 Ethernet8",
            "serial number of GPUs 0-1: no permission",
        ] {
            assert!(text.contains(expected), "{expected} is missing in\n{text}");
        }
        assert!(!text.contains('\u{1b}'), "{text}");
    }

    #[test]
    fn a_silent_driver_does_not_mean_a_machine_without_gpus() {
        let silent = NodeFacts::default();
        assert!(render(&silent).contains("GPUs     ?"), "{}", render(&silent));
        let none = NodeFacts { gpus: Some(Vec::new()), ..NodeFacts::default() };
        assert!(render(&none).contains("GPUs     none"), "{}", render(&none));
    }

    #[test]
    fn numbers_in_a_row_are_a_range() {
        assert_eq!(format_ranges(&[0, 1, 2, 5, 7, 8]), "0-2, 5, 7-8");
    }
}
