//! A real Slurm, read by the library: the parsed values must be Slurm's.
//!
//! `ci/lab-slurm test` starts one and names it in two variables; without them these tests print
//! that they are skipped and check nothing.

mod capacity;
mod carry;
mod changes;
mod chaos;
mod export;
mod faults;
mod gate;
mod hold;
mod hooks;
mod killed;
mod program;
#[path = "../support/proposals.rs"]
mod proposals;
#[path = "../support/storm/mod.rs"]
mod storm;
mod topology;
mod watch;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use control::sources::slurm::SlurmClientConfig;
use control::sources::slurmrestd::SlurmrestdClientConfig;
use control::sources::{slurm, slurmrestd};
use model::hostlist;
use model::id::NodeName;
use model::raw_result::ProcessEnding;
use model::source_report::{NodeGroupKind, SourceKind, SourceProblemKind, SourceReport};
use node::exec;
use node::exec::ProcessRequest;

/// A program that runs a command inside the lab.
const RUN: &str = "FABRICGATE_LAB_SLURM";
/// The socket of its slurmrestd, which also listens on 127.0.0.1:6820 there.
const SOCKET: &str = "FABRICGATE_LAB_SLURMRESTD";

/// One test at a time: most tests change state that the others read.
static TURN: Mutex<()> = Mutex::new(());

struct Lab {
    run: String,
    socket: String,
    _turn: MutexGuard<'static, ()>,
}

/// The lab, at rest, with every node idle; `None` where it is missing.
#[expect(clippy::print_stdout, reason = "a test that checks nothing reports it")]
fn lab() -> Option<Lab> {
    let (Ok(run), Ok(socket)) = (std::env::var(RUN), std::env::var(SOCKET)) else {
        println!("SKIPPED: no Slurm to query, `ci/lab-slurm test` starts one");
        return None;
    };
    assert!(PathBuf::from(&run).is_file(), "{RUN}={run} is not a program");
    let turn = TURN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let lab = Lab { run, socket, _turn: turn };
    lab.settle();
    // A gate with a separate journal takes another gate's marks as a sign that its journal is the
    // wrong one.
    lab.finished(&["scontrol", "update", "NodeName=ALL", "Extra="]);
    Some(lab)
}

fn now<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(work)
}

fn asked(scontrol: Vec<String>, sinfo: Vec<String>, limit: Duration) -> SlurmClientConfig {
    SlurmClientConfig { scontrol, sinfo, limit, remote_shell: Some(false) }
}

impl Lab {
    fn argv(&self, words: &[&str]) -> Vec<String> {
        std::iter::once(self.run.as_str()).chain(words.iter().copied()).map(str::to_owned).collect()
    }

    /// Runs a command inside; its output, and how it ended.
    fn finished(&self, words: &[&str]) -> (String, ProcessEnding) {
        let argv = self.argv(words);
        let limit = Duration::from_secs(60);
        let (_sender, stop) = tokio::sync::watch::channel(false);
        let request = ProcessRequest { argv, limit, capture: exec::CAPTURE };
        let finished = now(exec::run(&request, stop)).expect("the lab's program");
        let text = String::from_utf8(finished.stdout.bytes).expect("text");
        (text, finished.ending)
    }

    /// Runs a command inside that must succeed.
    fn run(&self, words: &[&str]) -> String {
        let (text, ending) = self.finished(words);
        assert!(ending.is_success(), "{words:?}: {ending}");
        text
    }

    /// Waits until every node is idle again. Drained nodes are resumed, jobs are ended and
    /// reservations removed: a killed controller forgets the updates of its last seconds, and so
    /// restores the state of earlier tests.
    fn settle(&self) {
        self.finished(&["scancel", "--user=root"]);
        self.unreserve();
        self.wait_for("every node idle", || {
            let (states, _) = self.finished(&["sinfo", "-h", "-N", "-p", "main", "-o", "%N %T"]);
            let is_idle = !states.is_empty() && states.lines().all(|line| line.ends_with(" idle"));
            if !is_idle {
                self.unreserve();
            }
            for (node, state) in states.lines().filter_map(|line| line.split_once(' ')) {
                let node = format!("NodeName={node}");
                let update = |words: &[&str]| {
                    self.finished(&[&["scontrol", "update", &node], words].concat());
                };
                match state {
                    "drained" => update(&["State=RESUME"]),
                    // The end of a reservation does not make a controller write nodes to disk.
                    // Killed, it restores nodes that are reserved without a reservation, which
                    // only this ends (26.05, observed).
                    "maint" | "reserved" => {
                        update(&["State=DOWN", "Reason=reservation missing"]);
                        update(&["State=RESUME"]);
                    }
                    _ => {}
                }
            }
            is_idle
        });
    }

