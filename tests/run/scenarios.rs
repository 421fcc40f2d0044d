//! Every example scenario, recorded by the simulator and judged through the same interface as
//! real data: each simulated fault must be found in its place, and no other part may be blamed.
//! Each parser must read its renderer's output exactly. No expectation is replaced for these
//! tests: the judge compares with the shipped ones.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

use engine::judge::{JudgeInput, judge_without_history};
use engine::thresholds::builtin;
use model::claims::Claims;
use model::measurement::{BufferPlacement, Measurement, MeasurementMatrix, MeasurementSeries};
use model::parse_output::ParseOutput;
use model::tool_recording::ToolRecording;
use model::verdict::{Finding, LocusKind, Outcome, Verdicts};
use readers::claims::output_layout::RecordedFile;
use readers::claims::{claims_file, output_layout};
use readers::outputs;
use serde::Deserialize;
use sim::fabric::SimFabric;
use sim::invocation::{SimMatrix, ToolInvocation};
use sim::network::parse_rail;
use sim::scenario::Scenario;
use sim::tool_config::{NcclTestsLayout, NvbandwidthLayout, RecordedTool};
use sim::{invocation, recorded_files, render};

/// The real faults, as the simulator writes them next to a recording.
#[derive(Debug, Deserialize)]
struct Truth {
    #[serde(default)]
    wrong: Vec<Wrong>,
}

#[derive(Clone, Debug, Deserialize)]
struct Wrong {
    class: String,
    locus: String,
    domain: Option<String>,
    node: Option<String>,
    gpu: Option<u32>,
    peer: Option<String>,
    rail: Option<String>,
    direction: Option<String>,
    outcome: Option<String>,
}

/// Classes that the judge may report for each kind of fault, and the parts it may blame. A
/// broader part than the faulty one is allowed only where the tools show no narrower one.
const NAMES: &[(&str, &[LocusKind], &[&str])] = &[
    ("lost-links", &[LocusKind::Gpu, LocusKind::Direction], &["nvlink-low"]),
    ("gpu-parked", &[LocusKind::Gpu], &["nvlink-absent"]),
    ("plane-out", &[LocusKind::Plane, LocusKind::Domain], &["plane-low", "nvlink-inactive"]),
    ("slow-pair", &[LocusKind::Pair], &["nvlink-low"]),
    ("host-link", &[LocusKind::Gpu, LocusKind::Direction], &["host-link-low"]),
    // nvbandwidth and nccl-tests name the process, not the GPU, whose data is wrong.
    ("corrupt", &[LocusKind::Gpu, LocusKind::Node], &["data-corruption"]),
    // The text of nvidia-imex-ctl has addresses; the failing tool names the node.
    ("imex-peer-missing", &[LocusKind::Node], &["imex-peer-missing", "tool-error"]),
    ("rail-rate", &[LocusKind::Rail], &["nic-low"]),
    ("fabric-down", &[LocusKind::Node], &["fabric-not-configured", "nvlink-absent"]),
    ("power-cap", &[LocusKind::Node, LocusKind::Tray], &["nvlink-low"]),
    ("collective-fallback", &[LocusKind::Domain], &["collective-fallback"]),
    ("mnnvl-off", &[LocusKind::Domain], &["mnnvl-off"]),
    ("nvls-off", &[LocusKind::Domain], &["nvls-off"]),
    ("disturbed-copies", &[LocusKind::Node, LocusKind::Tray], &["nvlink-low"]),
    ("foreign-node", &[LocusKind::Node], &["wrong-domain"]),
    ("split-domain", &[LocusKind::Domain], &["split-domain"]),
    ("stale-clique", &[LocusKind::Node], &["stale-clique"]),
    ("merged-cliques", &[LocusKind::Domain], &["merged-cliques"]),
    ("claimed-apart", &[LocusKind::Domain], &["claimed-apart"]),
];

