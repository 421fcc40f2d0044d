//! The whole gate on a real Slurm: a fault found, drained, repaired, measured again and returned,
//! and an operator's drain left alone.

#[path = "state.rs"]
mod state;

use std::fs;
use std::path::Path;

use super::hold::{HEALTHY, ProgramOutput, fabricgate, furnish, site};
use super::*;

const OPERATORS: &str = "psu: swap, ticket 4711";

/// The minimum of nodes of the first rack for an audit: the gate is under test here, and each
/// further node adds processes.
const SOME: &str = "node[0003-0011]";

/// The lab's two racks with half the links of one GPU lost on each of these nodes.
pub(super) fn with_faults(nodes: &[&str]) -> String {
    let fault = |node: &&str| {
        format!("\n[[fault]]\nkind = \"lost-links\"\ngpu = \"{node}:2\"\ncount = 9\n")
    };
    nodes.iter().map(fault).fold(HEALTHY.to_owned(), |text, fault| text + &fault)
}

impl Lab {
    /// Drains a node as an operator would.
    fn drain_by_hand(&self, node: &str) {
        let (node, reason) = (format!("NodeName={node}"), format!("Reason={OPERATORS}"));
        self.run(&["scontrol", "update", &node, "State=DRAIN", &reason]);
    }

    pub(super) fn is_drained(&self, node: &str) -> bool {
        self.node(node).0.iter().any(|word| word == "DRAIN")
    }

    /// Active features of a node.
    pub(super) fn features(&self, node: &str) -> String {
        let shown = self.run(&["scontrol", "show", "node", node, "-o"]);
        let features = shown.split_whitespace().find_map(|it| it.strip_prefix("ActiveFeatures="));
        features.expect("features").to_owned()
    }

    /// Resets everything that these tests change on nodes.
    pub(super) fn forget(&self) {
        self.run(&["scontrol", "update", "NodeName=ALL", "Extra="]);
        // This also removes features that were set by hand.
        self.run(&["scontrol", "reconfigure"]);
    }
}

pub(super) fn expect(output: &ProgramOutput, code: i32) {
    assert_eq!(output.code, Some(code), "{}\n{}", output.stdout, output.stderr);
}

