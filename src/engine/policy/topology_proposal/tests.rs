//! Proposals of topology files, in both forms.

use proptest::prelude::*;

use super::*;
use model::claims::{ClaimedDomain, Claims, GroupAssertion};
use model::finding_class::FindingClass;
use model::source_report::ClaimBasis;
use model::verdict::{Finding, Locus, LocusKind, Outcome, Verdicts};

const YAML: &str = "---
# Racks 1 and 2. # nodes: node9
- topology: topo-block
  cluster_default: true
  block:
    block_sizes: [4, 8]
    blocks:
      - block: block01   # rack 1
        nodes: node[01-05]   # one spare

      - nodes: \"node[06-09]\"
        block: block02
- topology: topo-flat
  cluster_default: false
  flat: true
";

const CONF: &str = "# Racks.
BlockName=block01 Nodes=node[01-05] # one spare
blockname=block02 \\
   nodes=node[06-09]
BlockSizes=4,8
";

const NEW: SlurmVersion = SlurmVersion { year: 26, month: 5 };
const OLD: SlurmVersion = SlurmVersion { year: 24, month: 11 };

fn nodes(list: &str) -> BTreeSet<NodeName> {
    hostlist::expand(list).expect("a list").into_iter().map(NodeName::from).collect()
}

fn ground(version: SlurmVersion) -> TopologyContext {
    TopologyContext { version: Some(version), nodes: nodes("node[01-09]") }
}

fn wanted(moves: &[(&str, &str)]) -> TopologyRequest {
    let moves = moves.iter().map(|(node, block)| (NodeName::from(*node), (*block).to_owned()));
    TopologyRequest { topology: None, moves: moves.collect() }
}

fn proposed(text: &str, moves: &[(&str, &str)], version: SlurmVersion) -> TopologyProposal {
    propose_topology(text, &wanted(moves), &ground(version)).expect("a proposal")
}

fn why_not(text: &str, moves: &[(&str, &str)]) -> String {
    propose_topology(text, &wanted(moves), &ground(NEW)).expect_err("refused").to_string()
}

fn kinds(proposal: &TopologyProposal) -> Vec<(FaultKind, bool)> {
    proposal.faults.iter().map(|fault| (fault.kind, fault.forbids)).collect()
}

#[test]
fn only_the_two_host_lists_change() {
    let yaml = proposed(YAML, &[("node05", "block02")], NEW);
    let expected = YAML
        .replace("nodes: node[01-05]   #", "nodes: node[01-04]   #")
        .replace("node[06-09]\"", "node[05-09]\"");
    assert_eq!(yaml.after, expected);
    let conf = proposed(CONF, &[("node05", "block02")], OLD);
    let expected = CONF.replace("[01-05]", "[01-04]").replace("[06-09]", "[05-09]");
    assert_eq!(conf.after, expected);
    for proposal in [yaml, conf] {
        assert_eq!((proposal.faults.len(), proposal.is_change()), (0, true));
        assert_eq!(proposal.moved[0].from, ["block01"]);
        let changed = proposal.diff.lines().filter(|line| line.starts_with(['+', '-']));
        assert_eq!(changed.count(), 6, "{}", proposal.diff);
        assert_eq!(proposal.blocks["block02"], nodes("node[05-09]"));
    }
}

#[test]
fn line_ends_marks_and_missing_ends_stay() {
    for text in [YAML, CONF] {
        let text = format!("\u{feff}{}", text.replace('\n', "\r\n").trim_end());
        let proposal = proposed(&text, &[("node05", "block02")], NEW);
        let expected = text
            .replace("node[01-05]   #", "node[01-04]   #")
            .replace("Nodes=node[01-05]", "Nodes=node[01-04]")
            .replace("[06-09]", "[05-09]");
        assert_eq!(proposal.after, expected);
    }
}

#[test]
fn a_node_in_its_block_is_not_moved() {
    let proposal = proposed(YAML, &[("node01", "block01")], NEW);
    assert!(!proposal.is_change());
    assert_eq!((proposal.after.as_str(), proposal.diff.as_str()), (YAML, ""));
}

