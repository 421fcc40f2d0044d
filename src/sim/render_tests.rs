//! Corner cases of the tools' output: sizes rounded to whole parts, several GPUs per process, nodes
//! without GPUs, and faults that count once.

use super::fabric::SimFabric;
use super::invocation::{SimTestOutcome, ToolInvocation};
use super::mpirun::MpiEnvironment;
use super::render::SimToolOutput;
use super::scenario::Scenario;
use super::tool_config::NvbandwidthLayout;
use super::{render, tool_dispatch};
use model::parse_output::ParseOutput;
use readers::outputs;

/// Three trays of four GPUs, without noise.
struct SimRack {
    scenario: Scenario,
    fabric: SimFabric,
}

impl SimRack {
    fn new(more: &str) -> Self {
        let text = format!(
            "title=\"t\"\n[noise]\nsigma=0.0\n\
             [[domain]]\nname=\"r\"\nnodes=\"n[1-3]\"\nplatform=\"gb200-nvl72\"\n{more}"
        );
        let scenario = Scenario::parse(&text).expect("a good scenario");
        let fabric = SimFabric::build(&scenario).expect("a fabric");
        Self { scenario, fabric }
    }

    fn bench<'a>(&'a self, scope: &'a str, reading: u32) -> ToolInvocation<'a> {
        let across = self.fabric.node(scope).is_err();
        let (scenario, fabric) = (&self.scenario, &self.fabric);
        ToolInvocation {
            scenario,
            fabric,
            scope,
            spans_domain: across,
            seed: 1,
            reading,
            prior_readings: reading,
            job: None,
        }
    }

    fn text(&self, scope: &str, line: &str) -> SimToolOutput {
        let mut words = line.split(' ').map(str::to_owned);
        let name = words.next().expect("a tool");
        let args: Vec<String> = words.collect();
        tool_dispatch::run_tool(&self.bench(scope, 0), &name, &args).expect("a known tool")
    }

    /// The single number of a test, or its cells, in a reading.
    fn cells(&self, scope: &str, test: &str, reading: u32) -> Vec<f64> {
        let run =
            self.bench(scope, reading).run_nvbandwidth(NvbandwidthLayout::V0_8, &[test.to_owned()]);
        match &run.tests[0].1 {
            SimTestOutcome::Measured(tables) => tables[0].cells.iter().copied().flatten().collect(),
            other => panic!("{other:?}"),
        }
    }
}

fn read(output: &SimToolOutput) -> ParseOutput {
    outputs::parse_output(output.combined().as_bytes())
}

/// The fields of the rows in a table of nccl-tests.
fn rows(text: &str) -> Vec<Vec<&str>> {
    let rows = text.lines().filter(|line| line.contains(" float "));
    rows.map(|line| line.split_whitespace().collect()).collect()
}

#[test]
fn every_ranks_part_is_cut_to_sixteen_bytes_and_the_sizes_are_of_that() {
    let rack = SimRack::new("");
    for program in ["all_gather_perf", "reduce_scatter_perf", "alltoall_perf"] {
        let answer = rack.text("r", &format!("{program} -b 64 -e 1M"));
        let found = rows(&answer.stdout);
        let shown: Vec<(&str, &str)> = found.iter().map(|row| (row[0], row[1])).collect();
        assert_eq!(shown.len(), 15, "{program}: a row for every requested size");
        // 64 and 128 bytes are less than 16 bytes per rank for twelve ranks.
        assert_eq!(shown[..3], [("0", "0"), ("0", "0"), ("192", "4")], "{program}");
        assert_eq!(shown.last(), Some(&("1048512", "21844")), "{program}");
        for row in found {
            let number = |at: usize| row[at].parse::<f64>().expect("a number");
            let (size, count, time, algbw) = (number(0), number(1), number(5), number(6));
            assert_eq!(size, count * 12.0 * 4.0, "{program}");
            assert!((algbw - size / time / 1e3).abs() < 0.01 + algbw * 0.01, "{program} {row:?}");
        }
        assert!(read(&answer).complete, "{:?}", read(&answer).problems);
    }
    // These have no parts, and 1 byte is less than an element.
    let answer = rack.text("r", "all_reduce_perf -b 1 -e 1M");
    let found = rows(&answer.stdout);
    assert_eq!((found[0][0], found[2][0], found[2][1]), ("0", "4", "1"));
    assert_eq!(found.last().map(|row| (row[0], row[1])), Some(("1048576", "262144")));
    let bench = rack.bench("r", 0);
    let run =
        bench.run_collective("alltoall_perf", [1 << 20, 1 << 20], bench.gpus()).expect("known");
    let json = render::nccl_json::render_json(&bench, &run);
    assert!(json.contains("\"size\":1048512,\"count\":21844,"), "{json}");
}

