//! The capacity of the levels above single blocks: jobs of each level's size, jobs of requested
//! shapes, and which drains cost one such job.
//!
//! Every node that is not out counts as free: running jobs are not known.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    BlockSizes, CapacityBlock, CapacitySurvey, JobFit, JobShape, OutageAssumption, Outages,
};

/// One level of block sizes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct BlockLevel {
    /// Nodes of a block of this level, as given by the block sizes.
    pub size: u32,
    /// Jobs of that many nodes that fit at the same time.
    pub jobs: u32,
    /// Jobs that would fit if no node were out.
    pub jobs_none_out: u32,
    /// The blocks of this level, in the order of the topology.
    pub aggregates: Vec<AggregatedBlock>,
}

/// A block of one level: base blocks that are adjacent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AggregatedBlock {
    /// Names of its base blocks, if they have names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub blocks: Vec<String>,
    /// Nodes in all.
    pub nodes: u32,
    /// Nodes that are out now.
    pub out: u32,
    /// Jobs of the level's size that fit.
    pub jobs: u32,
    /// Nodes beyond those jobs: this many drains cost no job, the next one costs one.
    pub spare: u32,
    /// Expected nodes that such jobs can use if nodes fail independently.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usable: Option<f64>,
    /// The cost of the next drain, in expected nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_drain: Option<f64>,
}

impl AggregatedBlock {
    /// Whether the next drain costs a job of the level's size.
    pub fn is_costly(&self) -> bool {
        self.jobs != 0 && self.spare == 0
    }
}

/// Jobs of one shape.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct JobsOfShape {
    /// What such a job requests.
    #[serde(flatten)]
    pub shape: JobShape,
    /// Such jobs that fit at the same time.
    pub jobs: JobFit,
    /// Jobs that would fit if no node were out.
    pub jobs_none_out: JobFit,
    /// Base blocks in which the next drain costs one job, as indices into `blocks`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub costly: Vec<usize>,
}

impl CapacitySurvey {
    /// Adds the capacity of these levels and the number of jobs of these shapes that fit into
    /// the blocks, which are in the order of the topology.
    pub fn add_levels(&mut self, levels: &BlockSizes, shapes: &[JobShape]) {
        let blocks: Vec<&CapacityBlock> = self.blocks.iter().map(|it| &it.block).collect();
        let unavailable = self.assumptions.iter().find_map(|it| match it {
            OutageAssumption::Independent { unavailable } => Some(*unavailable),
            OutageAssumption::Observed { .. } => None,
        });
        let up: Vec<u32> = blocks.iter().map(|block| block.up()).collect();
        let all: Vec<u32> = blocks.iter().map(|block| block.nodes).collect();
        let jobs = shapes.iter().map(|shape| survey_shape(levels, *shape, &up, &all)).collect();
        self.levels = survey_levels(levels, &blocks, unavailable);
        self.jobs = jobs;
    }
}

fn survey_levels(
    levels: &BlockSizes,
    blocks: &[&CapacityBlock],
    unavailable: Option<f64>,
) -> Vec<BlockLevel> {
    let mut known: BTreeMap<(u32, u32), (f64, f64)> = BTreeMap::new();
    let mut of = |up: u32, size: u32| {
        let outages = Outages::from_unavailability(up, unavailable?)?;
        let reckon = || (outages.usable(size), outages.price(size));
        Some(*known.entry((up, size)).or_insert_with(reckon))
    };
    let mut found = Vec::new();
    for (size, width) in levels.sizes() {
        let mut level = BlockLevel { size, jobs: 0, jobs_none_out: 0, aggregates: Vec::new() };
        for group in blocks.chunks(width) {
            let nodes: u32 = group.iter().map(|block| block.nodes).sum();
            let up: u32 = group.iter().map(|block| block.up()).sum();
            let expected = of(up, size);
            level.jobs += up / size;
            level.jobs_none_out += nodes / size;
            level.aggregates.push(AggregatedBlock {
                blocks: group.iter().filter_map(|block| block.name.clone()).collect(),
                nodes,
                out: nodes - up,
                jobs: up / size,
                spare: up % size,
                usable: expected.map(|(usable, _)| usable),
                next_drain: expected.map(|(_, price)| price),
            });
        }
        found.push(level);
        // A level larger than the whole topology adds nothing.
        if blocks.len() <= width {
            break;
        }
    }
    found
}

