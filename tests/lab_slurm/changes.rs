//! Effects of changes on a real Slurm, by both ways to it: reasons that it edits, lists that it
//! applies in part, drains that are not what they seem. `faults` tests failures of the
//! controller.

use control::gate::scheduler::{Scheduler, SchedulerError};
use control::gate::scontrol::ScontrolScheduler;
use control::gate::slurmrestd::SlurmrestdScheduler;
use model::node_update::{NodeStateChange, NodeUpdate};
use model::scheduler_snapshot::{SchedulerNode, SchedulerSnapshot};

use super::*;

/// Longer than the 10 s after which Slurm itself gives up.
const PATIENCE: Duration = Duration::from_secs(15);

/// Both ways to the lab's controller, and the file of its token.
pub(super) struct Ways {
    folder: tempfile::TempDir,
    pub(super) scontrol: ScontrolScheduler,
    pub(super) rest: SlurmrestdScheduler,
}

impl Ways {
    pub(super) fn to(lab: &Lab) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let token_file = folder.path().join("token");
        let rest = SlurmrestdScheduler {
            address: format!("unix:{}", lab.socket).into(),
            token_file: Some(token_file),
            user: None,
            limit: PATIENCE,
        };
        let scontrol = ScontrolScheduler {
            argv: lab.argv(&["scontrol"]),
            limit: PATIENCE,
            remote_shell: Some(false),
        };
        let ways = Self { folder, scontrol, rest };
        ways.token(&lab.token());
        ways
    }

    pub(super) fn token(&self, text: &str) {
        std::fs::write(self.folder.path().join("token"), text).expect("written");
    }

    pub(super) fn both(&self) -> [&dyn Scheduler; 2] {
        [&self.scontrol, &self.rest]
    }
}

pub(super) fn named(names: &[&str]) -> Vec<NodeName> {
    names.iter().map(|name| NodeName::from(*name)).collect()
}

pub(super) fn drain(reason: &str) -> NodeUpdate {
    NodeUpdate::drain(reason)
}

pub(super) fn resume() -> NodeUpdate {
    NodeUpdate { state: Some(NodeStateChange::Resume), ..NodeUpdate::default() }
}

pub(super) fn comment(text: &str) -> NodeUpdate {
    NodeUpdate { comment: Some(text.to_owned()), ..NodeUpdate::default() }
}

pub(super) fn try_update(
    way: &dyn Scheduler,
    names: &[&str],
    change: &NodeUpdate,
) -> Result<(), SchedulerError> {
    now(way.update_nodes(&named(names), change))
}

pub(super) fn done(way: &dyn Scheduler, names: &[&str], change: &NodeUpdate) {
    try_update(way, names, change)
        .unwrap_or_else(|error| panic!("{}: {names:?}: {error}", way.name()));
}

pub(super) fn seen(way: &dyn Scheduler, names: &[&str]) -> SchedulerSnapshot {
    let live = now(way.read_nodes(&named(names)));
    let live = live.unwrap_or_else(|error| panic!("{}: {names:?}: {error}", way.name()));
    assert_eq!(live.troubles, Vec::<String>::new(), "{}", way.name());
    live
}

pub(super) fn one(way: &dyn Scheduler, name: &str) -> SchedulerNode {
    let mut live = seen(way, &[name]);
    assert_eq!(live.nodes.len(), 1, "{}: {live:?}", way.name());
    live.nodes.remove(&NodeName::from(name)).expect("the node that was asked for")
}

impl Lab {
    fn update(&self, node: &str, fields: &[&str]) {
        let node = format!("NodeName={node}");
        self.run(&[&["scontrol", "update", &node], fields].concat());
    }
}

