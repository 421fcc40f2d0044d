//! The time for a hundred racks: reading the tools' outputs, judging them, and writing the
//! reports.
//!
//! The simulator makes the inputs once, in memory; no file is read and the benchmark runs on one
//! thread. `ci/bench` times the program itself on the same racks.

use std::fmt::Write;
use std::hint::black_box;
use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use engine::judge::{JudgeInput, Judgement, judge_without_history};
use engine::report;
use engine::thresholds::builtin;
use model::claims::Claims;
use model::run::{Run, RunInfo};
use model::tool_recording::{RecordingScope, ToolRecording};
use readers::claims::output_layout::RecordedFile;
use readers::claims::{claims_file, output_layout};
use readers::outputs;
use sim::recorded_files;
use sim::scenario::Scenario;

/// Domains, and nodes in each.
const RACKS: u32 = 100;
const NODES: u32 = 18;

/// A hundred NVL72 racks, each measured once across all its pairs, and each of its nodes once by
/// itself. One GPU has lost a link, so that the report has a finding.
fn scenario() -> String {
    let mut text = "title = \"a hundred racks\"\nseed = 17\n[noise]\nsigma = 0.002\n[tools]\n\
        record = [\"nvbandwidth\", \"nvbandwidth-domain\"]\n\
        node_tests = [\"host_to_device_memcpy_ce\", \"device_to_host_memcpy_ce\", \
        \"device_to_device_memcpy_read_ce\", \"device_to_device_memcpy_write_ce\"]\n\
        domain_tests = [\"multinode_device_to_device_memcpy_write_ce\"]\n"
        .to_owned();
    for rack in 1..=RACKS {
        let nodes = format!("r{rack:03}n[01-{NODES}]");
        write!(
            text,
            "[[domain]]\nname = \"rack{rack:03}\"\nnodes = \"{nodes}\"\nplatform = \"gb200-nvl72\"\n"
        )
        .expect("a string takes all");
    }
    text + "[[fault]]\nkind = \"lost-links\"\ngpu = \"r042n07:2\"\n"
}

/// The racks as recorded: claims, and every output with its path.
fn racks() -> (Claims, Vec<(RecordingScope, String, String)>) {
    let scenario = Scenario::parse(&scenario()).expect("a good scenario");
    let recording = recorded_files::record_scenario(&scenario, None, None).expect("a recording");
    let mut claims = Claims::default();
    let mut outputs = Vec::new();
    for (path, text) in recording.files {
        let parts: Vec<&str> = path.split('/').collect();
        match output_layout::classify_path(&parts) {
            RecordedFile::Claims => claims = claims_file::parse(&path, &text).expect("good claims"),
            RecordedFile::Output(scope) => outputs.push((scope, path.clone(), text)),
            other => panic!("{path}: {other:?}"),
        }
    }
    (claims, outputs)
}

fn parse(outputs: &[(RecordingScope, String, String)]) -> Vec<ToolRecording> {
    outputs
        .iter()
        .map(|(scope, file, text)| {
            ToolRecording::new(scope.clone(), file.clone(), outputs::parse_output(text.as_bytes()))
        })
        .collect()
}

fn judged(claims: &Claims, recordings: &[ToolRecording]) -> Judgement {
    judge_without_history(&JudgeInput {
        claims,
        recordings,
        catalogue: builtin::builtin_catalogue(),
        thresholds_digest: "bench",
        platform: None,
        cells: true,
        sampled: false,
    })
}

fn run(judgement: Judgement) -> Run {
    let word = |text: &str| text.to_owned();
    Run {
        info: RunInfo {
            id: word("bench"),
            created: word("2026-01-01T00:00:00Z"),
            profile: word("judge"),
            source: word("benches/judge.rs"),
            version: word("bench"),
            simulated: false,
        },
        claims: judgement.claims,
        cells: judgement.cells,
        verdicts: judgement.verdicts,
        actions: None,
    }
}

fn bench(criterion: &mut Criterion) {
    let (claims, outputs) = racks();
    let recordings = parse(&outputs);
    let judgement = judged(&claims, &recordings);
    let run = run(judgement);
    // Checks that the timed work is the intended one.
    let culprits: Vec<String> = run.verdicts.findings.iter().map(|f| f.locus.to_string()).collect();
    assert_eq!(culprits, ["gpu r042n07:2"]);
    let cells = run.cells.len();
    assert!(500_000 < cells, "{cells} cells");

    let mut group = criterion.benchmark_group("hundred racks");
    group.sample_size(10).warm_up_time(Duration::from_secs(1));
    group.measurement_time(Duration::from_secs(15));
    group.throughput(Throughput::Elements(cells as u64));
    group.bench_function("parse", |b| b.iter(|| parse(black_box(&outputs))));
    group.bench_function("judge", |b| b.iter(|| judged(&claims, black_box(&recordings))));
    group.bench_function("parse and judge", |b| {
        b.iter(|| judged(&claims, &parse(black_box(&outputs))));
    });
    group.bench_function("matrix.csv", |b| b.iter(|| report::csv::render_matrix(black_box(&run))));
    group.bench_function("html", |b| {
        b.iter(|| {
            report::html::render(black_box(&run), &report::html::HtmlPageContext::default())
                .expect("a page")
        });
    });
    group.bench_function("verdicts.json", |b| {
        b.iter(|| report::json::render_verdicts(black_box(&run.verdicts)));
    });
    group.finish();
}

criterion_group!(benches, bench);
criterion_main!(benches);
