//! The GPUs of this machine in PCI bus order, opened one by one.
//!
//! A GPU that cannot be opened is reported as a problem with its reason, and the others continue.

use std::fs;
use std::io;
use std::path::Path;

use super::numa;
use super::numa::NumaCpus;
use super::raii::{OwnedStream, PrimaryContext};
use crate::facts;
use crate::ffi::cuda::code::attribute;
use crate::ffi::cuda::{CudaCallError, CudaContext, CudaDevice, CudaLibrary, CudaStream, code};
use crate::probes::driver_error;
use crate::probes::driver_error::DriverCallStep;
use crate::probes::protocol::{ProbeEmitter, ProbeMessage};
use model::parse_output::OutputProblemKind;
use model::probe_problem_class::ProbeProblemClass;
use model::probe_report::{ProbeProblem, ProbedGpu};

/// A GPU that the driver reports.
#[derive(Clone, Debug)]
pub(crate) struct DetectedGpu {
    pub(crate) device: CudaDevice,
    pub(crate) probed: ProbedGpu,
}

/// The processes of a probe that open the same GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProcessesPerGpu {
    One,
    Two,
}

#[derive(Debug)]
pub(crate) struct OpenGpu<'c> {
    pub(crate) device: CudaDevice,
    pub(crate) probed: ProbedGpu,
    /// Bytes of its second-level cache; 0 if unknown.
    pub(crate) cache_bytes: u64,
    /// CPUs of its NUMA node.
    pub(crate) numa: Option<NumaCpus>,
    // The stream for untimed work must be dropped before its context.
    default_stream: OwnedStream<'c>,
    primary: PrimaryContext<'c>,
}

/// Initializes the driver and finds its GPUs. Indices follow the bus order and include GPUs hidden
/// from this process (`CUDA_VISIBLE_DEVICES`).
pub(crate) fn find_gpus(
    cuda: &CudaLibrary,
    root: &Path,
) -> Result<Vec<DetectedGpu>, Box<ProbeProblem>> {
    let doing = "initializing the driver";
    let step = DriverCallStep::Start { is_module_loaded: facts::is_driver_loaded(root) };
    let refused =
        |error: CudaCallError| Box::new(driver_error::classify_error(&error, step, doing));
    cuda.init().map_err(refused)?;
    let devices = cuda.devices().map_err(refused)?;
    if devices.is_empty() {
        let (call, code) = ("cuDeviceGetCount", code::NO_DEVICE);
        return Err(refused(CudaCallError::Failed { call, code, name: code::result_name(code) }));
    }
    let mut found = Vec::new();
    for device in devices {
        let bus_id = cuda.bus_id(device).map_err(refused)?;
        let probed = ProbedGpu {
            index: 0,
            name: cuda.name(device).ok(),
            uuid: cuda.uuid(device).ok().map(format_uuid),
            bus_id: Some(bus_id),
            numa_node: None,
            unreachable_numa_node: None,
            memory_bytes: cuda.total_memory(device).ok(),
        };
        found.push(DetectedGpu { device, probed });
    }
    // By default CUDA numbers the fastest GPU first.
    found.sort_by_key(|gpu| bus_sort_key(gpu.probed.bus_id.as_deref().unwrap_or_default()));
    let own: Vec<String> = found.iter().filter_map(|gpu| gpu.probed.bus_id.clone()).collect();
    let numbers = number_gpus(&own, list_bus_ids(root));
    for (number, gpu) in numbers.into_iter().zip(&mut found) {
        gpu.probed.index = number;
    }
    Ok(found)
}

/// The PCI addresses of all GPUs, as the kernel module lists them.
fn list_bus_ids(root: &Path) -> Vec<String> {
    let entries = fs::read_dir(root.join("proc/driver/nvidia/gpus"));
    let entries = entries.into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().to_ascii_lowercase()).collect()
}

/// Index of each of these GPUs in the machine's list, or in their own list if the machine's does
/// not contain all of them.
fn number_gpus(own: &[String], mut all: Vec<String>) -> Vec<u32> {
    all.sort_by_key(|bus_id| bus_sort_key(bus_id));
    let place =
        |bus_id: &String| all.iter().position(|it| bus_sort_key(it) == bus_sort_key(bus_id));
    let places: Option<Vec<usize>> = own.iter().map(place).collect();
    let places = places.unwrap_or_else(|| (0..own.len()).collect());
    places.into_iter().map(|place| u32::try_from(place).unwrap_or(u32::MAX)).collect()
}

