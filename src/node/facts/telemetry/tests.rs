//! Tests with libraries whose answers change from one reading to the next.

use std::cell::{Cell, RefCell};

use super::*;
use crate::facts::gpu_library::{GpuQueryResult, GpuValue, LinkNumber, MachineQuery, ProcessValue};
use crate::facts::library_record::RecordedLibrary;
use model::probe_report::DriverTelemetry;
use model::throttle_reason::ThrottleReason;

/// `NVML_FI_DEV_NVLINK_LINK_COUNT`.
const LINK_COUNT: u32 = 91;

/// A library that plays the next recording from each moment on.
struct SequencedLibrary {
    now: Cell<usize>,
    recorded: Vec<RecordedLibrary>,
}

impl GpuLibrary for SequencedLibrary {
    fn query_machine(&self, query: MachineQuery) -> GpuQueryResult {
        self.recorded[self.now.get()].query_machine(query)
    }

    fn query_gpu(&self, gpu: u32, query: GpuQuery) -> GpuQueryResult {
        self.recorded[self.now.get()].query_gpu(gpu, query)
    }
}

fn number(recorded: &mut RecordedLibrary, query: GpuQuery, value: u64) {
    recorded.add_gpu_answer(0, query, Ok(GpuValue::Number(value)));
}

fn errors(counter: u32) -> GpuQuery {
    GpuQuery::Link(1, LinkNumber::Errors(counter))
}

/// A Hopper GPU with two links.
fn hopper(sm_mhz: u64, generation: u64, throttling: u64, pids: &[u32]) -> RecordedLibrary {
    let mut recorded = RecordedLibrary::default();
    recorded.add_gpu_answer(
        0,
        GpuQuery::Text(GpuText::Uuid),
        Ok(GpuValue::Text("GPU-0".to_owned())),
    );
    number(&mut recorded, GpuQuery::Number(GpuNumber::Architecture), 9);
    number(&mut recorded, GpuQuery::Field { id: LINK_COUNT, scope: 0 }, 2);
    for link in 0..2 {
        for counter in 0..5 {
            number(&mut recorded, GpuQuery::Link(link, LinkNumber::Errors(counter)), 7);
        }
    }
    for (query, value) in [
        (GpuNumber::ClockSm, sm_mhz),
        (GpuNumber::ClockMemory, 2_619),
        (GpuNumber::PowerDraw, 75_500),
        (GpuNumber::Temperature, 31),
        (GpuNumber::PcieGeneration, generation),
        (GpuNumber::PcieWidth, 16),
        (GpuNumber::PcieReplays, 4),
        (GpuNumber::Throttling, throttling),
    ] {
        number(&mut recorded, GpuQuery::Number(query), value);
    }
    let processes = pids.iter().map(|pid| ProcessValue { pid: *pid, memory_bytes: None });
    recorded.add_gpu_answer(0, GpuQuery::Processes, Ok(GpuValue::Processes(processes.collect())));
    recorded
}

/// A machine in the initial PID namespace, or in another one.
fn proc(space: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::create_dir_all(folder.path().join("self/ns")).expect("made");
    std::os::unix::fs::symlink(space, folder.path().join("self/ns/pid")).expect("a link");
    folder
}

/// The telemetry lines for these moments, one per rest.
fn telemetry_lines(recorded: Vec<RecordedLibrary>, space: &str) -> String {
    let last = recorded.len() - 1;
    let moments = SequencedLibrary { now: Cell::new(0), recorded };
    let (mut out, mut progress) = (Vec::new(), Vec::new());
    let rest = |_| {
        moments.now.set(moments.now.get() + 1);
        moments.now.get() == last
    };
    let proc = proc(space);
    watch_gpus(&moments, proc.path(), &mut out, &mut progress, rest).expect("written");
    String::from_utf8(out).expect("text")
}

fn telemetry(recorded: Vec<RecordedLibrary>, own: &[u32]) -> DriverTelemetry {
    summarize_telemetry(&telemetry_lines(recorded, HOST_PID_NAMESPACE), own, None)
}

