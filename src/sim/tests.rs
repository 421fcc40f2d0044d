//! Tests of the physics, and of the rendered formats.

use proptest::prelude::*;

use super::fabric::{CopyRoute, SimCopyEngine, SimFabric};
use super::invocation::{SimTestOutcome, ToolInvocation};
use super::scenario::Scenario;
use super::tool_config::NvbandwidthLayout;
use super::truth::TrueFaultClass;
use super::{mpirun, recorded_files, render, tool_dispatch};

fn scenario(more: &str) -> Scenario {
    let text = format!(
        "title = \"t\"\n[[domain]]\nname = \"r\"\nnodes = \"n[1-3]\"\nplatform = \"gb200-nvl72\"\n{more}"
    );
    Scenario::parse(&text).expect("a good scenario")
}

fn fabric(more: &str) -> SimFabric {
    SimFabric::build(&scenario(more)).expect("a fabric")
}

fn bench<'a>(scenario: &'a Scenario, fabric: &'a SimFabric, scope: &'a str) -> ToolInvocation<'a> {
    let across = fabric.node(scope).is_err();
    ToolInvocation {
        scenario,
        fabric,
        scope,
        spans_domain: across,
        seed: 1,
        reading: 0,
        prior_readings: 0,
        job: None,
    }
}

const HEALTHY: f64 = 18.0 * 50.0 * 0.861;

#[test]
fn a_lost_link_costs_its_share_in_row_and_column_and_nowhere_else() {
    let fabric = fabric("[[fault]]\nkind = \"lost-links\"\ngpu = \"n2:1\"\n");
    let bad = fabric.gpu("n2:1").expect("the GPU");
    for from in 0..fabric.gpus.len() {
        for to in (0..fabric.gpus.len()).filter(|to| *to != from) {
            let share = if from == bad || to == bad { 17.0 / 18.0 } else { 1.0 };
            let rate = fabric.copy_rate(from, to, SimCopyEngine::Copy);
            assert!((rate / HEALTHY - share).abs() < 1e-9, "{from} {to} {rate}");
        }
    }
}

#[test]
fn a_fault_in_one_direction_leaves_the_other() {
    let fabric =
        fabric("[[fault]]\nkind = \"lost-links\"\ngpu = \"n1:0\"\ncount = 9\ndirection = \"rx\"\n");
    assert!((fabric.copy_rate(4, 0, SimCopyEngine::Copy) / HEALTHY - 0.5).abs() < 1e-9);
    assert!((fabric.copy_rate(0, 4, SimCopyEngine::Copy) / HEALTHY - 1.0).abs() < 1e-9);
}

#[test]
fn two_gpus_that_lost_different_links_share_what_both_have() {
    let lost = "[[fault]]\nkind = \"lost-links\"\ngpu = \"n1:0\"\nfirst = 3\n\
                [[fault]]\nkind = \"lost-links\"\ngpu = \"n2:0\"\nfirst = 7\n";
    assert_eq!(fabric(lost).route(0, 4), CopyRoute::NvLink(16));
    let apart = fabric(&format!("[tools]\nshared_planes = false\n{lost}"));
    assert_eq!(apart.route(0, 4), CopyRoute::NvLink(17));
}

#[test]
fn a_plane_out_costs_every_cell_the_same() {
    let fabric = fabric("[[fault]]\nkind = \"plane-out\"\ndomain = \"r\"\ncount = 2\n");
    assert!((fabric.copy_rate(0, 11, SimCopyEngine::Copy) / HEALTHY - 16.0 / 18.0).abs() < 1e-9);
    assert!((fabric.copy_rate(1, 2, SimCopyEngine::Copy) / HEALTHY - 16.0 / 18.0).abs() < 1e-9);
}

