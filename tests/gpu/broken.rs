//! `fabricgate node probe copy` where a part is missing or breaks: one clear message each, the
//! values measured until then, none invented, and unknown rather than degraded.

use std::collections::BTreeSet;

use model::copy::CopyDocument;
use model::parse_output::OutputProblemKind;
use node::ffi::cuda::code;

use crate::copy::{machine, only, probe, table};
use crate::program::Place;
use crate::stub::{Library, Machine};

const DOWN: &str = "host_to_device_memcpy_ce";
const READ: &str = "device_to_device_memcpy_read_ce";

/// Exit codes of DESIGN.md.
const INCONCLUSIVE: Option<i32> = Some(4);
const ENVIRONMENT: Option<i32> = Some(5);

fn numbers(document: &CopyDocument) -> usize {
    let cells = document.tests.iter().flat_map(|test| test.readings.iter().flatten().flatten());
    cells.filter(|cell| cell.is_some()).count()
}

/// A machine on which no probe can begin, and the class of its only problem.
fn nothing_begins(place: &Place, class: &str, detail: &str) {
    let root = format!("--root={}", crate::root_with_module().display());
    let (ran, document) = probe(place, DOWN, &[&root]);
    let problem = only(&document);
    assert_eq!((problem.kind, problem.class.as_str()), (OutputProblemKind::Error, class));
    assert!(problem.detail.contains(detail), "{}", problem.detail);
    assert_eq!((ran.code, document.complete, numbers(&document)), (ENVIRONMENT, false, 0));
}

#[test]
fn a_machine_without_a_driver_or_with_a_wrong_one_is_reported() {
    let place = Place::of(&machine(1));
    let nowhere = place.folder().join("libcuda.so.1");
    let place = place.with(Library::Cuda.variable(), &nowhere);
    nothing_begins(&place, "no-driver", "install NVIDIA's driver");
    let foreign = machine(1).without(Library::Cuda, &["cuInit"]);
    nothing_begins(&Place::of(&foreign), "foreign-library", "has no cuInit");
    for (code, class, detail) in [
        (code::STUB_LIBRARY, "stub-library", "CUDA_ERROR_STUB_LIBRARY (34)"),
        (code::SYSTEM_DRIVER_MISMATCH, "driver-mismatch", "different versions"),
        (code::SYSTEM_NOT_READY, "system-not-ready", "nvidia-fabricmanager"),
        (code::UNKNOWN, "driver-failed", "/dev/nvidia-uvm"),
    ] {
        let place = Place::of(&machine(1).with(&format!("fail cuInit = {code}")));
        nothing_begins(&place, class, detail);
    }
}

#[test]
fn no_gpu_gives_no_measurement() {
    nothing_begins(&Place::of(&machine(0)), "no-device", "CUDA_ERROR_NO_DEVICE (100)");
}

#[test]
fn a_mig_instance_is_not_measured_as_if_it_were_a_gpu() {
    let place = Place::of(&machine(1).with("gpu 0 mig"));
    nothing_begins(&place, "mig", "nvidia-smi -mig 0");
}

#[test]
fn a_driver_too_old_for_a_call_measures_what_it_can() {
    let old = machine(2).without(Library::Cuda, &["cuCtxEnablePeerAccess"]);
    let (ran, document) = probe(&Place::of(&old), &format!("{DOWN},{READ}"), &[]);
    assert_eq!(table(&document, DOWN, 1), "55.0 55.0");
    let class = "driver-too-old";
    assert!(document.problems.iter().any(|it| it.class.as_str() == class), "{document:#?}");
    let problem =
        document.problems.iter().find(|it| it.class.as_str() == class).expect("it is reported");
    assert_eq!(problem.code.as_deref(), Some("cuCtxEnablePeerAccess"));
    assert_eq!((ran.code, document.complete), (INCONCLUSIVE, false));
    let old = machine(2).without(Library::Cuda, &["cuMemcpyAsync"]);
    let (ran, document) = probe(&Place::of(&old), DOWN, &[]);
    assert_eq!(numbers(&document), 0);
    let classes: BTreeSet<&str> = document.problems.iter().map(|it| it.class.as_str()).collect();
    assert_eq!(classes, BTreeSet::from([class]), "{document:#?}");
    assert_eq!((ran.code, document.complete), (ENVIRONMENT, false));
}

