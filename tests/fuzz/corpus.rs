//! Valid inputs as seeds: rendered by the simulator where it knows the tool, and otherwise
//! written here, with invented machines.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use sim::fabric::SimFabric;
use sim::invocation::ToolInvocation;
use sim::native_probes::NativeProbeSite;
use sim::render::perftest::SimPerftestRun;
use sim::scenario::Scenario;
use sim::tool_config::NvbandwidthLayout;
use sim::{native_probes, render};

/// Outputs of every tool, by the name of its parser.
#[derive(Debug, Default)]
pub(crate) struct Corpus {
    pub(crate) nvbandwidth: Vec<Vec<u8>>,
    pub(crate) nccl: Vec<Vec<u8>>,
    pub(crate) p2p: Vec<Vec<u8>>,
    pub(crate) perftest: Vec<Vec<u8>>,
    pub(crate) nvlink: Vec<Vec<u8>>,
    pub(crate) topo: Vec<Vec<u8>>,
    pub(crate) query: Vec<Vec<u8>>,
    pub(crate) imex: Vec<Vec<u8>>,
    pub(crate) dcgm: Vec<Vec<u8>>,
    pub(crate) nvloom: Vec<Vec<u8>>,
    pub(crate) iperf3: Vec<Vec<u8>>,
    pub(crate) tcp: Vec<Vec<u8>>,
    pub(crate) copy: Vec<Vec<u8>>,
    pub(crate) collective: Vec<Vec<u8>>,
    /// One or two of each, to splice in.
    pub(crate) any: Vec<Vec<u8>>,
}

impl Corpus {
    /// The outputs of each tool.
    pub(crate) fn of_tools(&self) -> impl Iterator<Item = &Vec<Vec<u8>>> {
        [
            &self.nvbandwidth,
            &self.nccl,
            &self.p2p,
            &self.perftest,
            &self.nvlink,
            &self.topo,
            &self.query,
            &self.imex,
            &self.dcgm,
            &self.nvloom,
            &self.iperf3,
            &self.tcp,
            &self.copy,
            &self.collective,
        ]
        .into_iter()
    }
}

pub(crate) fn corpus() -> &'static Corpus {
    static CORPUS: OnceLock<Corpus> = OnceLock::new();
    CORPUS.get_or_init(make)
}

/// Small machines: damage is as visible in 3 x 3 as in 72 x 72.
const MACHINES: &str = "title = \"t\"\n\
    [[domain]]\nname = \"rack\"\nnodes = \"tray[07-08]\"\nplatform = \"gb200-nvl72\"\ngpus_per_node = 2\n\
    [[domain]]\nnodes = \"box1\"\nplatform = \"hgx-h100\"\ngpus_per_node = 3\nper_node = true\n";

/// Faults of the machines, one after the other.
const FAULTS: &[&str] = &[
    "",
    "[[fault]]\nkind = \"tool-error\"\nnode = \"tray08\"\n[[fault]]\nkind = \"tool-error\"\nnode = \"box1\"\n",
    "[[fault]]\nkind = \"corrupt\"\ngpu = \"tray08:1\"\n[[fault]]\nkind = \"corrupt\"\ngpu = \"box1:0\"\n",
    "[[fault]]\nkind = \"imex-peer-missing\"\nnode = \"tray07\"\n[[fault]]\nkind = \"gpu-parked\"\ngpu = \"box1:2\"\n",
    "[[fault]]\nkind = \"missing-cells\"\nscope = \"box1\"\nshare = 0.2\n\
     [[fault]]\nkind = \"shown-inactive\"\ngpu = \"box1:1\"\nlink = 4\n",
];

const NODE_TESTS: &[&str] = &[
    "host_to_device_memcpy_ce",
    "device_to_device_memcpy_read_ce",
    "device_to_device_bidirectional_memcpy_write_ce",
    "no_such_test",
];

const DOMAIN_TESTS: &[&str] = &[
    "multinode_device_to_device_memcpy_read_ce",
    "multinode_device_to_device_bidirectional_memcpy_read_ce",
    "multinode_bisect_write_ce",
];

const VERSIONS: &[NvbandwidthLayout] = &[
    NvbandwidthLayout::V0_2,
    NvbandwidthLayout::V0_5,
    NvbandwidthLayout::V0_6,
    NvbandwidthLayout::V0_8,
    NvbandwidthLayout::V0_10,
];