#[test]
fn without_a_common_fabric_copies_take_pcie_or_the_nic() {
    let text = "title = \"t\"\n\
        [[domain]]\nname=\"a\"\nnodes=\"n1\"\nplatform=\"gb200-nvl72\"\n\
        [[domain]]\nname=\"b\"\nnodes=\"n2\"\nplatform=\"gb200-nvl72\"\n\
        [[claim]]\nname=\"c\"\nnodes=\"n[1-2]\"\nplatform=\"gb200-nvl72\"\n\
        [[fault]]\nkind=\"gpu-parked\"\ngpu=\"n1:3\"\n";
    let fabric = SimFabric::build(&Scenario::parse(text).expect("good")).expect("a fabric");
    assert_eq!(fabric.route(0, 4), CopyRoute::Nic);
    assert_eq!(fabric.route(0, 3), CopyRoute::Pcie);
    assert_eq!(fabric.route(0, 1), CopyRoute::NvLink(18));
}

#[test]
fn a_missing_gpu_shifts_the_devices_after_it() {
    let fabric = fabric("[[fault]]\nkind = \"gpu-missing\"\ngpu = \"n1:1\"\n");
    let last = fabric.gpu("n1:3").expect("the GPU");
    assert_eq!(fabric.cuda_index(last), 2);
    assert_eq!(fabric.gpus_of([&"n1".to_owned()]).len(), 3);
}

#[test]
fn faults_that_name_nothing_are_refused_by_number() {
    let wrong = |fault: &str| {
        let error = SimFabric::build(&scenario(&format!("[[fault]]\n{fault}\n"))).expect_err(fault);
        assert!(error.starts_with("line ") && error.contains(": fault 1: "), "{error}");
        // The same fault as a delayed fault.
        let fault = fault.replace('\n', ", ");
        let later = scenario(&format!("[[later]]\nfrom_round = 9\nfault = {{ {fault} }}\n"));
        let error = SimFabric::build(&later).expect_err(&fault);
        assert!(error.starts_with("line 8: later 1: "), "{error}");
    };
    wrong("kind = \"gpu-parked\"\ngpu = \"n9:0\"");
    wrong("kind = \"gpu-parked\"\ngpu = \"n1:4\"");
    wrong("kind = \"lost-links\"\ngpu = \"n1:0\"\ncount = 19");
    wrong("kind = \"slow-pair\"\na = \"n1:0\"\nb = \"n1:1\"\nshare = 1.5");
    wrong("kind = \"plane-out\"\ndomain = \"q\"");
    wrong("kind = \"missing-cells\"\nscope = \"q\"\nshare = 0.5");
}

#[test]
fn a_read_shows_the_data_direction_transposed_against_a_write() {
    let scenario = scenario(
        "[noise]\nsigma = 0.0\n\
         [[fault]]\nkind = \"lost-links\"\ngpu = \"n1:0\"\ncount = 9\ndirection = \"tx\"\n",
    );
    let fabric = SimFabric::build(&scenario).expect("a fabric");
    let node = "n1".to_owned();
    let cells = |test: &str| {
        let run = bench(&scenario, &fabric, &node)
            .run_nvbandwidth(NvbandwidthLayout::V0_8, &[test.to_owned()]);
        match &run.tests[0].1 {
            SimTestOutcome::Measured(tables) => tables[0].cells.clone(),
            other => panic!("{other:?}"),
        }
    };
    let (low, pull) = (HEALTHY / 2.0, 0.991);
    // GPU 0 sends slowly: its writes slow its row, the others' reads slow its column.
    let (write, read) =
        (cells("device_to_device_memcpy_write_ce"), cells("device_to_device_memcpy_read_ce"));
    assert!((write[1].expect("a cell") - low).abs() < 1e-6);
    assert!((write[4].expect("a cell") - HEALTHY).abs() < 1e-6);
    assert!((read[4].expect("a cell") - low * pull).abs() < 1e-6);
    assert!((read[1].expect("a cell") - HEALTHY * pull).abs() < 1e-6);
}

#[test]
fn every_version_runs_its_own_list_of_tests() {
    let scenario = scenario("");
    let fabric = SimFabric::build(&scenario).expect("a fabric");
    let count = |version| bench(&scenario, &fabric, "n1").run_nvbandwidth(version, &[]).tests.len();
    assert_eq!(count(NvbandwidthLayout::V0_2), 30);
    assert_eq!(count(NvbandwidthLayout::V0_5), 34);
    assert_eq!(count(NvbandwidthLayout::V0_8), 35);
    let across = bench(&scenario, &fabric, "r").run_nvbandwidth(NvbandwidthLayout::V0_8, &[]);
    assert_eq!(across.tests.len(), 48);
}

