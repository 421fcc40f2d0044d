//! Fuzz targets for everything that reads text from outside, run by
//! `cargo test` for a bounded number of iterations.
//!
//! The same inputs come every time. `FABRICGATE_FUZZ_ITERATIONS` makes more of
//! them (for each target), `FABRICGATE_FUZZ_SEED` others. An input that fails is
//! kept in a file; its seed with one iteration makes it again.

#[path = "fuzz/cables_and_jobs.rs"]
mod cables_and_jobs;
#[path = "fuzz/corpus.rs"]
mod corpus;
#[path = "fuzz/dice.rs"]
mod dice;
#[path = "fuzz/doors.rs"]
mod doors;
#[path = "fuzz/mutation.rs"]
mod mutation;
#[path = "fuzz/properties.rs"]
mod properties;
#[path = "fuzz/slurm.rs"]
mod slurm;
#[path = "fuzz/stored.rs"]
mod stored;

use std::collections::BTreeSet;
use std::fs;
use std::panic::AssertUnwindSafe;
use std::panic::catch_unwind;
use std::path::Path;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::mpsc;
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

use corpus::corpus;
use dice::Dice;
use fabricgate::cli::config;
use fabricgate::inventory::claims_file;
use fabricgate::inventory::hostlist;
use fabricgate::inventory::kubernetes::compute_domains;
use fabricgate::inventory::kubernetes::nodes;
use fabricgate::inventory::kubernetes::topologies;
use fabricgate::measure;
use fabricgate::measure::Confidence;
use fabricgate::measure::Input;
use fabricgate::measure::json;
use fabricgate::measure::text::decode;
use fabricgate::model::parsed::Parsed;
use fabricgate::model::parsed::Tool;
use fabricgate::model::probe::ProbeScope;
use fabricgate::model::probe::placeholder;
use fabricgate::model::said::Said;
use fabricgate::model::span::TextError;
use fabricgate::probe::catalog;
use fabricgate::sim::scenario::Scenario;
use fabricgate::thresholds::builtin;
use fabricgate::thresholds::file;
use fabricgate::thresholds::overlay;
use mutation::mutate;
use serde_json::Value;

/// Longest time for one input. Any input takes milliseconds; this is far
/// beyond what a busy machine explains.
const HANGS: Duration = Duration::from_secs(20);

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text}: expected a number")))
}

/// Runs one target: `make` an input from dice, `check` it. Both may panic.
fn fuzz(
    target: &str,
    default_iterations: u64,
    make: impl Fn(&mut Dice) -> Vec<u8> + Send + 'static,
    check: impl Fn(&[u8]) + Send + 'static,
) {
    let iterations = number("FABRICGATE_FUZZ_ITERATIONS").unwrap_or(default_iterations);
    let first = number("FABRICGATE_FUZZ_SEED").unwrap_or(1);
    // The watcher must know what hangs.
    let current = Arc::new(Mutex::new((first, Vec::new())));
    let shown = Arc::clone(&current);
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        for seed in first..first.saturating_add(iterations) {
            let input = make(&mut Dice::new(seed));
            *shown.lock().expect("no holder panics") = (seed, input.clone());
            let failed = catch_unwind(AssertUnwindSafe(|| check(&input))).is_err();
            if sender.send(failed).is_err() || failed {
                return;
            }
        }
    });
    let mut done = 0;
    loop {
        let what = match receiver.recv_timeout(HANGS) {
            Ok(false) => {
                done += 1;
                continue;
            }
            Err(RecvTimeoutError::Disconnected) if done == iterations => return,
            Ok(true) => "fails",
            Err(RecvTimeoutError::Timeout) => "hangs",
            Err(RecvTimeoutError::Disconnected) => "makes no input",
        };
        let (seed, input) = current.lock().expect("no holder panics").clone();
        let path = keep(target, seed, &input);
        panic!(
            "{target} {what}: {}; again with FABRICGATE_FUZZ_SEED={seed} \
             FABRICGATE_FUZZ_ITERATIONS=1",
            path.display()
        );
    }
}

fn keep(target: &str, seed: u64, input: &[u8]) -> PathBuf {
    let path = std::env::temp_dir().join(format!("fabricgate-fuzz-{target}-{seed}.bin"));
    fs::write(&path, input).expect("a failing input can be kept");
    path
}