/// The requested GPUs; all if none is requested. A missing GPU is reported as a problem.
pub(crate) fn select_gpus(
    found: Vec<DetectedGpu>,
    wanted: &[u32],
) -> (Vec<DetectedGpu>, Vec<ProbeProblem>) {
    if wanted.is_empty() {
        return (found, Vec::new());
    }
    let there = found.len();
    let lacks = |index: &&u32| !found.iter().any(|gpu| gpu.probed.index == **index);
    let problems = wanted.iter().filter(lacks).map(|index| {
        let what = format!("no GPU {index}: this process sees {there} GPUs");
        let mut problem =
            ProbeProblem::new(OutputProblemKind::Error, ProbeProblemClass::NoSuchGpu, what);
        problem.gpu = Some(*index);
        problem
    });
    let problems = problems.collect();
    let found = found.into_iter().filter(|gpu| wanted.contains(&gpu.probed.index)).collect();
    (found, problems)
}

impl<'c> OpenGpu<'c> {
    pub(crate) fn open(
        cuda: &'c CudaLibrary,
        found: &DetectedGpu,
        root: &Path,
        processes: ProcessesPerGpu,
    ) -> Result<Self, Box<ProbeProblem>> {
        let device = found.device;
        let mut probed = found.probed.clone();
        let index = probed.index;
        let of_it = |mut problem: ProbeProblem| {
            problem.gpu = Some(index);
            Box::new(problem)
        };
        if probed.name.as_deref().is_some_and(is_mig_instance) {
            let what = "this is a MIG instance, a part of a GPU: it cannot measure the links \
                        of the GPU (`nvidia-smi -mig 0` disables MIG)";
            return Err(of_it(ProbeProblem::new(
                OutputProblemKind::Error,
                ProbeProblemClass::Mig,
                what,
            )));
        }
        let mode = cuda.attribute(device, attribute::COMPUTE_MODE).ok();
        if processes == ProcessesPerGpu::Two && mode == Some(driver_error::EXCLUSIVE) {
            let what = "the GPU is in exclusive mode, and this test needs two processes on it \
                        (`nvidia-smi -c 0` resets the mode)";
            let class = ProbeProblemClass::ExclusiveMode;
            return Err(of_it(ProbeProblem::new(OutputProblemKind::Error, class, what)));
        }
        let doing = format!("opening GPU {index}");
        let open = || {
            let primary = PrimaryContext::retain(cuda, device)?;
            let own = OwnedStream::new(cuda, primary.context)?;
            Ok((primary, own))
        };
        let (primary, own) = open().map_err(|error| {
            of_it(driver_error::classify_error(&error, DriverCallStep::Open(mode), &doing))
        })?;
        let cache = cuda.attribute(device, attribute::L2_CACHE_BYTES).unwrap_or(0);
        let cache_bytes = u64::try_from(cache).unwrap_or(0);
        // The NUMA node of allocated memory only follows the GPU if the thread can be pinned.
        let near = probed.bus_id.as_deref().and_then(|bus_id| numa::find_numa_cpus(root, bus_id));
        let (near, unreachable) = match near {
            Some(near) if near.pin_thread().is_ok() => (Some(near), None),
            near => (None, near),
        };
        probed.numa_node = near.as_ref().map(|near| near.node);
        probed.unreachable_numa_node = unreachable.map(|near| near.node);
        Ok(Self { device, probed, cache_bytes, numa: near, default_stream: own, primary })
    }

    pub(crate) fn context(&self) -> CudaContext {
        self.primary.context
    }

    /// Its stream for untimed work.
    pub(crate) fn stream(&self) -> CudaStream {
        self.default_stream.stream
    }

    pub(crate) fn wait(&self) -> Result<(), CudaCallError> {
        self.default_stream.wait()
    }

    /// Its index on the node.
    pub(crate) fn index(&self) -> u32 {
        self.probed.index
    }
}

/// True for the product name of an instance, as in `NVIDIA H100 MIG 1g.10gb`.
fn is_mig_instance(name: &str) -> bool {
    name.split_whitespace().any(|word| word == "MIG")
}