#[test]
fn one_gpu_alone_waives_what_needs_a_peer() {
    let text = "title=\"t\"\n[[domain]]\nnodes=\"g1\"\nplatform=\"gh200\"\nper_node=true\n";
    let scenario = Scenario::parse(text).expect("good");
    let fabric = SimFabric::build(&scenario).expect("a fabric");
    let run = bench(&scenario, &fabric, "g1").run_nvbandwidth(NvbandwidthLayout::V0_5, &[]);
    let waived = run.tests.iter().filter(|(_, outcome)| *outcome == SimTestOutcome::Waived).count();
    // DCGM's recorded run of one GPU has the same count.
    assert_eq!((run.tests.len() - waived, waived), (17, 17));
}

#[test]
fn the_json_of_a_three_part_test_appends_its_rows() {
    let scenario = scenario("");
    let fabric = SimFabric::build(&scenario).expect("a fabric");
    let bench = bench(&scenario, &fabric, "n1");
    let test = "device_to_device_bidirectional_memcpy_read_ce".to_owned();
    let run = bench.run_nvbandwidth(NvbandwidthLayout::V0_6, &[test]);
    let answer = render::nvbandwidth_json::render_json(&bench, NvbandwidthLayout::V0_6, &run);
    let value: serde_json::Value = serde_json::from_str(&answer.stdout).expect("valid JSON");
    let entry = &value["nvbandwidth"]["testcases"][0];
    assert_eq!(entry["bandwidth_matrix"].as_array().map(Vec::len), Some(12));
    assert_eq!(entry["bandwidth_matrix"][0][0], "N/A");
    assert!(entry["bandwidth_description"].as_str().expect("text").contains("Total"));
    assert!(
        answer
            .stdout
            .starts_with("{\n\t\"nvbandwidth\" :\n\t{\n\t\t\"CUDA Runtime Version\" : 12080,")
    );
}

#[test]
fn an_error_ends_the_run_and_names_host_and_rank() {
    let scenario = scenario("[[fault]]\nkind = \"tool-error\"\nnode = \"n2\"\n");
    let fabric = SimFabric::build(&scenario).expect("a fabric");
    let args = ["-p", "multinode"].map(str::to_owned);
    let answer = tool_dispatch::run_tool(&bench(&scenario, &fabric, "n1"), "nvbandwidth", &args)
        .expect("known");
    assert_eq!(answer.code, 1);
    assert!(answer.stdout.ends_with("Running multinode_device_to_device_memcpy_read_ce.\n"));
    assert!(answer.stderr.contains("[CUDA_ERROR_ECC_UNCORRECTABLE]"), "{}", answer.stderr);
    assert!(answer.stderr.contains(" on n2, rank = 4 in "), "{}", answer.stderr);
}

#[test]
fn wrong_data_is_counted_and_ends_with_code_seven() {
    let scenario = scenario("[[fault]]\nkind = \"corrupt\"\ngpu = \"n3:3\"\n");
    let fabric = SimFabric::build(&scenario).expect("a fabric");
    let args = ["-b", "1M", "-e", "2M"].map(str::to_owned);
    let bench = bench(&scenario, &fabric, "r");
    let answer = tool_dispatch::run_tool(&bench, "all_reduce_perf", &args).expect("known");
    assert_eq!(answer.code, 7);
    assert!(answer.stdout.contains("# Out of bounds values : 4 FAILED"), "{}", answer.stdout);
}

#[test]
fn too_few_gpus_and_unknown_tools_are_refused_as_the_tools_do() {
    let scenario = scenario("");
    let fabric = SimFabric::build(&scenario).expect("a fabric");
    let bench = bench(&scenario, &fabric, "n1");
    let args = ["-g", "8"].map(str::to_owned);
    assert_eq!(tool_dispatch::run_tool(&bench, "all_reduce_perf", &args).expect("known").code, 5);
    assert_eq!(tool_dispatch::run_tool(&bench, "nosuchtool", &[]), None);
}

