//! Simulated machines: a function defines each cell's reading; noise and recordings are generated
//! here. Judges nothing.

use super::super::*;
use crate::thresholds::{
    CollectiveExpectation, Expectation, NvlinkSpec, Platform, TestPath, ThresholdConfidence,
};
use model::claims::ClaimedDomain;
use model::id::{DomainName, NodeName};
use model::measurement::{Measurement, MeasurementMatrix};
use model::parse_output::{ParseOutput, Tool};
use model::tool_facts::{ToolDevice, ToolRank};
use model::tool_recording::RecordingScope;
use model::unit::Unit;
use model::verdict::{Direction, Outcome};
use std::collections::BTreeMap;

pub(super) const WRITE: &str = "device_to_device_memcpy_write_ce";
pub(super) const BISECT: &str = "multinode_bisect_write_ce";
pub(super) const READ: &str = "device_to_device_memcpy_read_ce";

/// Small, fast and seeded: SplitMix64 (Steele, Lea, Flood 2014).
pub(super) struct TestRng(pub(super) u64);

impl TestRng {
    pub(super) fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }

    pub(super) fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.uniform()).sum::<f64>() - 6.0
    }
}

pub(super) fn platform(name: &str, gpus: u32, nodes: u32, level: f64) -> Platform {
    let expect = |testcase: &str, path, value| {
        let e = Expectation {
            testcase: testcase.to_owned(),
            path,
            unit: Unit::GigabytesPerSecond,
            min_bytes: 64 << 20,
            value: Some(value),
            tolerance: 0.04,
            tolerance_small_buffer: None,
            floor: Some(value * 0.8),
            derivation: "made up".to_owned(),
            confidence: ThresholdConfidence::Derived,
            source: "test".to_owned(),
            origin: "test".to_owned(),
        };
        (testcase.to_owned(), e)
    };
    Platform {
        name: name.to_owned(),
        title: name.to_owned(),
        devices: vec![format!("{name} GPU")],
        gpus_per_node: Some(gpus),
        nodes_per_domain: Some(nodes),
        nvlink: Some(NvlinkSpec {
            links: 18,
            rate: level / 18.0 / 0.88,
            line_rate: Some(53.125),
            switched: true,
            source: "test".to_owned(),
        }),
        port_rate: None,
        expectations: BTreeMap::from([
            expect(WRITE, TestPath::Nvlink, level),
            expect(READ, TestPath::Nvlink, level),
            expect("multinode_device_to_device_memcpy_write_ce", TestPath::Nvlink, level),
            expect("multinode_device_to_device_memcpy_read_ce", TestPath::Nvlink, level),
            expect(BISECT, TestPath::Nvlink, level),
            expect("host_to_device_memcpy_ce", TestPath::Host, 55.0),
            expect("device_to_host_memcpy_ce", TestPath::Host, 55.0),
        ]),
        collectives: vec![CollectiveExpectation {
            testcase: "all_reduce_perf".to_owned(),
            min_bytes: 1 << 30,
            min_ranks: 4,
            max_ranks: 72,
            algorithm: "NVLS".to_owned(),
            transport: "NVLink".to_owned(),
            busbw: 840.0,
            tolerance: 0.06,
            floor: None,
            confidence: ThresholdConfidence::Derived,
            source: "test".to_owned(),
            origin: "test".to_owned(),
        }],
        origin: "test".to_owned(),
    }
}

/// Capacity of a copy from GPU to GPU, as (node, gpu), relative to full rate.
type CopyCapacity = Box<dyn Fn((u32, u32), (u32, u32)) -> Option<f64>>;

/// A machine under construction: each cell's reading before noise.
pub(super) struct TestMachine {
    pub(super) platform: Platform,
    nodes: u32,
    pub(super) gpus: u32,
    sigma: f64,
    dips: f64,
    readings: u32,
    rng: TestRng,
    capacity: CopyCapacity,
    host: Box<dyn Fn(u32, u32, Direction) -> f64>,
}

