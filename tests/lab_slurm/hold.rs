//! Nodes measured through a real Slurm: jobs and reservations that exist only for a sweep, even
//! if the sweep is killed. The tools on the nodes are simulated, and answer through the same
//! interface as real ones.

use std::fmt::Write as _;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::sync::mpsc;
use std::{fs, thread};

use control::gate::journal::Journal;
use engine::policy::drain_reason;
use model::action::{Action, ActionKind, ActionResult};
use model::journal::JournalEvent;
use model::node_update::{NodeStateChange, NodeUpdate};
use model::scheduler_snapshot::SchedulerNode;
use node::exec::{ProcessContext, ProcessEvent};
use serde_json::Value;

use super::*;

/// The measuring program, by default the one built with these tests.
const BINARY: &str = "FABRICGATE_LAB_BINARY";

/// The lab's hardware: two healthy racks.
pub(super) const HEALTHY: &str = r#"
title = "The lab's two racks"
seed = 61

[noise]
sigma = 0.002

[[domain]]
name = "block01"
nodes = "node[0001-0018]"
platform = "gb200-nvl72"

[[domain]]
name = "block02"
nodes = "node[0019-0036]"
platform = "gb200-nvl72"
"#;

/// Some nodes of both racks; more would not show more.
const SOME: &str = "node[0001-0004,0019-0022]";

/// The stand-in for fabricgate on a node: the same program, with the scenario, the node's name
/// and the simulated tools around it.
const WORKER: &str = "#!/bin/sh\n\
    export FABRICGATE_SIM=/srv/scenario.toml FABRICGATE_SIM_NODE=$SLURMD_NODENAME\n\
    export PATH=/srv/tools:$PATH\n\
    exec /srv/fabricgate \"$@\"\n";

/// The path of the program on this machine.
pub(super) fn binary() -> String {
    std::env::var(BINARY).unwrap_or(env!("CARGO_BIN_EXE_fabricgate").to_owned())
}

/// Copies the program, its simulated tools and a scenario into the lab.
pub(super) fn furnish(lab: &Lab, scenario: &str) {
    let srv = Path::new(&lab.run).parent().expect("the lab's folder").join("srv");
    let (from, to) = (binary(), srv.join("fabricgate"));
    let made = |path: &Path| fs::metadata(path).and_then(|it| it.modified()).ok();
    if made(&to) < made(Path::new(&from)) {
        // A running program cannot be written to, only replaced.
        fs::copy(&from, srv.join("fabricgate.new")).expect("copied");
        fs::rename(srv.join("fabricgate.new"), &to).expect("renamed");
    }
    let tools = srv.join("tools");
    fs::create_dir_all(&tools).expect("a folder");
    // The real srun starts ranks, so no program simulates mpirun.
    for name in sim::tool_dispatch::NAMES.iter().filter(|name| **name != "mpirun") {
        let link = tools.join(name);
        if !link.exists() {
            symlink("../fabricgate", link).expect("a link");
        }
    }
    fs::write(srv.join("scenario.toml"), scenario).expect("written");
    // Jobs of a killed sweep may still be about to start it.
    fs::write(srv.join("worker.new"), WORKER).expect("written");
    let executable = fs::Permissions::from_mode(0o755);
    fs::set_permissions(srv.join("worker.new"), executable).expect("changed");
    fs::rename(srv.join("worker.new"), srv.join("worker")).expect("renamed");
}

/// A partition in which a job may name any nodes: that of the lab with a flat topology, or, on
/// 24.11, the only one.
pub(super) fn partition(lab: &Lab) -> &'static str {
    if lab.has_yaml() { "probe" } else { "main" }
}

