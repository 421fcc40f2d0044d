//! One sweep in one process: the rounds of the fast stage, readings until they
//! decide, the judge, the second look, the last word.
//!
//! Plan, sequential test, judge and second look are those of a live sweep; only
//! the launcher, the tools and the disk are left out. Who takes the readings is a
//! [`Reader`]: of one fabric at one moment, or of a fleet whose time goes on.

use std::collections::BTreeSet;

use super::instrument::Sample;
use engine::judge;
use engine::judge::Case;
use engine::judge::Judgement;
use engine::judge::sequential;
use engine::plan;
use engine::plan::Plan;
use engine::plan::Request;
use engine::plan::Step;
use engine::plan::Suspect;
use engine::thresholds::Catalogue;
use engine::thresholds::builtin;
use model::claims::Claims;
use model::history::History;
use model::parsed::Parsed;
use model::recording::Recording;
use model::verdict::Verdicts;

/// Takes readings.
pub(super) trait Reader {
    /// One reading of a step: the output as it was read, and its numbers.
    fn read(&mut self, step: &Step, reading: u32) -> (Recording, Vec<Sample>);

    /// So many seconds went by: a pass of a round, or a wait.
    fn passed(&mut self, _seconds: f64) {}
}

/// Seconds until suspects are measured again, where nothing is configured.
pub(super) const CONFIRM_AFTER_S: f64 = 30.0;

/// What a sweep gave.
#[derive(Debug)]
pub(super) struct Swept {
    /// What was read in the fast stage, in order.
    pub(super) samples: Vec<Sample>,
    /// What was read in the first round of each probe, first readings only.
    pub(super) matching: Vec<Sample>,
    /// The judge's first word.
    pub(super) first: Verdicts,
    /// The word after the second look.
    pub(super) last: Verdicts,
    /// Pairs were sampled on purpose.
    pub(super) sampled: bool,
    /// Times that all nodes waited for the slowest: rounds, and passes of them.
    pub(super) rounds: u64,
    /// Readings of pairs of nodes.
    pub(super) readings: u64,
    /// Rounds and readings of the fast stage alone.
    pub(super) fast: (u64, u64),
    /// Readings of the first rounds.
    pub(super) matched: u64,
    /// The first step of each probe.
    pub(super) models: Vec<Step>,
    /// Recordings of both stages.
    pub(super) recordings: Vec<Recording>,
}

/// Everything read by the rounds of a plan.
#[derive(Debug, Default)]
pub(super) struct Taken {
    pub(super) recordings: Vec<Recording>,
    samples: Vec<Sample>,
    matching: Vec<Sample>,
    matched: u64,
    models: Vec<Step>,
    rounds: u64,
    readings: u64,
}

/// What readings are compared with, and when suspects are looked at again.
#[derive(Clone, Copy, Debug)]
pub(super) struct Against<'a> {
    /// The expectations in force.
    pub(super) catalogue: &'a Catalogue,
    /// What parts showed in earlier runs.
    pub(super) history: &'a History,
    /// Seconds until the second look.
    pub(super) confirm_after_s: f64,
}

/// Sweeps what a request asks for.
pub(super) fn sweep(request: &Request<'_>, reader: &mut impl Reader) -> Swept {
    let against = Against {
        catalogue: builtin::catalogue(),
        history: &History::default(),
        confirm_after_s: CONFIRM_AFTER_S,
    };
    sweep_against(request, reader, against)
}

