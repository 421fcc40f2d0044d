//! How many nodes each block leaves schedulable today: the document of `fabricgate capacity`.
//!
//! Each outlook holds numbers, and sentences at its end that explain them. Equal blocks are
//! calculated once.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    BlockLevel, JobsOfShape, OutageSharesError, Outages, SegmentMix, break_even, segment_rank,
};
use model::id::NodeName;

/// The format of the document.
pub const CAPACITY_FORMAT: &str = "fabricgate.capacity/1";

/// Drains calculated ahead.
const DRAINS_AHEAD: usize = 4;

/// The assumption about how often nodes are out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "how", rename_all = "kebab-case")]
pub enum OutageAssumption {
    /// Each node independently, with the same probability.
    Independent {
        /// The share of nodes that are out at a time.
        unavailable: f64,
    },
    /// As a site has observed.
    Observed {
        /// The share of time, by number of nodes of a block that were out at the same time.
        shares: BTreeMap<u32, f64>,
    },
}

impl OutageAssumption {
    /// The outages of a block of this many nodes.
    fn outages(&self, nodes: u32) -> Result<Outages, OutageSharesError> {
        match self {
            Self::Independent { unavailable } => Outages::from_unavailability(nodes, *unavailable)
                .ok_or(OutageSharesError::Share { out: 0, share: *unavailable }),
            Self::Observed { shares } => Outages::from_observation(nodes, shares),
        }
    }
}

/// A block of nodes in its present state.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CapacityBlock {
    /// Its name, if it is a block of a cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Nodes in all.
    pub nodes: u32,
    /// Nodes that are out now.
    pub out: u32,
    /// Their names, if known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub out_nodes: Vec<NodeName>,
    /// Nodes whose state no source reports. They count as up.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unknown_nodes: Vec<NodeName>,
}

impl CapacityBlock {
    /// A block without names.
    pub fn new(nodes: u32, out: u32) -> Self {
        let (out_nodes, unknown_nodes) = (Vec::new(), Vec::new());
        Self { name: None, nodes, out, out_nodes, unknown_nodes }
    }

    /// Nodes that are not out now.
    pub fn up(&self) -> u32 {
        self.nodes.saturating_sub(self.out)
    }
}

/// The input of a survey.
#[derive(Clone, Debug, PartialEq)]
pub struct CapacityQuestion {
    /// The blocks of the survey.
    pub blocks: Vec<CapacityBlock>,
    /// The segment sizes to evaluate.
    pub segments: Vec<u32>,
    /// The smallest segment that large jobs can use; half a block by default.
    pub at_least: Option<u32>,
    /// The segments that jobs request, if known.
    pub mix: Option<SegmentMix>,
    /// Assumptions about how often nodes are out; each is evaluated.
    pub assumptions: Vec<OutageAssumption>,
    /// The share of its rate that a suspect has lost.
    pub degraded: f64,
    /// The share of a step that waits for the suspect.
    pub exposed: f64,
}

/// The result of a survey.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CapacitySurvey {
    /// The format of this document.
    pub format: String,
    /// Assumptions about how often nodes are out; each block has an outlook for each.
    pub assumptions: Vec<OutageAssumption>,
    /// Segments that jobs request, and their weights, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mix: Option<SegmentMix>,
    /// The share of its rate that a suspect is assumed to have lost.
    pub degraded: f64,
    /// The share of a step that is assumed to wait for the suspect.
    pub exposed: f64,
    /// The blocks with their outlooks.
    pub blocks: Vec<BlockSurvey>,
    /// The levels of block sizes, base blocks first, if blocks have levels or a job's shape was
    /// given.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub levels: Vec<BlockLevel>,
    /// Jobs of the shapes that were given.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub jobs: Vec<JobsOfShape>,
    /// Remarks on the input.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// A block and its outlooks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct BlockSurvey {
    /// The block itself.
    #[serde(flatten)]
    pub block: CapacityBlock,
    /// The outlook under each assumption.
    pub outlooks: Vec<BlockOutlook>,
}