impl TestMachine {
    pub(super) fn hgx(nodes: u32) -> Self {
        Self::with_platform(platform("hgx", 8, 1, 396.0), nodes, 8)
    }

    pub(super) fn rack() -> Self {
        Self::with_platform(platform("rack", 4, 18, 770.0), 18, 4)
    }

    pub(super) fn with_platform(platform: Platform, nodes: u32, gpus: u32) -> Self {
        Self {
            platform,
            nodes,
            gpus,
            sigma: 0.002,
            dips: 0.0,
            readings: 1,
            rng: TestRng(7),
            capacity: Box::new(|_, _| Some(1.0)),
            host: Box::new(|_, _, _| 1.0),
        }
    }

    pub(super) fn noise(mut self, sigma: f64, dips: f64, seed: u64) -> Self {
        (self.sigma, self.dips, self.rng) = (sigma, dips, TestRng(seed));
        self
    }

    pub(super) fn with_nodes(mut self, nodes: u32) -> Self {
        self.nodes = nodes;
        self
    }

    pub(super) fn readings(mut self, readings: u32) -> Self {
        self.readings = readings;
        self
    }

    pub(super) fn capacity(
        mut self,
        f: impl Fn((u32, u32), (u32, u32)) -> Option<f64> + 'static,
    ) -> Self {
        self.capacity = Box::new(f);
        self
    }

    pub(super) fn host(mut self, f: impl Fn(u32, u32, Direction) -> f64 + 'static) -> Self {
        self.host = Box::new(f);
        self
    }

    fn add_noise(&mut self, value: f64) -> f64 {
        let dip =
            if self.rng.uniform() < self.dips { 0.05 + 0.35 * self.rng.uniform() } else { 0.0 };
        let value = value * (1.0 + self.sigma * self.rng.normal()) * (1.0 - dip);
        (value * 100.0).round() / 100.0
    }

    pub(super) fn node(at: u32) -> NodeName {
        NodeName::from(format!("node{:04}", at + 1))
    }

    pub(super) fn matrix(&mut self, name: &str, ends: &[(u32, u32)], level: f64) -> Measurement {
        let pull = name.contains("read");
        let cells = ends
            .iter()
            .map(|row| {
                ends.iter()
                    .map(|col| {
                        let (src, dst) = if pull { (*col, *row) } else { (*row, *col) };
                        let share = (row != col).then(|| (self.capacity)(src, dst)).flatten();
                        share.map(|share| self.add_noise(level * share))
                    })
                    .collect()
            })
            .collect();
        let labels: Vec<String> = (0..ends.len()).map(|i| i.to_string()).collect();
        matrix(name, labels.clone(), labels, cells)
    }

    /// The runs on each node: two pair tests and two host tests.
    pub(super) fn record_nodes(&mut self) -> Vec<ToolRecording> {
        let mut recordings = Vec::new();
        let level = self.platform.expectations[WRITE].value.expect("a level");
        for node in 0..self.nodes {
            for reading in 0..self.readings {
                let ends: Vec<(u32, u32)> = (0..self.gpus).map(|g| (node, g)).collect();
                let mut parsed =
                    ParseOutput { complete: true, ..ParseOutput::for_tool(Tool::Nvbandwidth) };
                parsed.facts.devices = (0..self.gpus)
                    .map(|index| ToolDevice {
                        index,
                        name: Some(self.platform.devices[0].clone()),
                        ..ToolDevice::default()
                    })
                    .collect();
                parsed.measurements =
                    vec![self.matrix(WRITE, &ends, level), self.matrix(READ, &ends, level)];
                for (name, way) in [
                    ("host_to_device_memcpy_ce", Direction::H2d),
                    ("device_to_host_memcpy_ce", Direction::D2h),
                ] {
                    let cells =
                        (0..self.gpus).map(|g| (self.host)(node, g, way)).collect::<Vec<_>>();
                    let cells =
                        cells.into_iter().map(|share| Some(self.add_noise(55.0 * share))).collect();
                    let cols = (0..self.gpus).map(|g| g.to_string()).collect();
                    parsed.measurements.push(matrix(name, vec!["0".to_owned()], cols, vec![cells]));
                }
                let node = Self::node(node);
                let file = format!("nodes/{node}/nvbandwidth-{reading}.txt");
                recordings.push(ToolRecording::new(RecordingScope::Node(node), file, parsed));
            }
        }
        recordings
    }