fn survey_shape(levels: &BlockSizes, shape: JobShape, up: &[u32], all: &[u32]) -> JobsOfShape {
    let jobs = levels.count_jobs(up, shape);
    let costs = |at: &usize| {
        let mut fewer = up.to_vec();
        fewer[*at] = fewer[*at].saturating_sub(1);
        levels.count_jobs(&fewer, shape).at_least < jobs.at_least
    };
    let costly = (0..up.len()).filter(|at| 0 < jobs.at_least && costs(at)).collect();
    JobsOfShape { shape, jobs, jobs_none_out: levels.count_jobs(all, shape), costly }
}

#[cfg(test)]
mod tests {
    use super::super::{CapacityQuestion, SegmentPlacement, survey_capacity};
    use super::*;

    /// Blocks of 18 with this many nodes out, on levels of 18, 36 and 72.
    fn surveyed(out: &[u32], shapes: &[JobShape]) -> CapacitySurvey {
        let block = |(at, out): (usize, &u32)| CapacityBlock {
            name: Some(format!("b{at}")),
            ..CapacityBlock::new(18, *out)
        };
        let question = CapacityQuestion {
            blocks: out.iter().enumerate().map(block).collect(),
            segments: vec![18],
            at_least: None,
            mix: None,
            assumptions: vec![OutageAssumption::Independent { unavailable: 0.01 }],
            degraded: 1.0 / 18.0,
            exposed: 0.3,
        };
        let mut survey = survey_capacity(&question).expect("a survey");
        survey.add_levels(&BlockSizes::from_sizes(&[18, 36, 72]).expect("sizes"), shapes);
        survey
    }

    #[test]
    fn a_drain_that_costs_a_level_nothing_more_may_cost_another_its_job() {
        let survey = surveyed(&[1, 0, 0, 0, 0, 0, 0, 0, 0], &[]);
        let counts: Vec<_> =
            survey.levels.iter().map(|it| (it.size, it.jobs, it.jobs_none_out)).collect();
        assert_eq!(counts, [(18, 8, 9), (36, 3, 4), (72, 1, 2)]);
        let costly = |level: usize| -> Vec<bool> {
            survey.levels[level].aggregates.iter().map(AggregatedBlock::is_costly).collect()
        };
        // The second block still serves 18, but neither 36 nor 72 with the first.
        assert!(!costly(0)[0] && costly(0)[1..].iter().all(|is| *is));
        assert_eq!(costly(1), [false, true, true, true, false]);
        assert_eq!(costly(2), [false, true, false]);
        let aggregate = &survey.levels[1].aggregates[0];
        assert_eq!((aggregate.nodes, aggregate.out, aggregate.spare), (36, 1, 35));
        assert_eq!(aggregate.blocks, ["b0", "b1"]);
        assert_eq!(aggregate.next_drain, Some(0.0));
        // All 36 must be up: 0.99^36 of the time.
        let whole = &survey.levels[1].aggregates[1];
        let chance = 0.99_f64.powi(36);
        assert!((whole.usable.expect("a number") - 36.0 * chance).abs() < 1e-9);
        assert!((whole.next_drain.expect("a price") - 36.0 * chance).abs() < 1e-9);
    }

    #[test]
    fn blocks_in_which_a_drain_costs_a_job_are_named() {
        let shape = |placing| JobShape { nodes: 72, segment: Some(18), placing };
        let shapes = [shape(SegmentPlacement::Anywhere), shape(SegmentPlacement::Consolidated)];
        let survey = surveyed(&[1, 0, 0, 0, 1, 0, 0, 0], &shapes);
        assert_eq!(survey.jobs[0].jobs, JobFit { at_least: 1, at_most: 1 });
        assert_eq!(survey.jobs[0].jobs_none_out.at_least, 2);
        // Six whole blocks for four segments: two more blocks may be lost.
        assert_eq!(survey.jobs[0].costly, [0_usize; 0]);
        assert_eq!(survey.jobs[1].jobs, JobFit::default());
        let survey = surveyed(&[1, 1, 1, 1, 0, 0, 0, 0], &shapes);
        assert_eq!(survey.jobs[1].jobs.at_least, 1);
        assert_eq!(survey.jobs[1].costly, [4, 5, 6, 7]);
    }
}
