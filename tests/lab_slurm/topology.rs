//! Features, free fields and topologies on a real Slurm: what it forgets, and what
//! is put back.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use control::gate::reassert;
use control::gate::scheduler::Scheduler;
use control::gate::scontrol::Scontrol;
use control::gate::topology::{Controller, Ending, Writing, Written};
use engine::policy::action_policy::Policy;
use engine::policy::journal_state::JournalState;
use engine::policy::marks::MarkNames;
use engine::policy::topology_proposal::{
    FaultKind, TopologyContext, TopologyProposal, TopologyRequest,
};
use engine::policy::{marks, topology_proposal};
use fabricgate::cli::topology as cli;
use fabricgate::cli::topology::TopologyUpdateRequest;
use model::action::{ActionResult, VerdictMark};
use model::finding_class::FindingClass;
use model::id::NodeName;
use model::node_update::{NodeStateChange, NodeUpdate};
use model::scheduler_snapshot::SchedulerNode;
use model::verdict::Outcome;

use super::{Lab, lab, nodes, now};

const LIMIT: Duration = Duration::from_secs(15);

fn scontrol(lab: &Lab) -> Scontrol {
    Scontrol { argv: lab.argv(&["scontrol"]), limit: LIMIT, remote_shell: Some(false) }
}

fn controller(lab: &Lab) -> Controller {
    let controller = Controller::beside(&lab.argv(&["scontrol"]), LIMIT, Some(false));
    assert_eq!(controller.squeue, lab.argv(&["squeue"]));
    controller
}

fn live(lab: &Lab, name: &str) -> SchedulerNode {
    let name = NodeName::from(name);
    let mut live = now(scontrol(lab).read(std::slice::from_ref(&name))).expect("a node");
    live.nodes.remove(&name).expect("the node")
}

fn change(lab: &Lab, nodes: &[NodeName], change: &NodeUpdate) {
    now(scontrol(lab).change(nodes, change)).expect("changed");
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

/// Takes everything away that a test wrote, and has the files as they were.
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
        // A controller that starts may read it now: it is there, whole, at every moment.
        let new = self.file.with_extension("new");
        std::fs::write(&new, &self.text).expect("written");
        std::fs::rename(&new, &self.file).expect("put in place");
        for entry in self.file.parent().expect("a folder").read_dir().expect("it").flatten() {
            if entry.file_name().to_string_lossy().contains(".fabricgate-") {
                let _ = std::fs::remove_file(entry.path());
            }
        }
        self.lab.finished(&["scancel", "--user=root"]);
        let script = "for f in Extra Comment; do scontrol update NodeName=node[0001-0036] $f=; done; \
                      scontrol reconfigure";
        self.lab.finished(&["sh", "-c", script]);
    }
}

fn restart(lab: &Lab) {
    // What was told in the last seconds is lost when a controller is killed.
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
fn what_others_say_on_a_node_is_kept_through_drain_marks_and_return() {
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
        // Said once: nothing is left to write.
        assert!(marks::mark_change(&after, &mark(outcome), &names).is_empty());
    }
    assert_eq!(marks::read_mark(&live(&lab, "node0004"), &names), Some(mark(Outcome::Pass)));
}

#[test]
fn a_field_that_is_no_object_stays_and_the_features_are_written() {
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
fn features_vanish_at_reconfigure_and_restart_and_are_said_again() {
    let Some(lab) = lab() else { return };
    let _tidy = Tidy::up(&lab);
    let names = MarkNames::default();
    let policy = Policy { marks: names.clone(), ..Policy::default() };
    let marked = nodes(3..=6);
    let slurm = scontrol(&lab);
    for node in &marked {
        let node = live(&lab, node.as_str());
        let said = marks::mark_change(&node, &mark(Outcome::Degraded), &names);
        change(&lab, std::slice::from_ref(&node.name), &said);
    }
    change(&lab, &marked, &NodeUpdate { comment: Some("theirs".into()), ..NodeUpdate::default() });
    // A person takes our entry away: that node is left to them.
    change(&lab, &marked[3..], &NodeUpdate { extra: Some(String::new()), ..NodeUpdate::default() });
    let marks = marked.iter().map(|node| (node.clone(), mark(Outcome::Degraded)));
    let ledger = JournalState { marks: marks.collect(), ..JournalState::default() };
    let all = || now(slurm.read(&[])).expect("all nodes");
    assert_eq!(now(reassert::reassert(&slurm, &all(), &ledger, &policy)), []);
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
        let told = now(reassert::reassert(&slurm, &lost, &ledger, &policy));
        let told: Vec<_> = told.iter().map(|it| (it.node.clone(), it.result)).collect();
        let done = marked[..3].iter().map(|node| (node.clone(), ActionResult::Done));
        assert_eq!(told, done.collect::<Vec<_>>());
        let now_said = all();
        for node in &marked[..3] {
            assert_eq!(now_said.nodes[node].active_features, ["gb200", "fabric_degraded"]);
        }
        assert_eq!(now_said.nodes[&marked[3]].active_features, ["gb200"]);
        assert_eq!(now(reassert::reassert(&slurm, &now_said, &ledger, &policy)), []);
    }
}

