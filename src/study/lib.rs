//! Simulates many sweeps, and counts how often the whole scheme finds faults and how often it
//! blames healthy parts, compared with simpler rules on the same readings.
//!
//! The study is separate from the simulator because it depends on plan and judge: it runs them like
//! a live sweep, without processes. A seed determines everything, so the number of threads makes no
//! difference.

#![forbid(unsafe_code)]

mod baselines;
mod closed_form;
mod figure;
mod instrument;
mod score;
mod sweep;
mod table;
#[cfg(test)]
mod tests;
mod world;
pub mod year;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use instrument::{OutputShapes, SimInstrument};
use world::StudyGround;

use engine::plan::{PlanLimits, PlanRequest};
use model::probe::Probe;
use model::profile::Profile;
use readers::probe_catalog::ProbeCatalog;
use sim::fabric::SimFabric;
use sim::noise::NoiseKey;

pub use baselines::BASELINES;
pub use closed_form::ClosedFormOdds;
pub use figure::render_svg;
pub use score::StudyTally;
pub use table::{STUDY_FORMAT, StudyDocument, build_document, render_text};
pub use world::{StudySetting, StudyWorld};

/// Readings of a step, minimum and maximum: a sweep's defaults.
const READINGS: [u32; 2] = [1, 5];

/// Result of one point of the study.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StudyPoint {
    /// The simulated setting.
    pub setting: StudySetting,
    /// Score of fabricgate's scheme.
    pub scheme: StudyTally,
    /// Scores of the simpler rules, in the order of [`BASELINES`].
    pub baselines: [StudyTally; 5],
}

/// Runs many sweeps of one setting on this many threads.
pub fn run_study(setting: StudySetting, trials: u64, seed: u64, threads: usize) -> StudyPoint {
    let ground = StudyGround::new(setting.world);
    let next = AtomicU64::new(0);
    let point = StudyPoint {
        setting,
        scheme: StudyTally::default(),
        baselines: [StudyTally::default(); 5],
    };
    let total = Mutex::new(point);
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(|| {
                let catalog = ProbeCatalog::built_in();
                let names = setting.world.probes().iter();
                let probes: Vec<&Probe> = names.filter_map(|name| catalog.get(name)).collect();
                let mut shapes = OutputShapes::new();
                loop {
                    let trial = next.fetch_add(1, Ordering::Relaxed);
                    if trials <= trial {
                        break;
                    }
                    let key = trial_key(&setting, seed, trial);
                    let (ours, rivals) = run_trial(&ground, &setting, key, &probes, &mut shapes);
                    let mut total = total.lock().unwrap_or_else(PoisonError::into_inner);
                    total.scheme.add(&ours);
                    for (sum, one) in total.baselines.iter_mut().zip(&rivals) {
                        sum.add(one);
                    }
                }
            });
        }
    });
    total.into_inner().unwrap_or_else(PoisonError::into_inner)
}

fn trial_key(setting: &StudySetting, seed: u64, trial: u64) -> NoiseKey {
    let key = NoiseKey::from_seed(seed)
        .with_name(setting.world.as_str())
        .with_part(setting.sigma.to_bits());
    key.with_part(setting.loss.to_bits()).with_part(setting.faults as u64).with_part(trial)
}

/// The plan request of a trial's sweep.
fn build_request<'a>(
    ground: &'a StudyGround,
    probes: &'a [&'a Probe],
    key: NoiseKey,
) -> PlanRequest<'a> {
    PlanRequest {
        claims: &ground.claims,
        profile: Profile::Audit,
        probes,
        readings: READINGS[0],
        most_readings: READINGS[1],
        parallel: ground.world.units(),
        seed: key.with_name("plan").value(),
        nvlink_across: &ground.nvlink_domains,
        limits: PlanLimits::default(),
    }
}

/// Runs one sweep and scores all rules.
fn run_trial(
    ground: &StudyGround,
    setting: &StudySetting,
    key: NoiseKey,
    probes: &[&Probe],
    shapes: &mut OutputShapes,
) -> (StudyTally, [StudyTally; 5]) {
    let faulty = ground.draw_faulty_parts(setting, key);
    let scenario = ground.build_scenario(setting, key, &faulty);
    let fabric = SimFabric::build(&scenario).expect("a scenario of the study can be built");
    let mut instrument =
        SimInstrument { scenario: &scenario, fabric: &fabric, shapes, renders_outputs: false };
    let swept = sweep::run_sweep(&build_request(ground, probes, key), &mut instrument);
    let (blamed, retests) =
        baselines::accuse_parts(ground.world, ground.expected, &swept, &instrument);
    let mut rivals = blamed.map(|blamed| StudyTally::from_accused(&blamed, &faulty));
    let [one_number @ .., retest] = &mut rivals;
    for rival in one_number {
        (rival.rounds, rival.readings) = swept.fast_stage;
    }
    retest.rounds = swept.models.len() as u64 * (1 + u64::from(0 < retests));
    retest.readings = swept.matching_readings + retests;
    let mut scheme = StudyTally::from_verdicts(
        setting,
        &fabric,
        [&swept.first_verdicts, &swept.final_verdicts],
        &faulty,
    );
    (scheme.rounds, scheme.readings) = (swept.rounds, swept.readings);
    (scheme, rivals)
}
