//! Readings from the driver before, during and after a probe.
//!
//! A separate process queries the driver, because a call into a driver can hang: the process runs
//! [`watch_gpus`], and [`summarize_telemetry`] summarizes its output. The parent waits for
//! [`has_begun`] within a time limit, closes the child's input when the probe has ended, and keeps
//! the output up to then. This module judges nothing: a missing reading is unknown.

use std::collections::BTreeMap;
use std::io;
use std::io::{Read, Write};
use std::path::Path;
use std::sync::mpsc;
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::gpu_library::{GpuLibrary, GpuNumber, GpuQuery, GpuQueryError, GpuText};
use super::link;
use super::query::{GpuQuerySession, to_printable};
use model::node_facts::MissingFact;
use model::probe_report::GpuTelemetrySample;
use model::throttle_reason::ThrottleReason;

mod summary;

pub use summary::summarize_telemetry;

/// Pause between two samples.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(100);

/// Compute processes are queried with every tenth sample: once per second.
const PROCESSES_EVERY: u32 = 10;

/// The kernel's fixed inode number of the initial PID namespace (`PROC_PID_INIT_INO` in its
/// `proc_ns.h`).
const HOST_PID_NAMESPACE: &str = "pid:[4026531836]";

/// One line of the child's output.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum TelemetryLine {
    NoDriver {
        /// The reason and the remedy.
        why: String,
    },
    Machine {
        gpus: u32,
        /// True if the driver's process IDs are valid in this process: inside a container they are
        /// not.
        own_numbers: bool,
        /// Facts that the driver did not report.
        missing: Vec<MissingFact>,
    },
    Before(Box<GpuSnapshot>),
    /// All GPUs were read: the probe may begin.
    Begun,
    /// Maxima of a GPU up to now while the probe runs.
    Load(Box<GpuLoad>),
    After(Box<GpuSnapshot>),
    /// End of the readings.
    End,
}

/// All readings of a GPU at one moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct GpuSnapshot {
    index: u32,
    uuid: Option<String>,
    state: GpuTelemetrySample,
    /// Error counters of each link. These are pairs because numeric map keys do not deserialize in
    /// an internally tagged enum.
    links: Vec<(u32, BTreeMap<String, u64>)>,
    pcie_replays: Option<u64>,
    processes: Vec<u32>,
    missing: Vec<MissingFact>,
}

/// Readings of a GPU while the probe ran.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct GpuLoad {
    index: u32,
    samples: u32,
    /// Maxima over all samples.
    state: GpuTelemetrySample,
    /// Every process seen.
    processes: Vec<u32>,
    /// Newly refused facts.
    missing: Vec<MissingFact>,
}

/// Writes the line for a missing driver.
pub fn write_no_telemetry(why: &str, out: &mut dyn Write) -> io::Result<()> {
    write_line(&TelemetryLine::NoDriver { why: why.to_owned() }, out)
}

/// True if this line of the child's output allows the probe to begin: everything needed for the
/// comparison was read, or nothing can be read.
pub fn has_begun(line: &str) -> bool {
    let line = serde_json::from_str(line);
    matches!(line, Ok(TelemetryLine::Begun | TelemetryLine::NoDriver { .. } | TelemetryLine::End))
}

/// Returns a function that waits for a duration or until this input ends, and returns true once it
/// has ended.
pub fn wait_until_closed(mut input: impl Read + Send + 'static) -> impl FnMut(Duration) -> bool {
    let (closing, closed) = mpsc::channel::<()>();
    std::thread::spawn(move || {
        // Discard the input; only its end matters.
        let _ = io::copy(&mut input, &mut io::sink());
        drop(closing);
    });
    move |wait| matches!(closed.recv_timeout(wait), Err(RecvTimeoutError::Disconnected))
}