/// One parser, given mutations of its own tool's outputs whether or not it
/// recognises them; then the whole reader, which may choose another one.
fn parser(
    target: &'static str,
    tool: Tool,
    own: fn() -> &'static [Vec<u8>],
    tokens: &'static [&'static str],
    recognises: fn(&Input<'_>) -> Confidence,
    parse: fn(&Input<'_>) -> Parsed,
) {
    for good in own() {
        let parsed = measure::read(good);
        assert_eq!(parsed.tool, Some(tool), "{target}: {}", String::from_utf8_lossy(good));
        properties::check(good, &parsed, stands(parsed.tool));
    }
    let make = move |dice: &mut Dice| mutate(dice, own(), &corpus().any, tokens);
    fuzz(target, 600, make, move |bytes| one_tool(bytes, tool, recognises, parse));
}

/// One parser, whether or not it recognises this; then the whole reader.
fn one_tool(
    bytes: &[u8],
    tool: Tool,
    recognises: fn(&Input<'_>) -> Confidence,
    parse: fn(&Input<'_>) -> Parsed,
) {
    let text = decode(bytes);
    let input = Input::new(&text);
    let sure = recognises(&input);
    let direct = parse(&input);
    properties::check(bytes, &direct, stands(Some(tool)));
    let parsed = measure::read(bytes);
    assert!(sure == 0 || parsed.tool.is_some(), "recognised, then not read");
    properties::check(bytes, &parsed, all_stand(bytes, &parsed));
}

/// Tools whose numbers are taken over as they are printed.
fn stands(tool: Option<Tool>) -> bool {
    matches!(
        tool,
        Some(
            Tool::Nvbandwidth
                | Tool::NcclTests
                | Tool::P2pBandwidthLatencyTest
                | Tool::FabricgateCopy
                | Tool::FabricgateCollective
        )
    )
}

/// Whether every number of an input must stand in it: its tool takes them over, and no
/// part of it may be of a tool that converts (a file of two tools is read as both).
fn all_stand(bytes: &[u8], parsed: &Parsed) -> bool {
    use measure::iperf3;
    use measure::nvloom;
    use measure::perftest;
    use measure::smi::nvlink;
    use measure::tcp;
    const CONVERTING: [fn(&Input<'_>) -> Confidence; 5] = [
        iperf3::recognises,
        nvloom::recognises,
        perftest::recognises,
        nvlink::recognises,
        tcp::recognises,
    ];
    let text = decode(bytes);
    let input = Input::new(&text);
    stands(parsed.tool) && CONVERTING.iter().all(|recognises| recognises(&input) == 0)
}

#[test]
fn nvbandwidth_outputs_never_break_their_reader() {
    const TOKENS: &[&str] = &[
        "SUM",
        "N/A",
        "Running",
        "Waived:",
        "Waiving",
        "memcpy CE GPU(row) -> GPU(column) bandwidth (GB/s)",
        "\nSUM device_to_device_memcpy_read_ce 1.00\n",
        "COEFFICIENT_OF_VARIATION",
        "nvbandwidth Version: v0.9\n",
        "Device 7:",
        "Process 1 (x9):",
        "ERROR: Testcase",
        "\"bandwidth_matrix\" :",
        "\"status\" : \"Error\"",
        "\"N/A\"",
        "(row)",
        "GPU(column)",
        "&&&& PASSED",
    ];
    use measure::nvbandwidth as m;
    let own = || corpus().nvbandwidth.as_slice();
    parser("nvbandwidth", Tool::Nvbandwidth, own, TOKENS, m::recognises, m::parse);
}

#[test]
fn nccl_outputs_never_break_their_reader() {
    const TOKENS: &[&str] = &[
        "#",
        "# Rank 3 Group 0 Pid 7 on y1 device 2 [0x0a] NVIDIA Q1",
        "# Out of bounds values : 0 OK",
        "# Avg bus bandwidth    :",
        "float",
        "sum",
        "-1",
        "N/A",
        "out-of-place",
        "in-place",
        "Test NCCL failure",
        "# nThread 1 nGpus 8 minBytes 8 maxBytes 64",
        "x9:77:88 [0] NCCL INFO",
        "\"results\":[",
        "\"bus_bw\":",
        "null",
        "#wrong",
    ];
    use measure::nccl as m;
    parser("nccl", Tool::NcclTests, || &corpus().nccl, TOKENS, m::recognises, m::parse);
}

#[test]
fn p2p_outputs_never_break_their_reader() {
    const TOKENS: &[&str] = &[
        "D\\D",
        "GPU",
        "CPU",
        "Unidirectional P2P=Enabled Bandwidth (P2P Writes) Matrix (GB/s)\n",
        "Matrix (us)",
        "P2P=Disabled",
        "Device: 3, NVIDIA Q1, pciBusID: a, pciDeviceID: 0, pciDomainID:0",
        "CAN",
        "CANNOT",
        "P2P Connectivity Matrix",
    ];
    use measure::p2p as m;
    let tool = Tool::P2pBandwidthLatencyTest;
    parser("p2p", tool, || &corpus().p2p, TOKENS, m::recognises, m::parse);
}

#[test]
fn perftest_outputs_never_break_their_reader() {
    const TOKENS: &[&str] = &[
        "#bytes",
        "BW peak[MB/sec]",
        "BW average[Gb/sec]",
        "t_avg[usec]",
        "RDMA_Write BW Test",
        "RDMA_Read Latency Test",
        "Conflicting CPU frequency values detected: 1 != 2. CPU Frequency is not max.",
        "Failed to modify QP",
        "Device         : mlx5_9",
        "{ \"test_info\": {",
        "---------------------------------------------------------------------------------------\n",
    ];
    use measure::perftest as m;
    parser("perftest", Tool::Perftest, || &corpus().perftest, TOKENS, m::recognises, m::parse);
}

#[test]
fn nvlink_states_never_break_their_reader() {
    const TOKENS: &[&str] = &[
        "GPU 3:",
        "(UUID: GPU-1)",
        "\t Link 17: 26.562 GB/s\n",
        "<inactive>",
        "Link 4294967295:",
        "Replay Errors:",
        "NVML: Unable to retrieve NVLink information as all links are inActive",
        "N/A",
        "[Unknown Error]",
    ];
    use measure::smi::nvlink as m;
    let own = || corpus().nvlink.as_slice();
    parser("nvlink", Tool::NvidiaSmiNvlink, own, TOKENS, m::recognises, m::parse);
}

#[test]
fn topologies_never_break_their_reader() {
    const TOKENS: &[&str] = &[
        "GPU0",
        "NIC0",
        "X",
        "NV18",
        "SYS",
        "PIX",
        "\t",
        "CPU Affinity",
        "NUMA Affinity",
        "Legend:",
        "NIC Legend:",
        "NIC1: mlx5_1",
        "0-31,64-95",
    ];
    use measure::smi::topo as m;
    parser("topo", Tool::NvidiaSmiTopo, || &corpus().topo, TOKENS, m::recognises, m::parse);
}

#[test]
fn queries_never_break_their_reader() {
    const TOKENS: &[&str] = &[
        "==============NVSMI LOG==============",
        "GPU 00000000:0A:00.0",
        "    Fabric\n",
        "        State                             : In Progress\n",
        "CliqueId",
        "ClusterUUID",
        "Product Name",
        "Attached GPUs",
        "Health",
        ":",
        " : N/A",
    ];
    use measure::smi::query as m;
    parser("query", Tool::NvidiaSmiQ, || &corpus().query, TOKENS, m::recognises, m::parse);
}

#[test]
fn imex_tables_never_break_their_reader() {
    const TOKENS: &[&str] = &[
        "Node #4294967295",
        "READY",
        "UNAVAILABLE",
        "- Version: 1",
        "Nodes From\\To  0   1   2",
        "C",
        "!V!",
        "Domain State: UP",
        "\"connections\":",
        "\"nodes\":",
        "Hostname:",
    ];
    use measure::imex as m;
    parser("imex", Tool::NvidiaImexCtl, || &corpus().imex, TOKENS, m::recognises, m::parse);
}

#[test]
fn diagnostics_never_break_their_reader() {
    const TOKENS: &[&str] = &[
        "\"status\":",
        "\"Fail\"",
        "\"gpu_ids\": \"0,1,4294967296\"",
        "\"test_categories\":",
        "\"entity_id\":",
        "\"warnings\":",
        "null",
        "{}",
        "[]",
    ];
    use measure::dcgm as m;
    parser("dcgm", Tool::DcgmDiag, || &corpus().dcgm, TOKENS, m::recognises, m::parse);
}

#[test]
fn nvloom_outputs_never_break_their_reader() {
    const TOKENS: &[&str] = &[
        "Running",
        "Done",
        "Total",
        "ExecutionTime",
        "N/A",
        "Process 1 (loom1):",
        "rackGuid:",
        "GB/s",
        "\t",
        "nvloom_cli 1.3.0",
    ];
    use measure::nvloom as m;
    parser("nvloom", Tool::Nvloom, || &corpus().nvloom, TOKENS, m::recognises, m::parse);
}

#[test]
fn iperf3_outputs_never_break_their_reader() {
    const TOKENS: &[&str] = &[
        "\"sum_received\":{\"bits_per_second\":",
        "\"error\":\"x\"",
        "\"bidir\":1",
        "{\"event\":\"end\",\"data\":{",
        "[SUM]   0.00-10.00  sec  1 GBytes  9.36 Gbits/sec    0   receiver\n",
        "iperf Done.\n",
        "iperf3: error - ",
        "null",
    ];
    use measure::iperf3 as m;
    parser("iperf3", Tool::Iperf3, || &corpus().iperf3, TOKENS, m::recognises, m::parse);
}

#[test]
fn copy_documents_never_break_their_reader() {
    const TOKENS: &[&str] = &[
        "\"fabricgate.copy/1\"",
        "\"fabricgate.copy/2\"",
        "{\"format\":\"fabricgate.copy/1\",\"node\":\"x9\",\"tests\":[",
        "\"rows\":[\"0\"]",
        "\"cols\":[",
        "\"readings\":[[[null,1.5]]]",
        "\"0->3\"",
        "\"unit\":\"us\"",
        "\"ranks\":[{\"rank\":4294967295,\"node\":\"x\",\"gpu\":0}]",
        "\"complete\":true",
        "\"corrupt\"",
        "null",
        "}\n{",
    ];
    use measure::copy as m;
    parser("copy", Tool::FabricgateCopy, || &corpus().copy, TOKENS, m::recognises, m::parse);
}

#[test]
fn collective_documents_never_break_their_reader() {
    const TOKENS: &[&str] = &[
        "\"fabricgate.collective/1\"",
        "\"fabricgate.collective/9\"",
        "\"points\":[",
        "\"wrong\":7",
        "\"wrong\":null",
        "\"busbw\":1e300",
        "\"time_us\":0",
        "\"testcase\":\"alltoall_perf\"",
        "\"reading\":4294967295",
        "\"algorithms\":[[\"all_reduce_perf\",\"NVLS\"]]",
        "\"environment\":{\"NCCL_ALGO\":\"Ring\"}",
        "\"complete\":true",
        "}\n{",
    ];
    use measure::collective as m;
    let own = || corpus().collective.as_slice();
    parser("collective", Tool::FabricgateCollective, own, TOKENS, m::recognises, m::parse);
}

#[test]
fn tcp_documents_never_break_their_reader() {
    const TOKENS: &[&str] = &[
        "\"fabricgate.tcp/1\"",
        "\"readings\":[",
        "\"forward\":{",
        "\"received_bytes\":18446744073709551615",
        "\"rate\":1e308",
        "\"latency\":null",
        "\"complete\":true",
        "inf",
    ];
    use measure::tcp as m;
    parser("tcp", Tool::FabricgateTcp, || &corpus().tcp, TOKENS, m::recognises, m::parse);
}

#[test]
fn mixtures_of_all_outputs_never_break_the_reader() {
    const TOKENS: &[&str] = &["SUM", "#", "GPU 0:", "{", "Running x", "N/A", "Domain State: UP"];
    let make = |dice: &mut Dice| {
        let mut input = Vec::new();
        for _ in 0..=dice.below(3) {
            input.extend(mutate(dice, &corpus().any, &corpus().any, TOKENS));
        }
        input
    };
    // Found by a longer run: two tools, of which the second converts.
    any_tool(
        b"Running device_to_device_memcpy_read_ce.\nmemcpy CE GPU(row) -> GPU(column) bandwidth (GB/s)\n\
          0 1\n0 N/A 395.64\n1 395.55 N/A\n\
          [ ID] Interval           Transfer     Bitrate         Retr\n\
          [  5]   0.00-10.04  sec  10.9 GBytes  9.32 Gbits/sec                  receiver\n\niperf Done.\n",
    );
    fuzz("mixture", 400, make, any_tool);
}

/// Whatever tool it may be from.
fn any_tool(bytes: &[u8]) {
    let parsed = measure::read(bytes);
    properties::check(bytes, &parsed, all_stand(bytes, &parsed));
}

#[test]
fn bytes_without_any_sense_are_no_measurements() {
    let make = |dice: &mut Dice| {
        let length = dice.below(4096);
        (0..length).map(|_| u8::try_from(dice.below(256)).expect("a byte")).collect()
    };
    fuzz("noise", 300, make, |bytes| {
        let parsed = measure::read(bytes);
        assert!(parsed.measurements.is_empty() && !parsed.complete);
        properties::check(bytes, &parsed, true);
    });
}

fn depth(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        Value::Object(map) => 1 + map.values().map(depth).max().unwrap_or(0),
        _ => 0,
    }
}

/// The same value with every number as a float: 1 and 1.0 are one number.
fn as_floats(value: &Value) -> Value {
    match value {
        Value::Number(number) => number.as_f64().into(),
        Value::Array(items) => items.iter().map(as_floats).collect(),
        Value::Object(map) => map.iter().map(|(k, v)| (k.clone(), as_floats(v))).collect(),
        other => other.clone(),
    }
}

#[test]
fn broken_json_is_read_as_far_as_it_goes() {
    const TOKENS: &[&str] =
        &["{", "}", "[", "]", ",", ":", "\"a\"", "\\u00", "inf", "-nan", "true", "1e5", "\\"];
    fn own() -> &'static [Vec<u8>] {
        &corpus().dcgm
    }
    let make = |dice: &mut Dice| mutate(dice, own(), &corpus().any, TOKENS);
    fuzz("json", 1000, make, almost_json);
}

/// The reader of JSON that is none, beside serde_json.
fn almost_json(bytes: &[u8]) {
    let text = decode(bytes);
    let Some(found) = json::find_where(&text, |_| true) else { return };
    let last = u32::try_from(text.lines().count() + 1).expect("a small text");
    assert!(found.line <= last && depth(&found.value) <= 64);
    if let Some(stop) = &found.stopped {
        assert!(found.line <= stop.line && stop.line <= last, "{stop:?}");
    }
    // What serde_json reads as one object is read as the same object. It
    // takes the last of two equal keys, and so must this reader.
    if let Ok(strict) = serde_json::from_str::<Value>(&text)
        && strict.is_object()
        && depth(&strict) < 64
    {
        assert_eq!(as_floats(&found.value), as_floats(&strict));
        assert!(found.stopped.is_none() && !found.not_finite);
    }
}

fn host_list_seeds() -> Vec<Vec<u8>> {
    const LISTS: &[&str] = &[
        "node[0001-0018]",
        "a[1-3,5],b7,c",
        "r[1-2]n[08-11]-ib",
        "x,y z\nx",
        "n[9-12],n[009-012]",
        "rack1-node[1-20,25,30-31].example.org",
    ];
    LISTS.iter().map(|list| list.as_bytes().to_vec()).collect()
}

#[test]
fn host_lists_fold_back_to_the_same_names() {
    const TOKENS: &[&str] =
        &["[", "]", ",", "-", "[1-9]", "[00-99]", " ", "node", "0", "[1-", "[3-1]", "[a]", "\t"];
    let own = host_list_seeds();
    let make = move |dice: &mut Dice| mutate(dice, &own, &own, TOKENS);
    fuzz("hostlist", 1500, make, host_lists);
}

/// A list of hosts, there and back.
fn host_lists(bytes: &[u8]) {
    let list = String::from_utf8_lossy(bytes);
    match hostlist::expand(&list) {
        Ok(names) => {
            assert!(!names.is_empty() && names.len() <= hostlist::MOST);
            let folded = hostlist::fold(names.iter().map(String::as_str));
            let again = hostlist::expand(&folded)
                .unwrap_or_else(|error| panic!("{folded:?} cannot be read: {error}"));
            let once: BTreeSet<&String> = names.iter().collect();
            assert_eq!(again.iter().collect::<BTreeSet<_>>(), once);
            assert_eq!(again.len(), once.len(), "{folded:?} names a node twice");
        }
        Err(error) => assert!(error.offset <= list.len() && !error.to_string().is_empty()),
    }
}

/// That an error points into the text it is about.
fn points_into(text: &str, error: &TextError) {
    let lines = text.matches('\n').count() + 1;
    assert!((1..=lines).contains(&error.line) && 1 <= error.column, "{error}");
    let shown = error.to_string();
    assert!(shown.starts_with("f.toml:") && !shown.trim_end().contains('\n'), "{shown:?}");
}

fn texts(folder: &str) -> Vec<Vec<u8>> {
    // `ci/fuzz` compiles this file in a package of its own.
    let mut above = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
    let root = above.find(|it| it.join("thresholds").is_dir()).expect("the repository");
    let folder = root.join(folder);
    let mut paths: Vec<PathBuf> = fs::read_dir(&folder)
        .unwrap_or_else(|e| panic!("{}: {e}", folder.display()))
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|e| e == "toml"))
        .collect();
    paths.sort();
    assert!(!paths.is_empty(), "{}", folder.display());
    paths.iter().map(|path| fs::read(path).expect("a readable file")).collect()
}

