//! One round: runs the copies, and decides whether the result counts.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::batch::{BatchFailure, BatchOutcome};
use super::handshake::PeerReport;
use super::membership::MembershipUpdate;
use super::pairs::{CrossNodeTest, GpuFlow};
use super::peer_memory::ArrivalCheck;
use super::window::CopySpan;
use super::{CrossNodeSweep, batch, data, slowest_exchange_ms, window};
use crate::probes::copy::pattern::{CopyPattern, DataDifference, WORD};
use crate::probes::protocol::{ProbeAbort, ProbeMatrixCell, ProbeMessage};
use model::parse_output::OutputProblemKind;
use model::probe_problem_class::ProbeProblemClass;
use model::probe_report::ProbeProblem;

/// Maximum attempts for a bisection whose windows are not covered.
const ATTEMPTS: u32 = 4;

/// Minimum copy rate to wait for, in bytes per second: a hundredth of PCIe. A slower copy counts as
/// stuck.
const MIN_BYTES_PER_S: f64 = 0.5e9;

pub(super) struct CopyRound<'r> {
    pub(super) testcase: &'r str,
    pub(super) kind: CrossNodeTest,
    pub(super) reading: u32,
    pub(super) flows: &'r [GpuFlow],
    /// Description for progress messages.
    pub(super) name: String,
}

