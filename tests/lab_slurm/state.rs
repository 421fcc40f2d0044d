//! Lost or restored state, on a real Slurm: a lost gate machine, a controller without its state,
//! an older journal, unknown nodes.

use std::fs;
use std::path::Path;

use control::gate::{journal, slurm_allocation};
use control::launch::slurm::SlurmPrograms;

use crate::carry::tidy;
use crate::gate::{expect, newest, with_faults};
use crate::hold::{
    HEALTHY, ProgramOutput, drained_by_us, endless, fabricgate, furnish, site, start,
};
use crate::*;

const NODE: &str = "node0007";

/// Restores everything, also after a failed test.
struct Calm<'l>(&'l Lab);

impl Drop for Calm<'_> {
    fn drop(&mut self) {
        tidy(self.0);
    }
}

fn drained(lab: &Lab, node: &str) -> Option<String> {
    let (state, reason) = lab.node(node);
    state.iter().any(|word| word == "DRAIN").then_some(reason)
}

/// A sweep that is killed while it measures a node whose drain it lifted, apparently on another
/// machine.
fn killed_elsewhere(lab: &Lab) -> (tempfile::TempDir, String) {
    let site = endless(lab);
    let reason = drained_by_us(lab, &site, NODE);
    let running = start(&site, &["recertify", "node[0001-0008]", "--partners", "0"]);
    lab.wait_for("our job", || lab.holds().contains("RUNNING"));
    running.signal("-KILL");
    running.end();
    let file = site.path().join("gate/journal.jsonl");
    let text = fs::read_to_string(&file).expect("a journal");
    let own = fs::read_to_string("/proc/sys/kernel/hostname").expect("a name");
    let own = format!("\"host\":\"{}\"", own.trim());
    assert!(text.contains(&own), "{text}");
    fs::write(&file, text.replace(&own, "\"host\":\"gateb\"")).expect("written");
    (site, reason)
}

/// The name of fabricgate's reservation.
fn reservation(lab: &Lab) -> String {
    let listed = lab.run(&["scontrol", "show", "reservation", "-o"]);
    let words = listed.split_whitespace().find_map(|it| it.strip_prefix("ReservationName="));
    words.expect("a reservation").to_owned()
}

#[test]
fn defect_1_a_hold_ends_by_slurms_state_on_any_machine() {
    let Some(lab) = lab() else { return };
    let _calm = Calm(&lab);
    let (site, reason) = killed_elsewhere(&lab);
    let output = fabricgate(&site, &["gate", "recover"]);
    expect(&output, 6);
    assert!(output.stderr.contains("gate recover --gone gateb --why"), "{}", output.stderr);
    assert!(drained(&lab, NODE).is_none(), "its process may live");
    // As an operator would.
    let name = reservation(&lab);
    lab.run(&["scancel", "--user=root"]);
    lab.wait_for("no job", || lab.run(&["squeue", "-h"]).is_empty());
    lab.run(&["scontrol", "delete", &format!("ReservationName={name}")]);
    let output = fabricgate(&site, &["gate", "recover"]);
    expect(&output, 0);
    assert_eq!(drained(&lab, NODE), Some(reason), "{}", output.stderr);
    assert_eq!(lab.holds(), "");
}

#[test]
fn defect_1_a_machine_that_an_operator_declares_gone_holds_nothing() {
    let Some(lab) = lab() else { return };
    let _calm = Calm(&lab);
    let (site, reason) = killed_elsewhere(&lab);
    let wrong = fabricgate(&site, &["gate", "recover", "--gone", "gatec", "--why", "typo"]);
    expect(&wrong, 2);
    assert!(wrong.stderr.contains("the allocations belong to gateb"), "{}", wrong.stderr);
    let output = fabricgate(&site, &["gate", "recover", "--gone", "gateb", "--why", "burnt"]);
    expect(&output, 0);
    assert_eq!(drained(&lab, NODE), Some(reason), "{}", output.stderr);
    assert_eq!(lab.holds(), "", "{}", output.stderr);
    let text = fs::read_to_string(site.path().join("gate/journal.jsonl")).expect("a journal");
    assert!(text.contains("\"event\":\"gone\"") && text.contains("burnt"), "{text}");
}