    fn unreserve(&self) {
        let (reservations, _) = self.finished(&["scontrol", "show", "reservation", "-o"]);
        for name in reservations.lines().filter_map(|line| line.split_whitespace().next()) {
            if name.starts_with("ReservationName=") {
                self.finished(&["scontrol", "delete", name]);
            }
        }
    }

    fn wait_for(&self, what: &str, holds: impl Fn() -> bool) {
        let start = Instant::now();
        while !holds() {
            assert!(start.elapsed() < Duration::from_secs(60), "waited in vain for {what}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn by_commands(&self, limit: Duration) -> SlurmClientConfig {
        asked(self.argv(&["scontrol"]), self.argv(&["sinfo"]), limit)
    }

    fn ask(&self) -> Vec<SourceReport> {
        now(slurm::fetch_claims(&self.by_commands(Duration::from_secs(15))))
    }

    fn token(&self) -> String {
        self.run(&["scontrol", "token", "username=root", "lifespan=600"])
    }

    fn by_socket(&self, limit: Duration) -> SlurmrestdClientConfig {
        let token = Some(self.token());
        SlurmrestdClientConfig {
            address: format!("unix:{}", self.socket).into(),
            token,
            user: None,
            limit,
        }
    }

    fn ask_rest(&self) -> Vec<SourceReport> {
        now(slurmrestd::fetch_claims(&self.by_socket(Duration::from_secs(15))))
    }

    /// True if this Slurm has topology.yaml, `show topoconf` and `Topology=`.
    fn has_yaml(&self) -> bool {
        // 24.11 is the oldest, 25.05 the first that has them.
        !self.run(&["scontrol", "--version"]).contains(" 24.")
    }

    fn signal(&self, signal: &str) {
        let script = format!("kill -{signal} $(cat /run/slurmctld/slurmctld.pid)");
        self.run(&["sh", "-c", &script]);
    }
}

fn of(answers: &[SourceReport], kind: SourceKind) -> &SourceReport {
    let found = answers.iter().find(|report| report.source.kind == kind);
    found.unwrap_or_else(|| panic!("no answer of kind {kind:?}: {answers:?}"))
}

/// The one answer of an unreachable controller: it claims nothing.
fn only_unreachable(answers: &[SourceReport]) {
    assert_eq!(answers.len(), 1, "{answers:?}");
    let report = &answers[0];
    let kinds: Vec<SourceProblemKind> =
        report.problems.iter().map(|problem| problem.kind).collect();
    assert_eq!(kinds, [SourceProblemKind::Unreachable], "{report:?}");
    assert!(report.groups.is_empty() && report.nodes.is_empty(), "{report:?}");
    assert!(report.settings.is_empty() && report.notes.is_empty(), "{report:?}");
}

fn nodes(numbers: std::ops::RangeInclusive<u32>) -> Vec<NodeName> {
    numbers.map(|number| NodeName::from(format!("node{number:04}").as_str())).collect()
}

/// The groups of a topology that are in force: their names and nodes.
fn blocks(report: &SourceReport) -> BTreeMap<&str, &[NodeName]> {
    let domains = report.groups.iter().filter(|it| it.in_force && it.kind == NodeGroupKind::Domain);
    domains.map(|group| (group.name.as_str(), group.nodes.as_slice())).collect()
}

fn words<'s>(report: &'s SourceReport, node: &str) -> Vec<&'s str> {
    report.nodes[&NodeName::from(node)].state.iter().map(String::as_str).collect()
}

fn no_problems(answers: &[SourceReport]) {
    for report in answers {
        assert!(report.problems.is_empty(), "{}: {:?}", report.source, report.problems);
    }
}

