//! Judges one island: isolated GPUs, low rows and columns, low pairs, and whether the overall level
//! meets the platform's expectation.

use std::collections::{BTreeMap, BTreeSet};

use super::fabric_group::{FabricGroup, PairReading};
use super::finding::{gpu_locus, new_finding, node_locus};
use super::level::FabricLevel;
use super::peel::{
    EndBlame, LowPair, PairClassification, PairReadings, PartnerStatistic, PeelResult,
};
use super::run_levels::RunLevel;
use super::tool_disputes::ToolDispute;
use super::{isolation, level, output_participants, peel, run_levels, tool_disputes};
use crate::thresholds::Platform;
use model::finding_class::FindingClass;
use model::finding_rule::{FindingRule, RuleKind};
use model::id::NodeName;
use model::parse_output::Tool;
use model::stats;
use model::text::format_percent;
use model::unknown_subject::UnknownSubject;
use model::verdict::{Direction, Finding, Locus, LocusKind, Outcome};

/// More unexplained low cells than this share, and more than two, are not dips of healthy noise,
/// which affect about one reading in 200.
const MOST_DIPS: f64 = 0.01;

#[derive(Debug)]
pub(super) struct FabricJudgement {
    pub(super) findings: Vec<Finding>,
    pub(super) unknown: Vec<(UnknownSubject, String)>,
    pub(super) notes: Vec<String>,
    /// Directed readings, normalised by the level of each run.
    pub(super) directed: Vec<PairReading>,
    pub(super) peeled: PeelResult,
    /// Peeled readings of both directions concurrently.
    pub(super) both_ways: PeelResult,
    /// GPUs that took part in the comparison.
    pub(super) active: Vec<bool>,
    /// Pairs of nodes that do not reach each other, where neither is blamed.
    pub(super) unreached_nodes: Vec<(NodeName, NodeName)>,
    /// GPUs that reach each other but not the compared ones: each set becomes its own island.
    pub(super) parts: Vec<Vec<usize>>,
    /// This island's level relative to its reference.
    pub(super) level: Option<FabricLevel>,
}

/// Judges one island. `fleet` holds the levels of comparable islands.
pub(super) fn judge(island: &FabricGroup<'_>, fleet: &level::FleetLevels) -> FabricJudgement {
    let mut out = FabricJudgement {
        findings: Vec::new(),
        unknown: Vec::new(),
        notes: Vec::new(),
        directed: Vec::new(),
        peeled: PeelResult::default(),
        both_ways: PeelResult::default(),
        active: vec![true; island.gpus.len()],
        unreached_nodes: Vec::new(),
        parts: Vec::new(),
        level: None,
    };
    if island.directed.is_empty() && island.both_ways.is_empty() && island.cut_nodes.is_empty() {
        out.peeled.detectable = vec![None; island.gpus.len()];
        out.both_ways.detectable = vec![None; island.gpus.len()];
        return out;
    }
    isolation::judge(island, &mut out);
    if out.findings.iter().any(|f| f.class == FindingClass::MultiNodeNvlinkOff) {
        // Cells between nodes are not part of the fabric, and the rest is already covered.
        out.peeled.detectable = vec![None; island.gpus.len()];
        out.both_ways.detectable = vec![None; island.gpus.len()];
        return out;
    }
    let statistic =
        if island.is_uniform() { PartnerStatistic::Median } else { PartnerStatistic::Max };
    let (even, runs) = run_levels::remove_run_levels(island);
    report_disturbed_runs(island, &runs, &mut out);
    let together = |r: &&PairReading| {
        let (a, b) = (&island.gpus[r.src].node, &island.gpus[r.dst].node);
        !out.unreached_nodes.iter().any(|(x, y)| (a, b) == (x, y) || (b, a) == (x, y))
    };
    let both: Vec<PairReading> = add_mirrored(&island.both_ways);
    let both: Vec<PairReading> = both.iter().filter(together).copied().collect();
    let directed: Vec<PairReading> = even.iter().filter(together).copied().collect();
    out.directed = even;
    let nodes = island.gpus_by_node().len();
    let classes: Vec<u8> =
        island.reading_groups.iter().map(|key| u8::from(key.between_nodes)).collect();
    let active = out.active.clone();
    let ends = island.gpus.len();
    let (classes, active) = (classes.as_slice(), active.as_slice());
    let field = PairReadings { ends, nodes, classes, readings: &[], active, start_levels: None };
    let peeled = peel::peel_readings(&PairReadings { readings: &directed, ..field }, statistic);
    let both_ways = peel::peel_readings(&PairReadings { readings: &both, ..field }, statistic);
    (out.peeled, out.both_ways) = (peeled, both_ways);
    let disputes = tool_disputes::find(island, [&directed, &both], &field, statistic);
    out.both_ways.blames.retain(|b| !disputes.contains_key(&b.gpu));
    out.peeled.blames.retain(|b| !disputes.contains_key(&b.gpu));
    report_blames(island, &mut out);
    report_disputes(island, &disputes, &mut out);
    report_unclear(island, &mut out);
    let mut doubts = Vec::new();
    let remarks = (&mut out.notes, &mut doubts);
    out.level =
        level::judge(island, &out.peeled, &out.both_ways, fleet, &mut out.findings, remarks);
    for node in island.gpus_by_node().keys() {
        out.unknown.extend(doubts.iter().map(|why| (UnknownSubject::node(node), why.clone())));
    }
    report_low_pairs(island, &mut out);
    out
}

