//! An action plan for readers: the freeze, the proposals with reasons, the withheld actions with
//! reasons, and the results.
//!
//! Pure. Equal actions are listed once, with their nodes as a host list, so that a plan for ten
//! thousand nodes is read as quickly as one for ten. `actions.json` has every action.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::Serialize;

use super::TerminalStyle;
use super::plain_text::{clip, count_noun, list_names, to_plain};
use super::terminal_page::{TerminalPage, outcome_colour};
use model::action::{Action, ActionKind, ActionPlan, ActionRecord, ActionResult, VerdictMark};
use model::id::NodeName;
use model::run::simulation_notice;
use model::verdict::Outcome;
use model::{hostlist, shell_quote};

/// Most lines of one list; the rest are counted.
const MOST: usize = 20;
/// Most displayed calls of one kind: they differ by text of other users on the nodes.
const CALLS: usize = 5;
/// Longest sentence taken from a plan.
const LONGEST: usize = 600;
/// Longest host list inside a command, in characters. A cut list could still be run, on fewer nodes
/// than intended, so a longer one is mentioned and not displayed.
const LONGEST_LIST: usize = 1_000;
/// Separates two commands on one line and is not an argument of either.
const AND: &str = "&&";
/// Longest host list inside a sentence, so that it stays on its line.
const SHOWN_LIST: usize = 56;

/// Renders a plan on a page of its own.
pub fn render(plan: &ActionPlan, style: &TerminalStyle, budgets: &[String]) -> String {
    let mut page = TerminalPage::new(style);
    if let Some(text) = simulation_notice(plan.simulated) {
        page.warning(text);
    }
    write_section(&mut page, plan, budgets);
    // Sections begin with an empty line; here nothing precedes them.
    page.out.trim_start_matches('\n').to_owned()
}

/// Writes a plan as part of a page: `budgets` is one sentence for each budget.
pub(super) fn write_section(page: &mut TerminalPage, plan: &ActionPlan, budgets: &[String]) {
    let summary = ActionSummary::from_plan(plan);
    if let Some(frozen) = &summary.frozen {
        page.out.push('\n');
        page.styled(outcome_colour(Outcome::Failed), "FROZEN");
        page.paragraph("  ", frozen, 0);
    }
    let dry = if plan.dry_run { " (dry run: nothing is carried out)" } else { "" };
    page.section(&format!("Proposed{dry}"));
    if summary.groups.is_empty() {
        page.paragraph("", "nothing", 2);
    }
    for group in &summary.groups {
        for call in &group.calls {
            // Commands are never wrapped, so that users can copy them.
            let _ = writeln!(page.out, "  {} {call}", command_prompt(plan.simulated));
        }
        if 0 < group.more_calls {
            let more = count_noun(group.more_calls, "other call", "other calls");
            page.paragraph("", &format!("and {more} for {}", group.more_nodes), 4);
        }
        write_lines(page, &group.whys, 4);
    }
    if !summary.withheld.is_empty() {
        page.section("Withheld");
        write_lines(page, &summary.withheld, 2);
    }
    if !summary.records.is_empty() {
        page.section("Carried out");
        write_lines(page, &summary.records, 2);
    }
    if !budgets.is_empty() {
        page.section("Budgets left");
        for budget in budgets {
            page.paragraph("- ", budget, 2);
        }
    }
}

/// The text in front of a command: commands of a simulated run are not meant to be run.
pub(super) fn command_prompt(is_simulated: bool) -> &'static str {
    if is_simulated { "#" } else { "$" }
}

fn write_lines(page: &mut TerminalPage, lines: &[String], indent: usize) {
    let lead = if indent == 2 { "- " } else { "" };
    for line in lines.iter().take(MOST) {
        page.paragraph(lead, line, indent);
    }
    if MOST < lines.len() {
        let more = format!("and {} more; --json lists all", lines.len() - MOST);
        page.paragraph(lead, &more, indent);
    }
}

/// A plan as text, with equal entries grouped.
#[derive(Debug, Default, PartialEq, Serialize)]
pub(super) struct ActionSummary {
    /// Why nothing is drained or relabelled, if something prevents it.
    pub(super) frozen: Option<String>,
    pub(super) groups: Vec<ActionGroup>,
    /// Withheld actions, by reason.
    pub(super) withheld: Vec<String>,
    /// Results of executed actions, the worst first.
    pub(super) records: Vec<String>,
}

