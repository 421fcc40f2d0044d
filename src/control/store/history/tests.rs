//! The index against run folders: the same content by every way of building it, and consistent
//! after every failure.

use std::fs;
use std::path::{Path, PathBuf};

use proptest::prelude::*;

use super::*;
use crate::store::run_folder::RunFolder;
use crate::store::{file, run_reader};
use model::id::{DomainName, NodeName};
use model::measured_cell::MeasuredCell;
use model::trend::{FabricPartKind, RunChangeKind};
use model::unit::Unit;
use model::verdict::{Direction, NodeVerdict, Outcome, VERDICTS_FORMAT, Verdicts};
use model::worker_protocol::{MACHINE_FORMAT, MachineEnvironment, MachineRecord};

mod drift_alarms;
mod retention;
mod upgrade;

const NODES: [&str; 2] = ["n1", "n2"];

#[derive(Clone, Debug)]
struct HistoryTestRun {
    id: String,
    day: i64,
    values: Vec<f64>,
    driver: &'static str,
    launcher: &'static str,
    state: &'static str,
    outcome: Outcome,
}

fn test_run(day: i64, level: f64) -> HistoryTestRun {
    HistoryTestRun {
        id: format!("run-{day:04}"),
        day,
        values: (0..16).map(|n| level + f64::from(n) * 0.01).collect(),
        driver: "580.1",
        launcher: "{\"kind\": \"local\"}",
        state: "complete",
        outcome: Outcome::Pass,
    }
}

/// Cells between two nodes of two GPUs, cycling through these values.
fn pair_cells(values: &[f64]) -> Vec<MeasuredCell> {
    let ends: Vec<(&str, u32)> = NODES.iter().flat_map(|n| [(*n, 0), (*n, 1)]).collect();
    let mut values = values.iter().cycle();
    let mut cells = Vec::new();
    for src in &ends {
        for dst in ends.iter().filter(|dst| *dst != src) {
            cells.push(MeasuredCell {
                domain: Some(DomainName::from("d1")),
                stage: Some(2),
                testcase: "pairs".into(),
                src_node: Some(src.0.into()),
                src_gpu: Some(src.1),
                dst_node: Some(dst.0.into()),
                dst_gpu: Some(dst.1),
                rail: None,
                reading: 0,
                value: values.next().copied(),
                unit: Unit::GigabytesPerSecond,
                expected: Some(750.0),
                ratio: None,
                outcome: Outcome::Pass,
            });
        }
    }
    cells
}

fn write_run_folder(runs: &Path, run: &HistoryTestRun) -> PathBuf {
    let folder = RunFolder::create(runs, &run.id).expect("a folder");
    let created = model::time_format::format_rfc3339(1_760_000_000 + run.day * 86_400);
    let text = format!(
        "{{\"format\": \"fabricgate.run/1\", \"info\": {{\"id\": {:?}, \"created\": {created:?}, \
         \"profile\": \"audit\", \"source\": \"s\", \"version\": \"0.1.0\"}}, \"state\": {:?}, \
         \"seed\": 0, \"launcher\": {}, \"policy\": {{}}, \"fleet\": 2, \"claims_digest\": \"c\", \
         \"thresholds_digest\": \"t\"}}",
        run.id, run.state, run.launcher
    );
    folder.write(file::RUN, text.as_bytes()).expect("written");
    let claims = "{\"format\": \"fabricgate.claims/1\", \"claims\": {\"domains\": []}}";
    folder.write(file::CLAIMS, claims.as_bytes()).expect("written");
    folder.write(file::PLAN, PLAN.as_bytes()).expect("written");
    folder.write_lines(file::CELLS, pair_cells(&run.values)).expect("written");
    let verdicts = Verdicts {
        thresholds_digest: "t".to_owned(),
        nodes: NODES
            .iter()
            .map(|node| NodeVerdict {
                node: NodeName::from(*node),
                domain: Some(DomainName::from("d1")),
                outcome: run.outcome,
                reason: "r".to_owned(),
                kept_by: None,
                detectable: None,
                detectable_together: None,
                fabric_detectable: None,
                scope: None,
            })
            .collect(),
        ..Verdicts::empty(run.outcome)
    };
    folder.write_json(file::VERDICTS, &verdicts).expect("written");
    let machines = NODES.iter().map(|node| MachineRecord {
        format: MACHINE_FORMAT.to_owned(),
        node: NodeName::from(*node),
        environment: MachineEnvironment {
            driver: Some(run.driver.to_owned()),
            gpus: vec!["0, GPU-a, 1 MHz, 2 MHz, 30, 100 W, 96.00".to_owned()],
            ..MachineEnvironment::default()
        },
    });
    folder.write_lines(file::MACHINES, machines).expect("written");
    folder.path().to_owned()
}

