//! Nodes that report falsely: in every probe, stream and role, with wrong numbers, wrong names and
//! wrong tables, compared with the real faults of the scenario.
//!
//! Such a node changes its own verdict. It must not worsen the verdict of any node of another
//! domain, and must not get a node of its own domain degraded or failed. Fixed seeds run with all
//! tests; `FABRICGATE_FALSE_REPORTS` sets the number of sweeps of each fleet.

use std::collections::{BTreeMap, BTreeSet};

use super::false_outputs_tests::{
    IMEX_OUTPUT, NCCL_OUTPUT, UNORDERED_TEST, low_row_table, rank_lines, scale_rows,
};
use super::readings::RunReadings;
use super::run_judgement::RunJudgeInput;
use super::step::ReadingRequest;
use super::worker::OrderOutcome as Ran;
use super::{confirm_stage, judge_run, local_tools, plan_coverage, step_outputs};
use crate::launch::Launcher;
use engine::plan;
use engine::plan::{Plan, PlanLimits, PlanRequest, PlanStep};
use engine::policy::action_policy;
use engine::policy::action_policy::Policy;
use engine::policy::situation::EvidenceRun;
use engine::thresholds::builtin;
use model::action::ActionPlan;
use model::claims::Claims;
use model::id::{DomainName, NodeName};
use model::probe::Probe;
use model::profile::Profile;
use model::raw_result::{ProcessEnding, RawResult};
use model::verdict::{LocusKind, Outcome, Verdicts};
use readers::claims::claims_file;
use readers::probe_catalog::ProbeCatalog;
use sim::noise::NoiseKey;
use sim::scenario::Scenario;
use sim::scenario_tools::ScenarioTools;

/// A fleet and its claims.
struct FalseReportFleet {
    scenario: String,
    claims: Claims,
    cross_domain: BTreeSet<DomainName>,
    profile: Profile,
}

/// The result of a sweep.
struct FalseReportSweep {
    verdicts: Verdicts,
    actions: ActionPlan,
}

impl FalseReportFleet {
    /// Two racks of six nodes that share leaves, with this fault.
    fn racks(fault: &str) -> Self {
        let shape = |name: &str, nodes: &str| {
            format!("[[domain]]\nname = {name:?}\nnodes = {nodes:?}\nplatform = \"gb200-nvl72\"\n")
        };
        let racks = [("rack1", "a[1-6]"), ("rack2", "b[1-6]")];
        let domains: String = racks.iter().map(|(name, nodes)| shape(name, nodes)).collect();
        let claimed = racks.map(|(name, nodes)| shape(name, nodes) + "gpus_per_node = 4\n");
        let leaves = "[[leaf]]\nname = \"leaf1\"\nnodes = \"a[1-4]\"\n[[leaf]]\nname = \"leaf2\"\n\
            nodes = \"a[5-6],b[1-2]\"\n[[leaf]]\nname = \"leaf3\"\nnodes = \"b[3-6]\"\n";
        let rails = "[[rail]]\nname = \"rail0\"\nrdma = \"mlx5_0\"\n";
        let network =
            "title = \"racks\"\n[noise]\nsigma = 0.002\n[network]\nrails = 1\nleaf_nodes = 4\n";
        Self::new(
            format!("{network}{domains}{fault}"),
            &format!("{}{leaves}{rails}", claimed.concat()),
            Profile::BurnIn,
        )
    }

    /// Eight boxes that share two rails, each in a domain of its own.
    fn boxes(fault: &str) -> Self {
        let network =
            "title = \"boxes\"\n[noise]\nsigma = 0.002\n[network]\nrails = 2\nleaf_nodes = 4\n";
        let fleet = "[[domain]]\nnodes = \"h[1-8]\"\nplatform = \"hgx-h100\"\nper_node = true\n";
        let boxes: String = (1..=8)
            .map(|n| {
                format!(
                    "[[domain]]\nname = \"h{n}\"\nnodes = \"h{n}\"\nplatform = \"hgx-h100\"\n\
                     gpus_per_node = 8\n"
                )
            })
            .collect();
        let rails = "[[rail]]\nname = \"rail0\"\nrdma = \"mlx5_0\"\n[[rail]]\nname = \"rail1\"\n\
            rdma = \"mlx5_1\"\n";
        let leaves = "[[leaf]]\nname = \"leaf1\"\nnodes = \"h[1-4]\"\n[[leaf]]\nname = \"leaf2\"\n\
            nodes = \"h[5-8]\"\n";
        Self::new(
            format!("{network}{fleet}{fault}"),
            &format!("{boxes}{leaves}{rails}"),
            Profile::BurnIn,
        )
    }

