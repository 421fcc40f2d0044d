//! Made-up maps for the tests of exports. No number here was measured.

use std::collections::BTreeMap;

use crate::place::map::{MapInput, VerifiedMap};
use crate::thresholds::builtin;
use model::finding_class::FindingClass;
use model::finding_rule::FindingRule;
use model::id::NodeName;
use model::measured_cell::MeasuredCell;
use model::run::{Run, RunInfo};
use model::source_report::{ClaimBasis, NodeGroup, NodeGroupKind};
use model::unit::Unit;
use model::verdict::{Finding, Locus, LocusKind, NodeVerdict, Outcome, Verdicts};
use readers::claims::claims_file;

const GPUS: u32 = 4;

/// Two racks of four nodes with two leaves and two rails, everything as expected.
pub(super) fn racks() -> Run {
    let text = "[[domain]]\nname = \"rack1\"\nnodes = \"n[01-04]\"\nplatform = \"gb200-nvl72\"\ngpus_per_node = 4\n\
                [[domain]]\nname = \"rack2\"\nnodes = \"n[05-08]\"\nplatform = \"gb200-nvl72\"\ngpus_per_node = 4\n\
                [[leaf]]\nname = \"leaf1\"\nnodes = \"n[01-04]\"\n[[leaf]]\nname = \"leaf2\"\nnodes = \"n[05-08]\"\n\
                [[rail]]\nname = \"rail0\"\nrdma = \"mlx5_0\"\n[[rail]]\nname = \"rail1\"\nrdma = \"mlx5_1\"\n";
    let claims = claims_file::parse("claims.toml", text).expect("good claims");
    let nodes: Vec<NodeName> = claims.domains.iter().flat_map(|it| it.nodes.clone()).collect();
    let mut cells = Vec::new();
    for a in &nodes {
        for b in &nodes {
            for (from, to) in (0..GPUS).flat_map(|from| (0..GPUS).map(move |to| (from, to))) {
                let same = claims.domain_of(a).map(|it| &it.name)
                    == claims.domain_of(b).map(|it| &it.name);
                if same && (a, from) != (b, to) {
                    cells.push(cell((a, Some(from)), (b, Some(to)), None, 1.0));
                }
            }
            if a != b {
                cells
                    .extend(["rail0", "rail1"].map(|it| cell((a, None), (b, None), Some(it), 1.0)));
            }
        }
    }
    let verdict = |node: &NodeName| NodeVerdict {
        node: node.clone(),
        domain: claims.domain_of(node).map(|it| it.name.clone()),
        outcome: Outcome::Pass,
        reason: "everything measured is as expected".to_owned(),
        kept_by: None,
        detectable: Some(0.02),
        detectable_together: None,
        fabric_detectable: None,
        scope: None,
    };
    let verdicts = Verdicts {
        platform: Some("gb200-nvl72".to_owned()),
        thresholds_digest: "249a111973fe8dff".to_owned(),
        nodes: nodes.iter().map(verdict).collect(),
        ..Verdicts::empty(Outcome::Pass)
    };
    let info = RunInfo {
        id: "20260304-050607-abcdef".to_owned(),
        created: "2026-03-04T05:06:07Z".to_owned(),
        profile: "admit".to_owned(),
        source: "made up".to_owned(),
        version: "0.1.0".to_owned(),
        simulated: false,
    };
    Run { info, claims, cells, verdicts, actions: None }
}

fn cell(
    (src_node, src_gpu): (&NodeName, Option<u32>),
    (dst_node, dst_gpu): (&NodeName, Option<u32>),
    rail: Option<&str>,
    ratio: f64,
) -> MeasuredCell {
    MeasuredCell {
        domain: None,
        stage: Some(2),
        testcase: "multinode_device_to_device_memcpy_read_ce".into(),
        src_node: Some(src_node.clone()),
        src_gpu,
        dst_node: Some(dst_node.clone()),
        dst_gpu,
        rail: rail.map(str::to_owned),
        reading: 0,
        value: Some(ratio * 800.0),
        unit: Unit::GigabytesPerSecond,
        expected: Some(800.0),
        ratio: Some(ratio),
        outcome: Outcome::Pass,
    }
}

/// The verdict on a node, and a finding of this class about it or one of its GPUs.
pub(super) fn find(
    run: &mut Run,
    node: &str,
    gpu: Option<u32>,
    rail: Option<&str>,
    class: &str,
    outcome: Outcome,
) {
    let node = NodeName::from(node);
    let kind = match (gpu, rail) {
        (Some(_), _) => LocusKind::Gpu,
        (_, Some(_)) => LocusKind::Rail,
        _ => LocusKind::Node,
    };
    let rail = rail.map(str::to_owned);
    let locus = Locus { node: Some(node.clone()), gpu, rail, ..Locus::new(kind) };
    run.verdicts.findings.push(Finding {
        confirmed: true,
        from_first_reading: false,
        rule: FindingRule::parse("made up"),
        summary: "made up".to_owned(),
        ..Finding::new(format!("fg-{class}-{node}"), outcome, FindingClass::from_name(class), locus)
    });
    judge(run, node.as_str(), outcome, &format!("{class}: made up"));
}

pub(super) fn judge(run: &mut Run, node: &str, outcome: Outcome, reason: &str) {
    for verdict in run.verdicts.nodes.iter_mut().filter(|it| it.node.as_str() == node) {
        (verdict.outcome, verdict.reason) = (outcome, reason.to_owned());
    }
    run.verdicts.outcome = run.verdicts.outcome.max(outcome);
}

/// Routes all copies between these nodes and the others of their racks over another path.
pub(super) fn cut(run: &mut Run, nodes: &[&str]) {
    let is_in =
        |node: &Option<NodeName>| node.as_ref().is_some_and(|it| nodes.contains(&it.as_str()));
    for cell in run.cells.iter_mut().filter(|cell| cell.rail.is_none()) {
        if is_in(&cell.src_node) != is_in(&cell.dst_node) {
            (cell.ratio, cell.value) = (Some(0.06), Some(48.0));
        }
    }
}

/// Removes all measurements of this node.
pub(super) fn forget(run: &mut Run, node: &str) {
    let is_it = |it: &Option<NodeName>| it.as_ref().is_some_and(|it| it.as_str() == node);
    run.cells.retain(|cell| !is_it(&cell.src_node) && !is_it(&cell.dst_node));
    judge(run, node, Outcome::Unknown, "its own links were not measured");
}

/// A node of rack 1 that is confirmed to be absent there, and was measured in rack 2.
pub(super) fn misplaced() -> Run {
    let mut run = racks();
    cut(&mut run, &["n04"]);
    find(&mut run, "n04", None, None, "wrong-domain", Outcome::Failed);
    let group = ["n04", "n05", "n06", "n07", "n08"].map(NodeName::from).to_vec();
    let group = NodeGroup {
        basis: ClaimBasis::Measured,
        ..NodeGroup::new(NodeGroupKind::Domain, "measured domain", "rack2", group)
    };
    run.claims.assertions.push(model::claims::GroupAssertion { source: 0, group });
    run
}

/// The map of a run that completed on hardware.
pub(super) fn map(run: &Run) -> VerifiedMap {
    let map = VerifiedMap::from_run(&MapInput {
        run,
        is_complete: true,
        is_simulated: false,
        machines: &[],
        recordings: &[],
        catalogue: builtin::builtin_catalogue(),
    });
    // A site whose partitions name no topology.
    VerifiedMap { partitions: Some(BTreeMap::new()), ..map }
}
