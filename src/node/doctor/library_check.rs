//! What a library of the driver's family says of itself, asked in a process of
//! its own: opening one runs its code, and a call into a driver can hang.
//!
//! The process prints all it knows so far, one JSON document a line, and tells
//! on standard error what it is about to call. Whoever started it takes the last
//! line that is whole.

use std::io;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::time::timeout;

use crate::exec;
use crate::exec::{FinishedProcess, ProcessContext, ProcessRequest};
use crate::ffi::cuda::code::attribute;
use crate::ffi::cuda::{CudaCallError, CudaLibrary};
use crate::probes::collective;
use crate::probes::collective::nccl_library::NcclSearchRoots;
use model::raw_result::ProcessEnding;
use model::text::clean;

/// How long ending the process may take before it is left behind: one that
/// hangs inside the kernel cannot be ended by anybody.
const ENDING: Duration = Duration::from_secs(6);

/// Bytes of what it says that are kept. A node with 16 GPUs says about 4 kB a
/// line, in one line a GPU.
const CAPTURE: usize = 1 << 20;

/// A library that probes of our own use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeLibrary {
    /// The CUDA driver API.
    Cuda,
    /// NCCL, wherever our own collective probe finds it.
    Nccl,
}

impl ProbeLibrary {
    /// Its name, as it is installed.
    pub fn file_name(self) -> &'static str {
        match self {
            Self::Cuda => crate::ffi::cuda::LIBRARY,
            Self::Nccl => crate::ffi::nccl::LIBRARY,
        }
    }

    /// How the process is told which.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Cuda => "cuda",
            Self::Nccl => "nccl",
        }
    }

    /// The library of this word.
    pub fn from_name(word: &str) -> Option<Self> {
        [Self::Cuda, Self::Nccl].into_iter().find(|it| it.as_str() == word)
    }
}

/// What a library says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LibraryReport {
    /// Where it was found, as it was asked for.
    pub path: Option<String>,
    /// Its version, of CUDA or of NCCL: 13 and 0, 2 and 28 and 3.
    pub version: Option<Vec<u32>>,
    /// The calls of ours that it lacks.
    pub missing: Vec<String>,
    /// The GPUs that it shows.
    pub gpus: Vec<LibraryGpu>,
    /// Why it cannot be used; nothing else was asked then.
    pub trouble: Option<LibraryFailure>,
}

/// A GPU that the library shows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LibraryGpu {
    /// Product name.
    pub name: Option<String>,
    /// `CU_DEVICE_ATTRIBUTE_COMPUTE_MODE`: 2 is prohibited, 3 one process only.
    pub compute_mode: Option<i32>,
    /// Whether its memory could be shared with other nodes. Says nothing of
    /// whether this process may.
    pub fabric_handles: Option<bool>,
}

/// Why a library cannot be used.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LibraryFailure {
    /// What it, or the loader, says.
    pub said: String,
    /// The library's number for the error, where it was opened.
    pub code: Option<i32>,
}

/// Asks a library, as the process does that is there for it.
pub fn write_library_report(
    library: ProbeLibrary,
    path: Option<&Path>,
    out: &mut dyn Write,
    progress: &mut dyn Write,
) -> io::Result<()> {
    let mut begin = |what: &str| {
        // Nobody may listen, which is no reason to stop.
        let _ = writeln!(progress, "{what}").and_then(|()| progress.flush());
    };
    let mut say = |said: &LibraryReport| -> io::Result<()> {
        serde_json::to_writer(&mut *out, said)?;
        out.write_all(b"\n")?;
        out.flush()
    };
    let mut said = LibraryReport::default();
    begin(&format!("opening {}", library.file_name()));
    let trouble = match library {
        ProbeLibrary::Cuda => report_cuda(path, &mut said, &mut begin, &mut say)?,
        ProbeLibrary::Nccl => report_nccl(path, &mut said, &mut begin, &mut say)?,
    };
    said.trouble = trouble;
    say(&said)
}

/// Asks the driver API; in the inner result why it cannot be used.
fn report_cuda(
    path: Option<&Path>,
    said: &mut LibraryReport,
    begin: &mut dyn FnMut(&str),
    say: &mut dyn FnMut(&LibraryReport) -> io::Result<()>,
) -> io::Result<Option<LibraryFailure>> {
    let cuda = match CudaLibrary::load(path) {
        Ok(cuda) => cuda,
        Err(error) => return Ok(Some(LibraryFailure { said: error.to_string(), code: None })),
    };
    let because = |error: &CudaCallError| {
        Some(LibraryFailure { said: error.to_string(), code: error.code() })
    };
    said.path = Some(cuda.path().display().to_string());
    said.missing = cuda.missing_symbols().into_iter().map(str::to_owned).collect();
    say(said)?;
    begin("cuDriverGetVersion");
    let version = cuda.driver_version().ok();
    said.version = version.map(|(major, minor)| vec![major.unsigned_abs(), minor.unsigned_abs()]);
    say(said)?;
    begin("cuInit");
    if let Err(error) = cuda.init() {
        return Ok(because(&error));
    }
    begin("cuDeviceGetCount");
    let devices = match cuda.devices() {
        Ok(devices) => devices,
        Err(error) => return Ok(because(&error)),
    };
    for (index, device) in devices.into_iter().enumerate() {
        begin(&format!("what GPU {index} is"));
        said.gpus.push(LibraryGpu {
            name: cuda.name(device).ok(),
            compute_mode: cuda.attribute(device, attribute::COMPUTE_MODE).ok(),
            fabric_handles: cuda
                .attribute(device, attribute::FABRIC_HANDLES)
                .ok()
                .map(|value| value != 0),
        });
        say(said)?;
    }
    Ok(None)
}