#[test]
fn a_fault_is_found_drained_repaired_measured_again_and_returned() {
    let Some(lab) = lab() else { return };
    furnish(&lab, &with_faults(&["node0007"]));
    let site = site(&lab, "", "[policy]\nclean_hours = 1\n");
    lab.drain_by_hand("node0020");

    // A dry run prints its plan, and changes nothing.
    let dry = fabricgate(&site, &["audit", SOME]);
    expect(&dry, 3);
    assert!(dry.stdout.contains("NodeName=node0007"), "{}", dry.stdout);
    assert!(!lab.is_drained("node0007"), "a dry run changes nothing");
    assert_eq!(lab.holds(), "", "a dry run leaves nothing held");

    let applied = fabricgate(&site, &["audit", SOME, "--apply"]);
    expect(&applied, 3);
    let (state, reason) = lab.node("node0007");
    assert!(state.iter().any(|word| word == "DRAIN"), "{state:?} {}", applied.stderr);
    assert!(reason.starts_with("fabricgate:"), "{reason}");
    // Defects 12 and 13 of the operator's review: `sinfo -R` shows the class, and the pasted
    // reason finds the evidence.
    let short = lab.run(&["sinfo", "-h", "-R", "-o", "%20E"]);
    assert!(short.contains("fabricgate:nvlink-"), "{short}");
    let explained = fabricgate(&site, &["explain", &reason]);
    expect(&explained, 0);
    assert!(explained.stdout.contains("node0007"), "{}", explained.stdout);
    let listed =
        lab.run(&["sinfo", "-h", "-p", "main", "-t", "drain", "-O", "NodeList,Reason:120"]);
    assert!(listed.contains("fabricgate:") && listed.contains(OPERATORS), "{listed}");
    assert!(!lab.features("node0007").contains("fabric_verified"));

    // Before the repair, measuring again changes nothing.
    let again = fabricgate(&site, &["recertify", SOME, "--apply"]);
    expect(&again, 3);
    assert_eq!(lab.node("node0007").1, reason, "{}", again.stderr);

    furnish(&lab, HEALTHY);
    let first = fabricgate(&site, &["recertify", SOME, "--apply"]);
    assert!(lab.is_drained("node0007"), "one clean run is not two: {}", first.stderr);
    assert_eq!(lab.node("node0007").1, reason);
    // Defect 7 of the operator's review: a second run right after it does not count, and the
    // output states when a run counts.
    let soon = fabricgate(&site, &["recertify", "node0007", "--with-domain", "--apply"]);
    assert!(lab.is_drained("node0007"), "{}", soon.stderr);
    let text = soon.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(text.contains("was made too soon after it; the next run counts from"), "{text}");
    let file = site.path().join("fabricgate.toml");
    let config = fs::read_to_string(&file).expect("a configuration");
    let config = config.replace("clean_hours = 1", "clean_hours = 0");
    fs::write(&file, config).expect("written");
    let second = fabricgate(&site, &["recertify", "node0007", "--with-domain", "--apply"]);
    expect(&second, 0);
    lab.wait_for("node0007 idle", || lab.node("node0007").0 == ["IDLE"]);
    // 24.11 leaves the reason of a drain on the node when that is over.
    if lab.has_yaml() {
        assert_eq!(lab.node("node0007").1, "", "a returned node has no reason");
    }
    let features = lab.features("node0007");
    assert!(features.contains("gb200") && features.contains("fabric_verified"), "{features}");
    let certificate = site.path().join("gate/certificates/node0007.json");
    let certificate = fs::read_to_string(&certificate).expect("a certificate");
    assert!(certificate.contains("fabricgate.certificate/1"), "{certificate}");

    // The operator's drain is unchanged.
    let (state, reason) = lab.node("node0020");
    assert!(state.iter().any(|word| word == "DRAIN"), "{state:?}");
    assert_eq!(reason, OPERATORS);
    assert_eq!(lab.holds(), "", "nothing is held any more");
    lab.forget();
}

#[test]
fn three_suspects_of_one_rack_trip_the_breaker_and_drain_no_node() {
    let Some(lab) = lab() else { return };
    let bad = ["node0003", "node0007", "node0011"];
    furnish(&lab, &with_faults(&bad));
    let site = site(&lab, "", "");
    let output = fabricgate(&site, &["audit", SOME, "--apply"]);
    expect(&output, 6);
    for node in bad {
        assert!(!lab.is_drained(node), "{}", output.stdout);
    }
    assert!(
        output.stdout.contains("frozen") || output.stderr.contains("frozen"),
        "{}",
        output.stdout
    );
    lab.forget();
}

#[test]
fn a_lost_state_folder_is_not_a_fresh_start() {
    let Some(lab) = lab() else { return };
    furnish(&lab, &with_faults(&["node0007"]));
    let site = site(&lab, "", "");
    expect(&fabricgate(&site, &["audit", "--apply"]), 3);
    let run = newest(&site.path().join("runs"));
    lab.run(&["scontrol", "update", "NodeName=node0007", "State=RESUME"]);
    lab.settle();
    // As where its file system is not mounted.
    fs::rename(site.path().join("gate"), site.path().join("away")).expect("renamed");
    let status = fabricgate(&site, &["gate", "status"]);
    assert!(status.stderr.contains("there is no journal"), "{}", status.stderr);
    let again = fabricgate(&site, &["apply", &run, "--apply"]);
    expect(&again, 6);
    assert!(!lab.is_drained("node0007"), "the person's change is unknown: {}", again.stdout);
    assert!(again.stdout.contains("a gate has marked node0007"), "{}", again.stdout);
    // An operator's statement that the record is lost is accepted.
    expect(&fabricgate(&site, &["gate", "reset", "--why", "the disk is gone"]), 0);
    expect(&fabricgate(&site, &["apply", &run, "--apply"]), 0);
    assert!(lab.is_drained("node0007"));
    lab.forget();
}

