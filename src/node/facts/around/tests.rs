//! Watching libraries that change from one reading to the next.

use std::cell::Cell;
use std::cell::RefCell;

use super::*;
use crate::facts::library::Answer;
use crate::facts::library::LinkNumber;
use crate::facts::library::MachineQuestion;
use crate::facts::library::ProcessValue;
use crate::facts::library::Value;
use crate::facts::recorded::Recorded;
use model::probed::Around;
use model::throttle::ThrottleReason;

/// `NVML_FI_DEV_NVLINK_LINK_COUNT`.
const LINK_COUNT: u32 = 91;

/// A library that answers with another recording from each moment on.
struct Moments {
    now: Cell<usize>,
    recorded: Vec<Recorded>,
}

impl GpuLibrary for Moments {
    fn of_machine(&self, question: MachineQuestion) -> Answer {
        self.recorded[self.now.get()].of_machine(question)
    }

    fn of_gpu(&self, gpu: u32, question: Question) -> Answer {
        self.recorded[self.now.get()].of_gpu(gpu, question)
    }
}

fn number(recorded: &mut Recorded, question: Question, value: u64) {
    recorded.gpu(0, question, Ok(Value::Number(value)));
}

fn errors(counter: u32) -> Question {
    Question::Link(1, LinkNumber::Errors(counter))
}

/// A Hopper with two links.
fn hopper(sm_mhz: u64, generation: u64, throttling: u64, pids: &[u32]) -> Recorded {
    let mut recorded = Recorded::default();
    recorded.gpu(0, Question::Text(Text::Uuid), Ok(Value::Text("GPU-0".to_owned())));
    number(&mut recorded, Question::Number(Number::Architecture), 9);
    number(&mut recorded, Question::Field { id: LINK_COUNT, scope: 0 }, 2);
    for link in 0..2 {
        for counter in 0..5 {
            number(&mut recorded, Question::Link(link, LinkNumber::Errors(counter)), 7);
        }
    }
    for (question, value) in [
        (Number::ClockSm, sm_mhz),
        (Number::ClockMemory, 2_619),
        (Number::PowerDraw, 75_500),
        (Number::Temperature, 31),
        (Number::PcieGeneration, generation),
        (Number::PcieWidth, 16),
        (Number::PcieReplays, 4),
        (Number::Throttling, throttling),
    ] {
        number(&mut recorded, Question::Number(question), value);
    }
    let processes = pids.iter().map(|pid| ProcessValue { pid: *pid, memory_bytes: None });
    recorded.gpu(0, Question::Processes, Ok(Value::Processes(processes.collect())));
    recorded
}

/// A machine whose processes have the kernel's own numbers, or others.
fn proc(space: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::create_dir_all(folder.path().join("self/ns")).expect("made");
    std::os::unix::fs::symlink(space, folder.path().join("self/ns/pid")).expect("a link");
    folder
}

/// What is said of these moments, one of which is each rest.
fn said(recorded: Vec<Recorded>, space: &str) -> String {
    let last = recorded.len() - 1;
    let moments = Moments { now: Cell::new(0), recorded };
    let (mut out, mut progress) = (Vec::new(), Vec::new());
    let rest = |_| {
        moments.now.set(moments.now.get() + 1);
        moments.now.get() == last
    };
    let proc = proc(space);
    watch(&moments, proc.path(), &mut out, &mut progress, rest).expect("written");
    String::from_utf8(out).expect("text")
}

fn around(recorded: Vec<Recorded>, own: &[u32]) -> Around {
    of(&said(recorded, FIRST_PROCESS_SPACE), own, None)
}