#[test]
fn a_collective_is_as_fast_as_its_slowest_member() {
    let rate = |more: &str| {
        let scenario = scenario(&format!("[noise]\nsigma = 0.0\n{more}"));
        let fabric = SimFabric::build(&scenario).expect("a fabric");
        let bench = bench(&scenario, &fabric, "r");
        let run = bench.run_collective("all_reduce_perf", [16 << 30, 16 << 30], bench.gpus());
        run.expect("known").rows[0].halves[0].busbw
    };
    let healthy = rate("");
    assert!((800.0..844.0).contains(&healthy), "{healthy}");
    let lost = rate("[[fault]]\nkind = \"lost-links\"\ngpu = \"n1:1\"\ncount = 9\n");
    assert!((lost / healthy - 0.5).abs() < 0.01, "{lost}");
    let fallback = rate("[[fault]]\nkind = \"collective-fallback\"\nscope = \"r\"\n");
    assert!((180.0..200.0).contains(&fallback), "{fallback}");
}

#[test]
fn a_recording_has_the_layout_of_the_contract_and_hides_the_truth() {
    let scenario = scenario(
        "[[fault]]\nkind = \"lost-links\"\ngpu = \"n2:1\"\n\
         [[fault]]\nkind = \"truncated\"\nscope = \"n3\"\ntool = \"nvbandwidth\"\n",
    );
    let recording = recorded_files::record_scenario(&scenario, None, Some(2)).expect("a recording");
    let has = |path: &str| recording.files.contains_key(path);
    assert!(has("claims.toml") && has("nodes/n1/nvbandwidth-2.txt"));
    assert!(has("nodes/n1/nvidia-smi-nvlink.txt") && has("domains/r/all_reduce_perf-1.txt"));
    assert!(!recording.files.keys().any(|path| path.contains("truth")));
    assert!(recording.truth.contains("class = \"lost-links\""));
    let whole = &recording.files["nodes/n1/nvbandwidth-1.txt"];
    let cut = &recording.files["nodes/n3/nvbandwidth-1.txt"];
    assert!(cut.len() <= whole.len() / 2 + 1 && !cut.is_empty());
    assert_eq!(Ok(recording), recorded_files::record_scenario(&scenario, None, Some(2)));
}

#[test]
fn the_newest_nvbandwidth_mirrors_its_bidirectional_matrices_and_older_ones_do_not() {
    let scenario = scenario("");
    let fabric = SimFabric::build(&scenario).expect("a fabric");
    let symmetric = |version| {
        let test = "device_to_device_bidirectional_memcpy_write_ce".to_owned();
        let run = bench(&scenario, &fabric, "n1").run_nvbandwidth(version, &[test]);
        match &run.tests[0].1 {
            SimTestOutcome::Measured(tables) => {
                tables.iter().all(|table| table.cells[1] == table.cells[4] && table.columns == 4)
            }
            other => panic!("{other:?}"),
        }
    };
    assert!(symmetric(NvbandwidthLayout::V0_10) && !symmetric(NvbandwidthLayout::V0_8));
}

#[test]
fn a_missing_imex_peer_ends_runs_across_the_domain_and_shows_in_its_table() {
    let scenario = scenario("[[fault]]\nkind = \"imex-peer-missing\"\nnode = \"n2\"\n");
    let fabric = SimFabric::build(&scenario).expect("a fabric");
    let bench = bench(&scenario, &fabric, "r");
    let run = |name, args: &[&str]| {
        let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
        tool_dispatch::run_tool(&bench, name, &args).expect("known")
    };
    assert_eq!(run("all_reduce_perf", &[]).code, 3);
    assert!(run("nvbandwidth", &["-p", "multinode"]).stderr.contains("INVALID_HANDLE"));
    let table = run("nvidia-imex-ctl", &["-N"]).stdout;
    assert!(
        table.contains("UNAVAILABLE") && table.ends_with("Domain State: DEGRADED\n"),
        "{table}"
    );
    let json: serde_json::Value =
        serde_json::from_str(&run("nvidia-imex-ctl", &["-N", "-j"]).stdout).expect("JSON");
    assert_eq!(json["nodes"]["0"]["connections"]["1"]["status"], "INVALID");
}

