//! Queries the nodes themselves: `fabricgate node facts` through a launcher.
//!
//! The number of nodes at a time and the time per node are limited. A node that does not answer
//! is a problem that names it; the others stay usable.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::launch::HeldNodes;
use crate::launch::Launcher;
use model::id::NodeName;
use model::node_facts::{NODE_FACTS_FORMAT, NodeFacts};
use model::raw_result::ProcessEnding;
use model::source_report::{SourceKind, SourceProblemKind, SourceReport};
use model::text::clean;
use node::exec;
use node::exec::{FinishedProcess, ProcessContext, ProcessEvent, ProcessRequest};
use readers::claims::node_facts;

/// The name of this source.
const PLACE: &str = "fabricgate node facts";

/// Most bytes kept of one answer. Eight GPUs with 18 links each and as many NICs take about 200
/// kB.
const MAX_ANSWER_BYTES: usize = 4 * 1024 * 1024;

/// Time taken off a node's own limit: for the connection, and for ending a driver call that
/// hangs.
const MARGIN: Duration = Duration::from_secs(12);

/// Time limit for killing a process that does not exit.
const KILL_TIMEOUT: Duration = Duration::from_secs(10);

/// How a query reaches nodes.
#[derive(Debug)]
pub struct NodeCommandRunner<'n> {
    /// The launcher of the query.
    pub launcher: &'n Launcher,
    /// The name of fabricgate's program on the nodes.
    pub worker: &'n str,
    /// Nodes queried at the same time.
    pub parallel: usize,
    /// Time limit per node.
    pub limit: Duration,
    /// The nodes held for this, if they must be held, and fabricgate's path on this machine.
    pub allocation: Option<(&'n HeldNodes, &'n str)>,
}

/// Queries all nodes; one report holds all their facts.
pub async fn fetch_facts(nodes: &NodeCommandRunner<'_>, names: &[NodeName]) -> SourceReport {
    let mut report = SourceReport::new(SourceKind::NodeFacts, PLACE);
    if nodes.launcher.is_stand_in() {
        let why = format!(
            "nodes reached by launcher {:?} have no hardware of their own to query",
            nodes.launcher.as_str()
        );
        report.push_problem(SourceProblemKind::Unsupported, None, why);
        return report;
    }
    if let Err(error) = nodes.launcher.check(names.len()) {
        report.push_problem(SourceProblemKind::Unsupported, None, error.to_string());
        return report;
    }
    let inner = nodes.limit.saturating_sub(MARGIN).max(nodes.limit / 2).as_secs().max(1);
    let words = ["node", "facts", "--json", "--limit", &inner.to_string()];
    for (name, answer) in names.iter().zip(run_on_each(nodes, names, &words, parse_facts).await) {
        match answer {
            Ok(facts) => node_facts::add_node(&mut report, name.as_str(), name, &facts),
            Err((kind, why)) => report.push_problem(kind, name.to_string(), why),
        }
    }
    node_facts::add_clique_groups(&mut report);
    report
}

/// The reason why a node has no answer.
pub type NodeCommandProblem = (SourceProblemKind, String);

/// Runs fabricgate with these arguments on every node and parses the output, in the order of
/// the names: equal answers give equal documents.
pub async fn run_on_each<T: Send + 'static>(
    nodes: &NodeCommandRunner<'_>,
    names: &[NodeName],
    words: &[&str],
    read: fn(&[u8]) -> Result<T, NodeCommandProblem>,
) -> Vec<Result<T, NodeCommandProblem>> {
    let mut waiting: VecDeque<(usize, &NodeName)> = names.iter().enumerate().collect();
    let mut answers: Vec<Option<Result<T, NodeCommandProblem>>> =
        names.iter().map(|_| None).collect();
    let mut tasks = JoinSet::new();
    let words: Vec<String> =
        std::iter::once(&nodes.worker).chain(words).map(|word| (*word).to_owned()).collect();
    loop {
        while tasks.len() < nodes.parallel.max(1)
            && let Some((at, name)) = waiting.pop_front()
        {
            let argv = match nodes.allocation {
                Some((held, here)) => nodes.launcher.held_node_argv(name, &words, here, held),
                None => nodes.launcher.argv(name, &words),
            };
            let argv = argv.map_err(|error| error.to_string());
            let (limit, setting) = (nodes.limit, exec_setting(nodes.launcher));
            tasks.spawn(async move { (at, run_on_node(argv, limit, &setting, read).await) });
        }
        match tasks.join_next().await {
            None => break,
            Some(Ok((at, answer))) => answers[at] = Some(answer),
            // A lost task counts as a node without an answer, below.
            Some(Err(_)) => {}
        }
    }
    let not_queried = || Err((SourceProblemKind::Unreachable, "was not queried".to_owned()));
    answers.into_iter().map(|answer| answer.unwrap_or_else(not_queried)).collect()
}

