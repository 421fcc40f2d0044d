//! The nodes that fabricgate drained: the scheduler's state compared with the journal.
//!
//! Pure. Differences come first: the journal holds the actions, the scheduler the present
//! state.

use schemars::JsonSchema;
use serde::Serialize;

use super::action_policy::Policy;
use super::clean::{count_clean_runs, min_clean_gap_s};
use super::journal_state::{JournalState, OwnDrain};
use super::node_state::DrainOwner;
use super::{drain_reason, node_state};
use model::id::NodeName;
use model::journal::ClockStamp;
use model::scheduler_snapshot::{SchedulerNode, SchedulerSnapshot};
use model::text::clean;

/// A node that fabricgate drained, or that carries a mark in fabricgate's form.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct DrainOverviewRow {
    /// The node.
    pub node: NodeName,
    /// How the journal and the scheduler agree about it.
    pub standing: DrainStanding,
    /// The difference, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at_odds: Option<String>,
    /// The class that its drain reason names.
    pub class: Option<String>,
    /// The run of its drain.
    pub run: Option<String>,
    /// When the drain was started, or was found missing, RFC 3339.
    pub since: Option<String>,
    /// Clean runs since then that count.
    pub clean: usize,
    /// Clean runs needed for its release.
    pub clean_wanted: usize,
    /// The operator's next step.
    pub next: String,
    /// Its state as the scheduler reports it; null if unknown.
    pub state: Option<String>,
}

/// How the journal and the scheduler agree about a node, in the order of display.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DrainStanding {
    /// The scheduler has no such node.
    Gone,
    /// fabricgate's drain is missing, and no other drain is in force.
    InService,
    /// Another reason or drain is in force.
    TakenOver,
    /// fabricgate's drain is in force, and text was appended to its reason.
    Appended,
    /// It carries a reason in fabricgate's form that the journal does not contain.
    Unrecorded,
    /// fabricgate's drain is in force.
    Drained,
    /// fabricgate's drain is lifted while the node is measured.
    Measured,
    /// fabricgate's drain was removed, and that was respected.
    Undone,
    /// Its state is unknown.
    Unknown,
}

impl DrainStanding {
    /// Whether the scheduler's state differs from the journal.
    pub fn is_at_odds(self) -> bool {
        matches!(
            self,
            Self::Gone | Self::InService | Self::TakenOver | Self::Appended | Self::Unrecorded
        )
    }

    /// Whether fabricgate's drain is in force, or returns after the measurement.
    pub fn is_ours(self) -> bool {
        matches!(self, Self::Drained | Self::Measured | Self::Appended)
    }
}

/// Every node that fabricgate drained, differences first. Without an answer from the scheduler, the
/// state of each row is unknown.
pub fn build_rows(
    ledger: &JournalState,
    live: Option<&SchedulerSnapshot>,
    policy: &Policy,
    now: &ClockStamp,
) -> Vec<DrainOverviewRow> {
    let seen = DrainOverviewBuilder { ledger, live, policy, now };
    let mut rows: Vec<DrainOverviewRow> =
        ledger.drains.iter().map(|(node, drain)| seen.drained_row(node, drain)).collect();
    rows.extend(ledger.undone_drains.iter().map(|(node, undone)| DrainOverviewRow {
        since: Some(undone.stamp.at.clone()),
        next: "it is not drained again for the same evidence (acknowledged_days)".to_owned(),
        standing: DrainStanding::Undone,
        ..seen.row(node, &undone.drain)
    }));
    let known = |node: &NodeName| ledger.drains.contains_key(node);
    let others = live.into_iter().flat_map(|live| live.nodes.values());
    rows.extend(others.filter(|it| !known(&it.name)).filter_map(|it| seen.unrecorded_row(it)));
    rows.sort_by(|a, b| (a.standing, &a.node).cmp(&(b.standing, &b.node)));
    rows
}

fn format_state(node: &SchedulerNode) -> String {
    let state: Vec<String> = node.state.iter().map(|it| clean(it)).collect();
    state.join("+")
}

struct DrainOverviewBuilder<'a> {
    ledger: &'a JournalState,
    live: Option<&'a SchedulerSnapshot>,
    policy: &'a Policy,
    now: &'a ClockStamp,
}

