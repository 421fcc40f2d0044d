//! Tools that disagree about one GPU: one reads it low, another reads it as expected.
//!
//! Neither the number of readings nor their order decides between two tools. The GPU is unknown
//! until both are run again.

use std::collections::{BTreeMap, BTreeSet};

use super::fabric_group::{FabricGroup, PairReading};
use super::finding::{gpu_locus, new_finding};
use super::peel::{EndLevel, PairReadings, PartnerStatistic, PeelResult};
use super::{fabric, peel};
use model::finding_class::FindingClass;
use model::finding_rule::RuleKind;
use model::parse_output::Tool;
use model::text::format_percent;
use model::verdict::{Direction, Finding, Outcome};

/// p2pBandwidthLatencyTest does not warm up: a healthy GPU's transmit rate can read 5 % low in it
/// (363 to 394 GB/s on H100), in addition to noise.
pub(super) const WARM_UP: f64 = 0.06;

/// An end is as expected if it lies this many standard errors above the threshold.
const CERTAIN: f64 = 3.0;

/// One end that one tool reads as low and another as normal.
#[derive(Clone, Copy, Debug)]
pub(super) struct ToolDispute {
    direction: Direction,
    low: (Tool, f64),
    fine: (Tool, f64),
}

/// The GPUs about which tools disagree; empty if only one tool ran. `field` is the set of readings
/// without its readings.
pub(super) fn find(
    island: &FabricGroup<'_>,
    kinds: [&[PairReading]; 2],
    field: &PairReadings<'_>,
    statistic: PartnerStatistic,
) -> BTreeMap<usize, ToolDispute> {
    let mut disputes = BTreeMap::new();
    for readings in kinds {
        let tool_of = |r: &PairReading| island.reading_groups[r.group].tool;
        let tools: BTreeSet<Tool> = readings.iter().filter_map(tool_of).collect();
        if tools.len() < 2 {
            continue;
        }
        let of_tool = |tool: Tool| -> PeelResult {
            let own: Vec<PairReading> =
                readings.iter().filter(|r| tool_of(r) == Some(tool)).copied().collect();
            peel::peel_readings(&PairReadings { readings: &own, ..*field }, statistic)
        };
        let peeled: Vec<(Tool, PeelResult)> = tools.iter().map(|t| (*t, of_tool(*t))).collect();
        for (low, its) in &peeled {
            for blame in &its.blames {
                let fine = peeled.iter().filter(|(tool, _)| tool != low).find_map(|(tool, it)| {
                    let level = it.end_level(blame.gpu, blame.direction)?;
                    is_as_expected(level, blame.ratio).then_some((*tool, level.ratio))
                });
                let Some(fine) = fine else { continue };
                let warm_up = *low == Tool::P2pBandwidthLatencyTest
                    && its.is_blamed(blame.gpu, Direction::Tx)
                        != its.is_blamed(blame.gpu, Direction::Rx)
                    && 1.0 - WARM_UP < blame.ratio;
                if !warm_up {
                    let dispute =
                        ToolDispute { direction: blame.direction, low: (*low, blame.ratio), fine };
                    disputes.entry(blame.gpu).or_insert(dispute);
                }
            }
        }
    }
    disputes
}

fn is_as_expected(level: EndLevel, low: f64) -> bool {
    let least = level.ratio - CERTAIN * level.error;
    1.0 - peel::MIN_EFFECT <= least && low + peel::MIN_EFFECT < least
}

/// The finding about a GPU, of outcome unknown.
pub(super) fn new_dispute_finding(
    island: &FabricGroup<'_>,
    gpu: usize,
    dispute: &ToolDispute,
) -> Finding {
    let id = &island.gpus[gpu];
    let way = match dispute.direction {
        Direction::Rx => "receive",
        _ => "transmit",
    };
    let summary = format!(
        "GPU {id}: {} reads its {way} rate at {} of the level of the others, {} at {}: two tools \
         disagree, and one of them is wrong or the GPU changed between them; run both again",
        dispute.low.0.as_str(),
        format_percent(dispute.low.1),
        dispute.fine.0.as_str(),
        format_percent(dispute.fine.1),
    );
    let rule = RuleKind::SecondTool
        .with_terms("a GPU is low only where no other tool reads the same direction as expected");
    let found = new_finding(
        Outcome::Unknown,
        FindingClass::MatrixContradicted,
        gpu_locus(&island.domain, id),
        rule,
    )
    .with_summary(summary);
    fabric::add_evidence(island, found)
}
