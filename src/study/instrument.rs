//! Readings without tools: what a step would have measured, in the shape that
//! the parsers give.
//!
//! The noise and the physics are those of the simulated tools. What a tool says
//! beside its numbers is read once, from its own output, and kept; after that
//! only the numbers are put in. A test holds this against rendering and parsing
//! every output.

use std::collections::BTreeMap;

use super::sweep::Reader;
use control::sweep::outputs;
use engine::plan::Step;
use model::measurement::Measurement;
use model::parsed::Parsed;
use model::recording::Recording;
use sim::bench::Bench;
use sim::bench::Outcome;
use sim::fabric::Fabric;
use sim::mpi::Host;
use sim::mpi::Job;
use sim::noise::Key;
use sim::render::perftest;
use sim::scenario::Scenario;
use sim::tool;
use sim::tooling::Nvbandwidth;

/// For so long the probes of the rails run, in seconds (`-D`).
const SECONDS: u32 = 2;

/// The test of the lane probe.
const LANE: &str = "multinode_bisect_write_ce";

/// What perftest sends when it is not told: 64 KiB.
const MESSAGE: u64 = 1 << 16;

/// What outputs say beside their numbers, by probe and by the nodes they name.
pub(super) type Shapes = BTreeMap<(String, Vec<String>), Parsed>;

/// One number between two ends: GPUs of a domain, or nodes of a fleet.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Sample {
    pub(super) src: usize,
    pub(super) dst: usize,
    pub(super) value: f64,
}

/// Takes readings of one simulated fabric.
#[derive(Debug)]
pub(super) struct Instrument<'a> {
    pub(super) scenario: &'a Scenario,
    pub(super) fabric: &'a Fabric,
    pub(super) shapes: &'a mut Shapes,
    /// Every output is rendered and parsed.
    pub(super) rendered: bool,
}

impl Reader for Instrument<'_> {
    fn read(&mut self, step: &Step, reading: u32) -> (Recording, Vec<Sample>) {
        let (numbers, samples) = self.numbers(step, reading);
        let parsed = if self.rendered {
            self.parsed(step, reading)
        } else {
            let mut parsed = self.shape(step);
            put(&mut parsed, &numbers);
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
        let recording = Recording {
            scope: outputs::scope(step).expect("a step of two nodes has a scope"),
            file: format!("raw/{place}.{}-{reading}.txt", step.step),
            rail: step.rail.clone(),
            stage: Some(step.stage),
            nodes: step.nodes.clone(),
            parsed,
        };
        (recording, samples)
    }
}