#[test]
fn a_node_in_two_blocks_or_in_none_comes_into_one() {
    let both = YAML.replace("node[06-09]", "node[05-08]");
    let proposal = proposed(&both, &[("node05", "block02"), ("node09", "block02")], NEW);
    assert_eq!(proposal.moved[0].from, ["block01", "block02"]);
    assert_eq!(proposal.moved[1].from, Vec::<String>::new());
    assert_eq!(kinds(&proposal), []);
    let halfway = proposed(&both, &[("node09", "block02")], NEW);
    assert_eq!(kinds(&halfway), [(FaultKind::File, true)]);
}

#[test]
fn edits_that_would_change_other_text_are_refused() {
    let moves = [("node05", "block02")];
    for (text, why) in [
        (YAML.replace("node[01-05]   #", "[node01, node05]   #"), "not a single host list"),
        (YAML.replace("\"node[06-09]\"", "*x").replace("node[01-05]", "&x node[01-05]"), ""),
        (YAML.replace("\"node[06-09]\"", ">\n          node[06-09]"), "one line"),
        (CONF.replace("nodes=node[06-09]", "nodes=node[06\\\n-09]"), "several lines"),
        (format!("{CONF}Include more.conf\n"), "another file"),
        (CONF.replace("block02", "block01"), "block block02 for node05 does not exist"),
        ("SwitchName=a Nodes=node[01-05]\n".to_owned(), "no blocks"),
        ("hello".to_owned(), "neither"),
        (String::new(), "neither"),
    ] {
        let reason = why_not(&text, &moves);
        assert!(reason.contains(why), "{why}: {reason}");
    }
    for (moves, why) in [
        ([("node05", "block03")], "block block03 for node05 does not exist"),
        ([("node[05-06]", "block02")], "not the name of one node"),
        ([("node05\n", "block02")], "not the name of one node"),
    ] {
        let reason = why_not(YAML, &moves);
        assert!(reason.contains(why), "{why}: {reason}");
    }
    let all: Vec<(&str, &str)> =
        ["node06", "node07", "node08", "node09"].map(|node| (node, "block01")).to_vec();
    assert!(why_not(YAML, &all).contains("without a node"));
}

#[test]
fn the_topology_is_the_default_unless_one_is_named() {
    let other = "- topology: other\n  block:\n    block_sizes: [4]\n    blocks:\n      \
                 - {block: a, nodes: 'node[01-05]'}\n      - {block: b, nodes: 'node[06-09]'}\n";
    let text = format!("{YAML}{other}");
    let proposal = proposed(&text, &[("node05", "block02")], NEW);
    assert_eq!(proposal.topology.as_deref(), Some("topo-block"));
    assert!(proposal.after.ends_with(other));
    let named = |name: &str, block: &str| {
        let moves = wanted(&[("node05", block)]).moves;
        propose_topology(
            &text,
            &TopologyRequest { topology: Some(name.to_owned()), moves },
            &ground(NEW),
        )
    };
    let proposal = named("other", "b").expect("a proposal");
    assert!(proposal.after.starts_with(YAML) && proposal.after.ends_with("'node[05-09]'}\n"));
    assert!(named("topo-flat", "b").is_err() && named("none", "b").is_err());
}

#[test]
fn a_block_below_its_size_is_for_new_versions_only() {
    let moves = [("node06", "block01")];
    let old = proposed(CONF, &moves, OLD);
    assert_eq!(kinds(&old), [(FaultKind::Small, true)]);
    assert!(old.faults[0].what.contains("block02 has 3 nodes, fewer than the base block size 4"));
    assert_eq!(kinds(&proposed(YAML, &moves, NEW)), []);
    // For an unknown version, the strictest rules apply.
    let unknown = TopologyContext { version: None, ..ground(NEW) };
    let proposal = propose_topology(YAML, &wanted(&moves), &unknown).expect("a proposal");
    assert_eq!(proposal.blocking_faults().len(), 1);
    assert_eq!(kinds(&proposed(YAML, &[("node05", "block02")], OLD)), [(FaultKind::Version, true)]);
}

