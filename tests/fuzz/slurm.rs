//! All readers of Slurm's files and answers, with damaged input.
//!
//! Each input goes through all readers, also those of other formats: users sometimes name the
//! wrong file.

use std::collections::BTreeSet;

use model::source_report::{NodeGroupKind, SourceReport};
use readers::claims::slurm::{
    config, nodes, partitions, show_topology, sinfo, topology_conf, topology_yaml,
};

use super::dice::Dice;
use super::fuzz;
use super::mutation::mutate;

const YAML: &[&str] = &[
    "---\n- topology: racks\n  cluster_default: true\n  block:\n    block_sizes: [2, 4]\n    \
     blocks:\n      - block: r1\n        nodes: tray[01-02]\n      - block: r2\n        \
     nodes: tray[03-04]\n      - block: spare\n- topology: none\n  flat: true\n",
    "- topology: fabric\n  tree:\n    switches:\n      - switch: top\n        children: leaf[1-2]\n      \
     - {switch: leaf1, nodes: 'a[1-2]'}\n      - &x {switch: leaf2, nodes: [a3, a4]}\n      - *x\n\
     - topology: circle\n  ring: {rings: [{ring: r, nodes: 'a[1-4]'}]}\n",
];

const CONF: &[&str] = &[
    "# r1=uuid.7\nBlockName=r1 Nodes=tray[01-02]\nBlockName=r2 \\\n  Nodes=tray[03-04] # two\n\
     #BlockName=r3 Nodes=tray05\nBlockSizes=2,4\n",
    "SwitchName=top Switches=leaf[1-2] LinkSpeed=900\nSwitchName=leaf1 Nodes=a[1-2]\n\
     SwitchName=leaf2 Nodes=a[3-4]\nInclude more.conf\nRingName=r Nodes=a[1-4]\n",
];

const TOPOLOGY: &[&str] = &[
    "BlockName=r1 BlockIndex=0 Nodes=tray[01-02] BlockSize=2\nBlockName=spare BlockIndex=1 Nodes= \
     BlockSize=2\nAggregatedBlock=r1,spare BlockIndex=2 Nodes=tray[01-02] BlockSize=4\n",
    "SwitchName=l1 Level=0 LinkSpeed=1 Nodes=a[1-2]\nSwitchName=l2 Level=0 LinkSpeed=1 Nodes=a3\n\
     SwitchName=top Level=1 LinkSpeed=1 Nodes=a[1-3] Switches=l[1-2]\n",
];

const NODES: &[&str] = &[
    "{\"nodes\":[{\"name\":\"t1\",\"hostname\":\"t1.lab\",\"state\":[\"MIXED\",\"DRAIN\"],\
     \"gres\":\"gpu:gb200:4(S:0-1)\",\"tres\":\"cpu=4,gres/gpu=4\",\"features\":[\"a\"],\
     \"reason\":\"psu\",\"alloc_cpus\":2,\"topology\":\"racks:r2\",\"partitions\":[\"main\"],\
     \"slurmd_start_time\":{\"set\":true,\"infinite\":false,\"number\":1}}],\
     \"meta\":{\"plugin\":{\"data_parser\":\"v\"},\"slurm\":{\"release\":\"26.05.5\"}},\
     \"errors\":[{\"description\":\"x\",\"error_number\":2010}],\"warnings\":[]}",
    "NodeName=t1 Arch=aarch64 \n   CPUAlloc=0 CPUTot=4\n   Gres=gpu:4\n   NodeAddr=10.0.0.1\n   \
     State=IDLE+DRAIN Weight=1\n   Partitions=main \n   Reason=one [ann@2026-01-01T00:00:00]\n          \
     two State=DOWN\n   Comment=c Extra={}\n\nNodeName=t2 Arch=x State=DOWN* Topology=racks:r1,b:c:3\n",
];

const OTHERS: &[&str] = &[
    "PartitionName=main\n   AllowGroups=ALL AllocNodes=ALL ExclusiveTopo=YES\n   Nodes=t[1-4]\n   \
     State=UP TotalNodes=4\n   Topology=racks\n",
    "{\"partitions\":[{\"name\":\"main\",\"nodes\":{\"configured\":\"t[1-4]\"},\"node_sets\":\"ALL\",\
     \"topology\":\"racks\",\"partition\":{\"state\":[\"UP\"]}}],\"errors\":[]}",
    "Configuration data as of 2026-11-21T04:00:00\nClusterName = lab\nSLURM_VERSION = 26.05.5\n\
     SwitchType = switch/nvidia_imex\nSlurmctldHost[0] = head\nSlurmctld(primary) at head is DOWN\n",
    "{\"sinfo\":[{\"node\":{\"state\":[\"IDLE\"]},\"nodes\":{\"nodes\":[\"t1\",\"t2\"]},\
     \"gres\":{\"total\":\"gpu:4\"},\"partition\":{\"name\":\"main\"}}]}",
    "PARTITION AVAIL  TIMELIMIT  NODES  STATE NODELIST\nmain*  up   infinite  1   drng t4\n\
     main*  up   infinite  3   idle t[1-3]\n",
    "t[01-02]|2|part1|None|idle\nt03|1|part2|down|down*",
    // Found by a fuzzer: a node that names one unit twice, and a state with a control character.
    "NodeName=t1 Arch=x\n   State=IDLE\n   Topology=racks:r2,x,racks:r2\n\n",
    "NodeName=t1 Arch=x\n   State=DOWN* To\u{8c}x:r1 \n   Partitions=main\n\n",
    "REASON               USER      TIMESTAMP           NODELIST\n\
     hw ticket: swap      slurm     2026-11-21T04:53:58 t4\n",
];

