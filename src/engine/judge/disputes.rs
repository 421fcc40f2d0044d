//! Tools that disagree about one GPU: one reads it low, another reads it as expected.
//!
//! Neither number of readings nor order decides between two tools. The GPU is unknown
//! until both are run again.

use std::collections::BTreeMap;
use std::collections::BTreeSet;

use super::fabric;
use super::finding::finding;
use super::finding::of_gpu;
use super::island::Island;
use super::island::PairReading;
use super::peel;
use super::peel::Field;
use super::peel::Peeled;
use super::peel::Shown;
use super::peel::Statistic;
use model::finding_class::FindingClass;
use model::parsed::Tool;
use model::rule::RuleKind;
use model::text::percent;
use model::verdict::Direction;
use model::verdict::Finding;
use model::verdict::Outcome;

/// p2pBandwidthLatencyTest does not warm up: what a GPU of a healthy machine sends can
/// read 5 % low in it (363 to 394 GB/s on H100), and noise comes on top.
pub(super) const WARM_UP: f64 = 0.06;

/// So many standard errors above the line an end is as expected.
const CERTAIN: f64 = 3.0;

/// One end as one tool reads it low, and as another does not.
#[derive(Clone, Copy, Debug)]
pub(super) struct Dispute {
    direction: Direction,
    low: (Tool, f64),
    fine: (Tool, f64),
}

/// The GPUs about which tools disagree; nothing where one tool alone was run.
/// `field` is the field of no readings.
pub(super) fn find(
    island: &Island<'_>,
    kinds: [&[PairReading]; 2],
    field: &Field<'_>,
    statistic: Statistic,
) -> BTreeMap<usize, Dispute> {
    let mut disputes = BTreeMap::new();
    for readings in kinds {
        let tool_of = |r: &PairReading| island.groups[r.group].tool;
        let tools: BTreeSet<Tool> = readings.iter().filter_map(tool_of).collect();
        if tools.len() < 2 {
            continue;
        }
        let of_tool = |tool: Tool| -> Peeled {
            let own: Vec<PairReading> =
                readings.iter().filter(|r| tool_of(r) == Some(tool)).copied().collect();
            peel::peel(&Field { readings: &own, ..*field }, statistic)
        };
        let peeled: Vec<(Tool, Peeled)> = tools.iter().map(|t| (*t, of_tool(*t))).collect();
        for (low, its) in &peeled {
            for blame in &its.blames {
                let fine = peeled.iter().filter(|(tool, _)| tool != low).find_map(|(tool, it)| {
                    let shown = it.shown(blame.gpu, blame.direction)?;
                    is_as_expected(shown, blame.ratio).then_some((*tool, shown.ratio))
                });
                let Some(fine) = fine else { continue };
                let warm_up = *low == Tool::P2pBandwidthLatencyTest
                    && its.blames(blame.gpu, Direction::Tx) != its.blames(blame.gpu, Direction::Rx)
                    && 1.0 - WARM_UP < blame.ratio;
                if !warm_up {
                    let dispute =
                        Dispute { direction: blame.direction, low: (*low, blame.ratio), fine };
                    disputes.entry(blame.gpu).or_insert(dispute);
                }
            }
        }
    }
    disputes
}

fn is_as_expected(shown: Shown, low: f64) -> bool {
    let least = shown.ratio - CERTAIN * shown.error;
    1.0 - peel::LINE <= least && low + peel::LINE < least
}

/// The finding about a GPU, of outcome unknown.
pub(super) fn finding_of(island: &Island<'_>, gpu: usize, dispute: &Dispute) -> Finding {
    let id = &island.gpus[gpu];
    let way = match dispute.direction {
        Direction::Rx => "receives",
        _ => "sends",
    };
    let said = format!(
        "GPU {id}: {} reads what it {way} at {} of the level of the others, {} at {}: two tools disagree, and one \
         of them is wrong or the GPU changed between them; run both again",
        dispute.low.0.as_str(),
        percent(dispute.low.1),
        dispute.fine.0.as_str(),
        percent(dispute.fine.1),
    );
    let rule = RuleKind::SecondTool
        .with("a GPU is low only where no other tool reads the same direction as expected");
    let found = finding(
        Outcome::Unknown,
        FindingClass::MatrixContradicted,
        of_gpu(&island.domain, id),
        rule,
    )
    .saying(said);
    fabric::evidence(island, found)
}
