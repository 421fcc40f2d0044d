//! Notices for operators: the events of a run and of the gate's state, the selection of new events,
//! and their text in each receiver's format.
//!
//! Pure. `notify` chooses the receivers and delivers.

pub mod alertmanager;
pub mod changes;
pub mod message;
pub mod slack;

use std::collections::BTreeSet;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::metrics::MetricsState;
use super::plain_text::{clip, to_plain};
use super::{class_text, trend};
use model::action::{ActionKind, ActionPlan, ActionResult};
use model::finding_class::FindingClass;
use model::id::{DomainName, NodeName};
use model::measured_cell::MeasuredCell;
use model::run::Run;
use model::text::format_percent;
use model::time_format::format_rfc3339;
use model::trend::OpenAlarm;
use model::verdict::{Finding, NodeVerdict, Outcome, RatioReference};

/// Longest text of one field: operators read messages on a telephone.
const LONGEST: usize = 400;

/// Kinds of notices.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum NoticeEvent {
    /// A part works below the rate that it must deliver.
    Degraded,
    /// A part cannot be used as claimed.
    Failed,
    /// A node could not be judged.
    Unknown,
    /// The condition of an earlier notice has ended.
    PassAgain,
    /// The gate acted on a node, or a budget withheld the action.
    Action,
    /// The breaker tripped, or a run proposed nothing because of a common cause.
    Breaker,
    /// A certificate expired.
    Expired,
    /// A part drifts away from its usual level.
    Drift,
}

impl NoticeEvent {
    /// All event kinds.
    pub const ALL: [Self; 8] = [
        Self::Degraded,
        Self::Failed,
        Self::Unknown,
        Self::PassAgain,
        Self::Action,
        Self::Breaker,
        Self::Expired,
        Self::Drift,
    ];

    /// Its name in configuration and documents.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Degraded => "degraded",
            Self::Failed => "failed",
            Self::Unknown => "unknown",
            Self::PassAgain => "pass-again",
            Self::Action => "action",
            Self::Breaker => "breaker",
            Self::Expired => "expired",
            Self::Drift => "drift",
        }
    }

    /// The urgency, in the terms of alert rules.
    pub fn severity(self) -> &'static str {
        match self {
            Self::Failed | Self::Breaker => "critical",
            Self::Degraded | Self::Unknown | Self::Expired | Self::Drift => "warning",
            Self::PassAgain | Self::Action => "info",
        }
    }

    /// Whether the event lasts until another event ends it; the others happen once.
    fn is_ongoing(self) -> bool {
        !matches!(self, Self::PassAgain | Self::Action)
    }
}

/// One notice.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct NoticeItem {
    /// The key: equal in every run for the same matter.
    pub key: String,
    /// The kind of event.
    pub event: NoticeEvent,
    /// The node, if the notice is about one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<NodeName>,
    /// The domain, if the notice is about one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<DomainName>,
    /// The class of the worst finding, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<FindingClass>,
    /// The worst finding's measurement, as a share of its reference.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ratio: Option<f64>,
    /// The reference of that share.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ratio_of: Option<RatioReference>,
    /// The matter, in a few words.
    pub what: String,
    /// The severity, in one sentence.
    pub how: String,
    /// The action that was taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub done: Option<String>,
    /// The operator's next step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// The candidates for notices at one time, before they are compared with earlier notices.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NoticeOccasion {
    /// The run, if the notices come from one.
    pub run: Option<String>,
    /// Its profile.
    pub profile: Option<String>,
    /// Its folder.
    pub folder: Option<String>,
    /// Whether it measured a simulated fabric.
    pub simulated: bool,
    /// Present conditions and new events.
    pub items: Vec<NoticeItem>,
    /// Keys of parts that are known to be healthy now.
    pub healthy: BTreeSet<String>,
    /// Nodes with a known outcome: earlier notices about a part of one of them that are
    /// not among the items are over.
    pub judged: BTreeSet<NodeName>,
    /// Domains all of whose known nodes are among them: earlier notices about such a domain or
    /// a plane of it that are not among the items are over.
    pub covered: BTreeSet<DomainName>,
    /// All domains and the network between them are covered: earlier notices about no single
    /// node or domain that are not among the items are over.
    pub is_everywhere: bool,
    /// Prefixes of keys that the items cover completely: earlier notices with such a key that
    /// are not among the items are over.
    pub whole: BTreeSet<String>,
}