/// mpirun's output on `node`, and the parsed result.
fn run_launched(
    scenario: &Scenario,
    line: &str,
) -> (render::SimToolOutput, model::parse_output::ParseOutput) {
    let fabric = SimFabric::build(scenario).expect("a fabric");
    let args: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
    let answer =
        tool_dispatch::run_tool(&bench(scenario, &fabric, "n1"), "mpirun", &args).expect("known");
    let parsed = readers::outputs::parse_output(answer.combined().as_bytes());
    (answer, parsed)
}

#[test]
fn mpirun_runs_the_pair_tests_on_exactly_its_hosts() {
    let scenario = scenario("[[fault]]\nkind = \"lost-links\"\ngpu = \"n3:0\"\ncount = 9\n");
    let tests = [
        "multinode_device_to_device_memcpy_read_ce",
        "multinode_device_to_device_memcpy_write_ce",
        "multinode_device_to_device_memcpy_read_sm",
        "multinode_device_to_device_memcpy_write_sm",
        "multinode_bisect_write_ce",
    ];
    for (hosts, low) in [("n1:4,n2:4", false), ("n1:4,n3:4", true), ("n3:4,n2:4", true)] {
        let line = format!("-np 8 --host {hosts} nvbandwidth -t {}", tests.join(" "));
        let (answer, parsed) = run_launched(&scenario, &line);
        assert!(answer.code == 0 && parsed.complete, "{:?}", parsed.problems);
        assert_eq!(parsed.measurements.len(), tests.len(), "{hosts}");
        assert_eq!(parsed.facts.hosts.len(), 2, "{:?}", parsed.facts.hosts);
        for measurement in &parsed.measurements {
            let model::measurement::Measurement::Matrix(matrix) = measurement else {
                panic!("{measurement:?}")
            };
            let slowest = matrix.cells.iter().flatten().flatten().copied().fold(1e9, f64::min);
            assert_eq!(slowest < 500.0, low, "{hosts} {:?} {slowest}", matrix.testcase);
        }
    }
}

#[test]
fn collectives_log_their_transport() {
    let apart = "title = \"t\"\n\
        [[domain]]\nname=\"a\"\nnodes=\"n[1-2]\"\nplatform=\"gb200-nvl72\"\n\
        [[domain]]\nname=\"b\"\nnodes=\"n3\"\nplatform=\"gb200-nvl72\"\n";
    let scenario = Scenario::parse(apart).expect("good");
    let run = |hosts: &str, more: &str| {
        let line = format!(
            "--host {hosts} -x NCCL_DEBUG=INFO -x NCCL_DEBUG_SUBSYS=INIT,TUNING {more} --mca pml ucx all_reduce_perf -b 8G -e 8G -g 1"
        );
        let (answer, parsed) = run_launched(&scenario, &line);
        assert!(answer.code == 0 && parsed.complete, "{:?}", parsed.problems);
        let model::measurement::Measurement::Series(series) = &parsed.measurements[0] else {
            panic!("{:?}", parsed.measurements)
        };
        let algorithms = parsed.facts.parameters.get("algorithms").map(String::as_str);
        let over_nvlink = parsed.facts.transports.iter().any(|name| name == "MNNVL");
        assert_eq!(algorithms, Some(if over_nvlink { "NVLS" } else { "RING" }));
        (parsed.facts.transports.clone(), series.points[0].busbw.expect("a rate"))
    };
    let (transports, rate) = run("n1:4,n2:4", "");
    assert_eq!(transports, ["MNNVL", "NVLS", "P2P"]);
    assert!(800.0 < rate, "{rate}");
    let (transports, rate) = run("n1:4,n3:4", "");
    assert_eq!(transports, ["P2P", "NET/IB"]);
    assert!((150.0..200.0).contains(&rate), "{rate}");
    let (transports, _) = run("n1:4,n2:4", "-x NCCL_MNNVL_ENABLE=0");
    assert_eq!(transports, ["P2P", "NET/IB"]);
    let (transports, slow) = run("n1:4,n3:4", "-x NCCL_IB_DISABLE=1");
    assert_eq!(transports, ["P2P", "NET/Socket"]);
    assert!(slow < 0.7 * rate, "{slow}");
}

