//! Driver telemetry around a run of fabricgate's probe, combined with the probe's findings: a link
//! that trained slower, a throttled GPU, error counts, other processes on the GPU.
//!
//! It blames no additional part. It adds evidence to a finding about the same GPU from the same
//! run; a low number while another process was computing is unknown, as on a node that is refused
//! because it is busy.

use std::collections::{BTreeMap, BTreeSet};

use super::class_traits::traits_of;
use super::domain_recordings::DomainRecordings;
use super::finding_set::FindingSet;
use model::finding_class::FindingClass;
use model::id::NodeName;
use model::probe_report::GpuTelemetry;
use model::tool_recording::ToolRecording;
use model::verdict::{Evidence, Finding, Outcome};

/// The telemetry of one GPU around one run.
struct GpuRunTelemetry<'a> {
    file: &'a str,
    gpu: &'a GpuTelemetry,
}

/// Adds telemetry to the findings, in all domains.
pub(super) fn judge(domains: &[DomainRecordings<'_>], ledger: &mut FindingSet) {
    let mut best: BTreeMap<&str, (u32, u32)> = BTreeMap::new();
    for domain in domains {
        let platform = domain.platform.map_or("", |p| p.name.as_str());
        let entry = best.entry(platform).or_default();
        for (_, telemetry) in domain.nodes.iter().flat_map(|node| node_telemetry(domain, node)) {
            let (generation, width) = host_link(telemetry.gpu);
            *entry = (entry.0.max(generation), entry.1.max(width));
        }
    }
    let low: BTreeSet<NodeName> = ledger
        .findings()
        .filter(|f| traits_of(&f.class).has_driver_telemetry)
        .filter_map(|f| f.locus.node.clone())
        .collect();
    for domain in domains {
        let platform = domain.platform.map_or("", |p| p.name.as_str());
        let best = best.get(platform).copied().unwrap_or_default();
        for node in &domain.nodes {
            for (gpu, telemetry) in node_telemetry(domain, node) {
                apply_telemetry(domain, (node, low.contains(node)), gpu, &telemetry, best, ledger);
            }
        }
    }
}

/// The telemetry of a node's GPUs, in all runs that it took part in.
fn node_telemetry<'a>(
    domain: &'a DomainRecordings<'_>,
    node: &'a NodeName,
) -> impl Iterator<Item = (u32, GpuRunTelemetry<'a>)> + 'a {
    let own = domain.per_node.get(node).into_iter().flatten();
    let recordings = own.chain(&domain.across_nodes).copied();
    recordings.flat_map(move |recording: &'a ToolRecording| {
        let around = recording.parsed.facts.around.iter();
        let alone = !domain.across_nodes.iter().any(|other| std::ptr::eq(*other, recording));
        // A node's own run may use another name for the node.
        let here = around.filter(move |(host, _)| alone || domain.node_of_host(host) == *node);
        here.flat_map(|(_, around)| &around.gpus)
            .map(|gpu| (gpu.index, GpuRunTelemetry { file: recording.file.as_str(), gpu }))
    })
}

/// Generation and lanes of the host link under load; 0 if not reported.
fn host_link(gpu: &GpuTelemetry) -> (u32, u32) {
    let Some(state) = &gpu.under_load else { return (0, 0) };
    (state.pcie_generation.unwrap_or(0), state.pcie_width.unwrap_or(0))
}