/// Known misses of the judge: the example, and the beginning of the complaint. A line that no
/// longer holds fails its test, so that this list only shrinks.
const KNOWN: &[(&str, &str)] = &[];

/// Seeds in addition to the scenario's.
const SEEDS: [u64; 2] = [1009, 77];

fn scenario(name: &str) -> Scenario {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("examples").join(name);
    let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    Scenario::parse(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// A recording as the command line passes it to the judge.
fn case(recording: &recorded_files::SimRecording) -> (Claims, Vec<ToolRecording>) {
    let mut claims = Claims::default();
    let mut recordings = Vec::new();
    for (path, text) in &recording.files {
        let parts: Vec<&str> = path.split('/').collect();
        match output_layout::classify_path(&parts) {
            RecordedFile::Claims => claims = claims_file::parse(path, text).expect("good claims"),
            RecordedFile::Output(scope) => {
                let parsed = outputs::parse_output(text.as_bytes());
                recordings.push(ToolRecording::new(scope, path.clone(), parsed));
            }
            other => panic!("{path}: {other:?}"),
        }
    }
    (claims, recordings)
}

fn verdicts(recording: &recorded_files::SimRecording) -> Verdicts {
    let (claims, recordings) = case(recording);
    judge_without_history(&JudgeInput {
        claims: &claims,
        recordings: &recordings,
        catalogue: builtin::builtin_catalogue(),
        thresholds_digest: "test",
        platform: None,
        cells: true,
        sampled: false,
    })
    .verdicts
}

/// Every complaint about the verdicts of one recording.
fn complaints(truth: &Truth, verdicts: &Verdicts) -> Vec<String> {
    let mut wrong = Vec::new();
    for fault in &truth.wrong {
        match fault.outcome.as_deref() {
            None => {}
            Some("unknown") => wrong.extend(not_unknown(fault, verdicts)),
            Some(outcome) => wrong.extend(not_found(fault, outcome, verdicts)),
        }
    }
    wrong.extend(blamed_for_nothing(truth, verdicts));
    wrong
}

fn not_found(fault: &Wrong, outcome: &str, verdicts: &Verdicts) -> Option<String> {
    let (_, kinds, classes) = NAMES
        .iter()
        .find(|(class, _, _)| *class == fault.class)
        .unwrap_or_else(|| panic!("{}: what may the judge call it?", fault.class));
    let hits: Vec<&Finding> = verdicts
        .findings
        .iter()
        .filter(|f| f.outcome.as_str() == outcome && kinds.contains(&f.locus.kind))
        .filter(|f| same_part(fault, f))
        .collect();
    if hits.is_empty() {
        return Some(format!("not found: {fault:?}"));
    }
    if !hits.iter().any(|f| classes.contains(&f.class.as_str())) {
        let called: Vec<&str> = hits.iter().map(|f| f.class.as_str()).collect();
        return Some(format!("found under a strange name, {called:?}: {fault:?}"));
    }
    node_differs(fault, outcome, verdicts)
}

/// True if a finding is about the broken part.
fn same_part(fault: &Wrong, finding: &Finding) -> bool {
    let locus = &finding.locus;
    let node = locus.node.as_ref().map(|n| n.as_str());
    let at = |gpu: &str| gpu.rsplit_once(':').map(|(n, g)| (n.to_owned(), g.parse::<u32>().ok()));
    if locus.kind == LocusKind::Pair {
        let here = (node.unwrap_or_default().to_owned(), locus.gpu);
        let there = at(locus.peer.as_deref().unwrap_or_default());
        let a = (fault.node.clone().unwrap_or_default(), fault.gpu);
        let b = at(fault.peer.as_deref().unwrap_or_default());
        return (Some(&here), there.as_ref()) == (Some(&a), b.as_ref())
            || (Some(&here), there.as_ref()) == (b.as_ref(), Some(&a));
    }
    let domain = locus.domain.as_ref().map(|d| d.as_str());
    let same_domain = fault.domain.is_none() || domain == fault.domain.as_deref();
    let gpu_fits = locus.gpu.is_none() || locus.gpu == fault.gpu;
    let direction = locus.direction.map(|d| d.as_str());
    // A fault in one direction has that direction, and no other fault has one.
    let direction_fits = direction == fault.direction.as_deref();
    // Tools name a rail's device, `mlx5_2`, the truth its number, `rail2`.
    let number = |rail: &Option<String>| rail.as_deref().and_then(parse_rail);
    let rail_fits = number(&locus.rail) == number(&fault.rail);
    same_domain && node == fault.node.as_deref() && gpu_fits && direction_fits && rail_fits
}

/// The node of a broken part carries the part's outcome. A pair blames neither of its ends.
fn node_differs(fault: &Wrong, outcome: &str, verdicts: &Verdicts) -> Option<String> {
    let node = fault.node.as_ref().filter(|_| fault.locus != "pair")?;
    let Some(verdict) = verdicts.nodes.iter().find(|v| v.node.as_str() == node) else {
        return Some(format!("{node} has no verdict, expected {outcome}"));
    };
    (verdict.outcome.as_str() != outcome)
        .then(|| format!("{node} is {}, expected {outcome}: {}", verdict.outcome, verdict.reason))
}

fn not_unknown(fault: &Wrong, verdicts: &Verdicts) -> Option<String> {
    let Some(node) = &fault.node else {
        let domain = fault.domain.as_deref().unwrap_or("?");
        let is_it = |found: &Finding| {
            let there = found.locus.domain.as_ref().map(|d| d.as_str()) == fault.domain.as_deref();
            there && found.class.as_str() == fault.class && found.outcome == Outcome::Unknown
        };
        let is_told = verdicts.findings.iter().any(is_it) || !verdicts.unknown.is_empty();
        return (!is_told).then(|| format!("nothing is unknown in {domain}: {fault:?}"));
    };
    let Some(verdict) = verdicts.nodes.iter().find(|v| v.node.as_str() == node) else {
        return Some(format!("{node} has no verdict, expected unknown"));
    };
    (verdict.outcome != Outcome::Unknown)
        .then(|| format!("{node} is {}, expected unknown: {}", verdict.outcome, verdict.reason))
}

fn blamed_for_nothing(truth: &Truth, verdicts: &Verdicts) -> Vec<String> {
    let mut wrong = Vec::new();
    let harmful = |fault: &&Wrong| fault.outcome.as_deref() != Some("unknown");
    let faulty: BTreeSet<&str> = truth
        .wrong
        .iter()
        .filter(harmful)
        .flat_map(|f| [f.node.as_deref(), f.peer.as_deref().and_then(|p| p.split(':').next())])
        .flatten()
        .collect();
    for verdict in &verdicts.nodes {
        let node = verdict.node.as_str();
        if Outcome::Unknown < verdict.outcome && !faulty.contains(node) {
            wrong.push(format!("{node} is {} and healthy: {}", verdict.outcome, verdict.reason));
        }
        if truth.wrong.is_empty() && verdict.outcome != Outcome::Pass {
            wrong.push(format!("{node} is {} and healthy: {}", verdict.outcome, verdict.reason));
        }
    }
    for finding in verdicts.findings.iter().filter(|f| Outcome::Unknown < f.outcome) {
        let explained = truth.wrong.iter().filter(harmful).any(|fault| explains(fault, finding));
        if !explained {
            wrong.push(format!("invented: {} {}", finding.locus, finding.summary));
        }
    }
    if truth.wrong.is_empty() && verdicts.outcome != Outcome::Pass {
        wrong.push(format!("a healthy fabric is {}", verdicts.outcome));
    }
    wrong
}

/// True if a fault can explain a finding: it is about the broken part, about a part that contains
/// it, or about a part inside it.
fn explains(fault: &Wrong, finding: &Finding) -> bool {
    let locus = &finding.locus;
    let domain = locus.domain.as_ref().map(|d| d.as_str());
    let node = locus.node.as_ref().map(|n| n.as_str());
    if fault.domain.is_some() && domain.is_some() && domain != fault.domain.as_deref() {
        return false;
    }
    match locus.kind {
        LocusKind::Pair => fault.locus == "pair" && same_part(fault, finding),
        // Collectives see a whole domain, and an instrument is not a part of it.
        LocusKind::Domain | LocusKind::Plane | LocusKind::Instrument => true,
        _ => {
            let whole_node = fault.gpu.is_none() || locus.gpu.is_none();
            fault.locus != "pair"
                && node == fault.node.as_deref()
                && (whole_node || locus.gpu == fault.gpu)
        }
    }
}

/// Records an example under several seeds and judges each recording.
fn check(name: &str, readings: Option<u32>) {
    let scenario = scenario(name);
    let mut report = String::new();
    for seed in std::iter::once(scenario.seed).chain(SEEDS) {
        let recording =
            recorded_files::record_scenario(&scenario, Some(seed), readings).expect("a recording");
        let truth: Truth = toml::from_str(&recording.truth).expect("the truth");
        let verdicts = verdicts(&recording);
        let mut known: Vec<&str> = known(name);
        for complaint in complaints(&truth, &verdicts) {
            let before = known.len();
            known.retain(|start| !complaint.starts_with(start));
            if known.len() < before {
                continue;
            }
            writeln!(report, "{name}, seed {seed}: {complaint}").expect("a string takes all");
        }
        for start in known {
            writeln!(report, "{name}, seed {seed}: no longer so, take it out of KNOWN: {start}")
                .expect("a string takes all");
        }
    }
    assert!(report.is_empty(), "\n{report}");
}

fn known(name: &str) -> Vec<&'static str> {
    KNOWN.iter().filter(|(file, _)| *file == name).map(|(_, start)| *start).collect()
}

macro_rules! examples {
    ($($test:ident: $file:literal,)*) => {
        const EXAMPLES: &[&str] = &[$($file),*];
        $(#[test] fn $test() { check($file, None); })*
    };
}

examples! {
    nodes_that_are_low_alike_are_not_blamed: "all-low-alike.toml",
    blocks_that_are_one_fabric_pass_and_the_claim_does_not: "claimed-apart.toml",
    a_collective_that_takes_the_nics_is_told_from_copies: "collective-fallback.toml",
    wrong_data_fails_its_node: "corrupt.toml",
    a_gpu_that_drifts_is_not_called_slow: "drifting-gpu.toml",
    links_that_carry_nothing_fail_their_node: "fabric-not-configured.toml",
    a_lost_link_in_a_server_is_found_at_its_gpu: "hgx-lost-link.toml",
    two_faults_in_a_large_pod_are_found: "hgx-pod-128.toml",
    a_healthy_pod_passes: "hgx-pod.toml",
    a_narrow_host_link_is_found_at_its_gpu: "host-link-x8.toml",
    a_missing_imex_peer_fails_its_node_alone: "imex-peer-missing.toml",
    what_was_not_measured_is_unknown: "incomplete.toml",
    copies_that_a_collective_contradicts_are_said_to_be: "matrix-contradicted.toml",
    racks_that_share_a_clique_and_no_fabric_are_told: "merged-cliques.toml",
    a_node_of_another_rack_is_found: "mislabelled-node.toml",
    multi_node_nvlink_that_is_off_is_read_from_nccls_words: "mnnvl-off.toml",
    switches_that_do_not_reduce_are_read_from_nccls_words: "nvls-off.toml",
    a_switch_tray_that_is_out_drains_no_node: "plane-out.toml",
    a_healthy_rack_passes: "rack-healthy.toml",
    a_lost_link_in_a_rack_is_found_at_its_gpu: "rack-lost-link.toml",
    a_slow_rail_is_found_at_its_node: "rail-half-rate.toml",
    a_split_rack_is_not_blamed_on_its_nodes: "split-clique.toml",
    a_stale_clique_is_told_from_a_wrong_place: "stale-clique.toml",
    two_healthy_racks_pass: "two-racks-healthy.toml",
    several_faults_at_once_are_told_apart: "two-racks-mixed.toml",
    a_gpu_that_is_unstable_is_not_called_slow: "unstable-gpu.toml",
    nodes_that_do_not_answer_are_unknown: "unwell-nodes.toml",
}

/// The expected verdicts of an example, from the text of its tools.
#[test]
fn findings_of_collectives_name_the_path_and_the_next_test() {
    let mut report = String::new();
    for name in ["collective-fallback", "matrix-contradicted", "mnnvl-off", "nvls-off"] {
        let recording =
            recorded_files::record_scenario(&scenario(&format!("{name}.toml")), None, None);
        let verdicts = verdicts(&recording.expect("a recording"));
        writeln!(report, "{name}: {}", verdicts.outcome).expect("a string takes all");
        for found in &verdicts.findings {
            let (outcome, class, locus) = (found.outcome, &found.class, &found.locus);
            writeln!(
                report,
                "  {outcome} {class} {locus}\n    {}\n    by {}",
                found.summary, found.rule
            )
            .expect("a string takes all");
        }
    }
    insta::assert_snapshot!("collectives", report);
}

#[test]
fn one_clique_in_two_claims_is_open_until_a_copy_between_them() {
    let mut scenario = scenario("merged-cliques.toml");
    scenario.tools.record.retain(|what| *what != RecordedTool::NvbandwidthBetween);
    let verdicts =
        verdicts(&recorded_files::record_scenario(&scenario, None, None).expect("a recording"));
    let [found] = verdicts.findings.as_slice() else { panic!("{:?}", verdicts.findings) };
    assert_eq!((found.class.as_str(), found.outcome), ("clique-shared", Outcome::Unknown));
    assert_eq!(found.locus.kind, LocusKind::Domain);
    assert!(found.summary.contains("a copy between one node of each shows which"), "{found:?}");
    // Either way the nodes work as claimed.
    assert!(verdicts.nodes.iter().all(|node| node.outcome == Outcome::Pass), "{verdicts:?}");
    assert_eq!(verdicts.outcome, Outcome::Unknown);
}

#[test]
fn every_example_is_judged_here() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("examples");
    let mut names: Vec<String> = fs::read_dir(folder)
        .expect("examples")
        .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
        .filter(|name| name.ends_with(".toml"))
        .collect();
    names.sort();
    assert_eq!(names, EXAMPLES);
}

/// Half of the last printed digit, and the error of binary fractions.
const HALF_A_HUNDREDTH: f64 = 0.005 + 1e-9;

fn near(a: Option<f64>, b: Option<f64>) -> bool {
    match (a, b) {
        (Some(a), Some(b)) => (a - b).abs() <= HALF_A_HUNDREDTH.max(a.abs() * 5e-6),
        (None, None) => true,
        _ => false,
    }
}

fn matrices(parsed: &ParseOutput) -> Vec<&MeasurementMatrix> {
    parsed
        .measurements
        .iter()
        .map(|m| match m {
            Measurement::Matrix(matrix) => matrix,
            other => panic!("no matrix: {other:?}"),
        })
        .collect()
}

/// Checks that a matrix has the cells of a table.
fn same_cells(matrix: &MeasurementMatrix, table: &SimMatrix) {
    let name = &table.key;
    assert_eq!(matrix.testcase.as_ref(), Some(name));
    assert!(matrix.cells.iter().all(|row| row.len() == table.columns), "{name}");
    let cells: Vec<Option<f64>> = matrix.cells.iter().flatten().copied().collect();
    assert_eq!(cells.len(), table.cells.len(), "{name}");
    for (at, (read, printed)) in cells.iter().zip(&table.cells).enumerate() {
        assert!(near(*read, *printed), "{name}, cell {at}: {read:?} for {printed:?}");
    }
    let sum: f64 = table.cells.iter().flatten().sum();
    assert!(near(matrix.sum, Some(sum)), "{name}: sum {:?} for {sum}", matrix.sum);
}

/// A tool's first reading in one place.
fn bench<'a>(
    scenario: &'a Scenario,
    fabric: &'a SimFabric,
    scope: &'a str,
    across: bool,
) -> ToolInvocation<'a> {
    ToolInvocation {
        scenario,
        fabric,
        scope,
        spans_domain: across,
        seed: 5,
        reading: 0,
        prior_readings: 0,
        job: None,
    }
}

