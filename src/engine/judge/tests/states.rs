//! Reported states: which parts they blame, and which they must not blame.

use super::*;
use model::finding_class::FindingClass;
use model::tool_facts::{GpuFabric, ImexNode, ImexStatus, SmiTopology, SmiTopologyRow, ToolDevice};

const PEER: &str = "imex-peer-missing";

/// Output of `nvidia-imex-ctl -N` on a node, where `is_ready` decides the state of each member.
fn table(queried: u32, is_ready: impl Fn(u32) -> bool) -> ToolRecording {
    let member = |at: u32| ImexNode {
        index: at,
        host_name: Some(TestMachine::node(at).to_string()),
        status: Some(if is_ready(at) { "READY" } else { "UNAVAILABLE" }.to_owned()),
        ..ImexNode::default()
    };
    let nodes: Vec<ImexNode> = (0..18).map(member).collect();
    let all = nodes.iter().all(|node| node.status.as_deref() == Some("READY"));
    let mut parsed = ParseOutput { complete: true, ..ParseOutput::for_tool(Tool::NvidiaImexCtl) };
    parsed.facts.imex = Some(ImexStatus {
        status: Some(if all { "UP" } else { "DEGRADED" }.to_owned()),
        nodes,
        ..ImexStatus::default()
    });
    let node = TestMachine::node(queried);
    let file = format!("nodes/{node}/imex.txt");
    ToolRecording::new(RecordingScope::Node(node), file, parsed)
}

/// The nodes that these tables report as missing, and whether the domain has a finding.
fn missing(tables: Vec<ToolRecording>) -> (Vec<String>, bool) {
    let mut bench = TestMachine::rack();
    let mut recordings = bench.record();
    recordings.extend(tables);
    let judged = bench.judge_these(&recordings);
    let of = |class: &str| -> Vec<String> {
        let found = judged.verdicts.findings.iter().filter(|f| f.class.as_str() == class);
        found.map(|f| f.locus.node.as_ref().map_or(String::new(), ToString::to_string)).collect()
    };
    let mut nodes = of(PEER);
    nodes.sort();
    (nodes, !of("imex-domain").is_empty())
}

fn name(at: u32) -> String {
    TestMachine::node(at).to_string()
}

#[test]
fn an_unreachable_peer_is_missing_from_one_table_or_from_all() {
    let without = |queried| table(queried, |at| at != 3);
    assert_eq!(missing(vec![without(0)]), (vec![name(3)], true));
    assert_eq!(missing((0..18).map(without).collect()), (vec![name(3)], true));
    assert_eq!(missing((0..18).map(|queried| table(queried, |_| true)).collect()), (vec![], false));
}

#[test]
fn an_isolated_node_does_not_blame_the_seventeen_that_it_cannot_reach() {
    let alone = || table(5, |at| at == 5);
    // With this table alone, either the node or all others may be cut off.
    assert_eq!(missing(vec![alone()]), (vec![], true));
    let others = (0..18).filter(|at| *at != 5).map(|queried| table(queried, |at| at != 5));
    assert_eq!(missing(others.chain([alone()]).collect()), (vec![name(5)], true));
}

#[test]
fn a_peer_that_others_report_as_ready_is_not_missing_and_mutual_reports_blame_neither() {
    let tables = vec![table(0, |at| at != 3), table(1, |_| true)];
    assert_eq!(missing(tables), (vec![], true));
    let mutual = vec![table(0, |at| at != 3), table(3, |at| at != 0)];
    assert_eq!(missing(mutual), (vec![], true));
}

#[test]
fn most_of_a_domain_is_missing_if_the_remaining_nodes_agree() {
    let left = |at: u32| at < 8;
    let tables = (0..8).map(|queried| table(queried, left)).collect();
    assert_eq!(missing(tables), ((8..18).map(name).collect(), true));
}

