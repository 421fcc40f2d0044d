//! Asking the driver in a process of its own.
//!
//! A call into a driver can hang, and a thread in such a call cannot be ended;
//! the library can also take the whole process down. So another process asks
//! and says what it hears, one JSON document a line, and what it is about to ask
//! on standard error. Whoever started it ends it when its time is up and keeps
//! what it said until then.

use std::io;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use serde::Deserialize;
use serde::Serialize;
use tokio::sync::watch;
use tokio::time::timeout;

use super::Gathering;
use super::asking::together;
use super::gpu;
use super::gpu::GpuSaid;
use super::gpu::MachineSaid;
use super::library::GpuLibrary;
use crate::exec;
use crate::exec::Finished;
use crate::exec::Request;
use crate::exec::Setting;
use model::gpu_facts::GpuFacts;
use model::node_facts::DriverFacts;
use model::node_facts::Missing;
use model::raw::Ending;

/// Bytes of the answer that are kept. A GPU with 18 links says about 12 kB.
const CAPTURE: usize = 4 * 1024 * 1024;

/// How long ending the process may take before it is left behind: one that
/// hangs inside the kernel cannot be ended by anybody.
const ENDING: Duration = Duration::from_secs(6);

/// A line of the process that asks.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Line {
    /// There is no driver to ask.
    NoDriver {
        /// Why, and what to do.
        why: String,
    },
    /// The machine.
    Machine(Box<MachineSaid>),
    /// A GPU.
    Gpu(Box<GpuSaid>),
    /// That was all.
    End,
}

/// Says that there is no driver.
pub fn refuse(why: &str, out: &mut dyn Write) -> io::Result<()> {
    say(&Line::NoDriver { why: why.to_owned() }, out)
}

/// Asks a library everything and writes what it says, as the process that asks
/// does. `progress` is told what comes next.
pub fn tell(
    library: &dyn GpuLibrary,
    proc: &Path,
    out: &mut dyn Write,
    progress: &mut dyn Write,
) -> io::Result<()> {
    let mut note = |what: &str| {
        // Nobody may listen, which is no reason to stop.
        let _ = writeln!(progress, "{what}").and_then(|()| progress.flush());
    };
    note("the driver itself");
    let machine = gpu::machine(library);
    let gpus = machine.gpus.unwrap_or(0);
    say(&Line::Machine(Box::new(machine)), out)?;
    for index in 0..gpus {
        let mut begin = |part: &str| note(&format!("GPU {index}: {part}"));
        let said = gpu::gpu(library, proc, index, &mut begin);
        say(&Line::Gpu(Box::new(said)), out)?;
    }
    say(&Line::End, out)
}

fn say(line: &Line, out: &mut dyn Write) -> io::Result<()> {
    serde_json::to_writer(&mut *out, line)?;
    out.write_all(b"\n")?;
    out.flush()
}

/// What came of asking.
#[derive(Debug, Default)]
pub(super) struct Heard {
    /// The driver.
    pub(super) driver: Option<DriverFacts>,
    /// The GPUs; absent where they were never counted.
    pub(super) gpus: Option<Vec<GpuFacts>>,
    /// What it would not say.
    pub(super) missing: Vec<Missing>,
    /// Why not everything was heard.
    pub(super) trouble: Option<String>,
}

