//! The permitted content of a step's output: the nodes that took part, and the tests that were
//! ordered.
//!
//! An output belongs to the node whose channel it came by. A host outside the step, or a test that
//! its command does not run, is a problem of that node only.

use std::collections::BTreeSet;

use engine::plan::PlanStep;
use model::id::NodeName;
use model::measurement::Measurement;
use model::parse_output::{OutputProblem, OutputProblemKind, ParseOutput, Tool};
use model::probe::ProbeScope;

/// The tools of a step: its own, and the alternative.
pub(super) fn expected_tools(step: &PlanStep) -> Vec<Tool> {
    let instead = step.fallback.as_ref().map(|fallback| fallback.parser);
    std::iter::once(step.parser).chain(instead).collect()
}

/// Restricts an output to the order. Each dropped part becomes a problem of the node that sent it.
pub(super) fn restrict_to_order(step: &PlanStep, parsed: &mut ParseOutput) {
    let mut dropped = Vec::new();
    drop_unordered_tests(step, parsed, &mut dropped);
    // The output of a single node is about that node, whatever name it prints.
    if 1 < step.nodes.len() {
        drop_foreign_hosts(step, parsed, &mut dropped);
    }
    if step.scope == ProbeScope::Rail {
        drop_odd_network_tables(parsed, &mut dropped);
        // The step determines the rail.
        parsed.facts.parameters.remove("rail");
        if step.rail.is_none() {
            parsed.facts.parameters.remove("device");
        }
    }
    let sender = step.nodes.first().map(ToString::to_string);
    for what in dropped {
        let problem = OutputProblem::new(OutputProblemKind::Inconsistent, what);
        parsed.complete = false;
        parsed.problems.push(OutputProblem { host: sender.clone(), ..problem });
    }
}

/// Removes measurements and problems of tests that were not ordered.
fn drop_unordered_tests(step: &PlanStep, parsed: &mut ParseOutput, dropped: &mut Vec<String>) {
    let Some(tool) = parsed.tool else { return };
    // The parser derived the name from the shape of the numbers.
    if parsed.facts.parameters.get("testcase").is_some_and(|how| how == "inferred") {
        return;
    }
    let commands = [
        Some((step.parser, &step.argv)),
        step.fallback.as_ref().map(|fallback| (fallback.parser, &fallback.argv)),
    ];
    let of_tool = commands.into_iter().flatten().filter(|(parser, _)| *parser == tool);
    let Some(ordered) =
        of_tool.map(|(_, argv)| OrderedTests::from_argv(tool, argv)).reduce(OrderedTests::union)
    else {
        return;
    };
    let mut others: BTreeSet<String> = BTreeSet::new();
    let mut keep = |testcase: Option<&str>| {
        let is_ordered = testcase.is_none_or(|name| ordered.contains(name));
        if let Some(name) = testcase.filter(|_| !is_ordered) {
            others.insert(name.to_owned());
        }
        is_ordered
    };
    parsed.measurements.retain(|measurement| keep(measurement.testcase()));
    parsed.problems.retain(|problem| keep(problem.testcase.as_deref()));
    if !others.is_empty() {
        let names = others.into_iter().take(3).collect::<Vec<_>>().join(", ");
        dropped.push(format!("it holds {names}, which was not ordered: not read"));
    }
}

/// The tests that a command runs.
enum OrderedTests {
    /// The arguments do not determine it.
    Any,
    /// Tests with these names.
    Named(BTreeSet<String>),
    /// Tests with this prefix.
    Prefix(String),
}

impl OrderedTests {
    fn from_argv(tool: Tool, argv: &[String]) -> Self {
        let named = match tool {
            Tool::Nvbandwidth => {
                option_values(argv, &["-t", "--testcase"], &["-p", "--testcasePrefixes"])
            }
            Tool::FabricgateCopy | Tool::FabricgateCollective => {
                option_values(argv, &["--tests"], &[])
            }
            Tool::NcclTests => argv.iter().filter_map(|word| parse_collective(word)).collect(),
            Tool::Perftest => {
                let program = argv.iter().map(|word| file_name(word)).find(|word| {
                    ["ib_", "raw_ethernet_"].iter().any(|prefix| word.starts_with(prefix))
                });
                return program.map_or(Self::Any, |program| Self::Prefix(program.to_owned()));
            }
            _ => BTreeSet::new(),
        };
        // A number can also select a test.
        let is_number = |name: &String| name.bytes().all(|byte| byte.is_ascii_digit());
        if named.is_empty() || named.iter().any(is_number) { Self::Any } else { Self::Named(named) }
    }

    fn union(self, other: Self) -> Self {
        match (self, other) {
            (Self::Named(some), Self::Named(more)) => {
                Self::Named(some.into_iter().chain(more).collect())
            }
            _ => Self::Any,
        }
    }

