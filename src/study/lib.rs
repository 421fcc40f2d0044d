//! How often the whole scheme finds what is wrong, and how often it blames the
//! innocent, over many simulated sweeps; and what simpler rules do on the same
//! readings.
//!
//! It stands outside the simulator because it knows plan and judge: it runs
//! them as a live sweep does, without processes. A seed decides everything, so
//! the number of threads makes no difference.

mod figure;
mod instrument;
mod odds;
mod rivals;
mod score;
mod sweep;
mod table;
#[cfg(test)]
mod tests;
mod world;
pub mod year;

use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;

use instrument::Instrument;
use instrument::Shapes;
use world::Ground;

use engine::plan::Limits;
use engine::plan::Request;
use model::probe::Probe;
use model::profile::Profile;
use readers::probe_catalog::Catalog;
use sim::fabric::Fabric;
use sim::noise::Key;

pub use figure::svg;
pub use odds::Odds;
pub use rivals::RIVALS;
pub use score::Tally;
pub use table::STUDY_FORMAT;
pub use table::StudyDocument;
pub use table::json;
pub use table::text;
pub use world::Setting;
pub use world::World;

/// Readings of a step while they do not decide: what a sweep has when nothing
/// is configured.
const READINGS: [u32; 2] = [1, 5];

/// What one point of the study came to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// What was simulated.
    pub setting: Setting,
    /// The scheme as a whole.
    pub ours: Tally,
    /// The simpler rules, in the order of [`RIVALS`].
    pub rivals: [Tally; 5],
}

/// Many sweeps of one setting, on so many threads.
pub fn study(setting: Setting, trials: u64, seed: u64, threads: usize) -> Point {
    let ground = Ground::of(setting.world);
    let next = AtomicU64::new(0);
    let point = Point { setting, ours: Tally::default(), rivals: [Tally::default(); 5] };
    let total = Mutex::new(point);
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(|| {
                let catalog = Catalog::built_in();
                let names = setting.world.probes().iter();
                let probes: Vec<&Probe> = names.filter_map(|name| catalog.get(name)).collect();
                let mut shapes = Shapes::new();
                loop {
                    let trial = next.fetch_add(1, Ordering::Relaxed);
                    if trials <= trial {
                        break;
                    }
                    let key = key(&setting, seed, trial);
                    let (ours, rivals) = trial_of(&ground, &setting, key, &probes, &mut shapes);
                    let mut total = total.lock().unwrap_or_else(PoisonError::into_inner);
                    total.ours.add(&ours);
                    for (sum, one) in total.rivals.iter_mut().zip(&rivals) {
                        sum.add(one);
                    }
                }
            });
        }
    });
    total.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// The key of all chance of one trial.
fn key(setting: &Setting, seed: u64, trial: u64) -> Key {
    let key = Key::of(seed).named(setting.world.as_str()).with(setting.sigma.to_bits());
    key.with(setting.loss.to_bits()).with(setting.faults as u64).with(trial)
}

/// What a sweep of a trial is asked.
fn request<'a>(ground: &'a Ground, probes: &'a [&'a Probe], key: Key) -> Request<'a> {
    Request {
        claims: &ground.claims,
        profile: Profile::Audit,
        probes,
        readings: READINGS[0],
        most_readings: READINGS[1],
        parallel: ground.world.units(),
        seed: key.named("plan").value(),
        nvlink_across: &ground.across,
        limits: Limits::default(),
    }
}

/// One sweep and what everybody says of it.
fn trial_of(
    ground: &Ground,
    setting: &Setting,
    key: Key,
    probes: &[&Probe],
    shapes: &mut Shapes,
) -> (Tally, [Tally; 5]) {
    let guilty = ground.guilty(setting, key);
    let scenario = ground.scenario(setting, key, &guilty);
    let fabric = Fabric::build(&scenario).expect("a scenario of the study can be built");
    let mut instrument =
        Instrument { scenario: &scenario, fabric: &fabric, shapes, rendered: false };
    let swept = sweep::sweep(&request(ground, probes, key), &mut instrument);
    let (accused, retests) = rivals::accuse(ground.world, ground.expected, &swept, &instrument);
    let mut rivals = accused.map(|accused| Tally::of_accused(&accused, &guilty));
    let [one_number @ .., retest] = &mut rivals;
    for rival in one_number {
        (rival.rounds, rival.readings) = swept.fast;
    }
    retest.rounds = swept.models.len() as u64 * (1 + u64::from(0 < retests));
    retest.readings = swept.matched + retests;
    let mut ours = Tally::of_verdicts(setting, &fabric, [&swept.first, &swept.last], &guilty);
    (ours.rounds, ours.readings) = (swept.rounds, swept.readings);
    (ours, rivals)
}