/// Starts the process that asks, and listens.
pub(super) async fn ask(gathering: &Gathering<'_>) -> Heard {
    let mut argv = vec![gathering.executable.display().to_string()];
    argv.extend(["node", "driver-facts"].map(str::to_owned));
    let options = [
        ("--nvml", gathering.nvml),
        ("--record", gathering.record),
        ("--root", Some(gathering.root)),
    ];
    for (name, path) in options {
        if let Some(path) = path {
            argv.extend([name.to_owned(), path.display().to_string()]);
        }
    }
    let request = Request { argv, limit: gathering.limit, capture: CAPTURE };
    let guard = Some(gathering.executable.to_owned());
    let setting = Setting { guard, ..Setting::default() };
    let (_keep, stop) = watch::channel(false);
    let mut nobody = |_: exec::Seen<'_>| {};
    let running = exec::watched(&request, &setting, stop, &mut nobody);
    match timeout(gathering.limit + ENDING, running).await {
        Ok(Ok(finished)) => {
            let mut heard = heard(&finished, gathering.limit);
            if gathering.record.is_some() && heard.trouble.is_none() {
                heard.trouble = not_recorded(&finished);
            }
            heard
        }
        Ok(Err(error)) => Heard {
            trouble: Some(format!("the driver was not asked: {error}")),
            ..Heard::default()
        },
        Err(_) => Heard { trouble: Some(hung(gathering.limit, None)), ..Heard::default() },
    }
}

/// Why a process that said everything did not keep it.
fn not_recorded(finished: &Finished) -> Option<String> {
    let said = String::from_utf8_lossy(&finished.stderr.bytes);
    let last = said.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
    let ending = &finished.ending;
    let why = super::asking::printable(last.trim_start_matches("fabricgate: "));
    (!ending.is_success()).then(|| format!("the answers were not kept ({ending}): {why}"))
}

/// What a process said until it ended.
fn heard(finished: &Finished, limit: Duration) -> Heard {
    let mut heard = Heard::default();
    let (mut whole, mut counted) = (false, None);
    let lines = finished.stdout.bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    for line in lines {
        match serde_json::from_slice::<Line>(line) {
            Ok(Line::NoDriver { why }) => {
                heard.trouble = Some(why);
                return heard;
            }
            Ok(Line::Machine(said)) => {
                counted = said.gpus;
                heard.driver = Some(said.driver);
                heard.gpus = said.gpus.map(|_| Vec::new());
                heard.missing.extend(said.missing);
            }
            Ok(Line::Gpu(said)) => {
                heard.gpus.get_or_insert_default().push(said.gpu);
                heard.missing.extend(said.missing);
            }
            Ok(Line::End) => whole = true,
            // A line that was cut off when the process was ended.
            Err(_) => {}
        }
    }
    heard.missing = together(heard.missing);
    if !whole {
        let asked = String::from_utf8_lossy(&finished.stderr.bytes);
        let last = asked.lines().rev().find(|line| !line.trim().is_empty());
        let why = match &finished.ending {
            Ending::TimedOut => hung(limit, last),
            ending => format!("asking the NVIDIA driver failed: {ending}{}", while_asking(last)),
        };
        heard.missing.push(silent(heard.gpus.as_mut(), counted, &why));
        heard.trouble = Some(why);
    }
    heard
}

/// Keeps a place for every GPU that was counted and not heard: one that did not
/// answer is not one that is not there.
fn silent(gpus: Option<&mut Vec<GpuFacts>>, counted: Option<u32>, why: &str) -> Missing {
    let why = why.to_owned();
    let (Some(gpus), Some(counted)) = (gpus, counted) else {
        return Missing { what: "GPUs".to_owned(), why, ..Missing::default() };
    };
    let heard = u32::try_from(gpus.len()).unwrap_or(counted);
    let silent: Vec<u32> = (heard..counted).collect();
    gpus.extend(silent.iter().map(|index| GpuFacts { index: *index, ..GpuFacts::default() }));
    Missing { what: "everything".to_owned(), gpus: silent, why, ..Missing::default() }
}

fn hung(limit: Duration, last: Option<&str>) -> String {
    format!(
        "the NVIDIA driver did not answer within {} s{}; it may hang: look for NVRM and Xid in \
         `dmesg`, and give it longer with --limit",
        limit.as_secs(),
        while_asking(last)
    )
}

