//! Proposals as the gate makes them, for nodes of the labs.

use model::action::{Action, ActionKind, ActionPlan, VerdictMark};
use model::finding_class::FindingClass;
use model::verdict::Outcome;

/// A proposal of run `r1`, for a node with a finding of this class.
pub(crate) fn action(kind: ActionKind, node: &str, class: &str) -> Action {
    let outcome = match kind {
        ActionKind::Drain => Outcome::Failed,
        ActionKind::Relabel => Outcome::Degraded,
        ActionKind::Release | ActionKind::Certify => Outcome::Pass,
    };
    let mark = VerdictMark {
        outcome,
        class: (outcome != Outcome::Pass).then(|| FindingClass::from_name(class)),
        run: "r1".to_owned(),
        at: "2026-01-01T00:00:00Z".to_owned(),
        expires: None,
        boot_id: None,
        domain: None,
    };
    Action { mark: Some(mark), why: "a test".to_owned(), ..Action::new(kind, node) }
}

/// A plan of these proposals.
pub(crate) fn plan(actions: Vec<Action>) -> ActionPlan {
    ActionPlan { dry_run: false, ..ActionPlan::from_actions(actions) }
}
