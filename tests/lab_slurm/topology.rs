//! Features, free fields and topologies on a real Slurm: the values that it forgets, and those
//! that are restored.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use control::gate::mark_reassertion;
use control::gate::scheduler::Scheduler;
use control::gate::scontrol::ScontrolScheduler;
use engine::policy::action_policy::Policy;
use engine::policy::journal_state::JournalState;
use engine::policy::marks::MarkNames;
use engine::policy::topology_proposal::{FaultKind, TopologyContext, TopologyRequest};
use engine::policy::{marks, topology_proposal};
use fabricgate::cli::commands::apply::topology as cli;
use fabricgate::cli::commands::apply::topology::TopologyUpdateRequest;
use model::action::{ActionResult, VerdictMark};
use model::claims::{ClaimedDomain, Claims, GroupAssertion};
use model::finding_class::FindingClass;
use model::id::NodeName;
use model::node_update::{NodeStateChange, NodeUpdate};
use model::scheduler_snapshot::SchedulerNode;
use model::source_report::{ClaimBasis, NodeGroup, NodeGroupKind, SourceKind};
use model::verdict::{Finding, Locus, LocusKind, Outcome, Verdicts};

use super::{Lab, lab, nodes, now, of};

const LIMIT: Duration = Duration::from_secs(15);

fn scontrol(lab: &Lab) -> ScontrolScheduler {
    ScontrolScheduler { argv: lab.argv(&["scontrol"]), limit: LIMIT, remote_shell: Some(false) }
}

fn live(lab: &Lab, name: &str) -> SchedulerNode {
    let name = NodeName::from(name);
    let mut live = now(scontrol(lab).read_nodes(std::slice::from_ref(&name))).expect("a node");
    live.nodes.remove(&name).expect("the node")
}

fn change(lab: &Lab, nodes: &[NodeName], change: &NodeUpdate) {
    now(scontrol(lab).update_nodes(nodes, change)).expect("changed");
}

fn mark(outcome: Outcome) -> VerdictMark {
    VerdictMark {
        outcome,
        class: (outcome != Outcome::Pass).then_some(FindingClass::NvlinkLow),
        run: "20261121T1200-ab12".to_owned(),
        at: "2026-11-21T12:00:00Z".to_owned(),
        expires: None,
        boot_id: None,
        domain: None,
    }
}

/// The file of the lab, by its name on this machine.
fn file(lab: &Lab) -> PathBuf {
    let folder = PathBuf::from(&lab.run).with_file_name("etc");
    folder.join(if lab.has_yaml() { "topology.yaml" } else { "topology.conf" })
}

/// Removes everything that a test wrote, and restores the files.
struct Tidy<'l> {
    lab: &'l Lab,
    file: PathBuf,
    text: String,
}

impl<'l> Tidy<'l> {
    fn up(lab: &'l Lab) -> Self {
        let file = file(lab);
        let text = std::fs::read_to_string(&file).expect("the lab's topology");
        Self { lab, file, text }
    }
}

impl Drop for Tidy<'_> {
    fn drop(&mut self) {
        // A controller that starts may read it now: it is complete at every moment.
        let new = self.file.with_extension("new");
        std::fs::write(&new, &self.text).expect("written");
        std::fs::rename(&new, &self.file).expect("put in place");
        let script = "for f in Extra Comment; do scontrol update NodeName=node[0001-0036] $f=; done; \
                      scontrol reconfigure";
        self.lab.finished(&["sh", "-c", script]);
    }
}

fn restart(lab: &Lab) {
    // A killed controller loses the updates of its last seconds.
    lab.run(&["sh", "-c", "scontrol shutdown slurmctld"]);
    lab.wait_for("no controller", || !lab.finished(&["scontrol", "ping"]).1.is_success());
    lab.run(&["slurmctld"]);
    lab.wait_for("a controller", || lab.finished(&["scontrol", "ping"]).1.is_success());
    lab.wait_for("every node", || {
        let (states, _) = lab.finished(&["sinfo", "-h", "-N", "-p", "main", "-o", "%T"]);
        !states.is_empty() && !states.contains("unk")
    });
}