/// Applies the telemetry of one GPU in one run: to the findings about it, or as a note if errors
/// were counted without a finding.
fn apply_telemetry(
    domain: &DomainRecordings<'_>,
    (node, is_low): (&NodeName, bool),
    index: u32,
    telemetry: &GpuRunTelemetry<'_>,
    best: (u32, u32),
    ledger: &mut FindingSet,
) {
    let name = format!("GPU {node}:{index}");
    let about = |f: &Finding| {
        is_low
            && f.locus.domain.as_ref() == Some(&domain.name)
            && f.locus.node.as_ref() == Some(node)
            && f.locus.gpu.is_none_or(|gpu| gpu == index)
            && traits_of(&f.class).has_driver_telemetry
            && f.evidence.iter().any(|e| e.file == telemetry.file)
    };
    let (counted, busy) = (explain_errors(telemetry.gpu), explain_other_processes(telemetry.gpu));
    let mut doubts = Vec::new();
    let mut found = false;
    ledger.update_of_node(node, |finding| {
        if !about(finding) {
            return;
        }
        found = true;
        let mut causes = Vec::new();
        if finding.class == FindingClass::HostLinkLow {
            causes.extend(explain_link_training(telemetry.gpu, best));
        }
        causes.extend(explain_throttling(telemetry.gpu));
        causes.extend(counted.clone());
        causes.extend(busy.clone());
        for cause in causes {
            let detail = format!("{name}: {cause}");
            let known =
                finding.evidence.iter().any(|e| e.file == telemetry.file && e.detail == detail);
            if !known {
                finding.summary = format!("{}; {detail}", finding.summary);
                let file = telemetry.file.to_owned();
                finding.evidence.push(Evidence { file, testcase: None, detail, class: None });
            }
        }
        if busy.is_some() && Outcome::Unknown < finding.outcome {
            finding.outcome = Outcome::Unknown;
            doubts.push(finding.summary.clone());
        }
    });
    doubts.into_iter().for_each(|why| ledger.add_doubt(node, why));
    if let Some(counted) = counted.filter(|_| !found) {
        ledger.notes.push(format!("{name}: {counted}, and none of its numbers is low"));
    }
}

/// A host link below the others of this kind of machine under load.
fn explain_link_training(gpu: &GpuTelemetry, best: (u32, u32)) -> Option<String> {
    let (generation, width) = host_link(gpu);
    let slower = 0 < generation && generation < best.0;
    let narrower = 0 < width && width < best.1;
    let description =
        format!("its host link ran at PCIe generation {generation} with {width} lanes");
    (slower || narrower).then(|| format!("{description}, others at {} with {}", best.0, best.1))
}

fn explain_throttling(gpu: &GpuTelemetry) -> Option<String> {
    let reasons = gpu.under_load.as_ref().map_or(&[][..], |state| state.throttled.as_slice());
    let faults = reasons.iter().filter(|reason| reason.is_fault());
    let named: Vec<String> = faults.map(ToString::to_string).collect();
    let heat = gpu.under_load.as_ref().and_then(|state| state.temperature_c);
    let heat = heat.map_or(String::new(), |heat| format!(" at {heat} degrees"));
    (!named.is_empty()).then(|| format!("it was throttled ({}){heat}", named.join(", ")))
}

/// Counters that also grow on a sound link: NVLink 5 corrects errors all the time, and NVIDIA
/// documents no threshold.
const CORRECTED_ERRORS: &[&str] = &["effective_errors"];

fn explain_errors(gpu: &GpuTelemetry) -> Option<String> {
    let mut counted = Vec::new();
    for (link, counters) in &gpu.link_errors {
        let grown = counters
            .iter()
            .filter(|(counter, by)| 0 < **by && !CORRECTED_ERRORS.contains(&counter.as_str()));
        counted.extend(grown.map(|(counter, by)| format!("NVLink {link} {by} ({counter})")));
    }
    let replays = gpu.pcie_replays.filter(|by| 0 < *by);
    counted.extend(replays.map(|by| format!("PCIe {by} (replays)")));
    (!counted.is_empty())
        .then(|| format!("errors were counted during the run: {}", counted.join(", ")))
}

fn explain_other_processes(gpu: &GpuTelemetry) -> Option<String> {
    let numbers: Vec<String> = gpu.others.iter().map(u32::to_string).collect();
    let list = numbers.join(", ");
    (!numbers.is_empty()).then(|| {
        format!(
            "another process computed on it during the run (process {list}): measure it when it is \
             idle"
        )
    })
}