#[test]
fn a_run_that_mpirun_cannot_start_is_a_problem_for_the_reader() {
    let scenario = scenario("[[fault]]\nkind = \"unreachable\"\nnode = \"n2\"\n");
    let (answer, parsed) = run_launched(&scenario, "--host n1:4,n2:4 all_reduce_perf -g 1");
    assert_eq!(answer.code, 1);
    assert!(!parsed.problems.is_empty() && parsed.measurements.is_empty(), "{parsed:?}");
    let (answer, _) = run_launched(&scenario, "--host n1:4 nosuchtool");
    assert!(answer.code == 1 && answer.stderr.contains("mpirun was unable to find"), "{answer:?}");
    let (answer, parsed) = run_launched(&scenario, "--host n1:8 all_reduce_perf -g 1");
    assert!(answer.code == 5 && !parsed.problems.is_empty(), "{parsed:?}");
}

#[test]
fn nvidia_smi_lists_the_processes_on_the_gpus() {
    let scenario = scenario("[[fault]]\nkind = \"busy\"\nnode = \"n2\"\nprocess = \"job\"\n");
    let fabric = SimFabric::build(&scenario).expect("a fabric");
    let ask = |node: &str, query: &str| {
        let args = [query.to_owned(), "--format=csv,noheader".to_owned()];
        tool_dispatch::run_tool(&bench(&scenario, &fabric, node), "nvidia-smi", &args)
            .expect("known")
    };
    let apps = "--query-compute-apps=pid,process_name";
    assert_eq!(ask("n1", apps).stdout, "");
    assert_eq!(ask("n2", apps).stdout, "31000, job\n31001, job\n31002, job\n31003, job\n");
    let gpus = ask("n1", "--query-gpu=index,name,clocks.sm,power.draw").stdout;
    assert_eq!(gpus.lines().count(), 4);
    assert!(gpus.starts_with("0, NVIDIA GB200, 1980 MHz, ") && gpus.ends_with(" W\n"), "{gpus}");
    assert_eq!(ask("n1", "--query-gpu=nothing").code, 2);
}

#[test]
fn tools_that_do_not_behave_do_so_under_mpirun_too() {
    let scenario = scenario(
        "[[fault]]\nkind = \"tool-hangs\"\nnode = \"n2\"\ntool = \"nvbandwidth\"\n\
         [[fault]]\nkind = \"tool-garbage\"\nnode = \"n1\"\ntool = \"all_reduce_perf\"\n",
    );
    let fabric = SimFabric::build(&scenario).expect("a fabric");
    let call = |name: &str, line: &str| {
        let args: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        tool_dispatch::call_tool(&bench(&scenario, &fabric, "n1"), name, &args, &Default::default())
    };
    assert!(matches!(call("nvbandwidth", ""), Some(tool_dispatch::SimToolReply::Prints(_))));
    assert_eq!(
        call("mpirun", "-H n1:4,n2:4 nvbandwidth"),
        Some(tool_dispatch::SimToolReply::Hangs)
    );
    assert!(matches!(
        call("mpirun", "-H n1:4,n3:4 nvbandwidth"),
        Some(tool_dispatch::SimToolReply::Prints(_))
    ));
    let Some(tool_dispatch::SimToolReply::Prints(garbage)) = call("all_reduce_perf", "-g 4") else {
        panic!("says")
    };
    let parsed = readers::outputs::parse_output(garbage.stdout.as_bytes());
    assert!(parsed.tool.is_none() && parsed.measurements.is_empty(), "{parsed:?}");
}