const TOML: &[&str] = &[
    "=",
    "[",
    "]",
    "[[",
    "]]",
    "\"",
    "'''",
    "#",
    "\n",
    "true",
    "1979-05-27T07:32:00Z",
    "0.5",
    "-1",
    "nan",
    "inf",
    "{",
    "}",
    "a.b.c",
    "\"\\u0000\"",
    "[]",
    "\"n[1-9]\"",
];

/// What every source keeps to, whatever it was given.
fn speaks_sense(said: &Said) {
    for problem in &said.problems {
        assert!(!problem.message.trim().is_empty(), "a problem without words");
    }
    for group in &said.groups {
        assert!(
            !group.scheme.is_empty() && group.nodes.iter().all(|node| !node.as_str().is_empty())
        );
        let once: BTreeSet<_> = group.nodes.iter().collect();
        assert_eq!(once.len(), group.nodes.len(), "a node twice in {}", group.name);
    }
    let shown = serde_json::to_string(said).expect("it can be written down");
    assert!(!shown.chars().any(char::is_control));
}

#[test]
fn kubernetes_objects_never_break_their_reader() {
    const TOKENS: &[&str] = &[
        "\"kind\":\"Node\"",
        "\"kind\":\"NodeList\"",
        "\"kind\":\"ComputeDomain\"",
        "\"items\":[",
        "\"items\":null",
        "\"metadata\":{\"name\":\"n9\"",
        "\"labels\":{",
        "\"nvidia.com/gpu.clique\":\"00000000-0000-0000-0000-000000000000.32766\"",
        "\"fabric.topograph.run/tier-4294967296\":\"s\"",
        "\"nodeLabel\":\"kubernetes.io/hostname\"",
        "\"cliqueID\":\"\"",
        "\"continue\":\"x\"",
        "apiVersion: v1\nkind: Node\nmetadata: {name: n}\n---\n",
        "NAME LABELS\n",
        "&a [*a, *a]",
        "\u{7}",
        "null",
    ];
    let own = kubernetes_seeds();
    let make = move |dice: &mut Dice| mutate(dice, &own, &own, TOKENS);
    fuzz("kubernetes", 1500, make, kubernetes_objects);
}