#[test]
fn defect_1_a_reservation_is_renewed_from_now() {
    let Some(lab) = lab() else { return };
    let name = "fabricgate-renewed-maint";
    let words = ["ReservationName=fabricgate-renewed-maint", "Nodes=node0007", "StartTime=now"];
    let words = [&["scontrol", "create", "reservation"], &words[..]].concat();
    lab.run(&[&words[..], &["Duration=10", "Users=root", "Flags=MAINT,IGNORE_JOBS"]].concat());
    let programs = SlurmPrograms { scontrol: lab.argv(&["scontrol"]), ..SlurmPrograms::default() };
    let renewed =
        now(slurm_allocation::renew_reservation(&programs, Duration::from_secs(15), name));
    let listed = lab.run(&["scontrol", "show", "reservation", "-o"]);
    lab.run(&["scontrol", "delete", &format!("ReservationName={name}")]);
    lab.settle();
    assert_eq!(renewed, Ok(()));
    assert!(listed.contains("Duration=1-00:00:"), "{listed}");
}

/// Stops the controller, and starts it without its state.
fn forgetful(lab: &Lab) {
    lab.signal("KILL");
    lab.run(&["slurmctld", "-c"]);
    lab.wait_for("every node idle", || {
        let (states, _) = lab.finished(&["sinfo", "-h", "-N", "-p", "main", "-o", "%T"]);
        !states.is_empty() && states.lines().all(|state| state == "idle")
    });
}

#[test]
fn defect_2_a_controller_without_its_state_undoes_nothing() {
    let Some(lab) = lab() else { return };
    let _calm = Calm(&lab);
    furnish(&lab, &with_faults(&[NODE]));
    let site = site(&lab, "", "");
    expect(&fabricgate(&site, &["audit", "node[0003-0011]"]), 3);
    let run = newest(&site.path().join("runs"));
    expect(&fabricgate(&site, &["apply", &run, "--apply"]), 0);
    let reason = drained(&lab, NODE);
    assert!(reason.is_some());
    forgetful(&lab);
    assert_eq!(drained(&lab, NODE), None);
    let again = fabricgate(&site, &["apply", &run, "--apply"]);
    expect(&again, 0);
    assert_eq!(drained(&lab, NODE), reason, "{}", again.stderr);
    assert!(again.stderr.contains("the controller lost the fabricgate drain"), "{}", again.stderr);
    forgetful(&lab);
    expect(&fabricgate(&site, &["gate", "recover"]), 0);
    assert_eq!(drained(&lab, NODE), reason);
    // An operator's change, and then a start that loses nothing.
    lab.resume(NODE);
    lab.settle();
    lab.signal("TERM");
    lab.wait_for("its end", || !lab.finished(&["scontrol", "ping"]).0.contains("is UP"));
    lab.run(&["slurmctld"]);
    lab.settle();
    let respected = fabricgate(&site, &["apply", &run, "--apply"]);
    assert_eq!(drained(&lab, NODE), None, "{}", respected.stdout);
    assert!(respected.stdout.contains("undone manually"), "{}", respected.stdout);
}

fn copied(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a folder");
    fs::copy(from.join(journal::JOURNAL_FILE), to.join(journal::JOURNAL_FILE)).expect("copied");
}