#[test]
fn the_fabric_is_two_blocks_of_eighteen_nodes_with_four_gpus() {
    let Some(lab) = lab() else { return };
    let answers = lab.ask();
    no_problems(&answers);
    let (first, second) = (nodes(1..=18), nodes(19..=36));
    let expected = BTreeMap::from([("block01", &first[..]), ("block02", &second[..])]);
    assert_eq!(blocks(of(&answers, SourceKind::SlurmTopology)), expected);
    if lab.has_yaml() {
        let yaml = of(&answers, SourceKind::SlurmTopologyYaml);
        assert_eq!(blocks(yaml), expected);
        assert!(yaml.groups.iter().all(|it| it.topology.as_deref() == Some("topo-block")));
    } else {
        assert!(answers.iter().all(|it| it.source.kind != SourceKind::SlurmTopologyYaml));
    }
    let report = of(&answers, SourceKind::SlurmNodes);
    assert_eq!(report.nodes.keys().cloned().collect::<Vec<_>>(), nodes(1..=36));
    for (name, node) in &report.nodes {
        assert_eq!(node.gpus, Some(4), "{name}");
        assert_eq!(node.state, ["IDLE"], "{name}");
    }
    let main = of(&answers, SourceKind::SlurmPartitions);
    let main = main.groups.iter().find(|group| group.name == "main").expect("a partition");
    assert_eq!((main.kind, &main.nodes), (NodeGroupKind::Partition, &nodes(1..=36)));
    let config = of(&answers, SourceKind::SlurmConfig);
    assert_eq!(config.settings["TopologyPlugin"], "topology/block");
}

#[test]
fn slurmrestd_reports_every_node_as_scontrol_does() {
    let Some(lab) = lab() else { return };
    let answers = lab.ask();
    let rest = lab.ask_rest();
    no_problems(&rest);
    let by_rest = of(&rest, SourceKind::SlurmNodes);
    assert_eq!(by_rest.nodes.len(), 36);
    assert_eq!(by_rest.nodes, of(&answers, SourceKind::SlurmNodes).nodes);
    let partitions = |answers: &[SourceReport]| -> BTreeMap<String, Vec<NodeName>> {
        let report = of(answers, SourceKind::SlurmPartitions);
        report.groups.iter().map(|group| (group.name.clone(), group.nodes.clone())).collect()
    };
    assert_eq!(partitions(&rest), partitions(&answers));

    // The same over TCP, in the network of the lab.
    let address = "http://127.0.0.1:6820".into();
    let tcp = SlurmrestdClientConfig { address, ..lab.by_socket(Duration::from_secs(15)) };
    let over_tcp = now(slurmrestd::fetch_claims(&tcp));
    no_problems(&over_tcp);
    assert_eq!(of(&over_tcp, SourceKind::SlurmNodes).nodes, by_rest.nodes);
}

#[test]
fn slurmrestd_refuses_clients_without_a_valid_token() {
    let Some(lab) = lab() else { return };
    for token in [None, Some("no.good.token".to_owned())] {
        let rest = SlurmrestdClientConfig { token, ..lab.by_socket(Duration::from_secs(15)) };
        let answers = now(slurmrestd::fetch_claims(&rest));
        let problems: Vec<_> = answers.iter().flat_map(|report| &report.problems).collect();
        assert!(!problems.is_empty());
        assert!(problems.iter().all(|it| it.kind == SourceProblemKind::Denied), "{problems:?}");
        assert!(answers.iter().all(|report| report.nodes.is_empty() && report.groups.is_empty()));
        let shown = format!("{answers:?}");
        assert!(!shown.contains("no.good.token"), "{shown}");
    }
}

#[test]
fn a_user_without_rights_reads_the_same() {
    let Some(lab) = lab() else { return };
    let alice = ["setpriv", "--reuid=alice", "--regid=alice", "--init-groups"];
    let as_alice = |program| lab.argv(&[&alice[..], &[program]].concat());
    let limit = Duration::from_secs(15);
    let slurm = asked(as_alice("scontrol"), as_alice("sinfo"), limit);
    // Hidden from users unless they request all.
    let hide = |how: &str| lab.run(&["scontrol", "update", "PartitionName=main", how]);
    hide("Hidden=YES");
    let answers = now(slurm::fetch_claims(&slurm));
    hide("Hidden=NO");
    no_problems(&answers);
    let by_root = lab.ask();
    for kind in [SourceKind::SlurmTopology, SourceKind::SlurmNodes] {
        let (hers, ours) = (of(&answers, kind), of(&by_root, kind));
        assert_eq!((hers.groups.len(), &hers.nodes), (ours.groups.len(), &ours.nodes));
    }
}

