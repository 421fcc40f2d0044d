//! Gate commands that need an operator's knowledge: a node is gone for good, a drain in
//! fabricgate's reason format belongs to this gate, the processes of a machine will not return.

use crate::cli::gate_apply;
use crate::cli::stdout::note;
use crate::config::Config;
use crate::config::gate::GateConfig;
use crate::exit;
use crate::exit::CommandError;
use control::gate::journal::Journal;
use control::gate::{clock, mark_reassertion};
use engine::policy::journal_state::JournalState;
use engine::policy::node_state::DrainOwner;
use engine::policy::{marks, node_state};
use model::action::{Action, ActionKind, ActionResult};
use model::claims::Claims;
use model::id::NodeName;
use model::journal::JournalEvent;
use model::kubernetes_node::{GATE, KubernetesNodeUpdate};
use model::node_update::NodeUpdate;
use model::scheduler_snapshot::{SchedulerNode, SchedulerSnapshot};
use model::text::clean;

/// The node, and the reason.
#[derive(Debug, clap::Args)]
pub(crate) struct OperatorArgs {
    /// The node.
    #[arg(value_name = "NODE")]
    node: String,
    /// Reason; the journal keeps it.
    #[arg(long, value_name = "TEXT")]
    why: String,
}

/// The name of the operator, for the journal.
pub(crate) fn operator_name() -> String {
    std::env::var("USER").unwrap_or_else(|_| "unknown".to_owned())
}

/// Rejects an empty reason.
pub(crate) fn check_reason(why: &str) -> Result<String, CommandError> {
    match why.trim() {
        "" => Err(CommandError::usage("--why: expected a reason; the journal keeps it")),
        why => Ok(why.to_owned()),
    }
}

impl OperatorArgs {
    fn parse_node(&self) -> Result<NodeName, CommandError> {
        let node = NodeName::from(self.node.as_str());
        match node.is_one_node() {
            true => Ok(node),
            false => {
                Err(CommandError::Usage(format!("{:?}: expected the name of one node", self.node)))
            }
        }
    }
}

/// One node in the scheduler's current state; `None` if the scheduler does not list it.
fn read_node(
    gate: &GateConfig,
    node: &NodeName,
) -> Result<(SchedulerSnapshot, Option<SchedulerNode>), CommandError> {
    let scheduler = gate_apply::scheduler_for(gate);
    let nodes = std::slice::from_ref(node);
    let live = crate::cli::runtime::build_runtime()?
        .block_on(scheduler.read_nodes(nodes))
        .map_err(|error| CommandError::Environment(format!("{}: {error}", scheduler.name())))?;
    let found = live.nodes.get(node).cloned();
    if found.is_none() && !live.troubles.is_empty() {
        let trouble = clean(&live.troubles.join("; "));
        return Err(CommandError::Environment(format!("{node} could not be read: {trouble}")));
    }
    Ok((live, found))
}

/// Removes a node that is gone from everything that the journal counts.
pub(crate) fn forget_node(gate: &GateConfig, args: &OperatorArgs) -> Result<u8, CommandError> {
    let (node, why) = (args.parse_node()?, check_reason(&args.why)?);
    if let (_, Some(listed)) = read_node(gate, &node)? {
        return Err(CommandError::Usage(format!(
            "{node} is known to the scheduler ({}): forget a node only when it is gone for good. \
             A drain by fabricgate ends when the node passes its runs, see `fabricgate recertify`",
            clean(&listed.state.join("+"))
        )));
    }
    let mut journal = crate::cli::commands::gate::open_journal(gate)?;
    if !is_known(journal.state(), &node) {
        note(&format!("the journal has no entry for {node}; nothing was changed"));
        return Ok(exit::PASS);
    }
    let forgotten = JournalEvent::Forgotten { node: node.clone(), by: operator_name(), why };
    journal.append(forgotten).map_err(crate::cli::commands::gate::journal_error)?;
    note(&format!("{node} is forgotten: it no longer counts in any budget"));
    Ok(exit::PASS)
}

fn is_known(ledger: &JournalState, node: &NodeName) -> bool {
    ledger.drains.contains_key(node)
        || ledger.undone_drains.contains_key(node)
        || ledger.suspicions.contains_key(node)
        || ledger.marks.contains_key(node)
        || ledger.open_intents.iter().any(|open| open.action.node == *node)
        || ledger.allocations.values().any(|hold| hold.nodes.contains(node))
}