#[test]
fn jobs_that_need_the_largest_block_are_warned_of() {
    let shrinking = proposed(YAML, &[("node05", "block02")], NEW);
    assert_eq!(shrinking.remarks.iter().filter(|it| it.contains("more than")).count(), 0);
    let text = YAML.replace("node[01-05]", "node[01-06]").replace("node[06-09]", "node[07-09]");
    let large = proposed(&text, &[("node06", "block02"), ("node05", "block02")], NEW);
    assert!(large.remarks.iter().all(|it| !it.contains("no block has")), "they take several");
    let text = text.replace("[4, 8]", "[6]");
    let proposal = proposed(&text, &[("node06", "block02"), ("node05", "block02")], NEW);
    assert!(proposal.remarks.iter().any(|it| it.contains("no block has more than 5 nodes")));
}

#[test]
fn all_faults_of_the_result_are_reported_and_existing_faults_forbid_nothing() {
    let proposal = |text: &str, known: &str| {
        let ground = TopologyContext { version: Some(NEW), nodes: nodes(known) };
        propose_topology(text, &wanted(&[("node05", "block02")]), &ground).expect("a proposal")
    };
    let strange = proposal(YAML, "node[01-04,06-10]");
    assert_eq!(kinds(&strange), [(FaultKind::Stranger, false), (FaultKind::Homeless, false)]);
    assert!(strange.faults.iter().all(|fault| fault.is_old));
    let new = TopologyContext { version: Some(NEW), nodes: nodes("node[01-09]") };
    let foreign =
        propose_topology(YAML, &wanted(&[("node77", "block02")]), &new).expect("a proposal");
    assert_eq!(kinds(&foreign), [(FaultKind::Stranger, true)]);
    let sizes = proposal(&YAML.replace("[4, 8]", "[4, 12]"), "node[01-09]");
    assert_eq!(kinds(&sizes), [(FaultKind::File, true)]);
    let twice = proposal(
        &YAML.replace("cluster_default: true", "cluster_default: true\n  block: {}"),
        "node[01-09]",
    );
    assert!(!twice.blocking_faults().is_empty());
    let same = YAML.replace(
        "- topology: topo-flat\n",
        "      - {block: block03, nodes: 'node01,node01'}\n- topology: topo-flat\n",
    );
    let same = proposal(&same, "node[01-09]");
    assert_eq!(kinds(&same), [(FaultKind::File, true), (FaultKind::Twice, true)]);
    // New versions accept a spare block; old versions do not start with one.
    let spare = format!("{CONF}BlockName=spare\n");
    assert_eq!(
        kinds(&proposed(&spare, &[("node05", "block02")], NEW)),
        [(FaultKind::Empty, false)]
    );
    assert_eq!(kinds(&proposed(&spare, &[("node05", "block02")], OLD)), [(FaultKind::Empty, true)]);
}

#[test]
fn versions_are_read_as_programs_print_them() {
    assert_eq!(SlurmVersion::parse("slurm-wlm 26.05.5"), Some(NEW));
    assert_eq!(SlurmVersion::parse("slurm 24.11.5-Bright1\n"), Some(OLD));
    for text in ["", "slurm", "slurm x.y", "26"] {
        assert_eq!(SlurmVersion::parse(text), None, "{text}");
    }
    assert!(NEW.has_yaml() && !OLD.has_yaml() && SlurmVersion { year: 25, month: 5 }.has_yaml());
}

fn wrong_domain(node: &str, confirmed: bool) -> Finding {
    Finding {
        confirmed,
        ..Finding::new(
            node,
            Outcome::Failed,
            FindingClass::WrongDomain,
            Locus { node: Some(node.into()), ..Locus::new(LocusKind::Node) },
        )
    }
}

/// Three domains of four nodes, and measured groups.
fn fleet(measured: &[&[&str]]) -> Claims {
    let domain = |name: &str, list: &str| ClaimedDomain {
        name: name.into(),
        nodes: nodes(list).into_iter().collect(),
        platform: None,
        gpus_per_node: None,
        nic: None,
    };
    let group = |members: &&[&str]| {
        let members = members.iter().map(|name| NodeName::from(*name)).collect();
        let group = NodeGroup::new(NodeGroupKind::Domain, "measured", "m", members);
        GroupAssertion {
            source: 0,
            group: NodeGroup { basis: ClaimBasis::Measured, in_force: true, ..group },
        }
    };
    Claims {
        domains: vec![domain("r1", "a[1-8]"), domain("r2", "b[1-4]"), domain("r3", "c[1-4]")],
        assertions: measured.iter().map(group).collect(),
        ..Claims::default()
    }
}