/// The notices of a run. An interrupted run reports nothing about parts that it did not
/// measure, and ends no notice.
pub fn occasion_from_run(
    run: &Run,
    acted: Option<&ActionPlan>,
    folder: &str,
    is_partial: bool,
) -> NoticeOccasion {
    let mut occasion = NoticeOccasion {
        run: Some(run.info.id.clone()),
        profile: Some(run.info.profile.clone()),
        folder: Some(folder.to_owned()),
        simulated: run.info.simulated,
        ..NoticeOccasion::default()
    };
    let named = run.verdicts.findings_by_node();
    let mut listed: BTreeSet<&str> = BTreeSet::new();
    for verdict in &run.verdicts.nodes {
        match verdict.outcome {
            Outcome::Pass if is_partial => {}
            Outcome::Pass => drop(occasion.healthy.insert(node_key(&verdict.node))),
            Outcome::Unknown if is_partial => {}
            _ => {
                let own = named.get(&verdict.node).into_iter().flatten().copied();
                let own: Vec<&Finding> = own.filter(|it| is_bad(it)).collect();
                listed.extend(own.iter().map(|it| it.id.as_str()));
                occasion.items.push(node_item(verdict, &own, acted));
            }
        }
    }
    let findings = run.verdicts.findings.iter().filter(|it| is_bad(it));
    for it in findings.filter(|it| !listed.contains(it.id.as_str())) {
        occasion.items.push(part_item(it));
    }
    if !is_partial {
        record_coverage(run, &mut occasion);
    }
    if let Some(plan) = run.actions.as_ref() {
        occasion.items.extend(plan.frozen.as_ref().map(|why| frozen_item(why)));
        if plan.frozen.is_none() && !is_partial {
            occasion.healthy.insert(FROZEN.to_owned());
        }
    }
    occasion.items.extend(acted.into_iter().flat_map(|plan| action_items(plan, &run.info.id)));
    occasion
}

/// Records the coverage of a run. A part without a verdict is not covered, so the run ends no
/// notice about it.
fn record_coverage(run: &Run, occasion: &mut NoticeOccasion) {
    let (known, unknown): (Vec<&NodeVerdict>, Vec<&NodeVerdict>) =
        run.verdicts.nodes.iter().partition(|it| it.outcome != Outcome::Unknown);
    occasion.judged.extend(known.iter().map(|it| it.node.clone()));
    occasion.covered.extend(known.iter().filter_map(|it| it.domain.clone()));
    for domain in unknown.iter().filter_map(|it| it.domain.as_ref()) {
        occasion.covered.remove(domain);
    }
    let is_between = |cell: &MeasuredCell| {
        let is_port = cell.rail.is_some() || (cell.src_gpu.is_none() && cell.dst_gpu.is_none());
        cell.value.is_some() && cell.src_node != cell.dst_node && is_port
    };
    occasion.is_everywhere =
        !known.is_empty() && unknown.is_empty() && run.cells.iter().any(is_between);
}

impl NoticeOccasion {
    /// Removes coverage that a run without all known nodes cannot have: a domain with known nodes
    /// that were not measured is not covered as a whole.
    pub fn limit_to_known(&mut self, run: &Run, state: &MetricsState) {
        let here: BTreeSet<&NodeName> = run.verdicts.nodes.iter().map(|it| &it.node).collect();
        let elsewhere = state.nodes.iter().filter(|(node, it)| {
            // A node that only has a certificate may not exist any more.
            it.measured.is_some() && !here.contains(node)
        });
        for (_, it) in elsewhere {
            self.is_everywhere = false;
            if let Some(domain) = &it.domain {
                self.covered.remove(domain);
            }
        }
    }
}

fn is_bad(finding: &Finding) -> bool {
    Outcome::Unknown < finding.outcome
}