#[test]
fn maxima_under_load_and_throttle_reasons_are_kept() {
    let (rest, slow, fast) =
        (hopper(345, 1, 1, &[]), hopper(1_200, 5, 4, &[50]), hopper(1_980, 5, 8, &[50]));
    let around = telemetry(vec![rest.clone(), slow, fast, rest.clone(), rest], &[50]);
    assert_eq!((around.samples, around.missing.as_slice()), (3, &[][..]));
    let gpu = &around.gpus[0];
    let load = gpu.under_load.as_ref().expect("sampled");
    assert_eq!(
        (load.sm_mhz, load.pcie_generation, load.power_w),
        (Some(1_980), Some(5), Some(75.5))
    );
    // The GPU is idle between two tests, which does not limit its clock.
    assert_eq!(
        load.throttled,
        [ThrottleReason::SoftwarePowerCap, ThrottleReason::HardwareSlowdown]
    );
    let before = gpu.before.as_ref().expect("read");
    assert_eq!(
        (before.pcie_generation, before.throttled.as_slice()),
        (Some(1), &[ThrottleReason::Idle][..])
    );
    assert_eq!(gpu.uuid.as_deref(), Some("GPU-0"));
    assert!(gpu.link_errors.is_empty() && gpu.others.is_empty());
    assert_eq!(gpu.pcie_replays, Some(0));
}

#[test]
fn only_the_growth_of_counters_is_reported() {
    let mut after = hopper(345, 1, 1, &[]);
    number(&mut after, errors(0), 12);
    number(&mut after, GpuQuery::Number(GpuNumber::PcieReplays), 6);
    let around = telemetry(vec![hopper(345, 1, 1, &[]), after.clone(), after], &[]);
    let gpu = &around.gpus[0];
    assert_eq!(gpu.link_errors.len(), 1);
    assert_eq!(gpu.link_errors[&1].iter().collect::<Vec<_>>(), [(&"dl_replay".to_owned(), &5)]);
    assert_eq!(gpu.pcie_replays, Some(2));
}

#[test]
fn a_counter_that_decreased_is_reported_and_not_counted() {
    let mut after = hopper(345, 1, 1, &[]);
    number(&mut after, errors(1), 2);
    let around = telemetry(vec![hopper(345, 1, 1, &[]), after], &[]);
    assert!(around.gpus[0].link_errors.is_empty());
    let [missing] = &around.missing[..] else { panic!("{:?}", around.missing) };
    assert_eq!((missing.gpus.as_slice(), missing.links.as_slice()), (&[0][..], &[1][..]));
    assert_eq!(missing.what, "growth of NVLink errors dl_recovery");
    assert!(missing.why.contains("reset during the probe (from 7 to 2)"), "{}", missing.why);
}

#[test]
fn foreign_processes_are_reported_and_the_probes_own_are_not() {
    let moments = || {
        let between = hopper(1_980, 5, 0, &[9, 50, 51]);
        vec![hopper(345, 1, 1, &[9]), between, hopper(345, 1, 1, &[9, 70])]
    };
    assert_eq!(telemetry(moments(), &[50]).gpus[0].others, [9, 51, 70]);
    // In a container the driver reports the probe's processes by other IDs.
    let contained =
        summarize_telemetry(&telemetry_lines(moments(), "pid:[4026532198]"), &[50], None);
    assert_eq!(contained.gpus[0].others, [9]);
}

#[test]
fn unsupported_counters_are_missing_once_and_their_growth_is_unknown() {
    let mut recorded = hopper(345, 1, 1, &[]);
    for counter in 0..5 {
        recorded.add_gpu_answer(0, errors(counter), Err(GpuQueryError::NotSupported));
    }
    recorded.add_gpu_answer(
        0,
        GpuQuery::Number(GpuNumber::PcieReplays),
        Err(GpuQueryError::NotSupported),
    );
    let around =
        telemetry(vec![recorded.clone(), recorded.clone(), recorded.clone(), recorded], &[]);
    let lacks = |what: &str| around.missing.iter().filter(|missing| missing.what == what).count();
    assert_eq!((lacks("NVLink errors dl_replay"), lacks("pcie replay counter")), (1, 1));
    assert_eq!(around.gpus[0].pcie_replays, None);
}

