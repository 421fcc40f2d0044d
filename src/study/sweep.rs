//! One sweep in one process: the rounds of the fast stage, readings until they
//! decide, the judge, the second look, the last word.
//!
//! Plan, sequential test, judge and second look are those of a live sweep; only
//! the launcher, the tools and the disk are left out.

use std::collections::BTreeSet;

use super::instrument::Instrument;
use super::instrument::Sample;
use crate::judge;
use crate::judge::Case;
use crate::judge::Judgement;
use crate::judge::sequential;
use crate::model::parsed::Parsed;
use crate::model::recording::Recording;
use crate::model::verdict::Verdicts;
use crate::plan;
use crate::plan::Plan;
use crate::plan::Request;
use crate::plan::Step;
use crate::plan::Suspect;
use crate::thresholds::builtin;

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
    /// Recordings of both stages, to be compared.
    #[cfg(test)]
    pub(super) recordings: Vec<Recording>,
}

/// Everything read by the rounds of a plan.
#[derive(Debug, Default)]
struct Taken {
    recordings: Vec<Recording>,
    samples: Vec<Sample>,
    matching: Vec<Sample>,
    matched: u64,
    models: Vec<Step>,
    rounds: u64,
    readings: u64,
}

/// Sweeps what a request asks for.
pub(super) fn sweep(request: &Request<'_>, instrument: &mut Instrument<'_>) -> Swept {
    let main = plan::sweep(request);
    let mut taken = Taken::default();
    run(&main, instrument, &mut taken);
    let fast = (taken.rounds, taken.readings);
    sort(&mut taken.recordings);
    let judgement = judged(request, &main, &taken.recordings);
    let suspects = judge::confirm::suspects(&judgement);
    let again = second_look(request, &main, &judgement, &suspects, &taken.recordings);
    let first = judgement.verdicts;
    let mut last = first.clone();
    if let Some(again) = again {
        let mut more = Taken::default();
        run(&again, instrument, &mut more);
        sort(&mut more.recordings);
        let mut both = taken.recordings.clone();
        both.extend(more.recordings.iter().cloned());
        let second = judged(request, &main, &judge::confirm::second_case(&both, &suspects));
        let seen: Vec<&Recording> = more.recordings.iter().collect();
        last = judge::confirm::confirm(&first, &second.verdicts, &seen);
        taken.rounds += more.rounds;
        taken.readings += more.readings;
        taken.recordings = both;
    }
    Swept {
        samples: taken.samples,
        matching: taken.matching,
        first,
        last,
        rounds: taken.rounds,
        readings: taken.readings,
        fast,
        matched: taken.matched,
        models: taken.models,
        #[cfg(test)]
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

fn judged(request: &Request<'_>, plan: &Plan, recordings: &[Recording]) -> Judgement {
    judge::judge(&Case {
        claims: request.claims,
        recordings,
        catalogue: builtin::catalogue(),
        thresholds_digest: "study",
        platform: None,
        cells: false,
        sampled: plan.sampled,
    })
}

/// Runs rounds as a live sweep does: planned readings, then more of the steps
/// whose readings do not decide.
fn run(plan: &Plan, instrument: &mut Instrument<'_>, taken: &mut Taken) {
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
            for (step, read) in round.steps.iter().zip(&mut read) {
                let more = reading < step.most_readings && undecided.contains(&step.step);
                if step.readings <= reading && !more {
                    continue;
                }
                any = true;
                taken.readings += 1;
                let (recording, samples) = instrument.read(step, reading);
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
        }
        taken.recordings.extend(read.into_iter().flatten());
    }
}