/// The process context of a query: trusted like a worker on the same launcher.
fn exec_setting(launcher: &Launcher) -> ProcessContext {
    ProcessContext { trust: launcher.environment_access(), ..ProcessContext::default() }
}

async fn run_on_node<T>(
    argv: Result<Vec<String>, String>,
    limit: Duration,
    setting: &ProcessContext,
    read: fn(&[u8]) -> Result<T, NodeCommandProblem>,
) -> Result<T, NodeCommandProblem> {
    let argv = argv.map_err(|why| (SourceProblemKind::Unreachable, why))?;
    let request = ProcessRequest { argv, limit, capture: MAX_ANSWER_BYTES };
    let (_keep, stop) = watch::channel(false);
    let mut ignore = |_: ProcessEvent<'_>| {};
    match timeout(limit + KILL_TIMEOUT, exec::run_observed(&request, setting, stop, &mut ignore))
        .await
    {
        Ok(Ok(finished)) => read_answer(&finished, limit, read),
        Ok(Err(error)) => Err((SourceProblemKind::Unreachable, error.to_string())),
        Err(_) => Err((SourceProblemKind::Unreachable, no_answer_message(limit))),
    }
}

fn no_answer_message(limit: Duration) -> String {
    format!("did not answer within {} s", limit.as_secs())
}

/// Parses the output, whatever the exit code: a node without a driver reports as much as it can
/// and ends with 5.
fn read_answer<T>(
    finished: &FinishedProcess,
    limit: Duration,
    read: fn(&[u8]) -> Result<T, NodeCommandProblem>,
) -> Result<T, NodeCommandProblem> {
    if finished.stdout.dropped != 0 {
        let why = format!("printed more than {MAX_ANSWER_BYTES} bytes");
        return Err((SourceProblemKind::Malformed, why));
    }
    match (read(&finished.stdout.bytes), &finished.ending) {
        (Ok(answer), _) => Ok(answer),
        (Err(_), ProcessEnding::TimedOut) => {
            Err((SourceProblemKind::Unreachable, no_answer_message(limit)))
        }
        (Err(_), ending) if finished.stdout.bytes.is_empty() => Err((
            SourceProblemKind::Unreachable,
            failure_message("printed nothing", ending, finished),
        )),
        (Err((SourceProblemKind::Malformed, what)), ending) => {
            Err((SourceProblemKind::Malformed, failure_message(&what, ending, finished)))
        }
        (Err(trouble), _) => Err(trouble),
    }
}

fn parse_facts(bytes: &[u8]) -> Result<Box<NodeFacts>, NodeCommandProblem> {
    match serde_json::from_slice::<NodeFacts>(bytes) {
        Ok(facts) if facts.format == NODE_FACTS_FORMAT => Ok(Box::new(facts)),
        Ok(facts) if !facts.format.is_empty() => {
            let format = clean(&facts.format);
            let why = format!("answers in format {format}, but only {NODE_FACTS_FORMAT} is known");
            Err((SourceProblemKind::Unsupported, why))
        }
        Ok(_) => Err((SourceProblemKind::Malformed, "is not a facts document".to_owned())),
        Err(error) => {
            Err((SourceProblemKind::Malformed, format!("answer cannot be read ({error})")))
        }
    }
}