#[test]
fn a_drain_that_a_person_took_away_is_not_made_again_for_the_same_evidence() {
    let Some(lab) = lab() else { return };
    furnish(&lab, &with_faults(&["node0007"]));
    let site = site(&lab, "", "");
    expect(&fabricgate(&site, &["audit", SOME, "--apply"]), 3);
    assert!(lab.is_drained("node0007"));
    lab.run(&["scontrol", "update", "NodeName=node0007", "State=RESUME"]);
    lab.settle();
    let again = fabricgate(&site, &["audit", SOME, "--apply"]);
    assert!(!lab.is_drained("node0007"), "{}", again.stdout);
    assert!(again.stdout.contains("undone"), "{}", again.stdout);
    lab.forget();
}

#[test]
fn a_stored_run_is_applied_through_slurmrestd_and_a_second_time_changes_nothing() {
    let Some(lab) = lab() else { return };
    furnish(&lab, &with_faults(&["node0030"]));
    let rest = format!(
        "[sources.slurmrestd]\naddress = \"unix:{}\"\ntoken_file = \"token\"\n",
        lab.socket
    );
    let site = site(&lab, "", &rest);
    fs::write(site.path().join("token"), lab.token()).expect("written");
    let config = site.path().join("fabricgate.toml");
    let text = fs::read_to_string(&config).expect("a configuration");
    // The lab itself is the claim: without this, sources would be queried as well.
    let text = text.replace("[gate]\n", "[gate]\nthrough = \"slurmrestd\"\n");
    fs::write(&config, text).expect("written");
    expect(&fabricgate(&site, &["audit", "node[0027-0034]"]), 3);
    let run = newest(&site.path().join("runs"));

    let dry = fabricgate(&site, &["apply", &run]);
    expect(&dry, 0);
    assert!(dry.stdout.contains("node0030"), "{}", dry.stdout);
    assert!(!lab.is_drained("node0030"));
    let applied = fabricgate(&site, &["apply", &run, "--apply"]);
    expect(&applied, 0);
    assert!(lab.is_drained("node0030"), "{}", applied.stdout);
    let before = lab.run(&["scontrol", "show", "node", "node0030", "-o"]);
    let again = fabricgate(&site, &["apply", &run, "--apply"]);
    expect(&again, 0);
    assert_eq!(lab.run(&["scontrol", "show", "node", "node0030", "-o"]), before);
    let status = fabricgate(&site, &["gate", "status"]);
    assert!(status.stdout.contains("drained by fabricgate: 1"), "{}", status.stdout);
    assert!(status.stdout.contains("IDLE+DRAIN"), "{}", status.stdout);
    // Defect 8 of the operator's review: the output reports an operator's change and its author.
    let taken = ["scontrol", "update", "NodeName=node0030", "Reason=rma INC4712"];
    lab.run(&taken);
    let status = fabricgate(&site, &["gate", "status"]);
    assert!(status.stdout.contains("differing from the journal: 1"), "{}", status.stdout);
    assert!(status.stdout.contains("rma INC4712") && status.stdout.contains("by root"));
    lab.run(&["scontrol", "update", "NodeName=node0030", "State=RESUME"]);
    lab.wait_for("node0030 idle", || lab.node("node0030").0 == ["IDLE"]);
    let status = fabricgate(&site, &["gate", "status"]);
    assert!(status.stdout.contains("fabricgate's drain is missing"), "{}", status.stdout);
    assert!(status.stdout.contains("drained by fabricgate: 0"), "{}", status.stdout);
    let log = fabricgate(&site, &["gate", "log", "--since", "1h", "node0030"]);
    assert!(log.stdout.contains("drain (nvlink-"), "{}", log.stdout);
    lab.forget();
}

pub(super) fn newest(runs: &Path) -> String {
    let runs = fs::read_dir(runs).expect("runs");
    let mut names: Vec<String> =
        runs.map(|it| it.expect("an entry").path().display().to_string()).collect();
    names.sort();
    names.pop().expect("a run")
}