/// The notices about the state of certificates, the gate and the history.
pub fn occasion_from_state(state: &MetricsState) -> NoticeOccasion {
    let mut occasion = NoticeOccasion::default();
    for (name, it) in &state.nodes {
        let key = format!("expired/{name}");
        match &it.certificate {
            Some(certificate) if !certificate.is_void && certificate.expires <= state.now => {
                let mut item = new_item(key, NoticeEvent::Expired, "certificate expired");
                (item.node, item.domain) = (Some(name.clone()), it.domain.clone());
                item.how = format!("it counted until {}", format_rfc3339(certificate.expires));
                item.next = Some(format!("measure it again: `fabricgate admit {name} --apply`"));
                occasion.items.push(item);
            }
            Some(certificate) if !certificate.is_void => drop(occasion.healthy.insert(key)),
            // A void certificate belongs to a drained node or to replaced hardware, which has its
            // own notice.
            _ => {}
        }
        occasion.items.extend(it.alarms.iter().map(|alarm| drift_item(alarm, it.domain.as_ref())));
    }
    for (domain, alarms) in &state.drifting {
        occasion.items.extend(alarms.iter().map(|alarm| drift_item(alarm, Some(domain))));
    }
    if state.is_history_read {
        occasion.whole.insert(DRIFTS.to_owned());
    }
    match &state.gate {
        Some(gate) if gate.is_tripped => {
            let mut item =
                new_item(BREAKER.to_owned(), NoticeEvent::Breaker, "the breaker tripped");
            "only releases are carried out".clone_into(&mut item.how);
            let next =
                "see `fabricgate gate status`; when it is safe, `fabricgate gate reset --why TEXT`";
            item.next = Some(next.to_owned());
            occasion.items.push(item);
        }
        Some(_) => drop(occasion.healthy.insert(BREAKER.to_owned())),
        None => {}
    }
    occasion
}

const NODE_DRIFTS: &str = "drifted away from its usual level";
const DOMAIN_DRIFTS: &str = "the domain's level drifted away from its usual level";
const BREAKER: &str = "breaker";
const FROZEN: &str = "frozen";
/// The prefix of the keys of drifts.
const DRIFTS: &str = "drift/";

fn node_key(node: &NodeName) -> String {
    format!("node/{node}")
}

fn new_item(key: String, event: NoticeEvent, what: &str) -> NoticeItem {
    NoticeItem {
        key,
        event,
        node: None,
        domain: None,
        class: None,
        ratio: None,
        ratio_of: None,
        what: what.to_owned(),
        how: String::new(),
        done: None,
        next: None,
    }
}

fn outcome_event(outcome: Outcome) -> NoticeEvent {
    match outcome {
        Outcome::Failed => NoticeEvent::Failed,
        Outcome::Degraded => NoticeEvent::Degraded,
        Outcome::Unknown | Outcome::Pass => NoticeEvent::Unknown,
    }
}

fn node_item(verdict: &NodeVerdict, own: &[&Finding], acted: Option<&ActionPlan>) -> NoticeItem {
    // Among findings of one outcome, those without a number come last.
    let ratio = |it: &Finding| it.deciding_share().filter(|it| it.is_finite());
    let level = |it: &Finding| ratio(it).unwrap_or(f64::MAX);
    let worst = own
        .iter()
        .copied()
        .min_by(|a, b| b.outcome.cmp(&a.outcome).then_with(|| level(a).total_cmp(&level(b))));
    let what =
        worst.map_or_else(|| "not judged".to_owned(), |it| class_text::class_title(&it.class));
    let mut item = new_item(node_key(&verdict.node), outcome_event(verdict.outcome), &what);
    (item.node, item.domain) = (Some(verdict.node.clone()), verdict.domain.clone());
    item.how = shorten(worst.map_or(&verdict.reason, |it| &it.summary));
    if let Some(worst) = worst {
        item.class = Some(worst.class.clone());
        (item.ratio, item.ratio_of) = finding_ratio(worst);
        item.next = class_text::class_advice(&worst.class).map(shorten);
    }
    item.done = acted.and_then(|plan| describe_actions(plan, &verdict.node));
    item
}

/// The result of an executed plan for a node.
fn describe_actions(plan: &ActionPlan, node: &NodeName) -> Option<String> {
    let records =
        plan.records.iter().filter(|it| it.node == *node && it.kind != ActionKind::Certify);
    let done: Vec<String> = records.map(|it| result_text(it.kind, it.result).to_owned()).collect();
    if !done.is_empty() {
        return Some(done.join(", "));
    }
    let withheld = plan.withheld.iter().find(|it| it.what == node.as_str())?;
    Some(shorten(&format!("nothing: {}", withheld.why)))
}

