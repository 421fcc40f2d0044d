//! Generated outputs in the tool's grammar, and properties of the parser.

use std::fmt::Write;

use proptest::prelude::*;

use super::*;
use crate::outputs;
use crate::outputs::fixture;

fn read(text: &str) -> ParseOutput {
    let parsed = outputs::parse_output(text.as_bytes());
    assert_eq!(parsed.tool, Some(Tool::NvidiaSmiQ));
    parsed
}

const ZERO: &str = "00000000-0000-0000-0000-000000000000";
const CLUSTER: &str = "5b1c9f02-77aa-4c3e-9d10-2f6e0c4b8a91";

/// The fabric of one GPU: state, status, clique, cluster, bandwidth health.
#[derive(Clone, Debug)]
struct FabricLeaves {
    leaves: [String; 4],
    health: String,
}

impl FabricLeaves {
    fn new(leaves: [&str; 4], health: &str) -> Self {
        Self { leaves: leaves.map(str::to_owned), health: health.to_owned() }
    }

    fn healthy() -> Self {
        Self::new(["Completed", "Success", "4098", CLUSTER], "Full")
    }
}

/// A log with keys of this width (33 before 590, 54 since).
fn render(width: usize, product: &str, fabrics: &[FabricLeaves]) -> String {
    let mut out = format!("\n{0}NVSMI LOG{0}\n\n", "=".repeat(14));
    let mut leaf = |depth: usize, key: &str, value: &str| {
        let indent = depth * 4;
        writeln!(out, "{:indent$}{key:<w$} : {value}", "", w = width + 8 - indent).unwrap();
    };
    leaf(0, "Timestamp", "Mon Mar  2 04:05:06 2026");
    leaf(0, "Driver Version", "580.65.06");
    leaf(0, "CUDA Version", "13.0");
    leaf(0, "Attached GPUs", &fabrics.len().to_string());
    for (index, fabric) in fabrics.iter().enumerate() {
        writeln!(out, "GPU 0000{index:04X}:01:00.0").unwrap();
        let mut line = |depth: usize, key: &str, value: Option<&str>| {
            let indent = depth * 4;
            match value {
                Some(value) => {
                    writeln!(out, "{:indent$}{key:<w$} : {value}", "", w = width + 8 - indent)
                }
                None => writeln!(out, "{:indent$}{key}", ""),
            }
            .unwrap();
        };
        line(1, "Product Name", Some(product));
        line(1, "GPU UUID", Some(&format!("GPU-{index:08x}-1111-2222-3333-444455556666")));
        line(1, "Platform Info", None);
        line(2, "Chassis Serial Number", Some(""));
        line(2, "Tray Index", Some("4"));
        line(1, "PCI", None);
        line(2, "Bus", Some("0x01"));
        line(2, "GPU Link Info", None);
        line(3, "PCIe Generation", None);
        line(4, "Max", Some("5"));
        line(4, "Current", Some("4"));
        line(3, "Link Width", None);
        line(4, "Max", Some("16x"));
        line(4, "Current", Some("8x"));
        line(2, "Replays Since Reset", Some("3"));
        line(1, "ECC Errors", None);
        line(2, "Volatile", None);
        line(3, "DRAM Uncorrectable", Some("2"));
        line(1, "Retired Pages", None);
        line(2, "Single Bit ECC", Some("9"));
        line(2, "Double Bit ECC", Some("N/A"));
        line(2, "Pending Page Blacklist", Some("No"));
        line(1, "Remapped Rows", None);
        line(2, "Correctable Error", Some("1"));
        line(2, "Remapping Failure Occurred", Some("No"));
        line(1, "Fabric", None);
        for (key, value) in
            ["State", "Status", "CliqueId", "ClusterUUID"].iter().zip(&fabric.leaves)
        {
            line(2, key, Some(value));
        }
        line(2, "Health", None);
        line(3, "Bandwidth", Some(&fabric.health));
        line(3, "Route Recovery in progress", Some("False"));
        line(1, "Processes", Some("None"));
        writeln!(out).unwrap();
    }
    out
}

#[test]
fn a_fabric_that_is_up_is_read_with_any_key_width() {
    for width in [33, 46] {
        let parsed = read(&render(width, "NVIDIA GB200", &vec![FabricLeaves::healthy(); 4]));
        assert!(parsed.complete && parsed.problems.is_empty(), "{:?}", parsed.problems);
        assert_eq!(parsed.facts.driver.as_deref(), Some("580.65.06"));
        assert_eq!(parsed.facts.cuda_driver.as_deref(), Some("13.0"));
        let gpu = &parsed.facts.fabric[3];
        assert_eq!((gpu.gpu, gpu.name.as_deref()), (3, Some("NVIDIA GB200")));
        assert_eq!(gpu.bus_id.as_deref(), Some("00000003:01:00.0"));
        assert_eq!(gpu.state.as_deref(), Some("Completed"));
        assert_eq!(gpu.status.as_deref(), Some("Success"));
        assert_eq!(gpu.clique_id.as_deref(), Some("4098"));
        assert_eq!(gpu.cluster_uuid.as_deref(), Some(CLUSTER));
        assert_eq!(gpu.health["Bandwidth"], "Full");
        assert_eq!(gpu.health["Route Recovery in progress"], "False");
        assert!(gpu.uuid.as_ref().is_some_and(|u| u.starts_with("GPU-00000003")));
    }
}