#[test]
fn gpus_of_one_process_have_one_pid() {
    let rack = SimRack::new("");
    let pids = |text: &str| -> Vec<String> {
        let ranks = text.lines().filter(|line| line.starts_with("#  Rank"));
        ranks.map(|line| line.split_whitespace().nth(6).expect("a pid").to_owned()).collect()
    };
    let one = rack.text("n1", "all_reduce_perf -g 4 -b 1M -e 1M");
    assert!(one.stdout.contains("# nThread 1 nGpus 4 minBytes"), "{}", one.stdout);
    assert_eq!(pids(&one.stdout), ["21000"; 4]);
    let parsed = read(&one);
    assert!(parsed.complete && parsed.problems.is_empty(), "{:?}", parsed.problems);
    assert_eq!(parsed.facts.ranks.len(), 4);
    let line = "mpirun --host n1:2,n2:2 -x NCCL_DEBUG=INFO all_reduce_perf -g 2 -b 1M -e 1M";
    let two = rack.text("n1", line);
    assert!(two.stdout.contains(" nGpus 2 "), "{}", two.stdout);
    let each = ["21000", "21000", "21003", "21003"];
    assert_eq!(pids(&two.stdout), [each, each].concat());
    for (thread, device) in [("21000:21090", 0), ("21000:21091", 1), ("21003:21093", 2)] {
        let prefix = format!("n2:{thread} [{device}] NCCL INFO ");
        assert!(two.stdout.contains(&prefix), "{prefix}: {}", two.stdout);
    }
    // One rank per GPU, as probes request it.
    let apart = rack.text("n1", "mpirun --host n1:4 all_reduce_perf -g 1 -b 1M -e 1M");
    assert!(apart.stdout.contains(" nGpus 1 "), "{}", apart.stdout);
    assert_eq!(pids(&apart.stdout), ["21000", "21003", "21006", "21009"]);
    let written = rack.text("n1", "all_reduce_perf -g 4 -b 1M -e 1M -J out.json");
    let (_, json) = written.file.expect("a file");
    let value: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(value["config"]["ngpus"], 4);
    let devices = value["config"]["devices"].as_array().expect("a list");
    assert_eq!(devices.len(), 1, "the tool keeps one for a process");
    assert_eq!(devices[0]["pid"], 21_000);
    assert_eq!(devices[0]["rank"], 0);
    let parsed = outputs::parse_output(json.as_bytes());
    assert!(parsed.complete && parsed.problems.is_empty(), "{:?}", parsed.problems);
}

fn empty_tray(node: &str) -> String {
    let fault = |slot| format!("[[fault]]\nkind=\"gpu-missing\"\ngpu=\"{node}:{slot}\"\n");
    (0..4).map(fault).collect()
}

#[test]
fn tools_on_a_node_without_any_gpu_fail_as_the_real_ones_do() {
    let rack = SimRack::new(&empty_tray("n1"));
    for line in ["nvidia-smi nvlink -s", "nvidia-smi topo -m", "nvidia-smi -q"] {
        let answer = rack.text("n1", line);
        assert_eq!((answer.code, answer.stdout.as_str()), (6, "No devices were found\n"), "{line}");
    }
    for query in ["--query-gpu=index", "--query-compute-apps=pid"] {
        assert_eq!(rack.text("n1", &format!("nvidia-smi {query} --format=csv")).code, 6, "{query}");
    }
    let no_device = "no CUDA-capable device is detected";
    let copies = rack.text("n1", "nvbandwidth -t host_to_device_memcpy_ce");
    assert_eq!(copies.code, 1);
    let message = format!("[CUDA_ERROR_NO_DEVICE] {no_device} in expression cuInit(0) in int main");
    assert!(copies.stderr.starts_with(&message), "{copies:?}");
    assert!(!copies.stdout.contains("Running"), "{}", copies.stdout);
    let parsed = read(&copies);
    assert_eq!(parsed.problems[0].code.as_deref(), Some("CUDA_ERROR_NO_DEVICE"));
    assert!(parsed.measurements.is_empty() && !parsed.complete, "{parsed:?}");
    let json = rack.text("n1", "nvbandwidth -j");
    let value: serde_json::Value = serde_json::from_str(&json.stdout).expect("JSON");
    assert!(value["nvbandwidth"]["error"].as_str().is_some_and(|it| it.contains(no_device)));
    assert_eq!((json.code, value["nvbandwidth"].get("testcases")), (1, None));
    let peers = rack.text("n1", "p2pBandwidthLatencyTest");
    assert!(peers.code == 1 && peers.stdout.contains("Cuda failure p2p"), "{peers:?}");
    assert!(peers.stdout.ends_with(&format!(": '{no_device}'\n")), "{peers:?}");
    let reduce = rack.text("n1", "all_reduce_perf -g 4");
    assert_eq!(reduce.code, 2);
    let message =
        format!("# Using devices\nn1: Test CUDA failure common.cu:1013 '{no_device}'\n .. n1 ");
    assert!(reduce.stdout.contains(&message), "{}", reduce.stdout);
    let problems = read(&reduce).problems;
    let is_it = |code: &Option<String>| code.as_deref() == Some("cudaErrorNoDevice");
    assert!(problems.iter().any(|it| is_it(&it.code) && it.host.as_deref() == Some("n1")));
}