/// A UUID in nvidia-smi's form.
fn format_uuid(bytes: [u8; 16]) -> String {
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let parts = [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]];
    format!("GPU-{}", parts.join("-"))
}

/// Sort key of a PCI address: domain, bus, device, function.
fn bus_sort_key(bus_id: &str) -> Vec<u64> {
    let parts = bus_id.split([':', '.']);
    parts.map(|part| u64::from_str_radix(part, 16).unwrap_or(u64::MAX)).collect()
}

/// Reports the driver's version, which it knows before it is initialized.
pub(crate) fn emit_driver_version(
    cuda: &CudaLibrary,
    emitter: &mut ProbeEmitter<'_>,
) -> io::Result<()> {
    match cuda.driver_version() {
        Ok((major, minor)) => {
            emitter.emit(&ProbeMessage::Driver { cuda: format!("{major}.{minor}") })
        }
        Err(_) => Ok(()),
    }
}

/// Reports the GPUs of the driver, and opens none. Returns an error if the output is closed.
pub fn list_gpus(
    cuda: Option<&Path>,
    root: &Path,
    emitter: &mut ProbeEmitter<'_>,
) -> io::Result<()> {
    emitter.announce_step("loading the driver's library");
    let cuda = match CudaLibrary::load(cuda) {
        Ok(cuda) => cuda,
        Err(error) => {
            return emitter.emit(&ProbeMessage::Problem(driver_error::classify_load_error(&error)));
        }
    };
    emitter.announce_step("initializing the driver");
    emit_driver_version(&cuda, emitter)?;
    let found = match find_gpus(&cuda, root) {
        Ok(found) => found,
        Err(problem) => return emitter.emit(&ProbeMessage::Problem(*problem)),
    };
    for gpu in found {
        emitter.emit(&ProbeMessage::Gpu(gpu.probed))?;
    }
    emitter.emit(&ProbeMessage::End)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(index: u32) -> DetectedGpu {
        let device = CudaDevice(i32::try_from(index).expect("small"));
        DetectedGpu { device, probed: ProbedGpu { index, ..ProbedGpu::default() } }
    }

    #[test]
    fn a_uuid_is_written_as_nvidia_smi_does() {
        let bytes = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 255];
        assert_eq!(format_uuid(bytes), "GPU-01020304-0506-0708-090a-0b0c0d0e0fff");
    }

    #[test]
    fn gpus_are_ordered_by_domain_and_bus_number() {
        let mut ids = ["0001:03:00.0", "0000:9b:00.0", "0000:1b:00.0", "10000:01:00.0"];
        ids.sort_by_key(|id| bus_sort_key(id));
        assert_eq!(ids, ["0000:1b:00.0", "0000:9b:00.0", "0001:03:00.0", "10000:01:00.0"]);
    }

    #[test]
    fn hidden_gpus_count_in_the_indices() {
        let ids = |ids: &[&str]| ids.iter().map(|id| (*id).to_owned()).collect::<Vec<_>>();
        let own = ids(&["0000:2b:00.0", "0000:9b:00.0"]);
        let all = ids(&["0000:9b:00.0", "0000:1b:00.0", "0000:2b:00.0"]);
        assert_eq!(number_gpus(&own, all), [1, 2]);
        // A list without these GPUs is ignored.
        assert_eq!(number_gpus(&own, ids(&["0000:9b:00.0"])), [0, 1]);
        assert_eq!(number_gpus(&own, Vec::new()), [0, 1]);
    }

    #[test]
    fn a_missing_requested_gpu_is_reported() {
        let (kept, problems) = select_gpus(vec![found(0), found(1), found(2)], &[2, 5]);
        assert_eq!(kept.iter().map(|gpu| gpu.probed.index).collect::<Vec<_>>(), [2]);
        assert_eq!((problems.len(), problems[0].gpu), (1, Some(5)));
        assert_eq!(problems[0].class.as_str(), "no-such-gpu");
        assert_eq!(select_gpus(vec![found(0), found(1)], &[]).0.len(), 2);
    }

    #[test]
    fn a_mig_instance_is_recognized_by_its_name() {
        assert!(is_mig_instance("NVIDIA H100 80GB HBM3 MIG 1g.10gb"));
        assert!(!is_mig_instance("NVIDIA H100 80GB HBM3"));
    }
}