const PLAN: &str = "{\"format\": \"fabricgate.plan/1\", \"profile\": \"audit\", \"seed\": 0, \
    \"parallel\": 1, \"rounds\": [], \"skipped\": [], \"estimate_s\": 0, \"node_seconds\": 0}";

/// A folder of runs with a history next to it.
struct HistoryFixture {
    dir: tempfile::TempDir,
}

impl HistoryFixture {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        fs::create_dir(dir.path().join("runs")).expect("made");
        Self { dir }
    }

    fn runs(&self) -> PathBuf {
        self.dir.path().join("runs")
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn history(&self) -> RunHistory {
        RunHistory::open(&self.file("h.sqlite")).expect("opens")
    }

    fn write_run(&self, run: &HistoryTestRun) -> PathBuf {
        write_run_folder(&self.runs(), run)
    }
}

/// The results of all queries.
fn dump_history(history: &RunHistory) -> String {
    let trends = history.trends(&SeriesSelection::with_kinds(ALL)).expect("read");
    let (last, nodes) = (history.last_measured().expect("read"), history.nodes().expect("read"));
    let runs: Vec<String> =
        history.runs().expect("read").into_iter().map(|run| format!("{run:?}")).collect();
    format!("{trends:#?}{last:?}{nodes:?}{runs:?}{:?}", history.changes(&Default::default()))
}

const ALL: [FabricPartKind; 5] = [
    FabricPartKind::Link,
    FabricPartKind::Gpu,
    FabricPartKind::Node,
    FabricPartKind::Rail,
    FabricPartKind::Domain,
];

#[test]
fn a_run_is_rolled_up_into_paths_gpus_nodes_and_a_domain() {
    let site = HistoryFixture::new();
    site.write_run(&test_run(0, 750.0));
    let mut history = site.history();
    assert_eq!(history.add_new_runs(&site.runs()).expect("read").added, 1);
    let trends = history.trends(&SeriesSelection::with_kinds(ALL)).expect("read");
    let count = |kind| trends.iter().filter(|trend| trend.part.kind == kind).count();
    assert_eq!(ALL.map(count), [12, 8, 2, 0, 1]);
    // n1:0 sends the first three values.
    let of = |kind, node: &str, gpu, direction: Option<Direction>| {
        let is = |trend: &&model::trend::Trend| {
            let part = &trend.part;
            (part.kind, part.gpu, part.direction) == (kind, gpu, direction)
                && part.node.as_ref().is_some_and(|n| n.as_str() == node)
        };
        trends.iter().find(is).expect("it is there").points[0].clone()
    };
    let sends = of(FabricPartKind::Gpu, "n1", Some(0), Some(Direction::Tx));
    assert!((sends.value - 750.01).abs() < 1e-3, "{sends:?}");
    assert_eq!((sends.expected, sends.outcome), (Some(750.0), Some(Outcome::Pass)));
    let node = of(FabricPartKind::Node, "n1", None, None);
    assert!((node.value - 750.01).abs() < 1e-3, "its lowest GPU: {node:?}");
    let last = history.last_measured().expect("read");
    let n1 = &last[&NodeName::from("n1")];
    assert!(n1.is_complete && n1.run == "run-0000" && n1.profile == "audit");
    assert_eq!(history.nodes().expect("read")[1].worst.map(|w| (w * 1e3).round()), Some(1000.0));
    // The view that operators read with the shell.
    let shown: i64 = history
        .connection
        .query_row("SELECT count(*) FROM link_points WHERE sender = 'n1:0'", [], |row| row.get(0))
        .expect("a view");
    assert_eq!(shown, 3);
}

#[test]
fn adding_a_run_twice_changes_nothing_and_an_edited_run_is_updated() {
    let site = HistoryFixture::new();
    let folder = site.write_run(&test_run(0, 750.0));
    let mut history = site.history();
    let stored = run_reader::open_run(&folder).expect("opens");
    assert_eq!(history.add_run(&stored).expect("added"), IngestResult::New);
    let before = dump_history(&history);
    assert_eq!(history.add_run(&stored).expect("added"), IngestResult::Same);
    assert_eq!(dump_history(&history), before);
    RunFolder::open(&folder).write_lines(file::CELLS, pair_cells(&[700.0])).expect("written");
    assert_eq!(history.add_run(&stored).expect("added"), IngestResult::Changed);
    let after = dump_history(&history);
    assert!(after.contains("700.0") && after != before);
    let count: i64 = history
        .connection
        .query_row("SELECT count(*) FROM points", [], |row| row.get(0))
        .expect("counted");
    assert_eq!(count, 11, "no old point is left");
}

