//! The events of a sweep, and their display on standard error: a bar on a terminal, plain lines in
//! a log.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{IsTerminal, Write};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use engine::plan::lint::PlanLintError;
use engine::plan::{Plan, PlanRound, PlanStep, cost};
use engine::report::{plain_text, reason_groups};
use model::hostlist;
use model::id::NodeName;
use model::raw_result::{ProcessEnding, RawResult};
use model::tool_recording::ToolRecording;

/// An event of a sweep.
#[derive(Debug)]
pub(super) enum SweepEvent<'a> {
    /// A worker could not start, or runs another version; the line names its nodes.
    WorkerRemark(&'a str),
    /// These nodes have no worker. Their remarks named the cause, so their readings are not
    /// reported.
    WorkersMissing(BTreeSet<NodeName>),
    PlanStarted(&'a Plan),
    /// An earlier attempt finished this round.
    RoundSkipped {
        round: &'a PlanRound,
        parallel: usize,
    },
    RoundEnded {
        round: &'a PlanRound,
        parallel: usize,
        took: Duration,
    },
    ReadingEnded {
        result: &'a RawResult,
        recording: Option<&'a ToolRecording>,
    },
    /// A node lacks the tool of a step, and the step's alternative command ran.
    ToolMissing {
        step: &'a PlanStep,
        why: &'a str,
    },
    /// From here on, outputs are not kept.
    DiskFull {
        why: &'a str,
    },
    ConfirmationRefused(&'a PlanLintError),
    ConfirmationPlanned {
        plan: &'a Plan,
        wait: Duration,
    },
    /// The first signal: running processes are stopped.
    StopRequested {
        signal: &'a str,
    },
    /// The second signal: running processes are killed.
    KillRequested,
    Ended,
}

/// Shows the events of a sweep on standard error.
#[derive(Debug)]
pub struct SweepProgress {
    silent: bool,
    state: Mutex<ProgressState>,
}

#[derive(Debug, Default)]
struct ProgressState {
    bar: Option<ProgressBar>,
    /// Estimated seconds of the plan, and of the rounds that are done.
    planned: f64,
    done: f64,
    rounds: usize,
    ended: usize,
    /// The start of the plan, and how much of it was done before.
    start: Option<Instant>,
    before: f64,
    failed: usize,
    /// Nodes without a worker.
    unreachable: BTreeSet<NodeName>,
    /// By probe and reported line of this round: the further nodes with the same line.
    repeated: BTreeMap<(String, String), BTreeSet<NodeName>>,
}

impl SweepProgress {
    /// Shows nothing.
    pub fn silent() -> Self {
        Self { silent: true, state: Mutex::default() }
    }

    /// Shows the events on standard error.
    pub fn to_stderr() -> Self {
        Self { silent: false, state: Mutex::default() }
    }

    pub(super) fn report(&self, event: SweepEvent<'_>) {
        match event {
            SweepEvent::WorkerRemark(text) => self.print_line(text),
            SweepEvent::WorkersMissing(nodes) => self.lock_state().unreachable = nodes,
            SweepEvent::PlanStarted(plan) => self.begin_plan(plan),
            SweepEvent::RoundSkipped { round, parallel } => {
                let mut state = self.lock_state();
                state.before += cost::estimate_round(round, parallel);
                state.ended += 1;
            }
            SweepEvent::RoundEnded { round, parallel, took } => {
                self.finish_round(round, parallel, took);
            }
            SweepEvent::ReadingEnded { result, recording } => {
                self.report_reading(result, recording);
            }
            SweepEvent::ToolMissing { step, why } => {
                let (probe, location) = (&step.probe, step.location());
                let itself = "the built-in probe runs instead, on all nodes without the tool";
                self.print_line(&format!("{probe} on {location}: {why}; {itself}"));
            }
            SweepEvent::DiskFull { why } => self
                .print_line(&format!("{why}: outputs are not kept, and their results are unknown")),
            SweepEvent::ConfirmationRefused(error) => {
                self.print_line(&format!("not confirming: the plan breaks its own rules: {error}"));
            }
            SweepEvent::ConfirmationPlanned { plan, wait } => self.print_line(&format!(
                "confirming: {} steps on {} nodes, in {:.0} s, when transient causes have passed",
                plan.steps().count(),
                plan.nodes().len(),
                wait.as_secs_f64()
            )),
            SweepEvent::StopRequested { signal } => {
                let text = "stopping running processes, keeping results; a second signal kills";
                self.print_line(&format!("{signal}: {text}"));
            }
            SweepEvent::KillRequested => {
                self.print_line("killing running processes; results are kept");
            }
            SweepEvent::Ended => {
                if let Some(bar) = self.lock_state().bar.take() {
                    bar.finish_and_clear();
                }
            }
        }
    }

    fn print_line(&self, text: &str) {
        if self.silent {
            return;
        }
        let write_line = || {
            // A closed standard error must not stop the sweep.
            let _ = writeln!(anstream::stderr().lock(), "{}", plain_text::to_plain_lines(text));
        };
        match &self.lock_state().bar {
            Some(bar) => bar.suspend(write_line),
            None => write_line(),
        }
    }

    fn begin_plan(&self, plan: &Plan) {
        let mut state = self.lock_state();
        if let Some(bar) = state.bar.take() {
            bar.finish_and_clear();
        }
        let unreachable = std::mem::take(&mut state.unreachable);
        *state = ProgressState {
            unreachable,
            planned: plan.rounds.iter().map(|r| cost::estimate_round(r, plan.parallel)).sum(),
            rounds: plan.rounds.len(),
            start: Some(Instant::now()),
            ..ProgressState::default()
        };
        if !self.silent && std::io::stderr().is_terminal() {
            let bar = ProgressBar::with_draw_target(
                Some(plan.rounds.len() as u64),
                ProgressDrawTarget::stderr_with_hz(5),
            );
            let style = ProgressStyle::with_template("{wide_bar} round {pos}/{len}  {msg}");
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
            state.bar = Some(bar);
        }
    }

    /// Prints a line for a reading that failed, except for the many readings that an
    /// interruption ends.
    fn report_reading(&self, result: &RawResult, recording: Option<&ToolRecording>) {
        if result.ending == ProcessEnding::Interrupted {
            return;
        }
        let Some(text) = describe_failure(result, recording) else { return };
        self.lock_state().failed += 1;
        if self.is_unreported(result, &text) {
            let (location, probe, seconds) = (result.location(), &result.probe, result.duration_s);
            self.print_line(&format!("{location} {probe}: {seconds:.1} s, {text}"));
        }
    }

    /// Whether this line is new in this round; further nodes with the same line are
    /// reported together when the round ends.
    fn is_unreported(&self, result: &RawResult, text: &str) -> bool {
        let mut state = self.lock_state();
        let is_unreachable = |node: &NodeName| state.unreachable.contains(node);
        if matches!(result.ending, ProcessEnding::NotStarted { .. })
            && result.nodes.iter().any(is_unreachable)
        {
            return false;
        }
        let names = result.nodes.iter().map(NodeName::as_str).collect();
        let key = (result.probe.clone(), reason_groups::remove_names(text, &names));
        match state.repeated.entry(key) {
            Entry::Vacant(first) => {
                first.insert(BTreeSet::new());
                true
            }
            Entry::Occupied(mut known) => {
                known.get_mut().extend(result.nodes.iter().cloned());
                false
            }
        }
    }

    fn finish_round(&self, round: &PlanRound, parallel: usize, took: Duration) {
        self.report_repeated();
        let line = {
            let mut state = self.lock_state();
            state.done += cost::estimate_round(round, parallel);
            state.ended += 1;
            let left = state.remaining_time();
            if let Some(bar) = &state.bar {
                bar.set_position(state.ended as u64);
                bar.set_message(format!("{}, {left}", round.what));
                return;
            }
            let width = state.rounds.to_string().len();
            format!(
                "[{:>width$}/{}] stage {} {}: {} in {:.2} s, {left}",
                state.ended,
                state.rounds,
                round.stage,
                round.what,
                format_step_count(round.steps.len()),
                took.as_secs_f64(),
            )
        };
        self.print_line(&line);
    }

    /// Prints the further nodes of the lines of this round.
    fn report_repeated(&self) {
        let repeated = std::mem::take(&mut self.lock_state().repeated);
        for ((probe, _), nodes) in repeated.iter().filter(|(_, nodes)| !nodes.is_empty()) {
            let list = hostlist::fold(nodes.iter().map(NodeName::as_str));
            self.print_line(&format!("{list} {probe}: the same"));
        }
    }

    fn lock_state(&self) -> std::sync::MutexGuard<'_, ProgressState> {
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl ProgressState {
    /// The remaining time, from the pace so far.
    fn remaining_time(&self) -> String {
        let ahead = self.planned - self.done - self.before;
        let spent = self.start.map_or(0.0, |start| start.elapsed().as_secs_f64());
        // The first rounds give no reliable pace: the plan's estimate counts until a tenth of it is
        // done.
        let pace = if self.planned * 0.1 < self.done { spent / self.done } else { 1.0 };
        match ahead * pace {
            left if left < 0.5 => "done".to_owned(),
            left if left < 90.0 => format!("about {left:.0} s left"),
            left => format!("about {:.0} min left", left / 60.0),
        }
    }
}

fn format_step_count(count: usize) -> String {
    match count {
        1 => "1 step".to_owned(),
        count => format!("{count} steps"),
    }
}

/// A line for a failed reading.
fn describe_failure(result: &RawResult, recording: Option<&ToolRecording>) -> Option<String> {
    let how = match (result.gap_reason(), recording) {
        (Some(why), _) => why,
        (None, Some(recording)) if recording.parsed.complete => return None,
        (None, Some(recording)) => match recording.parsed.problems.first() {
            Some(problem) => format!("incomplete, {}: {}", problem.kind.as_str(), problem.detail),
            None => "incomplete".to_owned(),
        },
        (None, None) => "nothing to read".to_owned(),
    };
    Some(how)
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::raw_result::RESULT_FORMAT;

    #[test]
    fn a_line_has_place_probe_duration_and_ending() {
        let mut result = RawResult {
            format: RESULT_FORMAT.to_owned(),
            step: 2,
            stage: 1,
            domain: None,
            nodes: vec!["node0003".into()],
            rail: None,
            probe: "nvbandwidth".to_owned(),
            reading: 0,
            argv: Vec::new(),
            ending: ProcessEnding::Exited { code: 1 },
            started: String::new(),
            duration_s: 12.06,
            stdout: None,
            stderr: None,
            sent: Vec::new(),
            stdout_dropped: 0,
            stderr_dropped: 0,
            not_kept: None,
            complaint: Some("no device".to_owned()),
            load: None,
            gpus: Vec::new(),
        };
        assert_eq!(
            describe_failure(&result, None).expect("a failure"),
            "exit code 1; last line on stderr: no device"
        );
        result.ending = ProcessEnding::Exited { code: 0 };
        let mut recording = ToolRecording::new(
            model::tool_recording::RecordingScope::Node("node0003".into()),
            "f",
            readers::outputs::parse_output(b""),
        );
        recording.parsed.complete = true;
        assert_eq!(describe_failure(&result, Some(&recording)), None);
    }

    #[test]
    fn the_remaining_time_follows_the_pace_once_known() {
        let mut state = ProgressState { planned: 600.0, done: 30.0, ..ProgressState::default() };
        state.start = Instant::now().checked_sub(Duration::from_secs(60));
        assert_eq!(state.remaining_time(), "about 10 min left");
        state.done = 300.0;
        assert_eq!(state.remaining_time(), "about 60 s left");
        state.done = 600.0;
        assert_eq!(state.remaining_time(), "done");
    }
}