#[test]
fn the_most_that_is_seen_under_load_is_kept_and_what_held_it_down() {
    let (rest, slow, fast) =
        (hopper(345, 1, 1, &[]), hopper(1_200, 5, 4, &[50]), hopper(1_980, 5, 8, &[50]));
    let around = around(vec![rest.clone(), slow, fast, rest.clone(), rest], &[50]);
    assert_eq!((around.samples, around.missing.as_slice()), (3, &[][..]));
    let gpu = &around.gpus[0];
    let load = gpu.under_load.as_ref().expect("sampled");
    assert_eq!(
        (load.sm_mhz, load.pcie_generation, load.power_w),
        (Some(1_980), Some(5), Some(75.5))
    );
    // The rest between two tests is idle, which holds nothing down.
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
fn only_the_growth_of_counters_is_told() {
    let mut after = hopper(345, 1, 1, &[]);
    number(&mut after, errors(0), 12);
    number(&mut after, Question::Number(Number::PcieReplays), 6);
    let around = around(vec![hopper(345, 1, 1, &[]), after.clone(), after], &[]);
    let gpu = &around.gpus[0];
    assert_eq!(gpu.link_errors.len(), 1);
    assert_eq!(gpu.link_errors[&1].iter().collect::<Vec<_>>(), [(&"dl_replay".to_owned(), &5)]);
    assert_eq!(gpu.pcie_replays, Some(2));
}

#[test]
fn a_counter_that_went_back_is_told_and_not_counted() {
    let mut after = hopper(345, 1, 1, &[]);
    number(&mut after, errors(1), 2);
    let around = around(vec![hopper(345, 1, 1, &[]), after], &[]);
    assert!(around.gpus[0].link_errors.is_empty());
    let [missing] = &around.missing[..] else { panic!("{:?}", around.missing) };
    assert_eq!((missing.gpus.as_slice(), missing.links.as_slice()), (&[0][..], &[1][..]));
    assert_eq!(missing.what, "growth of NVLink errors dl_recovery");
    assert!(missing.why.contains("went back from 7 to 2"), "{}", missing.why);
}

#[test]
fn processes_of_others_are_told_and_ours_are_not() {
    let moments = || {
        let between = hopper(1_980, 5, 0, &[9, 50, 51]);
        vec![hopper(345, 1, 1, &[9]), between, hopper(345, 1, 1, &[9, 70])]
    };
    assert_eq!(around(moments(), &[50]).gpus[0].others, [9, 51, 70]);
    // In a container the driver knows ours by other numbers.
    let contained = of(&said(moments(), "pid:[4026532198]"), &[50], None);
    assert_eq!(contained.gpus[0].others, [9]);
}

#[test]
fn what_a_gpu_does_not_support_is_missing_once_and_its_growth_unknown() {
    let mut recorded = hopper(345, 1, 1, &[]);
    for counter in 0..5 {
        recorded.gpu(0, errors(counter), Err(Refusal::NotSupported));
    }
    recorded.gpu(0, Question::Number(Number::PcieReplays), Err(Refusal::NotSupported));
    let around = around(vec![recorded.clone(), recorded.clone(), recorded.clone(), recorded], &[]);
    let lacks = |what: &str| around.missing.iter().filter(|missing| missing.what == what).count();
    assert_eq!((lacks("NVLink errors dl_replay"), lacks("pcie replay counter")), (1, 1));
    assert_eq!(around.gpus[0].pcie_replays, None);
}

#[test]
fn a_gpu_that_is_lost_under_load_is_told_and_what_was_read_is_kept() {
    let mut lost = Recorded { gpus: vec![Default::default()], ..Recorded::default() };
    for question in [Number::ClockSm, Number::PowerDraw, Number::Throttling] {
        lost.gpu(0, Question::Number(question), Err(Refusal::GpuLost));
    }
    lost.gpu(0, Question::Text(Text::Uuid), Err(Refusal::GpuLost));
    let load = hopper(1_980, 5, 0, &[]);
    let around = around(vec![hopper(345, 1, 1, &[]), load, lost.clone(), lost.clone(), lost], &[]);
    let gpu = &around.gpus[0];
    assert_eq!(gpu.under_load.as_ref().and_then(|load| load.sm_mhz), Some(1_980));
    assert_eq!((gpu.after.as_ref(), gpu.pcie_replays), (None, None));
    let told = around.missing.iter().filter(|missing| missing.why.contains("fell off the bus"));
    assert_eq!(told.count(), 1, "{:?}", around.missing);
}

#[test]
fn what_was_said_before_the_end_is_kept_and_what_was_not_has_a_reason() {
    let moment = || hopper(345, 1, 1, &[]);
    let said = said(vec![moment(), moment(), moment()], FIRST_PROCESS_SPACE);
    let cut = said.find(r#"{"type":"after"#).expect("it says so");
    let around = of(&said[..cut + 40], &[], Some("it did not end within 5 s"));
    assert!(around.gpus[0].before.is_some() && around.gpus[0].under_load.is_some());
    let [missing] = &around.missing[..] else { panic!("{:?}", around.missing) };
    assert_eq!(missing.what, "readings after the probe");
    assert_eq!(missing.why, "it did not end within 5 s");
    let nothing = of("", &[], None);
    assert_eq!(nothing.missing[0].what, "readings around the probe");
    assert!(nothing.gpus.is_empty());
}

#[test]
fn the_probe_may_begin_when_everything_was_read_or_nothing_can_be() {
    let said = said(vec![hopper(345, 1, 1, &[]), hopper(345, 1, 1, &[])], FIRST_PROCESS_SPACE);
    let begun: Vec<bool> = said.lines().map(has_begun).collect();
    assert_eq!(begun, [false, false, true, false, false, true]);
    let mut out = Vec::new();
    refuse("there is no NVIDIA driver", &mut out).expect("written");
    let text = String::from_utf8(out).expect("text");
    assert!(has_begun(&text));
    assert_eq!(of(&text, &[], None).missing[0].why, "there is no NVIDIA driver");
}

#[test]
fn nothing_is_said_again_that_did_not_change() {
    let moment = || hopper(345, 1, 1, &[]);
    let many: Vec<Recorded> = (0..40).map(|_| moment()).collect();
    let said = said(many, FIRST_PROCESS_SPACE);
    let loads = said.lines().filter(|line| line.contains(r#""type":"load""#));
    assert_eq!(loads.count(), 2, "the first, and the last for the count");
    assert_eq!(of(&said, &[], None).samples, 38);
}

#[test]
fn the_end_of_the_input_is_the_end() {
    let (reader, writer) = io::pipe().expect("a pipe");
    let rest = RefCell::new(until_closed(reader));
    assert!(!(rest.borrow_mut())(Duration::from_millis(1)));
    drop(writer);
    while !(rest.borrow_mut())(Duration::from_secs(1)) {}
    assert!((rest.borrow_mut())(Duration::ZERO));
}
