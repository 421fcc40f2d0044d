//! Tests of the checks of libraries and drivers.

use super::*;
use crate::doctor::library_check::{LibraryFailure, LibraryGpu};
use model::checkup::CheckupState;
use model::gpu_facts::FabricFacts;
use model::node_facts::{DriverFacts, NodeFacts};

fn sample_report() -> LibraryReport {
    let gpu =
        LibraryGpu { compute_mode: Some(0), fabric_handles: Some(true), ..LibraryGpu::default() };
    LibraryReport {
        path: Some("libcuda.so.1".to_owned()),
        version: Some(vec![13, 0]),
        gpus: vec![gpu; 4],
        ..LibraryReport::default()
    }
}

fn lines(checks: &[CheckupItem]) -> Vec<String> {
    let line = |it: &CheckupItem| format!("{} {}: {}", it.state.as_str(), it.what, it.detail);
    checks.iter().map(line).collect()
}

#[test]
fn a_driver_that_has_everything_lacks_nothing() {
    let expected = [
        "has libcuda.so.1: CUDA 13.0, reports 4 GPUs",
        "has fabric handles: all GPUs have them; the fabric probe tests them",
    ];
    assert_eq!(lines(&check_cuda(&sample_report(), true)), expected);
}

#[test]
fn a_missing_call_is_reported_with_the_missing_measurement() {
    let mut report = sample_report();
    report.version = Some(vec![12, 2]);
    report.missing = ["cuMemCreate", "cuMemMap", "cuDeviceGetUuid_v2"].map(str::to_owned).to_vec();
    let checks = check_cuda(&report, true);
    let expected = [
        "has libcuda.so.1: CUDA 12.2, reports 4 GPUs",
        "lacks calls of libcuda.so.1: this driver has no cuMemCreate, cuMemMap: copies to GPUs of \
         other nodes are not measured",
        "lacks fabric handles: need CUDA 12.3; copies to GPUs of other nodes are not measured",
    ];
    assert_eq!(lines(&checks), expected);
    assert!(checks.iter().all(|it| (it.state == CheckupState::Lacks) == it.remedy.is_some()));
    report.missing = vec!["cuMemcpyAsync".to_owned()];
    assert!(
        lines(&check_cuda(&report, true))[1].ends_with("no cuMemcpyAsync: nothing is measured")
    );
}

#[test]
fn every_optional_call_is_one_that_fabricgate_uses() {
    let source = include_str!("../ffi/cuda.rs");
    for call in OPTIONAL_CALLS.iter().flat_map(|(calls, _)| *calls) {
        assert!(source.contains(&format!("= \"{call}\" (")), "{call}");
    }
}

#[test]
fn every_error_has_a_remedy() {
    let of = |code: Option<i32>| {
        let trouble = Some(LibraryFailure { message: "cuInit: not initialized".to_owned(), code });
        let checks = check_cuda(&LibraryReport { trouble, ..sample_report() }, true);
        let [check] = checks.as_slice() else { panic!("{checks:?}") };
        assert_eq!(check.state, CheckupState::Lacks);
        assert_eq!(check.detail, "CUDA 13.0, and cannot be used: cuInit: not initialized");
        check.remedy.clone().expect("a remedy")
    };
    assert!(cuda_remedy(Some(code::NO_DEVICE), false).contains("modprobe nvidia"));
    assert!(of(None).contains("install"));
    assert!(of(Some(code::STUB_LIBRARY)).contains("LD_LIBRARY_PATH"));
    assert!(of(Some(code::NO_DEVICE)).contains("CUDA_VISIBLE_DEVICES"));
    assert!(of(Some(code::SYSTEM_NOT_READY)).contains("nvidia-fabricmanager"));
    assert!(of(Some(code::SYSTEM_DRIVER_MISMATCH)).contains("reboot"));
    assert!(of(Some(code::UNKNOWN)).contains("Xid"));
}

#[test]
fn gpus_that_refuse_processes_are_named() {
    let mut report = sample_report();
    report.gpus[1].compute_mode = Some(3);
    report.gpus[2].compute_mode = Some(3);
    report.gpus[3].compute_mode = Some(2);
    let lines = lines(&check_compute_modes(&report));
    assert!(lines[0].starts_with("lacks GPU 3: refuse every process"), "{lines:?}");
    assert!(lines[1].starts_with("lacks GPUs 1, 2: accept one process only"), "{lines:?}");
}