#[test]
fn one_call_drains_many_and_both_ways_read_the_same() {
    let Some(lab) = lab() else { return };
    let ways = Ways::to(&lab);
    let every = nodes(1..=36);
    for way in ways.both() {
        let reason = format!("fabricgate:nvlink-low:r1 by {}", way.name().len());
        assert_eq!(way.command_lines(&every, &drain(&reason)).len(), 1);
        now(way.update_nodes(&every, &drain(&reason))).expect("drained");
        for reader in ways.both() {
            let live = now(reader.read_nodes(&every)).expect("read");
            assert_eq!((live.nodes.len(), live.troubles.len()), (36, 0));
            for node in live.nodes.values() {
                assert_eq!(node.state, ["IDLE", "DRAIN"], "{}", node.name);
                assert_eq!(node.reason.as_deref(), Some(reason.as_str()));
                assert_eq!(node.reason_by.as_deref(), Some("root"));
                // Without a boot while its daemon is not yet back from a reconfiguration.
                assert!(node.reason_at.expect("a moment") >= node.booted.unwrap_or_default());
                assert_eq!(node.allocated_cpus, Some(0));
            }
        }
        now(way.update_nodes(&every, &resume())).expect("resumed");
        lab.wait_for("every node", || {
            seen(way, &[]).nodes.values().all(|node| node.state == ["IDLE"])
        });
    }
    let all = |way: &dyn Scheduler| seen(way, &[]);
    assert_eq!(all(&ways.scontrol), all(&ways.rest), "node by node, every field");
    assert_eq!(all(&ways.scontrol).nodes.len(), 36);
}