const NODES: &str = "title = \"t\"\n\
    [[domain]]\nname = \"rack\"\nnodes = \"t[01-03]\"\nplatform = \"gb200-nvl72\"\n\
    [[domain]]\nnodes = \"h[1-2]\"\nplatform = \"hgx-h100\"\nper_node = true\n\
    [[fault]]\nkind = \"missing-cells\"\nscope = \"h2\"\nshare = 0.1\n";

#[test]
fn every_matrix_that_nvbandwidth_prints_is_read_as_printed() {
    let scenario = Scenario::parse(NODES).expect("a good scenario");
    let fabric = SimFabric::build(&scenario).expect("a fabric");
    let versions = [
        NvbandwidthLayout::V0_2,
        NvbandwidthLayout::V0_5,
        NvbandwidthLayout::V0_6,
        NvbandwidthLayout::V0_8,
        NvbandwidthLayout::V0_10,
    ];
    let mut seen = 0;
    for version in versions {
        for (scope, across) in [("t01", false), ("h1", false), ("h2", false), ("rack", true)] {
            let bench = bench(&scenario, &fabric, scope, across);
            let run = bench.run_nvbandwidth(version, &[]);
            let tables: Vec<&SimMatrix> = run
                .tests
                .iter()
                .filter_map(|(_, outcome)| match outcome {
                    invocation::SimTestOutcome::Measured(tables) => Some(tables),
                    _ => None,
                })
                .flatten()
                .collect();
            let text = render::nvbandwidth::render_text(&bench, version, &run).combined();
            let parsed = outputs::parse_output(text.as_bytes());
            let read = matrices(&parsed);
            assert!(parsed.complete && read.len() == tables.len(), "{version:?} {scope}");
            read.iter().zip(&tables).for_each(|(matrix, table)| same_cells(matrix, table));
            seen += tables.len();
            if version.has_json() {
                let text = render::nvbandwidth_json::render_json(&bench, version, &run).combined();
                let from_json = outputs::parse_output(text.as_bytes());
                assert!(from_json.complete, "{version:?} {scope}: {:?}", from_json.problems);
                same_as_json(&read, &matrices(&from_json));
            }
        }
    }
    assert!(600 < seen, "{seen} matrices");
}