/// The outlook of a block under one assumption.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct BlockOutlook {
    /// The share of nodes that are out at a time, in addition to those out now.
    pub unavailable: f64,
    /// The probability that no other node is out.
    pub all_up: f64,
    /// The outlook of each segment.
    pub segments: Vec<SegmentOutlook>,
    /// The outlook of the mix, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mixed: Option<MixOutlook>,
    /// Segments that are large enough, most nodes left first.
    pub ranking: Vec<RankedSegment>,
    /// Unavailabilities at which the first two segments of the ranking change places.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub crossings: Vec<f64>,
    /// Advice, in sentences.
    pub advice: Vec<String>,
}

/// The outlook of one segment size.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SegmentOutlook {
    /// Nodes of the segment.
    pub segment: u32,
    /// Nodes in whole segments if every node that is not out now is up.
    pub now: u32,
    /// Expected nodes in whole segments.
    pub usable: f64,
    /// The probability that at least one segment fits.
    pub one_fits: f64,
    /// The cost of the next drains, one after another, in expected nodes.
    pub drains: Vec<f64>,
}

/// The outlook of the mix.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MixOutlook {
    /// Expected nodes in whole segments, over the mix.
    pub usable: f64,
    /// The cost of the next drains, one after another, in expected nodes.
    pub drains: Vec<f64>,
    /// The gang size in nodes from which the suspect costs a gang more than the next drain
    /// costs; absent if no node is left to drain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub break_even: Option<f64>,
}

/// A segment and the nodes that it leaves.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RankedSegment {
    /// Nodes of the segment.
    pub segment: u32,
    /// Expected nodes in whole segments.
    pub usable: f64,
}

/// Useful segments for blocks of up to this many nodes: powers of two, half a block, the whole
/// block, and the segments of the mix.
pub fn usual_segments(nodes: u32, mix: Option<&SegmentMix>) -> Vec<u32> {
    let powers = std::iter::successors(Some(1_u32), |power| power.checked_mul(2));
    let mut segments: Vec<u32> = powers.take_while(|power| *power <= nodes).collect();
    segments.extend([nodes / 2, nodes].iter().filter(|segment| 0 < **segment));
    segments.extend(mix.iter().flat_map(|mix| mix.0.keys()));
    segments.sort_unstable();
    segments.dedup();
    segments
}

/// Calculates the survey. Fails with the block's name if an observation does not match a block.
pub fn survey_capacity(
    question: &CapacityQuestion,
) -> Result<CapacitySurvey, (CapacityBlock, OutageSharesError)> {
    let mut known: BTreeMap<(u32, u32), Vec<BlockOutlook>> = BTreeMap::new();
    let mut blocks = Vec::with_capacity(question.blocks.len());
    for block in &question.blocks {
        let like = (block.nodes, block.out);
        let outlooks = match known.get(&like) {
            Some(outlooks) => outlooks.clone(),
            None => {
                let outlooks: Result<Vec<BlockOutlook>, OutageSharesError> = question
                    .assumptions
                    .iter()
                    .map(|it| build_outlook(block, it, question))
                    .collect();
                let outlooks = outlooks.map_err(|error| (block.clone(), error))?;
                known.insert(like, outlooks.clone());
                outlooks
            }
        };
        blocks.push(BlockSurvey { block: block.clone(), outlooks });
    }
    Ok(CapacitySurvey {
        format: CAPACITY_FORMAT.to_owned(),
        assumptions: question.assumptions.clone(),
        mix: question.mix.clone(),
        degraded: question.degraded,
        exposed: question.exposed,
        blocks,
        levels: Vec::new(),
        jobs: Vec::new(),
        notes: Vec::new(),
    })
}