/// A folder with claims and a configuration that measures the lab's nodes through its Slurm.
/// `launcher` are further lines of that section, `rest` further sections.
pub(super) fn site(lab: &Lab, launcher: &str, rest: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let mut claims = String::new();
    for (name, nodes) in [("block01", "node[0001-0018]"), ("block02", "node[0019-0036]")] {
        let about = "platform = \"gb200-nvl72\"\ngpus_per_node = 4";
        writeln!(claims, "[[domain]]\nname = {name:?}\nnodes = {nodes:?}\n{about}").expect("text");
    }
    fs::write(folder.path().join("claims.toml"), claims).expect("written");
    let partition = match launcher.contains("partition") {
        true => String::new(),
        false => format!("partition = {:?}\n", partition(lab)),
    };
    let limit = if launcher.contains("time_limit") { "" } else { "time_limit = \"20\"\n" };
    // The lab has no PMIx, and simulated ranks do not communicate.
    let config = format!(
        "claims = \"claims.toml\"\n\
         [launcher]\nkind = \"slurm\"\nscontrol = [{:?}, \"scontrol\"]\n{partition}\
         worker = \"/srv/worker\"\nmpi = \"none\"\n{limit}{launcher}\n\
         [gate]\nstate = \"gate\"\nkeep_s = 1\nin_flight_s = 0\nscontrol = [{:?}, \"scontrol\"]\n\
         [probes]\nrun = [\"nvbandwidth-ce\", \"nvidia-smi-nvlink\", \"nvbandwidth-lane\"]\n\
         [sweep]\nmatchings = 2\n[confirm]\nwait_s = 0\n{rest}",
        lab.run, lab.run
    );
    fs::write(folder.path().join("fabricgate.toml"), config).expect("written");
    folder
}

/// Result of the program.
#[derive(Debug)]
pub(super) struct ProgramOutput {
    pub(super) code: Option<i32>,
    pub(super) stdout: String,
    pub(super) stderr: String,
}

impl ProgramOutput {
    fn document(&self) -> Value {
        serde_json::from_str(&self.stdout)
            .unwrap_or_else(|error| panic!("{error}: {} {}", self.stdout, self.stderr))
    }

    /// Outcome and reason of every node.
    fn nodes(&self) -> BTreeMap<String, (String, String)> {
        let document = self.document();
        let nodes = document["verdicts"]["nodes"].as_array();
        let nodes = nodes.unwrap_or_else(|| panic!("{} {}", self.stdout, self.stderr));
        let text = |it: &Value, key: &str| it[key].as_str().expect("a text").to_owned();
        let node = |it: &Value| (text(it, "node"), (text(it, "outcome"), text(it, "reason")));
        nodes.iter().map(node).collect()
    }

    /// The nodes with this outcome, as a host list.
    fn with(&self, outcome: &str) -> String {
        let nodes = self.nodes();
        let those = nodes.iter().filter(|(_, (own, _))| own == outcome);
        hostlist::fold(those.map(|(node, _)| node.as_str()))
    }
}

/// A running program.
pub(super) struct Running {
    pid: i32,
    thread: thread::JoinHandle<ProgramOutput>,
}

impl Running {
    pub(super) fn signal(&self, signal: &str) {
        let argv = ["kill", signal, &self.pid.to_string()].map(str::to_owned).to_vec();
        let request = ProcessRequest { argv, limit: Duration::from_secs(5), capture: 1 << 10 };
        let (_sender, stop) = tokio::sync::watch::channel(false);
        assert!(now(exec::run(&request, stop)).expect("kill").ending.is_success());
    }

    pub(super) fn end(self) -> ProgramOutput {
        self.thread.join().expect("the program")
    }
}

/// Starts the program with these arguments in addition to its configuration.
pub(super) fn start(site: &tempfile::TempDir, arguments: &[&str]) -> Running {
    let config = site.path().join("fabricgate.toml").display().to_string();
    let words = arguments.iter().copied().chain(["--config", &config]).map(str::to_owned);
    let argv: Vec<String> = std::iter::once(binary()).chain(words).collect();
    let (send_group, groups) = mpsc::channel();
    let thread = thread::spawn(move || {
        let request =
            ProcessRequest { argv, limit: Duration::from_secs(300), capture: exec::CAPTURE };
        let (_sender, stop) = tokio::sync::watch::channel(false);
        let setting = ProcessContext::default();
        let mut seen = |seen: ProcessEvent<'_>| {
            if let ProcessEvent::Started { group } = seen {
                send_group.send(group).expect("the receiver exists");
            }
        };
        let finished =
            now(exec::run_observed(&request, &setting, stop, &mut seen)).expect("started");
        let code = match finished.ending {
            ProcessEnding::Exited { code } => Some(code),
            _ => None,
        };
        let text = |bytes| String::from_utf8(bytes).expect("text");
        let (stdout, stderr) = (text(finished.stdout.bytes), text(finished.stderr.bytes));
        ProgramOutput { code, stdout, stderr }
    });
    Running { pid: groups.recv().expect("it starts"), thread }
}

