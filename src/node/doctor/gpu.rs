//! Checks of the driver's libraries for the native probes: their calls, the GPUs they report, the
//! fabric state, and the NUMA node of each GPU.

use std::collections::BTreeMap;
use std::path::Path;

use super::library_check::{LibraryReport, ProbeLibrary};
use super::{CheckupContext, LIMIT, library_check, programs};
use crate::facts;
use crate::facts::{FactsRequest, FactsResult};
use crate::ffi::cuda::code;
use model::checkup::{CheckupArea, CheckupItem};
use model::gpu_facts::{FabricState, GpuFacts};

/// The first CUDA version with fabric handles (NCCL guards them with the same version).
const FABRIC_HANDLES: [u32; 2] = [12, 3];

/// Optional calls, and the effect of their absence. Every native probe needs all other calls.
const OPTIONAL_CALLS: &[(&[&str], &str)] = &[
    (&["cuDeviceCanAccessPeer", "cuCtxEnablePeerAccess"], "copies between GPUs are not measured"),
    (
        &["cuStreamWaitValue32_v2", "cuMemHostGetDevicePointer_v2"],
        "copies that begin at the same moment are not measured",
    ),
    (
        &["cuIpcGetMemHandle", "cuIpcOpenMemHandle_v2", "cuIpcCloseMemHandle"],
        "sharing a GPU's memory between two processes is not tested",
    ),
    (
        &[
            "cuMemGetAllocationGranularity",
            "cuMemCreate",
            "cuMemRelease",
            "cuMemAddressReserve",
            "cuMemAddressFree",
            "cuMemMap",
            "cuMemUnmap",
            "cuMemSetAccess",
            "cuMemExportToShareableHandle",
            "cuMemImportFromShareableHandle",
        ],
        "copies to GPUs of other nodes are not measured",
    ),
    // Nothing is lost without these: the first has an older call of nearly the same name, and both
    // only provide text for messages.
    (&["cuDeviceGetUuid_v2", "cuDeviceGetUuid", "cuGetErrorName"], ""),
];

/// Paths of this program and of libraries that replace the ones the loader finds.
#[derive(Clone, Debug)]
pub struct LibraryPaths {
    /// This program; it queries each library in a separate process.
    pub executable: std::path::PathBuf,
    /// Library with the CUDA driver API.
    pub cuda: Option<std::path::PathBuf>,
    /// NVML library.
    pub nvml: Option<std::path::PathBuf>,
    /// NCCL library.
    pub nccl: Option<std::path::PathBuf>,
}

pub(super) async fn check_gpu_libraries(context: &CheckupContext<'_>) -> Vec<CheckupItem> {
    let Some(libraries) = &context.libraries else { return Vec::new() };
    let named = [&libraries.cuda, &libraries.nvml, &libraries.nccl].iter().any(|it| it.is_some());
    // Without a driver, the driver check has already reported the one problem.
    if !named && !context.root.join("proc/driver/nvidia").exists() {
        return Vec::new();
    }
    let gathering = FactsRequest {
        executable: &libraries.executable,
        nvml: libraries.nvml.as_deref(),
        record: None,
        root: &context.root,
        limit: LIMIT,
    };
    let executable = &libraries.executable;
    let (cuda, nccl, gathered) = tokio::join!(
        library_check::query_library(
            executable,
            ProbeLibrary::Cuda,
            libraries.cuda.as_deref(),
            LIMIT
        ),
        library_check::query_library(
            executable,
            ProbeLibrary::Nccl,
            libraries.nccl.as_deref(),
            LIMIT
        ),
        facts::collect_gpu_facts(&gathering),
    );
    let required = required_libraries(context);
    let has_module = facts::is_driver_loaded(&context.root);
    let mut checks = mark_required(check_cuda(&cuda, has_module), ProbeLibrary::Cuda, &required);
    checks.extend(check_nvml(&gathered));
    checks.extend(mark_required(check_nccl(&nccl, &cuda), ProbeLibrary::Nccl, &required));
    checks.extend(check_device_files(&context.root));
    checks
}

/// Maps each library to the native probes that need it and that run here because their tool is
/// missing.
fn required_libraries<'l>(context: &'l CheckupContext<'_>) -> BTreeMap<&'static str, Vec<&'l str>> {
    let mut required: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for probe in programs::native_fallback_probes(context) {
        let words = probe.fallback.iter().flat_map(|fallback| fallback.argv.iter());
        let words: Vec<&str> = words.map(String::as_str).collect();
        required.entry(ProbeLibrary::Cuda.file_name()).or_default().push(&probe.name);
        if words.contains(&"collective") {
            required.entry(ProbeLibrary::Nccl.file_name()).or_default().push(&probe.name);
        }
    }
    required
}

