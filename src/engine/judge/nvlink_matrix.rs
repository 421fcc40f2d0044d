//! NVLink counts from `nvidia-smi topo -m`: a GPU with none, or fewer than the others, gets the
//! same finding as from a list of its links.
//!
//! A path of a matrix has two ends. A GPU is blamed only if the others have all links among each
//! other; otherwise the location of the missing links is unknown.

use super::domain_recordings::DomainRecordings;
use super::finding::{gpu_locus, new_finding};
use super::finding_set::FindingSet;
use crate::thresholds::NvlinkSpec;
use model::finding_class::FindingClass;
use model::finding_rule::RuleKind;
use model::id::{GpuId, NodeName};
use model::tool_facts::SmiTopology;
use model::tool_recording::ToolRecording;
use model::unit::Unit;
use model::verdict::Outcome;

/// Fewer connected GPUs do not show that a third one is at fault.
const FEWEST: usize = 2;

/// The GPUs of one matrix and the number of links between each two; GPUs of a truncated row are
/// left out.
struct NvlinkMatrix {
    gpus: Vec<u32>,
    links: Vec<Vec<u32>>,
}

impl NvlinkMatrix {
    fn from_topology(topology: &SmiTopology) -> Self {
        let index = |name: &str| name.strip_prefix("GPU").and_then(|n| n.parse::<u32>().ok());
        let columns: Vec<Option<u32>> = topology.columns.iter().map(|name| index(name)).collect();
        let rows: Vec<(u32, &[String])> = topology
            .rows
            .iter()
            .filter_map(|row| Some((index(&row.device)?, row.connections.as_slice())))
            .filter(|(_, cells)| {
                let gpus = columns.iter().zip(*cells).filter(|(column, _)| column.is_some());
                gpus.clone().count() == columns.iter().flatten().count()
                    && gpus.clone().all(|(_, cell)| !cell.is_empty())
            })
            .collect();
        let gpus: Vec<u32> = rows.iter().map(|(gpu, _)| *gpu).collect();
        let bond = |cell: &str| cell.strip_prefix("NV").and_then(|n| n.parse().ok()).unwrap_or(0);
        let links = rows
            .iter()
            .map(|(_, cells)| {
                let of = |gpu: &u32| columns.iter().position(|column| *column == Some(*gpu));
                gpus.iter().map(|gpu| of(gpu).map_or(0, |at| bond(&cells[at]))).collect()
            })
            .collect();
        Self { gpus, links }
    }

    /// The most links between this GPU and any other, by index in the list.
    fn most_links(&self, gpu: usize) -> u32 {
        self.links[gpu].iter().copied().max().unwrap_or(0)
    }

    /// Whether each two of these have at least `by` links.
    fn are_linked(&self, gpus: &[usize], by: u32) -> bool {
        let pairs = gpus.iter().flat_map(|a| gpus.iter().map(move |b| (*a, *b)));
        pairs.filter(|(a, b)| a != b).all(|(a, b)| by <= self.links[a][b])
    }
}

/// Judges the matrices that were recorded on a node.
pub(super) fn judge(
    domain: &DomainRecordings<'_>,
    node: &NodeName,
    recording: &ToolRecording,
    expected: &NvlinkSpec,
    ledger: &mut FindingSet,
) {
    let facts = &recording.parsed.facts;
    // `-p2p` prints permitted access, not a number of links.
    if facts.parameters.contains_key("topology.matrix") {
        return;
    }
    let Some(topology) = &facts.topology else { return };
    let linked = NvlinkMatrix::from_topology(topology);
    let all: Vec<usize> = (0..linked.gpus.len()).collect();
    let (with, without): (Vec<usize>, Vec<usize>) =
        all.into_iter().partition(|gpu| 0 < linked.most_links(*gpu));
    let whole: Vec<usize> =
        with.iter().copied().filter(|gpu| expected.links <= linked.most_links(*gpu)).collect();
    let less: Vec<usize> = with.iter().copied().filter(|gpu| !whole.contains(gpu)).collect();
    let of = |gpus: &[usize]| {
        let names: Vec<String> = gpus.iter().map(|at| format!("GPU{}", linked.gpus[*at])).collect();
        names.join(", ")
    };
    let are_shown = |gpus: &[usize], by| FEWEST <= gpus.len() && linked.are_linked(gpus, by);
    if !without.is_empty() && linked.gpus.len() < FEWEST {
        // A single GPU has no other GPU to link to.
    } else if !without.is_empty() && expected.switched && are_shown(&with, 1) {
        for at in without {
            let reason = "it has no NVLink to any other GPU, and the others do";
            let class = (FindingClass::NvlinkAbsent, Outcome::Failed);
            report_gpu(
                domain,
                node,
                recording,
                expected,
                (linked.gpus[at], 0),
                class,
                reason,
                ledger,
            );
        }
    } else if !without.is_empty() {
        let why = format!("{}: no NVLink of {} is listed", recording.file, of(&without));
        ledger.add_doubt(node, why);
    }
    if less.is_empty() || !expected.switched {
        return;
    }
    if are_shown(&whole, expected.links) {
        for at in less {
            let has = linked.most_links(at);
            let reason = "at most that many NVLinks to any other GPU are active, and all links \
                          between the other GPUs are active";
            let class = (FindingClass::NvlinkInactive, Outcome::Degraded);
            report_gpu(
                domain,
                node,
                recording,
                expected,
                (linked.gpus[at], has),
                class,
                reason,
                ledger,
            );
        }
    } else {
        let why = format!(
            "{}: {} have fewer than {} NVLinks to the others",
            recording.file,
            of(&less),
            expected.links
        );
        ledger.add_doubt(node, why);
    }
}

#[expect(clippy::too_many_arguments, reason = "the parts of one sentence")]
fn report_gpu(
    domain: &DomainRecordings<'_>,
    node: &NodeName,
    recording: &ToolRecording,
    expected: &NvlinkSpec,
    (gpu, has): (u32, u32),
    (class, outcome): (FindingClass, Outcome),
    reason: &str,
    ledger: &mut FindingSet,
) {
    let gpu = GpuId::new(node.clone(), gpu);
    let summary = format!("{has} of {} NVLinks: {reason}", expected.links);
    let rule = RuleKind::Links
        .with_terms("the matrix of the driver shows fewer NVLinks than the platform has");
    let found = new_finding(outcome, class, gpu_locus(&domain.name, &gpu), rule)
        .with_numbers(f64::from(has), f64::from(expected.links), Unit::Count)
        .with_evidence(&recording.file, None, format!("GPU {gpu}: {summary}"));
    ledger.add_of_gpu(&gpu, found, &summary);
}