fn while_asking(last: Option<&str>) -> String {
    last.map_or_else(String::new, |last| {
        format!(" while asked for {}", super::asking::printable(last))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exec::Stream;
    use crate::facts::library::MachineQuestion;
    use crate::facts::library::Question;
    use crate::facts::library::Text;
    use crate::facts::library::Value;
    use crate::facts::recorded::Recorded;

    fn told() -> (Vec<u8>, Vec<u8>) {
        let mut recorded = Recorded::default();
        recorded.machine(MachineQuestion::DriverVersion, Ok(Value::Text("570.1".to_owned())));
        for gpu in 0..2 {
            let uuid = Value::Text(format!("GPU-{gpu}"));
            recorded.gpu(gpu, Question::Text(Text::Uuid), Ok(uuid));
        }
        let (mut out, mut progress) = (Vec::new(), Vec::new());
        tell(&recorded, Path::new("/proc"), &mut out, &mut progress).expect("written");
        (out, progress)
    }

    fn finished(stdout: Vec<u8>, stderr: Vec<u8>, ending: Ending) -> Finished {
        let stream = |bytes| Stream { bytes, dropped: 0 };
        Finished {
            ending,
            stdout: stream(stdout),
            stderr: stream(stderr),
            duration: Duration::ZERO,
        }
    }

    const LIMIT: Duration = Duration::from_secs(30);

    #[test]
    fn what_is_told_is_heard() {
        let (out, progress) = told();
        let heard = heard(&finished(out, progress, Ending::Exited { code: 0 }), LIMIT);
        assert_eq!(heard.trouble, None);
        assert_eq!(heard.driver.and_then(|driver| driver.version).as_deref(), Some("570.1"));
        let uuids: Vec<_> = heard.gpus.expect("counted").into_iter().map(|gpu| gpu.uuid).collect();
        assert_eq!(uuids, [Some("GPU-0".to_owned()), Some("GPU-1".to_owned())]);
        // Both refused the serial number, which is said once.
        let serial = heard.missing.iter().filter(|missing| missing.what == "serial number");
        assert_eq!(serial.map(|missing| missing.gpus.clone()).collect::<Vec<_>>(), [[0, 1]]);
    }

    #[test]
    fn a_driver_that_hangs_at_one_gpu_is_said_by_name_and_the_others_are_kept() {
        let (out, progress) = told();
        let text = String::from_utf8(out).expect("text");
        let upto: String = text.lines().take(2).map(|line| format!("{line}\n")).collect();
        let cut = format!("{upto}{{\"type\":\"gpu\",\"gp");
        let progress: String = String::from_utf8(progress)
            .expect("text")
            .lines()
            .take_while(|line| !line.starts_with("GPU 1: P"))
            .map(|line| format!("{line}\n"))
            .collect();
        let heard = heard(&finished(cut.into(), progress.into(), Ending::TimedOut), LIMIT);
        // The one that did not answer is there all the same.
        let uuids: Vec<_> = heard.gpus.expect("counted").into_iter().map(|gpu| gpu.uuid).collect();
        assert_eq!(uuids, [Some("GPU-0".to_owned()), None]);
        let why = heard.trouble.expect("said");
        assert!(why.contains("30 s while asked for GPU 1: the link to its processor"), "{why}");
        let silent = heard.missing.last().expect("said");
        assert_eq!((silent.what.as_str(), silent.gpus.as_slice()), ("everything", &[1][..]));
    }

    #[test]
    fn a_library_that_crashes_takes_nobody_else_down() {
        let ending = Ending::Signalled { signal: 11 };
        let heard = heard(&finished(Vec::new(), b"the driver itself\n".to_vec(), ending), LIMIT);
        let why = heard.trouble.expect("said");
        assert!(why.contains("signal 11 while asked for the driver itself"), "{why}");
        assert_eq!(heard.gpus, None);
    }

    #[test]
    fn no_driver_is_said_and_the_number_of_gpus_is_unknown() {
        let mut out = Vec::new();
        refuse("there is no NVIDIA driver", &mut out).expect("written");
        let heard = heard(&finished(out, Vec::new(), Ending::Exited { code: 0 }), LIMIT);
        assert_eq!(heard.trouble.as_deref(), Some("there is no NVIDIA driver"));
        assert_eq!((heard.gpus, heard.driver), (None, None));
    }
}
