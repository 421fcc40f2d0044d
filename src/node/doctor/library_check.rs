//! Queries a library of the driver in a separate process: opening a library runs its code, and a
//! call into a driver can hang.
//!
//! The process prints everything it knows so far as one JSON document per line, and prints the next
//! call to standard error before it makes it. The parent uses the last complete line.

use std::io;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use memchr::memmem;
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

/// How long to wait for the process to end before leaving it behind: a process that hangs inside
/// the kernel cannot be killed.
const ENDING: Duration = Duration::from_secs(6);

/// Bytes of output to keep. A node with 16 GPUs prints about 4 kB per line, and one line per GPU.
const CAPTURE: usize = 1 << 20;

/// A library that native probes load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeLibrary {
    /// The CUDA driver API.
    Cuda,
    /// NCCL, from the path where the native collective probe finds it.
    Nccl,
}

impl ProbeLibrary {
    /// The installed file name (soname).
    pub fn file_name(self) -> &'static str {
        match self {
            Self::Cuda => crate::ffi::cuda::LIBRARY,
            Self::Nccl => crate::ffi::nccl::LIBRARY,
        }
    }

    /// The argument that selects this library on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Cuda => "cuda",
            Self::Nccl => "nccl",
        }
    }

    /// The library that this argument selects.
    pub fn from_name(word: &str) -> Option<Self> {
        [Self::Cuda, Self::Nccl].into_iter().find(|it| it.as_str() == word)
    }
}

/// A library's report about itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LibraryReport {
    /// The path that was opened, as requested.
    pub path: Option<String>,
    /// Version of CUDA or NCCL: 13 and 0, or 2 and 28 and 3.
    pub version: Option<Vec<u32>>,
    /// CUDA version that NCCL was built for, major and minor.
    pub built_for: Option<[u32; 2]>,
    /// Calls that fabricgate uses and the library lacks.
    pub missing: Vec<String>,
    /// GPUs that the library reports.
    pub gpus: Vec<LibraryGpu>,
    /// Why the library cannot be used; all other fields are then empty.
    pub trouble: Option<LibraryFailure>,
}

/// One GPU as the library reports it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LibraryGpu {
    /// Product name.
    pub name: Option<String>,
    /// `CU_DEVICE_ATTRIBUTE_COMPUTE_MODE`: 2 is prohibited, 3 is exclusive process.
    pub compute_mode: Option<i32>,
    /// True if the GPU supports sharing memory with other nodes. Does not imply that this process
    /// is permitted to.
    pub fabric_handles: Option<bool>,
}

/// Why a library cannot be used.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LibraryFailure {
    /// The error text of the library or the loader.
    pub message: String,
    /// The library's error code, if the library was opened.
    pub code: Option<i32>,
}

/// Queries a library; runs in the separate process.
pub fn write_library_report(
    library: ProbeLibrary,
    path: Option<&Path>,
    out: &mut dyn Write,
    progress: &mut dyn Write,
) -> io::Result<()> {
    let mut begin = |step: &str| {
        // A closed progress pipe is not a reason to stop.
        let _ = writeln!(progress, "{step}").and_then(|()| progress.flush());
    };
    let mut write_line = |report: &LibraryReport| -> io::Result<()> {
        serde_json::to_writer(&mut *out, report)?;
        out.write_all(b"\n")?;
        out.flush()
    };
    let mut report = LibraryReport::default();
    begin(&format!("opening {}", library.file_name()));
    let trouble = match library {
        ProbeLibrary::Cuda => report_cuda(path, &mut report, &mut begin, &mut write_line)?,
        ProbeLibrary::Nccl => report_nccl(path, &mut report, &mut begin, &mut write_line)?,
    };
    report.trouble = trouble;
    write_line(&report)
}

/// Queries the driver API; the inner error is the reason why it cannot be used.
fn report_cuda(
    path: Option<&Path>,
    report: &mut LibraryReport,
    begin: &mut dyn FnMut(&str),
    write_line: &mut dyn FnMut(&LibraryReport) -> io::Result<()>,
) -> io::Result<Option<LibraryFailure>> {
    let cuda = match CudaLibrary::load(path) {
        Ok(cuda) => cuda,
        Err(error) => return Ok(Some(LibraryFailure { message: error.to_string(), code: None })),
    };
    let because = |error: &CudaCallError| {
        Some(LibraryFailure { message: error.to_string(), code: error.code() })
    };
    report.path = Some(cuda.path().display().to_string());
    report.missing = cuda.missing_symbols().into_iter().map(str::to_owned).collect();
    write_line(report)?;
    begin("cuDriverGetVersion");
    let version = cuda.driver_version().ok();
    report.version = version.map(|(major, minor)| vec![major.unsigned_abs(), minor.unsigned_abs()]);
    write_line(report)?;
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
        begin(&format!("properties of GPU {index}"));
        report.gpus.push(LibraryGpu {
            name: cuda.name(device).ok(),
            compute_mode: cuda.attribute(device, attribute::COMPUTE_MODE).ok(),
            fabric_handles: cuda
                .attribute(device, attribute::FABRIC_HANDLES)
                .ok()
                .map(|value| value != 0),
        });
        write_line(report)?;
    }
    Ok(None)
}