/// The problem, the ending of the process, and its last line on stderr.
fn failure_message(what: &str, ending: &ProcessEnding, finished: &FinishedProcess) -> String {
    let stderr = String::from_utf8_lossy(&finished.stderr.bytes);
    let last = stderr.lines().rev().map(clean).find(|line| !line.is_empty());
    let last = last.map_or_else(String::new, |line| format!(": {line}"));
    format!("{what}: {ending}{last}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::worker_protocol::EnvironmentAccess;

    #[test]
    fn a_query_of_a_node_gets_the_same_environment_as_its_worker() {
        for (launcher, trusted) in [
            (Launcher::Local, EnvironmentAccess::None),
            (Launcher::Command { template: vec!["ssh".to_owned()] }, EnvironmentAccess::Launcher),
            (Launcher::Slurm(Box::default()), EnvironmentAccess::Scheduler),
            // A program of the kubeconfig may request its key from a cloud.
            (Launcher::Kubernetes(Box::default()), EnvironmentAccess::Own),
        ] {
            assert_eq!(exec_setting(&launcher).trust, trusted, "{launcher:?}");
        }
    }

    fn run(script: &str, names: &[&str], limit: Duration) -> SourceReport {
        // The arguments of the query follow the script and are its arguments.
        let template = ["sh", "-c", script, "{node}"];
        let template = template.iter().map(|word| (*word).to_owned()).collect();
        let launcher = Launcher::Command { template };
        let nodes = NodeCommandRunner {
            launcher: &launcher,
            worker: "fabricgate",
            parallel: 2,
            limit,
            allocation: None,
        };
        fetch(&nodes, names)
    }

    fn fetch(nodes: &NodeCommandRunner<'_>, names: &[&str]) -> SourceReport {
        let names: Vec<NodeName> = names.iter().map(|name| NodeName::from(*name)).collect();
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(fetch_facts(nodes, &names))
    }

    const LONG: Duration = Duration::from_secs(60);

    const FABRIC: &str = r#"{"index":0,"fabric":{"state":"completed","status":"success",
        "cluster_uuid":"5000a718-30a5-4f6d-8d9e-1d2c3b4a5968","clique_id":7}}"#;

    fn facts_script(gpus: &str) -> String {
        let gpus = gpus.replace('\n', "");
        format!(
            "printf '{{\"format\":\"{NODE_FACTS_FORMAT}\",\"hostname\":\"%s\",\"gpus\":[%s]}}' $0 '{gpus}'"
        )
    }

    #[test]
    fn every_node_that_answers_is_read_and_grouped() {
        let report = run(&facts_script(FABRIC), &["n3", "n1", "n2"], LONG);
        assert_eq!(report.problems, []);
        assert_eq!(report.nodes.len(), 3);
        assert_eq!(report.groups.len(), 1);
        assert_eq!(report.groups[0].nodes.len(), 3);
    }

    #[test]
    fn a_silent_node_is_reported_with_its_last_line_and_the_others_stay() {
        let script = format!(
            "if [ $0 = n2 ]; then echo 'ssh: no route to host' >&2; exit 255; fi; {}",
            facts_script(FABRIC)
        );
        let report = run(&script, &["n1", "n2"], LONG);
        assert_eq!(report.nodes.len(), 1);
        let problem = &report.problems[0];
        assert_eq!(
            (problem.kind, problem.at.as_deref()),
            (SourceProblemKind::Unreachable, Some("n2"))
        );
        assert!(problem.message.contains("no route to host"), "{problem}");
    }

    #[test]
    fn a_hanging_node_is_given_up_and_the_others_stay() {
        let script = format!("if [ $0 = n1 ]; then sleep 600; fi; {}", facts_script(FABRIC));
        let report = run(&script, &["n1", "n2", "n3"], Duration::from_secs(5));
        assert_eq!(report.nodes.len(), 2);
        assert!(report.problems[0].message.contains("within 5 s"), "{:?}", report.problems);
    }

    #[test]
    fn a_report_counts_with_any_exit_code() {
        let report = run(&format!("{}; exit 5", facts_script("")), &["n1"], LONG);
        assert_eq!(report.nodes[&NodeName::from("n1")].gpus, Some(0));
    }

    #[test]
    fn noise_another_format_and_a_flood_are_malformed() {
        let kind = |script: &str| run(script, &["n1"], LONG).problems[0].kind;
        assert_eq!(kind("echo hello"), SourceProblemKind::Malformed);
        assert_eq!(kind("echo '{}'"), SourceProblemKind::Malformed);
        assert_eq!(
            kind("echo '{\"format\":\"fabricgate.node-facts/9\"}'"),
            SourceProblemKind::Unsupported
        );
        assert_eq!(kind("head -c 5000000 /dev/zero"), SourceProblemKind::Malformed);
    }

    #[test]
    fn the_query_is_the_facts_command() {
        let report = run("echo \"$@\" >&2; exit 3", &["n1"], LONG);
        let message = &report.problems[0].message;
        assert!(message.ends_with("fabricgate node facts --json --limit 48"), "{message}");
    }

    #[test]
    fn nodes_without_hardware_are_not_queried() {
        for launcher in [
            Launcher::Sim { scenario: "/s.toml".into(), workers: true },
            Launcher::Replay { run: "/run".into() },
        ] {
            let nodes = NodeCommandRunner {
                launcher: &launcher,
                worker: "x",
                parallel: 1,
                limit: LONG,
                allocation: None,
            };
            assert_eq!(fetch(&nodes, &["n1"]).problems[0].kind, SourceProblemKind::Unsupported);
        }
        let nodes = NodeCommandRunner {
            launcher: &Launcher::Local,
            worker: "x",
            parallel: 1,
            limit: LONG,
            allocation: None,
        };
        assert_eq!(fetch(&nodes, &["n1", "n2"]).problems[0].kind, SourceProblemKind::Unsupported);
    }
}