/// Mirrors cells that sum both directions: they count for either direction.
fn add_mirrored(readings: &[PairReading]) -> Vec<PairReading> {
    let turned = readings.iter().map(|r| PairReading { src: r.dst, dst: r.src, ..*r });
    readings.iter().copied().chain(turned).collect()
}

/// Adds the files that hold the island's readings.
pub(super) fn add_evidence(island: &FabricGroup<'_>, mut found: Finding) -> Finding {
    const MOST_FILES: usize = 6;
    // A node's own files describe it better than those of other nodes.
    let peer = found.locus.peer.as_deref().filter(|_| found.locus.kind == LocusKind::Pair);
    let peer = peer.map(|peer| NodeName::from(peer.rsplit_once(':').map_or(peer, |(n, _)| n)));
    let nodes: Vec<NodeName> = found.locus.node.clone().into_iter().chain(peer).collect();
    for (testcase, files) in &island.files {
        let own = files.iter().filter(|f| nodes.iter().all(|node| f.involves(node)));
        for file in own.take(MOST_FILES) {
            found = found.with_evidence(&file.file, Some(testcase), "pair matrix");
        }
    }
    found.evidence.truncate(MOST_FILES);
    found
}

/// Findings from blamed ends: GPUs, directions, whole trays.
fn report_blames(island: &FabricGroup<'_>, out: &mut FabricJudgement) {
    let mut taken: Vec<usize> = Vec::new();
    for (peeled, both_ways) in [(&out.peeled, false), (&out.both_ways, true)] {
        let mut gpus: Vec<usize> = peeled.blames.iter().map(|b| b.gpu).collect();
        gpus.sort_unstable();
        gpus.dedup();
        gpus.retain(|gpu| !taken.contains(gpu));
        for (node, mates) in island.gpus_by_node() {
            let here: Vec<usize> = mates.iter().copied().filter(|g| gpus.contains(g)).collect();
            let active = mates.iter().filter(|g| out.active[**g]).count();
            if island.node.is_none()
                && 1 < here.len()
                && here.len() == active
                && are_alike(peeled, &here)
            {
                let found = tray_finding(island, peeled, &here, both_ways);
                let locus = Locus { kind: LocusKind::Tray, ..node_locus(&island.domain, node) };
                let found = Finding {
                    id: new_finding(
                        found.outcome,
                        found.class.clone(),
                        locus.clone(),
                        FindingRule::default(),
                    )
                    .id,
                    locus,
                    ..found
                };
                let others = common_partners(island, (peeled, &out.directed), &here, both_ways);
                add_finding(node, found, &others, (&mut out.findings, &mut out.unknown));
            } else {
                for gpu in &here {
                    let found = gpu_finding(island, peeled, *gpu, both_ways);
                    if is_warm_up(island, peeled, *gpu, both_ways) {
                        let why = "; this tool does not warm up: rows measured first can be that \
                                   much lower; repeat the run or use another tool";
                        let why = format!("{}{why}", found.summary);
                        out.unknown.push((UnknownSubject::node(&island.gpus[*gpu].node), why));
                    } else {
                        let own = (peeled, out.directed.as_slice());
                        let others = common_partners(island, own, &[*gpu], both_ways);
                        add_finding(node, found, &others, (&mut out.findings, &mut out.unknown));
                    }
                }
            }
            taken.extend(here);
        }
    }
}