fn ground(lab: &Lab) -> TopologyContext {
    let live = now(scontrol(lab).read(&[])).expect("all nodes");
    let version = now(controller(lab).version());
    assert!(version.is_some());
    TopologyContext { version, nodes: live.nodes.into_keys().collect() }
}

fn proposed(lab: &Lab, text: &str, moves: &[(&str, &str)]) -> TopologyProposal {
    let moves = moves.iter().map(|(node, block)| (NodeName::from(*node), (*block).to_owned()));
    let wanted = TopologyRequest { topology: None, moves: moves.collect() };
    topology_proposal::propose_topology(text, &wanted, &ground(lab)).expect("a proposal")
}

fn write(lab: &Lab, proposal: &TopologyProposal, time: &str) -> Written {
    let controller = controller(lab);
    let writing = Writing {
        controller: &controller,
        path: &file(lab),
        proposal,
        version: now(controller.version()),
        time,
        settle: Duration::from_secs(8),
    };
    let mut said = Vec::new();
    let written = now(control::gate::topology::write(writing, &mut |what| {
        said.push(what.to_owned());
    }));
    assert_eq!(said, written.told);
    written
}

fn shown(lab: &Lab, proposal: &TopologyProposal) -> BTreeMap<String, BTreeSet<NodeName>> {
    now(controller(lab).blocks(proposal)).expect("blocks")
}

/// A text whose blocks may lose a node with every version: with room below 18.
fn with_room(tidy: &Tidy<'_>) -> String {
    let text = tidy.text.replace("[18]", "[16]").replace("BlockSizes=18", "BlockSizes=16");
    assert_ne!(text, tidy.text);
    std::fs::write(&tidy.file, &text).expect("written");
    tidy.lab.run(&["scontrol", "reconfigure"]);
    text
}

#[test]
fn a_better_file_is_put_in_place_and_shown() {
    let Some(lab) = lab() else { return };
    let tidy = Tidy::up(&lab);
    let text = with_room(&tidy);
    let proposal = proposed(&lab, &text, &[("node0018", "block02")]);
    assert_eq!(proposal.blocking_faults(), Vec::<&topology_proposal::Fault>::new());
    let written = write(&lab, &proposal, "t1");
    assert_eq!(written.ending, Ending::Placed, "{written:?}");
    assert_eq!(shown(&lab, &proposal), proposal.blocks);
    assert_eq!(proposal.blocks["block01"].len(), 17);
    let backup = std::fs::read_to_string(written.backup.expect("a copy")).expect("text");
    assert_eq!(backup, text);
    let after = std::fs::read_to_string(file(&lab)).expect("text");
    assert_eq!(after, proposal.after);
    // The second time nothing is left to do.
    let again = proposed(&lab, &after, &[("node0018", "block02")]);
    assert_eq!(write(&lab, &again, "t2").ending, Ending::Nothing);
    restart(&lab);
    assert_eq!(shown(&lab, &proposal), proposal.blocks);
}