/// Queries NCCL for its version; NCCL does nothing before it gets a GPU.
fn report_nccl(
    path: Option<&Path>,
    report: &mut LibraryReport,
    begin: &mut dyn FnMut(&str),
    write_line: &mut dyn FnMut(&LibraryReport) -> io::Result<()>,
) -> io::Result<Option<LibraryFailure>> {
    let nccl = match collective::nccl_library::load_nccl(path, &NcclSearchRoots::from_env()) {
        Ok(nccl) => nccl,
        Err(error) => return Ok(Some(LibraryFailure { message: error.to_string(), code: None })),
    };
    report.path = Some(nccl.path().display().to_string());
    report.missing = nccl.missing_symbols().into_iter().map(str::to_owned).collect();
    write_line(report)?;
    begin("ncclGetVersion");
    match nccl.version() {
        Ok(version) => {
            report.version = Some(vec![version.major, version.minor, version.patch]);
            write_line(report)?;
            begin("searching NCCL's file for its CUDA version");
            let deadline = Instant::now() + SEARCH_TIMEOUT;
            let file = library_file(nccl.path());
            report.built_for = file.and_then(|file| find_cuda_build(&file, deadline));
        }
        Err(error) => {
            return Ok(Some(LibraryFailure { message: error.to_string(), code: error.code() }));
        }
    }
    Ok(None)
}

/// The file of an open library: the loader may have found it by its name.
fn library_file(path: &Path) -> Option<PathBuf> {
    if path.is_absolute() {
        return Some(path.to_owned());
    }
    let name = path.file_name()?.to_str()?;
    let stem = name.split(".so").next().filter(|stem| !stem.is_empty())?;
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let mut files = maps.lines().filter_map(|line| line.find('/').map(|at| &line[at..]));
    files
        .find(|file| file.rsplit('/').next().is_some_and(|it| it.starts_with(stem)))
        .map(Into::into)
}

/// The text by which a build of NCCL names its version: `NCCL version 2.32.3+cuda12.9`.
const NCCL_VERSION_TEXT: &[u8] = b"NCCL version ";

/// Bytes of the longest version text.
const VERSION_TEXT_BYTES: usize = 64;

/// Limit of the search: the file has hundreds of megabytes, and may be on a slow file system. Then
/// the version stays unknown.
const SEARCH_TIMEOUT: Duration = Duration::from_secs(5);

/// The CUDA version of a build of NCCL, which no call reports; `None` after the deadline.
fn find_cuda_build(file: &Path, deadline: Instant) -> Option<[u32; 2]> {
    let finder = memmem::Finder::new(NCCL_VERSION_TEXT);
    let mut input = std::fs::File::open(file).ok()?;
    let mut window = Vec::new();
    let mut chunk = vec![0; 1 << 20];
    while Instant::now() < deadline {
        let read = input.read(&mut chunk).ok().filter(|read| 0 < *read)?;
        window.extend_from_slice(&chunk[..read]);
        let mut rest = window.as_slice();
        while let Some(at) = finder.find(rest) {
            rest = &rest[at + NCCL_VERSION_TEXT.len()..];
            let text = &rest[..rest.len().min(VERSION_TEXT_BYTES)];
            if let Some(found) = parse_cuda_suffix(text) {
                return Some(found);
            }
        }
        // A text may continue in the next chunk.
        let keep = NCCL_VERSION_TEXT.len() + VERSION_TEXT_BYTES;
        window.drain(..window.len().saturating_sub(keep));
    }
    None
}

/// Parses `2.32.3+cuda12.9`, which ends with a zero byte or a line.
fn parse_cuda_suffix(text: &[u8]) -> Option<[u32; 2]> {
    let end = text.iter().position(|byte| !byte.is_ascii_graphic()).unwrap_or(text.len());
    let text = std::str::from_utf8(&text[..end]).ok()?;
    let (major, minor) = text.split_once("+cuda")?.1.split_once('.')?;
    Some([major.parse().ok()?, minor.parse().ok()?])
}

