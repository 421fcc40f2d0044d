//! How the gate stands, from its own record, for people and programs.
//!
//! Values in, text out; what a node's state is now, only the scheduler says.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::Value;
use serde_json::json;

use super::plain::counted;
use super::plain::plain;
use crate::act::budget;
use crate::act::ledger::Ledger;
use crate::act::ledger::OwnDrain;
use crate::model::id::NodeName;
use crate::model::journal::Stamp;
use crate::model::verdict::Outcome;

/// The format of the document.
const FORMAT: &str = "fabricgate.gate/1";

/// The record as a document. What is left of the budgets is null where the size
/// of the fleet is not known.
pub fn document(ledger: &Ledger, now: &Stamp, budgets: Option<&[String]>) -> Value {
    let (drains, marks) = budget::within_hour(ledger, now);
    json!({
        "format": FORMAT,
        "epoch": ledger.epoch,
        "breaker": ledger.breaker.as_ref().map(|it| json!({
            "since": it.stamp.at, "why": it.why, "run": it.run,
        })),
        "drained": ledger.drains.iter().map(drained).collect::<Vec<_>>(),
        "undone": ledger.undone.iter().map(|(node, it)| json!({
            "node": node, "since": it.stamp.at, "run": it.drain.run,
            "reason": it.drain.action.reason,
        })).collect::<Vec<_>>(),
        "open": ledger.open.iter().map(|it| json!({
            "id": it.id, "node": it.action.node, "kind": it.action.kind, "since": it.stamp.at,
        })).collect::<Vec<_>>(),
        "holds": ledger.holds.iter().map(|(name, it)| json!({
            "name": name, "kind": it.kind, "since": it.stamp.at, "nodes": it.nodes,
            "host": it.host, "pid": it.pid,
        })).collect::<Vec<_>>(),
        "marks": ledger.marks.iter().map(|(node, it)| json!({
            "node": node, "outcome": it.outcome, "class": it.class, "run": it.run,
            "since": it.at, "expires": it.expires,
        })).collect::<Vec<_>>(),
        "spent_within_hour": { "drains": drains, "marks": marks },
        "budgets": budgets,
    })
}

fn drained((node, drain): (&NodeName, &OwnDrain)) -> Value {
    let clean: Vec<&str> = drain.clean.iter().map(|it| it.run.as_str()).collect();
    json!({
        "node": node, "since": drain.stamp.at, "run": drain.run, "epoch": drain.epoch,
        "domain": drain.action.domain, "why": drain.action.why, "clean": clean,
    })
}

/// The record for people.
pub fn text(ledger: &Ledger, now: &Stamp) -> String {
    let mut text = String::new();
    match &ledger.breaker {
        Some(it) => {
            let (at, why, run) = (&it.stamp.at, plain(&it.why), &it.run);
            let _ = writeln!(text, "breaker: TRIPPED at {at} in run {run}: {why}");
            text.push_str("  nothing but releases until `fabricgate gate reset --why TEXT`\n");
        }
        None => text.push_str("breaker: closed\n"),
    }
    let _ = writeln!(text, "drained by us: {}", ledger.drains.len());
    for (node, it) in &ledger.drains {
        let (at, run, why) = (&it.stamp.at, &it.run, plain(&it.action.why));
        let clean = it.clean.len();
        let _ = writeln!(text, "  {node} since {at}, run {run}, {clean} clean since: {why}");
    }
    for (node, it) in &ledger.undone {
        let (at, run) = (&it.stamp.at, &it.drain.run);
        let _ = writeln!(text, "undone by hand: {node}, seen {at}; it was drained by run {run}");
    }
    for it in &ledger.open {
        let (node, at) = (&it.action.node, &it.stamp.at);
        let _ = writeln!(text, "open: {:?} of {node}, begun {at}", it.action.kind);
    }
    for (name, it) in &ledger.holds {
        let (kind, count, at) = (it.kind, it.nodes.len(), &it.stamp.at);
        let (host, pid) = (plain(&it.host), it.pid);
        let _ = writeln!(
            text,
            "held: {kind:?} {name}, {count} nodes, since {at}, by pid {pid} on {host}"
        );
    }
    let mut said: BTreeMap<Outcome, usize> = BTreeMap::new();
    for mark in ledger.marks.values() {
        *said.entry(mark.outcome).or_default() += 1;
    }
    for (outcome, count) in said {
        let _ = writeln!(text, "marked {outcome}: {}", counted(count, "node", "nodes"));
    }
    let (drains, marks) = budget::within_hour(ledger, now);
    let (drains, marks) = (counted(drains, "drain", "drains"), counted(marks, "mark", "marks"));
    let _ = writeln!(text, "begun within the hour: {drains}, {marks}");
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::act::ledger::Spent;
    use crate::model::action::Action;
    use crate::model::action::ActionKind;
    use crate::model::action::Mark;

    #[test]
    fn what_was_said_and_what_was_spent_are_told() {
        let mark = Mark {
            outcome: Outcome::Degraded,
            class: Some("nvlink-low".to_owned()),
            run: "r1".to_owned(),
            at: "2026-03-04T05:06:07Z".to_owned(),
            expires: None,
            boot_id: None,
            domain: None,
        };
        let action = Action {
            kind: ActionKind::Relabel,
            node: "n1".into(),
            domain: None,
            leaf: None,
            command: Vec::new(),
            reason: String::new(),
            mark: Some(mark.clone()),
            device: None,
            findings: Vec::new(),
            ratio: None,
            price: None,
            why: String::new(),
        };
        let now = Stamp { unix: 10_000, ..Stamp::default() };
        let spent = |unix: i64| Spent {
            id: unix.to_string(),
            stamp: Stamp { unix, ..Stamp::default() },
            action: action.clone(),
        };
        let ledger = Ledger {
            marks: [("n1".into(), mark)].into(),
            spent: vec![spent(1_000), spent(9_000)],
            ..Ledger::default()
        };
        let shown = text(&ledger, &now);
        assert!(shown.contains("marked degraded: 1 node\n"), "{shown}");
        assert!(shown.contains("begun within the hour: 0 drains, 1 mark\n"), "{shown}");
        let budgets = ["drains at a time: 1 of 1 left".to_owned()];
        let document = document(&ledger, &now, Some(&budgets));
        assert_eq!(document["marks"][0]["class"], "nvlink-low");
        assert_eq!(document["spent_within_hour"], json!({ "drains": 0, "marks": 1 }));
        assert_eq!(document["budgets"], json!(budgets));
    }
}