    /// The run across the domain: one pair test over all ranks.
    pub(super) fn record_domain(&mut self) -> Vec<ToolRecording> {
        let name = "multinode_device_to_device_memcpy_write_ce";
        let level = self.platform.expectations[name].value.expect("a level");
        let ends: Vec<(u32, u32)> =
            (0..self.nodes).flat_map(|n| (0..self.gpus).map(move |g| (n, g))).collect();
        let readings = 0..self.readings;
        readings
            .map(|reading| {
                let mut parsed =
                    ParseOutput { complete: true, ..ParseOutput::for_tool(Tool::Nvbandwidth) };
                parsed.facts.ranks = ranks(&ends);
                parsed.measurements = vec![self.matrix(name, &ends, level)];
                let file = format!("domains/block01/nvbandwidth-{reading}.txt");
                ToolRecording::new(
                    RecordingScope::Domain(DomainName::from("block01")),
                    file,
                    parsed,
                )
            })
            .collect()
    }

    /// A run of two nodes in which every GPU writes to every other.
    pub(super) fn record_two_nodes(&mut self, a: u32, b: u32) -> ToolRecording {
        let name = "multinode_device_to_device_memcpy_write_ce";
        let level = self.platform.expectations[name].value.expect("a level");
        let ends: Vec<(u32, u32)> =
            [a, b].into_iter().flat_map(|n| (0..self.gpus).map(move |g| (n, g))).collect();
        let mut parsed = ParseOutput { complete: true, ..ParseOutput::for_tool(Tool::Nvbandwidth) };
        parsed.facts.ranks = ranks(&ends);
        parsed.measurements = vec![self.matrix(name, &ends, level)];
        let file = format!("domains/block01/all-{:02}-{:02}.txt", a + 1, b + 1);
        ToolRecording::new(RecordingScope::Domain(DomainName::from("block01")), file, parsed)
    }

    /// A run of two nodes in which every GPU writes to its sibling of the other
    /// node: `multinode_bisect_write_ce`.
    pub(super) fn record_siblings(&mut self, a: u32, b: u32) -> ToolRecording {
        let level = self.platform.expectations[BISECT].value.expect("a level");
        let ends: Vec<(u32, u32)> =
            [a, b].into_iter().flat_map(|n| (0..self.gpus).map(move |g| (n, g))).collect();
        let half = ends.len() / 2;
        let peer = |rank: usize| (rank + half) % ends.len();
        let mut parsed = ParseOutput { complete: true, ..ParseOutput::for_tool(Tool::Nvbandwidth) };
        parsed.facts.ranks = ranks(&ends);
        let rows = (0..ends.len()).map(|r| format!("{r}->{}", peer(r))).collect();
        let cells = (0..ends.len())
            .map(|r| {
                let share = (self.capacity)(ends[r], ends[peer(r)]);
                vec![share.map(|share| self.add_noise(level * share))]
            })
            .collect();
        parsed.measurements = vec![matrix(BISECT, rows, vec!["0".to_owned()], cells)];
        let file = format!("domains/block01/{:02}-{:02}.txt", a + 1, b + 1);
        let mut recording =
            ToolRecording::new(RecordingScope::Domain(DomainName::from("block01")), file, parsed);
        recording.stage = Some(2);
        recording
    }

    pub(super) fn claims(&self) -> Claims {
        let domain = |name: &str, nodes| ClaimedDomain {
            name: DomainName::from(name),
            nodes,
            platform: Some(self.platform.name.clone()),
            gpus_per_node: Some(self.gpus),
            nic: None,
        };
        if self.platform.spans_nodes() {
            return Claims {
                domains: vec![domain("block01", (0..self.nodes).map(Self::node).collect())],
                ..Claims::default()
            };
        }
        let domains = (0..self.nodes).map(|n| domain(Self::node(n).as_str(), vec![Self::node(n)]));
        Claims { domains: domains.collect(), ..Claims::default() }
    }