/// Starts the process that queries a library, and reads its output for at most `limit`.
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
    let mut ignore = |_: exec::ProcessEvent<'_>| {};
    let running = exec::run_observed(&request, &setting, stop, &mut ignore);
    let fails = |message: String| LibraryReport {
        trouble: Some(LibraryFailure { message, code: None }),
        ..LibraryReport::default()
    };
    match timeout(limit + ENDING, running).await {
        Ok(Ok(finished)) => parse_report(&finished, limit),
        Ok(Err(error)) => fails(format!("it was not queried: {error}")),
        Err(_) => {
            fails(format!("it did not answer within {} s, and cannot be killed", limit.as_secs()))
        }
    }
}

/// Parses the output of a finished process.
fn parse_report(finished: &FinishedProcess, limit: Duration) -> LibraryReport {
    let lines = finished.stdout.bytes.split(|byte| *byte == b'\n');
    let whole = lines.rev().find_map(|line| serde_json::from_slice::<LibraryReport>(line).ok());
    let mut report = whole.unwrap_or_default();
    if finished.ending.is_success() {
        return report;
    }
    let progress = String::from_utf8_lossy(&finished.stderr.bytes);
    let last = progress.lines().rev().find(|line| !line.trim().is_empty());
    let during = last.map(|last| format!(" during: {}", clean(last))).unwrap_or_default();
    let why = match &finished.ending {
        ProcessEnding::TimedOut => {
            format!("it did not answer within {} s{during}", limit.as_secs())
        }
        ending => format!("it ended the process that queried it ({ending}){during}"),
    };
    report.trouble = Some(LibraryFailure { message: why, code: None });
    report
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
    fn a_missing_library_is_reported() {
        let (mut out, mut progress) = (Vec::new(), Vec::new());
        let path = Some(Path::new("/no/such/libcuda.so.1"));
        write_library_report(ProbeLibrary::Cuda, path, &mut out, &mut progress).expect("written");
        let text = String::from_utf8(out).expect("text");
        let report =
            parse_report(&finished(&text, "", ProcessEnding::Exited { code: 0 }), Duration::ZERO);
        let trouble = report.trouble.expect("it is not there");
        assert!(
            trouble.message.starts_with("/no/such/libcuda.so.1 cannot be opened"),
            "{trouble:?}"
        );
        assert_eq!((trouble.code, report.path), (None, None));
        assert_eq!(String::from_utf8(progress).expect("text"), "opening libcuda.so.1\n");
    }

    #[test]
    fn answers_before_a_hung_call_are_kept_and_the_call_is_named() {
        let known = r#"{"path":"libcuda.so.1","version":[12,2],"missing":["cuMemCreate"]}"#;
        let text = format!("{{\"path\":\"libcuda.so.1\"}}\n{known}\n{{\"path\":\"libc");
        let hung = finished(&text, "cuDriverGetVersion\ncuInit\n", ProcessEnding::TimedOut);
        let report = parse_report(&hung, Duration::from_secs(15));
        assert_eq!((report.version, report.missing.len()), (Some(vec![12, 2]), 1));
        let why = report.trouble.expect("a failure").message;
        assert_eq!(why, "it did not answer within 15 s during: cuInit");
        let killed =
            finished("", "opening libcuda.so.1\n", ProcessEnding::Signalled { signal: 11 });
        let why =
            parse_report(&killed, Duration::from_secs(15)).trouble.expect("a failure").message;
        assert!(why.contains("signal 11") && why.ends_with("opening libcuda.so.1"), "{why}");
    }

    #[test]
    fn the_cuda_version_of_a_build_is_found_in_its_file() {
        let soon = Instant::now() + Duration::from_secs(60);
        let file = tempfile::NamedTempFile::new().expect("a file");
        let mut bytes = vec![b'N'; (1 << 20) - 20];
        bytes.extend(b"NCCL version %s\0NCCL version 2.32.3+cuda12.9\0NCCL version 9+cuda1.1\0");
        std::fs::write(file.path(), &bytes).expect("written");
        assert_eq!(find_cuda_build(file.path(), soon), Some([12, 9]));
        assert_eq!(find_cuda_build(file.path(), Instant::now()), None, "too late");
        std::fs::write(file.path(), b"NCCL version 2.32.3\0+cuda12.9").expect("written");
        assert_eq!(find_cuda_build(file.path(), soon), None);
        assert_eq!(find_cuda_build(Path::new("/no/such/file"), soon), None);
    }
}
