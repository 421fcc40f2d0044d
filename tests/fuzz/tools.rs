//! Fuzz targets for the outputs of tools: for any input, no parser ends the process, hangs or
//! invents a number.

use model::parse_output::{ParseOutput, Tool};
use readers::outputs;
use readers::outputs::text::decode;
use readers::outputs::{ParserConfidence, ParserInput};

use super::corpus::corpus;
use super::dice::Dice;
use super::mutation::mutate;
use super::{fuzz, properties};

/// One parser, with mutations of its own tool's outputs even if it does not recognise them; then
/// the whole reader, which may choose another one.
fn parser(
    target: &'static str,
    tool: Tool,
    own: fn() -> &'static [Vec<u8>],
    tokens: &'static [&'static str],
    recognises: fn(&ParserInput<'_>) -> ParserConfidence,
    parse: fn(&ParserInput<'_>) -> ParseOutput,
) {
    for good in own() {
        let parsed = outputs::parse_output(good);
        assert_eq!(parsed.tool, Some(tool), "{target}: {}", String::from_utf8_lossy(good));
        properties::check(good, &parsed, stands(parsed.tool));
    }
    let make = move |dice: &mut Dice| mutate(dice, own(), &corpus().any, tokens);
    fuzz(target, 600, make, move |bytes| one_tool(bytes, tool, recognises, parse));
}

/// One parser, even if it does not recognise this; then the whole reader.
pub(super) fn one_tool(
    bytes: &[u8],
    tool: Tool,
    recognises: fn(&ParserInput<'_>) -> ParserConfidence,
    parse: fn(&ParserInput<'_>) -> ParseOutput,
) {
    let text = decode(bytes);
    let input = ParserInput::new(&text);
    let sure = recognises(&input);
    let direct = parse(&input);
    properties::check(bytes, &direct, stands(Some(tool)));
    let parsed = outputs::parse_output(bytes);
    assert!(sure == 0 || parsed.tool.is_some(), "recognised, then not read");
    properties::check(bytes, &parsed, all_stand(bytes, &parsed));
}

/// Tools whose numbers the parser copies as printed.
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

/// True if every number of an input must occur in it: the parser copies them, and no part of the
/// input may be of a tool that converts (a file of two tools is read as both).
fn all_stand(bytes: &[u8], parsed: &ParseOutput) -> bool {
    use outputs::smi::nvlink;
    use outputs::{iperf3, nvloom, perftest, tcp};
    const CONVERTING: [fn(&ParserInput<'_>) -> ParserConfidence; 5] = [
        iperf3::recognises,
        nvloom::recognises,
        perftest::recognises,
        nvlink::recognises,
        tcp::recognises,
    ];
    let text = decode(bytes);
    let input = ParserInput::new(&text);
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
    use outputs::nvbandwidth as m;
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
    use outputs::nccl as m;
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
    use outputs::p2p as m;
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
    use outputs::perftest as m;
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
    use outputs::smi::nvlink as m;
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
    use outputs::smi::topo as m;
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
    use outputs::smi::query as m;
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
    use outputs::imex as m;
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
    use outputs::dcgm as m;
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
    use outputs::nvloom as m;
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
    use outputs::iperf3 as m;
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
    use outputs::copy as m;
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
    use outputs::collective as m;
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
    use outputs::tcp as m;
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

/// An output of any tool.
pub(super) fn any_tool(bytes: &[u8]) {
    let parsed = outputs::parse_output(bytes);
    properties::check(bytes, &parsed, all_stand(bytes, &parsed));
}

#[test]
fn random_bytes_give_no_measurements() {
    let make = |dice: &mut Dice| {
        let length = dice.below(4096);
        (0..length).map(|_| u8::try_from(dice.below(256)).expect("a byte")).collect()
    };
    fuzz("noise", 300, make, |bytes| {
        let parsed = outputs::parse_output(bytes);
        assert!(parsed.measurements.is_empty() && !parsed.complete);
        properties::check(bytes, &parsed, true);
    });
}
