//! One sweep in one process: the rounds of the fast stage, readings until they decide, the judge,
//! the second measurement, the final verdicts.
//!
//! Plan, sequential test, judge and confirmation are those of a live sweep; only launcher, tools
//! and disk are omitted. A [`StepReader`] takes the readings: of one fabric at one moment, or of a
//! fleet as time passes.

use std::collections::BTreeSet;

use super::instrument::PairSample;
use engine::judge::{JudgeInput, Judgement, sequential_test};
use engine::plan::{ConfirmationSuspect, Plan, PlanRequest, PlanStep};
use engine::thresholds::{PlatformCatalogue, builtin};
use engine::{judge, plan};
use model::claims::Claims;
use model::parse_output::ParseOutput;
use model::part_history::PartHistory;
use model::tool_recording::ToolRecording;
use model::verdict::Verdicts;

pub(super) trait StepReader {
    /// Takes one reading of a step: the parsed output, and its numbers.
    fn read(&mut self, step: &PlanStep, reading: u32) -> (ToolRecording, Vec<PairSample>);

    /// Advances the clock by a pass of a round, or a wait.
    fn advance_time(&mut self, _seconds: f64) {}
}

/// Default seconds until suspects are measured again.
pub(super) const CONFIRM_AFTER_S: f64 = 30.0;

#[derive(Debug)]
pub(super) struct StudySweep {
    /// Readings of the fast stage, in order.
    pub(super) samples: Vec<PairSample>,
    /// First readings of the first round of each probe.
    pub(super) matching: Vec<PairSample>,
    /// The judge's verdicts before the second measurement.
    pub(super) first_verdicts: Verdicts,
    /// The verdicts after the second measurement.
    pub(super) final_verdicts: Verdicts,
    /// Whether only a sample of the pairs was planned.
    pub(super) sampled: bool,
    /// Number of rounds and their repetitions, in each of which all nodes wait for the slowest.
    pub(super) rounds: u64,
    /// Readings of pairs of nodes.
    pub(super) readings: u64,
    /// Rounds and readings of the fast stage alone.
    pub(super) fast_stage: (u64, u64),
    /// Readings of the first rounds.
    pub(super) matching_readings: u64,
    /// The first step of each probe.
    pub(super) models: Vec<PlanStep>,
    pub(super) recordings: Vec<ToolRecording>,
}

/// All readings of a plan's rounds.
#[derive(Debug, Default)]
pub(super) struct StudyReadings {
    pub(super) recordings: Vec<ToolRecording>,
    samples: Vec<PairSample>,
    matching: Vec<PairSample>,
    matching_readings: u64,
    models: Vec<PlanStep>,
    rounds: u64,
    readings: u64,
}

/// References for readings, and the delay of the second measurement.
#[derive(Clone, Copy, Debug)]
pub(super) struct StudyReference<'a> {
    pub(super) catalogue: &'a PlatformCatalogue,
    /// Levels of parts in earlier runs.
    pub(super) history: &'a PartHistory,
    pub(super) confirm_after_s: f64,
}

/// Runs the sweep of a request.
pub(super) fn run_sweep(request: &PlanRequest<'_>, reader: &mut impl StepReader) -> StudySweep {
    let against = StudyReference {
        catalogue: builtin::builtin_catalogue(),
        history: &PartHistory::default(),
        confirm_after_s: CONFIRM_AFTER_S,
    };
    run_sweep_against(request, reader, against)
}

/// Like [`run_sweep`], with other references.
pub(super) fn run_sweep_against(
    request: &PlanRequest<'_>,
    reader: &mut impl StepReader,
    against: StudyReference<'_>,
) -> StudySweep {
    let StudyReference { history, confirm_after_s, .. } = against;
    let without = StudyReference { history: &PartHistory::default(), ..against };
    let main = plan::plan_sweep(request);
    let mut taken = StudyReadings::default();
    run_rounds(&main, reader, &mut taken);
    let fast = (taken.rounds, taken.readings);
    sort_recordings(&mut taken.recordings);
    // Suspects are selected without history, as in a live sweep.
    let judgement = judge_recordings(request, &main, &taken.recordings, without);
    let suspects = judge::confirm::find_suspects(&judgement);
    let again = plan_confirmation(request, &main, &judgement, &suspects, &taken.recordings);
    let first = if history.is_empty() {
        judgement
    } else {
        judge_recordings(request, &main, &taken.recordings, against)
    };
    let mut last = first.verdicts.clone();
    if let Some(again) = again {
        let mut more = StudyReadings::default();
        reader.advance_time(confirm_after_s);
        run_rounds(&again, reader, &mut more);
        sort_recordings(&mut more.recordings);
        let mut both = taken.recordings.clone();
        both.extend(more.recordings.iter().cloned());
        let second = judge::confirm::select_confirm_recordings(&both, &suspects);
        let second = judge_recordings(request, &main, &second, without);
        let seen = build_case(request.claims, &more.recordings, against.catalogue, main.sampled);
        last = judge::confirm::apply_confirmation(&first, &second.verdicts, &seen);
        taken.rounds += more.rounds;
        taken.readings += more.readings;
        taken.recordings = both;
    }
    StudySweep {
        samples: taken.samples,
        matching: taken.matching,
        first_verdicts: first.verdicts,
        final_verdicts: last,
        sampled: main.sampled,
        rounds: taken.rounds,
        readings: taken.readings,
        fast_stage: fast,
        matching_readings: taken.matching_readings,
        models: taken.models,
        recordings: taken.recordings,
    }
}