/// The other nodes that took part in every run in which these GPUs of a node are low.
fn common_partners(
    island: &FabricGroup<'_>,
    (peeled, directed): (&PeelResult, &[PairReading]),
    gpus: &[usize],
    both_ways: bool,
) -> BTreeSet<NodeName> {
    if island.node.is_some() {
        return BTreeSet::new();
    }
    let readings = match both_ways {
        true => (island.both_ways.as_slice(), island.both_ways_runs.as_slice()),
        false => (directed, island.directed_runs.as_slice()),
    };
    let node = &island.gpus[gpus[0]].node;
    // Half of the loss, the same threshold as in the second measurement.
    let half: BTreeMap<usize, f64> = gpus
        .iter()
        .map(|gpu| (*gpu, f64::midpoint(1.0, worst_blame(peeled, *gpu).ratio)))
        .collect();
    let level = |r: &PairReading| peeled.levels[r.group];
    let is_low = |r: &PairReading| {
        let ends = [r.src, r.dst];
        ends.iter().any(|gpu| half.get(gpu).is_some_and(|half| r.value <= half * level(r)))
    };
    let groups: BTreeSet<usize> =
        readings.0.iter().filter(|r| is_low(r)).map(|r| r.group).collect();
    let others = output_participants::participants_of_readings(island, node, readings, is_low);
    if !others.is_empty() {
        return others;
    }
    let mut others = output_participants::participants_of_level(island, readings, |r| {
        groups.contains(&r.group) && (1.0 - peel::MIN_EFFECT) * level(r) <= r.value
    });
    others.remove(node);
    others
}

/// Enters a finding of a node, checked against the other nodes that took part.
fn add_finding(
    node: &NodeName,
    found: Finding,
    others: &BTreeSet<NodeName>,
    (findings, unknown): (&mut Vec<Finding>, &mut Vec<(UnknownSubject, String)>),
) {
    let found = if others.is_empty() {
        found
    } else {
        output_participants::widen_to_participants(found, others)
    };
    if found.outcome == Outcome::Unknown {
        unknown.push((UnknownSubject::node(node), found.summary.clone()));
    }
    findings.push(found);
}

/// Whether rising clocks explain the blame: a low row of p2pBandwidthLatencyTest with a normal
/// column, and no second tool to compare with.
fn is_warm_up(island: &FabricGroup<'_>, peeled: &PeelResult, gpu: usize, both_ways: bool) -> bool {
    let one_way = peeled.is_blamed(gpu, Direction::Tx) != peeled.is_blamed(gpu, Direction::Rx);
    let only_p2p =
        island.reading_groups.iter().all(|g| g.tool == Some(Tool::P2pBandwidthLatencyTest));
    !both_ways
        && one_way
        && only_p2p
        && 1.0 - tool_disputes::WARM_UP < worst_blame(peeled, gpu).ratio
}

/// Reports a run that is lower than the island's other runs: the whole run was disturbed.
fn report_disturbed_runs(island: &FabricGroup<'_>, runs: &[RunLevel], out: &mut FabricJudgement) {
    for run in runs.iter().filter(|run| run.share < 1.0 - peel::MIN_EFFECT) {
        out.notes.push(format!(
            "{} reads {} lower than the other runs of the same test, for every GPU: the whole run \
             was disturbed, and its cells are compared with each other only",
            island.run_files[run.run],
            format_percent(1.0 - run.share)
        ));
    }
}

