//! A message as one JSON document (`fabricgate.notice/1`), for custom receivers, and the text that
//! the other formats share.

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::changes::NoticeChanges;
use super::{NoticeEvent, NoticeItem, format_share};
use crate::report::plain_text::{clip, count_noun, list_names, to_plain};
use model::hostlist;
use model::id::NodeName;
use model::run::simulation_notice;

/// The format of a message.
pub const NOTICE_FORMAT: &str = "fabricgate.notice/1";

/// Most groups of a message that are listed one by one.
pub(super) const GROUPS: usize = 12;

/// Longest list of nodes in a sentence.
const NODES: usize = 160;

const DOMAINS: usize = 8;

/// A message.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Notice {
    /// `fabricgate.notice/1`.
    pub format: String,
    /// Time of the message, RFC 3339.
    pub at: String,
    /// The version of fabricgate.
    pub version: String,
    /// The cluster's name in the configuration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub site: Option<String>,
    /// The title, in one line.
    pub title: String,
    /// The severity of its most urgent item: critical, warning, info.
    pub severity: String,
    /// Whether it is a test message without an event.
    pub test: bool,
    /// Whether it is about a simulated fabric: no hardware was measured.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub simulated: bool,
    /// New, changed and worse notices.
    pub items: Vec<NoticeItem>,
    /// Earlier notices that have ended.
    pub over: Vec<NoticeItem>,
    /// Messages that the hourly limit held back before this one.
    pub withheld: u32,
    /// The run, if the message is about one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<String>,
    /// Its profile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<String>,
    /// Its folder, with all evidence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub folder: Option<String>,
}

/// The origin and time of a message.
#[derive(Clone, Copy, Debug)]
pub struct MessageContext<'a> {
    /// The cluster's name.
    pub site: Option<&'a str>,
    /// When, RFC 3339.
    pub at: &'a str,
    /// The run.
    pub run: Option<&'a str>,
    /// Its profile.
    pub profile: Option<&'a str>,
    /// Its folder.
    pub folder: Option<&'a str>,
    /// Whether it is a test message.
    pub is_test: bool,
    /// Whether the run measured a simulated fabric.
    pub is_simulated: bool,
}

/// Builds a message from changes.
pub fn build_notice(news: &NoticeChanges, about: &MessageContext<'_>) -> Notice {
    let urgency =
        |severity: &str| ["info", "warning", "critical"].iter().position(|it| *it == severity);
    let severities = news.fresh.iter().map(|it| it.event.severity());
    let severity = severities.max_by_key(|it| urgency(it)).unwrap_or("info");
    Notice {
        format: NOTICE_FORMAT.to_owned(),
        at: about.at.to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        site: about.site.map(|it| to_plain(it).into_owned()),
        title: notice_title(news, about),
        severity: severity.to_owned(),
        test: about.is_test,
        simulated: about.is_simulated,
        items: news.fresh.clone(),
        over: news.resolved.clone(),
        withheld: news.withheld,
        run: about.run.map(str::to_owned),
        profile: about.profile.map(str::to_owned),
        folder: about.folder.map(str::to_owned),
    }
}

fn notice_title(news: &NoticeChanges, about: &MessageContext<'_>) -> String {
    let mut counts: BTreeMap<NoticeEvent, usize> = BTreeMap::new();
    for item in &news.fresh {
        *counts.entry(item.event).or_default() += 1;
    }
    let word = |event: NoticeEvent, count: usize| match event {
        NoticeEvent::Degraded => format!("{count} degraded"),
        NoticeEvent::Failed => format!("{count} failed"),
        NoticeEvent::Unknown => format!("{count} unknown"),
        NoticeEvent::PassAgain => format!("{count} pass again"),
        NoticeEvent::Action => count_noun(count, "action", "actions"),
        NoticeEvent::Breaker => "gate frozen".to_owned(),
        NoticeEvent::Expired => count_noun(count, "certificate expired", "certificates expired"),
        NoticeEvent::Drift => count_noun(count, "drift", "drifts"),
    };
    let order = [
        NoticeEvent::Breaker,
        NoticeEvent::Failed,
        NoticeEvent::Degraded,
        NoticeEvent::Unknown,
        NoticeEvent::Expired,
        NoticeEvent::Drift,
        NoticeEvent::Action,
    ];
    let mut parts: Vec<String> =
        order.iter().filter_map(|it| counts.get(it).map(|count| word(*it, *count))).collect();
    if !news.resolved.is_empty() {
        parts.push(format!("{} over", news.resolved.len()));
    }
    let what = match about.is_test {
        true => "a test message without an event".to_owned(),
        false => parts.join(", "),
    };
    let site = about.site.map(|it| format!(" {}", to_plain(it))).unwrap_or_default();
    let profile = about.profile.map(|it| format!(" ({})", to_plain(it))).unwrap_or_default();
    let simulated =
        simulation_notice(about.is_simulated).map(|it| format!(" ({it})")).unwrap_or_default();
    format!("fabricgate{site}: {what}{profile}{simulated}")
}