/// Sorts recordings by name, the order in which a live sweep judges.
fn sort_recordings(recordings: &mut [ToolRecording]) {
    recordings.sort_by(|a, b| (&a.scope, &a.file).cmp(&(&b.scope, &b.file)));
}

/// Plans the second measurement with its partners; `None` without a suspect.
fn plan_confirmation(
    request: &PlanRequest<'_>,
    main: &Plan,
    judgement: &Judgement,
    suspects: &[judge::confirm::ConfirmSuspect],
    recordings: &[ToolRecording],
) -> Option<Plan> {
    let probes = |files: &BTreeSet<String>| {
        let names = request.probes.iter().map(|probe| &probe.name);
        let raised = |name: &&String| files.iter().any(|file| file.contains(&format!("/{name}.")));
        names.filter(raised).cloned().collect()
    };
    let suspects: Vec<ConfirmationSuspect> = suspects
        .iter()
        .map(|suspect| ConfirmationSuspect {
            node: suspect.node.clone(),
            peer: suspect.peer.clone(),
            rail: suspect.rail.clone(),
            gpus: suspect.gpus,
            probes: probes(&suspect.files),
        })
        .collect();
    if suspects.is_empty() {
        return None;
    }
    let cleared = judge::confirm::find_cleared_nodes(judgement, recordings);
    let plan =
        plan::plan_confirmation(main, request, &suspects, &cleared, main.seed.wrapping_add(1));
    (!plan.rounds.is_empty()).then_some(plan)
}

fn judge_recordings(
    request: &PlanRequest<'_>,
    plan: &Plan,
    recordings: &[ToolRecording],
    against: StudyReference<'_>,
) -> Judgement {
    let case = build_case(request.claims, recordings, against.catalogue, plan.sampled);
    judge::judge_run(&case, against.history)
}

pub(super) fn build_case<'a>(
    claims: &'a Claims,
    recordings: &'a [ToolRecording],
    catalogue: &'a PlatformCatalogue,
    sampled: bool,
) -> JudgeInput<'a> {
    JudgeInput {
        claims,
        recordings,
        catalogue,
        thresholds_digest: "study",
        platform: None,
        cells: false,
        sampled,
    }
}

/// Runs rounds like a live sweep: planned readings, then more readings of undecided steps.
pub(super) fn run_rounds(plan: &Plan, reader: &mut impl StepReader, taken: &mut StudyReadings) {
    let mut begun: BTreeSet<String> = BTreeSet::new();
    for round in &plan.rounds {
        let is_first = round.steps.first().is_some_and(|step| begun.insert(step.probe.clone()));
        if is_first {
            taken.models.extend(round.steps.first().cloned());
        }
        let most = round.steps.iter().map(|step| step.most_readings).max().unwrap_or(0);
        let mut read: Vec<Vec<ToolRecording>> = round.steps.iter().map(|_| Vec::new()).collect();
        for reading in 0..most {
            let undecided = if round.steps.iter().all(|step| reading < step.readings) {
                BTreeSet::new()
            } else {
                let paths: Vec<_> = round
                    .steps
                    .iter()
                    .zip(&read)
                    .flat_map(|(step, read)| {
                        let outputs: Vec<&ParseOutput> = read.iter().map(|r| &r.parsed).collect();
                        sequential_test::collect_paths(step.step, &outputs)
                    })
                    .collect();
                sequential_test::undecided_steps(&paths).into_iter().collect()
            };
            let mut any = false;
            let mut longest = 0.0_f64;
            for (step, read) in round.steps.iter().zip(&mut read) {
                let more = reading < step.most_readings && undecided.contains(&step.step);
                if step.readings <= reading && !more {
                    continue;
                }
                any = true;
                taken.readings += 1;
                longest = longest.max(step.estimate_s);
                let (recording, samples) = reader.read(step, reading);
                if is_first && reading == 0 {
                    taken.matching_readings += 1;
                    taken.matching.extend(samples.iter().copied());
                }
                taken.samples.extend(samples);
                read.push(recording);
            }
            if !any {
                break;
            }
            taken.rounds += 1;
            reader.advance_time(longest);
        }
        taken.recordings.extend(read.into_iter().flatten());
    }
}