    fn new(scenario: String, claims: &str, profile: Profile) -> Self {
        let mut claims = claims_file::parse("claims", claims).unwrap_or_else(|e| panic!("{e}"));
        // IMEX names nodes by their addresses.
        let nodes: Vec<NodeName> = claims.domains.iter().flat_map(|d| d.nodes.clone()).collect();
        for (at, node) in nodes.into_iter().enumerate() {
            let address = sim::render::node_address(at);
            claims.nodes.entry(node).or_default().aliases.push(address);
        }
        let several = claims.domains.iter().filter(|d| 1 < d.nodes.len());
        let cross_domain = several.map(|d| d.name.clone()).collect();
        Self { scenario, claims, cross_domain, profile }
    }

    fn domain_of_node(&self, node: &NodeName) -> &DomainName {
        let mut domains = self.claims.domains.iter();
        &domains.find(|d| d.nodes.contains(node)).expect("claimed").name
    }

    fn nodes(&self) -> Vec<NodeName> {
        self.claims.domains.iter().flat_map(|d| d.nodes.clone()).collect()
    }

    /// One sweep with its confirm stage; `report` changes the output of a reading.
    fn sweep(
        &self,
        seed: u64,
        mut report: impl FnMut(&PlanStep, u32, &mut Ran),
    ) -> FalseReportSweep {
        let mut scenario = Scenario::parse(&self.scenario).unwrap_or_else(|e| panic!("{e}"));
        scenario.seed = seed;
        let played = ScenarioTools::new(scenario).unwrap_or_else(|e| panic!("{e}"));
        let catalog = ProbeCatalog::built_in();
        let names = plan::default_probes(self.profile, &self.claims, &self.cross_domain);
        let probes: Vec<&Probe> = names.iter().filter_map(|name| catalog.get(name)).collect();
        let request = PlanRequest {
            claims: &self.claims,
            profile: self.profile,
            probes: &probes,
            readings: 2,
            most_readings: 2,
            parallel: 64,
            seed,
            nvlink_across: &self.cross_domain,
            limits: PlanLimits::default(),
        };
        let main = plan::plan_sweep(&request);
        let mut measured = RunReadings::default();
        self.run(&main, &played, &mut measured, &mut report);
        let again = confirm_stage::plan_suspects(
            &self.judge_input(&main, None, measured.results()),
            &request,
            &measured,
        );
        let again = again.filter(|plan| !plan.rounds.is_empty());
        if let Some(again) = &again {
            self.run(again, &played, &mut measured, &mut report);
        }
        let (results, recordings) = measured.into_parts();
        let run = RunJudgeInput { recordings, ..self.judge_input(&main, again.as_ref(), &results) };
        let verdicts = judge_run(run, &model::part_history::PartHistory::default()).verdicts;
        let coverage = plan_coverage(&main, &Launcher::Local, &results);
        let seen = EvidenceRun {
            id: "r".to_owned(),
            complete: true,
            real: true,
            ..EvidenceRun::default()
        };
        let policy = Policy::default();
        let actions = action_policy::propose_from_verdicts(
            &verdicts,
            &self.claims,
            &policy,
            Some(coverage),
            &seen,
        );
        FalseReportSweep { verdicts, actions }
    }

