//! Which notices are news to one receiver, by the notices it received before.
//!
//! The memory is a value (`fabricgate.notified/1`); it changes only when a message
//! has arrived.

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{NoticeEvent, NoticeItem, NoticeOccasion};

/// The format of the delivery state.
pub const NOTIFIED_FORMAT: &str = "fabricgate.notified/1";

/// A share that is lower than the reported one by this much is worse: readings of one
/// part lie within 2 % of each other, and noise is not news.
const WORSE: f64 = 0.05;

/// An hour, in seconds.
const HOUR_S: i64 = 3_600;

/// The longest delivery: ten minutes and a little, as the configuration bounds it.
const LONGEST_S: i64 = 660;

/// Most things that happened once and are kept for a later message.
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
    /// Delivered notices that still stand, by key.
    #[serde(default)]
    pub told: BTreeMap<String, NoticeItem>,
    /// When messages went to it, in seconds since 1970, of the last hour.
    #[serde(default)]
    pub sent: Vec<i64>,
    /// What happened once and did not reach it yet.
    #[serde(default)]
    pub kept: Vec<NoticeItem>,
    /// Messages that were held back since the last that went.
    #[serde(default)]
    pub withheld: u32,
    /// A delivery to it is in progress, until then at most, in seconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub being_told_until: Option<i64>,
}

/// What one receiver hears.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NoticeChanges {
    /// What is new, changed or worse.
    pub fresh: Vec<NoticeItem>,
    /// Delivered notices that are over.
    pub resolved: Vec<NoticeItem>,
    /// What stands and it knows already.
    pub ongoing: Vec<NoticeItem>,
    /// What stood as another event, and does so no more.
    pub replaced: Vec<NoticeItem>,
    /// Keys of what is over, and of which it does not want to hear.
    pub forgotten: Vec<String>,
    /// Messages that were held back before this one.
    pub withheld: u32,
}

impl NoticeChanges {
    /// Whether there is no news.
    pub fn is_empty(&self) -> bool {
        self.fresh.is_empty() && self.resolved.is_empty()
    }
}

impl ReceiverState {
    /// What of an occasion this receiver hears, which asked for these events.
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
            match self.told.get(&item.key) {
                Some(known) if !is_change(known, item) => {
                    // A node that could not be judged again stays what it was.
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
        for (key, known) in self.told.iter().filter(|(key, _)| !seen.contains(key.as_str())) {
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

    /// Whether a delivery to it is in progress. A time further ahead than the longest
    /// delivery was written by a clock that was put back since.
    pub fn is_delivering(&self, now: i64) -> bool {
        self.being_told_until.is_some_and(|until| (now + 1..=now + LONGEST_S).contains(&until))
    }

    /// Whether one more message may go now: so many an hour.
    pub fn may_send(&self, now: i64, per_hour: usize) -> bool {
        self.sent.iter().filter(|at| is_recent(**at, now)).count() < per_hour
    }

    /// A message with this news has arrived.
    pub fn record_delivery(&mut self, news: &NoticeChanges, now: i64) {
        self.sent.retain(|at| is_recent(*at, now));
        self.sent.push(now);
        self.kept.clear();
        self.withheld = 0;
        // What stands was delivered before. Were it kept as it is now, a slow decline would be
        // measured from its last small step, and be no news for ever.
        for item in news.fresh.iter().filter(|it| it.event.is_ongoing()) {
            self.told.insert(item.key.clone(), item.clone());
        }
        for item in &news.resolved {
            self.told.remove(&item.key);
        }
    }

    /// A message was held back or did not arrive: what happened once is kept for
    /// the next, what stands will be there again.
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

    /// Forgets resolved notices that the receiver did not ask for; whether there was any.
    pub fn forget_unwanted(&mut self, news: &NoticeChanges) -> bool {
        let before = self.told.len();
        self.told.retain(|key, _| !news.forgotten.contains(key));
        self.told.len() < before
    }
}

/// Whether there is more to report than was delivered: another event or class, or worse.
/// That a node could not be judged again does not end what was known of it.
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
    // A clock that was put back must not silence everything for ever.
    (now - HOUR_S..=now).contains(&at)
}