/// Actions with the same text.
#[derive(Debug, Default, PartialEq, Serialize)]
pub(super) struct ActionGroup {
    /// The action and its nodes.
    pub(super) title: String,
    pub(super) calls: Vec<String>,
    pub(super) more_calls: usize,
    pub(super) more_nodes: String,
    /// Nodes, reasons and prices.
    pub(super) whys: Vec<String>,
}

impl ActionSummary {
    pub(super) fn from_plan(plan: &ActionPlan) -> Self {
        Self {
            frozen: plan.frozen.as_deref().map(|why| clip(why, LONGEST)),
            groups: group_actions(&plan.actions),
            withheld: describe_withheld(plan),
            records: describe_records(&plan.records),
        }
    }
}

/// Values under their keys, in the order in which keys first appear.
fn group_in_order<K: Ord + Clone, V>(pairs: impl IntoIterator<Item = (K, V)>) -> Vec<(K, Vec<V>)> {
    let mut at: BTreeMap<K, usize> = BTreeMap::new();
    let mut out: Vec<(K, Vec<V>)> = Vec::new();
    for (key, value) in pairs {
        let index = *at.entry(key.clone()).or_insert_with(|| {
            out.push((key, Vec::new()));
            out.len() - 1
        });
        out[index].1.push(value);
    }
    out
}

/// The order of the kinds: actions that take nodes out of service come first.
fn kind_rank(kind: ActionKind) -> (u8, &'static str) {
    match kind {
        ActionKind::Drain => (0, "drain"),
        ActionKind::Relabel => (1, "relabel"),
        ActionKind::Release => (2, "release"),
        ActionKind::Certify => (3, "certify"),
    }
}

fn group_actions(actions: &[Action]) -> Vec<ActionGroup> {
    type ActionGroupKey<'a> = ((u8, &'static str), &'a str, Option<VerdictMark>);
    let mut by_kind: BTreeMap<ActionGroupKey<'_>, Vec<&Action>> = BTreeMap::new();
    for action in actions {
        // Equal actions stay one group even if the nodes were measured in different domains.
        let alike =
            |mark: &VerdictMark| VerdictMark { domain: None, boot_id: None, ..mark.clone() };
        let key = (kind_rank(action.kind), action.reason.as_str(), action.mark.as_ref().map(alike));
        by_kind.entry(key).or_default().push(action);
    }
    by_kind.into_iter().map(|(((_, word), ..), actions)| build_group(word, &actions)).collect()
}

fn build_group(word: &str, actions: &[&Action]) -> ActionGroup {
    let calls =
        group_in_order(actions.iter().map(|action| (command_template(action), &action.node)));
    // Most nodes first: the calls for the others depend on earlier text on these nodes.
    let mut calls: Vec<_> = calls.into_iter().filter(|(call, _)| !call.is_empty()).collect();
    calls.sort_by_key(|(_, nodes)| std::cmp::Reverse(nodes.len()));
    let hidden = calls.split_off(calls.len().min(CALLS));
    let more: Vec<&NodeName> = hidden.iter().flat_map(|(_, nodes)| nodes.iter().copied()).collect();
    let price = |action: &Action| action.price.map(f64::to_bits);
    let whys = group_in_order(actions.iter().map(|a| ((a.why.as_str(), price(a)), &a.node)));
    let all: Vec<&NodeName> = actions.iter().map(|action| &action.node).collect();
    ActionGroup {
        title: format!("{word} {}", format_nodes(&all)),
        calls: calls.iter().map(|(call, nodes)| fill_template(call, nodes)).collect(),
        more_calls: hidden.len(),
        more_nodes: format_nodes(&more),
        whys: whys
            .iter()
            .map(|((why, price), nodes)| {
                let mut line = format!("{word} {}: {}", format_nodes(nodes), clip(why, LONGEST));
                if let Some(price) = price.map(f64::from_bits) {
                    let _ = write!(line, " (price: {})", format_price(price));
                }
                line
            })
            .collect(),
    }
}

