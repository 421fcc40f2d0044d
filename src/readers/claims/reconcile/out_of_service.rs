//! Nodes that are marked to be left alone or are out of service.
//!
//! Remarks, not faults: a decision about an action must consider them.

use std::collections::BTreeMap;

use super::context::ReconcileContext;
use super::messages::{is_or_are, list_nodes, new_disagreement};
use model::disagreement::{Disagreement, DisagreementSeverity};
use model::disagreement_class::DisagreementClass;
use model::id::NodeName;
use model::source_report::ClaimBasis;

/// State flags with which a scheduler does not place jobs. Slurm appends flags after a plus sign
/// or a mark (`IDLE+DRAIN`, `down*`).
const OUT_STATES: [&str; 13] = [
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

/// Whether a scheduler with this state flag does not place jobs on the node.
pub fn is_out_state(state: &str) -> bool {
    let mut words = state.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.any(|word| OUT_STATES.iter().any(|out| word.eq_ignore_ascii_case(out)))
}

/// `opted-out`: a mark asks to leave the node alone.
pub(super) fn check_opt_outs(view: &ReconcileContext<'_>, found: &mut Vec<Disagreement>) {
    let mut marks: BTreeMap<(&str, usize), Vec<&NodeName>> = BTreeMap::new();
    for (source, node, node_report) in view.node_reports() {
        for mark in &node_report.opt_out {
            marks.entry((mark, source)).or_default().push(node);
        }
    }
    for ((mark, source), nodes) in marks {
        let names = list_nodes(nodes.iter().copied());
        let summary = format!("{names} {} marked to be left alone: {mark}", is_or_are(nodes.len()));
        found.push(
            new_disagreement(DisagreementClass::OptedOut, DisagreementSeverity::Note, summary)
                .with_nodes(nodes)
                .with_side(view.source_side(source, None, ClaimBasis::Asserted, mark))
                .with_remedy(
                    "measure only with the consent of the owner of the mark; fabricgate does not \
                    act on such a node",
                ),
        );
    }
}

/// `out-of-service`: the scheduler does not place jobs on the node.
pub(super) fn check_out_of_service(view: &ReconcileContext<'_>, found: &mut Vec<Disagreement>) {
    let mut causes: BTreeMap<(usize, String), Vec<&NodeName>> = BTreeMap::new();
    for (source, node, node_report) in view.node_reports() {
        let states: Vec<&str> = node_report
            .state
            .iter()
            .map(String::as_str)
            .filter(|state| is_out_state(state))
            .collect();
        if states.is_empty() || view.placement.domain_of(node).is_none() {
            continue;
        }
        let reason =
            node_report.reason.as_deref().map(|reason| format!(": {reason}")).unwrap_or_default();
        causes.entry((source, format!("{}{reason}", states.join("+")))).or_default().push(node);
    }
    for ((source, words), nodes) in causes {
        let names = list_nodes(nodes.iter().copied());
        let kind = view.reports[source].source.kind.label();
        let summary =
            format!("{names} {} out of service by {kind}: {words}", is_or_are(nodes.len()));
        found.push(
            new_disagreement(DisagreementClass::OutOfService, DisagreementSeverity::Note, summary)
                .with_nodes(nodes)
                .with_side(view.source_side(source, None, ClaimBasis::Asserted, words))
                .with_remedy("the operator who took it out of service decides about its return"),
        );
    }
}