impl Instrument<'_> {
    /// What a reading of a step measures, between which ends.
    pub(super) fn samples(&self, step: &Step, reading: u32) -> Vec<Sample> {
        self.numbers(step, reading).1
    }

    /// The numbers as the tool computes them, and what they are.
    fn numbers(&self, step: &Step, reading: u32) -> (Vec<f64>, Vec<Sample>) {
        match step.probe.as_str() {
            "nvbandwidth-lane" => self.lane(step, reading),
            _ => self.rail(step, reading),
        }
    }

    /// The output of this step without its numbers.
    fn shape(&mut self, step: &Step) -> Parsed {
        // perftest names no node.
        let named: &[_] = if step.rail.is_some() { &[] } else { &step.nodes };
        let key = (step.probe.clone(), named.iter().map(ToString::to_string).collect());
        if let Some(known) = self.shapes.get(&key) {
            return known.clone();
        }
        let parsed = self.parsed(step, 0);
        self.shapes.insert(key, parsed.clone());
        parsed
    }

    /// What the simulated tool prints, parsed.
    fn parsed(&self, step: &Step, reading: u32) -> Parsed {
        let peer = step.nodes[1].to_string();
        let fill = |word: &String| word.replace("{peer_address}", &peer).replace("{port}", "20000");
        let argv: Vec<String> = step.argv.iter().map(fill).collect();
        let bench = self.bench(step, reading, step.nodes[0].as_str(), None);
        let answer = tool::run(&bench, &argv[0], &argv[1..]).expect("the tool is simulated");
        readers::outputs::read_streams(answer.stdout.as_bytes(), answer.stderr.as_bytes())
    }

    fn bench<'b>(
        &'b self,
        step: &Step,
        reading: u32,
        scope: &'b str,
        job: Option<&'b Job>,
    ) -> Bench<'b> {
        // As simulated workers number readings, by step and reading.
        let key = Key::of(0).named(&format!("{}.{reading}", step.step)).value();
        Bench {
            scenario: self.scenario,
            fabric: self.fabric,
            scope,
            across: job.is_some(),
            seed: self.scenario.seed,
            reading: u32::try_from(key >> 32).unwrap_or(reading),
            before: reading,
            job,
        }
    }

    /// GPUs of two nodes, lane by lane and both ways.
    fn lane(&self, step: &Step, reading: u32) -> (Vec<f64>, Vec<Sample>) {
        let host = |name: &str| Host {
            name: name.to_owned(),
            ranks: self.fabric.gpus_of([&name.to_owned()]).len(),
        };
        let hosts = step.nodes.iter().map(|node| host(node.as_str())).collect();
        let job = Job { hosts, environment: BTreeMap::new() };
        let scope = step.domain.as_ref().map_or("", |domain| domain.as_str());
        let bench = self.bench(step, reading, scope, Some(&job));
        let run = bench.nvbandwidth(Nvbandwidth::V0_8, &[LANE.to_owned()]);
        let Some((_, Outcome::Measured(tables))) = run.tests.first() else {
            return (Vec::new(), Vec::new());
        };
        let numbers: Vec<f64> = tables[0].cells.iter().copied().flatten().collect();
        let ranks = run.gpus.len();
        let samples = numbers.iter().enumerate().map(|(rank, value)| Sample {
            src: run.gpus[rank],
            dst: run.gpus[(rank + ranks / 2) % ranks],
            value: *value,
        });
        let samples = samples.collect();
        (numbers, samples)
    }

    /// A NIC of one node with that of another: the average in Gb/s.
    fn rail(&self, step: &Step, reading: u32) -> (Vec<f64>, Vec<Sample>) {
        let bench = self.bench(step, reading, step.nodes[0].as_str(), None);
        let network = &self.fabric.network;
        let node = |at: usize| self.fabric.node(step.nodes[at].as_str()).expect("a planned node");
        let (here, there, reads) = (node(0), node(1), step.probe == "ib-read-bw");
        let (src, dst) = if reads { (there, here) } else { (here, there) };
        let key = bench.key(if reads { "ib_read_bw" } else { "ib_write_bw" }).with(there as u64);
        let line = network.rdma(src, dst, 0);
        let first = bench.gpus().first().map_or(0, |gpu| *gpu as u64);
        let average = perftest::average(&bench, line, key, MESSAGE, first);
        (vec![average * 8.0], vec![Sample { src, dst, value: average }])
    }
}

/// A number as its tool prints it and its parser reads it.
fn printed(value: f64, decimals: usize) -> f64 {
    format!("{value:.decimals$}").parse().unwrap_or(value)
}

/// Puts other numbers into an output of the same shape.
fn put(parsed: &mut Parsed, numbers: &[f64]) {
    match parsed.measurements.first_mut() {
        Some(Measurement::Matrix(matrix)) => {
            let cells = matrix.cells.iter_mut().flatten().filter(|cell| cell.is_some());
            for (cell, number) in cells.zip(numbers) {
                *cell = Some(printed(*number, 2));
            }
            matrix.sum = Some(printed(numbers.iter().sum(), 2));
        }
        Some(Measurement::Series(series)) => {
            for (point, number) in series.points.iter_mut().zip(numbers) {
                point.algbw = Some(printed(*number, 2));
                let sent = perftest::sent(number / 8.0, SECONDS, MESSAGE);
                point.iterations = format!("{sent:.0}").parse().ok();
                point.msgrate = Some(printed(number / 8.0 * 1e3 / MESSAGE as f64, 6));
            }
        }
        _ => {}
    }
}