/// A GPU of which links are in these states; the others of its node are fine.
fn linked(states: impl Fn(u32) -> Option<bool>) -> Judgement {
    let mut bench = TestMachine::hgx(1);
    let mut recordings = bench.record();
    let mut parsed = ParseOutput { complete: true, ..ParseOutput::for_tool(Tool::NvidiaSmiNvlink) };
    let link = |gpu, link| ToolNvlink {
        link,
        active: if gpu == 2 { states(link) } else { Some(true) },
        ..ToolNvlink::default()
    };
    parsed.facts.nvlinks = (0..8)
        .map(|gpu| GpuLinks {
            gpu,
            links: (0..18).map(|at| link(gpu, at)).collect(),
            ..GpuLinks::default()
        })
        .collect();
    let file = "nodes/node0001/nvlink.txt".to_owned();
    recordings.push(ToolRecording::new(RecordingScope::Node("node0001".into()), file, parsed));
    bench.judge_these(&recordings)
}

#[test]
fn a_link_without_a_reported_state_does_not_count_as_down() {
    let unreported = linked(|at| (3 < at).then_some(true));
    assert_eq!(loci(&unreported), Vec::<String>::new());
    let down = linked(|at| (3 < at).then_some(at != 9));
    assert_eq!(loci(&down), ["degraded nvlink-inactive gpu node0001:2"]);
    let summary = &down.verdicts.findings[0].summary;
    assert!(summary.contains("at most 17 of 18") && summary.ends_with("inactive: 9"), "{summary}");
    // One that is down and seventeen without a state are not all.
    let one = linked(|at| (at == 0).then_some(false));
    assert_eq!(loci(&one), ["degraded nvlink-inactive gpu node0001:2"]);
    assert_eq!(loci(&linked(|_| Some(false))), ["failed nvlink-absent gpu node0001:2"]);
}