#[test]
fn the_text_of_a_slurm_without_json_has_the_same_content_for_every_node() {
    let Some(lab) = lab() else { return };
    lab.run(&["scontrol", "update", "NodeName=node0007", "State=DRAIN", "Reason=gate: a=b c"]);
    let script = r#"case "$*" in *--json*) echo "unrecognized option '--json'" >&2; exit 1 ;; esac
                    exec "$0" "$@""#;
    let program = |name| lab.argv(&["sh", "-c", script, name]);
    let by_text = asked(program("scontrol"), program("sinfo"), Duration::from_secs(15));
    let by_text = now(slurm::fetch_claims(&by_text));
    let by_json = lab.ask();
    lab.run(&["scontrol", "update", "NodeName=node0007", "State=RESUME"]);
    no_problems(&by_text);
    let (texts, jsons) =
        (of(&by_text, SourceKind::SlurmNodes), of(&by_json, SourceKind::SlurmNodes));
    assert!(texts.source.place.ends_with("-o"), "{}", texts.source);
    assert_eq!(texts.nodes.len(), 36);
    for (name, text) in &texts.nodes {
        let json = &jsons.nodes[name];
        assert_eq!((text.gpus, &text.state), (json.gpus, &json.state), "{name}");
        assert_eq!((&text.reason, text.busy), (&json.reason, json.busy), "{name}");
    }
    let states = of(&by_text, SourceKind::Sinfo);
    assert!(words(states, "node0007").iter().any(|it| it.to_uppercase().starts_with("DRAIN")));
    assert_eq!(states.nodes.len(), 36);
}

#[test]
fn a_drained_node_is_reported_with_its_reason() {
    let Some(lab) = lab() else { return };
    // Equal signs, quotes and brackets: text formats make them hard to read.
    let reason = r#"gate: State=IDLE "43.1" < 45.0 [x] é"#;
    lab.run(&[
        "scontrol",
        "update",
        "NodeName=node0007",
        "State=DRAIN",
        &format!("Reason={reason}"),
    ]);
    let answers = lab.ask();
    let rest = lab.ask_rest();
    lab.run(&["scontrol", "update", "NodeName=node0007", "State=RESUME"]);
    no_problems(&answers);
    no_problems(&rest);
    for report in [of(&answers, SourceKind::SlurmNodes), of(&rest, SourceKind::SlurmNodes)] {
        assert_eq!(words(report, "node0007"), ["IDLE", "DRAIN"]);
        assert_eq!(report.nodes[&NodeName::from("node0007")].reason.as_deref(), Some(reason));
        assert_eq!(words(report, "node0008"), ["IDLE"]);
        assert_eq!(report.nodes[&NodeName::from("node0008")].reason, None);
    }
    let states = of(&answers, SourceKind::Sinfo);
    assert_eq!(words(states, "node0007"), ["IDLE", "DRAIN"]);
}

#[test]
fn a_node_with_a_job_is_busy() {
    let Some(lab) = lab() else { return };
    lab.run(&["sbatch", "-w", "node0003", "-o", "/dev/null", "--wrap", "sleep 300"]);
    lab.wait_for("the job", || lab.run(&["squeue", "-h", "-t", "R", "-o", "%N"]).contains("0003"));
    let answers = lab.ask();
    lab.run(&["scancel", "--user=root"]);
    let report = of(&answers, SourceKind::SlurmNodes);
    assert_eq!(report.nodes[&NodeName::from("node0003")].busy, Some(true));
    assert_eq!(report.nodes[&NodeName::from("node0004")].busy, Some(false));
}

#[test]
fn a_node_moved_by_hand_is_seen_where_it_is_now() {
    let Some(lab) = lab() else { return };
    let update = ["scontrol", "update", "NodeName=node0018", "Topology=topo-block:block02"];
    if !lab.has_yaml() {
        // Slurm 24.11 cannot; the lab would notice here if it could.
        assert!(!lab.finished(&update).1.is_success());
        return;
    }
    lab.run(&update);
    let answers = lab.ask();
    lab.run(&["scontrol", "reconfigure"]);
    let (first, second) = (nodes(1..=17), nodes(18..=36));
    let expected = BTreeMap::from([("block01", &first[..]), ("block02", &second[..])]);
    for kind in [SourceKind::SlurmTopology, SourceKind::SlurmTopologyYaml] {
        assert_eq!(blocks(of(&answers, kind)), expected);
    }
}