#[test]
fn nccl_is_reported_with_its_version_and_path() {
    let path = Some("/env/lib/libnccl.so.2".to_owned());
    let report = LibraryReport { path, version: Some(vec![2, 28, 3]), ..LibraryReport::default() };
    let expected = "has libnccl.so.2: 2.28.3, found as /env/lib/libnccl.so.2";
    assert_eq!(lines(&check_nccl(&report, &sample_report())), [expected]);
    let newer = LibraryReport { built_for: Some([14, 0]), ..report };
    let found = lines(&check_nccl(&newer, &sample_report()));
    assert!(found[1].contains("built for CUDA 14.0, and the driver supports CUDA 13"), "{found:?}");
    let same = LibraryReport { built_for: Some([13, 5]), ..newer };
    assert_eq!(lines(&check_nccl(&same, &sample_report())).len(), 1);
    let trouble = Some(LibraryFailure { message: "it was found nowhere".to_owned(), code: None });
    let checks =
        check_nccl(&LibraryReport { trouble, ..LibraryReport::default() }, &sample_report());
    assert_eq!((checks[0].state, checks[0].needed), (CheckupState::Lacks, false));
    // A default probe falls back to the native probe if its tool is missing.
    let required = BTreeMap::from([("libnccl.so.2", vec!["nccl-all-reduce"])]);
    let checks = mark_required(checks, ProbeLibrary::Nccl, &required);
    assert_eq!(
        (checks[0].needed, checks[0].probes.as_slice()),
        (true, &["nccl-all-reduce".to_owned()][..])
    );
}

fn facts_result(gpus: Vec<GpuFacts>, trouble: Option<&str>) -> FactsResult {
    let version = Some("580.95.05".to_owned());
    let driver = Some(DriverFacts { version, ..DriverFacts::default() });
    let facts = NodeFacts { driver, gpus: Some(gpus), ..NodeFacts::default() };
    FactsResult { facts, trouble: trouble.map(str::to_owned) }
}

fn gpu(index: u32, state: FabricState) -> GpuFacts {
    let fabric = Some(FabricFacts { state, ..FabricFacts::default() });
    GpuFacts { index, fabric, ..GpuFacts::default() }
}

#[test]
fn a_fabric_that_is_not_up_is_reported_and_a_gpu_without_fabric_is_not() {
    let mut gpus = vec![
        gpu(0, FabricState::Completed),
        gpu(1, FabricState::InProgress),
        gpu(2, FabricState::NotSupported),
        gpu(3, FabricState::InProgress),
    ];
    gpus[0].numa_node = Some(1);
    gpus[2].mig = Some(true);
    let expected = [
        "has libnvidia-ml.so.1: driver 580.95.05",
        "has fabric registration: GPU 0: completed",
        "unknown fabric registration: GPU 2: no fabric, or not reported by the driver",
        "lacks fabric registration: GPUs 1, 3: in progress",
        "lacks GPU 2: partitioned into MIG instances: copies between GPUs are not measured",
        "has NUMA nodes of GPUs: 0 at 1",
    ];
    assert_eq!(lines(&check_nvml(&facts_result(gpus, None))), expected);
}

#[test]
fn a_driver_that_does_not_answer_is_reported_with_the_consequence() {
    let checks = check_nvml(&facts_result(Vec::new(), Some("there is no NVIDIA driver: x")));
    let [check] = checks.as_slice() else { panic!("{checks:?}") };
    assert_eq!((check.state, check.needed), (CheckupState::Lacks, false));
    assert!(check.remedy.as_ref().is_some_and(|it| it.contains("stay unknown")), "{check:?}");
}

#[test]
fn only_device_files_of_gpus_are_tested() {
    let root = tempfile::tempdir().expect("a folder");
    assert!(check_device_files(root.path()).is_empty());
    std::fs::create_dir(root.path().join("dev")).expect("made");
    for name in ["nvidia0", "nvidia10", "nvidia2", "nvidia-uvm", "nvidia-modeset", "nvram"] {
        std::fs::write(root.path().join("dev").join(name), "").expect("written");
    }
    let expected = "has GPUs' device files: /dev/nvidia0, /dev/nvidia2, /dev/nvidia10, \
                    /dev/nvidia-uvm can be opened";
    assert_eq!(lines(&check_device_files(root.path())), [expected]);
}

#[tokio::test]
async fn a_machine_without_a_driver_is_not_queried() {
    let root = tempfile::tempdir().expect("a folder");
    let executable = "/no/such/program".into();
    let libraries = Some(LibraryPaths { executable, cuda: None, nvml: None, nccl: None });
    let context = CheckupContext { libraries, ..CheckupContext::with_root(root.path()) };
    assert!(check_gpu_libraries(&context).await.is_empty());
}