/// Reports GPUs that are low in one tool and normal in another.
fn report_disputes(
    island: &FabricGroup<'_>,
    disputes: &BTreeMap<usize, ToolDispute>,
    out: &mut FabricJudgement,
) {
    for (gpu, dispute) in disputes {
        let found = tool_disputes::new_dispute_finding(island, *gpu, dispute);
        let node = UnknownSubject::node(&island.gpus[*gpu].node);
        out.unknown.push((node, found.summary.clone()));
        out.findings.push(found);
    }
}

/// Reports GPUs that are low with every partner, if too few partners are good to show which side is
/// slow.
fn report_unclear(island: &FabricGroup<'_>, out: &mut FabricJudgement) {
    let ends = out.peeled.unclear.iter().chain(&out.both_ways.unclear);
    let gpus: BTreeSet<usize> = ends.map(|(gpu, _)| *gpu).collect();
    for gpu in gpus {
        let id = &island.gpus[gpu];
        let why = format!(
            "GPU {id} is low with each of its partners, and fewer than two of them are as \
             expected: either side may be slow; repeat the test with other partners"
        );
        out.unknown.push((UnknownSubject::node(&id.node), why));
    }
}

/// Whether these GPUs are low by the same ratio: one shared cause.
fn are_alike(peeled: &PeelResult, gpus: &[usize]) -> bool {
    let ratios: Vec<f64> = gpus.iter().map(|g| worst_blame(peeled, *g).ratio).collect();
    let (low, high) = ratios.iter().fold((f64::MAX, f64::MIN), |(l, h), r| (l.min(*r), h.max(*r)));
    high - low <= 0.015_f64.max(3.0 * peeled.sigma)
}

fn worst_blame(peeled: &PeelResult, gpu: usize) -> EndBlame {
    let blames = peeled.blames.iter().filter(|b| b.gpu == gpu);
    *blames.min_by(|a, b| a.ratio.total_cmp(&b.ratio)).expect("the GPU is blamed")
}

fn low_class(island: &FabricGroup<'_>) -> FindingClass {
    match island.platform {
        None => FindingClass::P2pLow,
        Some(platform) if platform.nvlink.is_none() => FindingClass::PcieP2pLow,
        Some(_) => FindingClass::NvlinkLow,
    }
}

fn tray_finding(
    island: &FabricGroup<'_>,
    peeled: &PeelResult,
    gpus: &[usize],
    both_ways: bool,
) -> Finding {
    let lowest = gpus
        .iter()
        .copied()
        .min_by(|a, b| worst_blame(peeled, *a).ratio.total_cmp(&worst_blame(peeled, *b).ratio));
    let lowest = lowest.expect("a tray has GPUs");
    let mut found = gpu_finding(island, peeled, lowest, both_ways);
    let node = &island.gpus[lowest].node;
    found.summary = format!(
        "all {} GPUs of {node} are low by the same share ({}): one cause in the tray, not in a GPU",
        gpus.len(),
        format_percent(1.0 - worst_blame(peeled, lowest).ratio)
    );
    found
}

/// The finding against one GPU, or one direction of it.
fn gpu_finding(
    island: &FabricGroup<'_>,
    peeled: &PeelResult,
    gpu: usize,
    both_ways: bool,
) -> Finding {
    let id = &island.gpus[gpu];
    let blame = worst_blame(peeled, gpu);
    let tx = peeled.is_blamed(gpu, Direction::Tx);
    let rx = peeled.is_blamed(gpu, Direction::Rx);
    let one_way = (tx != rx && !both_ways).then_some(blame.direction);
    let mut locus = gpu_locus(&island.domain, id);
    if one_way.is_some() {
        locus.kind = LocusKind::Direction;
        locus.direction = one_way;
    }
    let readings = if both_ways { &island.both_ways } else { &island.directed };
    let (group, measured) = blamed_level(readings, peeled, &blame);
    let level = peeled.levels[group];
    let which = match one_way {
        Some(Direction::Tx) => "its transmit rate",
        Some(_) => "its receive rate",
        None => "its row and column",
    };
    let rule = RuleKind::Endpoint.with_terms(format!(
        "the median over {} partners that are not blamed lies more than max({}, 5 robust standard \
         errors) below the level of its own {}",
        blame.partners,
        format_percent(peel::MIN_EFFECT),
        if island.node.is_some() { "node" } else { "domain" },
    ));
    let quantised = missing_links_of_group(island, blame.ratio)
        .map_or(String::new(), |links| format!(", consistent with {links} lost"));
    let summary = format!(
        "GPU {id}: {which} at {measured:.1} of {level:.1} GB/s, {} low{quantised}; its partners \
         read normally with each other",
        format_percent(1.0 - measured / level)
    );
    let mut found = new_finding(Outcome::Degraded, low_class(island), locus, &rule)
        .with_peer_level(measured, level, expected_level(island, group))
        .with_summary(summary);
    found.detectable = Some(super::finding::round(blame.detectable));
    for (at, key) in island.reading_groups.iter().enumerate() {
        let of = |direction| stats::median(&mut end_readings(readings, gpu, direction, at, peeled));
        let (Some(sent), Some(received)) = (of(Direction::Tx), of(Direction::Rx)) else { continue };
        let file = island.file_of(at, gpu).unwrap_or("");
        let place = if key.between_nodes { "to other nodes" } else { "inside the node" };
        let detail = format!(
            "{place}: sends {sent:.2}, receives {received:.2} GB/s (medians), level {:.2}",
            peeled.levels[at]
        );
        found = found.with_evidence(file, Some(&key.testcase), detail);
    }
    found
}

