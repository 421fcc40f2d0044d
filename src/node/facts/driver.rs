//! Queries the driver in a separate process.
//!
//! A call into a driver can hang, and a thread in such a call cannot be ended; the library can also
//! crash the whole process. A child process makes the calls. It prints each answer as one JSON
//! document per line, and prints each call to standard error before it makes it. The parent ends it
//! when the time limit expires and keeps the answers up to then.

use std::io;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::time::timeout;

use super::gpu::{GpuReport, MachineReport};
use super::gpu_library::GpuLibrary;
use super::query::merge_missing;
use super::{FactsRequest, gpu};
use crate::exec;
use crate::exec::{FinishedProcess, ProcessContext, ProcessRequest};
use model::gpu_facts::GpuFacts;
use model::node_facts::{DriverFacts, MissingFact};
use model::raw_result::ProcessEnding;

/// Bytes of the answer to keep. A GPU with 18 links takes about 12 kB.
const CAPTURE: usize = 4 * 1024 * 1024;

/// How long to wait for the process to end before leaving it behind: a process that hangs inside
/// the kernel cannot be killed.
const ENDING: Duration = Duration::from_secs(6);

/// One line of the child's output.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum DriverFactsLine {
    NoDriver {
        /// The reason and the remedy.
        why: String,
    },
    Machine(Box<MachineReport>),
    Gpu(Box<GpuReport>),
    /// End of the facts; without it they are incomplete.
    End,
}

/// Writes the line for a missing driver.
pub fn write_no_driver(why: &str, out: &mut dyn Write) -> io::Result<()> {
    write_line(&DriverFactsLine::NoDriver { why: why.to_owned() }, out)
}

/// Queries a library for all facts and writes them; runs in the child process. `progress` receives
/// the name of the next query.
pub fn write_driver_facts(
    library: &dyn GpuLibrary,
    proc: &Path,
    out: &mut dyn Write,
    progress: &mut dyn Write,
) -> io::Result<()> {
    let mut note = |step: &str| {
        // A closed progress pipe is not a reason to stop.
        let _ = writeln!(progress, "{step}").and_then(|()| progress.flush());
    };
    note("the driver itself");
    let machine = gpu::query_machine_report(library);
    let gpus = machine.gpus.unwrap_or(0);
    write_line(&DriverFactsLine::Machine(Box::new(machine)), out)?;
    for index in 0..gpus {
        let mut begin = |part: &str| note(&format!("GPU {index}: {part}"));
        let report = gpu::query_gpu_report(library, proc, index, &mut begin);
        write_line(&DriverFactsLine::Gpu(Box::new(report)), out)?;
    }
    write_line(&DriverFactsLine::End, out)
}

fn write_line(line: &DriverFactsLine, out: &mut dyn Write) -> io::Result<()> {
    serde_json::to_writer(&mut *out, line)?;
    out.write_all(b"\n")?;
    out.flush()
}

#[derive(Debug, Default)]
pub(super) struct DriverReport {
    pub(super) driver: Option<DriverFacts>,
    /// The GPUs; absent if the query ended before they were counted.
    pub(super) gpus: Option<Vec<GpuFacts>>,
    /// Facts that the driver did not report.
    pub(super) missing: Vec<MissingFact>,
    pub(super) trouble: Option<String>,
}

/// Starts the child process and reads its answers.
pub(super) async fn query_driver(facts_request: &FactsRequest<'_>) -> DriverReport {
    let mut argv = vec![facts_request.executable.display().to_string()];
    argv.extend(["node", "driver-facts"].map(str::to_owned));
    let options = [
        ("--nvml", facts_request.nvml),
        ("--record", facts_request.record),
        ("--root", Some(facts_request.root)),
    ];
    for (name, path) in options {
        if let Some(path) = path {
            argv.extend([name.to_owned(), path.display().to_string()]);
        }
    }
    let request = ProcessRequest { argv, limit: facts_request.limit, capture: CAPTURE };
    let guard = Some(facts_request.executable.to_owned());
    let setting = ProcessContext { guard, ..ProcessContext::default() };
    let (_keep, stop) = watch::channel(false);
    let mut ignore = |_: exec::ProcessEvent<'_>| {};
    let running = exec::run_observed(&request, &setting, stop, &mut ignore);
    match timeout(facts_request.limit + ENDING, running).await {
        Ok(Ok(finished)) => {
            let mut report = parse_report(&finished, facts_request.limit);
            if facts_request.record.is_some() && report.trouble.is_none() {
                report.trouble = recording_failure(&finished);
            }
            report
        }
        Ok(Err(error)) => DriverReport {
            trouble: Some(format!("the driver was not queried: {error}")),
            ..DriverReport::default()
        },
        Err(_) => DriverReport {
            trouble: Some(hang_message(facts_request.limit, None)),
            ..DriverReport::default()
        },
    }
}