#[test]
fn an_unreadable_folder_does_not_keep_others_out() {
    let site = HistoryFixture::new();
    site.write_run(&test_run(0, 750.0));
    site.write_run(&HistoryTestRun { state: "running", ..test_run(1, 750.0) });
    let half = site.write_run(&test_run(2, 750.0));
    fs::remove_file(half.join(file::PLAN)).expect("removed");
    let edited = site.write_run(&test_run(3, 750.0));
    fs::write(edited.join(file::CELLS), "{\"no\": cell}\n").expect("written");
    let newer = site.write_run(&test_run(4, 750.0));
    fs::write(newer.join(file::RUN), "{\"format\": \"fabricgate.run/9\"}").expect("written");
    let unjudged = site.write_run(&test_run(5, 750.0));
    fs::remove_file(unjudged.join(file::VERDICTS)).expect("removed");
    let mut history = site.history();
    for anew in [false, true] {
        let rebuilt = match anew {
            true => history.rebuild(&site.runs()),
            false => history.add_new_runs(&site.runs()),
        }
        .expect("goes on");
        assert_eq!((rebuilt.added, rebuilt.unjudged, rebuilt.unreadable.len()), (1, 2, 3));
        assert!(rebuilt.unreadable.iter().any(|(_, why)| why.contains("cells.jsonl:1")));
        assert!(rebuilt.unreadable.iter().any(|(_, why)| why.contains("newer fabricgate")));
        assert_eq!(history.runs().expect("read").len(), 1);
    }
}

#[test]
fn a_copy_of_a_run_folder_is_not_another_run_and_replaces_none() {
    let copied = |folder: &Path, to: &str| {
        let to = folder.with_file_name(to);
        fs::create_dir(&to).expect("made");
        let files = fs::read_dir(folder).expect("listed").map(|it| it.expect("an entry").path());
        for from in files.filter(|it| it.is_file()) {
            fs::copy(&from, to.join(from.file_name().expect("a name"))).expect("copied");
        }
        to
    };
    let site = HistoryFixture::new();
    let folder = site.write_run(&test_run(0, 750.0));
    copied(&folder, "run-0000.copy");
    let early = copied(&folder, "a-copy-made-too-early");
    fs::remove_file(early.join(file::VERDICTS)).expect("removed");
    let mut history = site.history();
    let counts = |it: &IngestSummary| (it.added, it.same, it.unjudged, it.kept);
    assert_eq!(counts(&history.add_new_runs(&site.runs()).expect("read")), (1, 1, 1, 0));
    assert_eq!(counts(&history.add_new_runs(&site.runs()).expect("read")), (0, 2, 1, 0));
    let mut anew = RunHistory::open(&site.file("anew.sqlite")).expect("opens");
    assert_eq!(counts(&anew.rebuild(&site.runs()).expect("read")), (1, 1, 1, 0));
    assert_eq!(dump_history(&anew), dump_history(&history));
}

#[test]
fn changes_belong_to_the_first_run_that_has_them() {
    let site = HistoryFixture::new();
    site.write_run(&test_run(0, 750.0));
    site.write_run(&HistoryTestRun { driver: "580.2", ..test_run(1, 740.0) });
    let mut history = site.history();
    history.add_new_runs(&site.runs()).expect("read");
    let changes = history.changes(&Default::default()).expect("read");
    assert_eq!(changes.len(), 2, "{changes:?}");
    assert!(changes.iter().all(|c| c.kind == RunChangeKind::Driver && c.run == "run-0001"));
    assert_eq!((changes[0].before.as_str(), changes[0].after.as_str()), ("580.1", "580.2"));
    let trends = history.trends(&SeriesSelection::default()).expect("read");
    let node = trends.iter().find(|trend| trend.part.kind == FabricPartKind::Node).expect("one");
    assert_eq!(node.changes.len(), 1, "only the node's changes");
    let domain =
        trends.iter().find(|trend| trend.part.kind == FabricPartKind::Domain).expect("one");
    assert_eq!(domain.changes.len(), 2, "the changes of all its nodes");
}