/// Runs a script in /etc/slurm, makes the controller read it, reads the claims, and restores
/// everything.
fn asked_with(lab: &Lab, script: &str) -> Vec<SourceReport> {
    lab.run(&["sh", "-ec", "rm -rf /tmp/kept; cp -a /etc/slurm /tmp/kept"]);
    let changed = format!("cd /etc/slurm; {script}; scontrol reconfigure");
    let (_, ending) = lab.finished(&["sh", "-ec", &changed]);
    let answers = lab.ask();
    let restore = "cp -a /tmp/kept/. /etc/slurm; scontrol reconfigure";
    let dropped = "cd /etc/slurm; for f in topology.*; do [ -e /tmp/kept/$f ] || rm $f; done";
    lab.run(&["sh", "-ec", &format!("{dropped}; {restore}")]);
    assert!(ending.is_success(), "{script}: {ending}");
    answers
}

const CONF: &str = "printf 'BlockName=a Nodes=node[0001-0018]\\nBlockName=b \
                    Nodes=node[0019-0036]\\nBlockSizes=18\\n' >topology.conf";

#[test]
fn a_controller_with_the_old_file_reports_its_blocks() {
    let Some(lab) = lab() else { return };
    let script = format!("rm -f topology.yaml; sed -i 's/ Topology=.*//' slurm.conf; {CONF}");
    let answers = asked_with(&lab, &script);
    no_problems(&answers);
    // 26.05 prints an empty topology.yaml then, which must not exist next to it.
    assert!(answers.iter().all(|it| it.source.kind != SourceKind::SlurmTopologyYaml));
    let (first, second) = (nodes(1..=18), nodes(19..=36));
    let expected = BTreeMap::from([("a", &first[..]), ("b", &second[..])]);
    assert_eq!(blocks(of(&answers, SourceKind::SlurmTopology)), expected);
}

#[test]
fn a_controller_without_blocks_has_none_and_no_trouble() {
    let Some(lab) = lab() else { return };
    let script = if lab.has_yaml() {
        "printf -- '---\\n- topology: topo-flat\\n  cluster_default: true\\n  flat: true\\n' \
         >topology.yaml"
    } else {
        "rm topology.conf; sed -i 's,topology/block,topology/default,' slurm.conf"
    };
    let answers = asked_with(&lab, script);
    no_problems(&answers);
    let topology = of(&answers, SourceKind::SlurmTopology);
    assert!(topology.groups.is_empty() && !topology.notes.is_empty(), "{topology:?}");
    assert!(answers.iter().all(|report| blocks(report).is_empty()));
}

#[test]
fn a_controller_that_hangs_claims_nothing() {
    let Some(lab) = lab() else { return };
    let patient = lab.by_commands(Duration::from_secs(15));
    let impatient = lab.by_commands(Duration::from_secs(2));
    let rest = lab.by_socket(Duration::from_secs(15));
    let hasty = SlurmrestdClientConfig { limit: Duration::from_secs(2), ..rest.clone() };
    lab.signal("STOP");
    let answers = now(async {
        tokio::join!(
            slurm::fetch_claims(&patient),
            slurm::fetch_claims(&impatient),
            slurmrestd::fetch_claims(&rest),
            slurmrestd::fetch_claims(&hasty)
        )
    });
    lab.signal("CONT");
    for answers in [&answers.0, &answers.1, &answers.2, &answers.3] {
        only_unreachable(answers);
    }
}

#[test]
fn a_controller_that_is_gone_claims_nothing() {
    let Some(lab) = lab() else { return };
    let rest = lab.by_socket(Duration::from_secs(15));
    lab.signal("KILL");
    let commands = lab.by_commands(Duration::from_secs(15));
    let answers = now(async {
        tokio::join!(slurm::fetch_claims(&commands), slurmrestd::fetch_claims(&rest))
    });
    lab.run(&["slurmctld"]);
    lab.settle();
    only_unreachable(&answers.0);
    only_unreachable(&answers.1);
    no_problems(&lab.ask());
}

