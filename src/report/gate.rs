//! How the gate stands, from its own record, for people and programs.
//!
//! Values in, text out; what a node's state is now, only the scheduler says.

use std::fmt::Write as _;

use serde_json::Value;
use serde_json::json;

use super::plain::plain;
use crate::act::ledger::Ledger;
use crate::act::ledger::OwnDrain;
use crate::model::id::NodeName;

/// The format of the document.
const FORMAT: &str = "fabricgate.gate/1";

/// The record as a document.
pub fn document(ledger: &Ledger) -> Value {
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
pub fn text(ledger: &Ledger) -> String {
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
    text
}