fn kubernetes_seeds() -> Vec<Vec<u8>> {
    let clique = "11111111-2222-3333-4444-555555555555.7";
    let node = |name: &str| {
        format!(
            r#"{{"apiVersion":"v1","kind":"Node","metadata":{{"name":"{name}","labels":{{
            "nvidia.com/gpu.clique":"{clique}","nvidia.com/gpu.count":"4","x/rack":"r1",
            "accelerator.topograph.run/domain":"{clique}","fabric.topograph.run/tier-0":"l1"}},
            "annotations":{{"topology.slinky.slurm.net/spec":"topo-switch:s1,topo-block:b1",
            "hami.io/node-nvidia-score":"[]"}}}},"spec":{{"taints":[{{"key":"a","effect":"b"}}]}},
            "status":{{"conditions":[{{"type":"Ready","status":"True"}}]}}}}"#
        )
    };
    let list = |items: &[String]| {
        format!("{{\"apiVersion\":\"v1\",\"items\":[{}],\"kind\":\"List\"}}", items.join(","))
    };
    let domain = format!(
        r#"{{"apiVersion":"resource.nvidia.com/v1beta1","kind":"ComputeDomain","metadata":
        {{"name":"c","namespace":"n","uid":"u"}},"spec":{{"numNodes":2}},"status":{{"status":"Ready",
        "nodes":[{{"name":"n1","cliqueID":"{clique}","index":0,"status":"Ready"}},{{"name":"n2","cliqueID":""}}]}}}}"#
    );
    let topology =
        r#"{"apiVersion":"kueue.x-k8s.io/v1beta2","kind":"Topology","metadata":{"name":"t"},
        "spec":{"levels":[{"nodeLabel":"x/rack"},{"nodeLabel":"kubernetes.io/hostname"}]}}"#
            .to_owned();
    [
        list(&[node("n1"), node("n2")]),
        list(&[domain, topology, node("n1")]),
        format!("apiVersion: v1\nkind: Node\nmetadata:\n  name: y1\n  labels:\n    nvidia.com/gpu.clique: {clique}\n"),
        "kind: Cluster\napiVersion: kind.x-k8s.io/v1alpha4\nnodes:\n- role: worker\n  labels: {a: b}\n".to_owned(),
        format!("NAME STATUS LABELS\nn1 Ready a=b,nvidia.com/gpu.clique={clique}\n"),
        format!("NAME   VERSION   GPU.CLIQUE\nn1               {clique}\nn\u{e9}2    v\n"),
    ]
    .map(String::into_bytes)
    .to_vec()
}