/// Items with the same text.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct NoticeGroup<'a> {
    /// The event.
    pub event: NoticeEvent,
    /// The matter and its place.
    pub head: String,
    /// The severity of the worst item.
    pub how: String,
    /// The action that was taken.
    pub done: Option<&'a str>,
    /// The operator's next step.
    pub next: Option<&'a str>,
}

/// Items by their text, the most urgent first.
pub(super) fn group_items(items: &[NoticeItem]) -> Vec<NoticeGroup<'_>> {
    /// The event, the matter and the action that was taken.
    type NoticeGroupKey<'a> = (NoticeEvent, &'a str, Option<&'a str>);
    let mut alike: Vec<(NoticeGroupKey<'_>, Vec<&NoticeItem>)> = Vec::new();
    for item in items {
        let key = (item.event, item.what.as_str(), item.done.as_deref());
        match alike.iter_mut().find(|(known, _)| *known == key) {
            Some((_, group)) => group.push(item),
            None => alike.push((key, vec![item])),
        }
    }
    let urgency = |event: NoticeEvent| match event.severity() {
        "critical" => 0,
        "warning" => 1,
        _ => 2,
    };
    alike.sort_by_key(|((event, ..), _)| (urgency(*event), *event));
    let one = |((event, what, done), items): ((_, &str, _), Vec<_>)| {
        build_group(event, what, done, &items)
    };
    alike.into_iter().map(one).collect()
}

fn build_group<'a>(
    event: NoticeEvent,
    what: &str,
    done: Option<&'a str>,
    items: &[&'a NoticeItem],
) -> NoticeGroup<'a> {
    // Items without a number come last.
    let ratio = |it: &NoticeItem| it.ratio.unwrap_or(f64::MAX);
    let worst = items.iter().copied().min_by(|a, b| ratio(a).total_cmp(&ratio(b)));
    let share = worst.and_then(format_share).map(|it| format!(" [{it}]")).unwrap_or_default();
    let of_many = if 1 < items.len() { "worst: " } else { "" };
    let how = worst.map(|it| format!("{of_many}{}{share}", it.how)).unwrap_or_default();
    let next = worst.and_then(|it| it.next.as_deref());
    NoticeGroup { event, head: format!("{}{what}", format_place(items)), how, done, next }
}

/// The nodes, or else the domains, followed by a colon; empty without either.
fn format_place(items: &[&NoticeItem]) -> String {
    let nodes: Vec<&NodeName> = items.iter().filter_map(|it| it.node.as_ref()).collect();
    let nodes = clip(&to_plain(&hostlist::fold(nodes.iter().map(|it| it.as_str()))), NODES);
    let domains: BTreeSet<&str> =
        items.iter().filter_map(|it| it.domain.as_ref()).map(|it| it.as_str()).collect();
    let domains = list_names(&Vec::from_iter(domains), DOMAINS);
    match (nodes.is_empty(), domains.is_empty()) {
        (false, false) => format!("{nodes} ({domains}): "),
        (false, true) => format!("{nodes}: "),
        (true, false) => format!("{domains}: "),
        (true, true) => String::new(),
    }
}