#[test]
fn the_command_line_writes_what_it_showed() {
    let Some(lab) = lab() else { return };
    let tidy = Tidy::up(&lab);
    let text = with_room(&tidy);
    let (scontrol, argv) = (scontrol(&lab), lab.argv(&["scontrol"]));
    let asked = TopologyUpdateRequest {
        file: &tidy.file,
        topology: None,
        moves: &["node0018=block02".to_owned()],
        run: None,
        scheduler: &scontrol,
        remote_shell: Some(false),
        scontrol: &argv,
        limit: LIMIT,
    };
    let shown = cli::propose_topology(&asked).expect("a proposal");
    assert_eq!((shown.exit_code(), &shown.troubles, &shown.written), (0, &Vec::new(), &None));
    assert!(shown.render().contains("proposed, not written"), "{}", shown.render());
    assert_eq!(shown.at_once.is_some(), lab.has_yaml());
    assert_eq!(std::fs::read_to_string(&tidy.file).expect("text"), text);
    let answer = cli::write_topology(&asked).expect("an answer");
    assert_eq!((answer.exit_code(), &answer.proposal.diff), (0, &shown.proposal.diff));
    assert_eq!(std::fs::read_to_string(&tidy.file).expect("text"), shown.proposal.after);
    assert!(
        cli::propose_topology(&TopologyUpdateRequest { moves: &["node0018".to_owned()], ..asked })
            .is_err()
    );
    // Where the scheduler does not answer, nothing is written.
    let silent = Scontrol { argv: lab.argv(&["false"]), limit: LIMIT, remote_shell: Some(false) };
    assert!(cli::write_topology(&TopologyUpdateRequest { scheduler: &silent, ..asked }).is_err());
}

#[test]
fn a_file_that_the_controller_does_not_take_is_rolled_back() {
    let Some(lab) = lab() else { return };
    let tidy = Tidy::up(&lab);
    let text = with_room(&tidy);
    let mut proposal = proposed(&lab, &text, &[("node0018", "block02")]);
    let before = shown(&lab, &proposal);
    // What our own validation did not see, as a mistake in it would be.
    let good = proposal.after.clone();
    for (time, from, to) in [("t1", "block02", "block01"), ("t2", "16", "16,48")] {
        proposal.after = good.replacen(from, to, 9);
        let written = write(&lab, &proposal, time);
        assert_eq!(written.ending, Ending::RolledBack, "{written:?}");
        assert_eq!(std::fs::read_to_string(file(&lab)).expect("text"), text);
        assert_eq!(shown(&lab, &proposal), before);
    }
    // Taken, and not what was meant: also back.
    proposal.after = good.replace("[0001-0017]", "[0001-0016]");
    assert_ne!(proposal.after, good);
    let written = write(&lab, &proposal, "t3");
    assert_eq!(written.ending, Ending::RolledBack, "{written:?}");
    restart(&lab);
    assert_eq!(shown(&lab, &proposal), before);
    assert!(lab.run(&["srun", "-N2", "hostname"]).contains("slurmlab"));
}

#[test]
fn nothing_is_written_where_the_file_or_the_controller_is_not_as_it_was_read() {
    let Some(lab) = lab() else { return };
    let tidy = Tidy::up(&lab);
    let text = with_room(&tidy);
    let proposal = proposed(&lab, &text, &[("node0018", "block02")]);
    std::fs::write(&tidy.file, format!("{text}# a person\n")).expect("written");
    let written = write(&lab, &proposal, "t1");
    assert_eq!((written.ending, written.backup), (Ending::Refused, None));
    std::fs::write(&tidy.file, &text).expect("written");
    if lab.has_yaml() {
        lab.run(&["scontrol", "update", "NodeName=node0001", "Topology=topo-block:block02"]);
        let written = write(&lab, &proposal, "t2");
        assert_eq!((written.ending, written.backup), (Ending::Refused, None), "{:?}", written.told);
        assert!(written.told[0].contains("node0001 elsewhere"), "{:?}", written.told);
    }
    // A controller that is gone is told nothing, and nothing is written.
    lab.signal("KILL");
    let written = write(&lab, &proposal, "t3");
    lab.run(&["slurmctld"]);
    lab.wait_for("a controller", || lab.finished(&["scontrol", "ping"]).1.is_success());
    assert_eq!((written.ending, written.backup), (Ending::Refused, None));
    assert_eq!(std::fs::read_to_string(&tidy.file).expect("text"), text);
}