/// Objects of Kubernetes, by every reader of theirs.
fn kubernetes_objects(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let nodes = nodes::read("n.json", &text);
    speaks_sense(&nodes);
    let known: BTreeSet<_> = nodes.nodes.keys().collect();
    assert!(nodes.groups.iter().flat_map(|g| &g.nodes).all(|node| known.contains(node)));
    if !nodes.nodes.is_empty() {
        assert!(nodes::recognises(&text), "read, and not recognised");
    }
    let domains = compute_domains::read("c.json", &text);
    speaks_sense(&domains);
    assert!(domains.groups.is_empty() || compute_domains::recognises(&text));
    let topologies = topologies::read("t.json", &text);
    speaks_sense(&topologies);
    assert!(topologies.groups.is_empty() || topologies::recognises(&text));
}

fn claims_seeds() -> Vec<Vec<u8>> {
    vec![
        b"[[domain]]\nname = \"r1\"\nnodes = \"n[01-04]\"\nplatform = \"hgx-h100\"\n\
          gpus_per_node = 8\n"
            .to_vec(),
        b"[[domain]]\nname = \"a\"\nnodes = [\"x1\", \"x[2-3]\"]\nnic = \"ndr-400\"\n\
          [[domain]]\nname = \"b\"\nnodes = \"y\"\n"
            .to_vec(),
    ]
}