/// Asks NCCL what it is; it does nothing before it is given a GPU.
fn report_nccl(
    path: Option<&Path>,
    said: &mut LibraryReport,
    begin: &mut dyn FnMut(&str),
    say: &mut dyn FnMut(&LibraryReport) -> io::Result<()>,
) -> io::Result<Option<LibraryFailure>> {
    let nccl = match collective::nccl_library::load_nccl(path, &NcclSearchRoots::from_env()) {
        Ok(nccl) => nccl,
        Err(error) => return Ok(Some(LibraryFailure { said: error.to_string(), code: None })),
    };
    said.path = Some(nccl.path().display().to_string());
    said.missing = nccl.missing_symbols().into_iter().map(str::to_owned).collect();
    say(said)?;
    begin("ncclGetVersion");
    match nccl.version() {
        Ok(version) => said.version = Some(vec![version.major, version.minor, version.patch]),
        Err(error) => {
            return Ok(Some(LibraryFailure { said: error.to_string(), code: error.code() }));
        }
    }
    Ok(None)
}

/// Starts the process that asks a library, and listens to it for at most this
/// long.
pub(super) async fn query_library(
    executable: &Path,
    library: ProbeLibrary,
    path: Option<&Path>,
    limit: Duration,
) -> LibraryReport {
    let mut argv = vec![executable.display().to_string()];
    argv.extend(["node", "gpu-library", library.as_str()].map(str::to_owned));
    argv.extend(path.map(|path| path.display().to_string()));
    let request = ProcessRequest { argv, limit, capture: CAPTURE };
    let guard: Option<PathBuf> = Some(executable.to_owned());
    let setting = ProcessContext { guard, ..ProcessContext::default() };
    let (_keep, stop) = watch::channel(false);
    let mut nobody = |_: exec::ProcessEvent<'_>| {};
    let running = exec::run_observed(&request, &setting, stop, &mut nobody);
    let fails = |said: String| LibraryReport {
        trouble: Some(LibraryFailure { said, code: None }),
        ..LibraryReport::default()
    };
    match timeout(limit + ENDING, running).await {
        Ok(Ok(finished)) => parse_report(&finished, limit),
        Ok(Err(error)) => fails(format!("it was not asked: {error}")),
        Err(_) => {
            fails(format!("it did not answer within {} s, and cannot be ended", limit.as_secs()))
        }
    }
}

/// What a process said until it ended.
fn parse_report(finished: &FinishedProcess, limit: Duration) -> LibraryReport {
    let lines = finished.stdout.bytes.split(|byte| *byte == b'\n');
    let whole = lines.rev().find_map(|line| serde_json::from_slice::<LibraryReport>(line).ok());
    let mut said = whole.unwrap_or_default();
    if finished.ending.is_success() {
        return said;
    }
    let progress = String::from_utf8_lossy(&finished.stderr.bytes);
    let last = progress.lines().rev().find(|line| !line.trim().is_empty());
    let during = last.map(|last| format!(" while asked: {}", clean(last))).unwrap_or_default();
    let why = match &finished.ending {
        ProcessEnding::TimedOut => {
            format!("it did not answer within {} s{during}", limit.as_secs())
        }
        ending => format!("it ended the process that asked it ({ending}){during}"),
    };
    said.trouble = Some(LibraryFailure { said: why, code: None });
    said
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exec::CapturedStream;

    fn finished(stdout: &str, stderr: &str, ending: ProcessEnding) -> FinishedProcess {
        let stream = |text: &str| CapturedStream { bytes: text.as_bytes().to_vec(), dropped: 0 };
        FinishedProcess {
            ending,
            stdout: stream(stdout),
            stderr: stream(stderr),
            duration: Duration::ZERO,
        }
    }

    #[test]
    fn a_library_that_is_not_there_is_no_panic() {
        let (mut out, mut progress) = (Vec::new(), Vec::new());
        let path = Some(Path::new("/no/such/libcuda.so.1"));
        write_library_report(ProbeLibrary::Cuda, path, &mut out, &mut progress).expect("written");
        let text = String::from_utf8(out).expect("text");
        let said =
            parse_report(&finished(&text, "", ProcessEnding::Exited { code: 0 }), Duration::ZERO);
        let trouble = said.trouble.expect("it is not there");
        assert!(trouble.said.starts_with("/no/such/libcuda.so.1 cannot be opened"), "{trouble:?}");
        assert_eq!((trouble.code, said.path), (None, None));
        assert_eq!(String::from_utf8(progress).expect("text"), "opening libcuda.so.1\n");
    }

    #[test]
    fn what_was_said_before_a_call_hung_is_kept_and_the_call_is_named() {
        let known = r#"{"path":"libcuda.so.1","version":[12,2],"missing":["cuMemCreate"]}"#;
        let text = format!("{{\"path\":\"libcuda.so.1\"}}\n{known}\n{{\"path\":\"libc");
        let hung = finished(&text, "cuDriverGetVersion\ncuInit\n", ProcessEnding::TimedOut);
        let said = parse_report(&hung, Duration::from_secs(15));
        assert_eq!((said.version, said.missing.len()), (Some(vec![12, 2]), 1));
        let why = said.trouble.expect("said").said;
        assert_eq!(why, "it did not answer within 15 s while asked: cuInit");
        let killed =
            finished("", "opening libcuda.so.1\n", ProcessEnding::Signalled { signal: 11 });
        let why = parse_report(&killed, Duration::from_secs(15)).trouble.expect("said").said;
        assert!(why.contains("signal 11") && why.ends_with("opening libcuda.so.1"), "{why}");
    }
}