    fn judge_input<'a>(
        &'a self,
        plan: &'a Plan,
        confirm: Option<&'a Plan>,
        results: &'a [RawResult],
    ) -> RunJudgeInput<'a> {
        RunJudgeInput {
            claims: &self.claims,
            plan,
            confirm,
            results,
            recordings: Vec::new(),
            catalogue: builtin::builtin_catalogue(),
            thresholds_digest: "",
            platform: None,
        }
    }

    fn run(
        &self,
        plan: &Plan,
        played: &ScenarioTools,
        measured: &mut RunReadings,
        report: &mut impl FnMut(&PlanStep, u32, &mut Ran),
    ) {
        for step in plan.steps() {
            let rail = step.rail.as_ref();
            let rail =
                rail.and_then(|name| self.claims.rails.iter().find(|rail| rail.name == *name));
            for reading in 0..step.readings {
                let what = ReadingRequest { step, reading, rail, port: 20_000, capture: 1 << 20 };
                let (mut result, mut outcome) = local_tools::take_local_reading(&what, played);
                report(step, reading, &mut outcome);
                result.ending = outcome.ending.clone();
                step_outputs::set_file_names(step, &mut result, &outcome);
                let read = step_outputs::read_output(
                    step,
                    &result,
                    &outcome.stdout.bytes,
                    &outcome.stderr.bytes,
                );
                measured.insert(result, read);
            }
        }
    }
}

/// How a node falsifies its output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum FalseReportKind {
    Rates,
    /// The rates of the other end's rows, or of one rank, times a factor.
    Rows,
    /// A line with an error that names a node.
    Error,
    /// Wrong data at a node.
    Corrupt,
    /// Ranks of another node, and a table of them.
    Ranks,
    /// A table of a test that was not ordered.
    OtherTest,
    /// The output of another tool.
    OtherTool,
    /// The names of two nodes are swapped.
    Names,
    /// The first half.
    Cut,
    /// Nothing, or text that no parser knows.
    Garbage,
    /// An exit code, and error messages on standard error.
    Fails,
    /// The process never ends.
    Hangs,
    /// States of peers: of IMEX, cliques, links.
    States,
    /// Text around the numbers: settings, devices, versions.
    Settings,
}

const REPORTS: &[FalseReportKind] = &[
    FalseReportKind::Rates,
    FalseReportKind::Rows,
    FalseReportKind::Error,
    FalseReportKind::Corrupt,
    FalseReportKind::Ranks,
    FalseReportKind::OtherTest,
    FalseReportKind::OtherTool,
    FalseReportKind::Names,
    FalseReportKind::Cut,
    FalseReportKind::Garbage,
    FalseReportKind::Fails,
    FalseReportKind::Hangs,
    FalseReportKind::States,
    FalseReportKind::Settings,
];

/// The steps in which a node reports falsely.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FalseReportTiming {
    Always,
    /// Steps whose command this node runs (`true`), or in which it is another participant.
    First(bool),
    /// Steps with this node.
    With,
    Once,
    Stage(u8),
    /// Steps with this number of nodes.
    Nodes(usize),
}

#[derive(Debug)]
struct FalseReporter {
    node: NodeName,
    report: FalseReportKind,
    when: FalseReportTiming,
    /// The node that the false reports name.
    about: NodeName,
    key: NoiseKey,
    done: bool,
}

fn pick<T: Copy>(key: NoiseKey, from: &[T]) -> T {
    from[usize::try_from(key.value() % from.len() as u64).expect("small")]
}

impl FalseReporter {
    fn new(fleet: &FalseReportFleet, node: &NodeName, key: NoiseKey) -> Self {
        let nodes = fleet.nodes();
        let others: Vec<&NodeName> = nodes.iter().filter(|other| *other != node).collect();
        Self::about(node, pick(key.with_name("about"), &others), key)
    }

    fn about(node: &NodeName, about: &NodeName, key: NoiseKey) -> Self {
        let whens = [
            FalseReportTiming::Always,
            FalseReportTiming::Always,
            FalseReportTiming::First(true),
            FalseReportTiming::First(false),
            FalseReportTiming::With,
            FalseReportTiming::Once,
            FalseReportTiming::Stage(2),
            FalseReportTiming::Stage(3),
            FalseReportTiming::Stage(5),
            FalseReportTiming::Nodes(1),
            FalseReportTiming::Nodes(2),
            FalseReportTiming::Nodes(6),
        ];
        Self {
            node: node.clone(),
            report: pick(key.with_name("report"), REPORTS),
            when: pick(key.with_name("when"), &whens),
            about: about.clone(),
            key,
            done: false,
        }
    }