    fn contains(&self, name: &str) -> bool {
        match self {
            Self::Any => true,
            Self::Named(names) => names.contains(name),
            Self::Prefix(begin) => name.starts_with(begin.as_str()),
        }
    }
}

/// The values of an option, up to the next one; none if another option names tests too.
fn option_values(argv: &[String], options: &[&str], others: &[&str]) -> BTreeSet<String> {
    if argv.iter().any(|word| others.contains(&word.as_str())) {
        return BTreeSet::new();
    }
    let mut names = BTreeSet::new();
    let mut inside = false;
    for word in argv {
        let (option, value) = word.split_once('=').unwrap_or((word, ""));
        if word.starts_with('-') {
            inside = options.contains(&option);
            names.extend(
                value.split(',').filter(|name| inside && !name.is_empty()).map(str::to_owned),
            );
        } else if inside {
            names.extend(word.split(',').filter(|name| !name.is_empty()).map(str::to_owned));
        }
    }
    names
}

/// The collective that a program of nccl-tests runs.
fn parse_collective(word: &str) -> Option<String> {
    let name = file_name(word);
    let end = name.find("_perf")? + "_perf".len();
    name[..end]
        .bytes()
        .all(|byte| byte.is_ascii_lowercase() || byte == b'_')
        .then(|| name[..end].to_owned())
}

fn file_name(word: &str) -> &str {
    word.rsplit('/').next().unwrap_or(word)
}

/// Drops statements about hosts that took no part; an output that gives one of them ranks loses all
/// numbers. Nodes get the names of the step.
fn drop_foreign_hosts(step: &PlanStep, parsed: &mut ParseOutput, dropped: &mut Vec<String>) {
    let known = |host: &str| -> Option<&NodeName> {
        let exact = step.nodes.iter().find(|node| node.as_str() == host);
        exact.or_else(|| {
            let mut alike = step.nodes.iter().filter(|node| node.matches_host(host));
            alike.next().filter(|_| alike.next().is_none())
        })
    };
    let mut others: BTreeSet<String> = BTreeSet::new();
    let facts = &mut parsed.facts;
    facts.ranks.retain_mut(|rank| match known(&rank.host) {
        Some(node) => {
            node.as_str().clone_into(&mut rank.host);
            true
        }
        None => {
            others.insert(rank.host.clone());
            false
        }
    });
    facts.devices.retain(|device| device.host.as_deref().is_none_or(|host| known(host).is_some()));
    facts.around.retain(|host, _| known(host).is_some());
    facts.hosts.retain(|host| step.scope == ProbeScope::Rail || known(host).is_some());
    if !others.is_empty() {
        parsed.measurements.clear();
        facts.ranks.clear();
        let names = others.iter().take(3).cloned().collect::<Vec<_>>().join(", ");
        dropped
            .push(format!("it has ranks on {names}, which took no part: its numbers are not read"));
    }
    let mut spoken: BTreeSet<String> = BTreeSet::new();
    parsed.problems.retain_mut(|problem| {
        let Some(host) = &problem.host else { return true };
        match known(host) {
            Some(node) => {
                problem.host = Some(node.to_string());
                true
            }
            // The ends of a network pair are those of the step.
            None if step.scope == ProbeScope::Rail => {
                problem.host = None;
                true
            }
            None => {
                spoken.insert(format!("it names {host}, which took no part: {}", problem.detail));
                false
            }
        }
    });
    dropped.extend(spoken.into_iter().take(3));
}

