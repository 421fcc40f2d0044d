//! What chaos tests of a stand-in and of real schedulers share: episodes from
//! seeds, what befalls them, and the model that judges them.
//!
//! `FABRICGATE_CHAOS_RUNS` sets how many episodes there are, `FABRICGATE_CHAOS_SEED`
//! the first one's seed, `FABRICGATE_CHAOS_LATE_S` how late a change arrives at most. What befalls an episode is decided by its seed; which line
//! of the program it meets is decided by the machine.

#![allow(dead_code, reason = "not every scheduler needs all of it")]

#[path = "../dice.rs"]
pub(crate) mod dice;
pub(crate) mod episode;
pub(crate) mod fates;
pub(crate) mod hand;
pub(crate) mod journal;
pub(crate) mod log;
pub(crate) mod model;
pub(crate) mod runs;
pub(crate) mod site;
pub(crate) mod slurm;
pub(crate) mod world;

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use episode::{Done, Ended, Episode};

pub(crate) fn number(name: &str, usual: u64) -> u64 {
    std::env::var(name).map_or(usual, |text| text.parse().expect("a number"))
}

/// Plays so many episodes, or as many as the environment asks for, and fails where
/// one of them broke a promise. `again` is the command that plays them.
#[expect(clippy::print_stdout, reason = "which seeds were played is told")]
pub(crate) fn play(
    again: &str,
    usual: u64,
    at_once: usize,
    episode: impl Fn(u64) -> Episode + Sync,
) {
    let begun = Instant::now();
    let first = number("FABRICGATE_CHAOS_SEED", 1);
    let runs = number("FABRICGATE_CHAOS_RUNS", usual);
    let next = AtomicU64::new(first);
    let faults: Mutex<BTreeMap<&'static str, usize>> = Mutex::default();
    let failed: Mutex<Vec<String>> = Mutex::default();
    let all: Mutex<Done> = Mutex::default();
    let one = |seed: u64| {
        let begun = Instant::now();
        let Ended { story, broken, faults: befell, done } = episode(seed).play();
        {
            let mut all = all.lock().expect("nobody panicked");
            all.drains += done.drains;
            all.releases += done.releases;
            all.undone += done.undone;
            all.refused += done.refused;
            all.tripped += done.tripped;
        }
        let mut faults = faults.lock().expect("nobody panicked");
        for fault in befell {
            *faults.entry(fault).or_default() += 1;
        }
        // At once: of a series that is ended early it is known how far it came.
        let time = begun.elapsed().as_secs();
        if broken.is_empty() {
            println!("seed {seed}: kept, {time} s, {done:?}");
            return;
        }
        println!("seed {seed}: broken, {time} s, {done:?}: {broken:#?}");
        // The promises last: of a long output often its end alone is kept.
        let told = format!(
            "{}\nseed {seed}: FABRICGATE_CHAOS_SEED={seed} FABRICGATE_CHAOS_RUNS=1 {again}\n{}",
            story.join("\n"),
            broken.join("\n")
        );
        failed.lock().expect("nobody panicked").push(told);
    };
    std::thread::scope(|scope| {
        for _ in 0..at_once {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if first + runs <= seed {
                        return;
                    }
                    one(seed);
                }
            });
        }
    });
    let faults = faults.into_inner().expect("nobody panicked");
    let all = all.into_inner().expect("nobody panicked");
    println!(
        "{runs} episodes from seed {first} in {} s; episodes that met each fault: {faults:?}; in \
         all {all:?}",
        begun.elapsed().as_secs()
    );
    if fates::faketime().is_none() {
        println!("SKIPPED: wrong clocks, there is no libfaketime here");
    }
    let failed = failed.into_inner().expect("nobody panicked");
    assert!(failed.is_empty(), "{}", failed.join("\n\n"));
    // A gate that does nothing keeps every promise. Of a few episodes with other seeds
    // none may have had a reason to drain.
    let enough = 20 <= runs || first == 1 && 6 <= runs;
    assert!(!enough || 0 < all.drains, "nobody was drained in {runs} episodes: {faults:?}");
}
