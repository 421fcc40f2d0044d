//! The action plan for the page: what stops it, what is proposed and why, what
//! is not and why not, and what became of it.

use serde::Serialize;

use super::ROWS;
use crate::report::actions::{ActionGroup, ActionSummary};
use model::run::Run;

#[derive(Serialize)]
pub(super) struct HtmlActionPlan {
    dry_run: bool,
    frozen: Option<String>,
    groups: Vec<GroupText>,
    groups_more: usize,
    withheld: Vec<String>,
    withheld_more: usize,
    records: Vec<String>,
    records_more: usize,
}

/// Actions that are one to a reader.
#[derive(Serialize)]
struct GroupText {
    title: String,
    whys: Vec<String>,
    whys_more: usize,
    calls: Vec<String>,
    calls_more: usize,
    calls_nodes: String,
}

/// The plan in words, where there is one.
pub(super) fn build_plan(run: &Run) -> Option<HtmlActionPlan> {
    fn limit_rows<T>(mut all: Vec<T>) -> (Vec<T>, usize) {
        let more = all.len().saturating_sub(ROWS);
        all.truncate(ROWS);
        (all, more)
    }
    let plan = run.actions.as_ref()?;
    let summary = ActionSummary::from_plan(plan);
    let (groups, groups_more) = limit_rows(summary.groups);
    let (withheld, withheld_more) = limit_rows(summary.withheld);
    let (records, records_more) = limit_rows(summary.records);
    let group = |group: ActionGroup| {
        let (whys, whys_more) = limit_rows(group.whys);
        GroupText {
            title: group.title,
            whys,
            whys_more,
            calls: match plan.simulated {
                true => group.calls.iter().map(|call| format!("# {call}")).collect(),
                false => group.calls,
            },
            calls_more: group.more_calls,
            calls_nodes: group.more_nodes,
        }
    };
    Some(HtmlActionPlan {
        dry_run: plan.dry_run,
        frozen: summary.frozen,
        groups: groups.into_iter().map(group).collect(),
        groups_more,
        withheld,
        withheld_more,
        records,
        records_more,
    })
}