    /// Changes the output of a step with this node.
    fn falsify_output(&mut self, step: &PlanStep, reading: u32, ran: &mut Ran) {
        let is_here = step.nodes.contains(&self.node);
        let wanted = match self.when {
            FalseReportTiming::Always => true,
            FalseReportTiming::First(first) => (step.nodes[0] == self.node) == first,
            FalseReportTiming::With => step.nodes.contains(&self.about),
            FalseReportTiming::Once => !self.done,
            FalseReportTiming::Stage(stage) => step.stage == stage,
            FalseReportTiming::Nodes(nodes) => step.nodes.len() == nodes,
        };
        if !is_here || !wanted || !matches!(ran.ending, ProcessEnding::Exited { .. }) {
            return;
        }
        self.done = true;
        let key = self.key.with_part(step.step as u64).with_part(u64::from(reading));
        let text = String::from_utf8_lossy(&ran.stdout.bytes).into_owned();
        let factor = pick(self.key.with_name("factor"), &[0.1, 0.5, 0.8, 0.93, 1.2, 8.0]);
        let other = step.nodes.iter().find(|node| **node != self.node);
        let peer = other.map_or(self.about.as_str(), NodeName::as_str);
        let who =
            pick(key.with_name("who"), &[self.about.as_str(), peer, peer, self.node.as_str()]);
        let output = match self.report {
            FalseReportKind::Rates => scale_rows(&text, factor, |_| true),
            FalseReportKind::Rows => {
                let lowest = if step.nodes[0] == self.node { 4 } else { 0 };
                scale_rows(&text, factor, |rank| (lowest..lowest + 4).contains(&rank))
            }
            FalseReportKind::Error => {
                let lines = [
                    format!(
                        "[CUDA_ERROR_ECC_UNCORRECTABLE] uncorrectable ECC error encountered in expression cuStreamSynchronize(stream) on {who}, rank = 1 in virtual double MemcpyOperation::doMemcpy() : memcpy.cpp:341"
                    ),
                    format!(
                        "{who}:71:90 [0] NCCL WARN Cuda failure 'uncorrectable NVLink error detected during the execution'"
                    ),
                    format!(
                        "{who}: Test NCCL failure common.cu:961 'unhandled cuda error (run with NCCL_DEBUG=INFO for details)'"
                    ),
                    format!(
                        "mpirun noticed that process rank 3 with PID 0 on node {who} exited on signal 9 (Killed)."
                    ),
                    format!(
                        "Couldn't connect to {who}:20000\n Unable to init the socket connection"
                    ),
                    format!("srun: error: {who}: task 3: Exited with exit code 1"),
                ];
                let at = usize::try_from(key.with_name("line").value() % 6).expect("small");
                format!("{text}\n{}\n", lines[at])
            }
            FalseReportKind::Corrupt => format!(
                "{text}\nInvalid value when checking the pattern at 0x7f0000000000 on {who}, rank = 3 in \
                 memcpy_kernel.cu\n"
            ),
            FalseReportKind::Ranks => format!("{}{text}", rank_lines(who)),
            FalseReportKind::OtherTest => {
                format!(
                    "{text}\nRunning {0}.\n{1}\nSUM {0} 100.00\n",
                    UNORDERED_TEST,
                    low_row_table(who)
                )
            }
            FalseReportKind::OtherTool => {
                pick(key.with_name("tool"), &[NCCL_OUTPUT, IMEX_OUTPUT]).replace("WHO", who)
            }
            FalseReportKind::Names => {
                let mark = "\u{1}";
                text.replace(peer, mark)
                    .replace(self.node.as_str(), self.about.as_str())
                    .replace(mark, self.node.as_str())
            }
            FalseReportKind::Cut => text[..text.len() / 2].to_owned(),
            FalseReportKind::Garbage => {
                pick(key.with_name("none"), &["", "hello\n", "{\"a\": 1}\n"]).to_owned()
            }
            FalseReportKind::Fails => {
                ran.ending = ProcessEnding::Exited { code: 1 };
                let words = format!(
                    "[CUDA_ERROR_ECC_UNCORRECTABLE] uncorrectable ECC error in expression cuMemcpy() on {who}, \
                     rank = 2 in memcpy.cpp:341\n"
                );
                ran.stderr.bytes = words.into_bytes();
                pick(key.with_name("out"), &["", text.as_str()]).to_owned()
            }
            FalseReportKind::Hangs => {
                ran.ending = ProcessEnding::TimedOut;
                text[..text.len() / 3].to_owned()
            }
            FalseReportKind::States => text
                .replace("READY", "UNAVAILABLE")
                .replace("Domain State: UP", "Domain State: DOWN")
                .replace("Completed", "Not Started")
                .replace("GB/s", "GB/s inactive")
                .replace(
                    "CliqueId                          : ",
                    "CliqueId                          : 9",
                ),
            FalseReportKind::Settings => text
                .replace("Number of qps   : 16", "Number of qps   : 2")
                .replace("mlx5_0", "mlx5_9")
                .replace("v0.8", "v0.4")
                .replace("rank", "Rank")
                .replace("65536", "64"),
        };
        ran.stdout.bytes = output.into_bytes();
    }
}