impl CrossNodeSweep<'_, '_, '_> {
    /// Measures the remaining pairs of a round.
    pub(super) fn run_round(&mut self, round: &CopyRound<'_>) -> Result<(), ProbeAbort> {
        let mut rates: Option<BTreeMap<GpuFlow, f64>> = None;
        for attempt in 1..=ATTEMPTS {
            if self.active_flows(round).is_empty() {
                break;
            }
            let known = match rates.take() {
                Some(known) => known,
                None => self.warm_up_round(round)?,
            };
            let last_closes = self.agree_on_close(round, &known)?;
            let stamp = format!("{} attempt {attempt}", round.name);
            self.prepare_round(round, &stamp)?;
            let (took, update) = self.run_copies(round, &known, last_closes)?;
            if round.kind == CrossNodeTest::Bisect && !self.is_covered(round, &update) {
                if attempt < ATTEMPTS {
                    // The duration of this round's exchanges is a better estimate than earlier
                    // ones.
                    self.skew_ms =
                        self.skew_ms.max(window::plan_skew(slowest_exchange_ms(&update)));
                    rates = Some(known.into_iter().chain(took).collect());
                    continue;
                }
                self.check_round(round, &stamp, None)?;
                let what = format!(
                    "the copies of the nodes did not overlap for long enough, {ATTEMPTS} times \
                     (the last exchange took {:.0} ms): larger buffers make copies last \
                     longer",
                    slowest_exchange_ms(&update)
                );
                self.emit_round_problem(
                    round,
                    ProbeProblem::new(
                        OutputProblemKind::Error,
                        ProbeProblemClass::UnevenRound,
                        what,
                    ),
                )?;
                break;
            }
            return self.check_round(round, &stamp, Some(&took));
        }
        self.is_complete &= !round.flows.iter().any(|flow| self.membership.is_local(flow.issuer));
        Ok(())
    }

    /// The copies of a round that can be measured.
    fn active_flows(&self, round: &CopyRound<'_>) -> Vec<GpuFlow> {
        round.flows.iter().filter(|flow| self.membership.can_copy(flow)).copied().collect()
    }

    /// Warms up; returns the duration of one copy for each copy of this process.
    fn warm_up_round(
        &mut self,
        round: &CopyRound<'_>,
    ) -> Result<BTreeMap<GpuFlow, f64>, ProbeAbort> {
        let left = self.active_flows(round);
        self.emitter.announce_step(&format!(
            "{}: warming up {}",
            round.name,
            self.describe_flows(&left)
        ));
        let lanes: Vec<_> = left
            .iter()
            .filter_map(|flow| self.memory.lane(*flow, self.bytes, &self.membership))
            .collect();
        let limit = self.time_limit(self.task.warmup.saturating_add(2));
        let outcome = batch::warm_up_lanes(&lanes, self.task.warmup, limit);
        self.record_outcome(round, outcome)
    }

    /// Shares when the last window of this process will close; returns when the last window of all
    /// will.
    fn agree_on_close(
        &mut self,
        round: &CopyRound<'_>,
        known: &BTreeMap<GpuFlow, f64>,
    ) -> Result<f64, ProbeAbort> {
        let own =
            known.values().map(|ms| window::window_close_ms(*ms, self.task.copies, self.skew_ms));
        let closes_ms = own.reduce(f64::max);
        let step = format!("{}, warm", round.name);
        let update =
            self.exchange_reports(&step, PeerReport { closes_ms, ..PeerReport::default() })?;
        Ok(update.reports.values().filter_map(|report| report.closes_ms).fold(0.0, f64::max))
    }

    /// Writes this round's data to the sources and clears the destinations.
    fn prepare_round(&mut self, round: &CopyRound<'_>, stamp: &str) -> Result<(), ProbeAbort> {
        for flow in self.active_flows(round) {
            let pattern = self.flow_pattern(flow, stamp);
            let doing = format!("preparing {} for {}", self.describe_flows(&[flow]), round.name);
            self.emitter.announce_step(&doing);
            let stamped = self.memory.stamp(flow.from, &pattern);
            if let Err(error) = stamped {
                self.drop_rank(flow.from, &error, &doing)?;
            }
            if let Err(error) = self.memory.clear(flow.to, &pattern) {
                self.drop_rank(flow.to, &error, &doing)?;
            }
        }
        self.exchange_reports(&format!("{}, ready", round.name), PeerReport::default())?;
        self.exchange_reports(&format!("{}, begin", round.name), PeerReport::default())?;
        Ok(())
    }

    /// Runs the copies; returns the duration of one copy for each copy of this process, and the
    /// others' reports.
    fn run_copies(
        &mut self,
        round: &CopyRound<'_>,
        known: &BTreeMap<GpuFlow, f64>,
        last_closes: f64,
    ) -> Result<(BTreeMap<GpuFlow, f64>, MembershipUpdate), ProbeAbort> {
        let (left, began_ms) = (self.active_flows(round), self.last_exchange_ms);
        let lanes: Vec<_> = left
            .iter()
            .filter_map(|flow| {
                let ms = *known.get(flow)?;
                let plan = window::plan_copies(ms, self.task.copies, last_closes, self.skew_ms);
                let (lane, engine) = self.memory.lane(*flow, self.bytes, &self.membership)?;
                Some((lane, engine, plan))
            })
            .collect();
        let most = lanes.iter().map(|(_, _, plan)| plan.before + plan.window + plan.after).max();
        let limit = self.time_limit(most.unwrap_or(0));
        self.emitter.announce_step(&format!(
            "{}: copying {}",
            round.name,
            self.describe_flows(&left)
        ));
        let (outcome, span) = batch::run_batch(&lanes, limit);
        // Report problems afterwards: no process waits between the answer and the first copy.
        let took = self.record_outcome(round, outcome)?;
        let report = PeerReport { span, exchange_ms: Some(began_ms), ..PeerReport::default() };
        let update = self.exchange_reports(&format!("{}, copied", round.name), report)?;
        Ok((took, update))
    }

    /// True if the copies of all others covered every window.
    fn is_covered(&self, round: &CopyRound<'_>, update: &MembershipUpdate) -> bool {
        let left = self.active_flows(round);
        let members: BTreeSet<usize> =
            left.iter().filter_map(|flow| self.membership.member_of(flow.issuer)).collect();
        let spans = members.iter().map(|member| update.reports.get(member)?.span);
        let spans: Option<Vec<CopySpan>> = spans.collect();
        // A lost member took part of the load away.
        update.gone.is_empty()
            && spans.is_some_and(|spans| {
                window::are_windows_covered(&spans, slowest_exchange_ms(update))
            })
    }

    /// Compares the data received here, collects the results from elsewhere, and reports numbers of
    /// copies with correct data.
    fn check_round(
        &mut self,
        round: &CopyRound<'_>,
        stamp: &str,
        took: Option<&BTreeMap<GpuFlow, f64>>,
    ) -> Result<(), ProbeAbort> {
        let mut report = PeerReport::default();
        for flow in self.active_flows(round) {
            let pattern = self.flow_pattern(flow, stamp);
            let doing = format!("comparing the data of {}", self.describe_flows(&[flow]));
            self.emitter.announce_step(&doing);
            match self.memory.compare(flow.to, &pattern) {
                Ok(None) => {}
                Ok(Some(ArrivalCheck::Correct)) => report.right.push((flow.from, flow.to)),
                Ok(Some(ArrivalCheck::Wrong(difference))) => {
                    report.wrong.push((
                        flow.from,
                        flow.to,
                        describe_difference(&difference, &pattern),
                    ));
                }
                Ok(Some(ArrivalCheck::ReadbackCorrupted(difference))) => {
                    report.right.push((flow.from, flow.to));
                    let how = describe_difference(&difference, &pattern);
                    let what = format!(
                        "the data of {} was corrupted on its way to the host, which compares it: \
                         {how}; a second reading was correct",
                        self.describe_flows(&[flow])
                    );
                    self.emit_spoiled(Some(round.testcase), flow.to, what)?;
                }
                Err(error) => self.drop_rank(flow.to, &error, &doing)?,
            }
        }
        let update = self.exchange_reports(&format!("{}, compared", round.name), report)?;
        let mine = round.flows.iter().filter(|flow| self.membership.is_local(flow.issuer));
        for flow in mine.copied().collect::<Vec<_>>() {
            let there =
                self.membership.member_of(flow.to).and_then(|member| update.reports.get(&member));
            let wrong = there.and_then(|report| {
                report.wrong.iter().find(|(from, to, _)| (*from, *to) == (flow.from, flow.to))
            });
            if let Some((_, _, how)) = wrong {
                self.emit_wrong(round, flow, how)?;
                continue;
            }
            let right = there.is_some_and(|report| report.right.contains(&(flow.from, flow.to)));
            let took = took.and_then(|took| took.get(&flow)).filter(|_| right);
            match took {
                Some(ms) => self.emit_number(round, flow, *ms)?,
                None => self.is_complete = false,
            }
        }
        Ok(())
    }

    fn emit_number(
        &mut self,
        round: &CopyRound<'_>,
        flow: GpuFlow,
        ms: f64,
    ) -> Result<(), ProbeAbort> {
        let value = self.bytes as f64 / (ms * 1e6);
        if !value.is_finite() || ms <= 0.0 {
            let what = format!("the measured time of {} is zero", self.describe_flows(&[flow]));
            return self.emit_round_problem(
                round,
                ProbeProblem::new(OutputProblemKind::Inconsistent, ProbeProblemClass::NoTime, what),
            );
        }
        let (row, col) = flow.labels(round.kind);
        let (testcase, reading) = (round.testcase.to_owned(), round.reading);
        Ok(self.emitter.emit(&ProbeMessage::Cell(ProbeMatrixCell {
            testcase,
            row,
            col,
            reading,
            value,
        }))?)
    }

    fn emit_wrong(
        &mut self,
        round: &CopyRound<'_>,
        flow: GpuFlow,
        how: &str,
    ) -> Result<(), ProbeAbort> {
        let what = format!("the data of {} is wrong: {how}", self.describe_flows(&[flow]));
        let mut problem =
            ProbeProblem::new(OutputProblemKind::Corrupt, ProbeProblemClass::WrongData, what);
        problem.gpu =
            self.membership.local_ranks().find(|it| it.rank == flow.issuer).map(|it| it.gpu);
        self.emit_round_problem(round, problem)
    }

    /// Reports data corrupted between a GPU of this process and the host.
    pub(super) fn emit_spoiled(
        &mut self,
        testcase: Option<&str>,
        rank: u32,
        what: String,
    ) -> Result<(), ProbeAbort> {
        let mut problem =
            ProbeProblem::new(OutputProblemKind::Corrupt, ProbeProblemClass::WrongData, what);
        problem.gpu = self.membership.local_ranks().find(|it| it.rank == rank).map(|it| it.gpu);
        problem.testcase = testcase.map(str::to_owned);
        self.emit_problem(problem)
    }

    fn emit_round_problem(
        &mut self,
        round: &CopyRound<'_>,
        problem: ProbeProblem,
    ) -> Result<(), ProbeAbort> {
        self.emit_problem(ProbeProblem { testcase: Some(round.testcase.to_owned()), ..problem })
    }

    /// Records the results, and drops the ranks whose copies failed.
    fn record_outcome(
        &mut self,
        round: &CopyRound<'_>,
        outcome: BatchOutcome,
    ) -> Result<BTreeMap<GpuFlow, f64>, ProbeAbort> {
        let mut kept = BTreeMap::new();
        for (flow, result) in outcome {
            match result {
                Ok(ms) => {
                    kept.insert(flow, ms);
                }
                Err(BatchFailure::Refused(error)) => {
                    let doing = format!("copying {}", self.describe_flows(&[flow]));
                    self.drop_rank(flow.issuer, &error, &doing)?;
                }
                Err(BatchFailure::Stuck(limit)) => {
                    self.is_stuck = true;
                    let what = format!(
                        "copying {} did not end within {:.0} s: the other node, its IMEX daemon \
                         or the NVLink between them may be gone",
                        self.describe_flows(&[flow]),
                        limit.as_secs_f64()
                    );
                    self.lost.insert(flow.issuer, what.clone());
                    let mut problem = ProbeProblem::new(
                        OutputProblemKind::Error,
                        ProbeProblemClass::CopyStuck,
                        what,
                    );
                    let mine = self.membership.local_ranks().find(|it| it.rank == flow.issuer);
                    problem.gpu = mine.map(|it| it.gpu);
                    self.emit_round_problem(round, problem)?;
                }
            }
        }
        Ok(kept)
    }

    fn flow_pattern(&self, flow: GpuFlow, stamp: &str) -> CopyPattern {
        let copy = format!("{stamp} {}->{}", flow.from, flow.to);
        data::new_pattern(&self.membership.rank_label(flow.from), &copy, self.bytes)
    }

    fn describe_flows(&self, flows: &[GpuFlow]) -> String {
        let one = |flow: &GpuFlow| {
            format!(
                "{} -> {}",
                self.membership.rank_label(flow.from),
                self.membership.rank_label(flow.to)
            )
        };
        flows.iter().map(one).collect::<Vec<_>>().join(", ")
    }

    /// Time limit for this many copies.
    fn time_limit(&self, copies: u32) -> Duration {
        let slowest = self.bytes as f64 / MIN_BYTES_PER_S * f64::from(copies);
        Duration::from_secs_f64(slowest.clamp(5.0, 30.0))
    }
}

pub(super) fn describe_difference(difference: &DataDifference, pattern: &CopyPattern) -> String {
    format!(
        "{} of {} words differ, the first at byte {} ({:#010x} instead of {:#010x})",
        difference.words,
        pattern.bytes / WORD,
        difference.first,
        difference.found,
        difference.expected
    )
}