#[test]
fn simulated_runs_do_not_count_as_history_of_real_machines() {
    let site = HistoryFixture::new();
    let sim = "{\"kind\": \"sim\", \"scenario\": \"s.toml\"}";
    site.write_run(&HistoryTestRun { launcher: sim, ..test_run(0, 1.0) });
    let mut history = site.history();
    history.add_new_runs(&site.runs()).expect("read");
    assert_eq!(history.runs().expect("read").len(), 1, "counts while there is no other");
    site.write_run(&test_run(1, 750.0));
    history.add_new_runs(&site.runs()).expect("read");
    assert_eq!(history.runs().expect("read").len(), 1);
    assert_eq!(history.last_measured().expect("read")[&NodeName::from("n1")].run, "run-0001");
    assert!(!dump_history(&history).contains("run-0000"));
}

#[test]
fn newer_foreign_and_damaged_files_are_distinguished() {
    let site = HistoryFixture::new();
    let (newer, foreign, damaged) =
        (site.file("newer.sqlite"), site.file("foreign.sqlite"), site.file("damaged.sqlite"));
    drop(RunHistory::open(&newer).expect("made"));
    let connection = Connection::open(&newer).expect("opens");
    connection.pragma_update(None, "user_version", 9).expect("set");
    drop(connection);
    for opened in [RunHistory::open(&newer), RunHistory::open_read_only(&newer)] {
        let error = opened.expect_err("newer");
        let message = error.to_string();
        assert!(message.contains("newer.sqlite: a history of version 9") && !error.is_damage());
        assert!(message.contains("[history] path") && message.contains("--rebuild"), "{message}");
    }
    let connection = Connection::open(&foreign).expect("opens");
    connection.execute_batch("CREATE TABLE theirs (x); INSERT INTO theirs VALUES (1)").expect("ok");
    drop(connection);
    assert!(matches!(RunHistory::open(&foreign), Err(HistoryError::Foreign { .. })));
    let connection = Connection::open(&foreign).expect("opens");
    let left: i64 = connection.query_row("SELECT x FROM theirs", [], |row| row.get(0)).expect("ok");
    assert_eq!(left, 1, "a foreign table stays");

    fs::write(&damaged, b"not a database at all, and longer than a header of one ...").expect("ok");
    assert!(RunHistory::open(&damaged).expect_err("not a database").is_damage());
    assert!(RunHistory::open_read_only(&damaged).expect_err("not a database").is_damage());
    let aside = set_aside(&damaged).expect("renamed");
    assert_eq!(aside, site.file("damaged.sqlite.damaged-1"));
    assert!(aside.exists() && !damaged.exists());
    let mut history = RunHistory::open(&damaged).expect("a new one");
    site.write_run(&test_run(0, 750.0));
    assert_eq!(history.rebuild(&site.runs()).expect("read").added, 1);
    drop(history);
    // Overwrites every page except the first.
    let mut bytes = fs::read(&damaged).expect("there");
    bytes[4_096..].fill(0xA5);
    fs::write(&damaged, bytes).expect("written");
    let opened = RunHistory::open(&damaged);
    assert!(opened.expect_err("a broken page").is_damage());
    assert_eq!(set_aside(&damaged).expect("renamed"), site.file("damaged.sqlite.damaged-2"));
    assert!(matches!(RunHistory::open_read_only(&damaged), Err(HistoryError::Missing { .. })));
}

#[test]
fn readers_do_not_wait_for_a_writer_and_a_second_writer_does() {
    let site = HistoryFixture::new();
    site.write_run(&test_run(0, 750.0));
    let file = site.file("h.sqlite");
    let mut first = RunHistory::open(&file).expect("opens");
    first.add_new_runs(&site.runs()).expect("read");
    let reader = RunHistory::open_read_only(&file).expect("reads");
    assert_eq!(reader.runs().expect("read").len(), 1);
    let (runs, other) = (site.runs(), file.clone());
    let second = std::thread::spawn(move || {
        let mut second = RunHistory::open(&other).expect("waits until it may");
        second.add_new_runs(&runs).expect("read")
    });
    std::thread::sleep(Duration::from_millis(200));
    site.write_run(&test_run(1, 750.0));
    first.add_new_runs(&site.runs()).expect("read");
    drop(first);
    let rebuilt = second.join().expect("ends");
    assert_eq!((rebuilt.added, rebuilt.same), (0, 2), "it sees the runs of the first writer");
    assert_eq!(reader.runs().expect("read").len(), 2);
}