/// Reads everything, then samples the quickly changing readings until `rest` reports the end of the
/// probe, then reads everything again.
///
/// `rest` waits for a duration. `progress` receives the name of the next query, so that the parent
/// knows where a driver hangs; nothing is reported between samples.
pub fn watch_gpus(
    library: &dyn GpuLibrary,
    proc: &Path,
    out: &mut dyn Write,
    progress: &mut dyn Write,
    mut rest: impl FnMut(Duration) -> bool,
) -> io::Result<()> {
    let mut note = |step: &str| {
        // A closed progress pipe is not a reason to stop.
        let _ = writeln!(progress, "{step}").and_then(|()| progress.flush());
    };
    note("the driver itself");
    let machine = super::gpu::query_machine_report(library);
    let gpus = machine.gpus.unwrap_or(0);
    let is_count = |missing: &MissingFact| missing.what == "gpu count";
    let missing = machine.missing.into_iter().filter(is_count).collect();
    write_line(
        &TelemetryLine::Machine { gpus, own_numbers: is_host_pid_namespace(proc), missing },
        out,
    )?;
    let mut loads = Vec::new();
    for index in 0..gpus {
        let reading =
            read_snapshot(library, index, &mut |part| note(&format!("GPU {index}: {part}")));
        let reported = reading.missing.clone();
        loads.push((GpuLoad { index, ..GpuLoad::default() }, reported));
        write_line(&TelemetryLine::Before(Box::new(reading)), out)?;
    }
    write_line(&TelemetryLine::Begun, out)?;
    note("samples while the probe runs");
    while !rest(SAMPLE_INTERVAL) {
        for (load, reported) in &mut loads {
            if sample(library, load, reported) {
                write_line(&TelemetryLine::Load(Box::new(load.clone())), out)?;
                load.missing.clear();
            }
        }
    }
    for (load, _) in loads {
        // The sample count is written even if no reading changed.
        write_line(&TelemetryLine::Load(Box::new(load)), out)?;
    }
    for index in 0..gpus {
        let reading =
            read_snapshot(library, index, &mut |part| note(&format!("GPU {index}: {part}")));
        write_line(&TelemetryLine::After(Box::new(reading)), out)?;
    }
    write_line(&TelemetryLine::End, out)
}

fn write_line(line: &TelemetryLine, out: &mut dyn Write) -> io::Result<()> {
    serde_json::to_writer(&mut *out, line)?;
    out.write_all(b"\n")?;
    out.flush()
}

/// True if this process is in the initial PID namespace: the driver is in the kernel and reports
/// only IDs of that namespace.
fn is_host_pid_namespace(proc: &Path) -> bool {
    let space = std::fs::read_link(proc.join("self/ns/pid"));
    space.is_ok_and(|space| space.as_os_str() == HOST_PID_NAMESPACE)
}

fn read_snapshot(library: &dyn GpuLibrary, index: u32, begin: &mut dyn FnMut(&str)) -> GpuSnapshot {
    let mut session = GpuQuerySession::new(library, index);
    begin("identity");
    let uuid = session.try_text(GpuQuery::Text(GpuText::Uuid));
    if let Err(GpuQueryError::GpuLost) = uuid {
        session.ok_or_note::<()>("identity", Err(GpuQueryError::GpuLost));
        return GpuSnapshot { index, missing: session.into_missing(), ..GpuSnapshot::default() };
    }
    let uuid = session.ok_or_note("uuid", uuid).map(|uuid| to_printable(&uuid));
    let architecture = session.number(GpuNumber::Architecture);
    begin("NVLink counters");
    let links = link::query_error_counters(&mut session, architecture).into_iter().collect();
    begin("PCI Express");
    let pcie_replays = session.number(GpuNumber::PcieReplays);
    begin("clocks and power");
    let state = read_state(&mut session);
    begin("processes");
    let processes = read_processes(&mut session);
    let missing = session.into_missing();
    GpuSnapshot { index, uuid, state, links, pcie_replays, processes, missing }
}

/// Samples the quickly changing readings; returns whether any maximum rose.
fn sample(library: &dyn GpuLibrary, load: &mut GpuLoad, reported: &mut Vec<MissingFact>) -> bool {
    let mut session = GpuQuerySession::new(library, load.index);
    let before = (load.state.clone(), load.processes.len());
    summary::raise_maxima(&mut load.state, &read_state(&mut session));
    if load.samples.is_multiple_of(PROCESSES_EVERY) {
        load.processes.extend(read_processes(&mut session));
        load.processes.sort_unstable();
        load.processes.dedup();
    }
    load.samples += 1;
    for missing in session.into_missing() {
        if !reported.contains(&missing) {
            reported.push(missing.clone());
            load.missing.push(missing);
        }
    }
    before != (load.state.clone(), load.processes.len()) || !load.missing.is_empty()
}

fn read_state(session: &mut GpuQuerySession<'_>) -> GpuTelemetrySample {
    let power = session.number_u32(GpuNumber::PowerDraw);
    GpuTelemetrySample {
        sm_mhz: session.number_u32(GpuNumber::ClockSm),
        memory_mhz: session.number_u32(GpuNumber::ClockMemory),
        // The driver reports mW.
        power_w: power.map(|mw| f64::from(mw) / 1000.0),
        temperature_c: session.number_u32(GpuNumber::Temperature),
        pcie_generation: session.number_u32(GpuNumber::PcieGeneration),
        pcie_width: session.number_u32(GpuNumber::PcieWidth),
        throttled: session
            .number(GpuNumber::Throttling)
            .map(ThrottleReason::from_bits)
            .unwrap_or_default(),
    }
}

fn read_processes(session: &mut GpuQuerySession<'_>) -> Vec<u32> {
    let found = session.try_processes(GpuQuery::Processes);
    let found = session.ok_or_note("processes", found).unwrap_or_default();
    found.into_iter().map(|process| process.pid).collect()
}

#[cfg(test)]
mod tests;