pub(super) fn fabricgate(site: &tempfile::TempDir, arguments: &[&str]) -> ProgramOutput {
    start(site, arguments).end()
}

impl Lab {
    /// State and reason of a node.
    pub(super) fn node(&self, name: &str) -> (Vec<String>, String) {
        let text = self.run(&["scontrol", "show", "node", name, "--json"]);
        let document: Value = serde_json::from_str(&text).expect("JSON");
        let node = &document["nodes"][0];
        let state = node["state"].as_array().expect("a state").iter();
        let state = state.map(|word| word.as_str().expect("a word").to_owned()).collect();
        (state, node["reason"].as_str().unwrap_or_default().to_owned())
    }

    /// fabricgate's jobs and reservations, by name.
    pub(super) fn holds(&self) -> String {
        let jobs = self.run(&["squeue", "-h", "-a", "-o", "%j %T"]);
        let (reservations, _) = self.finished(&["scontrol", "show", "reservation", "-o"]);
        jobs.lines()
            .chain(reservations.lines())
            .filter(|it| it.contains("fabricgate"))
            .fold(String::new(), |all, one| format!("{all}{one}\n"))
    }

    pub(super) fn drain(&self, node: &str, reason: &str) {
        let (node, reason) = (format!("NodeName={node}"), format!("Reason={reason}"));
        self.run(&["scontrol", "update", &node, "State=DRAIN", &reason]);
    }

    pub(super) fn resume(&self, node: &str) {
        self.finished(&["scontrol", "update", &format!("NodeName={node}"), "State=RESUME"]);
    }
}

/// A drain of fabricgate's, in the journal and in the controller; its reason.
pub(super) fn drained_by_us(lab: &Lab, site: &tempfile::TempDir, node: &str) -> String {
    let run = "20261121-101010-abcdef";
    let mut journal = Journal::open(&site.path().join("gate")).expect("a journal");
    let reason = drain_reason::format_reason(run, "nvlink-low", journal.epoch());
    let action = Action {
        reason: reason.clone(),
        why: "a test".to_owned(),
        ..Action::new(ActionKind::Drain, node)
    };
    let id = format!("{run}/{node}/drain");
    let state = Some(NodeStateChange::Drain { reason: reason.clone() });
    journal
        .append(JournalEvent::Intent {
            id: id.clone(),
            run: run.to_owned(),
            action: Box::new(action),
            change: Box::new(NodeUpdate { state, ..NodeUpdate::default() }),
            before: Box::new(SchedulerNode::new(node, &["IDLE"])),
        })
        .expect("written");
    lab.drain(node, &reason);
    let (result, detail) = (ActionResult::Done, String::new());
    journal.append(JournalEvent::Outcome { id, result, detail }).expect("written");
    reason
}