/// The verdicts that false reports must not change. Two nodes together may get one of their own
/// domain blamed.
fn find_worse_verdicts(
    fleet: &FalseReportFleet,
    faulty: &[&NodeName],
    faulty_node: Option<&NodeName>,
    (control, swept): (&FalseReportSweep, &FalseReportSweep),
) -> Vec<String> {
    let homes: BTreeSet<&DomainName> =
        faulty.iter().map(|node| fleet.domain_of_node(node)).collect();
    let before: BTreeMap<&NodeName, Outcome> =
        control.verdicts.nodes.iter().map(|it| (&it.node, it.outcome)).collect();
    let mut wrong = Vec::new();
    let is_free = |node: &NodeName| !faulty.contains(&node) && faulty_node != Some(node);
    for verdict in swept.verdicts.nodes.iter().filter(|it| is_free(&it.node)) {
        let inside = homes.contains(fleet.domain_of_node(&verdict.node));
        if inside && 1 < faulty.len() {
            continue;
        }
        let most = if inside { Outcome::Unknown } else { before[&verdict.node] };
        if most < verdict.outcome {
            wrong.push(format!("{} is {:?}: {}", verdict.node, verdict.outcome, verdict.reason));
        }
    }
    for found in swept.verdicts.findings.iter().filter(|it| Outcome::Unknown < it.outcome) {
        let part = matches!(
            found.locus.kind,
            LocusKind::Gpu
                | LocusKind::Node
                | LocusKind::Direction
                | LocusKind::Tray
                | LocusKind::Rail
        );
        let is_open =
            |node: &NodeName| faulty.len() == 1 || !homes.contains(fleet.domain_of_node(node));
        if let Some(node) = found.locus.node.as_ref().filter(|n| part && is_free(n) && is_open(n)) {
            wrong.push(format!("found {} at {node}: {}", found.class, found.summary));
        }
    }
    if let Some(faulty) = faulty_node.filter(|node| !homes.contains(fleet.domain_of_node(node))) {
        let of = |swept: &FalseReportSweep| {
            swept.verdicts.nodes.iter().find(|it| it.node == *faulty).map(|it| it.outcome)
        };
        if of(swept) != of(control) {
            wrong.push(format!("{faulty} is {:?} and was {:?}", of(swept), of(control)));
        }
        let acts =
            |swept: &FalseReportSweep| swept.actions.actions.iter().any(|it| it.node == *faulty);
        // The falsely reporting node itself may use up a budget.
        let waits = swept.actions.withheld.iter().any(|it| it.budget && it.what == faulty.as_str());
        if acts(control) && !acts(swept) && !waits {
            let withheld =
                swept.actions.withheld.iter().map(|it| format!("{}: {}", it.what, it.why));
            let why = swept.actions.frozen.clone().into_iter().chain(withheld).collect::<Vec<_>>();
            let why = why.join("; ");
            wrong.push(format!("nothing is proposed for {faulty} any more: {why}"));
        }
    }
    wrong
}