#[test]
fn a_block_below_its_size_is_refused_where_slurm_would_not_start_with_it() {
    let Some(lab) = lab() else { return };
    let tidy = Tidy::up(&lab);
    let proposal = proposed(&lab, &tidy.text, &[("node0018", "block02")]);
    if lab.has_yaml() {
        assert_eq!(proposal.blocking_faults(), Vec::<&topology_proposal::Fault>::new());
        return;
    }
    let kinds: Vec<FaultKind> = proposal.blocking_faults().iter().map(|fault| fault.kind).collect();
    assert_eq!(kinds, [FaultKind::Small]);
    let written = write(&lab, &proposal, "t1");
    assert_eq!((written.ending, written.backup), (Ending::Refused, None));
    assert_eq!(std::fs::read_to_string(&tidy.file).expect("text"), tidy.text);
    // Slurm does refuse it: past our validation it comes back.
    let mut forced = proposal;
    forced.faults.clear();
    assert_eq!(write(&lab, &forced, "t2").ending, Ending::RolledBack);
    assert_eq!(std::fs::read_to_string(&tidy.file).expect("text"), tidy.text);
}

#[test]
fn jobs_that_need_the_old_blocks_are_told_and_given_back_only_in_words() {
    let Some(lab) = lab() else { return };
    let tidy = Tidy::up(&lab);
    let text = with_room(&tidy);
    // Both blocks busy, and one job that names nodes of one block.
    lab.run(&["sbatch", "-N36", "--exclusive", "-o", "/dev/null", "--wrap", "sleep 300"]);
    lab.wait_for("the job", || lab.run(&["squeue", "-h", "-t", "R", "-o", "%D"]).contains("36"));
    let names = "--nodelist=node[0017-0018]";
    lab.run(&["sbatch", "-N2", names, "--exclusive", "-o", "/dev/null", "--wrap", "sleep 1"]);
    for other in [&["-N2"][..], &["-N16", "--nodelist=node[0001-0016]"], &["-N18"]] {
        let job = [&["sbatch", "--exclusive", "-o", "/dev/null", "--wrap", "sleep 1"], other];
        lab.run(&job.concat());
    }
    let proposal = proposed(&lab, &text, &[("node0018", "block02")]);
    let written = write(&lab, &proposal, "t1");
    assert_eq!(written.ending, Ending::Placed, "{written:?}");
    let required: Vec<&str> = written.needing.iter().map(|job| job.required.as_str()).collect();
    assert_eq!(required, ["node[0017-0018]"]);
    let held: Vec<u64> = written.held.iter().map(|job| job.id).collect();
    assert_eq!(held, [written.needing[0].id]);
    assert_eq!(written.release, ["scontrol", "release", &held[0].to_string()]);
    // Only in words: it is held until a person says so.
    let waiting = lab.run(&["squeue", "-h", "-t", "PD", "-o", "%i %Q %r"]);
    assert!(waiting.contains(&format!("{} 0 BadConstraints", held[0])), "{waiting}");
}

#[test]
fn places_at_run_time_hold_until_a_reconfigure_and_no_node_is_ever_taken_out() {
    let Some(lab) = lab() else { return };
    let tidy = Tidy::up(&lab);
    let proposal = proposed(&lab, &tidy.text, &[("node0018", "block02")]);
    let version = now(controller(&lab).version());
    if !lab.has_yaml() {
        assert!(topology_proposal::at_once(&proposal, version).is_err());
        return;
    }
    let moved = topology_proposal::at_once(&proposal, version).expect("commands");
    assert!(moved.commands.iter().flatten().all(|word| word != "Topology="));
    assert_eq!(moved.commands.len(), moved.changes.len());
    for restarts in [false, true] {
        for (nodes, it) in &moved.changes {
            change(&lab, nodes, it);
        }
        assert_eq!(shown(&lab, &proposal), proposal.blocks);
        if restarts {
            restart(&lab);
        } else {
            lab.run(&["scontrol", "reconfigure"]);
        }
        assert_eq!(shown(&lab, &proposal), proposal.blocks_before, "it would be noticed here");
    }
    for (nodes, it) in &moved.changes {
        change(&lab, nodes, it);
    }
    // The file may be written all the same: the controller shows what is meant.
    assert_eq!(write(&lab, &proposal, "t1").ending, Ending::Placed);
}