#[test]
fn claims_are_read_whole_or_refused_at_a_place() {
    let own = claims_seeds();
    let make = move |dice: &mut Dice| mutate(dice, &own, &own, TOML);
    fuzz("claims", 800, make, claims_files);
}

/// A file of claims.
fn claims_files(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    match claims_file::parse("f.toml", &text) {
        Ok(claims) => {
            let nodes: Vec<_> = claims.domains.iter().flat_map(|d| &d.nodes).collect();
            let once: BTreeSet<_> = nodes.iter().collect();
            assert!(!nodes.is_empty() && once.len() == nodes.len());
            assert!(claims.domains.iter().all(|d| !d.nodes.is_empty()));
        }
        Err(error) => points_into(&text, &error),
    }
}

fn threshold_seeds() -> Vec<Vec<u8>> {
    builtin::FILES.iter().map(|(_, text)| text.as_bytes().to_vec()).collect()
}

#[test]
fn threshold_files_are_read_whole_or_refused_with_every_place() {
    let own = threshold_seeds();
    let make = move |dice: &mut Dice| mutate(dice, &own, &own, TOML);
    fuzz("thresholds", 150, make, threshold_files);
}

/// A file of thresholds, over those that are built in.
fn threshold_files(bytes: &[u8]) {
    let text = match file::text(bytes, "f.toml") {
        Ok(text) => text,
        Err(fault) => {
            assert!(1 <= fault.line && !fault.to_string().is_empty());
            return;
        }
    };
    let before = builtin::catalogue();
    let mut catalogue = before.clone();
    match overlay::apply(&mut catalogue, text, "f.toml") {
        Ok(_) => {
            for expectation in catalogue.platforms.values().flat_map(|p| p.expectations.values()) {
                let numbers = [expectation.value, expectation.floor];
                let good = |n: &f64| n.is_finite() && 0.0 < *n;
                assert!(numbers.iter().flatten().all(good), "{expectation:?}");
                assert!((0.0..1.0).contains(&expectation.tolerance), "{expectation:?}");
            }
        }
        Err(faults) => {
            assert!(!faults.is_empty() && catalogue == *before);
            let lines = u32::try_from(text.matches('\n').count() + 1).expect("a small text");
            assert!(faults.iter().all(|f| (1..=lines).contains(&f.line)), "{faults:?}");
            assert!(faults.iter().all(|f| !f.to_string().is_empty()));
        }
    }
}

