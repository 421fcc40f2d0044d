//! The nodes that lack the tool of a probe, so that its alternative command runs there.
//!
//! Each node is checked once for a tool, and the result holds for the rest of the sweep. Only a
//! message that the program was not found counts; a tool that exists and fails gives a result, and
//! the alternative does not run.

use std::collections::BTreeSet;
use std::sync::Mutex;

use super::worker::OrderOutcome;
use engine::plan::PlanStep;
use model::id::NodeName;
use model::raw_result::ProcessEnding;
use model::text::clean;
use readers::outputs::text;

/// Messages of launchers that did not find a program on a node. Open MPI: `help-orterun.txt` and,
/// for nodes other than its own, `help-orte-odls-default.txt`; PRRTE of Open MPI 5 prints the same
/// under its own name. Slurm: `slurmstepd` with the text of ENOENT.
const NOT_FOUND_MESSAGES: &[&[&str]] = &[
    &["unable to find the specified executable file"],
    &["could not access or execute an executable"],
    &["error: execve(): ", "No such file or directory"],
    // From a shell that should start the daemon of Open MPI on another node.
    &["orted: command not found"],
    &["prted: command not found"],
    &["orted: not found"],
    &["prted: not found"],
];

/// The tools that are known to be missing.
#[derive(Debug, Default)]
pub(super) struct MissingTools {
    state: Mutex<MissingToolsState>,
}

#[derive(Debug, Default)]
struct MissingToolsState {
    /// Probe and node.
    missing: BTreeSet<(String, NodeName)>,
    /// Probes whose missing tool is reported already.
    reported: BTreeSet<String>,
}

impl MissingTools {
    /// Whether a node of this step is known to lack the tool.
    pub(super) fn is_missing(&self, step: &PlanStep) -> bool {
        let known = self.lock_state();
        step.nodes.iter().any(|node| known.missing.contains(&(step.probe.clone(), node.clone())))
    }

    pub(super) fn add(&self, step: &PlanStep, nodes: &[NodeName]) {
        let mut known = self.lock_state();
        for node in nodes {
            known.missing.insert((step.probe.clone(), node.clone()));
        }
    }

    /// Whether this probe was not reported yet; marks it as reported.
    pub(super) fn mark_reported(&self, probe: &str) -> bool {
        self.lock_state().reported.insert(probe.to_owned())
    }