/// Marks libraries that default probes need because the probe's tool is missing.
fn mark_required(
    mut checks: Vec<CheckupItem>,
    library: ProbeLibrary,
    required: &BTreeMap<&'static str, Vec<&str>>,
) -> Vec<CheckupItem> {
    let probes = required.get(library.file_name());
    for check in checks.iter_mut().filter(|check| check.what == library.file_name()) {
        if let Some(probes) = probes {
            check.needed = true;
            check.probes = probes.iter().map(|probe| (*probe).to_owned()).collect();
        }
    }
    checks
}

fn check_nccl(report: &LibraryReport, cuda: &LibraryReport) -> Vec<CheckupItem> {
    let (what, area) = (ProbeLibrary::Nccl.file_name(), CheckupArea::Programs);
    if let Some(trouble) = &report.trouble {
        let remedy = "install NCCL (libnccl2, or a Python wheel of nvidia-nccl); nccl-tests \
                      link their own copy, fabricgate's collective probe loads it";
        let detail = format!("cannot be used: {}", trouble.message);
        return vec![CheckupItem::missing(area, what, detail, remedy)];
    }
    let version = format_version(report).unwrap_or_else(|| "its version is unknown".to_owned());
    let path = report.path.as_deref().unwrap_or(what);
    let mut checks =
        vec![CheckupItem::available(area, what, format!("{version}, found as {path}"))];
    if !report.missing.is_empty() {
        let detail = format!(
            "this NCCL has no {}: tests that need it are not measured",
            report.missing.join(", ")
        );
        checks.push(CheckupItem::missing(
            area,
            "calls of libnccl.so.2",
            detail,
            "install a newer NCCL",
        ));
    }
    let driver = cuda.version.as_deref().and_then(|version| version.first());
    if let (Some([major, minor]), Some(driver)) = (report.built_for, driver)
        && *driver < major
    {
        let detail = format!(
            "built for CUDA {major}.{minor}, and the driver supports CUDA {driver}: NCCL ends with \
             \"CUDA driver version is insufficient\""
        );
        let remedy = format!(
            "install the build for CUDA {driver} (the Python wheel nvidia-nccl-cu{driver}), or a \
             newer driver"
        );
        checks.push(CheckupItem::missing(area, "CUDA version of libnccl.so.2", detail, &remedy));
    }
    checks
}

/// Example: `13.0`.
fn format_version(report: &LibraryReport) -> Option<String> {
    let numbers: Vec<String> = report.version.as_ref()?.iter().map(ToString::to_string).collect();
    Some(numbers.join("."))
}

fn check_cuda(report: &LibraryReport, has_module: bool) -> Vec<CheckupItem> {
    let what = ProbeLibrary::Cuda.file_name();
    let area = CheckupArea::Driver;
    let version = format_version(report).map(|version| format!("CUDA {version}"));
    if let Some(trouble) = &report.trouble {
        let detail = match &version {
            Some(version) => format!("{version}, and cannot be used: {}", trouble.message),
            None => format!("cannot be used: {}", trouble.message),
        };
        return vec![CheckupItem::missing(
            area,
            what,
            detail,
            cuda_remedy(trouble.code, has_module),
        )];
    }
    let version = version.unwrap_or_else(|| "its version is unknown".to_owned());
    let gpus = match report.gpus.len() {
        1 => "1 GPU".to_owned(),
        many => format!("{many} GPUs"),
    };
    let mut checks = vec![CheckupItem::available(area, what, format!("{version}, reports {gpus}"))];
    checks.extend(check_missing_calls(report));
    checks.extend(check_fabric_handles(report));
    checks.extend(check_compute_modes(report));
    checks
}

/// Remedy for an error of the driver API.
fn cuda_remedy(code: Option<i32>, has_module: bool) -> &'static str {
    match code {
        None => {
            "install the driver's CUDA library (libcuda1, nvidia-driver-cuda-libs), in a container \
             ask for the driver capability `compute`; if it hangs or crashes check the \
             kernel log"
        }
        Some(code::STUB_LIBRARY) => {
            "the CUDA toolkit's stub is found before the driver's library: take `stubs` out of \
             LD_LIBRARY_PATH"
        }
        Some(code::NO_DEVICE) if !has_module => {
            "the driver's kernel module is not loaded: `modprobe nvidia`, and check the kernel log"
        }
        Some(code::NO_DEVICE) => {
            "the driver reports no GPU to this process: check CUDA_VISIBLE_DEVICES, devices of the \
             container and `nvidia-smi`"
        }
        Some(code::SYSTEM_NOT_READY) => {
            "the fabric manager has not set up the NVSwitches: start nvidia-fabricmanager of the \
             driver's version and check its log"
        }
        Some(code::SYSTEM_DRIVER_MISMATCH) => {
            "the library and the kernel module have different versions: reload the module or \
             reboot"
        }
        Some(code::NOT_PERMITTED) => "this user may not use the GPUs: check /dev/nvidia*",
        Some(_) => "check the kernel log for Xid and driver errors",
    }
}