/// Why a complete report was not recorded.
fn recording_failure(finished: &FinishedProcess) -> Option<String> {
    let stderr = String::from_utf8_lossy(&finished.stderr.bytes);
    let last = stderr.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
    let ending = &finished.ending;
    let why = super::query::to_printable(last.trim_start_matches("fabricgate: "));
    (!ending.is_success()).then(|| format!("the answers were not recorded ({ending}): {why}"))
}

/// Parses the output of a finished process.
fn parse_report(finished: &FinishedProcess, limit: Duration) -> DriverReport {
    let mut report = DriverReport::default();
    let (mut whole, mut counted) = (false, None);
    let lines = finished.stdout.bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    for line in lines {
        match serde_json::from_slice::<DriverFactsLine>(line) {
            Ok(DriverFactsLine::NoDriver { why }) => {
                report.trouble = Some(why);
                return report;
            }
            Ok(DriverFactsLine::Machine(machine)) => {
                counted = machine.gpus;
                report.driver = Some(machine.driver);
                report.gpus = machine.gpus.map(|_| Vec::new());
                report.missing.extend(machine.missing);
            }
            Ok(DriverFactsLine::Gpu(answer)) => {
                report.gpus.get_or_insert_default().push(answer.gpu);
                report.missing.extend(answer.missing);
            }
            Ok(DriverFactsLine::End) => whole = true,
            // The line was cut off when the process was ended.
            Err(_) => {}
        }
    }
    report.missing = merge_missing(report.missing);
    if !whole {
        let stderr = String::from_utf8_lossy(&finished.stderr.bytes);
        let last = stderr.lines().rev().find(|line| !line.trim().is_empty());
        let why = match &finished.ending {
            ProcessEnding::TimedOut => hang_message(limit, last),
            ending => format!("querying the NVIDIA driver failed: {ending}{}", last_question(last)),
        };
        report.missing.push(add_silent_gpus(report.gpus.as_mut(), counted, &why));
        report.trouble = Some(why);
    }
    report
}

/// Adds an entry for every counted GPU without an answer: a silent GPU is not a missing GPU.
fn add_silent_gpus(
    gpus: Option<&mut Vec<GpuFacts>>,
    counted: Option<u32>,
    why: &str,
) -> MissingFact {
    let why = why.to_owned();
    let (Some(gpus), Some(counted)) = (gpus, counted) else {
        return MissingFact { what: "GPUs".to_owned(), why, ..MissingFact::default() };
    };
    let known = u32::try_from(gpus.len()).unwrap_or(counted);
    let silent: Vec<u32> = (known..counted).collect();
    gpus.extend(silent.iter().map(|index| GpuFacts { index: *index, ..GpuFacts::default() }));
    MissingFact { what: "everything".to_owned(), gpus: silent, why, ..MissingFact::default() }
}

fn hang_message(limit: Duration, last: Option<&str>) -> String {
    format!(
        "the NVIDIA driver did not answer within {} s{}; it may hang: check for NVRM and Xid in \
         `dmesg`, or raise --limit",
        limit.as_secs(),
        last_question(last)
    )
}