    fn lock_state(&self) -> std::sync::MutexGuard<'_, MissingToolsState> {
        // No holder of the lock panics.
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// The nodes that lack the tool of a step by its outcome, and the reason.
pub(super) fn find_missing_tool(
    step: &PlanStep,
    outcome: &OrderOutcome,
) -> Option<(Vec<NodeName>, String)> {
    let first = || step.nodes.first().cloned().into_iter().collect::<Vec<_>>();
    match &outcome.ending {
        ProcessEnding::Missing { .. } => Some((first(), outcome.ending.to_string())),
        ProcessEnding::Exited { code: 127 } => {
            let why = outcome.complaint.clone().unwrap_or_else(|| outcome.ending.to_string());
            Some((first(), why))
        }
        ProcessEnding::Exited { code } if *code != 0 => {
            let decoded = text::decode(&outcome.stderr.bytes);
            let matches = |line: &&str| {
                NOT_FOUND_MESSAGES.iter().any(|words| words.iter().all(|word| line.contains(word)))
            };
            let why = clean(decoded.lines().find(matches)?);
            let nodes: Vec<NodeName> =
                step.nodes.iter().filter(|node| is_named(&decoded, node)).cloned().collect();
            Some((if nodes.is_empty() { first() } else { nodes }, why))
        }
        _ => None,
    }
}

/// Whether a launcher's message names this node: `Node: NAME` of Open MPI, `srun: error: NAME: task
/// 0: Exited` of Slurm.
fn is_named(text: &str, node: &NodeName) -> bool {
    text.lines().any(|line| {
        let line = line.trim();
        let by_mpi = line.strip_prefix("Node:").map(str::trim);
        let by_srun = line.split_once("srun: error: ").and_then(|(_, rest)| rest.split(':').next());
        by_mpi.or(by_srun).is_some_and(|name| node.matches_host(name))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sweep::fixture;
    use node::exec::CapturedStream;

    fn step(nodes: &[&str]) -> PlanStep {
        let nodes = nodes.iter().map(|node| (*node).into()).collect();
        PlanStep { nodes, ..fixture::step(0) }
    }

    fn missing_on(nodes: &[&str], ending: ProcessEnding, stderr: &str) -> Option<Vec<String>> {
        let stderr = CapturedStream { bytes: stderr.as_bytes().to_vec(), dropped: 0 };
        let outcome = OrderOutcome { ending, stderr, ..OrderOutcome::not_started(String::new()) };
        let (nodes, why) = find_missing_tool(&step(nodes), &outcome)?;
        assert!(!why.is_empty());
        Some(nodes.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn a_missing_program_is_distinguished_from_one_that_fails() {
        let exited = |code| ProcessEnding::Exited { code };
        let both = ["n1", "n2"];
        let missing = ProcessEnding::Missing { program: "mpirun".to_owned() };
        assert_eq!(missing_on(&both, missing, ""), Some(vec!["n1".to_owned()]));
        assert!(missing_on(&["n1"], exited(127), "env: 'x': No such file or directory").is_some());
        let failed = "nvbandwidth: file t: No such file or directory\n";
        for ending in [exited(1), exited(126), exited(0), ProcessEnding::TimedOut] {
            assert_eq!(missing_on(&["n1"], ending, failed), None);
        }
        let busy = ProcessEnding::Busy { why: "a job".to_owned() };
        assert_eq!(missing_on(&["n1"], busy, ""), None);
    }

    #[test]
    fn the_launcher_reports_the_node_that_lacks_the_program() {
        let exited = |code| ProcessEnding::Exited { code };
        let both = ["n1", "n2"];
        let found_nowhere = "---\nmpirun was unable to find the specified executable file, and \
            therefore\ndid not launch the job.\n\nNode:       n2\nExecutable: nvbandwidth\n";
        assert_eq!(missing_on(&both, exited(134), found_nowhere), Some(vec!["n2".to_owned()]));
        let prterun = "prterun was unable to launch the specified application as it could not \
            access or execute an executable:\n\nExecutable: x\nNode: n1\n";
        assert_eq!(missing_on(&both, exited(1), prterun), Some(vec!["n1".to_owned()]));
        let srun = "slurmstepd: error: execve(): nvbandwidth: No such file or directory\n\
            srun: error: n2: task 4: Exited with exit code 2\n";
        assert_eq!(missing_on(&both, exited(2), srun), Some(vec!["n2".to_owned()]));
        let denied = "slurmstepd: error: execve(): nvbandwidth: Permission denied\n";
        assert_eq!(missing_on(&both, exited(13), denied), None);
        let nowhere = "slurmstepd: error: execve(): x: No such file or directory\n";
        assert_eq!(missing_on(&both, exited(2), nowhere), Some(vec!["n1".to_owned()]));
    }

    #[test]
    fn a_missing_tool_is_remembered_for_its_probe_and_node() {
        let lacking = MissingTools::default();
        let pair = step(&["n1", "n2"]);
        assert!(!lacking.is_missing(&pair));
        lacking.add(&pair, &["n2".into()]);
        assert!(lacking.is_missing(&pair) && lacking.is_missing(&step(&["n2", "n3"])));
        assert!(!lacking.is_missing(&step(&["n1", "n3"])));
        let other = PlanStep { probe: "q".to_owned(), ..pair };
        assert!(!lacking.is_missing(&other));
        assert!(
            lacking.mark_reported("p") && !lacking.mark_reported("p") && lacking.mark_reported("q")
        );
    }
}