/// The platform's expectation for this group, if it has one.
fn expected_level(island: &FabricGroup<'_>, group: usize) -> Option<f64> {
    let stated = island.reading_groups.get(group).and_then(|_| island.expected_level(group));
    stated.map(|(value, _)| value)
}

/// Readings of one end in one group, without blamed partners.
fn end_readings(
    readings: &[PairReading],
    gpu: usize,
    direction: Direction,
    group: usize,
    peeled: &PeelResult,
) -> Vec<f64> {
    let here = readings.iter().filter(|r| r.group == group);
    let mine = here.filter(|r| match direction {
        Direction::Rx => r.dst == gpu && !peeled.is_blamed(r.src, Direction::Tx),
        _ => r.src == gpu && !peeled.is_blamed(r.dst, Direction::Rx),
    });
    mine.map(|r| r.value).collect()
}

/// The group that represents the blame of a GPU, and its median there: among groups as low as the
/// blame (within half a line), the one with the most readings.
fn blamed_level(readings: &[PairReading], peeled: &PeelResult, blame: &EndBlame) -> (usize, f64) {
    let median_of = |group: usize| {
        let mut values = end_readings(readings, blame.gpu, blame.direction, group, peeled);
        let median = stats::median(&mut values).filter(|_| peeled.levels[group].is_finite())?;
        let distance = (median / peeled.levels[group] - blame.ratio).abs();
        Some((group, values.len(), median, distance))
    };
    let groups: Vec<_> = (0..peeled.levels.len()).filter_map(median_of).collect();
    let near = groups.iter().filter(|(.., distance)| *distance <= peel::MIN_EFFECT / 2.0);
    let best = near.max_by_key(|(group, count, ..)| (*count, std::cmp::Reverse(*group)));
    let nearest = || groups.iter().min_by(|a, b| a.3.total_cmp(&b.3));
    let (group, _, median, _) = best.or_else(nearest).expect("a blamed end has readings");
    (*group, *median)
}

/// "1 of 18 links" if the ratio fits within 1 %.
pub(super) fn missing_links_of_group(island: &FabricGroup<'_>, ratio: f64) -> Option<String> {
    missing_links(island.platform?, ratio)
}

/// The same for a platform.
pub(super) fn missing_links(platform: &Platform, ratio: f64) -> Option<String> {
    const FITS: f64 = 0.01;
    let links = platform.nvlink.as_ref()?.links;
    let lost = (1..=links / 2)
        .find(|m| (ratio - f64::from(links - m) / f64::from(links)).abs() <= FITS)?;
    Some(format!("{lost} of {links} links"))
}