#[test]
fn the_displayed_commands_have_the_intended_effect() {
    let Some(lab) = lab() else { return };
    let ways = Ways::to(&lab);
    let change =
        NodeUpdate { extra: Some(r#"{"a": "it's $(x)"}"#.to_owned()), ..drain("two words") };
    for argv in ways.scontrol.command_lines(&named(&["node0003", "node0004"]), &change) {
        assert_eq!(argv[0], lab.run);
        lab.run(&argv[1..].iter().map(String::as_str).collect::<Vec<_>>());
    }
    for name in ["node0003", "node0004"] {
        let node = one(&ways.rest, name);
        assert_eq!(node.reason.as_deref(), Some("two words"));
        assert_eq!(node.extra, r#"{"a": "it's $(x)"}"#);
    }
    let undo = NodeUpdate { extra: Some(String::new()), ..resume() };
    done(&ways.scontrol, &["node0003", "node0004"], &undo);
}

#[test]
fn arguments_reach_a_controller_behind_ssh_unchanged() {
    let Some(lab) = lab() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let ssh = folder.path().join("ssh");
    // As sshd does: the arguments in one line, for the shell of the user.
    std::fs::write(&ssh, "#!/bin/sh\nshift\nexec sh -c \"$*\"\n").expect("written");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&ssh, mode).expect("a program");
    let argv = [&[ssh.display().to_string(), "head".to_owned()], &lab.argv(&["scontrol"])[..]];
    let far = ScontrolScheduler { argv: argv.concat(), limit: PATIENCE, remote_shell: None };
    let reason = r#"it's "two" words; $(touch /tmp/x) `id` * é"#;
    done(&far, &["node0003", "node0004"], &drain(reason));
    assert_eq!(one(&far, "node0003").reason.as_deref(), Some(reason));
    assert_eq!(seen(&far, &["node0003", "node0004"]).nodes.len(), 2);
    done(&far, &["node0003", "node0004"], &resume());
}

#[test]
fn slurm_itself_lets_a_drain_replace_any_reason() {
    let Some(lab) = lab() else { return };
    let ways = Ways::to(&lab);
    for way in ways.both() {
        lab.run(&[
            "setpriv",
            "--reuid=slurm",
            "--regid=slurm",
            "--init-groups",
            "scontrol",
            "update",
            "NodeName=node0007",
            "State=DRAIN",
            "Reason=psu: ann",
        ]);
        let before = one(way, "node0007");
        assert_eq!(before.reason.as_deref(), Some("psu: ann"));
        assert_eq!(before.reason_by.as_deref(), Some("slurm"), "its author is readable before");
        done(way, &["node0007"], &drain("fabricgate:x:r1 e1"));
        let after = one(way, "node0007");
        assert_eq!(after.reason.as_deref(), Some("fabricgate:x:r1 e1"));
        assert_eq!(after.reason_by.as_deref(), Some("root"));
        done(way, &["node0007"], &resume());
        lab.settle();
    }
}

#[test]
fn slurm_adds_to_the_reason_of_a_drained_node() {
    let Some(lab) = lab() else { return };
    let ways = Ways::to(&lab);
    // Slurm marks a dead node in the same way (` : Not responding`), after half a minute.
    let set = "rm -rf /tmp/kept; cp -a /etc/slurm /tmp/kept; \
               echo RebootProgram=/bin/true >>/etc/slurm/slurm.conf; scontrol reconfigure";
    lab.run(&["sh", "-ec", set]);
    lab.settle();
    done(&ways.scontrol, &["node0030"], &drain("fabricgate:x:r1 e1"));
    lab.run(&["scontrol", "reboot", "node0030"]);
    lab.wait_for("the reboot", || one(&ways.scontrol, "node0030").has_state("REBOOT_ISSUED"));
    let found = ways.both().map(|way| one(way, "node0030"));
    // Its daemon runs all the time, so it may be back by now.
    lab.wait_for("it back", || {
        lab.finished(&["scontrol", "cancel_reboot", "node0030"]);
        let _ = try_update(&ways.scontrol, &["node0030"], &resume());
        one(&ways.scontrol, "node0030").state == ["IDLE"]
    });
    lab.run(&["sh", "-ec", "cp -a /tmp/kept/. /etc/slurm; scontrol reconfigure"]);
    lab.settle();
    for node in found {
        assert_eq!(node.reason.as_deref(), Some("fabricgate:x:r1 e1 : reboot issued"));
        assert_eq!(node.reason_by.as_deref(), Some("slurm"), "its author is lost");
        assert!(node.has_state("DRAIN"), "{node:?}");
    }
}

#[test]
fn a_list_is_applied_up_to_the_first_unknown_node() {
    let Some(lab) = lab() else { return };
    let ways = Ways::to(&lab);
    // Slurm sorts the list, regardless of its order.
    for way in ways.both() {
        for (names, is_done) in [
            (["node0005", "nosuch"], true),
            (["nosuch", "node0005"], true),
            (["anosuch", "node0005"], false),
        ] {
            let error = try_update(way, &names, &drain("partly")).expect_err("an unknown node");
            assert_eq!(error.kind, SourceProblemKind::Incomplete, "{error}");
            assert!(error.message.contains("Invalid node name"), "{error}");
            let live = seen(way, &names);
            assert_eq!(live.nodes.len(), 1, "a vanished node hides no other: {live:?}");
            let node = &live.nodes[&NodeName::from("node0005")];
            assert_eq!(node.reason.is_some(), is_done, "{}: {names:?}", way.name());
            assert_eq!(node.has_state("DRAIN"), is_done);
            if is_done {
                done(way, &["node0005"], &resume());
            }
        }
        assert!(seen(way, &["nosuch"]).nodes.is_empty(), "absent, and no error");
        lab.settle();
    }
}

#[test]
fn a_node_that_vanished_is_absent_and_not_idle() {
    let Some(lab) = lab() else { return };
    let ways = Ways::to(&lab);
    lab.update("node0036", &["State=FUTURE"]);
    let found = ways.both().map(|way| (seen(way, &["node0035", "node0036"]), seen(way, &[])));
    lab.update("node0036", &["State=RESUME"]);
    for (two, all) in found {
        assert_eq!(two.nodes.keys().cloned().collect::<Vec<_>>(), named(&["node0035"]));
        assert_eq!(all.nodes.len(), 35);
    }
}

#[test]
fn a_name_that_slurm_knows_as_a_host_is_not_a_node() {
    let Some(lab) = lab() else { return };
    let ways = Ways::to(&lab);
    // Slurm takes a host's name for its first node; reading returns nothing under that name,
    // which is why nodes are read before they are changed.
    lab.update("slurmlab", &["Comment=by its host"]);
    for way in ways.both() {
        assert!(seen(way, &["slurmlab"]).nodes.is_empty());
        assert_eq!(one(way, "node0001").comment, "by its host");
    }
    lab.update("node0001", &["Comment="]);
}

#[test]
fn resuming_idle_nodes_fails_and_resumes_the_others() {
    let Some(lab) = lab() else { return };
    let ways = Ways::to(&lab);
    for way in ways.both() {
        let error = try_update(way, &["node0009"], &resume()).expect_err("it is idle");
        assert_eq!(error.kind, SourceProblemKind::Incomplete, "{error}");
        assert!(error.message.contains("Invalid node state"), "{error}");

        done(way, &["node0010"], &drain("x"));
        let both = NodeUpdate { comment: Some("written".to_owned()), ..resume() };
        try_update(way, &["node0009", "node0010"], &both).expect_err("one is idle");
        lab.wait_for("the drained one", || one(way, "node0010").state == ["IDLE"]);
        assert_eq!(one(way, "node0009").comment, "written", "the rest of the change is made");
        done(way, &["node0009", "node0010"], &comment(""));
    }
}

#[test]
fn the_reason_of_a_drain_goes_with_the_drain() {
    let Some(lab) = lab() else { return };
    let ways = Ways::to(&lab);
    for way in ways.both() {
        done(way, &["node0011"], &drain("fabricgate:x:r1 e1"));
        done(way, &["node0011"], &resume());
        let node = one(way, "node0011");
        assert_eq!((node.has_state("DRAIN"), &node.reason, &node.reason_by), (false, &None, &None));
        // 24.11 keeps it on a node that is no longer drained.
        let text = lab.run(&["scontrol", "show", "node", "node0011"]);
        assert_eq!(text.contains("Reason=fabricgate"), !lab.has_yaml(), "{text}");
        lab.settle();
    }
}

#[test]
fn a_node_with_a_job_has_the_flag_and_is_not_drained() {
    let Some(lab) = lab() else { return };
    let ways = Ways::to(&lab);
    for way in ways.both() {
        lab.run(&["sbatch", "-w", "node0003", "-o", "/dev/null", "--wrap", "sleep 300"]);
        // Both report the same in one reading, also for a single node.
        lab.wait_for("the job", || lab.run(&["squeue", "-h", "-t", "R"]).contains("node0003"));
        assert!(0 < one(way, "node0003").allocated_cpus.expect("a number"), "{}", way.name());
        done(way, &["node0003"], &drain("fabricgate:x:r1 e1"));
        let node = one(way, "node0003");
        assert!(node.has_state("DRAIN") && !node.has_state("IDLE"), "{node:?}");
        assert!(node.has_state("MIXED") || node.has_state("ALLOCATED"), "{node:?}");
        let jobs = lab.run(&["squeue", "-h", "-t", "R", "-o", "%N"]);
        assert_eq!(jobs.trim(), "node0003", "the job goes on");
        lab.run(&["scancel", "--user=root"]);
        lab.wait_for("it drained", || one(way, "node0003").state == ["IDLE", "DRAIN"]);
        assert_eq!(one(way, "node0003").allocated_cpus, Some(0));
        done(way, &["node0003"], &resume());
        lab.settle();
    }
}

#[test]
fn reasons_are_read_back_as_they_were_written() {
    let Some(lab) = lab() else { return };
    let ways = Ways::to(&lab);
    let long = "x".repeat(300);
    for way in ways.both() {
        for reason in [
            "fabricgate:nvlink-low:20261121T041821Z-7f e12",
            "it's \"43.1\" < 45.0",
            "\"all of it\"",
            "says \"low\"",
            "\"low\" it says",
            "a=b; $(x) `y` | z > /dev/null & * ? [1] {2}",
            "NodeName=node0002 State=DOWN",
            "größer als 5 µs, 电缆, кабель",
            "🙂👩🏽‍🔧",
            " blanks  stay ",
            "-h",
            long.as_str(),
        ] {
            done(way, &["node0012"], &drain(reason));
            for reader in ways.both() {
                let node = one(reader, "node0012");
                assert_eq!(node.reason.as_deref(), Some(reason), "{}", way.name());
            }
        }
        for refused in ["", " ", "two\nlines", "a\ttab", "\u{1b}[31mred\u{1b}[0m", "a\u{0}b"] {
            let error = try_update(way, &["node0012"], &drain(refused)).expect_err(refused);
            assert_eq!(error.kind, SourceProblemKind::Malformed, "{error}");
            assert!(!error.message.contains(char::is_control), "{error:?}");
        }
        let node = one(way, "node0012");
        assert_eq!(node.reason.as_deref(), Some(long.as_str()), "nothing of it was sent");
    }
    done(&ways.scontrol, &["node0012"], &resume());
}

#[test]
fn foreign_fields_with_any_content_are_read() {
    let Some(lab) = lab() else { return };
    let ways = Ways::to(&lab);
    for reason in
        ["line 1\nline 2\nState=IDLE", "a\ttab", "\u{1b}[31mred\u{1b}[0m", "N/A", "(null)"]
    {
        lab.update("node0013", &["State=DRAIN", &format!("Reason={reason}")]);
        for way in ways.both() {
            let node = one(way, "node0013");
            assert_eq!(node.reason.as_deref(), Some(reason), "{}", way.name());
            assert_eq!(node.state, ["IDLE", "DRAIN"]);
        }
    }
    // Invalid UTF-8: Slurm prints the bytes as they are.
    let script = r#"scontrol update NodeName=node0013 State=DRAIN Reason="$(printf 'a\377b')""#;
    lab.run(&["sh", "-ec", script]);
    for way in ways.both() {
        assert_eq!(one(way, "node0013").reason.as_deref(), Some("a\u{fffd}b"), "{}", way.name());
    }
    done(&ways.scontrol, &["node0013"], &resume());
}

#[test]
fn features_are_written_whole_and_can_be_taken_away() {
    let Some(lab) = lab() else { return };
    let ways = Ways::to(&lab);
    let list = |words: &[&str]| Some(words.iter().map(|word| (*word).to_owned()).collect());
    let features = |available: &[&str], active: &[&str]| NodeUpdate {
        available_features: list(available),
        active_features: list(active),
        ..NodeUpdate::default()
    };
    let pair = ["node0014", "node0015"];
    for way in ways.both() {
        let steps: [(&[&str], &[&str]); 5] = [
            (&["gb200", "site", "fabric_degraded"], &["gb200", "fabric_degraded"]),
            (&["gb200", "site"], &["gb200"]),
            (&["gb200", "site", "fabric_verified"], &["gb200", "site", "fabric_verified"]),
            (&[], &[]),
            (&["gb200"], &["gb200"]),
        ];
        for (available, active) in steps {
            done(way, &pair, &features(available, active));
            for node in seen(way, &pair).nodes.values() {
                assert_eq!(node.available_features, available, "{}", way.name());
                assert_eq!(node.active_features, active, "{}", way.name());
            }
        }
        // A single list: available features become active, and active ones cannot be dropped.
        let alone = |words: &[&str]| NodeUpdate {
            available_features: list(words),
            ..NodeUpdate::default()
        };
        done(way, &pair, &alone(&["gb200", "more"]));
        assert_eq!(one(way, "node0014").active_features, ["gb200", "more"]);
        try_update(way, &pair, &alone(&["gb200"])).expect_err("it is active");
        done(way, &pair, &features(&["gb200"], &["gb200"]));
    }
}

#[test]
fn features_go_with_a_reconfiguration_and_the_free_fields_stay() {
    let Some(lab) = lab() else { return };
    let ways = Ways::to(&lab);
    let words = || Some(vec!["gb200".to_owned(), "fabric_verified".to_owned()]);
    let change = NodeUpdate {
        available_features: words(),
        active_features: words(),
        extra: Some(r#"{"fabricgate":{"run":"r1"}}"#.to_owned()),
        comment: Some("rack visit on monday".to_owned()),
        ..drain("fabricgate:x:r1 e1")
    };
    for way in ways.both() {
        done(way, &["node0016"], &change);
        lab.run(&["scontrol", "reconfigure"]);
        // For a moment its state is UNKNOWN.
        lab.wait_for("its daemon", || one(&ways.scontrol, "node0016").has_state("IDLE"));
        let node = one(way, "node0016");
        assert_eq!(node.active_features, ["gb200"], "as in slurm.conf");
        assert_eq!(node.extra, r#"{"fabricgate":{"run":"r1"}}"#);
        assert_eq!(node.comment, "rack visit on monday");
        assert_eq!(node.reason.as_deref(), Some("fabricgate:x:r1 e1"));
        assert_eq!(node.state, ["IDLE", "DRAIN"]);
        let undo =
            NodeUpdate { extra: Some(String::new()), comment: Some(String::new()), ..resume() };
        done(way, &["node0016"], &undo);
        lab.wait_for("it idle", || one(way, "node0016").state == ["IDLE"]);
        let node = one(way, "node0016");
        assert_eq!((node.extra.as_str(), node.comment.as_str()), ("", ""));
    }
}

#[test]
fn a_name_that_stands_for_more_than_one_node_is_refused() {
    let Some(lab) = lab() else { return };
    let ways = Ways::to(&lab);
    lab.update("ALL", &["Comment=everybody"]);
    for way in ways.both() {
        for name in ["ALL", "all", "node[0001-0036]", "node0001,node0002", "block{block01}", "-h"] {
            let error = try_update(way, &["node0001", name], &comment("ours")).expect_err(name);
            assert_eq!(error.kind, SourceProblemKind::Malformed, "{error}");
            let error = now(way.read_nodes(&named(&[name]))).expect_err(name);
            assert_eq!(error.kind, SourceProblemKind::Malformed, "{error}");
        }
        let all = seen(way, &[]);
        assert!(all.nodes.values().all(|it| it.comment == "everybody"), "Slurm's meaning of ALL");
    }
    lab.update("ALL", &["Comment="]);
}