fn format_price(price: f64) -> String {
    match price {
        whole if whole.fract() == 0.0 && whole.abs() < 1e9 => {
            #[expect(clippy::cast_possible_truncation, reason = "checked to be whole and small")]
            let whole = whole as i64;
            format!("{whole} schedulable {}", if whole == 1 { "node" } else { "nodes" })
        }
        part => format!("{part:.1} schedulable nodes"),
    }
}

/// The argument of a command that names its node.
fn node_argument(node: &NodeName) -> String {
    format!("NodeName={node}")
}

fn command_template(action: &Action) -> Vec<Option<&str>> {
    let naming = node_argument(&action.node);
    action.command.iter().map(|word| (*word != naming).then_some(word.as_str())).collect()
}

/// A command with all its nodes.
fn fill_template(template: &[Option<&str>], nodes: &[&NodeName]) -> String {
    let list = hostlist::fold(nodes.iter().map(|node| node.as_str()));
    let list = match list.len() {
        short if short <= LONGEST_LIST => list,
        _ => format!("... ({} nodes, listed in actions.json)", nodes.len()),
    };
    let words: Vec<String> = template
        .iter()
        .map(|word| word.map_or_else(|| format!("NodeName={list}"), str::to_owned))
        .collect();
    let calls = words.split(|word| word == AND);
    calls.map(shell_quote::join_quoted).collect::<Vec<_>>().join(&format!(" {AND} "))
}

/// Nodes for a sentence: a single node, or a host list with its count.
fn format_nodes<T: Borrow<NodeName>>(nodes: &[T]) -> String {
    match nodes {
        [] => "no node".to_owned(),
        [one] => to_plain(one.borrow().as_str()).into_owned(),
        several => {
            let list = hostlist::fold(several.iter().map(|node| node.borrow().as_str()));
            format!("{} ({} nodes)", cut_list(&list), several.len())
        }
    }
}

/// A host list that stays on its line, cut between two names.
fn cut_list(list: &str) -> String {
    let list = to_plain(list);
    if list.chars().count() <= SHOWN_LIST {
        return list.into_owned();
    }
    let kept: String = list.chars().take(SHOWN_LIST).collect();
    let kept = kept.rsplit_once(',').map_or(kept.as_str(), |(before, _)| before);
    let inside = kept.rfind('[').is_some_and(|open| !kept[open..].contains(']'));
    format!("{kept},…{}", if inside { "]" } else { "" })
}

fn describe_withheld(plan: &ActionPlan) -> Vec<String> {
    let mut by_why =
        group_in_order(plan.withheld.iter().map(|w| (w.why.as_str(), NodeName::from(&*w.what))));
    if MOST < by_why.len() {
        // Not all are displayed, so those that concern most nodes come first.
        by_why.sort_by_key(|(_, whats)| std::cmp::Reverse(whats.len()));
    }
    by_why
        .iter()
        .map(|(why, whats)| {
            let what = match whats.iter().all(NodeName::is_one_node) {
                true => format_nodes(whats),
                false => {
                    let whats: Vec<&str> = whats.iter().map(NodeName::as_str).collect();
                    list_names(&whats, 6)
                }
            };
            format!("{what}: {}", clip(why, LONGEST))
        })
        .collect()
}

/// The result of an action as text; results that need attention come first.
fn result_text(result: ActionResult) -> (u8, &'static str) {
    match result {
        ActionResult::Failed => (0, "failed"),
        ActionResult::Unknown => (1, "not known yet"),
        ActionResult::Refused => (2, "not tried"),
        ActionResult::Superseded => (3, "left to others"),
        ActionResult::Done => (4, "done"),
        ActionResult::Already => (5, "was so already"),
    }
}

/// The results of actions as text, the worst first.
pub(super) fn describe_records(records: &[ActionRecord]) -> Vec<String> {
    let key = |r: &'_ ActionRecord| (result_text(r.result), kind_rank(r.kind));
    let mut alike = group_in_order(records.iter().map(|r| ((key(r), r.detail.as_str()), &r.node)));
    alike.sort_by_key(|((key, _), _)| *key);
    alike
        .iter()
        .map(|((((_, ended), (_, word)), detail), nodes)| {
            let detail = clip(detail, LONGEST);
            let detail = if detail.is_empty() { detail } else { format!(": {detail}") };
            format!("{ended}: {word} {}{detail}", format_nodes(nodes))
        })
        .collect()
}

#[cfg(test)]
#[path = "actions_tests.rs"]
mod tests;
