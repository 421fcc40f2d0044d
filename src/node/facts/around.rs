//! What the driver says around a probe: before it, while it runs, after it.
//!
//! A process of its own asks, because a call into a driver can hang: [`watch`]
//! is what it does, and [`of`] makes one account of what it said. Whoever
//! started it waits for [`has_begun`] within a bound, closes its input when the
//! probe has ended, and keeps what was said until then. Judges nothing: a GPU
//! that says little is one of which little is known.

use std::collections::BTreeMap;
use std::io;
use std::io::Read;
use std::io::Write;
use std::path::Path;
use std::sync::mpsc;
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

use serde::Deserialize;
use serde::Serialize;

use super::asking::Asking;
use super::asking::printable;
use super::library::GpuLibrary;
use super::library::Number;
use super::library::Question;
use super::library::Refusal;
use super::library::Text;
use super::link;
use model::node_facts::Missing;
use model::probed::GpuState;
use model::throttle::ThrottleReason;

mod account;

pub use account::of;

/// How long the driver is left alone between two samples.
const EVERY: Duration = Duration::from_millis(100);

/// Processes are asked for with every so many samples: once a second.
const PROCESSES_EVERY: u32 = 10;

/// The number that the kernel gives the first space of process numbers
/// (`PROC_PID_INIT_INO` of its `proc_ns.h`).
const FIRST_PROCESS_SPACE: &str = "pid:[4026531836]";

/// A line of the process that asks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Line {
    /// There is no driver to ask.
    NoDriver {
        /// Why, and what to do.
        why: String,
    },
    /// The machine.
    Machine {
        /// How many GPUs.
        gpus: u32,
        /// Whether the driver's process numbers are those of this machine: inside
        /// a container they are others.
        own_numbers: bool,
        /// What it would not say.
        missing: Vec<Missing>,
    },
    /// A GPU before the probe.
    Before(Box<Reading>),
    /// All GPUs were read: the probe may begin.
    Begun,
    /// The most a GPU showed so far while the probe ran.
    Load(Box<Load>),
    /// A GPU after the probe.
    After(Box<Reading>),
    /// That was all.
    End,
}

/// Everything about a GPU at a moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct Reading {
    index: u32,
    uuid: Option<String>,
    state: GpuState,
    /// Error counters of each link. Pairs, because a line says first what it is,
    /// and keys that are numbers cannot be read then.
    links: Vec<(u32, BTreeMap<String, u64>)>,
    pcie_replays: Option<u64>,
    processes: Vec<u32>,
    missing: Vec<Missing>,
}

/// What was seen of a GPU while the probe ran.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct Load {
    index: u32,
    /// How often it was asked.
    samples: u32,
    /// The most of everything.
    state: GpuState,
    /// Every process that was ever seen.
    processes: Vec<u32>,
    /// What it would not say, and had not been told before.
    missing: Vec<Missing>,
}

/// Says that there is no driver.
pub fn refuse(why: &str, out: &mut dyn Write) -> io::Result<()> {
    say(&Line::NoDriver { why: why.to_owned() }, out)
}

/// Whether this line of the process that asks says that the probe may begin:
/// everything that is compared later was read, or there is nothing to read.
pub fn has_begun(line: &str) -> bool {
    let line = serde_json::from_str(line);
    matches!(line, Ok(Line::Begun | Line::NoDriver { .. } | Line::End))
}

/// Waits for a while, or until this input ends: then it is true, and so for
/// ever.
pub fn until_closed(mut input: impl Read + Send + 'static) -> impl FnMut(Duration) -> bool {
    let (closing, closed) = mpsc::channel::<()>();
    std::thread::spawn(move || {
        // Whatever is written there is no message; only the end is.
        let _ = io::copy(&mut input, &mut io::sink());
        drop(closing);
    });
    move |wait| matches!(closed.recv_timeout(wait), Err(RecvTimeoutError::Disconnected))
}

