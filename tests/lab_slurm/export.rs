//! Exports for Slurm, read by a real one: a topology with blocks as measured, a filter that its
//! commands run, and a host file that srun follows.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use engine::export::{DegradedPlacement, ExportOptions, find_target};
use engine::place::map::{MapInput, VerifiedMap};
use engine::thresholds::builtin;
use model::id::NodeName;
use model::measured_cell::MeasuredCell;
use model::run::{Run, RunInfo};
use model::source_report::SourceKind;
use model::unit::Unit;
use model::verdict::{NodeVerdict, Outcome, Verdicts};
use readers::claims::claims_file;
use readers::claims::slurm::partitions::partition_of_topology;

use super::{Lab, blocks, lab, of};

/// The two racks of the lab, where node0018 was measured in the second and node0005 has a slow
/// link.
fn map() -> VerifiedMap {
    let text = "[[domain]]\nname = \"block01\"\nnodes = \"node[0001-0018]\"\nplatform = \"gb200-nvl72\"\ngpus_per_node = 4\n\
                [[domain]]\nname = \"block02\"\nnodes = \"node[0019-0036]\"\nplatform = \"gb200-nvl72\"\ngpus_per_node = 4\n";
    let claims = claims_file::parse("claims.toml", text).expect("good claims");
    let mut cells = Vec::new();
    for domain in &claims.domains {
        for (a, b) in domain.nodes.iter().flat_map(|a| domain.nodes.iter().map(move |b| (a, b))) {
            cells.push(MeasuredCell {
                domain: Some(domain.name.clone()),
                stage: Some(2),
                testcase: "multinode_device_to_device_memcpy_read_ce".into(),
                src_node: Some(a.clone()),
                src_gpu: Some(0),
                dst_node: Some(b.clone()),
                dst_gpu: Some(u32::from(a == b)),
                rail: None,
                reading: 0,
                value: Some(770.0),
                unit: Unit::GigabytesPerSecond,
                expected: Some(770.0),
                ratio: Some(1.0),
                outcome: Outcome::Pass,
            });
        }
    }
    let nodes = claims.domains.iter().flat_map(|domain| &domain.nodes).map(|node| NodeVerdict {
        node: node.clone(),
        domain: None,
        outcome: if node.as_str() == "node0005" { Outcome::Degraded } else { Outcome::Pass },
        reason: "made up".to_owned(),
        kept_by: None,
        detectable: None,
        detectable_together: None,
        fabric_detectable: None,
        scope: None,
    });
    let verdicts = Verdicts {
        thresholds_digest: "0011223344556677".to_owned(),
        nodes: nodes.collect(),
        ..Verdicts::empty(Outcome::Degraded)
    };
    let info = RunInfo {
        id: "20260304-050607-abcdef".to_owned(),
        created: "2026-03-04T05:06:07Z".to_owned(),
        profile: "admit".to_owned(),
        source: "made up".to_owned(),
        version: "0.1.0".to_owned(),
        simulated: false,
    };
    let run = Run { info, claims, cells, verdicts, actions: None };
    let mut map = VerifiedMap::from_run(&MapInput {
        run: &run,
        is_complete: true,
        is_simulated: false,
        machines: &[],
        recordings: &[],
        catalogue: builtin::builtin_catalogue(),
    });
    // As `act::topology` reports a node that another run measured there.
    let moved = NodeName::from("node0018");
    for domain in &mut map.domains {
        match domain.name.as_str() {
            "block01" => domain.measured.remove(&moved),
            _ => domain.measured.insert(moved.clone()),
        };
    }
    let member = map.members.get_mut(&moved).expect("it");
    (member.domain, member.is_misplaced) = (Some("block02".to_owned()), true);
    map
}

fn export(to: &str, options: &ExportOptions) -> String {
    let export = (find_target(to).expect("a target").write)(&map(), options);
    let export = export.unwrap_or_else(|why| panic!("{to}: {why}"));
    String::from_utf8(export.files[0].bytes.clone()).expect("text")
}