#[test]
fn a_failed_fabric_is_a_fact_and_not_a_problem() {
    let failed = FabricLeaves::new(["Completed", "Insufficient Resources", "0", ZERO], "N/A");
    let parsed = read(&render(33, "NVIDIA GB300", &vec![failed; 4]));
    assert!(parsed.complete && parsed.problems.is_empty());
    assert_eq!(parsed.facts.fabric[0].status.as_deref(), Some("Insufficient Resources"));
    assert_eq!(parsed.facts.fabric[0].cluster_uuid.as_deref(), Some(ZERO));
    let none = FabricLeaves::new(["N/A"; 4], "N/A");
    let parsed = read(&render(33, "NVIDIA L40S", &[none]));
    assert!(parsed.complete);
    assert_eq!(parsed.facts.fabric[0].state.as_deref(), Some("N/A"));
}

#[test]
fn link_and_memory_values_have_stable_names() {
    let parsed = read(&render(33, "NVIDIA H100 80GB HBM3", &[FabricLeaves::healthy()]));
    let parameters = &parsed.facts.parameters;
    for (name, value) in [
        ("gpu0.retired_pages.single_bit", "9"),
        ("gpu0.retired_pages.pending", "No"),
        ("gpu0.remapped_rows.correctable", "1"),
        ("gpu0.remapped_rows.remapping_failure_occurred", "No"),
        ("gpu0.ecc_errors.volatile.dram_uncorrectable", "2"),
        ("gpu0.pcie.generation.current", "4"),
        ("gpu0.pcie.width.current", "8x"),
        ("gpu0.pcie.replays", "3"),
        ("gpu0.platform.tray_index", "4"),
    ] {
        assert_eq!(parameters.get(name).map(String::as_str), Some(value), "{name}");
    }
    assert!(!parameters.contains_key("gpu0.retired_pages.double_bit"));
    assert_eq!(parameters.len(), 11);
}

#[test]
fn fewer_gpus_than_attached_is_a_truncation() {
    let text = render(33, "NVIDIA H100 80GB HBM3", &vec![FabricLeaves::healthy(); 2]);
    let parsed = read(&text.replace(" : 2\nGPU", " : 8\nGPU"));
    assert!(!parsed.complete);
    assert_eq!(parsed.problems[0].detail, "8 GPUs are attached, 2 are listed");
}

#[test]
fn sentences_in_place_of_an_answer_are_errors() {
    for text in [
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure \
         that it is running.\n",
        "No devices were found\n",
        "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 575.1\n",
        "Unable to determine the device handle for GPU2: 0000:9A:00.0: GPU is lost.\n",
    ] {
        let parsed = read(text);
        assert!(!parsed.complete, "{text}");
        assert_eq!(parsed.problems.len(), 1, "{text}");
        assert_eq!(parsed.problems[0].kind, OutputProblemKind::Error);
    }
}

#[test]
fn a_gpu_that_does_not_answer_is_one_error_however_many_values_it_lost() {
    let text = render(33, "NVIDIA H200", &vec![FabricLeaves::healthy(); 2]);
    let second = text.rfind("Retired Pages").unwrap();
    let lost = text[second..]
        .replace(": 9", ": GPU requires reset")
        .replace(": No", ": GPU requires reset");
    let parsed = read(&format!("{}{lost}", &text[..second]));
    let errors: Vec<_> =
        parsed.problems.iter().filter(|p| p.kind == OutputProblemKind::Error).collect();
    assert_eq!((errors.len(), errors[0].gpu), (1, Some(1)));
}

#[test]
fn a_filtered_log_is_whole_and_a_grep_of_it_is_not() {
    let log = "==============NVSMI LOG==============\n\nDriver Version            : 560.28\n\
               \nAttached GPUs             : 2\nGPU 0000002A:00:00.0\n    Remapped Rows\n\
               \x20       Pending           : Yes\nGPU 0000002B:00:00.0\n    Remapped Rows\n\
               \x20       Pending           : No\n";
    let parsed = read(log);
    assert!(parsed.complete && parsed.problems.is_empty(), "{:?}", parsed.problems);
    assert_eq!(parsed.facts.parameters["gpu0.remapped_rows.pending"], "Yes");
    let grep = "    Fabric\n        State       : Completed\n        Status      : Success\n\
                \x20       CliqueId    : 7\n        ClusterUUID : x\n--\n    Fabric\n\
                \x20       State       : In Progress\n";
    let parsed = read(grep);
    assert!(!parsed.complete);
    let states: Vec<_> = parsed.facts.fabric.iter().map(|f| (f.gpu, f.state.as_deref())).collect();
    assert_eq!(states, [(0, Some("Completed")), (1, Some("In Progress"))]);
    assert!(parsed.facts.devices.is_empty());
}