#[test]
fn ranks_on_a_node_without_gpus_are_named_with_their_host() {
    let rack = SimRack::new(&empty_tray("n2"));
    let copies = "-t multinode_device_to_device_memcpy_read_ce";
    let copies = rack.text("n1", &format!("mpirun --host n1:4,n2:4 nvbandwidth {copies}"));
    assert!(copies.stderr.contains("cuInit(0) on n2, rank = 4 in int main"), "{copies:?}");
    assert!(copies.code == 1 && !copies.stdout.contains("Process 0"), "{copies:?}");
    assert_eq!(read(&copies).problems[0].host.as_deref(), Some("n2"));
    let reduce = rack.text("n1", "mpirun --host n1:4,n2:4 all_reduce_perf -g 1");
    assert!(reduce.code == 2 && reduce.stdout.contains("\nn2: Test CUDA failure "), "{reduce:?}");
    // If some GPUs are left, ranks share them, and nvbandwidth prints a warning.
    let rack = SimRack::new("[[fault]]\nkind=\"gpu-missing\"\ngpu=\"n2:3\"\n");
    let line = "mpirun --host n1:4,n2:4 nvbandwidth -t multinode_device_to_device_memcpy_read_ce";
    let shared = rack.text("n1", line);
    let warning = "Warning: there are more processes than GPUs on n2. ";
    assert!(shared.code == 0 && shared.stdout.contains(warning), "{}", shared.stdout);
    let few = rack.text("n1", "mpirun --host n1:4,n2:4 all_reduce_perf -g 1");
    assert!(few.code == 5 && few.stderr.contains("4 requested but only 3 were found"), "{few:?}");
}

#[test]
fn a_gpus_own_copies_drift_once_and_a_collective_with_its_slowest_rank() {
    let rack = SimRack::new("[[fault]]\nkind=\"drift\"\ngpu=\"n1:2\"\nshare=0.1\n");
    let share = |scope: &str, test: &str, cell: usize| {
        rack.cells(scope, test, 3)[cell] / rack.cells(scope, test, 0)[cell]
    };
    for test in ["device_local_copy", "host_to_device_memcpy_ce"] {
        let left = share("n1", test, 2);
        assert!((left - 0.7).abs() < 1e-9, "{test}: {left}");
        assert!((share("n1", test, 1) - 1.0).abs() < 1e-9, "{test}");
    }
    let multicast = "multinode_device_to_device_broadcast_all_to_all_sm";
    let left = share("r", multicast, 0);
    assert!((left - 0.7).abs() < 1e-9, "{left}");
    // Rank 2 of twelve: all wait for it.
    let rate = |reading| {
        let bench = rack.bench("r", reading);
        let run = bench.run_collective("all_reduce_perf", [1 << 30, 1 << 30], bench.gpus());
        run.expect("known").rows[0].halves[0].busbw
    };
    assert!((rate(3) / rate(0) - 0.7).abs() < 1e-9, "{}", rate(3) / rate(0));
    // A GPU's drift does not affect a NIC, not even on the node's first rail.
    let rack = SimRack::new("[[fault]]\nkind=\"drift\"\ngpu=\"n1:0\"\nshare=0.1\n");
    let nic = |reading| {
        let bench = rack.bench("n1", reading);
        render::perftest::render_bandwidth(&bench, &render::perftest::SimPerftestRun::all_sizes(2))
            .stdout
    };
    let table = |text: &str| text.split_once(" #bytes").map(|(_, rows)| rows.to_owned());
    assert_eq!(table(&nic(3)), table(&nic(0)));
}

/// Bandwidth of an all-reduce over the rack, without noise.
fn all_reduce(faults: &str, reading: u32) -> f64 {
    let rack = SimRack::new(faults);
    let bench = rack.bench("r", reading);
    let run = bench.run_collective("all_reduce_perf", [8 << 30, 8 << 30], bench.gpus());
    run.expect("known").rows[0].halves[0].busbw
}

