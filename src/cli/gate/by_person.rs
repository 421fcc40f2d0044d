//! What only a person can tell the gate: that a node is gone for good, that a drain in
//! our form is ours, that the processes of a machine are no more.

use crate::cli::acting;
use crate::cli::config::Config;
use crate::cli::exit;
use crate::cli::failure::Failure;
use crate::cli::gating::Gate;
use crate::cli::stdout::note;
use control::gate::journal::Journal;
use control::gate::reassert;
use control::gate::stamp;
use engine::policy::ledger::Ledger;
use engine::policy::marks;
use engine::policy::standing;
use engine::policy::standing::Owner;
use model::action::Action;
use model::action::ActionKind;
use model::action::ActionResult;
use model::change::Change;
use model::claims::Claims;
use model::id::NodeName;
use model::journal::Event;
use model::kubernetes_node::GATE;
use model::kubernetes_node::KubernetesMarks;
use model::live::Live;
use model::live::LiveNode;
use model::text::clean;

/// Which node, and why.
#[derive(Debug, clap::Args)]
pub(super) struct Told {
    /// The node.
    #[arg(value_name = "NODE")]
    node: String,
    /// Why; it is kept in the journal.
    #[arg(long, value_name = "TEXT")]
    why: String,
}

/// Who says something: it is kept in the journal.
pub(super) fn user() -> String {
    std::env::var("USER").unwrap_or_else(|_| "unknown".to_owned())
}

/// A reason that says something.
pub(super) fn reason(why: &str) -> Result<String, Failure> {
    match why.trim() {
        "" => Err(Failure::usage("--why: expected a reason, it is kept in the journal")),
        why => Ok(why.to_owned()),
    }
}

impl Told {
    fn node(&self) -> Result<NodeName, Failure> {
        let node = NodeName::from(self.node.as_str());
        match node.is_one_node() {
            true => Ok(node),
            false => Err(Failure::Usage(format!("{:?}: expected the name of one node", self.node))),
        }
    }
}

/// One node as the scheduler shows it now; `None` where it knows no such node.
fn read(gate: &Gate, node: &NodeName) -> Result<(Live, Option<LiveNode>), Failure> {
    let scheduler = acting::scheduler(gate);
    let nodes = std::slice::from_ref(node);
    let live = crate::cli::runtime()?
        .block_on(scheduler.read(nodes))
        .map_err(|error| Failure::Environment(format!("{}: {error}", scheduler.name())))?;
    let found = live.nodes.get(node).cloned();
    if found.is_none() && !live.troubles.is_empty() {
        let trouble = clean(&live.troubles.join("; "));
        return Err(Failure::Environment(format!("{node} could not be read: {trouble}")));
    }
    Ok((live, found))
}

/// Takes everything of a node that is gone out of what counts.
pub(super) fn forget(gate: &Gate, told: &Told) -> Result<u8, Failure> {
    let (node, why) = (told.node()?, reason(&told.why)?);
    if let (_, Some(there)) = read(gate, &node)? {
        return Err(Failure::Usage(format!(
            "{node} is known to the scheduler ({}): a node is forgotten when it is gone for good. \
             A drain of ours ends when it passes its runs, see `fabricgate recertify`",
            clean(&there.state.join("+"))
        )));
    }
    let mut journal = super::opened(gate)?;
    if !is_known(journal.ledger(), &node) {
        note(&format!("the journal has nothing of {node}; nothing was changed"));
        return Ok(exit::PASS);
    }
    let forgotten = Event::Forgotten { node: node.clone(), by: user(), why };
    journal.write(forgotten).map_err(super::failure)?;
    note(&format!("{node} is forgotten: it is in no budget any more"));
    Ok(exit::PASS)
}

fn is_known(ledger: &Ledger, node: &NodeName) -> bool {
    ledger.drains.contains_key(node)
        || ledger.undone.contains_key(node)
        || ledger.suspected.contains_key(node)
        || ledger.marks.contains_key(node)
        || ledger.open.iter().any(|open| open.action.node == *node)
        || ledger.holds.values().any(|hold| hold.nodes.contains(node))
}

