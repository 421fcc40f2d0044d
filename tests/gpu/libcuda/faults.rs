//! Faults and their times: calls that fail, hang or end the process, GPUs that are lost. Counts
//! are of calls in this process, from 1. `lib` lists the lines that describe them.

use std::collections::BTreeMap;
use std::io::Write;
use std::time::Duration;

use crate::description::{Description, wrong};

#[derive(Debug, Default)]
pub struct Faults {
    calls: BTreeMap<&'static str, u64>,
    on_gpu: BTreeMap<u32, u64>,
}

/// Calls that a lost GPU still answers.
const OF_NO_GPU: &[&str] = &[
    "cuInit",
    "cuDriverGetVersion",
    "cuGetErrorName",
    "cuDeviceGetCount",
    "cuDeviceGet",
    "cuDeviceGetName",
    "cuDeviceGetUuid",
    "cuDeviceGetUuid_v2",
    "cuDeviceGetPCIBusId",
    "cuCtxSetCurrent",
    // Checks by itself that the named GPU is not lost.
    "cuDevicePrimaryCtxRetain",
    "cuDevicePrimaryCtxRelease_v2",
];

/// The effect of a fault on a call.
#[derive(Debug)]
pub enum Fate {
    Answer,
    Fail(i32),
    Hang,
    Die,
}

impl Faults {
    /// Counts a call, made while this GPU's context was current.
    pub fn of_call(
        &mut self,
        description: &Description,
        call: &'static str,
        gpu: Option<u32>,
    ) -> Fate {
        let count = self.calls.entry(call).or_default();
        *count += 1;
        let nth = *count;
        if let Some(path) = description.get::<String>(&["calls"]) {
            note(&path, call);
        }
        if description.get(&["die", call]) == Some(nth) {
            return Fate::Die;
        }
        if description.get(&["hang", call]) == Some(nth) {
            return Fate::Hang;
        }
        if let Some(text) = description.get::<String>(&["fail", call]) {
            let words: Vec<&str> = text.split_whitespace().collect();
            let hits = match words.get(1).copied() {
                None => true,
                Some("at") => number(&words, 2) == nth,
                Some("from") => number(&words, 2) <= nth,
                Some(_) => wrong(&text),
            };
            if hits {
                return Fate::Fail(i32::try_from(number(&words, 0)).unwrap_or(999));
            }
        }
        match gpu {
            Some(gpu) if !OF_NO_GPU.contains(&call) => {
                *self.on_gpu.entry(gpu).or_default() += 1;
                self.is_lost(description, gpu).map_or(Fate::Answer, Fate::Fail)
            }
            _ => Fate::Answer,
        }
    }

    /// The answer of a lost GPU.
    pub fn is_lost(&self, description: &Description, gpu: u32) -> Option<i32> {
        let text: String = description.get(&["lost", &gpu.to_string()])?;
        let words: Vec<&str> = text.split_whitespace().collect();
        let after = if words.len() < 3 { 0 } else { number(&words, 2) };
        let so_far = self.on_gpu.get(&gpu).copied().unwrap_or(0);
        (after < so_far).then(|| i32::try_from(number(&words, 0)).unwrap_or(999))
    }
}

fn number(words: &[&str], at: usize) -> u64 {
    let word = words.get(at).copied().unwrap_or_default();
    word.parse().unwrap_or_else(|_| wrong(&format!("{words:?} cannot be read")))
}

/// Records a call in a file, one a line, for tests of the order of calls. A line is one write:
/// the processes of a machine share the file, and partial writes would mix.
fn note(path: &str, call: &str) {
    let file = std::fs::OpenOptions::new().append(true).create(true).open(path);
    let line = format!("{} {call}\n", std::process::id());
    let written = file.and_then(|mut file| file.write_all(line.as_bytes()));
    if let Err(error) = written {
        wrong(&format!("{path}: {error}"));
    }
}

/// Never returns, as a driver's call on a broken machine.
pub fn hang() -> ! {
    loop {
        std::thread::sleep(Duration::from_secs(3600));
    }
}