/// Runs `count` sweeps of a fleet in which some nodes report falsely.
fn run_false_reports(fleet: &FalseReportFleet, faulty_node: Option<&str>, count: u64, seed: u64) {
    let faulty_node = faulty_node.map(NodeName::from);
    let control = fleet.sweep(seed, |_, _, _| {});
    let known: Vec<String> = control
        .verdicts
        .nodes
        .iter()
        .filter(|it| it.outcome != Outcome::Pass && faulty_node.as_ref() != Some(&it.node))
        .map(|it| format!("{}: {}", it.node, it.reason))
        .collect();
    assert!(known.is_empty(), "without false reports: {known:?}");
    let nodes: Vec<NodeName> =
        fleet.nodes().into_iter().filter(|node| faulty_node.as_ref() != Some(node)).collect();
    let refs: Vec<&NodeName> = nodes.iter().collect();
    let mut wrong = Vec::new();
    for trial in 0..count {
        let key = NoiseKey::from_seed(seed).with_name("trial").with_part(trial);
        let node = pick(key.with_name("node"), &refs);
        let mut faulty = FalseReporter::new(fleet, node, key);
        let reporter =
            format!("{} {:?} {:?} about {}", faulty.node, faulty.report, faulty.when, faulty.about);
        let swept =
            fleet.sweep(seed, |step, reading, ran| faulty.falsify_output(step, reading, ran));
        for what in find_worse_verdicts(fleet, &[node], faulty_node.as_ref(), (&control, &swept)) {
            wrong.push(format!("{trial}: {reporter}: {what}"));
        }
    }
    let count = wrong.len();
    wrong.truncate(40);
    assert!(wrong.is_empty(), "{count}:\n{}", wrong.join("\n"));
}

/// The same with two nodes of a domain that report the same about a third one.
fn run_paired_false_reports(fleet: &FalseReportFleet, count: u64, seed: u64) {
    let control = fleet.sweep(seed, |_, _, _| {});
    let mut wrong = Vec::new();
    for trial in 0..count {
        let key = NoiseKey::from_seed(seed).with_name("two").with_part(trial);
        let nodes = pick(key.with_name("domain"), &[0, 1]);
        let nodes = &fleet.claims.domains[nodes].nodes;
        let at =
            usize::try_from(key.with_name("first").value() % nodes.len() as u64).expect("small");
        let of = |more: usize| &nodes[(at + more) % nodes.len()];
        let [first, second, about] = [of(0), of(1), of(2)];
        let mut both = [first, second].map(|node| FalseReporter::about(node, about, key));
        let reporters =
            format!("{first} and {second} {:?} {:?} about {about}", both[0].report, both[0].when);
        let swept = fleet.sweep(seed, |step, reading, ran| {
            both.iter_mut().for_each(|faulty| faulty.falsify_output(step, reading, ran));
        });
        for what in find_worse_verdicts(fleet, &[first, second], None, (&control, &swept)) {
            wrong.push(format!("{trial}: {reporters}: {what}"));
        }
    }
    assert!(wrong.is_empty(), "{}:\n{}", wrong.len(), wrong.join("\n"));
}

/// The number of sweeps of each fleet.
fn trial_count(few: u64) -> u64 {
    let count = std::env::var("FABRICGATE_FALSE_REPORTS").ok();
    count.and_then(|count| count.parse().ok()).unwrap_or(few)
}

#[test]
fn one_false_reporter_worsens_no_other_domain() {
    run_false_reports(&FalseReportFleet::racks(""), None, trial_count(12), 1);
}

#[test]
fn one_falsely_reporting_box_worsens_no_other_box() {
    run_false_reports(&FalseReportFleet::boxes(""), None, trial_count(12), 2);
}

#[test]
fn two_false_reporters_worsen_no_other_domain() {
    run_paired_false_reports(&FalseReportFleet::racks(""), trial_count(8), 4);
}

#[test]
fn a_real_fault_is_found_despite_a_false_report() {
    let lost = "[[fault]]\nkind = \"lost-links\"\ngpu = \"b3:1\"\ncount = 2\n";
    run_false_reports(&FalseReportFleet::racks(lost), Some("b3"), trial_count(12), 3);
}