#[test]
fn foreign_fields_of_a_node_are_kept_through_drain_marks_and_return() {
    let Some(lab) = lab() else { return };
    let _tidy = Tidy::up(&lab);
    let (node, names) = (NodeName::from("node0004"), MarkNames::default());
    let one = std::slice::from_ref(&node);
    let theirs = NodeUpdate {
        available_features: Some(vec!["gb200".into(), "rack7".into(), "x|y".into()]),
        active_features: Some(vec!["gb200".into(), "x|y".into()]),
        extra: Some(r#"{"site" : {"ticket":4711, "w":1.50e2},"b":[1, 2]}"#.into()),
        comment: Some("looked at by anna".into()),
        ..NodeUpdate::default()
    };
    change(&lab, one, &theirs);
    let kept = r#"{"site":{"ticket":4711,"w":1.50e2},"b":[1,2],"fabricgate":{"#;
    let state = |state| NodeUpdate { state: Some(state), ..NodeUpdate::default() };
    let drain = NodeStateChange::Drain { reason: "fabricgate:nvlink-low:r1 e1".into() };
    for (outcome, state) in [
        (Outcome::Degraded, state(drain)),
        (Outcome::Pass, state(NodeStateChange::Resume)),
        (Outcome::Unknown, NodeUpdate::default()),
    ] {
        let before = live(&lab, "node0004");
        let marked = marks::mark_change(&before, &mark(outcome), &names);
        change(&lab, one, &NodeUpdate { state: state.state, ..marked });
        let after = live(&lab, "node0004");
        assert!(marks::has_mark(&after, &mark(outcome), &names), "{outcome}: {after:?}");
        let ours = if outcome == Outcome::Degraded { &names.degraded } else { &names.verified };
        assert_eq!(after.available_features, ["gb200", "rack7", "x|y", ours], "{outcome}");
        assert_eq!(after.active_features, ["gb200", "x|y", ours], "{outcome}");
        assert!(after.extra.starts_with(kept), "{}", after.extra);
        assert_eq!(after.comment, "looked at by anna");
        // Written once: no update is left.
        assert!(marks::mark_change(&after, &mark(outcome), &names).is_empty());
    }
    assert_eq!(marks::read_mark(&live(&lab, "node0004"), &names), Some(mark(Outcome::Pass)));
}

#[test]
fn a_field_that_is_not_an_object_stays_and_the_features_are_written() {
    let Some(lab) = lab() else { return };
    let _tidy = Tidy::up(&lab);
    let (node, names) = (NodeName::from("node0005"), MarkNames::default());
    let one = std::slice::from_ref(&node);
    let theirs = NodeUpdate { extra: Some("rack=7 ticket".into()), ..NodeUpdate::default() };
    change(&lab, one, &theirs);
    let before = live(&lab, "node0005");
    let marked = marks::mark_change(&before, &mark(Outcome::Degraded), &names);
    assert_eq!(marks::explain_unwritable(&before, &mark(Outcome::Degraded), &names).len(), 1);
    change(&lab, one, &marked);
    let after = live(&lab, "node0005");
    assert_eq!((after.extra.as_str(), after.comment.as_str()), ("rack=7 ticket", ""));
    assert!(after.active_features.contains(&names.degraded));
}

#[test]
fn features_vanish_at_reconfigure_and_restart_and_are_written_again() {
    let Some(lab) = lab() else { return };
    let _tidy = Tidy::up(&lab);
    let names = MarkNames::default();
    let policy = Policy { marks: names.clone(), ..Policy::default() };
    let marked = nodes(3..=6);
    let slurm = scontrol(&lab);
    for node in &marked {
        let node = live(&lab, node.as_str());
        let update = marks::mark_change(&node, &mark(Outcome::Degraded), &names);
        change(&lab, std::slice::from_ref(&node.name), &update);
    }
    change(&lab, &marked, &NodeUpdate { comment: Some("theirs".into()), ..NodeUpdate::default() });
    // An operator removes fabricgate's entry: that node is left to them.
    change(&lab, &marked[3..], &NodeUpdate { extra: Some(String::new()), ..NodeUpdate::default() });
    let marks = marked.iter().map(|node| (node.clone(), mark(Outcome::Degraded)));
    let ledger = JournalState { marks: marks.collect(), ..JournalState::default() };
    let all = || now(slurm.read_nodes(&[])).expect("all nodes");
    assert_eq!(now(mark_reassertion::reassert_marks(&slurm, &all(), &ledger, &policy)), []);
    for restarts in [false, true] {
        if restarts {
            restart(&lab);
        } else {
            lab.run(&["scontrol", "reconfigure"]);
        }
        let lost = all();
        let written = lost.nodes[&marked[0]].clone();
        assert_eq!(written.active_features, ["gb200"], "this is how it would be noticed");
        assert_eq!(marks::read_mark(&written, &names), Some(mark(Outcome::Degraded)));
        assert_eq!(written.comment, "theirs");
        let reasserted = now(mark_reassertion::reassert_marks(&slurm, &lost, &ledger, &policy));
        let reasserted: Vec<_> = reasserted.iter().map(|it| (it.node.clone(), it.result)).collect();
        let done = marked[..3].iter().map(|node| (node.clone(), ActionResult::Done));
        assert_eq!(reasserted, done.collect::<Vec<_>>());
        let now_said = all();
        for node in &marked[..3] {
            assert_eq!(now_said.nodes[node].active_features, ["gb200", "fabric_degraded"]);
        }
        assert_eq!(now_said.nodes[&marked[3]].active_features, ["gb200"]);
        assert_eq!(now(mark_reassertion::reassert_marks(&slurm, &now_said, &ledger, &policy)), []);
    }
}

#[test]
fn a_block_below_its_size_is_wrong_where_slurm_would_not_start_with_it() {
    let Some(lab) = lab() else { return };
    let live = now(scontrol(&lab).read_nodes(&[])).expect("all nodes");
    let version = now(scontrol(&lab).version());
    assert!(version.is_some());
    let ground = TopologyContext { version, nodes: live.nodes.into_keys().collect() };
    let moves = BTreeMap::from([(NodeName::from("node0018"), "block02".to_owned())]);
    let text = std::fs::read_to_string(file(&lab)).expect("the lab's topology");
    let wanted = TopologyRequest { topology: None, moves };
    let proposal =
        topology_proposal::propose_topology(&text, &wanted, &ground).expect("a proposal");
    let kinds: Vec<FaultKind> = proposal.blocking_faults().iter().map(|fault| fault.kind).collect();
    let expected: &[FaultKind] = if lab.has_yaml() { &[] } else { &[FaultKind::Small] };
    assert_eq!(kinds, expected);
}

#[test]
fn a_proposed_file_is_taken_once_a_person_put_it_in_place_and_shown_is_all_that_is_done() {
    let Some(lab) = lab() else { return };
    let tidy = Tidy::up(&lab);
    // A text whose blocks may lose a node with every version: with room below 18.
    let text = tidy.text.replace("[18]", "[16]").replace("BlockSizes=18", "BlockSizes=16");
    assert_ne!(text, tidy.text);
    std::fs::write(&tidy.file, &text).expect("written");
    let (verdicts, claims) = misplaced();
    let scontrol = scontrol(&lab);
    let asked = TopologyUpdateRequest {
        file: &tidy.file,
        topology: None,
        verdicts: &verdicts,
        claims: &claims,
        scheduler: &scontrol,
        scontrol: &scontrol,
    };
    let shown = cli::propose_topology(&asked).expect("a proposal");
    assert_eq!((shown.exit_code(), &shown.troubles), (0, &Vec::new()));
    assert!(shown.render().contains("proposed, not written"), "{}", shown.render());
    assert_eq!(std::fs::read_to_string(&tidy.file).expect("text"), text);
    std::fs::write(&tidy.file, &shown.proposal.after).expect("written");
    lab.run(&["scontrol", "reconfigure"]);
    lab.wait_for("the moved node", || {
        let answers = lab.ask();
        let shown = super::blocks(of(&answers, SourceKind::SlurmTopology));
        shown.iter().any(|(name, nodes)| *name == "block02" && nodes.len() == 19)
    });
}

/// A run that measured a node of the first block together with some of the second.
fn misplaced() -> (Verdicts, Claims) {
    let locus = Locus { node: Some("node0018".into()), ..Locus::new(LocusKind::Node) };
    let finding = Finding::new("f1", Outcome::Failed, FindingClass::WrongDomain, locus);
    let findings = vec![Finding { confirmed: true, ..finding }];
    let domain = |name: &str, nodes: Vec<NodeName>| ClaimedDomain {
        name: name.into(),
        nodes,
        platform: None,
        gpus_per_node: None,
        nic: None,
    };
    let members = nodes(18..=21);
    let group = NodeGroup::new(NodeGroupKind::Domain, "measured", "m", members);
    let group = NodeGroup { basis: ClaimBasis::Measured, in_force: true, ..group };
    let claims = Claims {
        domains: vec![domain("block01", nodes(1..=18)), domain("block02", nodes(19..=36))],
        assertions: vec![GroupAssertion { source: 0, group }],
        ..Claims::default()
    };
    (Verdicts { findings, ..Verdicts::empty(Outcome::Failed) }, claims)
}
