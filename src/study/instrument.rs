//! Readings without tools: the parsed output of a step, computed directly.
//!
//! Noise and physics are those of the simulated tools. The parts of a tool's output other than its
//! numbers are parsed once from its rendered output and cached; after that only the numbers are
//! filled in. A test compares this with rendering and parsing every output.

use std::collections::BTreeMap;

use super::sweep::StepReader;
use control::sweep::step_outputs;
use engine::plan::PlanStep;
use model::measurement::Measurement;
use model::parse_output::ParseOutput;
use model::tool_recording::ToolRecording;
use sim::fabric::SimFabric;
use sim::invocation::{SimTestOutcome, ToolInvocation};
use sim::mpirun::{MpiHost, MpiJob};
use sim::noise::NoiseKey;
use sim::render::perftest;
use sim::scenario::Scenario;
use sim::tool_config::NvbandwidthLayout;
use sim::tool_dispatch;

/// Duration of the rail probes in seconds (`-D`).
const SECONDS: u32 = 2;

/// The test of the lane probe.
const LANE_TEST: &str = "multinode_bisect_write_ce";

/// perftest's default message size, 64 KiB.
const MESSAGE_BYTES: u64 = 1 << 16;

/// Cached outputs by probe and by the nodes that they name.
pub(super) type OutputShapes = BTreeMap<(String, Vec<String>), ParseOutput>;

/// One number between two ends: GPUs of a domain, or nodes of a fleet.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct PairSample {
    pub(super) src: usize,
    pub(super) dst: usize,
    pub(super) value: f64,
}

/// Takes readings of one simulated fabric.
#[derive(Debug)]
pub(super) struct SimInstrument<'a> {
    pub(super) scenario: &'a Scenario,
    pub(super) fabric: &'a SimFabric,
    pub(super) shapes: &'a mut OutputShapes,
    pub(super) renders_outputs: bool,
}

impl StepReader for SimInstrument<'_> {
    fn read(&mut self, step: &PlanStep, reading: u32) -> (ToolRecording, Vec<PairSample>) {
        let (numbers, samples) = self.compute_numbers(step, reading);
        let parsed = if self.renders_outputs {
            self.parse_rendered(step, reading)
        } else {
            let mut parsed = self.output_shape(step);
            put_numbers(&mut parsed, &numbers);
            parsed
        };
        let place = match step.rail.as_deref() {
            Some(rail) => {
                format!("pairs/{}/{}/{}.{rail}", step.nodes[0], step.nodes[1], step.probe)
            }
            None => {
                let domain = step.domain.as_ref().map_or("", |domain| domain.as_str());
                format!("domains/{domain}/{}", step.probe)
            }
        };
        let recording = ToolRecording {
            scope: step_outputs::recording_scope(step).expect("a step of two nodes has a scope"),
            file: format!("raw/{place}.{}-{reading}.txt", step.step),
            rail: step.rail.clone(),
            stage: Some(step.stage),
            nodes: step.nodes.clone(),
            parsed,
        };
        (recording, samples)
    }
}

