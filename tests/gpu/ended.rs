//! Processes of `fabricgate node probe copy` that hang, die or are ended: measured values are
//! kept, the call is named, and no process is left running (`Place::ended` checks this in each of
//! these tests).

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use model::copy::CopyDocument;
use model::parse_output::OutputProblemKind;
use rustix::process::{Pid, Signal, kill_process};

use crate::copy::{machine, only, probe, table};
use crate::program::Place;

const DOWN: &str = "host_to_device_memcpy_ce";

/// Each reading asks for two times. The first GPU's only reading is complete by then.
const HANGS_LATE: &str = "hang cuEventElapsedTime = 3";

/// The process that made this call that often, once it has.
fn caller(calls: &Path, call: &str, times: usize) -> Pid {
    let since = Instant::now();
    loop {
        let text = fs::read_to_string(calls).unwrap_or_default();
        let made = text.lines().filter(|line| line.ends_with(&format!(" {call}")));
        if let Some(line) = made.skip(times - 1).last() {
            let number = line.split(' ').next().expect("a number").parse().expect("a number");
            return Pid::from_raw(number).expect("a process");
        }
        assert!(since.elapsed() < Duration::from_secs(60), "{call} was not called: {text}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A machine on which the second GPU's first reading hangs, and the calls that are made there.
fn hanging() -> (Place, std::path::PathBuf) {
    let machine = machine(2).with(HANGS_LATE).with("calls = {folder}/calls");
    let place = Place::of(&machine);
    let calls = place.folder().join("calls");
    (place, calls)
}

const WORDS: [&str; 10] = [
    "--json",
    "node",
    "probe",
    "copy",
    "--buffer=1",
    "--copies=2",
    "--readings=1",
    "--node=n1",
    "--no-around",
    "--tests=host_to_device_memcpy_ce",
];

#[test]
fn a_hanging_call_is_named_and_measured_values_stay() {
    let place = Place::of(&machine(2).with(HANGS_LATE));
    let (ran, document) = probe(&place, DOWN, &["--readings=1", "--silence=5"]);
    let problem = only(&document);
    assert_eq!((problem.kind, problem.class.as_str()), (OutputProblemKind::Error, "hung"));
    assert!(problem.detail.contains("GPU 1: reading 0"), "{}", problem.detail);
    assert_eq!(table(&document, DOWN, 0), "55.0 -");
    assert_eq!((ran.code, document.complete), (Some(4), false));
}

#[test]
fn a_driver_that_hangs_from_the_beginning_gives_no_measurement() {
    let place = Place::of(&machine(2).with("hang cuInit = 1"));
    let (ran, document) = probe(&place, DOWN, &["--silence=5"]);
    let problem = only(&document);
    assert_eq!(problem.class.as_str(), "hung");
    assert!(problem.detail.contains("initializing the driver"), "{}", problem.detail);
    assert_eq!((ran.code, document.tests.len()), (Some(5), 0));
}

#[test]
fn the_limit_of_the_whole_probe_holds() {
    let place = Place::of(&machine(2).with(HANGS_LATE));
    let (ran, document) = probe(&place, DOWN, &["--readings=1", "--limit=3"]);
    let problem = only(&document);
    assert_eq!(
        (problem.kind, problem.class.as_str()),
        (OutputProblemKind::Truncated, "out-of-time")
    );
    // The number of cells until then depends on the machine.
    assert!(matches!(ran.code, Some(4 | 5)) && !document.complete, "{ran:?}");
}

#[test]
fn a_process_that_the_driver_ends_is_reported_with_its_signal() {
    let place = Place::of(&machine(2).with("die cuEventElapsedTime = 3"));
    let (ran, document) = probe(&place, DOWN, &["--readings=1"]);
    let problem = only(&document);
    assert_eq!((problem.kind, problem.class.as_str()), (OutputProblemKind::Error, "child-died"));
    assert!(problem.detail.contains("SIGABRT (6)"), "{}", problem.detail);
    assert_eq!(table(&document, DOWN, 0), "55.0 -");
    assert_eq!((ran.code, document.complete), (Some(4), false));
}

#[test]
fn a_killed_process_is_reported_with_its_last_call() {
    let (place, calls) = hanging();
    let started = place.start(&WORDS);
    let child = caller(&calls, "cuEventElapsedTime", 3);
    kill_process(child, Signal::KILL).expect("killed");
    let ran = place.ended(started);
    let document: CopyDocument = ran.document();
    let problem = only(&document);
    assert_eq!(problem.class.as_str(), "child-died");
    assert!(problem.detail.contains("SIGKILL (9)"), "{}", problem.detail);
    assert!(problem.detail.contains("reading 0"), "{}", problem.detail);
    assert_eq!(table(&document, DOWN, 0), "55.0 -");
    assert_eq!(ran.code, Some(4));
}

#[test]
fn an_interrupted_probe_prints_its_results() {
    let (place, calls) = hanging();
    let started = place.start(&WORDS);
    caller(&calls, "cuEventElapsedTime", 3);
    let attendant = Pid::from_raw(i32::try_from(started.id()).expect("small")).expect("a process");
    kill_process(attendant, Signal::TERM).expect("signalled");
    let ran = place.ended(started);
    let document: CopyDocument = ran.document();
    let problem = only(&document);
    assert_eq!(
        (problem.kind, problem.class.as_str()),
        (OutputProblemKind::Truncated, "interrupted")
    );
    assert_eq!(table(&document, DOWN, 0), "55.0 -");
    assert_eq!((ran.code, document.complete), (Some(4), false));
}

#[test]
fn a_killed_attendant_leaves_no_process() {
    let (place, calls) = hanging();
    let started = place.start(&WORDS);
    caller(&calls, "cuEventElapsedTime", 3);
    let attendant = Pid::from_raw(i32::try_from(started.id()).expect("small")).expect("a process");
    kill_process(attendant, Signal::KILL).expect("killed");
    let ran = place.ended(started);
    assert_eq!((ran.code, ran.out.as_str()), (None, ""));
}