fn last_question(last: Option<&str>) -> String {
    last.map_or_else(String::new, |last| format!(" during: {}", super::query::to_printable(last)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exec::CapturedStream;
    use crate::facts::gpu_library::{GpuQuery, GpuText, GpuValue, MachineQuery};
    use crate::facts::library_record::RecordedLibrary;

    fn written_facts() -> (Vec<u8>, Vec<u8>) {
        let mut recorded = RecordedLibrary::default();
        recorded.add_machine_answer(
            MachineQuery::DriverVersion,
            Ok(GpuValue::Text("570.1".to_owned())),
        );
        for gpu in 0..2 {
            let uuid = GpuValue::Text(format!("GPU-{gpu}"));
            recorded.add_gpu_answer(gpu, GpuQuery::Text(GpuText::Uuid), Ok(uuid));
        }
        let (mut out, mut progress) = (Vec::new(), Vec::new());
        write_driver_facts(&recorded, Path::new("/proc"), &mut out, &mut progress)
            .expect("written");
        (out, progress)
    }

    fn finished(stdout: Vec<u8>, stderr: Vec<u8>, ending: ProcessEnding) -> FinishedProcess {
        let stream = |bytes| CapturedStream { bytes, dropped: 0 };
        FinishedProcess {
            ending,
            stdout: stream(stdout),
            stderr: stream(stderr),
            duration: Duration::ZERO,
        }
    }

    const LIMIT: Duration = Duration::from_secs(30);

    #[test]
    fn written_facts_are_parsed_back() {
        let (out, progress) = written_facts();
        let report =
            parse_report(&finished(out, progress, ProcessEnding::Exited { code: 0 }), LIMIT);
        assert_eq!(report.trouble, None);
        assert_eq!(report.driver.and_then(|driver| driver.version).as_deref(), Some("570.1"));
        let uuids: Vec<_> = report.gpus.expect("counted").into_iter().map(|gpu| gpu.uuid).collect();
        assert_eq!(uuids, [Some("GPU-0".to_owned()), Some("GPU-1".to_owned())]);
        // Both GPUs refused the serial number, which is reported once.
        let serial = report.missing.iter().filter(|missing| missing.what == "serial number");
        assert_eq!(serial.map(|missing| missing.gpus.clone()).collect::<Vec<_>>(), [[0, 1]]);
    }

    #[test]
    fn a_hang_at_one_gpu_names_it_and_keeps_the_others() {
        let (out, progress) = written_facts();
        let text = String::from_utf8(out).expect("text");
        let upto: String = text.lines().take(2).map(|line| format!("{line}\n")).collect();
        let cut = format!("{upto}{{\"type\":\"gpu\",\"gp");
        let progress: String = String::from_utf8(progress)
            .expect("text")
            .lines()
            .take_while(|line| !line.starts_with("GPU 1: P"))
            .map(|line| format!("{line}\n"))
            .collect();
        let report =
            parse_report(&finished(cut.into(), progress.into(), ProcessEnding::TimedOut), LIMIT);
        // The silent GPU still has an entry.
        let uuids: Vec<_> = report.gpus.expect("counted").into_iter().map(|gpu| gpu.uuid).collect();
        assert_eq!(uuids, [Some("GPU-0".to_owned()), None]);
        let why = report.trouble.expect("a reason");
        assert!(why.contains("30 s during: GPU 1: the link to its processor"), "{why}");
        let silent = report.missing.last().expect("an entry");
        assert_eq!((silent.what.as_str(), silent.gpus.as_slice()), ("everything", &[1][..]));
    }

    #[test]
    fn a_crash_of_the_library_is_reported_with_the_last_query() {
        let ending = ProcessEnding::Signalled { signal: 11 };
        let report =
            parse_report(&finished(Vec::new(), b"the driver itself\n".to_vec(), ending), LIMIT);
        let why = report.trouble.expect("a reason");
        assert!(why.contains("signal 11 during: the driver itself"), "{why}");
        assert_eq!(report.gpus, None);
    }

    #[test]
    fn a_missing_driver_is_reported_and_the_number_of_gpus_is_unknown() {
        let mut out = Vec::new();
        write_no_driver("there is no NVIDIA driver", &mut out).expect("written");
        let report =
            parse_report(&finished(out, Vec::new(), ProcessEnding::Exited { code: 0 }), LIMIT);
        assert_eq!(report.trouble.as_deref(), Some("there is no NVIDIA driver"));
        assert_eq!((report.gpus, report.driver), (None, None));
    }
}