/// The fabric section of `nvidia-smi -q` on all nodes: each GPU's state, status and ClusterUUID.
fn registered(of: impl Fn(u32, u32) -> [&'static str; 3]) -> Judgement {
    let mut bench = TestMachine::rack();
    let mut recordings = bench.record();
    for at in 0..18 {
        let gpu = |gpu| {
            let [state, status, uuid] = of(at, gpu).map(|value| Some(value.to_owned()));
            let clique_id = Some("0".to_owned());
            GpuFabric { gpu, state, status, cluster_uuid: uuid, clique_id, ..GpuFabric::default() }
        };
        let mut parsed = ParseOutput { complete: true, ..ParseOutput::for_tool(Tool::NvidiaSmiQ) };
        parsed.facts.fabric = (0..4).map(gpu).collect();
        let file = format!("nodes/{}/smi.txt", name(at));
        recordings.push(ToolRecording::new(
            RecordingScope::Node(TestMachine::node(at)),
            file,
            parsed,
        ));
    }
    bench.judge_these(&recordings)
}

#[test]
fn a_zero_uuid_is_an_unregistered_gpu_and_not_a_clique() {
    const RACK: [&str; 3] = ["Completed", "Success", "5b1c9f02-77aa-4c3e-9d10-2f6e0c4b8a91"];
    const ZERO: &str = "00000000-0000-0000-0000-000000000000";
    let starting = registered(|node, _| match node {
        4 => ["In Progress", "N/A", ZERO],
        _ => RACK,
    });
    assert_eq!(loci(&starting), Vec::<String>::new());
    assert_eq!(unknown_nodes(&starting), [name(4)]);
    let failed = registered(|node, gpu| match (node, gpu) {
        (4, 2) => ["Completed", "Insufficient Resources", ZERO],
        _ => RACK,
    });
    assert_eq!(loci(&failed), [format!("failed fabric-state gpu {}:2", name(4))]);
}

/// A box of eight GPUs, and the states that one tool reports.
fn with_states(tool: Tool, fill: impl FnOnce(&mut ParseOutput)) -> Judgement {
    let mut bench = TestMachine::hgx(1);
    let mut recordings = bench.record();
    let mut parsed = ParseOutput { complete: true, ..ParseOutput::for_tool(tool) };
    fill(&mut parsed);
    let file = "nodes/node0001/states.txt".to_owned();
    recordings.push(ToolRecording::new(RecordingScope::Node("node0001".into()), file, parsed));
    bench.judge_these(&recordings)
}

/// `nvidia-smi topo -m` of so many GPUs, with these cells.
fn matrix(gpus: u32, cell: impl Fn(u32, u32) -> &'static str) -> SmiTopology {
    let name = |gpu: u32| format!("GPU{gpu}");
    let row = |gpu: u32| SmiTopologyRow {
        device: name(gpu),
        connections: (0..gpus)
            .map(|other| if other == gpu { "X" } else { cell(gpu, other) }.to_owned())
            .collect(),
        ..SmiTopologyRow::default()
    };
    SmiTopology {
        columns: (0..gpus).map(name).collect(),
        rows: (0..gpus).map(row).collect(),
        ..SmiTopology::default()
    }
}

fn in_matrix(cell: impl Fn(u32, u32) -> &'static str) -> Judgement {
    with_states(Tool::NvidiaSmiTopo, |parsed| parsed.facts.topology = Some(matrix(8, cell)))
}

#[test]
fn a_matrix_names_the_gpu_without_links_like_a_list_of_links() {
    assert_eq!(loci(&in_matrix(|_, _| "NV18")), Vec::<String>::new());
    for gpu in [0, 5, 7] {
        let alone = in_matrix(move |a, b| if a == gpu || b == gpu { "SYS" } else { "NV18" });
        assert_eq!(loci(&alone), [format!("failed nvlink-absent gpu node0001:{gpu}")]);
        let less = in_matrix(move |a, b| if a == gpu || b == gpu { "NV16" } else { "NV18" });
        assert_eq!(loci(&less), [format!("degraded nvlink-inactive gpu node0001:{gpu}")]);
        assert_eq!(less.verdicts.findings[0].measured, Some(16.0));
    }
    let two =
        in_matrix(|a, b| if [2, 6].iter().any(|g| [a, b].contains(g)) { "PHB" } else { "NV18" });
    let both = [2, 6].map(|gpu| format!("failed nvlink-absent gpu node0001:{gpu}"));
    assert_eq!(loci(&two), both);
}

#[test]
fn a_matrix_without_a_fully_linked_gpu_blames_none() {
    let none = in_matrix(|_, _| "SYS");
    let all_less = in_matrix(|_, _| "NV12");
    let halves = in_matrix(|a, b| if (a < 4) == (b < 4) { "NV12" } else { "SYS" });
    for judged in [none, all_less, halves] {
        assert_eq!(loci(&judged), Vec::<String>::new());
        assert_eq!(unknown_nodes(&judged), ["node0001"]);
    }
    // Peer access is separate, and a truncated row carries no information.
    let peers = with_states(Tool::NvidiaSmiTopo, |parsed| {
        parsed.facts.topology = Some(matrix(8, |_, _| "OK"));
        parsed.facts.parameters.insert("topology.matrix".to_owned(), "p2p".to_owned());
    });
    assert_eq!((loci(&peers), unknown_nodes(&peers)), (vec![], vec![]));
    let cut = with_states(Tool::NvidiaSmiTopo, |parsed| {
        let mut topology = matrix(8, |_, _| "NV18");
        topology.rows[5].connections = vec![String::new(); 8];
        parsed.facts.topology = Some(topology);
        parsed.problems.push(OutputProblem::new(OutputProblemKind::Truncated, "a row is cut"));
        parsed.complete = false;
    });
    assert_eq!((loci(&cut), unknown_nodes(&cut)), (vec![], vec!["node0001"]));
}

#[test]
fn seven_of_eight_gpus_are_the_same_finding_from_every_tool() {
    let links =
        || (0..18).map(|link| ToolNvlink { link, active: Some(true), ..ToolNvlink::default() });
    let listed = |gpu| GpuLinks { gpu, links: links().collect(), ..GpuLinks::default() };
    let device = |index| ToolDevice { index, ..ToolDevice::default() };
    let missing = ["failed gpu-missing node node0001"];
    let nvlink = |gpus: Vec<u32>| {
        with_states(Tool::NvidiaSmiNvlink, |parsed| {
            parsed.facts.nvlinks = gpus.into_iter().map(listed).collect();
        })
    };
    assert_eq!(loci(&nvlink((0..7).collect())), missing);
    let topo =
        with_states(Tool::NvidiaSmiTopo, |p| p.facts.topology = Some(matrix(7, |_, _| "NV18")));
    assert_eq!(loci(&topo), missing);
    let query = with_states(Tool::NvidiaSmiQ, |p| p.facts.devices = (0..7).map(device).collect());
    assert_eq!(loci(&query), missing);
    // With all eight, or one that was selected, nothing is missing.
    for gpus in [(0..8).collect(), vec![3]] {
        assert_eq!(loci(&nvlink(gpus)), Vec::<String>::new());
    }
}

#[test]
fn an_inactive_link_counts_in_a_truncated_list() {
    let cut = |states: Vec<bool>| {
        with_states(Tool::NvidiaSmiNvlink, |parsed| {
            let links = (0..).zip(states).map(|(link, active)| ToolNvlink {
                link,
                active: Some(active),
                ..ToolNvlink::default()
            });
            parsed.facts.nvlinks =
                vec![GpuLinks { gpu: 4, links: links.collect(), ..GpuLinks::default() }];
            parsed
                .problems
                .push(OutputProblem::new(OutputProblemKind::Truncated, "the last line breaks off"));
            parsed.complete = false;
        })
    };
    let inactive = ["degraded nvlink-inactive gpu node0001:4"];
    assert_eq!(loci(&cut(vec![true, false, true])), inactive);
    assert_eq!(loci(&cut(vec![false])), inactive);
    assert_eq!(cut(vec![false]).verdicts.findings[0].measured, Some(17.0));
    assert_eq!(loci(&cut(vec![true; 5])), Vec::<String>::new());
    assert_eq!(loci(&cut(vec![false; 18])), ["failed nvlink-absent gpu node0001:4"]);
}

#[test]
fn failed_imports_from_a_node_without_imex_are_not_another_domain() {
    let refused = |a: u32, b: u32| {
        let mut parsed = ParseOutput::for_tool(Tool::Nvbandwidth);
        let mut problem = OutputProblem::new(OutputProblemKind::Error, "the import was refused");
        problem.code = Some("CUDA_ERROR_INVALID_HANDLE".to_owned());
        parsed.problems.push(problem);
        let file = format!("domains/rack/{a}-{b}.txt");
        let nodes = vec![TestMachine::node(a), TestMachine::node(b)];
        let mut recording = ToolRecording::new(RecordingScope::Domain("rack".into()), file, parsed);
        recording.nodes = nodes;
        recording
    };
    let classes = |with_table: bool| {
        let mut bench = TestMachine::rack();
        let mut recordings = bench.record();
        let RecordingScope::Domain(domain) = recordings
            .iter()
            .map(|r| r.scope.clone())
            .find(|scope| matches!(scope, RecordingScope::Domain(_)))
            .expect("a run of all")
        else {
            unreachable!()
        };
        for other in (0..18).filter(|at| *at != 3) {
            let mut run = refused(3.min(other), 3.max(other));
            run.scope = RecordingScope::Domain(domain.clone());
            recordings.push(run);
        }
        if with_table {
            recordings
                .extend((0..18).filter(|at| *at != 3).map(|queried| table(queried, |at| at != 3)));
        }
        let judged = bench.judge_these(&recordings);
        let of_node = judged.verdicts.findings.iter().filter(|f| f.locus.node.is_some());
        of_node.map(|f| f.class.clone()).collect::<Vec<_>>()
    };
    let explained = classes(true);
    assert!(explained.iter().any(|it| it.as_str() == PEER), "{explained:?}");
    assert!(!explained.contains(&FindingClass::WrongDomain), "{explained:?}");
}