/// Takes a drain of our form over that the journal does not know.
pub(super) fn adopt(
    config: &Config,
    gate: &Gate,
    fleet: Option<&Claims>,
    told: &Told,
) -> Result<u8, Failure> {
    let (name, why) = (told.node()?, reason(&told.why)?);
    let (live, Some(node)) = read(gate, &name)? else {
        return Err(Failure::Usage(format!("the scheduler does not know {name}")));
    };
    let mut journal = super::opened(gate)?;
    match standing::owner(&node, journal.ledger()) {
        Owner::Us(_) => {
            note(&format!("{name} is drained by us already; nothing was changed"));
            return Ok(exit::PASS);
        }
        Owner::Unrecorded if standing::has_drain(&node) => {}
        Owner::Unrecorded | Owner::Nobody => {
            return Err(Failure::Usage(format!("{name} is not drained")));
        }
        Owner::Other(reason) => {
            return Err(Failure::Usage(format!(
                "{name} is drained by somebody else, not in our form: {reason}"
            )));
        }
    }
    let own = standing::own_reason(&node).expect("of our form");
    let text = node.reason.clone().unwrap_or_default();
    let mark = marks::read(&node, &config.policy.marks).filter(|mark| mark.run == own.run);
    let action = Action {
        domain: fleet.and_then(|fleet| fleet.domain_of(&name)).map(|domain| domain.name.clone()),
        reason: written(&text, own.appended.as_deref()).to_owned(),
        mark,
        why: format!("taken over: {why}"),
        ..Action::new(ActionKind::Drain, name.clone())
    };
    let adopted = Event::Adopted {
        run: own.run,
        action: Box::new(action),
        set: node.reason_at.filter(|at| 0 < *at),
        before: Box::new(node),
        by: user(),
        why,
    };
    journal.write(adopted).map_err(super::failure)?;
    note(&format!("{name} is ours: `fabricgate recertify {name}` measures it, and gives it back"));
    signed(gate, &journal, &live, &name)
}

/// Says on a node of Kubernetes that this gate has its drain.
fn signed(gate: &Gate, journal: &Journal, live: &Live, node: &NodeName) -> Result<u8, Failure> {
    if live.nodes[node].kubernetes.is_none() {
        return Ok(exit::PASS);
    }
    let annotations = [(GATE.to_owned(), Some(journal.ledger().gate.clone()))].into();
    let marks = KubernetesMarks { annotations, ..KubernetesMarks::default() };
    let change = Change { kubernetes: Some(marks), ..Change::default() };
    let scheduler = acting::scheduler(gate);
    let told = reassert::write(scheduler.as_ref(), vec![(node.clone(), change)], live);
    let told = crate::cli::runtime()?.block_on(told);
    match told.iter().find(|it| it.result != ActionResult::Done) {
        None => Ok(exit::PASS),
        Some(it) => {
            note(&format!("the node does not say so yet: {}", it.detail));
            Ok(exit::ACTION_REFUSED)
        }
    }
}

/// A reason without what was appended to it.
fn written<'t>(text: &'t str, appended: Option<&str>) -> &'t str {
    let end = appended.and_then(|appended| text.rfind(appended)).unwrap_or(text.len());
    text[..end].trim_end_matches([' ', ':'])
}

/// Writes down that the processes of a machine are gone. Pods say themselves whose they
/// are; of what else is held, only the journal does.
pub(super) fn gone(
    journal: &mut Journal,
    host: &str,
    why: &str,
    has_pods: bool,
) -> Result<(), Failure> {
    let why = reason(why)?;
    if host == stamp::host() {
        return Err(Failure::Usage(format!(
            "--gone {host}: that is this machine, and whether a process is there is known here; \
             end the process, then `fabricgate gate recover`"
        )));
    }
    let hosts: Vec<String> =
        journal.ledger().holds.values().map(|hold| clean(&hold.host)).collect();
    if !has_pods && !journal.ledger().holds.values().any(|hold| hold.host == host) {
        let held = match hosts.is_empty() {
            true => "nothing is held".to_owned(),
            false => format!("what is held is held by {}", hosts.join(", ")),
        };
        return Err(Failure::Usage(format!("--gone {host}: it holds nothing here; {held}")));
    }
    let event = Event::Gone { host: host.to_owned(), by: user(), why };
    journal.write(event).map_err(super::failure)
}

/// Drains of our form that the journal does not know, a line each.
pub(super) fn unrecorded(live: &Live, ledger: &Ledger) -> String {
    let line = |node: &LiveNode| {
        let why = standing::unrecorded_in_words(node);
        format!("not in the journal: {}: {why}; it counts in the budgets\n", node.name)
    };
    standing::unrecorded(live, ledger).into_iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_taken_over_without_what_was_appended() {
        for (text, appended) in [
            ("fabricgate:a:b e1", None),
            ("fabricgate:a:b e1 : Not responding", Some("Not responding")),
            ("fabricgate:a:b e1 bob looks", Some("bob looks")),
        ] {
            assert_eq!(written(text, appended), "fabricgate:a:b e1", "{text}");
        }
    }
}