#[test]
fn defect_3_of_security_an_older_journal_trips_the_breaker() {
    let Some(lab) = lab() else { return };
    let _calm = Calm(&lab);
    furnish(&lab, &with_faults(&[NODE]));
    let policy = "[policy]\nper_hour = 0.25\noutstanding = 0.25\n";
    let site = site(&lab, "", policy);
    let (gate, copy) = (site.path().join("gate"), site.path().join("copy"));
    expect(&fabricgate(&site, &["audit", "node[0003-0011]", "--apply"]), 3);
    let run = newest(&site.path().join("runs"));
    copied(&gate, &copy);
    furnish(&lab, &with_faults(&["node0025"]));
    expect(&fabricgate(&site, &["audit", "node[0021-0029]", "--apply"]), 3);
    assert!(drained(&lab, "node0025").is_some());
    copied(&copy, &gate);
    let output = fabricgate(&site, &["apply", &run, "--apply"]);
    expect(&output, 6);
    assert!(output.stderr.contains("an older copy of it was restored"), "{}", output.stderr);
    let status = fabricgate(&site, &["gate", "status"]);
    assert!(status.stdout.contains("TRIPPED"), "{}", status.stdout);
    assert!(status.stdout.contains("not in the journal: node0025"), "{}", status.stdout);
    // An operator inspects the node, and takes it over.
    expect(&fabricgate(&site, &["gate", "reset", "--why", "restored from the backup"]), 0);
    let adopted = fabricgate(&site, &["gate", "adopt", "node0025", "--why", "of the lost days"]);
    expect(&adopted, 0);
    let output = fabricgate(&site, &["apply", &run, "--apply"]);
    expect(&output, 0);
    let status = fabricgate(&site, &["gate", "status"]);
    assert!(status.stdout.contains("drained by fabricgate: 2"), "{}", status.stdout);
}

#[test]
fn defect_17_an_unknown_drain_of_fabricgates_form_is_adopted_and_measured() {
    let Some(lab) = lab() else { return };
    let _calm = Calm(&lab);
    furnish(&lab, HEALTHY);
    let site = site(&lab, "", "");
    lab.drain(NODE, "fabricgate:20250101-101010-abcdef:nvlink-low e3");
    let output = fabricgate(&site, &["recertify", "node[0007-0010]", "--partners", "0"]);
    assert!(output.stderr.contains("gate adopt node0007 --why"), "{}", output.stderr);
    let adopt = |node: &str| -> ProgramOutput {
        fabricgate(&site, &["gate", "adopt", node, "--why", "the old head node is gone"])
    };
    expect(&adopt("node0008"), 2);
    expect(&adopt("node9999"), 2);
    expect(&adopt(NODE), 0);
    expect(&adopt(NODE), 0);
    let output = fabricgate(&site, &["recertify", "node[0007-0010]", "--partners", "0", "--apply"]);
    assert!(output.stderr.contains("reserving"), "{}", output.stderr);
    let status = fabricgate(&site, &["gate", "status"]);
    assert!(status.stdout.contains("clean 1/2"), "{}", status.stdout);
}

#[test]
fn defect_3_a_node_that_slurm_no_longer_has_is_forgotten_and_no_other() {
    let Some(lab) = lab() else { return };
    let _calm = Calm(&lab);
    let site = site(&lab, "", "");
    // As if it had been in slurm.conf then.
    drained_by_us(&lab, &site, NODE);
    let file = site.path().join("gate/journal.jsonl");
    let text = fs::read_to_string(&file).expect("a journal");
    fs::write(&file, text.replace(NODE, "node9007")).expect("written");
    lab.resume(NODE);
    lab.settle();
    let status = || fabricgate(&site, &["gate", "status"]).stdout;
    assert!(status().contains("drains at a time: 0 of 1 left"), "{}", status());
    let output = fabricgate(&site, &["gate", "forget", "node0008", "--why", "sold"]);
    expect(&output, 2);
    assert!(output.stderr.contains("is known to the scheduler"), "{}", output.stderr);
    expect(&fabricgate(&site, &["gate", "forget", "node9007", "--why", "sold"]), 0);
    assert!(status().contains("drains at a time: 1 of 1 left"), "{}", status());
    assert!(status().contains("drained by fabricgate: 0"), "{}", status());
}