#[test]
fn nvloom_shows_a_slow_gpu_in_its_own_row() {
    let slow = scenario("[[fault]]\nkind = \"lost-links\"\ngpu = \"n2:1\"\ncount = 9\n");
    let line = "--host n1:4,n2:4,n3:4 nvloom_cli -s gpu-to-rack rack-to-rack fabric-stress";
    let (answer, parsed) = run_launched(&slow, line);
    assert_eq!((answer.code, parsed.tool), (0, Some(model::parse_output::Tool::Nvloom)));
    assert!(parsed.complete && parsed.problems.is_empty(), "{:?}", parsed.problems);
    let model::measurement::Measurement::Matrix(matrix) = &parsed.measurements[0] else {
        panic!("{:?}", parsed.measurements)
    };
    let rates: Vec<f64> = matrix.cells.iter().flatten().flatten().copied().collect();
    assert_eq!(rates.len(), 12);
    for (rank, rate) in rates.iter().enumerate() {
        assert_eq!(*rate < 500.0, rank == 5, "{rank}: {rate}");
    }
    let (answer, parsed) = run_launched(&slow, "--host n1:4 nvloom_cli -t nosuchtest");
    assert!(answer.code == 1 && !parsed.problems.is_empty());
    let gone = scenario("[[fault]]\nkind = \"imex-peer-missing\"\nnode = \"n2\"\n");
    let (answer, parsed) = run_launched(&gone, line);
    assert!(answer.code == 1 && parsed.problems[0].host.as_deref() == Some("n2"), "{parsed:?}");
}

proptest! {
    #[test]
    fn no_fault_makes_anything_faster(
        gpu in 0_usize..12, count in 1_u32..=18, way in 0_usize..3, power in 0.1_f64..1.0,
    ) {
        let way = ["both", "tx", "rx"][way];
        let name = format!("n{}:{}", gpu / 4 + 1, gpu % 4);
        let fabric = fabric(&format!(
            "[[fault]]\nkind = \"lost-links\"\ngpu = \"{name}\"\ncount = {count}\ndirection = \"{way}\"\n\
             [[fault]]\nkind = \"power-cap\"\nnode = \"n1\"\nshare = {power}\n"
        ));
        for from in 0..12 {
            for to in (0..12).filter(|to| *to != from) {
                let rate = fabric.copy_rate(from, to, SimCopyEngine::Copy);
                let limit = |links: u64| {
                    // A GPU without links still has PCIe and a NIC.
                    if links == 0 { 50.0 } else { f64::from(links.count_ones()) * 50.0 * 0.861 }
                };
                let ends = limit(fabric.gpus[from].tx).min(limit(fabric.gpus[to].rx));
                prop_assert!(0.0 < rate && rate <= ends.max(50.0) + 1e-9);
            }
        }
    }

    #[test]
    fn a_seed_gives_the_same_recording_every_time(seed in 0_u64..1000) {
        let scenario = scenario("[tools]\nrecord = [\"nvbandwidth\"]\nnode_tests = [\"device_to_device_memcpy_read_ce\"]\n");
        let once = recorded_files::record_scenario(&scenario, Some(seed), None);
        prop_assert_eq!(&once, &recorded_files::record_scenario(&scenario, Some(seed), None));
        prop_assert_ne!(&once, &recorded_files::record_scenario(&scenario, Some(seed + 1), None));
    }
}

#[test]
fn variables_before_a_command_are_split_from_it() {
    let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
    let argv = words("env NCCL_DEBUG=INFO A=b=c all_reduce_perf -b 8 -c=1");
    let (set, command) = tool_dispatch::split_environment(&argv);
    assert_eq!(command, words("all_reduce_perf -b 8 -c=1"));
    assert_eq!(set.get("A").map(String::as_str), Some("b=c"));
    assert_eq!(set.len(), 2);
    let argv = words("all_reduce_perf A=b");
    assert_eq!(tool_dispatch::split_environment(&argv), (mpirun::MpiEnvironment::new(), &argv[..]));
}

#[test]
fn the_log_of_a_node_with_one_gpu_is_whole() {
    for more in ["", "[[fault]]\nkind=\"busy\"\nnode=\"g1\"\n"] {
        let text = format!(
            "title=\"t\"\n[[domain]]\nnodes=\"g1\"\nplatform=\"gh200\"\nper_node=true\n{more}"
        );
        let scenario = Scenario::parse(&text).expect("good");
        let fabric = SimFabric::build(&scenario).expect("a fabric");
        let answer = tool_dispatch::run_tool(
            &bench(&scenario, &fabric, "g1"),
            "nvidia-smi",
            &["-q".to_owned()],
        );
        let parsed = readers::outputs::parse_output(answer.expect("known").stdout.as_bytes());
        assert!(parsed.complete, "{:?}", parsed.problems);
    }
}