/// Cells of a whole rack of 18 nodes with 4 GPUs: every pair across, every pair
/// inside twice, and host memory.
fn rack_cells(run: i64) -> Vec<MeasuredCell> {
    let ends: Vec<(String, u32)> =
        (1..=18).flat_map(|n| (0..4).map(move |gpu| (format!("node{n:04}"), gpu))).collect();
    let blank = pair_cells(&[1.0]).remove(0);
    let mut all = Vec::new();
    for src in &ends {
        for dst in ends.iter().filter(|dst| *dst != src) {
            let tests: &[&str] =
                if src.0 == dst.0 { &["read", "write"] } else { &["multinode_bisect_write_ce"] };
            for test in tests {
                all.push(MeasuredCell {
                    testcase: (*test).into(),
                    src_node: Some(src.0.as_str().into()),
                    src_gpu: Some(src.1),
                    dst_node: Some(dst.0.as_str().into()),
                    dst_gpu: Some(dst.1),
                    value: Some(
                        770.0
                            + ((i64::try_from(all.len()).expect("few cells") * 7 + run * 13) % 97)
                                as f64
                                / 10.0,
                    ),
                    ..blank.clone()
                });
            }
        }
        for (test, to) in [("h2d", true), ("d2h", false)] {
            let node = Some(NodeName::from(src.0.as_str()));
            all.push(MeasuredCell {
                testcase: test.into(),
                src_node: node.clone(),
                dst_node: node,
                src_gpu: (!to).then_some(src.1),
                dst_gpu: to.then_some(src.1),
                value: Some(200.0 + (run % 7) as f64 / 10.0),
                ..blank.clone()
            });
        }
    }
    all
}

#[test]
#[ignore = "prints the size and time of a year of one rack: minutes"]
fn a_year_of_a_rack_is_measured() {
    let site = HistoryFixture::new();
    let mut history = site.history();
    let began = std::time::Instant::now();
    let mut adding = Duration::ZERO;
    for day in 0..365 {
        let folder = site.write_run(&test_run(day, 750.0));
        RunFolder::open(&folder).write_lines(file::CELLS, rack_cells(day)).expect("written");
        let stored = run_reader::open_run(&folder).expect("opens");
        let before = std::time::Instant::now();
        history.add_run(&stored).expect("added");
        adding += before.elapsed();
        fs::remove_dir_all(&folder).expect("removed");
    }
    let size =
        |site: &HistoryFixture| fs::metadata(site.file("h.sqlite")).map_or(0, |found| found.len());
    drop(history);
    let mut history = site.history();
    println!("{} bytes, {:?} a run, all {:?}", size(&site), adding / 365, began.elapsed());
    let before = std::time::Instant::now();
    let mut trends = history
        .trends(&SeriesSelection::with_kinds([FabricPartKind::Node, FabricPartKind::Domain]))
        .expect("read");
    trends.iter_mut().for_each(engine::judge::drift::assess);
    println!("{} series read and followed in {:?}", trends.len(), before.elapsed());
    let now_unix = 1_760_000_000 + 365 * 86_400;
    let retention = RetentionPolicy { now_unix, keep_days: 90, thin_after_days: 180 };
    let before = std::time::Instant::now();
    let thinned = history.compact(&retention).expect("thinned");
    println!("{thinned:?} in {:?}, {} bytes", before.elapsed(), size(&site));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn a_rebuild_equals_the_grown_history(
        days in prop::collection::vec((0i64..40, 700.0..760.0f64, 0..3usize), 1..6),
        shuffled in any::<u64>(),
    ) {
        let site = HistoryFixture::new();
        let mut grown = site.history();
        let mut order: Vec<usize> = (0..days.len()).collect();
        order.sort_by_key(|n| (*n as u64).wrapping_mul(shuffled | 1));
        for n in order {
            let (day, level, driver) = days[n];
            let driver = ["580.1", "580.2", "590"][driver];
            let run = HistoryTestRun { id: format!("run-{n}"), driver, ..test_run(day, level) };
            let stored = run_reader::open_run(&site.write_run(&run)).expect("opens");
            prop_assert_eq!(grown.add_run(&stored).expect("added"), IngestResult::New);
        }
        let mut anew = RunHistory::open(&site.file("anew.sqlite")).expect("opens");
        anew.rebuild(&site.runs()).expect("read");
        prop_assert_eq!(dump_history(&grown), dump_history(&anew));
        let before = dump_history(&grown);
        grown.rebuild(&site.runs()).expect("read");
        prop_assert_eq!(dump_history(&grown), before);
    }
}