fn make() -> Corpus {
    let mut corpus = Corpus::default();
    for (number, fault) in FAULTS.iter().enumerate() {
        for layout in ["2.13", "2.17"] {
            let text = format!("{MACHINES}{fault}[tools]\nnccl_tests = \"{layout}\"\n");
            let scenario = Scenario::parse(&text).expect("a good scenario");
            let fabric = SimFabric::build(&scenario).expect("a fabric");
            for (scope, across) in [("box1", false), ("tray07", false), ("rack", true)] {
                let (seed, reading) = (3, 0);
                let bench = ToolInvocation {
                    scenario: &scenario,
                    fabric: &fabric,
                    scope,
                    spans_domain: across,
                    seed,
                    reading,
                    prior_readings: reading,
                    job: None,
                };
                collectives(&bench, &mut corpus);
                if layout == "2.17" {
                    matrices(&bench, &mut corpus);
                    states(&bench, &mut corpus, number);
                }
            }
        }
    }
    corpus.nvbandwidth.extend(NVBANDWIDTH.iter().map(|text| text.as_bytes().to_vec()));
    corpus.nvlink.extend(NVLINK.iter().map(|text| text.as_bytes().to_vec()));
    corpus.imex.extend(IMEX.iter().map(|text| text.as_bytes().to_vec()));
    corpus.perftest.push(PERFTEST.as_bytes().to_vec());
    corpus.dcgm.extend(DCGM.iter().map(|text| text.as_bytes().to_vec()));
    corpus.nvloom.extend(NVLOOM.iter().map(|text| text.as_bytes().to_vec()));
    corpus.iperf3.extend(IPERF3.iter().map(|text| text.as_bytes().to_vec()));
    own_probes(&mut corpus);
    corpus.tcp.extend(TCP.iter().map(|text| text.as_bytes().to_vec()));
    let any = corpus.of_tools().flat_map(|of| of.iter().step_by(7).cloned()).collect();
    corpus.any = any;
    corpus
}

/// Found by a fuzzer: an error without a text.
const NVBANDWIDTH: &[&str] = &[
    r#"{"nvbandwidth": {"error": "", "version": "v0.8", "testcases": []}}"#,
    "{\n\t\"nvbandwidth\" :\n\t{\n\t\t\"error\" :\"\"[CUDA_ERROR_INVALID_HANDLE] invalid resource handle",
];

fn matrices(bench: &ToolInvocation<'_>, corpus: &mut Corpus) {
    let names = |list: &[&str]| list.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    let tests = names(if bench.spans_domain { DOMAIN_TESTS } else { NODE_TESTS });
    for version in VERSIONS {
        let run = bench.run_nvbandwidth(*version, &tests);
        let text = render::nvbandwidth::render_text(bench, *version, &run).combined();
        corpus.nvbandwidth.push(text.into_bytes());
        if version.has_json() {
            let text = render::nvbandwidth_json::render_json(bench, *version, &run).combined();
            corpus.nvbandwidth.push(text.into_bytes());
        }
    }
}

fn collectives(bench: &ToolInvocation<'_>, corpus: &mut Corpus) {
    for program in ["all_reduce_perf", "alltoall_perf"] {
        let run =
            bench.run_collective(program, [1024, 8192], bench.gpus()).expect("a known program");
        corpus.nccl.push(render::nccl::render_text(bench, &run).combined().into_bytes());
        corpus.nccl.push(render::nccl_json::render_json(bench, &run).into_bytes());
    }
}

fn states(bench: &ToolInvocation<'_>, corpus: &mut Corpus, number: usize) {
    if bench.spans_domain {
        corpus.imex.push(render::imex::render_text(bench).combined().into_bytes());
        corpus.imex.push(render::imex::render_json(bench).combined().into_bytes());
        return;
    }
    let even = number.is_multiple_of(2);
    let nic = SimPerftestRun { gbits: even, ..SimPerftestRun::all_sizes(0) };
    corpus.p2p.push(render::p2p::render_text(bench, even).combined().into_bytes());
    corpus.nvlink.push(render::smi::render_nvlink_status(bench).combined().into_bytes());
    corpus.topo.push(render::smi::render_topology(bench).combined().into_bytes());
    corpus.query.push(render::smi::render_query(bench).combined().into_bytes());
    corpus.perftest.push(render::perftest::render_bandwidth(bench, &nic).combined().into_bytes());
}