/// The same against something else.
pub(super) fn sweep_against(
    request: &Request<'_>,
    reader: &mut impl Reader,
    against: Against<'_>,
) -> Swept {
    let Against { history, confirm_after_s, .. } = against;
    let without = Against { history: &History::default(), ..against };
    let main = plan::sweep(request);
    let mut taken = Taken::default();
    run(&main, reader, &mut taken);
    let fast = (taken.rounds, taken.readings);
    sort(&mut taken.recordings);
    // Suspects are looked for without history, as in a live sweep.
    let judgement = judged(request, &main, &taken.recordings, without);
    let suspects = judge::confirm::suspects(&judgement);
    let again = second_look(request, &main, &judgement, &suspects, &taken.recordings);
    let first = if history.is_empty() {
        judgement
    } else {
        judged(request, &main, &taken.recordings, against)
    };
    let mut last = first.verdicts.clone();
    if let Some(again) = again {
        let mut more = Taken::default();
        reader.passed(confirm_after_s);
        run(&again, reader, &mut more);
        sort(&mut more.recordings);
        let mut both = taken.recordings.clone();
        both.extend(more.recordings.iter().cloned());
        let second = judge::confirm::second_case(&both, &suspects);
        let second = judged(request, &main, &second, without);
        let seen = case(request.claims, &more.recordings, against.catalogue, main.sampled);
        last = judge::confirm::confirm(&first, &second.verdicts, &seen);
        taken.rounds += more.rounds;
        taken.readings += more.readings;
        taken.recordings = both;
    }
    Swept {
        samples: taken.samples,
        matching: taken.matching,
        first: first.verdicts,
        last,
        sampled: main.sampled,
        rounds: taken.rounds,
        readings: taken.readings,
        fast,
        matched: taken.matched,
        models: taken.models,
        recordings: taken.recordings,
    }
}

/// The order in which a live sweep judges: that of names.
fn sort(recordings: &mut [Recording]) {
    recordings.sort_by(|a, b| (&a.scope, &a.file).cmp(&(&b.scope, &b.file)));
}

/// Whom to look at again and with whom; `None` where nobody is suspected.
fn second_look(
    request: &Request<'_>,
    main: &Plan,
    judgement: &Judgement,
    suspects: &[judge::confirm::Suspect],
    recordings: &[Recording],
) -> Option<Plan> {
    let probes = |files: &BTreeSet<String>| {
        let names = request.probes.iter().map(|probe| &probe.name);
        let raised = |name: &&String| files.iter().any(|file| file.contains(&format!("/{name}.")));
        names.filter(raised).cloned().collect()
    };
    let suspects: Vec<Suspect> = suspects
        .iter()
        .map(|suspect| Suspect {
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
    let cleared = judge::confirm::cleared(judgement, recordings);
    let plan = plan::confirm(main, request, &suspects, &cleared, main.seed.wrapping_add(1));
    (!plan.rounds.is_empty()).then_some(plan)
}

/// The judge's word on some recordings.
fn judged(
    request: &Request<'_>,
    plan: &Plan,
    recordings: &[Recording],
    against: Against<'_>,
) -> Judgement {
    let case = case(request.claims, recordings, against.catalogue, plan.sampled);
    judge::judge_against(&case, against.history)
}

/// What is judged.
pub(super) fn case<'a>(
    claims: &'a Claims,
    recordings: &'a [Recording],
    catalogue: &'a Catalogue,
    sampled: bool,
) -> Case<'a> {
    Case {
        claims,
        recordings,
        catalogue,
        thresholds_digest: "study",
        platform: None,
        cells: false,
        sampled,
    }
}

/// Runs rounds as a live sweep does: planned readings, then more of the steps
/// whose readings do not decide.
pub(super) fn run(plan: &Plan, reader: &mut impl Reader, taken: &mut Taken) {
    let mut begun: BTreeSet<String> = BTreeSet::new();
    for round in &plan.rounds {
        let is_first = round.steps.first().is_some_and(|step| begun.insert(step.probe.clone()));
        if is_first {
            taken.models.extend(round.steps.first().cloned());
        }
        let most = round.steps.iter().map(|step| step.most_readings).max().unwrap_or(0);
        let mut read: Vec<Vec<Recording>> = round.steps.iter().map(|_| Vec::new()).collect();
        for reading in 0..most {
            let undecided = if round.steps.iter().all(|step| reading < step.readings) {
                BTreeSet::new()
            } else {
                let paths: Vec<_> = round
                    .steps
                    .iter()
                    .zip(&read)
                    .flat_map(|(step, read)| {
                        let outputs: Vec<&Parsed> = read.iter().map(|r| &r.parsed).collect();
                        sequential::paths(step.step, &outputs)
                    })
                    .collect();
                sequential::undecided(&paths).into_iter().collect()
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
                    taken.matched += 1;
                    taken.matching.extend(samples.iter().copied());
                }
                taken.samples.extend(samples);
                read.push(recording);
            }
            if !any {
                break;
            }
            taken.rounds += 1;
            reader.passed(longest);
        }
        taken.recordings.extend(read.into_iter().flatten());
    }
}