fn etc(lab: &Lab) -> PathBuf {
    PathBuf::from(&lab.run).with_file_name("etc")
}

/// Saved files of the lab, restored at the end.
struct Put<'l> {
    lab: &'l Lab,
    before: BTreeMap<PathBuf, Option<String>>,
}

impl<'l> Put<'l> {
    fn on(lab: &'l Lab) -> Self {
        Self { lab, before: BTreeMap::new() }
    }

    fn file(&mut self, name: &str, text: &str) {
        let path = etc(self.lab).join(name);
        let before = std::fs::read_to_string(&path).ok();
        std::fs::write(&path, text).expect("written");
        self.before.entry(path).or_insert(before);
    }
}

impl Drop for Put<'_> {
    fn drop(&mut self) {
        for (path, text) in &self.before {
            match text {
                Some(text) => std::fs::write(path, text).expect("written"),
                None => std::fs::remove_file(path).expect("removed"),
            }
        }
        self.lab.finished(&["scancel", "--user=root"]);
        self.lab.finished(&["scontrol", "reconfigure"]);
    }
}

fn names(list: &str) -> BTreeSet<NodeName> {
    let names = model::hostlist::expand(list).expect("a host list");
    names.into_iter().map(NodeName::from).collect()
}

#[test]
fn slurmctld_has_the_blocks_as_they_were_measured() {
    let Some(lab) = lab() else { return };
    let mut put = Put::on(&lab);
    let (file, form) =
        if lab.has_yaml() { ("topology.yaml", "yaml") } else { ("topology.conf", "conf") };
    let topology = lab.has_yaml().then(|| "topo-block".to_owned());
    for (degraded, expected) in [
        (
            DegradedPlacement::Keep,
            vec![("block01", "node[0001-0017]"), ("block02", "node[0018-0036]")],
        ),
        (
            DegradedPlacement::OwnBlock,
            vec![
                ("block01", "node[0001-0004,0006-0017]"),
                ("block01.degraded", "node0005"),
                ("block02", "node[0018-0036]"),
            ],
        ),
    ] {
        let options = ExportOptions {
            form: Some(form.to_owned()),
            topology: topology.clone(),
            degraded,
            ..ExportOptions::default()
        };
        let mut text = export("slurm-topology", &options);
        if lab.has_yaml() {
            // A partition of the lab names the other topology of its file.
            text.push_str("- topology: topo-flat\n  cluster_default: false\n  flat: true\n");
        }
        put.file(file, &text);
        lab.run(&["scontrol", "reconfigure"]);
        lab.wait_for("the blocks", || {
            let answers = lab.ask();
            let shown = blocks(of(&answers, SourceKind::SlurmTopology));
            let shown: Vec<(&str, BTreeSet<NodeName>)> = shown
                .into_iter()
                .map(|(name, nodes)| (name, nodes.iter().cloned().collect()))
                .collect();
            let meant: Vec<(&str, BTreeSet<NodeName>)> =
                expected.iter().map(|(name, list)| (*name, names(list))).collect();
            shown == meant
        });
    }
}

/// Defect 9 of the operator's review.
#[test]
fn defect_9_a_topology_that_a_partition_names_is_never_left_out() {
    let Some(lab) = lab() else { return };
    if !lab.has_yaml() {
        return;
    }
    let answers = lab.ask();
    let settings = &of(&answers, SourceKind::SlurmPartitions).settings;
    let named = settings.iter().filter_map(|(key, topology)| {
        Some((partition_of_topology(key)?.to_owned(), topology.clone()))
    });
    let mut map = map();
    map.partitions = Some(named.collect());
    let write = |options: &ExportOptions| {
        (find_target("slurm-topology").expect("a target").write)(&map, options)
    };
    let message = write(&ExportOptions::default()).expect_err("refused").to_string();
    assert!(message.contains("topo-flat") && message.contains("--from FILE"), "{message}");
    // The site's own file, changed, is accepted.
    let file = std::fs::read_to_string(etc(&lab).join("topology.yaml")).expect("the lab's");
    let whole =
        write(&ExportOptions { from: Some(file), ..ExportOptions::default() }).expect("written");
    let text = String::from_utf8(whole.files[0].bytes.clone()).expect("text");
    assert!(text.contains("topo-flat"), "{text}");
    let mut put = Put::on(&lab);
    put.file("topology.yaml", &text);
    lab.run(&["scontrol", "reconfigure"]);
    lab.wait_for("the moved node", || {
        let answers = lab.ask();
        let shown = blocks(of(&answers, SourceKind::SlurmTopology));
        shown.iter().any(|(name, nodes)| *name == "block02" && nodes.len() == 19)
    });
}

