//! What a step printed: where it is kept inside the run folder, and what it
//! says of the nodes and tests that were ordered.
//!
//! `raw/` has the layout of a folder of recorded outputs, so it can be judged
//! as one. No files are touched here.

use super::ordered;
use super::worker::Outcome;
use engine::plan::Step;
use model::parsed::Problem;
use model::parsed::ProblemKind;
use model::probe::ProbeScope;
use model::raw::Ending;
use model::raw::RawResult;
use model::recording::Recording;
use model::recording::Scope;

/// Where the numbers of a step belong.
pub fn scope(step: &Step) -> Option<Scope> {
    match (step.scope, step.nodes.as_slice(), &step.domain) {
        (ProbeScope::Node, [node], _) => Some(Scope::Node(node.clone())),
        (ProbeScope::Rail, [first, second], _) => Some(Scope::Pair(first.clone(), second.clone())),
        (ProbeScope::Pair | ProbeScope::Domain, _, Some(domain)) => {
            Some(Scope::Domain(domain.clone()))
        }
        _ => None,
    }
}

/// Names the files of a result whose process was started.
pub(super) fn name(step: &Step, result: &mut RawResult, outcome: &Outcome) {
    let started = !matches!(
        result.ending,
        Ending::Missing { .. } | Ending::NotStarted { .. } | Ending::Busy { .. }
    );
    let place = match scope(step) {
        Some(Scope::Node(node)) => format!("nodes/{node}"),
        Some(Scope::Domain(domain)) => format!("domains/{domain}"),
        Some(Scope::Pair(first, second)) => format!("pairs/{first}/{second}"),
        None => format!("steps/{}", step.step),
    };
    let rail = step.rail.as_ref().map_or(String::new(), |rail| format!("{}.", plain(rail)));
    let file = format!("{}.{rail}{}-{}.txt", result.probe, result.step, result.reading);
    if started {
        result.stdout = Some(format!("raw/{place}/{file}"));
    }
    if !outcome.stderr.bytes.is_empty() {
        result.stderr = Some(format!("stderr/{place}/{file}"));
    }
}

/// A name that is safe inside a file name.
fn plain(name: &str) -> String {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    name.chars().map(|c| if fits(c) { c } else { '_' }).collect()
}

/// Reads the output of a step; `None` where there is nothing to read. An
/// output whose tool did not end well is never complete, whatever it looks
/// like, and one that was interrupted is taken again, not read.
pub fn read(step: &Step, result: &RawResult, stdout: &[u8], stderr: &[u8]) -> Option<Recording> {
    let file = result.stdout.clone()?;
    if result.ending == Ending::Interrupted {
        return None;
    }
    let gap = result.gap();
    // Where there is no tool, the shell's words are no error of one.
    let stderr = if result.ending.is_out_of_reach() { &[] } else { stderr };
    let sent: Vec<(&str, usize)> = step
        .nodes
        .iter()
        .zip(&result.sent)
        .map(|(node, bytes)| (node.as_str(), usize::try_from(*bytes).unwrap_or(usize::MAX)))
        .collect();
    let mut parsed = readers::outputs::read_ordered(&ordered::tools(step), stdout, &sent, stderr);
    ordered::hold(step, &mut parsed);
    let says_nothing = stdout.iter().all(u8::is_ascii_whitespace);
    if gap.is_some() && says_nothing && parsed.tool.is_none() {
        return None;
    }
    if result.ending == Ending::TimedOut {
        // It waited for a daemon that is not there, as under DRA: what it lists before is
        // no state of the domain.
        parsed.facts.imex = None;
    }
    if let Some(why) = gap {
        parsed.complete = false;
        if !parsed.has(ProblemKind::Error) && !parsed.has(ProblemKind::Corrupt) {
            parsed.problems.push(Problem::new(ProblemKind::Truncated, why));
        }
    }
    let (rail, stage) = (result.rail.clone(), Some(result.stage));
    let nodes = step.nodes.clone();
    Some(Recording { scope: scope(step)?, file, rail, stage, nodes, parsed })
}