/// Lists that Slurm expands, with its result.
const LISTS: &[&str] = &[
    "node[0001-0018]",
    "node[0001-0018,0020],login1",
    "n[8-11]",
    "n[008-011]",
    "n[098-101]",
    "n[99-100]",
    "n[0001-3]",
    "n[01-2]",
    "n[00-01]",
    "n[9-11]m",
    "n[1-3,5,9-10]",
    "n[3,1]",
    "n[1,02,3]",
    "n[1,1]",
    "n1,n1",
    "a,b,c",
    "a1 b2",
    "N[1-2]",
    "[1-2]",
    "n[1-2],m[3-4]",
    "n[1-2][3-4]",
    "rack[1-2]u[01,03]",
    "rack[1-2]u[01,03]-ib[0-1]",
    "n[1-2]-ib",
    "n[1-2]-ib[0-1]",
    "a-b[1-2].c.d",
    "r[01-12]n[001-018]",
];

/// Lists that both refuse.
const NONE: &[&str] = &["n[5-2]", "n[]", "n[1", "n[a-c]", "n[0x1-0x2]", "n[1-99999999]"];

#[test]
fn host_lists_expand_as_slurm_expands_them() {
    let Some(lab) = lab() else { return };
    for list in LISTS {
        let theirs = lab.run(&["scontrol", "show", "hostnames", list]);
        let mut theirs: Vec<&str> = theirs.lines().collect();
        let mut ours = hostlist::expand(list).unwrap_or_else(|error| panic!("{list}: {error}"));
        assert!(!theirs.is_empty(), "{list}");
        // Slurm counts the first of three brackets before the second.
        if 2 < list.matches('[').count() {
            theirs.sort_unstable();
            ours.sort();
        }
        assert_eq!(ours, theirs, "{list}");
    }
    for list in NONE {
        // It refuses with exit code 0, and a message on standard error.
        assert_eq!(lab.run(&["scontrol", "show", "hostnames", list]), "", "{list}");
        assert!(hostlist::expand(list).is_err(), "{list}");
    }
}

/// Names with and without padding, numbers and suffixes, the same in every run.
fn many_names() -> BTreeSet<String> {
    let mut state = 5u64;
    let mut next = |most: u64| {
        // The constants of Knuth's MMIX generator.
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % most
    };
    let mut names = BTreeSet::new();
    while names.len() < 400 {
        let (number, width) = (next(130), usize::try_from(next(4)).expect("a small number"));
        let name = match next(5) {
            0 => format!("n{number:0width$}"),
            1 => format!("node{number:04}"),
            2 => format!("r{}u{number:02}", next(4)),
            3 => format!("gpu-{number}-ib{}", next(3)),
            _ => format!("login{number}.cluster"),
        };
        names.insert(name);
    }
    names
}

#[test]
fn host_lists_fold_to_slurms_form_and_read_back_slurms_folds() {
    let Some(lab) = lab() else { return };
    let names = many_names();
    let ours = hostlist::fold(names.iter().map(String::as_str));
    let back = lab.run(&["scontrol", "show", "hostnames", &ours]);
    assert_eq!(back.lines().count(), names.len(), "{ours}");
    assert_eq!(back.lines().map(str::to_owned).collect::<BTreeSet<_>>(), names, "{ours}");

    let plain: Vec<&str> = names.iter().map(String::as_str).collect();
    let theirs = lab.run(&["scontrol", "show", "hostlist", &plain.join(",")]);
    let back = hostlist::expand(theirs.trim()).expect("Slurm's output is readable");
    assert_eq!(back.into_iter().collect::<BTreeSet<_>>(), names, "{theirs}");

    // Where one form is the natural one, both write it.
    for names in [
        "node0001,node0002,node0018,node0019,node0036",
        "n8,n9,n10,n11",
        "n098,n099,n100,n101",
        "n9,n10,n010",
        "r1u1,r1u2,r2u1,r2u2",
        "login,n1,n2",
        "a,b",
    ] {
        let theirs = lab.run(&["scontrol", "show", "hostlist", names]);
        assert_eq!(hostlist::fold(names.split(',')), theirs.trim(), "{names}");
    }
}