/// Drops network tables with more or fewer than two ends.
fn drop_odd_network_tables(parsed: &mut ParseOutput, dropped: &mut Vec<String>) {
    let before = parsed.measurements.len();
    parsed.measurements.retain(|measurement| match measurement {
        Measurement::Matrix(matrix) => {
            matrix.rows.len() <= 2 && matrix.cols.len() <= 2 && matrix.rows == matrix.cols
        }
        _ => true,
    });
    if parsed.measurements.len() < before {
        dropped.push("it has a table of more than the two nodes of the pair: not read".to_owned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sweep::fixture;
    use readers::outputs;

    const TEST: &str = "multinode_device_to_device_memcpy_write_ce";

    /// A step of two nodes that runs this test.
    fn step() -> PlanStep {
        let argv = ["mpirun", "nvbandwidth", "-t", TEST].map(str::to_owned);
        PlanStep {
            scope: ProbeScope::Pair,
            domain: Some("rack".into()),
            nodes: ["n1", "n2"].map(NodeName::from).into(),
            argv: argv.into(),
            ..fixture::step(0)
        }
    }

    /// The output of nvbandwidth for a test with a rank on each of these hosts.
    fn output(hosts: [&str; 2], test: &str) -> String {
        let rank = |(n, host): (usize, &&str)| {
            format!("Process {n} ({host}): device 0: NVIDIA GB200 (00000008:01:00)\n")
        };
        let ranks: String = hosts.iter().enumerate().map(rank).collect();
        format!(
            "nvbandwidth Version: v0.5\nBuilt from Git version: v0.5\n\n{ranks}\nRunning {test}.\n\
             memcpy CE GPU(row) -> GPU(column) bandwidth (GB/s)\n           0         1\n 0       N/A    775.00\n \
             1    400.00       N/A\n\nSUM {test} 1175.00\n\n"
        )
    }

    fn read(text: &str) -> ParseOutput {
        let step = step();
        let mut parsed = outputs::parse_expected(&expected_tools(&step), text.as_bytes(), &[], b"");
        restrict_to_order(&step, &mut parsed);
        parsed
    }

    fn problem_messages(parsed: &ParseOutput) -> Vec<(Option<&str>, &str)> {
        parsed.problems.iter().map(|p| (p.host.as_deref(), p.detail.as_str())).collect()
    }

    #[test]
    fn an_output_of_the_step_stays_whole_with_any_host_suffix() {
        for hosts in [["n1", "n2"], ["n1.site.example", "n2.site.example"]] {
            let parsed = read(&output(hosts, TEST));
            let named: Vec<&str> = parsed.facts.ranks.iter().map(|r| r.host.as_str()).collect();
            assert_eq!(named, ["n1", "n2"]);
            assert_eq!((parsed.measurements.len(), problem_messages(&parsed)), (1, vec![]));
            assert!(parsed.complete);
        }
    }

    #[test]
    fn a_report_about_a_node_outside_the_step_is_a_problem_of_the_sender() {
        let line =
            "Invalid value when checking the pattern at 0x7f00 on n3, rank = 1 in memcpy_kernel.cu";
        let parsed = read(&format!("{}\n{line}\n", output(["n1", "n2"], TEST)));
        let [(host, detail)] = problem_messages(&parsed).try_into().expect("one problem");
        assert_eq!(host, Some("n1"));
        assert!(detail.contains("n3, which took no part"), "{detail}");
        assert!(!parsed.complete && !parsed.has_problem(OutputProblemKind::Corrupt));
        let parsed = read(&output(["n1", "n3"], TEST));
        assert!(parsed.measurements.is_empty() && parsed.facts.ranks.is_empty());
        assert!(
            problem_messages(&parsed).iter().all(|(host, _)| *host == Some("n1")),
            "{:?}",
            problem_messages(&parsed)
        );
    }

    #[test]
    fn tests_and_tools_that_were_not_ordered_are_not_read() {
        let other = "multinode_device_to_device_memcpy_read_ce";
        let parsed = read(&output(["n1", "n2"], other));
        assert!(parsed.measurements.is_empty() && !parsed.complete);
        assert!(
            problem_messages(&parsed).iter().any(|(_, what)| what.contains(other)),
            "{:?}",
            problem_messages(&parsed)
        );
        let parsed = read("Nodes:\nNode #0   - 10.0.0.1 - UNAVAILABLE\nDomain State: DOWN\n");
        assert!(parsed.facts.imex.is_none() && !parsed.complete);
    }

    #[test]
    fn the_tests_of_a_command_are_those_of_its_arguments() {
        let of = |tool, words: &[&str]| {
            let argv: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            let tests = OrderedTests::from_argv(tool, &argv);
            ["all_reduce_perf", "ib_write_bw", "a", "b"].map(|name| tests.contains(name))
        };
        let any = [true; 4];
        assert_eq!(of(Tool::Nvbandwidth, &["nvbandwidth"]), any);
        assert_eq!(of(Tool::Nvbandwidth, &["nvbandwidth", "-t", "3"]), any, "by number");
        assert_eq!(of(Tool::Nvbandwidth, &["nvbandwidth", "-p", "a", "-t", "b"]), any);
        assert_eq!(
            of(Tool::Nvbandwidth, &["nvbandwidth", "-t", "a", "-i", "3"]),
            [false, false, true, false]
        );
        assert_eq!(of(Tool::FabricgateCopy, &["x", "--tests", "a,b"]), [false, false, true, true]);
        assert_eq!(of(Tool::FabricgateCopy, &["x", "--tests=b"]), [false, false, false, true]);
        assert_eq!(of(Tool::NcclTests, &["./run.sh"]), any);
        let path = "/opt/nccl-tests/build/all_reduce_perf_mpi";
        assert_eq!(of(Tool::NcclTests, &[path]), [true, false, false, false]);
        assert_eq!(
            of(Tool::Perftest, &["ib_write_bw", "-d", "mlx5_0"]),
            [false, true, false, false]
        );
    }
}