const TOKENS: &[&str] = &[
    "Nodes=",
    "SwitchName=",
    "BlockName=x",
    "Switches=top,leaf1",
    "BlockSizes=0,3",
    "NodeName=",
    "State=",
    "Reason=",
    "[1-100000]",
    "[1-9][1-9]",
    "t[1-",
    "*x",
    "&x",
    "- *x",
    "\t",
    "\\\n",
    "#",
    "Include self",
    "{}",
    "null",
    "|",
    "STATE",
    "NODELIST",
    "(null)",
    "ALL",
    "topology:",
    "cluster_default: true",
    "\u{feff}",
    "é",
    " = ",
];

fn texts(of: &[&[&str]]) -> Vec<Vec<u8>> {
    of.iter().flat_map(|texts| texts.iter()).map(|text| text.as_bytes().to_vec()).collect()
}

/// Good texts of every kind.
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    texts(&[YAML, CONF, TOPOLOGY, NODES, OTHERS])
}

/// Invariants of every report, from any input.
fn holds(report: &SourceReport) {
    assert!(report.problems.len() <= 201 && report.notes.len() <= 201);
    assert!(report.problems.iter().all(|p| !p.message.is_empty()));
    assert!(report.problems.iter().all(|p| p.at.as_ref().is_none_or(|at| !at.is_empty())));
    let mut names = BTreeSet::new();
    for group in &report.groups {
        let nodes: BTreeSet<_> = group.nodes.iter().collect();
        let is_partition = group.kind == NodeGroupKind::Partition;
        assert!(is_partition || nodes.len() == group.nodes.len(), "{group:?}");
        assert!(nodes.iter().all(|node| !node.as_str().is_empty()));
        let key = (group.kind, &group.topology, &group.scheme, &group.name);
        assert!(names.insert(key) || is_partition, "twice: {key:?}");
    }
    assert!(report.nodes.keys().all(|node| !node.as_str().is_empty()));
    assert!(
        !report.groups.is_empty()
            || !report.nodes.is_empty()
            || !report.settings.is_empty()
            || !report.notes.is_empty()
            || !report.problems.is_empty(),
        "a reader gave neither a report nor a problem"
    );
}

/// Gives an input to every reader.
pub(crate) fn all_readers(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let mut opened = 0;
    let mut include = |_: &str| {
        opened += 1;
        if opened % 3 == 0 { Err("no such file".to_owned()) } else { Ok(text.to_string()) }
    };
    holds(&topology_conf::read("f", &text, &mut include));
    assert!(opened <= 100, "includes end");
    let read: [fn(&str, &str) -> SourceReport; 6] = [
        topology_yaml::read,
        show_topology::read,
        nodes::read,
        partitions::read,
        config::read,
        sinfo::read,
    ];
    for read in read {
        holds(&read("f", &text));
    }
    known(&text);
}

/// Number of readers that recognise a text. Pieces of two texts may be recognised by two.
fn known(text: &str) -> usize {
    let recognises: [fn(&str) -> bool; 7] = [
        topology_conf::recognises,
        topology_yaml::recognises,
        show_topology::recognises,
        nodes::recognises,
        partitions::recognises,
        config::recognises,
        sinfo::recognises,
    ];
    recognises.iter().filter(|recognises| recognises(text)).count()
}

fn target(name: &'static str, iterations: u64, own: &[&[&str]]) {
    let own = texts(own);
    let all = seeds();
    for good in &own {
        assert_eq!(known(&String::from_utf8_lossy(good)), 1);
        all_readers(good);
    }
    let make = move |dice: &mut Dice| mutate(dice, &own, &all, TOKENS);
    fuzz(name, iterations, make, all_readers);
}

#[test]
fn topology_files_of_slurm_never_break_a_reader() {
    target("slurm-files", 500, &[YAML, CONF]);
}

#[test]
fn answers_of_slurm_never_break_a_reader() {
    target("slurm-answers", 500, &[TOPOLOGY, NODES, OTHERS]);
}

/// Pieces that take long to read when a text consists only of them, on one line, if a reader
/// scans repeatedly from its beginning.
const REPEATED: &[&str] = &[
    " ",
    "a ",
    "=",
    "a=1 ",
    "a=\" ",
    "BlockName=a x=1 ",
    "\\\n",
    "[",
    "- ",
    "{a: 1},",
    "a|",
    "idle ",
    "t[1-100000]|100000|idle\n",
    "BlockName=b Nodes=n[1-100000]\n",
    "NodeName=a Reason= [a@1T",
    "   Reason= [a@1T] Comment=",
    "PartitionName=a Nodes=b ",
];

#[test]
fn a_book_of_one_line_is_read_to_its_end() {
    let make = |dice: &mut Dice| {
        let piece = REPEATED[dice.below(REPEATED.len())];
        piece.repeat(150_000 / piece.len()).into_bytes()
    };
    fuzz("slurm-lines", 25, make, all_readers);
}
