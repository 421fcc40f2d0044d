//! The notices that are new for a receiver, compared with those it has received.
//!
//! The state is a value (`fabricgate.notified/1`); it only changes after a message was delivered.

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{NoticeEvent, NoticeItem, NoticeOccasion};

/// The format of the delivery state.
pub const NOTIFIED_FORMAT: &str = "fabricgate.notified/1";

/// A share that is lower than the reported one by this much is worse: readings of one part lie
/// within 2 % of each other, and noise is not an event.
const WORSE: f64 = 0.05;

const HOUR_S: i64 = 3_600;

/// The longest delivery: the ten minutes that the configuration allows, and a margin.
const LONGEST_S: i64 = 660;

/// Most one-time events that are kept for a later message.
const KEPT: usize = 100;

/// The delivered notices of all receivers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DeliveryState {
    /// `fabricgate.notified/1`.
    pub format: String,
    /// By receiver.
    pub targets: BTreeMap<String, ReceiverState>,
}

impl Default for DeliveryState {
    fn default() -> Self {
        Self { format: NOTIFIED_FORMAT.to_owned(), targets: BTreeMap::new() }
    }
}

/// The delivered notices of one receiver.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ReceiverState {
    /// Delivered notices that are still active, by key.
    #[serde(default, rename = "told")]
    pub delivered: BTreeMap<String, NoticeItem>,
    /// Times of the messages of the last hour, in seconds since 1970.
    #[serde(default)]
    pub sent: Vec<i64>,
    /// One-time events that were not delivered yet.
    #[serde(default)]
    pub kept: Vec<NoticeItem>,
    /// Messages that were held back since the last delivered one.
    #[serde(default)]
    pub withheld: u32,
    /// Set while a delivery is in progress: its latest end, in seconds since 1970.
    #[serde(default, rename = "being_told_until", skip_serializing_if = "Option::is_none")]
    pub delivering_until: Option<i64>,
}

/// The notices for one receiver, compared with its state.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NoticeChanges {
    /// New, changed and worse notices.
    pub fresh: Vec<NoticeItem>,
    /// Delivered notices that are over.
    pub resolved: Vec<NoticeItem>,
    /// Active notices that were delivered already.
    pub ongoing: Vec<NoticeItem>,
    /// Notices whose event has changed.
    pub replaced: Vec<NoticeItem>,
    /// Keys of resolved notices for events that the receiver did not subscribe to.
    pub forgotten: Vec<String>,
    /// Messages that were held back before this one.
    pub withheld: u32,
}

impl NoticeChanges {
    /// Whether there is nothing to deliver.
    pub fn is_empty(&self) -> bool {
        self.fresh.is_empty() && self.resolved.is_empty()
    }
}

impl ReceiverState {
    /// The changes for a receiver that subscribes to these events.
    pub fn find_changes(
        &self,
        occasion: &NoticeOccasion,
        on: &BTreeSet<NoticeEvent>,
    ) -> NoticeChanges {
        let mut news = NoticeChanges { withheld: self.withheld, ..NoticeChanges::default() };
        let mut seen: BTreeSet<&str> = BTreeSet::new();
        for item in self.kept.iter().chain(&occasion.items) {
            seen.insert(&item.key);
            if !on.contains(&item.event) {
                continue;
            }
            match self.delivered.get(&item.key) {
                Some(known) if !is_change(known, item) => {
                    // A node that could not be judged again keeps its earlier state.
                    let stands = if known.event == item.event { item } else { known };
                    news.ongoing.push(stands.clone());
                }
                Some(known) => {
                    if known.event != item.event {
                        news.replaced.push(known.clone());
                    }
                    news.fresh.push(item.clone());
                }
                None => news.fresh.push(item.clone()),
            }
        }
        for (key, known) in self.delivered.iter().filter(|(key, _)| !seen.contains(key.as_str())) {
            let of_part = key.starts_with("part/");
            let is_covered = match (&known.node, &known.domain) {
                (Some(node), _) => occasion.judged.contains(node),
                (None, Some(domain)) => occasion.covered.contains(domain),
                (None, None) => occasion.is_everywhere,
            };
            let is_of_whole = occasion.whole.iter().any(|it| key.starts_with(it.as_str()));
            if occasion.healthy.contains(key) || (of_part && is_covered) || is_of_whole {
                news.resolved.push(known.clone());
            } else {
                // A part that was not measured again ends no notice.
                news.ongoing.push(known.clone());
            }
        }
        if !on.contains(&NoticeEvent::PassAgain) {
            news.forgotten = news.resolved.drain(..).map(|it| it.key).collect();
        }
        news
    }

    /// Whether a delivery to it is in progress. An end further ahead than the longest delivery was
    /// written by a clock that has been set back since.
    pub fn is_delivering(&self, now: i64) -> bool {
        self.delivering_until.is_some_and(|until| (now + 1..=now + LONGEST_S).contains(&until))
    }

    /// Whether another message may be sent now, by the hourly limit.
    pub fn may_send(&self, now: i64, per_hour: usize) -> bool {
        self.sent.iter().filter(|at| is_recent(**at, now)).count() < per_hour
    }

    /// Records that a message with these changes was delivered.
    pub fn record_delivery(&mut self, news: &NoticeChanges, now: i64) {
        self.sent.retain(|at| is_recent(*at, now));
        self.sent.push(now);
        self.kept.clear();
        self.withheld = 0;
        // Active notices were delivered before and keep their delivered value. Otherwise a slow
        // decline would be compared with its last small step and never be reported.
        for item in news.fresh.iter().filter(|it| it.event.is_ongoing()) {
            self.delivered.insert(item.key.clone(), item.clone());
        }
        for item in &news.resolved {
            self.delivered.remove(&item.key);
        }
    }

    /// Records that a message was held back or not delivered: one-time events are kept for the next
    /// message, active notices will be found again.
    pub fn record_failure(&mut self, news: &NoticeChanges, is_limited: bool) {
        let once = news.fresh.iter().filter(|it| !it.event.is_ongoing());
        let mut kept: Vec<NoticeItem> = once.cloned().collect();
        let surplus = kept.len().saturating_sub(KEPT);
        kept.drain(..surplus);
        self.kept = kept;
        if is_limited {
            self.withheld = self.withheld.saturating_add(1);
        }
    }

    /// Removes resolved notices that the receiver did not subscribe to; returns whether there were
    /// any.
    pub fn forget_unwanted(&mut self, news: &NoticeChanges) -> bool {
        let before = self.delivered.len();
        self.delivered.retain(|key, _| !news.forgotten.contains(key));
        self.delivered.len() < before
    }
}

/// Whether a notice exceeds the delivered one: another event or class, or worse. A node that could
/// not be judged again keeps its earlier state.
fn is_change(known: &NoticeItem, item: &NoticeItem) -> bool {
    if item.event == NoticeEvent::Unknown
        && matches!(known.event, NoticeEvent::Degraded | NoticeEvent::Failed)
    {
        return false;
    }
    let is_worse = known.ratio.zip(item.ratio).is_some_and(|(then, now)| now < then - WORSE);
    known.event != item.event || known.class != item.class || is_worse
}

fn is_recent(at: i64, now: i64) -> bool {
    // A clock that was set back must not suppress messages forever.
    (now - HOUR_S..=now).contains(&at)
}
