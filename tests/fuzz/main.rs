//! Fuzz targets for everything that reads text from outside, run by
//! `cargo test` for a bounded number of iterations.
//!
//! The inputs are the same every time. `FABRICGATE_FUZZ_ITERATIONS` makes more of them (for each
//! target), `FABRICGATE_FUZZ_SEED` others. A failing input is stored in a file; its seed with one
//! iteration makes it again.

mod cables_and_jobs;
mod corpus;
#[path = "../support/dice.rs"]
mod dice;
mod documents;
pub(crate) mod doors;
mod huge;
mod kept;
mod mutation;
mod properties;
mod slurm;
mod stored;
mod tools;
mod wrappings;

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use dice::Dice;

/// Longest time for one input. Any input takes milliseconds; a busy machine cannot explain this
/// much.
const HANGS: Duration = Duration::from_secs(20);

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text}: expected a number")))
}

/// Runs one target: `make` an input from dice, `check` it. Both may panic.
fn fuzz(
    target: &str,
    default_iterations: u64,
    make: impl Fn(&mut Dice) -> Vec<u8> + Send + 'static,
    check: impl Fn(&[u8]) + Send + 'static,
) {
    let iterations = number("FABRICGATE_FUZZ_ITERATIONS").unwrap_or(default_iterations);
    let first = number("FABRICGATE_FUZZ_SEED").unwrap_or(1);
    // The watcher must know the hanging input.
    let current = Arc::new(Mutex::new((first, Vec::new())));
    let shown = Arc::clone(&current);
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        for seed in first..first.saturating_add(iterations) {
            let input = make(&mut Dice::new(seed));
            *shown.lock().expect("no holder panics") = (seed, input.clone());
            let failed = catch_unwind(AssertUnwindSafe(|| check(&input))).is_err();
            if sender.send(failed).is_err() || failed {
                return;
            }
        }
    });
    let mut done = 0;
    loop {
        let what = match receiver.recv_timeout(HANGS) {
            Ok(false) => {
                done += 1;
                continue;
            }
            Err(RecvTimeoutError::Disconnected) if done == iterations => return,
            Ok(true) => "fails",
            Err(RecvTimeoutError::Timeout) => "hangs",
            Err(RecvTimeoutError::Disconnected) => "makes no input",
        };
        let (seed, input) = current.lock().expect("no holder panics").clone();
        let path = keep(target, seed, &input);
        panic!(
            "{target} {what}: {}; again with FABRICGATE_FUZZ_SEED={seed} \
             FABRICGATE_FUZZ_ITERATIONS=1",
            path.display()
        );
    }
}

fn keep(target: &str, seed: u64, input: &[u8]) -> PathBuf {
    let path = std::env::temp_dir().join(format!("fabricgate-fuzz-{target}-{seed}.bin"));
    fs::write(&path, input).expect("a failing input can be kept");
    path
}