/// Reports low pairs where neither end is blamed, and ambiguous cases.
fn report_low_pairs(island: &FabricGroup<'_>, out: &mut FabricJudgement) {
    let cells = out.active.iter().filter(|a| **a).count();
    #[expect(clippy::cast_precision_loss, reason = "a count of GPUs")]
    let pairs = (cells * cells.saturating_sub(1) / 2) as f64;
    let (src_dst, dips) = (out.peeled.pairs.clone(), out.peeled.dips.len());
    for pair in &src_dst {
        out.findings.push(pair_finding(island, &out.peeled, pair));
    }
    // The same pair also appears in the bidirectional tests; report it once.
    for pair in &out.both_ways.pairs.clone() {
        let known = src_dst.iter().any(|p| {
            (p.src, p.dst) == (pair.src, pair.dst) || (p.dst, p.src) == (pair.src, pair.dst)
        });
        // Here a reading counts once for either direction.
        let classification =
            peel::classify_pair(pair.readings / 2, pair.span, pair.ratio, out.both_ways.sigma);
        if !known && 2 < pair.readings && classification == PairClassification::Fault {
            out.findings.push(pair_finding(island, &out.both_ways, pair));
        }
    }
    for pair in &out.peeled.doubtful {
        out.findings.push(doubtful_pair_finding(island, &out.peeled, pair));
    }
    if dips == 0 {
        return;
    }
    #[expect(clippy::cast_precision_loss, reason = "a count of cells")]
    let too_many = 2.0 + MOST_DIPS * pairs < dips as f64;
    let list: Vec<String> = out
        .peeled
        .dips
        .iter()
        .take(3)
        .map(|d| {
            format!(
                "{} to {} ({} low)",
                island.gpus[d.src],
                island.gpus[d.dst],
                format_percent(1.0 - d.ratio)
            )
        })
        .collect();
    let list = list.join(", ");
    let summary =
        format!("{dips} pairs of {} read low once and were not read again: {list}", island.domain);
    if too_many {
        let why = format!(
            "{summary}; that is more than healthy noise, and no single part explains it: take \
             three readings of every pair"
        );
        out.unknown.push((UnknownSubject::domain(&island.domain), why));
    } else {
        out.notes
            .push(format!("{summary}; readings dip by chance about once in 200; repeat the sweep"));
    }
}

/// A pair that is either slow or had dips: too few readings to decide.
fn doubtful_pair_finding(island: &FabricGroup<'_>, peeled: &PeelResult, pair: &LowPair) -> Finding {
    let found = pair_finding(island, peeled, pair);
    let (src, dst) = (&island.gpus[pair.src], &island.gpus[pair.dst]);
    let count = pair.readings;
    let summary = format!(
        "GPUs {src} and {dst} read {} low with each other in all {count} readings and normally \
         with all other GPUs: a slow pair or dips, {count} readings cannot decide; read this pair \
         again",
        format_percent(1.0 - pair.ratio)
    );
    Finding { outcome: Outcome::Unknown, rule: peel::DOUBTFUL_PAIR_RULE, summary, ..found }
}

fn pair_finding(island: &FabricGroup<'_>, peeled: &PeelResult, pair: &LowPair) -> Finding {
    let (src, dst) = (&island.gpus[pair.src], &island.gpus[pair.dst]);
    let mut locus = gpu_locus(&island.domain, src);
    locus.kind = LocusKind::Pair;
    locus.peer = Some(dst.to_string());
    locus.direction = (!pair.both_ways).then_some(Direction::Tx);
    let rule = RuleKind::Pair.with_terms(format!(
        "all {} readings lie below the level by more than the noise of all cells allows, and agree \
         or are too many or too deep for dips, while both ends read normally with all other GPUs",
        pair.readings
    ));
    let between = |r: &&PairReading| (r.src, r.dst) == (pair.src, pair.dst);
    let group =
        island.directed.iter().chain(&island.both_ways).find(between).map_or(0, |r| r.group);
    let level = peeled.levels.get(group).copied().filter(|l| l.is_finite()).unwrap_or(0.0);
    let ways = if pair.both_ways { "with each other" } else { "in this direction" };
    let summary = format!(
        "GPUs {src} and {dst} are {} low {ways} and normal with all other GPUs",
        format_percent(1.0 - pair.ratio)
    );
    let found = new_finding(Outcome::Degraded, low_class(island), locus, &rule)
        .with_peer_level(level * pair.ratio, level, expected_level(island, group))
        .with_summary(summary);
    add_evidence(island, found)
}
