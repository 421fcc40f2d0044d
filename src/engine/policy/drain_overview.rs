//! The nodes that we drained, as the scheduler shows them now beside what the
//! journal has of them.
//!
//! Pure. What differs comes first: the journal has what was done, the scheduler
//! what is.

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

/// A node that we drained, or that carries a mark of our form.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct DrainOverviewRow {
    /// The node.
    pub node: NodeName,
    /// How what the journal has and what the scheduler shows go together.
    pub standing: DrainStanding,
    /// What differs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at_odds: Option<String>,
    /// The class that its drain names.
    pub class: Option<String>,
    /// The run of its drain.
    pub run: Option<String>,
    /// When the drain was begun, or was seen to be gone, RFC 3339.
    pub since: Option<String>,
    /// Clean runs since that count.
    pub clean: usize,
    /// Clean runs that give it back.
    pub clean_wanted: usize,
    /// What comes next.
    pub next: String,
    /// Its state as the scheduler shows it now; null where that is not known.
    pub state: Option<String>,
}

/// How what the journal has and what the scheduler shows go together. In the order in
/// which they are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DrainStanding {
    /// The scheduler has no such node.
    Gone,
    /// Our drain is not there, and no other is.
    InService,
    /// A reason or drain of another is there.
    TakenOver,
    /// Our drain is there, and something was written behind our reason.
    Appended,
    /// It carries a reason of our form that the journal does not know.
    Unrecorded,
    /// Our drain is there.
    Drained,
    /// Our drain is lifted while it is measured.
    Measured,
    /// Our drain was seen to be gone, and that was respected.
    Undone,
    /// It is not known how it stands.
    Unknown,
}

impl DrainStanding {
    /// Whether the scheduler shows something else than the journal has.
    pub fn is_at_odds(self) -> bool {
        matches!(
            self,
            Self::Gone | Self::InService | Self::TakenOver | Self::Appended | Self::Unrecorded
        )
    }

    /// Whether our drain holds it now, or comes back when it was measured.
    pub fn is_ours(self) -> bool {
        matches!(self, Self::Drained | Self::Measured | Self::Appended)
    }
}

/// Every node that we drained, what differs first. Without an answer of the scheduler
/// nothing is said of how they stand.
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

/// A state on one line.
fn format_state(node: &SchedulerNode) -> String {
    let state: Vec<String> = node.state.iter().map(|it| clean(it)).collect();
    state.join("+")
}

/// What rows are made of.
struct DrainOverviewBuilder<'a> {
    ledger: &'a JournalState,
    live: Option<&'a SchedulerSnapshot>,
    policy: &'a Policy,
    now: &'a ClockStamp,
}

impl DrainOverviewBuilder<'_> {
    /// What the journal has of a drain.
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

    /// How a node stands that the journal has as drained by us, what differs, and what
    /// comes next.
    fn assess_standing(
        &self,
        node: &NodeName,
        drain: &OwnDrain,
        row: &DrainOverviewRow,
    ) -> (DrainStanding, Option<String>, String) {
        let unknown = |why: &str| (DrainStanding::Unknown, None, why.to_owned());
        let Some(live) = self.live else { return unknown("ask the scheduler again") };
        let Some(live) = live.nodes.get(node) else {
            if !live.troubles.is_empty() {
                return unknown("the scheduler's answer could not be read whole");
            }
            let odds = "the scheduler has no such node".to_owned();
            let next =
                format!("where it is gone for good, `fabricgate gate forget {node} --why TEXT`");
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
                    "a person looks at it; until then it is not given back".to_owned(),
                ),
                None => (DrainStanding::Drained, None, self.describe_next_step(node, drain, row)),
            },
            DrainOwner::NotDrained if hold.is_some() => {
                let name = hold.map(|(name, _)| clean(name)).unwrap_or_default();
                (DrainStanding::Measured, None, format!("it is drained again when {name} ends"))
            }
            DrainOwner::NotDrained => (
                DrainStanding::InService,
                Some("our drain of it is not there".to_owned()),
                "the next turn finds out what became of the drain".to_owned(),
            ),
            DrainOwner::Unrecorded => (
                DrainStanding::TakenOver,
                Some(format!(
                    "another mark of our form is there: {}",
                    node_state::display_reason(live)
                )),
                "it is left to the gate that wrote it".to_owned(),
            ),
            DrainOwner::Other(whose) => (
                DrainStanding::TakenOver,
                Some(format!("it is another's: {whose}")),
                "it is left as it is".to_owned(),
            ),
        }
    }

    /// What comes next for a node that is drained by us.
    fn describe_next_step(
        &self,
        node: &NodeName,
        drain: &OwnDrain,
        row: &DrainOverviewRow,
    ) -> String {
        if row.clean_wanted <= row.clean {
            return "the next turn gives it back, unless something speaks against it".to_owned();
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

    /// A node with a reason of our form that the journal does not know.
    fn unrecorded_row(&self, live: &SchedulerNode) -> Option<DrainOverviewRow> {
        if !matches!(node_state::drain_owner(live, self.ledger), DrainOwner::Unrecorded) {
            return None;
        }
        let own = node_state::own_reason(live)?;
        Some(DrainOverviewRow {
            node: live.name.clone(),
            standing: DrainStanding::Unrecorded,
            at_odds: Some(format!(
                "its reason is of our form and not in this journal: {}",
                node_state::display_reason(live)
            )),
            class: Some(own.class),
            run: Some(own.run),
            since: None,
            clean: 0,
            clean_wanted: self.policy.clean_sweeps.max(1) as usize,
            next:
                "it is left to the gate that wrote it; where that is gone, `fabricgate gate adopt`"
                    .to_owned(),
            state: Some(format_state(live)),
        })
    }
}

#[cfg(test)]
#[path = "drain_overview_tests.rs"]
mod tests;