impl DrainOverviewBuilder<'_> {
    fn row(&self, node: &NodeName, drain: &OwnDrain) -> DrainOverviewRow {
        let runs = drain.clean.iter().map(|it| (it.measured, it.run.as_str()));
        let written = drain_reason::parse_reason(&drain.action.reason);
        let state = self.live.and_then(|live| live.nodes.get(node)).map(format_state);
        DrainOverviewRow {
            node: node.clone(),
            standing: DrainStanding::Unknown,
            at_odds: None,
            class: written.map(|own| own.class),
            run: Some(drain.run.clone()),
            since: Some(drain.stamp.at.clone()),
            clean: count_clean_runs(runs, min_clean_gap_s(self.policy)).runs.len(),
            clean_wanted: self.policy.clean_sweeps.max(1) as usize,
            next: String::new(),
            state,
        }
    }

    fn drained_row(&self, node: &NodeName, drain: &OwnDrain) -> DrainOverviewRow {
        let row = self.row(node, drain);
        let (standing, at_odds, next) = self.assess_standing(node, drain, &row);
        DrainOverviewRow { standing, at_odds, next, ..row }
    }

    /// The standing of a node that the journal records as drained, the difference, and the next
    /// step.
    fn assess_standing(
        &self,
        node: &NodeName,
        drain: &OwnDrain,
        row: &DrainOverviewRow,
    ) -> (DrainStanding, Option<String>, String) {
        let unknown = |why: &str| (DrainStanding::Unknown, None, why.to_owned());
        let Some(live) = self.live else { return unknown("query the scheduler again") };
        let Some(live) = live.nodes.get(node) else {
            if !live.troubles.is_empty() {
                return unknown("the scheduler's answer could not be read in full");
            }
            let odds = "the scheduler has no such node".to_owned();
            let next =
                format!("if it is gone for good, `fabricgate gate forget {node} --why TEXT`");
            return (DrainStanding::Gone, Some(odds), next);
        };
        let hold = self
            .ledger
            .allocations
            .iter()
            .find(|(_, hold)| hold.drained.iter().any(|(held, _)| held == node));
        match node_state::drain_owner(live, self.ledger) {
            DrainOwner::ThisGate(_) => match node_state::appended_text(live) {
                Some(odds) => (
                    DrainStanding::Appended,
                    Some(odds),
                    "a user must inspect it; until then it is not released".to_owned(),
                ),
                None => (DrainStanding::Drained, None, self.describe_next_step(node, drain, row)),
            },
            DrainOwner::NotDrained if hold.is_some() => {
                let name = hold.map(|(name, _)| clean(name)).unwrap_or_default();
                (DrainStanding::Measured, None, format!("it is drained again when {name} ends"))
            }
            DrainOwner::NotDrained => (
                DrainStanding::InService,
                Some("fabricgate's drain is missing".to_owned()),
                "the next turn finds out why".to_owned(),
            ),
            DrainOwner::Unrecorded => (
                DrainStanding::TakenOver,
                Some(format!(
                    "it carries another mark in fabricgate's form: {}",
                    node_state::display_reason(live)
                )),
                "it is left to the gate that wrote it".to_owned(),
            ),
            DrainOwner::Other(owner) => (
                DrainStanding::TakenOver,
                Some(format!("another party holds it: {owner}")),
                "fabricgate leaves it as it is".to_owned(),
            ),
        }
    }

    /// The next step for a node that fabricgate drained.
    fn describe_next_step(
        &self,
        node: &NodeName,
        drain: &OwnDrain,
        row: &DrainOverviewRow,
    ) -> String {
        if row.clean_wanted <= row.clean {
            return "the next turn releases it, unless something prevents that".to_owned();
        }
        let runs = drain.clean.iter().map(|it| (it.measured, it.run.as_str()));
        if let Some(wait) =
            count_clean_runs(runs, min_clean_gap_s(self.policy)).explain_wait(self.now.unix)
            && drain.clean.len() == row.clean
        {
            return format!("a clean run: {wait}");
        }
        let first = if row.clean == 0 { "repair, then " } else { "" };
        format!("{first}`fabricgate recertify {node} --with-domain --apply`")
    }

    /// A node with a reason in fabricgate's form that the journal does not contain.
    fn unrecorded_row(&self, live: &SchedulerNode) -> Option<DrainOverviewRow> {
        if !matches!(node_state::drain_owner(live, self.ledger), DrainOwner::Unrecorded) {
            return None;
        }
        let own = node_state::own_reason(live)?;
        Some(DrainOverviewRow {
            node: live.name.clone(),
            standing: DrainStanding::Unrecorded,
            at_odds: Some(format!(
                "its reason is in fabricgate's form and not in this journal: {}",
                node_state::display_reason(live)
            )),
            class: Some(own.class),
            run: Some(own.run),
            since: None,
            clean: 0,
            clean_wanted: self.policy.clean_sweeps.max(1) as usize,
            next: "it is left to the gate that wrote it; if that is gone, `fabricgate gate adopt`"
                .to_owned(),
            state: Some(format_state(live)),
        })
    }
}

#[cfg(test)]
#[path = "drain_overview_tests.rs"]
mod tests;
