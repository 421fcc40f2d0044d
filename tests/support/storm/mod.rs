//! Common parts of the chaos tests of a stand-in and of real schedulers: episodes from seeds,
//! injected faults, and the model that judges them.
//!
//! `FABRICGATE_CHAOS_RUNS` sets the number of episodes, `FABRICGATE_CHAOS_SEED` the first one's
//! seed, `FABRICGATE_CHAOS_LATE_S` the maximum delay of a change. An episode's seed decides its
//! faults; the machine's timing decides which line of the program they meet.

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

/// Runs this many episodes, or the number from the environment, and fails if one of them broke an
/// invariant. `again` is the command that repeats them.
#[expect(clippy::print_stdout, reason = "a chaos test prints its seeds")]
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
            let mut all = all.lock().expect("no thread panicked");
            all.drains += done.drains;
            all.releases += done.releases;
            all.undone += done.undone;
            all.refused += done.refused;
            all.tripped += done.tripped;
        }
        let mut faults = faults.lock().expect("no thread panicked");
        for fault in befell {
            *faults.entry(fault).or_default() += 1;
        }
        // Immediately: the output of an interrupted series shows its progress.
        let time = begun.elapsed().as_secs();
        if broken.is_empty() {
            println!("seed {seed}: kept, {time} s, {done:?}");
            return;
        }
        println!("seed {seed}: broken, {time} s, {done:?}: {broken:#?}");
        // The invariants last: of a long output often only the end is kept.
        let summary = format!(
            "{}\nseed {seed}: FABRICGATE_CHAOS_SEED={seed} FABRICGATE_CHAOS_RUNS=1 {again}\n{}",
            story.join("\n"),
            broken.join("\n")
        );
        failed.lock().expect("no thread panicked").push(summary);
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
    let faults = faults.into_inner().expect("no thread panicked");
    let all = all.into_inner().expect("no thread panicked");
    println!(
        "{runs} episodes from seed {first} in {} s; episodes that met each fault: {faults:?}; in \
         all {all:?}",
        begun.elapsed().as_secs()
    );
    if fates::faketime().is_none() {
        println!("SKIPPED: wrong clocks, no libfaketime here");
    }
    let failed = failed.into_inner().expect("no thread panicked");
    assert!(failed.is_empty(), "{}", failed.join("\n\n"));
    // A gate without actions keeps every invariant. A few episodes with other seeds may have had
    // no reason to drain.
    let enough = 20 <= runs || first == 1 && 6 <= runs;
    assert!(!enough || 0 < all.drains, "no node was drained in {runs} episodes: {faults:?}");
}
