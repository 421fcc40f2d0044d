//! Nodes that somebody asks to leave alone, or has taken out of service.
//!
//! Remarks, not faults: who decides what to do must know them.

use std::collections::BTreeMap;

use super::view::View;
use super::words::disagreement;
use super::words::is;
use super::words::listed;
use model::disagreement::Disagreement;
use model::disagreement::Severity;
use model::disagreement_class::DisagreementClass;
use model::id::NodeName;
use model::said::Basis;

/// Words of states in which a scheduler places nothing. Slurm writes flags after
/// a plus sign or a mark (`IDLE+DRAIN`, `down*`).
const OUT: [&str; 13] = [
    "drain",
    "drained",
    "draining",
    "drng",
    "down",
    "fail",
    "failing",
    "maint",
    "maintenance",
    "schedulingdisabled",
    "notready",
    "not_responding",
    "invalid_reg",
];

/// Whether a word of a scheduler's state says that it places nothing there.
pub fn is_out(state: &str) -> bool {
    let mut words = state.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.any(|word| OUT.iter().any(|out| word.eq_ignore_ascii_case(out)))
}

/// `opted-out`: a mark asks that the node be left alone.
pub(super) fn opted_out(view: &View<'_>, found: &mut Vec<Disagreement>) {
    let mut marks: BTreeMap<(&str, usize), Vec<&NodeName>> = BTreeMap::new();
    for (source, node, said) in view.node_words() {
        for mark in &said.opt_out {
            marks.entry((mark, source)).or_default().push(node);
        }
    }
    for ((mark, source), nodes) in marks {
        let names = listed(nodes.iter().copied());
        let summary = format!("{names} {} to be left alone: {mark}", is(nodes.len()));
        found.push(
            disagreement(DisagreementClass::OptedOut, Severity::Note, summary)
                .about(nodes)
                .side(view.source(source, None, Basis::Asserted, mark))
                .remedy(
                    "measure only with the consent of who set this; nothing is done to such a node",
                ),
        );
    }
}

/// `out-of-service`: a scheduler places nothing on it.
pub(super) fn out_of_service(view: &View<'_>, found: &mut Vec<Disagreement>) {
    let mut causes: BTreeMap<(usize, String), Vec<&NodeName>> = BTreeMap::new();
    for (source, node, said) in view.node_words() {
        let states: Vec<&str> =
            said.state.iter().map(String::as_str).filter(|state| is_out(state)).collect();
        if states.is_empty() || view.placed.of(node).is_none() {
            continue;
        }
        let reason = said.reason.as_deref().map(|reason| format!(": {reason}")).unwrap_or_default();
        causes.entry((source, format!("{}{reason}", states.join("+")))).or_default().push(node);
    }
    for ((source, words), nodes) in causes {
        let names = listed(nodes.iter().copied());
        let kind = view.said[source].source.kind.words();
        let summary = format!("{names} {} out of service by {kind}: {words}", is(nodes.len()));
        found.push(
            disagreement(DisagreementClass::OutOfService, Severity::Note, summary)
                .about(nodes)
                .side(view.source(source, None, Basis::Asserted, words))
                .remedy("whoever took it out decides when it comes back"),
        );
    }
}