/// Checks that the JSON of a run has the same cells as its text, test by test. The JSON may give
/// the parts of one test in one piece.
fn same_as_json(text: &[&MeasurementMatrix], json: &[&MeasurementMatrix]) {
    let cells = |all: &[&MeasurementMatrix]| -> Vec<Option<f64>> {
        all.iter().flat_map(|m| m.cells.iter().flatten().copied()).collect()
    };
    let (text, json) = (cells(text), cells(json));
    assert_eq!(text.len(), json.len());
    for (at, (a, b)) in text.iter().zip(&json).enumerate() {
        // Both were rounded independently.
        let gap = a.zip(*b).map_or(0.0, |(a, b)| (a - b).abs() - a.abs() * 5e-6);
        assert!(a.is_some() == b.is_some() && gap <= HALF_A_HUNDREDTH, "{at}: {a:?} {b:?}");
    }
}

#[test]
fn every_row_that_nccl_tests_print_is_read_as_printed() {
    let programs = [
        "all_reduce_perf",
        "all_gather_perf",
        "reduce_scatter_perf",
        "alltoall_perf",
        "broadcast_perf",
        "reduce_perf",
        "sendrecv_perf",
    ];
    for (version, layout) in [(NcclTestsLayout::V2_13, "2.13"), (NcclTestsLayout::V2_17, "2.17")] {
        let text = format!("{}[tools]\nnccl_tests = \"{layout}\"\n", NODES);
        let scenario = Scenario::parse(&text).expect("a good scenario");
        let fabric = SimFabric::build(&scenario).expect("a fabric");
        for (scope, across) in [("h1", false), ("rack", true)] {
            let bench = bench(&scenario, &fabric, scope, across);
            for program in programs {
                let run = bench.run_collective(program, [8, 16 << 30], bench.gpus());
                let run = run.unwrap_or_else(|| panic!("{program} is known"));
                assert_eq!(run.version, version);
                let text = render::nccl::render_text(&bench, &run).combined();
                let json = render::nccl_json::render_json(&bench, &run);
                for (form, output, digits) in [("text", text, 2), ("json", json, 6)] {
                    let parsed = outputs::parse_output(output.as_bytes());
                    let place = format!("{program} {version:?} {form} {scope}");
                    assert!(parsed.complete, "{place}: {:?}", parsed.problems);
                    let [Measurement::Series(series)] = parsed.measurements.as_slice() else {
                        panic!("{place}: {:?}", parsed.measurements)
                    };
                    same_rows(series, &run, digits, &place);
                }
            }
        }
    }
}