#[test]
fn a_gpu_in_exclusive_use_leaves_the_others() {
    for (line, class) in [
        ("gpu 1 compute-mode = 3", "exclusive-mode"),
        ("gpu 1 compute-mode = 2", "prohibited-mode"),
    ] {
        let place = Place::of(&machine(3).with(line).with("gpu 1 busy"));
        let (ran, document) = probe(&place, &format!("{DOWN},{READ}"), &["--readings=1"]);
        let problem = only(&document);
        assert_eq!((problem.kind, problem.class.as_str()), (OutputProblemKind::Error, class));
        assert_eq!(problem.gpu, Some(1));
        assert!(problem.detail.contains("nvidia-smi -c 0"), "{}", problem.detail);
        assert_eq!((ran.code, document.complete), (INCONCLUSIVE, false));
        let gpus: Vec<u32> = document.gpus.iter().map(|gpu| gpu.index).collect();
        assert_eq!(gpus, [0, 2]);
        assert_eq!(table(&document, DOWN, 0), "55.0 55.0");
        assert_eq!(table(&document, READ, 0), "- 390.0 | 390.0 -");
    }
}

#[test]
fn a_gpu_without_room_leaves_the_others() {
    let place = Place::of(&machine(2).with("gpu 1 memory = 4096"));
    let (ran, document) = probe(&place, DOWN, &[]);
    let problem = only(&document);
    assert_eq!((problem.class.as_str(), problem.gpu), ("no-memory", Some(1)));
    assert_eq!((ran.code, document.complete), (INCONCLUSIVE, false));
    assert_eq!(table(&document, DOWN, 1), "55.0 -");
    let place = Place::of(&machine(2).with("fail cuMemHostAlloc = 2 from 2"));
    let (ran, document) = probe(&place, &format!("{DOWN},device_local_copy"), &[]);
    assert!(
        document.problems.iter().any(|it| it.class.as_str() == "no-host-memory"),
        "{document:#?}"
    );
    assert_eq!((ran.code, document.complete, numbers(&document)), (ENVIRONMENT, false, 0));
}

#[test]
fn a_gpu_that_is_lost_in_mid_run_leaves_the_others() {
    for (code, after) in [(719, 60), (999, 90)] {
        let place = Place::of(&machine(3).with(&format!("lost 1 = {code} after {after}")));
        let (ran, document) = probe(&place, &format!("{DOWN},device_local_copy"), &[]);
        let of_gpu: Vec<_> =
            document.problems.iter().map(|it| (it.class.as_str(), it.gpu)).collect();
        assert_eq!(of_gpu, [("gpu-lost", Some(1))], "{document:#?}");
        assert!(document.problems[0].detail.contains("Xid"), "{}", document.problems[0].detail);
        assert_eq!((ran.code, document.complete), (INCONCLUSIVE, false));
        let local = table(&document, "device_local_copy", 1);
        assert_eq!(local, "1500.0 - 1500.0", "{document:#?}");
    }
}

#[test]
fn a_lost_peer_is_named_and_pairs_without_it_are_measured() {
    // GPU 1 is lost when the first pairs are measured.
    let place = Place::of(&machine(3).with("lost 1 = 719 after 60"));
    let (ran, document) = probe(&place, READ, &["--readings=1"]);
    assert_eq!((ran.code, document.complete), (INCONCLUSIVE, false));
    assert!(
        document.problems.iter().all(|it| it.kind == OutputProblemKind::Error),
        "{document:#?}"
    );
    let lost = document.problems.iter().filter(|it| it.class.as_str() == "gpu-lost");
    assert!(lost.filter_map(|it| it.gpu).any(|gpu| gpu == 1), "{document:#?}");
    assert_eq!(table(&document, READ, 0), "- - 390.0 | - - - | 390.0 - -");
}

#[test]
fn a_temporary_error_costs_only_its_measurement() {
    // Each reading asks for two times: this is the second of GPU 0.
    let place = Place::of(&machine(3).with("fail cuEventElapsedTime = 1 at 3"));
    let (ran, document) = probe(&place, DOWN, &[]);
    let problem = only(&document);
    assert_eq!((problem.class.as_str(), problem.gpu), ("cuda-error", Some(0)));
    assert_eq!(problem.code.as_deref(), Some("CUDA_ERROR_INVALID_VALUE"));
    assert_eq!((ran.code, document.complete), (INCONCLUSIVE, false));
    assert_eq!(table(&document, DOWN, 0), "55.0 55.0 55.0", "the first reading was good");
    assert_eq!(table(&document, DOWN, 1), "- 55.0 55.0");
}

#[test]
fn an_out_of_memory_error_is_reported_as_such() {
    for (code, class) in [
        (code::ECC_UNCORRECTABLE, "gpu-memory-error"),
        (code::NVLINK_UNCORRECTABLE, "nvlink-error"),
    ] {
        let fault = format!("fail cuStreamSynchronize = {code} from 6");
        let (ran, document) = probe(&Place::of(&Machine::with(machine(2), &fault)), READ, &[]);
        assert!(document.problems.iter().any(|it| it.class.as_str() == class), "{document:#?}");
        assert!(document.problems.iter().all(|it| it.kind == OutputProblemKind::Error));
        assert!([INCONCLUSIVE, ENVIRONMENT].contains(&ran.code));
        assert!(!document.complete);
    }
}