/// The series of n1, by test.
fn series_values(history: &RunHistory, testcase: &str) -> Vec<(String, f64)> {
    let nodes = [NodeName::from("n1")].into();
    let selection = SeriesSelection {
        nodes,
        testcase: Some(testcase.to_owned()),
        ..SeriesSelection::with_kinds([FabricPartKind::Node])
    };
    let trends = history.trends(&selection).expect("read");
    trends.iter().flat_map(|t| &t.points).map(|p| (p.run.clone(), p.value)).collect()
}

#[test]
fn a_node_has_the_value_of_its_lowest_end_on_any_rail() {
    let site = HistoryFixture::new();
    let folder = site.write_run(&test_run(0, 750.0));
    let mut all = Vec::new();
    for (rail, value) in [("rail0", 400.0), ("rail1", 300.0), ("rail2", 390.0)] {
        for (src, dst) in [("n1", "n2"), ("n1", "n3"), ("n2", "n3")] {
            let mut cell = pair_cells(&[value]).remove(0);
            (cell.src_node, cell.dst_node) = (Some(src.into()), Some(dst.into()));
            (cell.src_gpu, cell.dst_gpu, cell.rail) = (None, None, Some(rail.to_owned()));
            all.push(cell);
        }
    }
    RunFolder::open(&folder).write_lines(file::CELLS, all).expect("written");
    let mut history = site.history();
    history.add_new_runs(&site.runs()).expect("read");
    assert_eq!(series_values(&history, "pairs"), [("run-0000".to_owned(), 300.0)]);
    let domain =
        history.trends(&SeriesSelection::with_kinds([FabricPartKind::Domain])).expect("read");
    assert_eq!(domain[0].points[0].value, 390.0, "the median over all rails");
}

#[test]
fn collectives_are_series_by_node_or_domain_ranks_and_size() {
    use model::measurement::{Measurement, MeasurementSeries};
    use model::parse_output::{ParseOutput, Tool};
    use model::tool_recording::{RecordingScope, ToolRecording};
    let recording = |scope: RecordingScope, ranks: u32, busbw: f64, stage: u8| {
        let point = |bytes: u64, busbw: f64| model::measurement::SeriesPoint {
            bytes,
            busbw: Some(busbw),
            ..Default::default()
        };
        let mut parsed = ParseOutput::for_tool(Tool::NcclTests);
        parsed.measurements.push(Measurement::Series(MeasurementSeries {
            run: 0,
            testcase: Some("all_reduce".to_owned()),
            unit: Some(Unit::GigabytesPerSecond),
            points: vec![point(1 << 20, 999.0), point(8 << 30, busbw)],
            average_busbw: None,
        }));
        parsed.facts.ranks = (0..ranks)
            .map(|rank| model::tool_facts::ToolRank { rank, ..Default::default() })
            .collect();
        ToolRecording { stage: Some(stage), ..ToolRecording::new(scope, "f", parsed) }
    };
    let domain = || RecordingScope::Domain("d1".into());
    let rolled = rollup::roll_up_run(
        &[],
        &[
            recording(RecordingScope::Node("n1".into()), 8, 480.0, 2),
            recording(domain(), 16, 850.0, 4),
            recording(domain(), 16, 870.0, 4),
            recording(domain(), 8, 500.0, 4),
            recording(domain(), 16, 990.0, model::tool_recording::CONFIRM_STAGE),
            recording(domain(), 1, 990.0, 4),
        ],
        &serde_json::from_value(serde_json::json!({
            "format": VERDICTS_FORMAT, "platform": null, "thresholds_digest": "t",
            "outcome": "pass", "findings": [], "nodes": [], "unknown": [], "notes": [],
        }))
        .expect("verdicts"),
    );
    let series: Vec<(FabricPartKind, &str, f64)> =
        rolled.values.iter().map(|it| (it.part.kind, &*it.testcase, it.value)).collect();
    assert_eq!(
        series,
        [
            (FabricPartKind::Node, "all_reduce, 8 ranks, 8192 MiB", 480.0),
            (FabricPartKind::Domain, "all_reduce, 16 ranks, 8192 MiB", 870.0),
            (FabricPartKind::Domain, "all_reduce, 8 ranks, 8192 MiB", 500.0),
        ]
    );
}