#[test]
fn a_log_without_indentation_still_gives_the_fabric() {
    let text = render(33, "NVIDIA GB200", &vec![FabricLeaves::healthy(); 2]);
    let flat: Vec<&str> = text.lines().map(str::trim_start).collect();
    let parsed = read(&flat.join("\n"));
    assert_eq!(parsed.facts.fabric[1].clique_id.as_deref(), Some("4098"));
    assert_eq!(parsed.facts.fabric[1].health["Bandwidth"], "Full");
    assert_eq!(parsed.facts.devices[1].name.as_deref(), Some("NVIDIA GB200"));
}

#[test]
fn a_value_with_a_lost_byte_is_not_a_value() {
    let text = render(33, "NVIDIA GB200", &[FabricLeaves::healthy()]).replace("4098", "4\u{0}98");
    let parsed = read(&text);
    assert!(parsed.has_problem(OutputProblemKind::Unrecognised) && !parsed.complete);
    assert_eq!(parsed.facts.fabric[0].clique_id, None);
}

#[test]
fn a_repeated_log_keeps_the_last_state_of_each_gpu() {
    let before = render(
        33,
        "NVIDIA GB200",
        &[FabricLeaves::new(["In Progress", "N/A", "N/A", "N/A"], "N/A")],
    );
    let after = render(33, "NVIDIA GB200", &[FabricLeaves::healthy()]);
    let parsed = read(&format!("{before}{after}"));
    assert!(parsed.complete && parsed.problems.is_empty(), "{:?}", parsed.problems);
    assert_eq!(parsed.facts.fabric.len(), 1);
    assert_eq!(parsed.facts.fabric[0].state.as_deref(), Some("Completed"));
    let other = after.replace("GPU-00000000", "GPU-0000ffff");
    let parsed = read(&format!("{after}{other}"));
    assert!(parsed.has_problem(OutputProblemKind::Inconsistent));
    assert_eq!(parsed.facts.fabric.len(), 2);
}

proptest! {
    #[test]
    fn rendered_output_is_read_back(
        wide in any::<bool>(),
        fabrics in proptest::collection::vec(
            ("[A-Z][a-z]{2,9}", "[A-Z][a-z]{2,9}( [A-Z][a-z]{2,9})?", 0u32.., "[0-9a-f]{8}", "(Full|Degraded|N/A)"),
            1..9,
        ),
    ) {
        let fabrics: Vec<FabricLeaves> = fabrics
            .into_iter()
            .map(|(a, b, c, d, health)| FabricLeaves { leaves: [a, b, c.to_string(), d], health })
            .collect();
        let parsed = read(&render(if wide { 46 } else { 33 }, "NVIDIA Test", &fabrics));
        prop_assert!(parsed.complete && parsed.problems.is_empty(), "{:?}", parsed.problems);
        prop_assert_eq!(parsed.facts.fabric.len(), fabrics.len());
        for (read, wrote) in parsed.facts.fabric.iter().zip(&fabrics) {
            let back = [&read.state, &read.status, &read.clique_id, &read.cluster_uuid];
            prop_assert_eq!(back.map(|l| l.clone().unwrap_or_default()), wrote.leaves.clone());
            prop_assert_eq!(&read.health["Bandwidth"], &wrote.health);
        }
    }

    #[test]
    fn a_log_that_lost_its_last_lines_is_not_whole(gpus in 1usize..5, kept in 0usize..1000) {
        let text = render(33, "NVIDIA GB200", &vec![FabricLeaves::healthy(); gpus]);
        let lines: Vec<&str> = text.trim_end().lines().collect();
        let kept = 2 + kept % (lines.len() - 2);
        prop_assert!(!read(&lines[..kept].join("\n")).complete);
    }

    #[test]
    fn nothing_makes_it_panic(text in "(.|\n){0,300}", hurt in fixture::any_damage()) {
        let good = render(33, "NVIDIA GB200", &vec![FabricLeaves::healthy(); 2]);
        for bytes in [text.as_bytes().to_vec(), fixture::apply_damage(&good, &hurt)] {
            let decoded = text::decode(&bytes);
            let parsed = parse(&ParserInput::new(&decoded));
            prop_assert!(parsed.facts.fabric.len() <= decoded.lines().count());
        }
    }
}