/// Takes over a drain that has fabricgate's reason format but is not in the journal.
pub(crate) fn adopt_drain(
    config: &Config,
    gate: &GateConfig,
    fleet: Option<&Claims>,
    args: &OperatorArgs,
) -> Result<u8, CommandError> {
    let (name, why) = (args.parse_node()?, check_reason(&args.why)?);
    let (live, Some(node)) = read_node(gate, &name)? else {
        return Err(CommandError::Usage(format!("the scheduler does not list {name}")));
    };
    let mut journal = crate::cli::commands::gate::open_journal(gate)?;
    match node_state::drain_owner(&node, journal.state()) {
        DrainOwner::ThisGate(_) => {
            note(&format!("{name} is already drained by this gate; nothing was changed"));
            return Ok(exit::PASS);
        }
        DrainOwner::Unrecorded if node_state::has_drain(&node) => {}
        DrainOwner::Unrecorded | DrainOwner::NotDrained => {
            return Err(CommandError::Usage(format!("{name} is not drained")));
        }
        DrainOwner::Other(reason) => {
            return Err(CommandError::Usage(format!(
                "{name} has a drain without fabricgate's reason format: {reason}"
            )));
        }
    }
    let own = node_state::own_reason(&node).expect("fabricgate's reason format");
    let text = node.reason.clone().unwrap_or_default();
    let mark = marks::read_mark(&node, &config.policy.marks).filter(|mark| mark.run == own.run);
    let action = Action {
        domain: fleet.and_then(|fleet| fleet.domain_of(&name)).map(|domain| domain.name.clone()),
        reason: strip_appended(&text, own.appended.as_deref()).to_owned(),
        mark,
        why: format!("taken over: {why}"),
        ..Action::new(ActionKind::Drain, name.clone())
    };
    let adopted = JournalEvent::Adopted {
        run: own.run,
        action: Box::new(action),
        set: node.reason_at.filter(|at| 0 < *at),
        before: Box::new(node),
        by: operator_name(),
        why,
    };
    journal.append(adopted).map_err(crate::cli::commands::gate::journal_error)?;
    note(&format!(
        "the drain of {name} is adopted: `fabricgate recertify {name}` measures and returns it"
    ));
    mark_adopted_node(gate, &journal, &live, &name)
}

/// Annotates a Kubernetes node with this gate as the owner of its drain.
fn mark_adopted_node(
    gate: &GateConfig,
    journal: &Journal,
    live: &SchedulerSnapshot,
    node: &NodeName,
) -> Result<u8, CommandError> {
    if live.nodes[node].kubernetes.is_none() {
        return Ok(exit::PASS);
    }
    let annotations = [(GATE.to_owned(), Some(journal.state().gate.clone()))].into();
    let marks = KubernetesNodeUpdate { annotations, ..KubernetesNodeUpdate::default() };
    let change = NodeUpdate { kubernetes: Some(marks), ..NodeUpdate::default() };
    let scheduler = gate_apply::scheduler_for(gate);
    let written =
        mark_reassertion::write_marks(scheduler.as_ref(), vec![(node.clone(), change)], live);
    let written = crate::cli::runtime::build_runtime()?.block_on(written);
    match written.iter().find(|it| it.result != ActionResult::Done) {
        None => Ok(exit::PASS),
        Some(it) => {
            note(&format!("the node is not annotated yet: {}", it.detail));
            Ok(exit::ACTION_REFUSED)
        }
    }
}

/// A reason without the text that was appended to it.
fn strip_appended<'t>(text: &'t str, appended: Option<&str>) -> &'t str {
    let end = appended.and_then(|appended| text.rfind(appended)).unwrap_or(text.len());
    text[..end].trim_end_matches([' ', ':'])
}

/// Records that the processes of a machine are gone. Pods carry their owner; for other allocations
/// only the journal knows it.
pub(crate) fn record_host_gone(
    journal: &mut Journal,
    host: &str,
    why: &str,
    has_pods: bool,
) -> Result<(), CommandError> {
    let why = check_reason(why)?;
    if host == clock::host_name() {
        return Err(CommandError::Usage(format!(
            "--gone {host}: this is the local machine, where running processes are visible; end \
             the process, then run `fabricgate gate recover`"
        )));
    }
    let hosts: Vec<String> =
        journal.state().allocations.values().map(|hold| clean(&hold.host)).collect();
    if !has_pods && !journal.state().allocations.values().any(|hold| hold.host == host) {
        let allocations = match hosts.is_empty() {
            true => "there are no allocations".to_owned(),
            false => format!("the allocations belong to {}", hosts.join(", ")),
        };
        return Err(CommandError::Usage(format!(
            "--gone {host}: it has no allocation here; {allocations}"
        )));
    }
    let event = JournalEvent::Gone { host: host.to_owned(), by: operator_name(), why };
    journal.append(event).map_err(crate::cli::commands::gate::journal_error)
}

/// Drains in fabricgate's reason format that the journal does not know, one per line.
pub(crate) fn list_unrecorded_drains(live: &SchedulerSnapshot, ledger: &JournalState) -> String {
    let line = |node: &SchedulerNode| {
        let why = node_state::describe_unrecorded(node);
        format!("not in the journal: {}: {why}; it counts in the budgets\n", node.name)
    };
    node_state::unrecorded_drains(live, ledger).into_iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_adopted_reason_omits_the_appended_text() {
        for (text, appended) in [
            ("fabricgate:a:b e1", None),
            ("fabricgate:a:b e1 : Not responding", Some("Not responding")),
            ("fabricgate:a:b e1 bob looks", Some("bob looks")),
        ] {
            assert_eq!(strip_appended(text, appended), "fabricgate:a:b e1", "{text}");
        }
    }
}