/// The events of a site's journal, by their names.
fn events(site: &tempfile::TempDir) -> Vec<Value> {
    let text = fs::read_to_string(site.path().join("gate/journal.jsonl")).expect("a journal");
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

fn count(events: &[Value], name: &str) -> usize {
    events.iter().filter(|it| it["event"] == name).count()
}

#[test]
fn an_audit_through_slurm_measures_every_node_and_leaves_nothing_behind() {
    let Some(lab) = lab() else { return };
    furnish(&lab, HEALTHY);
    let site = site(&lab, "", "");
    let output = fabricgate(&site, &["audit", "--json"]);
    assert_eq!(output.code, Some(0), "{} {}", output.stdout, output.stderr);
    assert_eq!(output.with("pass"), "node[0001-0036]", "{}", output.stderr);
    assert_eq!(lab.holds(), "", "nothing is left");
    // One job per domain, recorded before and after.
    assert!(output.stderr.contains("holds node[0001-0018]"), "{}", output.stderr);
    let events = events(&site);
    assert_eq!((count(&events, "holding"), count(&events, "freed")), (1, 1), "{events:?}");
    // srun started the ranks that span nodes, inside the job.
    let runs = fs::read_dir(site.path().join("runs")).expect("runs");
    let run = runs.map(|it| it.expect("a run").path()).next().expect("a run");
    let results = fs::read_to_string(run.join("results.jsonl")).expect("results");
    let lanes: Vec<&str> = results.lines().filter(|it| it.contains("bisect")).collect();
    assert_eq!(lanes.len(), 36, "{results}");
    assert!(lanes.iter().all(|it| it.contains("\"srun\",\"--jobid=") && !it.contains("mpirun")));
}

#[test]
fn busy_and_drained_nodes_are_left_alone_and_reported() {
    let Some(lab) = lab() else { return };
    furnish(&lab, HEALTHY);
    let site = site(&lab, "", "");
    lab.run(&["sbatch", "-w", "node0003", "-o", "/dev/null", "--wrap", "sleep 300"]);
    lab.drain("node0020", "admin: broken fan");
    lab.wait_for("the job", || lab.run(&["squeue", "-h", "-t", "R", "-o", "%N"]).contains("0003"));
    let output = fabricgate(&site, &["audit", SOME, "--partners", "0", "--json"]);
    let jobs = lab.run(&["squeue", "-h", "-o", "%j %T %N"]);
    let drained = lab.node("node0020");
    lab.run(&["scancel", "--user=root"]);
    lab.resume("node0020");
    assert_eq!(output.code, Some(4), "{} {}", output.stdout, output.stderr);
    assert_eq!(jobs.trim(), "wrap RUNNING node0003", "their job continues, fabricgate's are gone");
    assert_eq!(drained, (words_of("IDLE DRAIN"), "admin: broken fan".to_owned()));
    assert_eq!(output.with("pass"), "node[0001-0002,0004,0019,0021-0022]", "{}", output.stderr);
    let nodes = output.nodes();
    assert!(nodes["node0003"].1.contains("allocated"), "{:?}", nodes["node0003"]);
    assert!(nodes["node0020"].1.contains("broken fan"), "{:?}", nodes["node0020"]);
    assert!(output.stderr.contains("left out: node0003"), "{}", output.stderr);
}

fn words_of(text: &str) -> Vec<String> {
    text.split(' ').map(str::to_owned).collect()
}

/// A scenario in which a tool on node0001 never ends, and a matching configuration.
pub(super) fn endless(lab: &Lab) -> tempfile::TempDir {
    let fault = "[[fault]]\nkind = \"tool-hangs\"\nnode = \"node0001\"\ntool = \"nvbandwidth\"\n";
    furnish(lab, &format!("{HEALTHY}\n{fault}"));
    site(lab, "", "")
}

#[test]
fn a_terminated_sweep_frees_its_nodes() {
    let Some(lab) = lab() else { return };
    let site = endless(&lab);
    let running = start(&site, &["audit", SOME, "--partners", "0", "--json"]);
    lab.wait_for("our jobs", || lab.holds().matches("RUNNING").count() == 2);
    let names = lab.run(&["squeue", "-h", "-o", "%j %u"]);
    assert!(names.lines().all(|it| it.starts_with("fabricgate-2") && it.ends_with("root")));
    lab.wait_for("a worker", || lab.run(&["squeue", "-h", "-s", "-o", "%i"]).lines().count() >= 8);
    running.signal("-TERM");
    let output = running.end();
    assert_eq!(lab.holds(), "", "{}", output.stderr);
    assert_eq!(output.code, Some(4), "{}", output.stderr);
    assert!(output.stderr.contains("interrupted"), "{}", output.stderr);
}

#[test]
fn holds_of_a_killed_sweep_are_freed_by_the_next() {
    let Some(lab) = lab() else { return };
    let site = endless(&lab);
    let running = start(&site, &["audit", SOME, "--partners", "0", "--apply"]);
    lab.wait_for("our jobs", || lab.holds().matches("RUNNING").count() == 2);
    lab.wait_for("a worker", || lab.run(&["squeue", "-h", "-s", "-o", "%i"]).lines().count() >= 8);
    running.signal("-KILL");
    assert_eq!(running.end().code, None);
    assert_eq!(lab.holds().matches("RUNNING").count(), 2, "no process is left to free them");
    furnish(&lab, HEALTHY);
    let output = fabricgate(&site, &["audit", SOME, "--partners", "0", "--apply", "--json"]);
    assert!(output.stderr.contains("left behind by process"), "{}", output.stderr);
    assert_eq!(output.code, Some(0), "{} {}", output.stdout, output.stderr);
    assert_eq!(lab.holds(), "");
    let events = events(&site);
    assert_eq!((count(&events, "holding"), count(&events, "freed")), (2, 2), "{events:?}");
    assert!(events.iter().all(|it| it["action"]["kind"] != "drain"), "no drain: {events:?}");
    lab.forget();
}

#[test]
fn fabricgates_drain_is_measured_in_a_reservation_and_drained_again() {
    let Some(lab) = lab() else { return };
    furnish(&lab, HEALTHY);
    let site = site(&lab, "", "");
    let reason = drained_by_us(&lab, &site, "node0007");
    lab.drain("node0008", "admin: broken fan");
    // An audit lifts no drain, not even fabricgate's.
    let output = fabricgate(&site, &["audit", "node[0007-0010]", "--partners", "0", "--json"]);
    assert_eq!(output.with("unknown"), "node[0007-0008]", "{}", output.stderr);
    let output = fabricgate(&site, &["recertify", "node[0007-0010]", "--partners", "0", "--json"]);
    let (ours, foreign) = (lab.node("node0007"), lab.node("node0008"));
    lab.resume("node0007");
    lab.resume("node0008");
    assert_eq!(
        output.with("pass"),
        "node[0007,0009-0010]",
        "{} {:?}",
        output.stderr,
        output.nodes()
    );
    assert_eq!(ours, (words_of("IDLE DRAIN"), reason));
    assert_eq!(foreign, (words_of("IDLE DRAIN"), "admin: broken fan".to_owned()));
    assert!(output.stderr.contains("reserving node[0007,0009-0010]"), "{}", output.stderr);
    assert_eq!(lab.holds(), "");
}

#[test]
fn fabricgates_drain_with_an_operators_suffix_is_not_lifted_and_keeps_it() {
    let Some(lab) = lab() else { return };
    furnish(&lab, HEALTHY);
    for drained in ["reservation", "no-allocate"] {
        let site = site(&lab, &format!("drained = {drained:?}"), "");
        let reason = drained_by_us(&lab, &site, "node0007");
        let theirs = format!("{reason} -- bob: hands in the rack");
        let words = format!("Reason={theirs}");
        lab.run(&["scontrol", "update", "NodeName=node0007", &words]);
        let output = fabricgate(&site, &["recertify", "node[0007-0008]", "--json"]);
        let now = lab.node("node0007");
        lab.resume("node0007");
        assert_eq!(now, (words_of("IDLE DRAIN"), theirs), "{}", output.stderr);
        assert_eq!(output.with("unknown"), "node0007", "{}", output.stderr);
        assert!(output.stderr.contains("a user must inspect it"), "{}", output.stderr);
        assert!(!output.stderr.contains("reserving"), "{}", output.stderr);
        lab.settle();
    }
}

#[test]
fn fabricgates_drain_is_measured_outside_the_scheduler_and_stays_drained() {
    let Some(lab) = lab() else { return };
    furnish(&lab, HEALTHY);
    let site = site(&lab, "drained = \"no-allocate\"", "");
    let reason = drained_by_us(&lab, &site, "node0007");
    let output = fabricgate(&site, &["recertify", "node[0007-0010]", "--partners", "0", "--json"]);
    let (state, own) = lab.node("node0007");
    let (listed, _) = lab.finished(&["squeue", "-h", "-s"]);
    lab.resume("node0007");
    assert_eq!((state, own), (words_of("IDLE DRAIN"), reason));
    // No job holds it, so no rank of a tool starts there: its worker measures the probes across
    // nodes by itself, and no other node is affected.
    assert_eq!(output.with("pass"), "node[0007-0010]", "{:?}", output.nodes());
    let runs = fs::read_dir(site.path().join("runs")).expect("runs");
    let run = runs.map(|it| it.expect("a run").path()).next().expect("a run");
    let results = fs::read_to_string(run.join("results.jsonl")).expect("results");
    let own = |it: &&str| it.contains("\"nodes\":[\"node0007\"]") && it.contains("\"code\":0");
    assert!(results.lines().any(|it| own(&it)), "{} {results}", output.stderr);
    let ourselves = |it: &str| it.contains("\"node0007\"") && it.contains("\"--across\"");
    assert!(results.lines().any(ourselves), "{} {results}", output.stderr);
    assert_eq!(listed, "");
}

#[test]
fn a_lifted_drain_comes_back_after_a_kill() {
    let Some(lab) = lab() else { return };
    let site = endless(&lab);
    let reason = drained_by_us(&lab, &site, "node0007");
    let running = start(&site, &["recertify", "node[0001-0008]", "--partners", "0"]);
    lab.wait_for("our job", || lab.holds().contains("RUNNING"));
    running.signal("-KILL");
    running.end();
    // Until a command recovers it no user gets the node, and its partners are not lost for good.
    let reservation = lab.run(&["scontrol", "show", "reservation", "-o"]);
    assert!(reservation.contains("Duration=1-00:00:00"), "{reservation}");
    let (state, _) = lab.node("node0007");
    assert!(!state.contains(&"DRAIN".to_owned()), "its drain was lifted: {state:?}");
    let output = fabricgate(&site, &["gate", "recover"]);
    let ours = lab.node("node0007");
    lab.resume("node0007");
    assert_eq!(output.code, Some(0), "{}", output.stderr);
    let (state, own) = ours;
    assert!(state.contains(&"DRAIN".to_owned()) && own == reason, "{state:?} {own}");
    assert_eq!(lab.holds(), "", "{}", output.stderr);
    assert_eq!(count(&events(&site), "freed"), 2);
}

#[test]
fn a_busy_node_is_awaited_if_requested() {
    let Some(lab) = lab() else { return };
    furnish(&lab, HEALTHY);
    for how in ["wait", "reserve"] {
        let site = site(&lab, "wait_s = 60", "");
        lab.run(&["sbatch", "-w", "node0003", "-o", "/dev/null", "--wrap", "sleep 6"]);
        lab.wait_for("the job", || {
            lab.run(&["squeue", "-h", "-t", "R", "-o", "%N"]).contains("0003")
        });
        let arguments =
            ["audit", "node[0002-0005]", "--partners", "0", "--when-busy", how, "--json"];
        let output = fabricgate(&site, &arguments);
        assert_eq!(output.code, Some(0), "{how}: {} {}", output.stdout, output.stderr);
        assert_eq!(output.with("pass"), "node[0002-0005]", "{how}: {}", output.stderr);
        assert_eq!(output.stderr.contains("reserving"), how == "reserve", "{}", output.stderr);
        assert_eq!(lab.holds(), "");
        lab.settle();
    }
}

#[test]
fn mistakes_and_refusals_are_reported_and_hold_nothing() {
    let Some(lab) = lab() else { return };
    furnish(&lab, HEALTHY);
    let refused = |launcher: &str, arguments: &[&str]| {
        // A node stays planned for a moment for a job that was given up.
        if !arguments.contains(&"node0003") {
            lab.settle();
        }
        let output = fabricgate(&site(&lab, launcher, ""), &[&["audit"], arguments].concat());
        assert_eq!(output.code, Some(5), "{launcher}: {} {}", output.stdout, output.stderr);
        assert_eq!(lab.holds(), "", "{launcher}");
        output.stderr
    };
    let message = refused("partition = \"nosuch\"", &[]);
    assert!(message.contains("Invalid partition name specified"), "{message}");
    let message = refused("reservation = \"nosuch\"", &[]);
    assert!(message.contains("reservation is invalid"), "{message}");
    let message = refused("gres = \"foo:9\"", &[]);
    assert!(message.contains("Invalid generic resource"), "{message}");
    let message = refused("salloc = [\"/no/such/salloc\"]", &[]);
    assert!(message.contains("not found"), "{message}");

    // A partition that this user may not use. Slurm checks accounts only with accounting, which
    // the lab lacks; it always checks groups.
    let of = format!("PartitionName={}", partition(&lab));
    lab.run(&["scontrol", "update", &of, "AllowGroups=slurm"]);
    let alice = format!("{:?}, \"setpriv\", \"--reuid=alice\", \"--regid=alice\"", lab.run);
    let as_alice = format!("salloc = [{alice}, \"--init-groups\", \"salloc\"]");
    let message = refused(&as_alice, &["node0002"]);
    lab.run(&["scontrol", "update", &of, "AllowGroups=ALL"]);
    assert!(message.contains("pending for"), "{message}");

    if lab.has_yaml() {
        // Longer than the partition's limit.
        let message = refused("time_limit = \"3-0\"", &["node0002"]);
        assert!(message.contains("PartitionTimeLimit"), "{message}");
    }

    // Every node is in use.
    lab.run(&["sbatch", "-w", "node0003", "-o", "/dev/null", "--wrap", "sleep 300"]);
    lab.wait_for("the job", || lab.run(&["squeue", "-h", "-t", "R", "-o", "%N"]).contains("0003"));
    let message = refused("", &["node0003"]);
    lab.run(&["scancel", "--user=root"]);
    assert!(
        message.contains("left out: node0003") && message.contains("can be measured now"),
        "{message}"
    );
}

#[test]
fn a_missing_controller_is_reported() {
    let Some(lab) = lab() else { return };
    furnish(&lab, HEALTHY);
    let site = site(&lab, "", "");
    lab.signal("KILL");
    let output = fabricgate(&site, &["audit"]);
    lab.run(&["slurmctld"]);
    lab.settle();
    assert_eq!(output.code, Some(5), "{} {}", output.stdout, output.stderr);
    assert!(output.stderr.contains("slurmctld"), "{}", output.stderr);
    assert_eq!(lab.holds(), "");
}

#[test]
fn names_that_slurm_could_misread_start_nothing() {
    let Some(lab) = lab() else { return };
    furnish(&lab, HEALTHY);
    for name in ["--uid=0", "node0001 --uid=0", "node0001;reboot"] {
        let site = site(&lab, "", "");
        let about = "platform = \"gb200-nvl72\"\ngpus_per_node = 4";
        let claims = format!("[[domain]]\nname = \"block01\"\nnodes = [{name:?}]\n{about}\n");
        fs::write(site.path().join("claims.toml"), claims).expect("written");
        let output = fabricgate(&site, &["audit"]);
        assert_eq!(output.code, Some(2), "{name}: {} {}", output.stdout, output.stderr);
        assert_eq!(lab.holds(), "");
    }
}

/// Defect 14 of the operator's review.
#[test]
fn defect_14_a_node_outside_of_the_partition_is_named_and_the_others_are_measured() {
    let Some(lab) = lab() else { return };
    furnish(&lab, HEALTHY);
    let nodes = "Nodes=node[0001-0003]";
    lab.run(&["scontrol", "create", "PartitionName=part14", nodes, "State=UP"]);
    let site = site(&lab, "partition = \"part14\"\n", "");
    let output = fabricgate(&site, &["admit", "node[0001-0004]", "--partners", "0", "--json"]);
    lab.run(&["scontrol", "delete", "PartitionName=part14"]);
    let nodes = output.nodes();
    let (outcome, why) = &nodes["node0004"];
    assert_eq!(outcome, "unknown", "{why}");
    assert!(why.contains("it is not in partition part14"), "{why}");
    assert!(output.stderr.contains("left out: node0004"), "{}", output.stderr);
    assert!(nodes["node0001"].1 != *why, "{nodes:?}");
    assert_eq!(lab.holds(), "", "nothing is held any more");
}