const NVLINK: &[&str] = &["\
GPU 0: NVIDIA Q1 80GB (UUID: GPU-00000000-1111-2222-3333-444444444444)
\t Link 0: Replay Errors: 0
\t Link 0: Recovery Errors: 3
\t Link 0: CRC Errors: 18446744073709551615
\t Link 1: Replay Errors: N/A
GPU 1: NVIDIA Q1 80GB (UUID: GPU-00000000-1111-2222-3333-555555555555)
NVML: Unable to retrieve NVLink information as all links are inActive
"];

const IMEX: &[&str] = &["\
Connectivity Table Legend:
I - Invalid - nothing known
C - Connected - usable

3/4/2027 05:06:07.008
Nodes:
Node #0   - 10.3.2.1        - READY                - Version: 575.1
Node #5   * 10.3.2.6 *      - UNAVAILABLE          - Version:            - Hostname: tray-f

 Nodes From\\To  0   5
       0        C   I
       5        N   !V!
Domain State: DEGRADED
"];

const PERFTEST: &str = "\
---------------------------------------------------------------------------------------
                    RDMA_Write Latency Test
 Dual-port       : OFF\t\tDevice         : mlx5_3
 Number of qps   : 1\t\tTransport type : IB
 Connection type : RC\t\tUsing SRQ      : OFF
 TX depth        : 1
 Mtu             : 4096[B]
 Link type       : Ethernet
 GID index       : 3
---------------------------------------------------------------------------------------
 local address: LID 0000 QPN 0x01a2 PSN 0x5d1f03 RKey 0x1820ef VAddr 0x007f12
 remote address: LID 0000 QPN 0x01a3 PSN 0x5d1f04 RKey 0x1820ea VAddr 0x007f13
---------------------------------------------------------------------------------------
 #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec]
 2       1000          1.61           4.07         1.66                1.67             0.06            1.85                    4.07
 4       1000          1.62           3.91         1.67                1.68             0.05            1.86                    3.91
---------------------------------------------------------------------------------------
";

const DCGM: &[&str] = &[
    r#"{ "DCGM Diagnostic": { "test_categories": [ { "category": "Hardware", "tests": [
  { "name": "memory", "results": [
    { "entity_group": "GPU", "entity_group_id": 1, "entity_id": 0, "status": "Pass" },
    { "entity_group": "GPU", "entity_group_id": 1, "entity_id": 2, "status": "Fail",
      "warnings": [ { "warning": "made-up trouble", "error_id": 9 } ], "info": [ "seen\ttwice" ] } ],
    "test_summary": { "status": "Fail" } } ] } ] },
  "entity_groups": [ { "entities": [ { "entity_id": 0 } ], "entity_group": "GPU" } ],
  "metadata": { "Driver Version Detected": "580.1", "version": "4.3.2" } }"#,
    r#"Successfully ran diagnostic for group.
{ "DCGM GPU Diagnostic": { "version": "3.1.4", "Driver Version Detected": "535.2", "test_categories": [
  { "category": "Stress", "tests": [
    { "name": "PCIe", "results": [ { "gpu_ids": "0,1,2", "status": "WARN", "warnings": "slow" },
                                   { "gpu_id": "3", "status": "SKIP", "info": [ "no reason" ] } ] } ] } ] } }"#,
];

const NVLOOM: &[&str] = &["\
nvloom_cli 1.2.0
git commit: 0badcafe
CUDA version: 12.9
Driver version: 580.7
Buffer size: 512 MiB
Process 0 (loom1): device 0: NVIDIA Q1 (00000000:0a:00); rackGuid: 41
Process 1 (loom1): device 1: NVIDIA Q1 (00000000:0b:00); rackGuid: 41
Process 2 (loom2): device 0: NVIDIA Q1 (00000000:0a:00); rackGuid: 42

Running device_to_device_unidir_write_ce
\t0\t1\t2\t
0\tN/A\t601.50\t602.25\t
1\t603.00\tN/A\t604.50\t
2\t605.00\t606.75\tN/A\t

Min device_to_device_unidir_write_ce 601.50 GB/s
Avg device_to_device_unidir_write_ce 603.83 GB/s
Max device_to_device_unidir_write_ce 606.75 GB/s
Total device_to_device_unidir_write_ce 3623.00 GB/s

ExecutionTime device_to_device_unidir_write_ce 2.50 s
Done device_to_device_unidir_write_ce

"];

/// `iperf3 -J`, a failed one, and the plain text.
const IPERF3: &[&str] = &[
    r#"{"start":{"connected":[{"socket":5,"local_host":"192.0.2.1","remote_host":"192.0.2.2"}],
"version":"iperf 3.16","connecting_to":{"host":"192.0.2.2","port":5201},
"test_start":{"protocol":"TCP","num_streams":4,"omit":1,"duration":10,"reverse":0,"bidir":0}},
"intervals":[{"streams":[],"sum":{"bits_per_second":93.5e9,"omitted":false}}],
"end":{"streams":[],"sum_sent":{"seconds":10.0,"bits_per_second":94100000000.5,"retransmits":2},
"sum_received":{"seconds":10.04,"bits_per_second":94000000000.25}}}
"#,
    r#"{"start":{"connected":[],"version":"iperf 3.9"},"intervals":[],"end":{},"error":"unable to connect to server: Connection refused"}