/// Asks for everything, then again and again for what changes quickly until
/// `rest` says that the probe has ended, then for everything once more.
///
/// `rest` waits that long. `progress` is told what comes next, so that whoever
/// listens knows where a driver hangs; it stays silent while it samples.
pub fn watch(
    library: &dyn GpuLibrary,
    proc: &Path,
    out: &mut dyn Write,
    progress: &mut dyn Write,
    mut rest: impl FnMut(Duration) -> bool,
) -> io::Result<()> {
    let mut note = |what: &str| {
        // Nobody may listen, which is no reason to stop.
        let _ = writeln!(progress, "{what}").and_then(|()| progress.flush());
    };
    note("the driver itself");
    let machine = super::gpu::machine(library);
    let gpus = machine.gpus.unwrap_or(0);
    let is_count = |missing: &Missing| missing.what == "gpu count";
    let missing = machine.missing.into_iter().filter(is_count).collect();
    say(&Line::Machine { gpus, own_numbers: has_own_numbers(proc), missing }, out)?;
    let mut loads = Vec::new();
    for index in 0..gpus {
        let reading = reading(library, index, &mut |part| note(&format!("GPU {index}: {part}")));
        let told = reading.missing.clone();
        loads.push((Load { index, ..Load::default() }, told));
        say(&Line::Before(Box::new(reading)), out)?;
    }
    say(&Line::Begun, out)?;
    note("what GPUs do while the probe runs");
    while !rest(EVERY) {
        for (load, told) in &mut loads {
            if sample(library, load, told) {
                say(&Line::Load(Box::new(load.clone())), out)?;
                load.missing.clear();
            }
        }
    }
    for (load, _) in loads {
        // The count goes on while nothing else changes.
        say(&Line::Load(Box::new(load)), out)?;
    }
    for index in 0..gpus {
        let reading = reading(library, index, &mut |part| note(&format!("GPU {index}: {part}")));
        say(&Line::After(Box::new(reading)), out)?;
    }
    say(&Line::End, out)
}

fn say(line: &Line, out: &mut dyn Write) -> io::Result<()> {
    serde_json::to_writer(&mut *out, line)?;
    out.write_all(b"\n")?;
    out.flush()
}

/// Whether this process counts processes as the driver does, which is in the
/// kernel and knows the first numbers only.
fn has_own_numbers(proc: &Path) -> bool {
    let space = std::fs::read_link(proc.join("self/ns/pid"));
    space.is_ok_and(|space| space.as_os_str() == FIRST_PROCESS_SPACE)
}

fn reading(library: &dyn GpuLibrary, index: u32, begin: &mut dyn FnMut(&str)) -> Reading {
    let mut asking = Asking::of(library, index);
    begin("identity");
    let uuid = asking.text_of(Question::Text(Text::Uuid));
    if let Err(Refusal::GpuLost) = uuid {
        asking.kept::<()>("identity", Err(Refusal::GpuLost));
        return Reading { index, missing: asking.missing(), ..Reading::default() };
    }
    let uuid = asking.kept("uuid", uuid).map(|uuid| printable(&uuid));
    let architecture = asking.number(Number::Architecture);
    begin("NVLink counters");
    let links = link::counters(&mut asking, architecture).into_iter().collect();
    begin("PCI Express");
    let pcie_replays = asking.number(Number::PcieReplays);
    begin("clocks and power");
    let state = state(&mut asking);
    begin("processes");
    let processes = processes(&mut asking);
    let missing = asking.missing();
    Reading { index, uuid, state, links, pcie_replays, processes, missing }
}

/// Asks for what changes quickly; whether anything did.
fn sample(library: &dyn GpuLibrary, load: &mut Load, told: &mut Vec<Missing>) -> bool {
    let mut asking = Asking::of(library, load.index);
    let before = (load.state.clone(), load.processes.len());
    account::raise(&mut load.state, &state(&mut asking));
    if load.samples.is_multiple_of(PROCESSES_EVERY) {
        load.processes.extend(processes(&mut asking));
        load.processes.sort_unstable();
        load.processes.dedup();
    }
    load.samples += 1;
    for missing in asking.missing() {
        if !told.contains(&missing) {
            told.push(missing.clone());
            load.missing.push(missing);
        }
    }
    before != (load.state.clone(), load.processes.len()) || !load.missing.is_empty()
}

fn state(asking: &mut Asking<'_>) -> GpuState {
    let power = asking.small(Number::PowerDraw);
    GpuState {
        sm_mhz: asking.small(Number::ClockSm),
        memory_mhz: asking.small(Number::ClockMemory),
        // The driver counts in mW.
        power_w: power.map(|mw| f64::from(mw) / 1000.0),
        temperature_c: asking.small(Number::Temperature),
        pcie_generation: asking.small(Number::PcieGeneration),
        pcie_width: asking.small(Number::PcieWidth),
        throttled: asking
            .number(Number::Throttling)
            .map(ThrottleReason::of_bits)
            .unwrap_or_default(),
    }
}

fn processes(asking: &mut Asking<'_>) -> Vec<u32> {
    let found = asking.processes_of(Question::Processes);
    let found = asking.kept("processes", found).unwrap_or_default();
    found.into_iter().map(|process| process.pid).collect()
}

#[cfg(test)]
mod tests;