#[test]
fn probe_files_are_read_whole_or_refused_at_a_place() {
    let own = texts("probes");
    let make = move |dice: &mut Dice| mutate(dice, &own, &own, TOML);
    fuzz("probes", 400, make, probe_files);
}

/// A file that describes a probe.
fn probe_files(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    match catalog::parse("f.toml", &text) {
        Ok(probe) => {
            assert!(!probe.argv.is_empty());
            assert!(!probe.words().any(|word| word.contains('\0')));
            assert!(0.0 < probe.timeout_s && probe.timeout_s.is_finite());
            assert!(!probe.name.contains(['/', '.']) && !probe.name.is_empty());
            // Every brace is a placeholder that somebody fills.
            for word in probe.words() {
                let fill = |word: String, name: &&str| word.replace(name, "");
                let rest = placeholder::ALL.iter().fold(word.clone(), fill);
                assert!(!rest.contains(['{', '}']), "{word:?}");
            }
            let is_two_sided = matches!(probe.scope, ProbeScope::Pair | ProbeScope::Rail);
            assert!(is_two_sided || (probe.serve.is_none() && !probe.says(placeholder::PEER)));
            assert!(probe.serve.is_some() || !probe.says(placeholder::PORT));
            assert_eq!(probe.reads_itself, probe.says(placeholder::READINGS));
            assert!([0, 1, 2, 4, 5].contains(&probe.stage));
        }
        Err(error) => points_into(&text, &error),
    }
}