#[test]
fn sbatch_runs_the_filter_and_jobs_larger_than_any_block_are_refused() {
    let Some(lab) = lab() else { return };
    let mut put = Put::on(&lab);
    let conf = std::fs::read_to_string(etc(&lab).join("slurm.conf")).expect("slurm.conf");
    put.file("slurm.conf", &format!("{conf}\nCliFilterPlugins=lua\n"));
    // Both streams: a filter writes its messages to standard error.
    let asked = |words: &str| {
        let script = format!("sbatch --test-only -o /dev/null {words} --wrap 'true' 2>&1");
        lab.finished(&["sh", "-c", &script])
    };
    for (enforce, refused) in [(false, false), (true, true)] {
        put.file(
            "cli_filter.lua",
            &export("slurm-cli-filter", &ExportOptions { enforce, ..ExportOptions::default() }),
        );
        // The second block has 19 nodes, the first 16 in order.
        let (message, ending) = asked("-N20 --segment=20");
        assert!(
            message.contains("--segment=20: no NVLink domain has that many usable nodes"),
            "{message}"
        );
        assert!(message.contains("run 20260304-050607-abcdef"), "{message}");
        assert!(!refused || !ending.is_success(), "{message}");
        assert_eq!(
            message.contains("cli_filter plugin terminated with error"),
            refused,
            "{message}"
        );
        for well in ["-N16 --segment=16", "-N1", "-N8 --segment=4", ""] {
            let (message, _) = asked(well);
            assert!(!message.contains("fabricgate"), "{well}: {message}");
        }
    }
}

#[test]
fn srun_places_tasks_in_the_order_of_the_host_file() {
    let Some(lab) = lab() else { return };
    // The degraded node comes last, unlike in any of Slurm's own orders.
    let options = ExportOptions {
        nodes: Some(names("node[0004-0007]")),
        form: Some("slurm".to_owned()),
        gpus_per_node: Some(2),
        ..ExportOptions::default()
    };
    let hosts = export("ranks", &options);
    assert!(hosts.ends_with("node0007\nnode0005\nnode0005\n"), "{hosts}");
    let mut put = Put::on(&lab);
    put.file("ranks.hosts", &hosts);
    // Inside an allocation: with blocks in force Slurm does not create this distribution.
    let script = "SLURM_HOSTFILE=/etc/slurm/ranks.hosts srun --mpi=none -n8 --distribution=arbitrary \
                  sh -c 'echo $SLURM_PROCID $SLURMD_NODENAME' 2>&1";
    let nodes = ["-N4", "-n8", "-w", "node[0004-0007]"];
    let output =
        lab.run(&[&["salloc", "-Q", "-p", "main"], &nodes[..], &["sh", "-c", script]].concat());
    let mut tasks: Vec<(u32, &str)> = output
        .lines()
        .filter_map(|line| line.split_once(' '))
        .filter_map(|(rank, node)| Some((rank.parse().ok()?, node)))
        .collect();
    tasks.sort_unstable();
    let placed: Vec<&str> = tasks.into_iter().map(|(_, node)| node).collect();
    assert_eq!(placed, hosts.lines().collect::<Vec<_>>(), "{output}");
}