impl SimInstrument<'_> {
    /// The numbers of a reading of a step, with their ends.
    pub(super) fn samples(&self, step: &PlanStep, reading: u32) -> Vec<PairSample> {
        self.compute_numbers(step, reading).1
    }

    /// The numbers as the tool computes them, and their ends.
    fn compute_numbers(&self, step: &PlanStep, reading: u32) -> (Vec<f64>, Vec<PairSample>) {
        match step.probe.as_str() {
            "nvbandwidth-lane" => self.read_lanes(step, reading),
            _ => self.read_rail(step, reading),
        }
    }

    /// The output of this step without its numbers.
    fn output_shape(&mut self, step: &PlanStep) -> ParseOutput {
        // perftest's output names no node.
        let named: &[_] = if step.rail.is_some() { &[] } else { &step.nodes };
        let key = (step.probe.clone(), named.iter().map(ToString::to_string).collect());
        if let Some(known) = self.shapes.get(&key) {
            return known.clone();
        }
        let parsed = self.parse_rendered(step, 0);
        self.shapes.insert(key, parsed.clone());
        parsed
    }

    /// The rendered output of the simulated tool, parsed.
    fn parse_rendered(&self, step: &PlanStep, reading: u32) -> ParseOutput {
        let peer = step.nodes[1].to_string();
        let fill = |word: &String| word.replace("{peer_address}", &peer).replace("{port}", "20000");
        let argv: Vec<String> = step.argv.iter().map(fill).collect();
        let bench = self.new_invocation(step, reading, step.nodes[0].as_str(), None);
        let output =
            tool_dispatch::run_tool(&bench, &argv[0], &argv[1..]).expect("the tool is simulated");
        readers::outputs::parse_streams(output.stdout.as_bytes(), output.stderr.as_bytes())
    }

    fn new_invocation<'b>(
        &'b self,
        step: &PlanStep,
        reading: u32,
        scope: &'b str,
        job: Option<&'b MpiJob>,
    ) -> ToolInvocation<'b> {
        // The noise key by step and reading, as in simulated workers.
        let key = NoiseKey::from_seed(0).with_name(&format!("{}.{reading}", step.step)).value();
        ToolInvocation {
            scenario: self.scenario,
            fabric: self.fabric,
            scope,
            spans_domain: job.is_some(),
            seed: self.scenario.seed,
            reading: u32::try_from(key >> 32).unwrap_or(reading),
            prior_readings: reading,
            job,
        }
    }

    /// GPUs of two nodes, lane by lane, in both directions.
    fn read_lanes(&self, step: &PlanStep, reading: u32) -> (Vec<f64>, Vec<PairSample>) {
        let host = |name: &str| MpiHost {
            name: name.to_owned(),
            ranks: self.fabric.gpus_of([&name.to_owned()]).len(),
        };
        let hosts = step.nodes.iter().map(|node| host(node.as_str())).collect();
        let job = MpiJob { hosts, environment: BTreeMap::new() };
        let scope = step.domain.as_ref().map_or("", |domain| domain.as_str());
        let bench = self.new_invocation(step, reading, scope, Some(&job));
        let run = bench.run_nvbandwidth(NvbandwidthLayout::V0_8, &[LANE_TEST.to_owned()]);
        let Some((_, SimTestOutcome::Measured(tables))) = run.tests.first() else {
            return (Vec::new(), Vec::new());
        };
        let numbers: Vec<f64> = tables[0].cells.iter().copied().flatten().collect();
        let ranks = run.gpus.len();
        let samples = numbers.iter().enumerate().map(|(rank, value)| PairSample {
            src: run.gpus[rank],
            dst: run.gpus[(rank + ranks / 2) % ranks],
            value: *value,
        });
        let samples = samples.collect();
        (numbers, samples)
    }

    /// NICs of two nodes: the average in Gb/s.
    fn read_rail(&self, step: &PlanStep, reading: u32) -> (Vec<f64>, Vec<PairSample>) {
        let bench = self.new_invocation(step, reading, step.nodes[0].as_str(), None);
        let network = &self.fabric.network;
        let node = |at: usize| self.fabric.node(step.nodes[at].as_str()).expect("a planned node");
        let (here, there, reads) = (node(0), node(1), step.probe == "ib-read-bw");
        let (src, dst) = if reads { (there, here) } else { (here, there) };
        let key =
            bench.key(if reads { "ib_read_bw" } else { "ib_write_bw" }).with_part(there as u64);
        let line = network.rdma_rate(src, dst, 0);
        let first = bench.gpus().first().map_or(0, |gpu| *gpu as u64);
        let average = perftest::average_rate(&bench, line, key, MESSAGE_BYTES, first);
        (vec![average * 8.0], vec![PairSample { src, dst, value: average }])
    }
}

/// A number rounded as its tool prints it.
fn round_as_printed(value: f64, decimals: usize) -> f64 {
    format!("{value:.decimals$}").parse().unwrap_or(value)
}

/// Replaces the numbers of an output.
fn put_numbers(parsed: &mut ParseOutput, numbers: &[f64]) {
    match parsed.measurements.first_mut() {
        Some(Measurement::Matrix(matrix)) => {
            let cells = matrix.cells.iter_mut().flatten().filter(|cell| cell.is_some());
            for (cell, number) in cells.zip(numbers) {
                *cell = Some(round_as_printed(*number, 2));
            }
            matrix.sum = Some(round_as_printed(numbers.iter().sum(), 2));
        }
        Some(Measurement::Series(series)) => {
            for (point, number) in series.points.iter_mut().zip(numbers) {
                point.algbw = Some(round_as_printed(*number, 2));
                let sent = perftest::messages_sent(number / 8.0, SECONDS, MESSAGE_BYTES);
                point.iterations = format!("{sent:.0}").parse().ok();
                point.msgrate =
                    Some(round_as_printed(number / 8.0 * 1e3 / MESSAGE_BYTES as f64, 6));
            }
        }
        _ => {}
    }
}