/// Lists the measurements that are missing because the library is older than a call.
fn check_missing_calls(report: &LibraryReport) -> Vec<CheckupItem> {
    let mut costs: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for call in &report.missing {
        let only = OPTIONAL_CALLS.iter().find(|(calls, _)| calls.contains(&call.as_str()));
        costs.entry(only.map_or("nothing is measured", |(_, cost)| cost)).or_default().push(call);
    }
    let costly = costs.into_iter().filter(|(cost, _)| !cost.is_empty());
    let check = |(cost, calls): (&str, Vec<&str>)| {
        let detail = format!("this driver has no {}: {cost}", calls.join(", "));
        CheckupItem::missing(
            CheckupArea::Driver,
            "calls of libcuda.so.1",
            detail,
            "update the driver",
        )
    };
    costly.map(check).collect()
}

/// Checks whether memory can be shared with other nodes, as far as this is visible without trying.
fn check_fabric_handles(report: &LibraryReport) -> Option<CheckupItem> {
    let what = "fabric handles";
    if report.version.as_deref()? < &FABRIC_HANDLES[..] {
        let detail = "need CUDA 12.3; copies to GPUs of other nodes are not measured";
        let remedy = "update the driver (550 or newer, 570 on GB200)";
        return Some(CheckupItem::missing(CheckupArea::Imex, what, detail, remedy));
    }
    let able = report.gpus.iter().filter(|gpu| gpu.fabric_handles == Some(true)).count();
    let detail = match able {
        0 => "no GPU here has them; only multi-node NVLink needs them".to_owned(),
        all if all == report.gpus.len() => {
            return Some(CheckupItem::available(
                CheckupArea::Imex,
                what,
                "all GPUs have them; the fabric probe tests them",
            ));
        }
        some => format!("{some} of {} GPUs have them", report.gpus.len()),
    };
    Some(CheckupItem::unknown(CheckupArea::Imex, what, detail))
}

/// GPUs whose compute mode refuses processes.
fn check_compute_modes(report: &LibraryReport) -> Vec<CheckupItem> {
    // CU_COMPUTEMODE_PROHIBITED and CU_COMPUTEMODE_EXCLUSIVE_PROCESS.
    let modes = [
        (2, "refuse every process (compute mode prohibited): they are not measured"),
        (3, "accept one process only (compute mode exclusive): not measured while one runs"),
    ];
    let mut checks = Vec::new();
    for (mode, words) in modes {
        let of = report.gpus.iter().enumerate().filter(|(_, gpu)| gpu.compute_mode == Some(mode));
        let of: Vec<usize> = of.map(|(index, _)| index).collect();
        if !of.is_empty() {
            let remedy = "nvidia-smi -c DEFAULT";
            checks.push(CheckupItem::missing(CheckupArea::Driver, format_gpus(&of), words, remedy));
        }
    }
    checks
}

/// Example: `GPU 3` or `GPUs 0, 1`.
fn format_gpus<T: std::fmt::Display>(gpus: &[T]) -> String {
    let names: Vec<String> = gpus.iter().map(ToString::to_string).collect();
    format!("{} {}", if names.len() == 1 { "GPU" } else { "GPUs" }, names.join(", "))
}

/// Checks NVML, the source of the readings before and after every probe.
fn check_nvml(gathered: &FactsResult) -> Vec<CheckupItem> {
    let what = "libnvidia-ml.so.1";
    let gpus = gathered.facts.gpus.as_deref().unwrap_or_default();
    let mut checks = Vec::new();
    checks.push(match &gathered.trouble {
        Some(why) => {
            let remedy = "probes run without it, but clocks, temperatures and link errors around \
                          them stay unknown; check `nvidia-smi` and the kernel log";
            CheckupItem::missing(CheckupArea::Driver, what, why.clone(), remedy)
        }
        None => {
            let driver = gathered.facts.driver.as_ref();
            let version = driver.and_then(|driver| driver.version.clone());
            let version = version.unwrap_or_else(|| "?".to_owned());
            CheckupItem::available(CheckupArea::Driver, what, format!("driver {version}"))
        }
    });
    checks.extend(check_fabric_registration(gpus));
    let divided: Vec<u32> =
        gpus.iter().filter(|gpu| gpu.mig == Some(true)).map(|gpu| gpu.index).collect();
    if !divided.is_empty() {
        let detail = "partitioned into MIG instances: copies between GPUs are not measured";
        let remedy = "nvidia-smi -mig 0, then reset the GPU";
        checks.push(CheckupItem::missing(
            CheckupArea::Driver,
            format_gpus(&divided),
            detail,
            remedy,
        ));
    }
    checks.extend(check_numa_nodes(gpus));
    checks
}