fn build_outlook(
    block: &CapacityBlock,
    assumption: &OutageAssumption,
    question: &CapacityQuestion,
) -> Result<BlockOutlook, OutageSharesError> {
    let whole = assumption.outages(block.nodes)?;
    let mut steps = vec![whole.without(block.out)];
    while steps.len() <= DRAINS_AHEAD.min(block.up() as usize) {
        steps.push(steps[steps.len() - 1].without_one());
    }
    let (today, drained) = (&steps[0], &steps[..steps.len() - 1]);
    let segments = question.segments.iter().map(|&segment| SegmentOutlook {
        segment,
        now: block.up().checked_div(segment).unwrap_or(0) * segment,
        usable: today.usable(segment),
        one_fits: today.at_least_up(segment),
        drains: drained.iter().map(|step| step.price(segment)).collect(),
    });
    let mixed = question.mix.as_ref().map(|mix| {
        let drains: Vec<f64> = drained.iter().map(|step| step.mixed_price(mix)).collect();
        let next = drains.first();
        MixOutlook {
            usable: mix.mean(|segment| today.usable(segment)),
            break_even: next.map(|next| break_even(*next, question.degraded, question.exposed)),
            drains,
        }
    });
    let at_least = question.at_least.unwrap_or(block.nodes.div_ceil(2));
    let ranking = segment_rank::rank_segments(today, &question.segments, at_least);
    let crossings = match (assumption, ranking.best(), ranking.runner_up()) {
        (OutageAssumption::Independent { .. }, Some((best, _)), Some((second, _))) => {
            segment_rank::find_crossings(block.nodes, block.out, best, second)
        }
        _ => Vec::new(),
    };
    let ranked = |&(segment, usable): &(u32, f64)| RankedSegment { segment, usable };
    let mut outlook = BlockOutlook {
        unavailable: whole.unavailable(),
        all_up: today.at_least_up(today.nodes()),
        segments: segments.collect(),
        mixed,
        ranking: ranking.order.iter().map(ranked).collect(),
        crossings,
        advice: Vec::new(),
    };
    outlook.advice = [advise_segment(&outlook, at_least), advise_drain(&outlook, block, question)]
        .into_iter()
        .flatten()
        .collect();
    Ok(outlook)
}

fn advise_segment(outlook: &BlockOutlook, at_least: u32) -> Option<String> {
    let best = outlook.ranking.first()?;
    let leaves = format!("{} leaves the most, {:.2} nodes", best.segment, best.usable);
    let Some(second) = outlook.ranking.get(1) else {
        return Some(format!(
            "{} is the only given segment with at least {at_least} nodes that fits: it leaves \
             {:.2} nodes.",
            best.segment, best.usable
        ));
    };
    let next = format!("{} leaves {:.2}", second.segment, second.usable);
    let places: Vec<String> = outlook.crossings.iter().map(|at| format_percent(*at)).collect();
    let places = match places.as_slice() {
        [] => String::new(),
        places => format!("; they change places at an unavailability of {}", places.join(" and ")),
    };
    Some(format!("Of segments of {at_least} nodes or more {leaves}, and {next}{places}."))
}

fn advise_drain(
    outlook: &BlockOutlook,
    block: &CapacityBlock,
    question: &CapacityQuestion,
) -> Option<String> {
    /// Lower prices are displayed as nothing.
    const NOTHING: f64 = 0.005;
    if block.up() == 0 {
        return Some("All of its nodes are out: there is nothing to drain.".to_owned());
    }
    let mixed = outlook.mixed.as_ref()?;
    let (price, gang) = (*mixed.drains.first()?, mixed.break_even?);
    if price < NOTHING {
        return Some("The next drain costs nothing in this mix.".to_owned());
    }
    let suspect = format!(
        "a node that has lost {} of its rate, if {} of a step waits for it,",
        format_percent(question.degraded),
        format_percent(question.exposed)
    );
    let worth = format!(
        "The next drain costs {price:.2} nodes in this mix; {suspect} costs a gang of {:.0} nodes \
         or more that much.",
        gang.ceil().max(1.0)
    );
    let swap = match block.out {
        0 => "In smaller gangs, leave it in service and mark it.".to_owned(),
        1 => "In smaller gangs, swap: release the node that is out, if the gate drained it and it \
             is the milder one."
            .to_owned(),
        out => format!(
            "In smaller gangs, swap: drain the worse node, and release the mildest of the {out} \
             that are out, if the gate drained it."
        ),
    };
    Some(format!("{worth} {swap}"))
}

/// A share as a percentage with as many decimals as are useful. A share close to 0 or 1 is not
/// rounded to 0 % or 100 %.
pub fn format_percent(share: f64) -> String {
    let text = format!("{:.2}", share * 100.0);
    match text.as_str() {
        "100.00" if share < 1.0 - 1e-9 => "> 99.99 %".to_owned(),
        "0.00" if 0.0 < share => "< 0.01 %".to_owned(),
        text => format!("{} %", text.trim_end_matches('0').trim_end_matches('.')),
    }
}