#[test]
fn a_verdict_moves_a_node_only_where_it_was_measured_to_belong() {
    let mut pair = wrong_domain("a1", true);
    pair.locus.kind = LocusKind::Pair;
    let mut findings: Vec<Finding> =
        ["a1", "a2", "a3", "a4", "a5"].iter().map(|node| wrong_domain(node, true)).collect();
    findings.extend([pair, wrong_domain("a6", false)]);
    findings.push(Finding { class: FindingClass::NvlinkLow, ..wrong_domain("a7", true) });
    let verdicts = Verdicts { findings, ..Verdicts::empty(Outcome::Failed) };
    let fleet = fleet(&[
        &["a1", "b1", "b2", "b3"],
        // A single partner may be misplaced itself.
        &["a2", "b1"],
        // The measurement shows one domain.
        &["a3", "a8", "b1", "b2"],
        &["a4", "b1", "b2"],
        &["a4", "c1", "c2"],
        &["a6", "a7", "b1", "b2"],
    ]);
    let (moves, withheld) = asked(&verdicts, &fleet);
    assert_eq!(moves, wanted(&[("a1", "r2")]).moves);
    let why: Vec<&str> = withheld.iter().map(|it| &it.withheld.why[..12]).collect();
    assert_eq!(
        why,
        [
            "no run measu",
            "no run measu",
            "it was measu",
            "no run measu",
            "it is unknow",
            "no second me"
        ]
    );
}

proptest! {
    #[test]
    fn a_proposal_changes_host_lists_and_nothing_else(
        picks in proptest::collection::btree_map(1u32..10, any::<bool>(), 1..5),
        is_yaml in any::<bool>(),
    ) {
        let text = if is_yaml { YAML } else { CONF };
        let moves = picks.iter().map(|(number, second)| {
            let block = if *second { "block02" } else { "block01" };
            (NodeName::from(format!("node{number:02}")), block.to_owned())
        });
        let wanted = TopologyRequest { topology: None, moves: moves.collect() };
        let proposal = propose_topology(text, &wanted, &ground(NEW));
        // Only a move that leaves the second block without a node is refused: the first block has
        // five nodes, and the moves never take all of them.
        let empties = (6..10).all(|number| picks.get(&number) == Some(&false));
        prop_assert_eq!(proposal.is_err(), empties, "{:?}", proposal);
        if let Ok(proposal) = proposal {
            for (node, block) in &wanted.moves {
                prop_assert!(proposal.blocks[block].contains(node));
            }
            let all: Vec<&NodeName> = proposal.blocks.values().flatten().collect();
            prop_assert_eq!(all.len(), 9);
            let rest = |text: &str| -> String {
                let parts = text.split("node[").map(|part| part.split_once(']').map_or(part, |it| it.1));
                parts.collect()
            };
            let single = |text: &str| text.contains("nodes: node0") || text.contains("odes=node0")
                || text.contains("\"node0");
            if !single(&proposal.after) {
                prop_assert_eq!(rest(&proposal.after), rest(text));
            }
            // A second run of the same request changes nothing.
            let again = propose_topology(&proposal.after, &wanted, &ground(NEW)).expect("a proposal");
            prop_assert!(!again.is_change());
        }
    }

    #[test]
    fn any_text_is_refused_or_read_back_as_meant(
        text in "(BlockName=[ab] Nodes=n[1-3]( #x)?\n|BlockSizes=2\n|[#= \\\\\n,\\[a-z0-9]{0,8}){0,6}",
    ) {
        let wanted = wanted(&[("n1", "b")]);
        match propose_topology(&text, &wanted, &TopologyContext::default()) {
            Ok(proposal) => {
                prop_assert!(proposal.blocks["b"].contains(&NodeName::from("n1")));
                prop_assert_eq!(proposal.is_change(), proposal.after != text);
                let again = propose_topology(&proposal.after, &wanted, &TopologyContext::default());
                let again = again.expect("a proposal can be parsed");
                prop_assert_eq!(&again.blocks, &proposal.blocks);
                prop_assert!(!again.is_change(), "{:?}", again.moved);
            }
            Err(TopologyRefusal(why)) => prop_assert!(!why.is_empty()),
        }
    }
}
