//! Builds one document from the output of a node's ranks.
//!
//! Pure. Equal messages of several ranks appear once.

use std::collections::BTreeMap;

use super::SupervisorOutput;
use crate::probes::collective::nccl_path;
use crate::probes::collective::nccl_path::NcclPath;
use crate::probes::protocol::ProbeMessage;
use model::collective::{COLLECTIVE_FORMAT, CollectiveDocument, CollectivePoint, CollectiveTest};
use model::parse_output::OutputProblemKind;
use model::probe_problem_class::ProbeProblemClass;
use model::probe_report::ProbeProblem;

/// The measured data type, in nccl-tests' notation.
const DATATYPE: &str = "float";

/// The request to the ranks.
#[derive(Clone, Debug, Default)]
pub struct CollectiveProbeRequest {
    /// Name of the node.
    pub node: String,
    /// Names of the tests.
    pub tests: Vec<String>,
    /// The path that NCCL must use.
    pub path: Option<NcclPath>,
    /// Variables set for NCCL.
    pub environment: BTreeMap<String, String>,
}

impl CollectiveProbeRequest {
    /// A document without results.
    pub fn empty_document(&self) -> CollectiveDocument {
        CollectiveDocument {
            format: COLLECTIVE_FORMAT.to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            node: self.node.clone(),
            cuda: None,
            nccl: None,
            library: None,
            ranks: Vec::new(),
            transports: Vec::new(),
            algorithms: Vec::new(),
            asserted: self.path.map(|path| path.name().to_owned()),
            environment: self.environment.clone(),
            tests: Vec::new(),
            around: None,
            problems: Vec::new(),
            complete: false,
        }
    }
}

/// Builds the document.
pub fn build_document(
    request: &CollectiveProbeRequest,
    supervised: &SupervisorOutput,
) -> CollectiveDocument {
    let common = supervised.common_report();
    let mut points = CollectiveTestList::default();
    for message in supervised.messages() {
        if let ProbeMessage::Point { testcase, reading, point, .. } = message {
            points.add_point(testcase, *reading, point);
        }
    }
    let mut document = request.empty_document();
    document.cuda = common.cuda;
    (document.nccl, document.library) = common.nccl.unzip();
    document.ranks = common.ranks;
    document.tests = points.0;
    document.problems = merge_common_problems(&common.problems, supervised.children.len());
    document.problems.extend(supervised.exit_problems());
    let log_lines = supervised.children.iter().flat_map(|child| &child.nccl_lines);
    let log = nccl_path::parse_log(&log_lines.map(String::as_str).collect::<Vec<_>>().join("\n"));
    document.transports = log.transports.iter().cloned().collect();
    document.algorithms = log.algorithms.clone().into_iter().collect();
    if let Some(expected) = request.path.filter(|_| 1 < document.ranks.len()) {
        let mut nodes: Vec<&str> = document.ranks.iter().map(|it| it.node.as_str()).collect();
        nodes.sort_unstable();
        nodes.dedup();
        // Ranks that never connected have no path to check.
        if !document.tests.is_empty() || !log.transports.is_empty() {
            document.problems.extend(nccl_path::check_path(expected, &log, nodes.len()));
        }
    }
    document.problems.extend(nccl_warnings(&document, &log.warnings));
    document.complete = supervised.is_complete(&document.problems)
        && (has_remote_numbers(&document)
            || request.tests.iter().all(|name| has_test(&document, name)));
    document
}

/// Merges problems that all GPUs have in common, such as a missing library.
fn merge_common_problems(problems: &[ProbeProblem], all: usize) -> Vec<ProbeProblem> {
    let without_gpu = |problem: &ProbeProblem| {
        let start = format!("GPU {}: ", problem.gpu?);
        let detail = problem.detail.strip_prefix(&start)?.to_owned();
        Some(ProbeProblem { gpu: None, detail, ..problem.clone() })
    };
    let mut merged: Vec<ProbeProblem> = Vec::new();
    for problem in problems {
        let common = without_gpu(problem).filter(|common| {
            let same = |it: &&ProbeProblem| without_gpu(it).as_ref() == Some(common);
            1 < all && problems.iter().filter(same).count() == all
        });
        let problem = common.unwrap_or_else(|| problem.clone());
        if !merged.contains(&problem) {
            merged.push(problem);
        }
    }
    merged
}