/// Checks that a series has the rows of a run, each with its printed precision.
fn same_rows(
    series: &MeasurementSeries,
    run: &sim::collective::SimCollectiveRun,
    digits: i32,
    place: &str,
) {
    match series.testcase.as_deref() {
        Some(name) => assert_eq!(name, run.program, "{place}"),
        // Before 2.17 the text does not name the program.
        None => assert!(run.version == NcclTestsLayout::V2_13 && digits == 2, "{place}"),
    }
    assert_eq!(series.points.len(), run.rows.len() * 2, "{place}");
    let halves = run.rows.iter().flat_map(|row| {
        row.halves
            .iter()
            .zip([BufferPlacement::OutOfPlace, BufferPlacement::InPlace])
            .map(move |h| (row, h))
    });
    for (point, (row, (half, placement))) in series.points.iter().zip(halves) {
        let at = format!("{place}, {} bytes", row.bytes);
        assert_eq!((point.bytes, point.placement), (row.bytes, Some(placement)), "{at}");
        assert_eq!(point.wrong.is_some(), half.wrong.is_some(), "{at}");
        // Bandwidths keep their decimals here; times lose theirs as they grow.
        let rounding = 0.5 * 10_f64.powi(-digits) + 1e-9;
        let of_time = if digits == 2 { rounding.max(half.time * 5e-4) } else { rounding };
        let read = [point.time_us, point.algbw, point.busbw];
        let printed = [(half.time, of_time), (half.algbw, rounding), (half.busbw, rounding)];
        for (read, (printed, rounding)) in read.into_iter().zip(printed) {
            let read = read.unwrap_or_else(|| panic!("{at}: a number is missing"));
            assert!((read - printed).abs() <= rounding, "{at}: {read} for {printed}");
        }
    }
    let average = series.average_busbw.unwrap_or_else(|| panic!("{place}: no average"));
    assert!(
        (average - run.average_bus_bandwidth()).abs() <= run.average_bus_bandwidth() * 6e-6,
        "{place}: {average}"
    );
}
