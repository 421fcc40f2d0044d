//! Collects the content of one output and builds a [`ParseOutput`].
//!
//! Runs are closed here in order, failures get the name of their run, and repetitions of another
//! failure are dropped.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use super::errors;
use super::errors::NcclTestFailure;
use super::run::NcclRun;
use crate::outputs::facts_builder::FactsBuilder;
use model::measurement::Measurement;
use model::parse_output::{OutputProblem, OutputProblemKind, ParseOutput, Tool};
use model::tool_facts::{ToolDevice, ToolFacts, ToolRank};

/// Warnings kept per failure; more only repeat it.
const MOST_WARNINGS: usize = 64;

#[derive(Debug)]
pub(super) struct NcclFailureReport {
    pub(super) failure: NcclTestFailure,
    pub(super) rank: Option<u32>,
    pub(super) line: u32,
    /// Index of the run it was printed in or before.
    pub(super) run: usize,
}

#[derive(Debug)]
pub(super) struct NcclWarning {
    pub(super) host: Option<String>,
    pub(super) device: Option<u32>,
    pub(super) text: String,
    pub(super) line: u32,
    pub(super) run: usize,
}

#[derive(Debug, Default)]
pub(super) struct NcclOutputBuilder {
    pub(super) runs: Vec<NcclRun>,
    pub(super) facts: ToolFacts,
    roster: FactsBuilder,
    /// Hosts and devices of listed ranks.
    rank_devices: HashSet<(String, u32)>,
    pub(super) tool_version: Option<String>,
    /// Parameters by index of their run.
    pub(super) parameters: Vec<(usize, BTreeMap<String, String>)>,
    pub(super) failures: Vec<NcclFailureReport>,
    pub(super) warnings: Vec<NcclWarning>,
    /// The only test named without a run.
    pub(super) program: Option<String>,
}

impl NcclOutputBuilder {
    /// Adds a rank with its host and device, each once.
    pub(super) fn note_rank(&mut self, rank: &ToolRank) {
        let facts = &mut self.facts;
        if !self.roster.add_rank(facts, rank) {
            return;
        }
        self.roster.add_host(facts, &rank.host);
        // The first line about a GPU counts, whatever name a later one prints.
        if self.rank_devices.insert((rank.host.clone(), rank.device)) {
            facts.devices.push(ToolDevice {
                index: rank.device,
                name: rank.name.clone(),
                bus_id: rank.bus_id.clone(),
                host: Some(rank.host.clone()),
                ..ToolDevice::default()
            });
        }
    }

    pub(super) fn into_parsed(self) -> ParseOutput {
        let mut parsed = ParseOutput::for_tool(Tool::NcclTests);
        parsed.tool_version = self.tool_version;
        parsed.facts = self.facts;
        parsed.complete = !self.runs.is_empty();
        for (run, named) in &self.parameters {
            for (name, value) in named {
                keep_parameter(&mut parsed.facts, *run, name, value);
            }
        }
        let called_failed = self.runs.iter().any(|run| {
            [run.out_of_bounds, run.average].into_iter().flatten().any(|f| f.okay == Some(false))
        });
        let mut names = Vec::new();
        let mut number = 0;
        for (index, run) in self.runs.into_iter().enumerate() {
            let closed = run.into_result(number);
            parsed.complete &= closed.complete;
            parsed.problems.extend(closed.problems);
            names.push(closed.series.as_ref().and_then(|series| series.testcase.clone()));
            if closed.inferred {
                keep_parameter(&mut parsed.facts, index, "testcase", "inferred");
            }
            if let Some(series) = closed.series {
                parsed.measurements.push(Measurement::Series(series));
                number += 1;
            }
        }
        let name = |run: usize| match names.get(run).or(names.last()) {
            Some(name) => name.as_deref(),
            None => self.program.as_deref(),
        };
        let failures = failure_problems(&self.failures, called_failed, name);
        if !failures.is_empty() {
            parsed.problems.extend(warning_problems(&self.warnings, name));
        }
        parsed.problems.extend(failures);
        if parsed.measurements.is_empty() && parsed.problems.is_empty() {
            let detail = "no table of results in it";
            parsed.problems.push(OutputProblem::new(OutputProblemKind::Unrecognised, detail));
        }
        parsed
    }
}

/// Stores a parameter; that of a later run only if it differs.
fn keep_parameter(facts: &mut ToolFacts, run: usize, name: &str, value: &str) {
    let first = facts.parameters.entry(name.to_owned()).or_insert_with(|| value.to_owned());
    if *first != value {
        facts.parameters.insert(format!("{name} (run {run})"), value.to_owned());
    }
}

/// The distinct failures, without consequences of another.
fn failure_problems<'n>(
    reported: &[NcclFailureReport],
    called_failed: bool,
    name: impl Fn(usize) -> Option<&'n str>,
) -> Vec<OutputProblem> {
    let explained: BTreeSet<Option<&str>> =
        reported.iter().filter(|r| !r.failure.is_echo).map(|r| r.failure.host.as_deref()).collect();
    let mut seen = BTreeSet::new();
    let mut problems = Vec::new();
    for report in reported {
        let NcclTestFailure { host, code, detail, is_echo: echo, .. } = &report.failure;
        if *echo && (called_failed || explained.contains(&host.as_deref())) {
            continue;
        }
        let what = if *echo { "" } else { detail.as_str() };
        if !seen.insert((host.as_deref(), what, report.failure.rank)) {
            continue;
        }
        problems.push(OutputProblem {
            host: host.clone(),
            rank: report.rank,
            code: code.clone(),
            ..OutputProblem::new(OutputProblemKind::Error, detail.clone())
                .in_test(name(report.run))
                .at_line(report.line)
        });
    }
    problems
}

/// NCCL's warnings: they explain a failure and are noise without one.
fn warning_problems<'n>(
    warnings: &[NcclWarning],
    name: impl Fn(usize) -> Option<&'n str>,
) -> Vec<OutputProblem> {
    let mut seen = BTreeSet::new();
    warnings
        .iter()
        .filter(|w| seen.insert((w.host.as_deref(), w.device, w.text.as_str())))
        .take(MOST_WARNINGS)
        .map(|warning| OutputProblem {
            host: warning.host.clone(),
            gpu: warning.device,
            code: errors::parse_warning_code(&warning.text),
            ..OutputProblem::new(OutputProblemKind::Error, format!("NCCL warns: {}", warning.text))
                .in_test(name(warning.run))
                .at_line(warning.line)
        })
        .collect()
}