#[test]
fn a_gpu_lost_under_load_is_reported_and_earlier_readings_are_kept() {
    let mut lost = RecordedLibrary { gpus: vec![Default::default()], ..RecordedLibrary::default() };
    for query in [GpuNumber::ClockSm, GpuNumber::PowerDraw, GpuNumber::Throttling] {
        lost.add_gpu_answer(0, GpuQuery::Number(query), Err(GpuQueryError::GpuLost));
    }
    lost.add_gpu_answer(0, GpuQuery::Text(GpuText::Uuid), Err(GpuQueryError::GpuLost));
    let load = hopper(1_980, 5, 0, &[]);
    let around =
        telemetry(vec![hopper(345, 1, 1, &[]), load, lost.clone(), lost.clone(), lost], &[]);
    let gpu = &around.gpus[0];
    assert_eq!(gpu.under_load.as_ref().and_then(|load| load.sm_mhz), Some(1_980));
    assert_eq!((gpu.after.as_ref(), gpu.pcie_replays), (None, None));
    let entries = around.missing.iter().filter(|missing| missing.why.contains("fell off the bus"));
    assert_eq!(entries.count(), 1, "{:?}", around.missing);
}

#[test]
fn readings_before_the_end_are_kept_and_missing_ones_have_a_reason() {
    let moment = || hopper(345, 1, 1, &[]);
    let output = telemetry_lines(vec![moment(), moment(), moment()], HOST_PID_NAMESPACE);
    let cut = output.find(r#"{"type":"after"#).expect("a line of that type");
    let around = summarize_telemetry(&output[..cut + 40], &[], Some("it did not end within 5 s"));
    assert!(around.gpus[0].before.is_some() && around.gpus[0].under_load.is_some());
    let [missing] = &around.missing[..] else { panic!("{:?}", around.missing) };
    assert_eq!(missing.what, "readings after the probe");
    assert_eq!(missing.why, "it did not end within 5 s");
    let nothing = summarize_telemetry("", &[], None);
    assert_eq!(nothing.missing[0].what, "readings around the probe");
    assert!(nothing.gpus.is_empty());
}

#[test]
fn the_probe_may_begin_when_everything_was_read_or_nothing_can_be() {
    let output =
        telemetry_lines(vec![hopper(345, 1, 1, &[]), hopper(345, 1, 1, &[])], HOST_PID_NAMESPACE);
    let begun: Vec<bool> = output.lines().map(has_begun).collect();
    assert_eq!(begun, [false, false, true, false, false, true]);
    let mut out = Vec::new();
    write_no_telemetry("there is no NVIDIA driver", &mut out).expect("written");
    let text = String::from_utf8(out).expect("text");
    assert!(has_begun(&text));
    assert_eq!(summarize_telemetry(&text, &[], None).missing[0].why, "there is no NVIDIA driver");
}

#[test]
fn unchanged_readings_are_not_repeated() {
    let moment = || hopper(345, 1, 1, &[]);
    let many: Vec<RecordedLibrary> = (0..40).map(|_| moment()).collect();
    let output = telemetry_lines(many, HOST_PID_NAMESPACE);
    let loads = output.lines().filter(|line| line.contains(r#""type":"load""#));
    assert_eq!(loads.count(), 2, "the first, and the last for the count");
    assert_eq!(summarize_telemetry(&output, &[], None).samples, 38);
}

#[test]
fn the_end_of_the_input_is_noticed() {
    let (reader, writer) = io::pipe().expect("a pipe");
    let rest = RefCell::new(wait_until_closed(reader));
    assert!(!(rest.borrow_mut())(Duration::from_millis(1)));
    drop(writer);
    while !(rest.borrow_mut())(Duration::from_secs(1)) {}
    assert!((rest.borrow_mut())(Duration::ZERO));
}