    pub(super) fn record(&mut self) -> Vec<ToolRecording> {
        let mut recordings = self.record_nodes();
        if self.platform.spans_nodes() {
            recordings.extend(self.record_domain());
        }
        recordings
    }

    pub(super) fn judge(mut self) -> Judgement {
        let recordings = self.record();
        self.judge_these(&recordings)
    }

    pub(super) fn judge_these(&self, recordings: &[ToolRecording]) -> Judgement {
        self.judge_claims(&self.claims(), recordings)
    }

    pub(super) fn judge_claims(&self, claims: &Claims, recordings: &[ToolRecording]) -> Judgement {
        self.judge_sampled(claims, recordings, false)
    }

    /// Judges them, pairs sampled or not.
    pub(super) fn judge_sampled(
        &self,
        claims: &Claims,
        recordings: &[ToolRecording],
        sampled: bool,
    ) -> Judgement {
        judge_without_history(&JudgeInput {
            sampled,
            ..Self::case(claims, recordings, &self.catalogue())
        })
    }

    fn catalogue(&self) -> PlatformCatalogue {
        let platforms = BTreeMap::from([(self.platform.name.clone(), self.platform.clone())]);
        PlatformCatalogue { platforms }
    }

    fn case<'a>(
        claims: &'a Claims,
        recordings: &'a [ToolRecording],
        catalogue: &'a PlatformCatalogue,
    ) -> JudgeInput<'a> {
        JudgeInput {
            claims,
            recordings,
            catalogue,
            thresholds_digest: "t",
            platform: None,
            cells: true,
            sampled: false,
        }
    }

    /// The result after a second measurement, with the readings `again`.
    pub(super) fn confirm(
        &self,
        first: &Judgement,
        second: &Verdicts,
        again: &[ToolRecording],
    ) -> Verdicts {
        let catalogue = self.catalogue();
        confirm::apply_confirmation(first, second, &Self::case(&first.claims, again, &catalogue))
    }
}

pub(super) fn matrix(
    name: &str,
    rows: Vec<String>,
    cols: Vec<String>,
    cells: Vec<Vec<Option<f64>>>,
) -> Measurement {
    Measurement::Matrix(MeasurementMatrix {
        run: 0,
        testcase: Some(name.to_owned()),
        unit: Some(Unit::GigabytesPerSecond),
        rows,
        cols,
        cells,
        sum: None,
        coefficient_of_variation: None,
    })
}

pub(super) fn ranks(ends: &[(u32, u32)]) -> Vec<ToolRank> {
    let all = ends.iter().zip(0..);
    all.map(|((node, gpu), rank)| ToolRank {
        rank,
        host: TestMachine::node(*node).as_str().to_owned(),
        device: *gpu,
        ..ToolRank::default()
    })
    .collect()
}

/// Loci of all findings, as text.
pub(super) fn loci(judgement: &Judgement) -> Vec<String> {
    judgement
        .verdicts
        .findings
        .iter()
        .map(|f| format!("{} {} {}", f.outcome, f.class, f.locus))
        .collect()
}

pub(super) fn outcome_of(judgement: &Judgement, node: &str) -> Outcome {
    let verdict = judgement.verdicts.nodes.iter().find(|n| n.node.as_str() == node);
    verdict.expect("the node is judged").outcome
}

/// The nodes of unknown state, in order.
pub(super) fn unknown_nodes(judgement: &Judgement) -> Vec<&str> {
    let nodes = judgement.verdicts.nodes.iter();
    nodes.filter(|n| n.outcome == Outcome::Unknown).map(|n| n.node.as_str()).collect()
}

pub(super) fn share(lost: u32) -> f64 {
    f64::from(18 - lost) / 18.0
}