fn configuration_seeds() -> Vec<Vec<u8>> {
    vec![
        b"claims = \"claims.toml\"\nrun_dir = \"runs\"\nplatform = \"hgx-h100\"\n\
          [launcher]\nkind = \"command\"\ntemplate = [\"ssh\", \"{node}\"]\nparallel = 8\n\
          [probes]\nrun = [\"nvbandwidth\"]\nreadings = 3\n[policy]\nper_domain = 2\n"
            .to_vec(),
        b"claims = \"/c.toml\"\nthresholds = [\"t.toml\"]\n[launcher]\nkind = \"local\"\n".to_vec(),
    ]
}

#[test]
fn configurations_are_read_whole_or_refused_with_one_message() {
    let own = configuration_seeds();
    let make = move |dice: &mut Dice| mutate(dice, &own, &own, TOML);
    fuzz("config", 400, make, configuration_files);
}

/// A configuration, as the program opens it.
fn configuration_files(bytes: &[u8]) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("f.toml");
    fs::write(&path, bytes).expect("written");
    match config::open(Some(&path)) {
        Ok(config) => {
            assert!(
                config.probes.as_ref().is_none_or(|p| !p.is_empty())
                    && 0 < config.parallel
                    && 0 < config.readings
            );
        }
        Err(error) => {
            let shown = error.to_string();
            assert!(shown.contains("f.toml:"), "no place: {shown}");
        }
    }
}

#[test]
fn scenarios_are_read_whole_or_refused_with_one_message() {
    let own = texts("examples");
    let make = move |dice: &mut Dice| mutate(dice, &own, &own, TOML);
    fuzz("scenarios", 300, make, scenario_files);
}

/// A file that describes simulated machines.
fn scenario_files(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    if let Err(error) = Scenario::read(&text) {
        assert!(!error.to_string().is_empty());
    }
}