/// True if the numbers are in another node's document: that of the first rank.
fn has_remote_numbers(document: &CollectiveDocument) -> bool {
    document.ranks.first().is_some_and(|first| first.node != document.node)
}

fn has_test(document: &CollectiveDocument, name: &str) -> bool {
    document.tests.iter().any(|test| test.testcase == name)
        || document.problems.iter().any(|it| it.testcase.as_deref() == Some(name))
}

/// NCCL's warnings, if a test failed: they name the cause, which its error codes do not.
fn nccl_warnings(document: &CollectiveDocument, warnings: &[String]) -> Vec<ProbeProblem> {
    let failed = document.problems.iter().any(|problem| problem.kind == OutputProblemKind::Error);
    let new_problem = |text: &String| {
        let detail = format!("NCCL warned: {text}");
        ProbeProblem::new(OutputProblemKind::Error, ProbeProblemClass::NcclWarning, detail)
    };
    warnings.iter().filter(|_| failed).map(new_problem).collect()
}

/// Tests in the order of measurement.
#[derive(Default)]
struct CollectiveTestList(Vec<CollectiveTest>);

impl CollectiveTestList {
    fn add_point(&mut self, testcase: &str, reading: u32, point: &CollectivePoint) {
        let is_it =
            |test: &&mut CollectiveTest| test.testcase == testcase && test.reading == reading;
        match self.0.iter_mut().find(is_it) {
            // Another rank has already reported this size.
            Some(test) if test.points.iter().any(|it| it.bytes == point.bytes) => {}
            Some(test) => test.points.push(point.clone()),
            None => self.0.push(CollectiveTest {
                testcase: testcase.to_owned(),
                reading,
                datatype: DATATYPE.to_owned(),
                points: vec![point.clone()],
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::child_output::{ChildExitReason, ChildOutput};
    use super::*;
    use model::probe_report::ProbedRank;

    fn request() -> CollectiveProbeRequest {
        CollectiveProbeRequest {
            node: "n1".to_owned(),
            tests: vec!["all_reduce_perf".to_owned()],
            ..CollectiveProbeRequest::default()
        }
    }

    fn rank(rank: u32, node: &str) -> ProbeMessage {
        ProbeMessage::Rank(ProbedRank {
            rank,
            node: node.to_owned(),
            gpu: rank,
            ..ProbedRank::default()
        })
    }

    fn point(reading: u32, bytes: u64) -> ProbeMessage {
        ProbeMessage::Point {
            testcase: "all_reduce_perf".to_owned(),
            reading,
            rank: 0,
            point: CollectivePoint {
                bytes,
                iterations: 20,
                time_us: 10.0,
                slowest_us: 11.0,
                algbw: 100.0,
                busbw: 175.0,
                wrong: Some(0),
                checked: 8,
            },
        }
    }

    fn child_output(gpu: u32, lines: Vec<ProbeMessage>, fate: ChildExitReason) -> ChildOutput {
        let lines = [rank(0, "n1"), rank(1, "n1")].into_iter().chain(lines).collect();
        ChildOutput {
            messages: lines,
            exit: Some(fate),
            ..ChildOutput::new(&format!("GPU {gpu}"), Some(gpu))
        }
    }

    fn two(first: ChildOutput, second: ChildOutput) -> SupervisorOutput {
        SupervisorOutput { children: vec![first, second], ..SupervisorOutput::default() }
    }

    #[test]
    fn the_ranks_of_a_node_make_one_document() {
        let nccl = |library: &str| ProbeMessage::Nccl {
            version: "2.28.3".into(),
            library: library.into(),
        };
        let points = [point(0, 1024), point(0, 2048), point(1, 1024)];
        let first = [nccl("a")].into_iter().chain(points).chain([ProbeMessage::End]).collect();
        let mut supervised = two(
            child_output(0, first, ChildExitReason::Success),
            child_output(
                1,
                vec![nccl("b"), point(0, 1024), ProbeMessage::End],
                ChildExitReason::Success,
            ),
        );
        supervised.children[1].nccl_lines =
            vec!["n1:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM".to_owned()];
        let got = build_document(&request(), &supervised);
        assert!(got.complete, "{:?}", got.problems);
        assert_eq!((got.ranks.len(), got.tests.len()), (2, 2));
        assert_eq!(got.tests[0].points.len(), 2);
        assert_eq!((got.nccl.as_deref(), got.library.as_deref()), (Some("2.28.3"), Some("a")));
        assert_eq!(got.transports, ["P2P/CUMEM"]);
        let wanted = CollectiveProbeRequest { path: Some(NcclPath::Nvls), ..request() };
        let other = build_document(&wanted, &supervised);
        assert_eq!(other.problems[0].class.as_str(), "another-path");
        assert!(!other.complete);
    }

    #[test]
    fn a_rank_that_died_is_named_and_the_numbers_until_then_stay() {
        let dead = child_output(1, Vec::new(), ChildExitReason::Signaled(11));
        let got = build_document(
            &request(),
            &two(child_output(0, vec![point(0, 1024)], ChildExitReason::Success), dead),
        );
        assert!(!got.complete);
        assert_eq!(got.tests[0].points.len(), 1);
        let died = got.problems.iter().find(|it| it.class.as_str() == "child-died").expect("named");
        assert_eq!(died.gpu, Some(1));
        assert!(died.detail.starts_with("GPU 1 was killed by SIGSEGV"), "{}", died.detail);
    }

    #[test]
    fn a_problem_of_all_gpus_is_reported_once() {
        let lacks = |gpu: u32, what: &str| {
            let detail = format!("GPU {gpu}: {what}");
            let problem =
                ProbeProblem::new(OutputProblemKind::Error, ProbeProblemClass::NoNccl, detail);
            ProbeMessage::Problem(ProbeProblem { gpu: Some(gpu), ..problem })
        };
        let of = |gpu: u32, what: &str| {
            child_output(gpu, vec![lacks(gpu, what)], ChildExitReason::Success)
        };
        let got = build_document(&request(), &two(of(0, "no NCCL"), of(1, "no NCCL")));
        let problems: Vec<_> = got.problems.iter().map(|it| (it.gpu, it.detail.as_str())).collect();
        assert_eq!(problems, [(None, "no NCCL")]);
        let got = build_document(&request(), &two(of(0, "no NCCL"), of(1, "old NCCL")));
        assert_eq!(got.problems.len(), 2);
    }

    #[test]
    fn the_numbers_of_another_node_are_not_missing_here() {
        let ranks = |node: &str| vec![rank(0, "n0"), rank(1, node), ProbeMessage::End];
        let child = ChildOutput {
            messages: ranks("n1"),
            exit: Some(ChildExitReason::Success),
            ..ChildOutput::new("", None)
        };
        let supervised =
            SupervisorOutput { children: vec![child.clone()], ..SupervisorOutput::default() };
        assert!(build_document(&request(), &supervised).complete);
        let own = ChildOutput { messages: vec![rank(0, "n1"), ProbeMessage::End], ..child };
        let supervised = SupervisorOutput { children: vec![own], ..SupervisorOutput::default() };
        assert!(!build_document(&request(), &supervised).complete);
    }

    #[test]
    fn warnings_are_reported_after_a_failure() {
        let warning = "x.cc:1 NCCL WARN Cuda failure 'out of memory'".to_owned();
        let mut fine = two(
            child_output(0, vec![point(0, 8), ProbeMessage::End], ChildExitReason::Success),
            child_output(1, vec![ProbeMessage::End], ChildExitReason::Success),
        );
        fine.children[0].nccl_lines = vec![warning];
        assert!(build_document(&request(), &fine).complete);
        fine.children[1].exit = Some(ChildExitReason::Signaled(9));
        let problems = build_document(&request(), &fine).problems;
        assert_eq!(problems.last().expect("a warning").class.as_str(), "nccl-warning");
    }
}