#[test]
fn a_collective_is_as_fast_as_its_slowest_member_despite_other_faults() {
    let lost = "[[fault]]\nkind=\"lost-links\"\ngpu=\"n3:1\"\ncount=2\n";
    let capped = "[[fault]]\nkind=\"power-cap\"\nnode=\"n1\"\nshare=0.93\n";
    let drift = "[[fault]]\nkind=\"drift\"\ngpu=\"n2:2\"\nshare=0.05\n";
    for faults in [[lost, capped], [lost, drift], [capped, drift]] {
        for reading in 0..4 {
            let alone = faults.map(|fault| all_reduce(fault, reading));
            let both = all_reduce(&faults.concat(), reading);
            let slower = alone[0].min(alone[1]);
            assert!((both / slower - 1.0).abs() < 1e-3, "{faults:?}: {both}, alone {alone:?}");
        }
    }
    // Two faults that slow the same member do add up.
    let twice = lost.replace("n3", "n1") + capped;
    let (one, two) = (all_reduce(lost, 0), all_reduce(&twice, 0));
    assert!((two / one - 0.93).abs() < 1e-3, "{two} of {one}");
}

#[test]
fn half_of_all_readings_dip_if_the_scenario_specifies_half() {
    let more = "[[fault]]\nkind=\"dips\"\ngpu=\"n1:3\"\nrate=0.5\ndepth=[0.3, 0.3]\n";
    let rack = SimRack::new(more);
    let healthy = SimRack::new("").cells("n1", "device_local_copy", 0)[3];
    let copies: Vec<f64> =
        (0..400).map(|at| rack.cells("n1", "device_local_copy", at)[3] / healthy).collect();
    let dipped = copies.iter().filter(|share| **share < 0.99).count();
    assert!((160..240).contains(&dipped), "{dipped} of 400");
    assert!(copies.iter().all(|share| 0.699 < *share), "one dip in a reading");
    let rates = |rack: &SimRack| -> Vec<f64> {
        let rate = |at| {
            let bench = rack.bench("r", at);
            let run = bench.run_collective("all_reduce_perf", [1 << 30, 1 << 30], bench.gpus());
            run.expect("known").rows[0].halves[0].busbw
        };
        (0..400).map(rate).collect()
    };
    let whole = rates(&SimRack::new(""))[0];
    let dipped = rates(&rack).iter().filter(|rate| **rate < whole * 0.99).count();
    assert!((160..240).contains(&dipped), "{dipped} of 400 collectives wait for it");
}

#[test]
fn nccl_names_the_cluster_that_nvidia_smi_names() {
    let more = "[[domain]]\nname=\"s\"\nnodes=\"m1\"\nplatform=\"gb200-nvl72\"\n\
                [[fault]]\nkind=\"clique-shown\"\nnodes=\"n2\"\nlike=\"s\"\n";
    let rack = SimRack::new(more);
    let smi = |node: &str| {
        let text = rack.text(node, "nvidia-smi -q").stdout;
        let line = text.lines().find(|line| line.contains("ClusterUUID")).expect("a UUID");
        let digits = line.split_once(" : ").expect("a value").1.replace('-', "");
        // Sixteen bytes in order, read as two little-endian numbers.
        let half = |at: usize| u64::from_str_radix(&digits[at..at + 16], 16).expect("hexadecimal");
        format!("fabric UUID {:x}.{:x} cliqueId", half(0).swap_bytes(), half(16).swap_bytes())
    };
    assert_ne!(smi("n1"), smi("n2"));
    assert_eq!(smi("n2"), smi("m1"));
    let bench = rack.bench("r", 0);
    let environment = MpiEnvironment::from([("NCCL_DEBUG".to_owned(), "INFO".to_owned())]);
    let args = ["-b", "1M", "-e", "1M"].map(str::to_owned);
    let Some(tool_dispatch::SimToolReply::Prints(answer)) =
        tool_dispatch::call_tool(&bench, "all_reduce_perf", &args, &environment)
    else {
        panic!("it says")
    };
    for node in ["n1", "n2", "n3"] {
        let own = answer.stdout.lines().filter(|line| line.starts_with(&format!("{node}:")));
        let named: Vec<&str> = own.filter(|line| line.contains("fabric UUID")).collect();
        assert_eq!(named.len(), 4, "{node}");
        assert!(named.iter().all(|line| line.contains(&smi(node))), "{node}: {named:?}");
    }
    // Eight ranks report one cluster, four the other.
    let sizes = |size: &str| answer.stdout.matches(&format!(" cliqueSize {size} ")).count();
    assert_eq!((sizes("8"), sizes("4")), (8, 4));
}
