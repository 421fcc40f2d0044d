//! Everything one output gave, on its way to a [`Parsed`].
//!
//! Runs are closed here in order, failures get the name of their run, and
//! what only repeats another failure is left out.

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::collections::HashSet;

use super::errors;
use super::errors::Failure;
use super::run::Run;
use crate::outputs::roster::Roster;
use model::facts::Device;
use model::facts::Facts;
use model::facts::Rank;
use model::measurement::Measurement;
use model::parsed::Parsed;
use model::parsed::Problem;
use model::parsed::ProblemKind;
use model::parsed::Tool;

/// So many warnings explain a failure; more only repeat it.
const MOST_WARNINGS: usize = 64;

/// A failure and where it was printed.
#[derive(Debug)]
pub(super) struct Reported {
    pub(super) failure: Failure,
    pub(super) rank: Option<u32>,
    pub(super) line: u32,
    /// Index of the run it was printed in or before.
    pub(super) run: usize,
}

/// A warning of NCCL.
#[derive(Debug)]
pub(super) struct Warning {
    pub(super) host: Option<String>,
    pub(super) device: Option<u32>,
    pub(super) text: String,
    pub(super) line: u32,
    pub(super) run: usize,
}

/// What was read so far.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    pub(super) runs: Vec<Run>,
    pub(super) facts: Facts,
    roster: Roster,
    /// Hosts and devices that ranks were listed on.
    places: HashSet<(String, u32)>,
    pub(super) tool_version: Option<String>,
    /// Parameters by index of their run.
    pub(super) parameters: Vec<(usize, BTreeMap<String, String>)>,
    pub(super) failures: Vec<Reported>,
    pub(super) warnings: Vec<Warning>,
    /// The one test that is named where no run began.
    pub(super) program: Option<String>,
}

impl Outcome {
    /// Keeps a rank with its host and device, each once.
    pub(super) fn note_rank(&mut self, rank: &Rank) {
        let facts = &mut self.facts;
        if !self.roster.rank(facts, rank) {
            return;
        }
        self.roster.host(facts, &rank.host);
        // The first line about a GPU is kept, whatever a later one calls it.
        if self.places.insert((rank.host.clone(), rank.device)) {
            facts.devices.push(Device {
                index: rank.device,
                name: rank.name.clone(),
                bus_id: rank.bus_id.clone(),
                uuid: None,
                host: Some(rank.host.clone()),
            });
        }
    }

    /// Closes all runs.
    pub(super) fn close(self) -> Parsed {
        let mut parsed = Parsed::of(Tool::NcclTests);
        parsed.tool_version = self.tool_version;
        parsed.facts = self.facts;
        parsed.complete = !self.runs.is_empty();
        for (run, named) in &self.parameters {
            for (name, value) in named {
                keep(&mut parsed.facts, *run, name, value);
            }
        }
        let called_failed = self.runs.iter().any(|run| {
            [run.out_of_bounds, run.average].into_iter().flatten().any(|f| f.okay == Some(false))
        });
        let mut names = Vec::new();
        let mut number = 0;
        for (index, run) in self.runs.into_iter().enumerate() {
            let closed = run.close(number);
            parsed.complete &= closed.complete;
            parsed.problems.extend(closed.problems);
            names.push(closed.series.as_ref().and_then(|series| series.testcase.clone()));
            if closed.inferred {
                keep(&mut parsed.facts, index, "testcase", "inferred");
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
        let failures = failures(&self.failures, called_failed, name);
        if !failures.is_empty() {
            parsed.problems.extend(warnings(&self.warnings, name));
        }
        parsed.problems.extend(failures);
        if parsed.measurements.is_empty() && parsed.problems.is_empty() {
            let detail = "no table of results in it";
            parsed.problems.push(Problem::new(ProblemKind::Unrecognised, detail));
        }
        parsed
    }
}

/// Keeps a parameter; that of a later run only where it differs.
fn keep(facts: &mut Facts, run: usize, name: &str, value: &str) {
    let first = facts.parameters.entry(name.to_owned()).or_insert_with(|| value.to_owned());
    if *first != value {
        facts.parameters.insert(format!("{name} (run {run})"), value.to_owned());
    }
}

/// The failures, each once, without those that only follow from another.
fn failures<'n>(
    reported: &[Reported],
    called_failed: bool,
    name: impl Fn(usize) -> Option<&'n str>,
) -> Vec<Problem> {
    let explained: BTreeSet<Option<&str>> =
        reported.iter().filter(|r| !r.failure.echo).map(|r| r.failure.host.as_deref()).collect();
    let mut seen = BTreeSet::new();
    let mut problems = Vec::new();
    for report in reported {
        let Failure { host, code, detail, echo, .. } = &report.failure;
        if *echo && (called_failed || explained.contains(&host.as_deref())) {
            continue;
        }
        let what = if *echo { "" } else { detail.as_str() };
        if !seen.insert((host.as_deref(), what, report.failure.rank)) {
            continue;
        }
        problems.push(Problem {
            host: host.clone(),
            rank: report.rank,
            code: code.clone(),
            ..Problem::new(ProblemKind::Error, detail.clone())
                .in_test(name(report.run))
                .at(report.line)
        });
    }
    problems
}

/// NCCL's warnings, which explain a failure and are noise without one.
fn warnings<'n>(warnings: &[Warning], name: impl Fn(usize) -> Option<&'n str>) -> Vec<Problem> {
    let mut seen = BTreeSet::new();
    warnings
        .iter()
        .filter(|w| seen.insert((w.host.as_deref(), w.device, w.text.as_str())))
        .take(MOST_WARNINGS)
        .map(|warning| Problem {
            host: warning.host.clone(),
            gpu: warning.device,
            code: errors::of_warning(&warning.text),
            ..Problem::new(ProblemKind::Error, format!("NCCL warns: {}", warning.text))
                .in_test(name(warning.run))
                .at(warning.line)
        })
        .collect()
}