#[test]
fn a_tool_that_is_missing_leaves_no_recording() {
    let one = scenario("[[fault]]\nkind=\"tool-missing\"\nnode=\"n1\"\ntool=\"nvbandwidth\"\n");
    let files = recorded_files::record_scenario(&one, None, None).expect("a recording").files;
    for gone in ["nodes/n1/nvbandwidth.txt", "domains/r/nvbandwidth.txt"] {
        assert!(!files.contains_key(gone), "{gone}");
    }
    assert!(files.contains_key("nodes/n2/nvbandwidth.txt"));
    let cut = scenario(
        "[[fault]]\nkind=\"truncated\"\nscope=\"n1\"\ntool=\"nvidia-smi-nvlink\"\nshare=0.1\n",
    );
    let fabric = SimFabric::build(&cut).expect("a fabric");
    let args = ["nvlink", "-s"].map(str::to_owned);
    let length = |node| {
        let answer = tool_dispatch::run_tool(&bench(&cut, &fabric, node), "nvidia-smi", &args);
        answer.expect("known").stdout.len()
    };
    assert!(length("n1") * 9 < length("n2"));
}

#[test]
fn the_worse_of_two_faults_of_one_part_stays() {
    let fabric = fabric(
        "[[fault]]\nkind=\"rail-down\"\nnode=\"n1\"\nrail=0\n\
         [[fault]]\nkind=\"rail-rate\"\nnode=\"n1\"\nrail=0\nshare=0.5\n\
         [[fault]]\nkind=\"power-cap\"\nnode=\"n2\"\nshare=0.5\n\
         [[fault]]\nkind=\"power-cap\"\nnode=\"n2\"\nshare=0.9\n",
    );
    assert!(!fabric.network.is_up(0, 0));
    assert!((fabric.nodes[1].power - 0.5).abs() < 1e-12);
}

#[test]
fn the_truth_names_claimed_domains_and_single_nodes() {
    let text = "title=\"t\"\n[[domain]]\nname=\"a\"\nnodes=\"n[1-3]\"\nplatform=\"gb200-nvl72\"\n\
        [[domain]]\nname=\"b\"\nnodes=\"m[1-3]\"\nplatform=\"gb200-nvl72\"\n\
        [[claim]]\nname=\"x\"\nnodes=\"n[1-3]\"\nplatform=\"gb200-nvl72\"\n\
        [[claim]]\nname=\"y\"\nnodes=\"m[1-3]\"\nplatform=\"gb200-nvl72\"\n\
        [[fault]]\nkind=\"plane-out\"\ndomain=\"a\"\n\
        [[fault]]\nkind=\"clique-shown\"\nnodes=\"m[1-2]\"\nlike=\"a\"\n\
        [[fault]]\nkind=\"clique-shown\"\nnodes=\"m1,m2,m3\"\nlike=\"a\"\n\
        [[fault]]\nkind=\"lost-links\"\ngpu=\"n1:1\"\ncount=2\n\
        [[fault]]\nkind=\"gpu-missing\"\ngpu=\"n1:1\"\n";
    let scenario = Scenario::parse(text).expect("good");
    let truth =
        super::truth::compute_truth(&scenario, &SimFabric::build(&scenario).expect("a fabric"), 1)
            .wrongs;
    assert_eq!(truth[0].domain.as_deref(), Some("x"));
    assert_eq!([&truth[1], &truth[2]].map(|w| w.node.as_deref()), [Some("m1"), Some("m2")]);
    assert_eq!(
        (truth[3].class, truth[3].peer.as_deref()),
        (TrueFaultClass::MergedCliques, Some("y"))
    );
    assert_eq!(truth[4].share, Some(1.0 - 2.0 / 18.0));
}