/// Checks that each GPU has registered with its fabric.
fn check_fabric_registration(gpus: &[GpuFacts]) -> Vec<CheckupItem> {
    let what = "fabric registration";
    let mut states: BTreeMap<(bool, String), Vec<u32>> = BTreeMap::new();
    for gpu in gpus {
        let registration = gpu.fabric.as_ref();
        let (is_bad, text) = match registration.map(|fabric| &fabric.state) {
            None | Some(FabricState::NotSupported) => {
                (false, "no fabric, or not reported by the driver".to_owned())
            }
            Some(FabricState::Completed) => {
                let unhealthy =
                    registration.map(|fabric| fabric.health_problems()).unwrap_or_default();
                let text = if unhealthy.is_empty() {
                    "completed".to_owned()
                } else {
                    format!("completed, and {}", unhealthy.join(", "))
                };
                (!unhealthy.is_empty(), text)
            }
            Some(FabricState::Unknown) => (false, "the driver reports an unknown state".to_owned()),
            Some(other) => (true, other.label().to_owned()),
        };
        states.entry((is_bad, text)).or_default().push(gpu.index);
    }
    let check = |((is_bad, text), of): ((bool, String), Vec<u32>)| {
        let detail = format!("{}: {text}", format_gpus(&of));
        if is_bad {
            let remedy = "start the fabric manager (nvidia-fabricmanager; on racks the one on the \
                          switch trays) and check its log: NVLink does not work before that";
            return CheckupItem::missing(CheckupArea::Driver, what, detail, remedy);
        }
        if text == "completed" {
            return CheckupItem::available(CheckupArea::Driver, what, detail);
        }
        CheckupItem::unknown(CheckupArea::Driver, what, detail)
    };
    states.into_iter().map(check).collect()
}

/// Checks whether the system reports the NUMA node of each GPU.
fn check_numa_nodes(gpus: &[GpuFacts]) -> Option<CheckupItem> {
    let what = "NUMA nodes of GPUs";
    if gpus.is_empty() {
        return None;
    }
    let placed: Vec<String> = gpus
        .iter()
        .filter_map(|gpu| Some(format!("{} at {}", gpu.index, gpu.numa_node?)))
        .collect();
    Some(if placed.is_empty() {
        let detail = "not reported by the system; host memory is not placed, so on a \
                      machine with several sockets host copies may be slower than possible";
        CheckupItem::unknown(CheckupArea::Driver, what, detail)
    } else {
        CheckupItem::available(CheckupArea::Driver, what, placed.join(", "))
    })
}

/// The device files that every GPU process opens, in addition to the driver's control files and the
/// channels.
fn check_device_files(root: &Path) -> Vec<CheckupItem> {
    let mut names: Vec<String> = std::fs::read_dir(root.join("dev"))
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| {
            name.strip_prefix("nvidia").is_some_and(|number| number.parse::<u32>().is_ok())
                || name == "nvidia-uvm"
        })
        .collect();
    names.sort_by_key(|name| (name.len(), name.clone()));
    if names.is_empty() {
        return Vec::new();
    }
    let closed = names.iter().filter(|name| {
        let access = rustix::fs::Access::READ_OK | rustix::fs::Access::WRITE_OK;
        rustix::fs::access(root.join("dev").join(name), access).is_err()
    });
    let closed: Vec<&str> = closed.map(String::as_str).collect();
    let what = "GPUs' device files";
    vec![if closed.is_empty() {
        CheckupItem::available(
            CheckupArea::Driver,
            what,
            format!("/dev/{} can be opened", names.join(", /dev/")),
        )
    } else {
        let detail = format!("/dev/{} cannot be opened", closed.join(", /dev/"));
        let remedy = "run as root, or give this user's group access to them";
        CheckupItem::missing(CheckupArea::Driver, what, detail, remedy)
    }]
}

#[cfg(test)]
#[path = "gpu_tests.rs"]
mod tests;