fn part_item(finding: &Finding) -> NoticeItem {
    let mut item = new_item(
        format!("part/{}", finding.id),
        outcome_event(finding.outcome),
        &class_text::class_title(&finding.class),
    );
    (item.node, item.domain) = (finding.locus.node.clone(), finding.locus.domain.clone());
    item.how = shorten(&finding.summary);
    item.class = Some(finding.class.clone());
    (item.ratio, item.ratio_of) = finding_ratio(finding);
    item.next = class_text::class_advice(&finding.class).map(shorten);
    item
}

fn frozen_item(why: &str) -> NoticeItem {
    let mut item = new_item(FROZEN.to_owned(), NoticeEvent::Breaker, "no drains are proposed");
    item.how = shorten(why);
    item.next = Some("find the common cause of the suspects before any drain".to_owned());
    item
}

/// A part that drifted away from its usual level for the worse, in one test.
fn drift_item(standing: &OpenAlarm, domain: Option<&DomainName>) -> NoticeItem {
    let OpenAlarm { part, testcase, .. } = standing;
    let (kind, place, option) = match (&part.node, domain) {
        (Some(node), _) => ("node", node.as_str(), ""),
        (None, domain) => ("domain", domain.map_or("", DomainName::as_str), "--domain "),
    };
    let what = if kind == "node" { NODE_DRIFTS } else { DOMAIN_DRIFTS };
    let mut item = new_item(format!("{DRIFTS}{kind}/{place}/{testcase}"), NoticeEvent::Drift, what);
    (item.node, item.domain) = (part.node.clone(), domain.cloned());
    item.how = shorten(&trend::describe_standing(standing));
    item.next = Some(shorten(&format!(
        "see `fabricgate history {option}{place}`; a drift alone causes no action"
    )));
    item
}

/// Actions on nodes, and actions that a budget withheld. A certification is not an event.
fn action_items(plan: &ActionPlan, run: &str) -> Vec<NoticeItem> {
    let mut items = Vec::new();
    for it in plan.records.iter().filter(|it| it.kind != ActionKind::Certify) {
        // The state existed before and had its notice then.
        if it.result == ActionResult::Already {
            continue;
        }
        let word = result_text(it.kind, it.result);
        let key = format!("action/{run}/{}/{word}", it.node);
        let mut item = new_item(key, NoticeEvent::Action, word);
        item.node = Some(it.node.clone());
        item.how = shorten(&it.detail);
        let of = plan.actions.iter().find(|action| action.node == it.node);
        if let Some(action) = of {
            item.domain.clone_from(&action.domain);
            (item.ratio, item.ratio_of) = (action.ratio, action.ratio_of);
            item.done = Some(shorten(&action.why));
        }
        items.push(item);
    }
    for it in plan.withheld.iter().filter(|it| it.budget) {
        let key = format!("action/{run}/{}/withheld", it.what);
        let mut item = new_item(key, NoticeEvent::Action, "not drained");
        item.node = Some(NodeName::from(it.what.as_str())).filter(NodeName::is_one_node);
        item.how = shorten(&it.why);
        items.push(item);
    }
    items
}

fn result_text(kind: ActionKind, result: ActionResult) -> &'static str {
    let is_done = matches!(result, ActionResult::Done | ActionResult::Already);
    match (kind, is_done, result) {
        (ActionKind::Drain, true, _) => "drained",
        (ActionKind::Relabel, true, _) => "marked",
        (ActionKind::Release, true, _) => "released",
        (ActionKind::Certify, true, _) => "certified",
        (_, _, ActionResult::Superseded) => "left to another party",
        (_, _, ActionResult::Unknown) => "started, result unknown",
        (ActionKind::Drain, ..) => "drain not done",
        (ActionKind::Relabel, ..) => "mark not done",
        (ActionKind::Release, ..) => "release not done",
        (ActionKind::Certify, ..) => "certificate not stated",
    }
}

fn shorten(text: &str) -> String {
    clip(&to_plain(text), LONGEST)
}

/// A share as text, if it has one.
fn format_share(item: &NoticeItem) -> Option<String> {
    // Notices of older programs lack it.
    let of = item.ratio_of.unwrap_or(RatioReference::Expected).label();
    item.ratio.map(|ratio| format!("{} of {of}", format_percent(ratio)))
}

/// The ratio that led to the finding, and its reference.
fn finding_ratio(finding: &Finding) -> (Option<f64>, Option<RatioReference>) {
    finding.deciding_ratio().filter(|(ratio, _)| ratio.is_finite()).unzip()
}

#[cfg(test)]
mod tests;