"#,
    "Connecting to host 192.0.2.2, port 5201\n\
[ ID] Interval           Transfer     Bitrate         Retr\n\
[  5]   0.00-10.00  sec  10.9 GBytes  9.36 Gbits/sec    0             sender\n\
[  5]   0.00-10.04  sec  10.9 GBytes  9.32 Gbits/sec                  receiver\n\niperf Done.\n",
];

/// Output of the native GPU probes, alone and together.
fn own_probes(corpus: &mut Corpus) {
    let rack = ["tray07".to_owned(), "tray08".to_owned()];
    for fault in FAULTS {
        let scenario = Scenario::parse(&format!("{MACHINES}{fault}")).expect("a good scenario");
        let fabric = SimFabric::build(&scenario).expect("a fabric");
        for nodes in [&[][..], &rack[..]] {
            let alone = ["box1".to_owned()];
            let printed = |render: &dyn Fn(&NativeProbeSite<'_>) -> String| -> Vec<u8> {
                let members = if nodes.is_empty() { &alone[..] } else { nodes };
                let lines = members.iter().map(|node| {
                    render(&NativeProbeSite {
                        scenario: &scenario,
                        fabric: &fabric,
                        node,
                        nodes,
                        gpus: &[],
                        environment: BTreeMap::new(),
                        noise: |reading| reading,
                        prior_runs: 0,
                    }) + "\n"
                });
                lines.collect::<String>().into_bytes()
            };
            let tests = if nodes.is_empty() { NODE_TESTS } else { DOMAIN_TESTS };
            let tests: Vec<String> = tests.iter().map(|test| (*test).to_owned()).collect();
            let task = native_probes::copy::SimCopyRequest {
                tests: &tests,
                readings: 2,
                buffer_bytes: 512 << 20,
                copies: 16,
                warmup: 2,
                lane: false,
            };
            corpus.copy.push(printed(&|place| {
                serde_json::to_string(&native_probes::copy::build_document(place, &task))
                    .expect("plain data")
            }));
            let tests = ["all_reduce_perf", "sendrecv_perf"].map(str::to_owned);
            let asked = native_probes::collective::SimCollectiveRequest {
                tests: &tests,
                readings: 1,
                bytes: [1 << 20, 8 << 20],
                factor: 2,
                iterations: 20,
                asserted: Some("MNNVL"),
            };
            corpus.collective.push(printed(&|place| {
                let document = native_probes::collective::build_document(place, &asked);
                serde_json::to_string(&document).expect("plain data")
            }));
        }
    }
}

/// Output of `fabricgate node probe tcp`.
const TCP: &[&str] = &[
    r#"{"format":"fabricgate.tcp/1","version":"0.1.0","source":{"node":"x1","address":"192.0.2.1","device":"eth1"},"destination":{"node":"x2","address":"192.0.2.2","device":null},"rail":"rail0","streams":4,"seconds":1.0,"warmup_s":0.2,"unit":"GB/s","complete":true,"readings":[{"reading":0,"forward":{"sent_bytes":14750000,"received_bytes":14750000,"seconds":1.0,"rate":0.0118,"retransmits":0},"reverse":{"sent_bytes":14650000,"received_bytes":14650000,"seconds":1.0,"rate":0.0117,"retransmits":null}}],"latency":{"samples":200,"min_us":20.5,"median_us":31.5,"p99_us":90.25},"problems":[]}
"#,
    r#"{"format":"fabricgate.tcp/1","version":"0.1.0","source":{"node":"x1"},"destination":{"node":"x2"},"unit":"GB/s","complete":false,"readings":[],"latency":null,"problems":["connection refused"]}
"#,
];
