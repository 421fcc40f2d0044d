//! Notifications over webhooks: Slack, Alertmanager, or a custom receiver.
//!
//! The I/O around `report::notice`, which selects and formats the news. Every message has a
//! time limit, so that a receiver that hangs delays nothing, and no text that leaves this
//! module contains an address or a token.

pub mod background;
pub mod delivery;
pub mod secret;
pub mod state;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;

use self::secret::SecretSource;
use self::state::NotifyStateStore;
use engine::report::notice::changes::{DeliveryState, NoticeChanges};
use engine::report::notice::message::{MessageContext, build_notice};
use engine::report::notice::{NoticeEvent, NoticeOccasion, alertmanager, slack};
use model::journal::ClockStamp;

/// The protocol of a receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotifyTargetKind {
    /// One JSON document (`fabricgate.notice/1`).
    Generic,
    /// A Slack webhook's blocks.
    Slack,
    /// Alertmanager's API, version 2.
    Alertmanager,
}

/// A receiver of notifications, as configured.
#[derive(Clone, Debug)]
pub struct NotifyTarget {
    /// Its name in messages and in the state file.
    pub name: String,
    /// Its protocol.
    pub kind: NotifyTargetKind,
    /// Its address.
    pub address: SecretSource,
    /// Its bearer token, if it needs one.
    pub bearer: Option<SecretSource>,
    /// Certificates of authorities to trust for it, in addition to the system's.
    pub ca_file: Option<PathBuf>,
    /// The events that it receives.
    pub on: BTreeSet<NoticeEvent>,
    /// Time limit of one attempt.
    pub timeout: Duration,
    /// Most attempts of a message.
    pub attempts: u32,
    /// Most messages per hour.
    pub per_hour: usize,
}

/// All receivers, with their common settings.
#[derive(Clone, Debug)]
pub struct NotifySettings {
    /// The cluster's name in messages.
    pub site: Option<String>,
    /// The receivers.
    pub targets: Vec<NotifyTarget>,
    /// Time limit of the whole delivery.
    pub within: Duration,
    /// How long Alertmanager keeps an alert that is not sent again.
    pub resolve_after: Duration,
}

/// The news and the time.
#[derive(Clone, Copy, Debug)]
pub struct NotifyRequest<'a> {
    /// The receivers.
    pub settings: &'a NotifySettings,
    /// The news.
    pub occasion: &'a NoticeOccasion,
    /// The present time.
    pub now: &'a ClockStamp,
    /// A number that differs between processes, for the order of attempts.
    pub seed: u64,
}

/// A message on its way.
struct PendingMessage<'a> {
    target: &'a NotifyTarget,
    news: NoticeChanges,
    payload: Value,
}

/// Sends all receivers the news they have not received yet, and records deliveries. Failures
/// are returned as notes.
///
/// The state file is locked twice, before and after, and is free while receivers answer. In
/// between it records for each receiver that a process is sending, and until when at most: a
/// process that dies blocks a receiver no longer than that.
pub async fn send_notices(telling: &NotifyRequest<'_>, store: &NotifyStateStore) -> Vec<String> {
    let NotifyRequest { settings: notify, now, .. } = telling;
    let mut notes = Vec::new();
    let begun = tokio::time::Instant::now();
    let deadline = begun + notify.within;
    let mut left: Vec<&NotifyTarget> = notify.targets.iter().collect();
    loop {
        let mut taken = match store.lock_state(notify.within).await {
            Ok(taken) => taken,
            Err(why) => {
                notes.push(format!("no notification is sent: {why}"));
                return notes;
            }
        };
        notes.extend(taken.note.take());
        let unix = now.unix + i64::try_from(begun.elapsed().as_secs()).unwrap_or(0);
        let before = taken.notified.clone();
        let (on_the_way, busy) =
            begin_messages(telling, &left, &mut taken.notified, unix, &mut notes);
        if taken.notified != before {
            save_state(store, &taken, &mut notes);
        }
        drop(taken);
        let sending = on_the_way.into_iter().map(|it| async move {
            let sent = delivery::send_message(it.target, &it.payload, deadline, telling.seed).await;
            (it, sent)
        });
        let all = join_all(sending.collect()).await;
        if !all.is_empty() {
            match store.lock_state(notify.within).await {
                Ok(mut taken) => {
                    record_results(all, &mut taken.notified, now.unix, &mut notes);
                    save_state(store, &taken, &mut notes);
                }
                Err(why) => notes.push(format!("{NOT_SAVED}: {why}")),
            }
        }
        left = busy;
        if left.is_empty() {
            return notes;
        }
        if deadline <= tokio::time::Instant::now() {
            let names = left.iter().map(|target| &target.name);
            notes.extend(
                names.map(|name| format!("{name}: another process is sending to it, for too long")),
            );
            return notes;
        }
        tokio::time::sleep(state::LOCK_POLL).await;
    }
}

/// Consequence of a state file that could not be saved.
const NOT_SAVED: &str = "the deliveries are not recorded, and messages may be sent again";

fn save_state(store: &NotifyStateStore, taken: &state::LockedNotifyState, notes: &mut Vec<String>) {
    if let Err(error) = store.save(taken) {
        notes.push(format!("{NOT_SAVED}: {error}"));
    }
}

/// The messages to send, and the receivers that another process is sending to.
fn begin_messages<'a>(
    telling: &NotifyRequest<'_>,
    targets: &[&'a NotifyTarget],
    notified: &mut DeliveryState,
    now: i64,
    notes: &mut Vec<String>,
) -> (Vec<PendingMessage<'a>>, Vec<&'a NotifyTarget>) {
    let NotifyRequest { settings: notify, occasion, .. } = telling;
    let within = i64::try_from(notify.within.as_secs()).unwrap_or(0);
    let (mut begun, mut busy) = (Vec::new(), Vec::new());
    for target in targets.iter().copied() {
        let memory = notified.targets.entry(target.name.clone()).or_default();
        if memory.is_delivering(now) {
            busy.push(target);
            continue;
        }
        let news = memory.find_changes(occasion, &target.on);
        let repeats = target.kind == NotifyTargetKind::Alertmanager && !news.ongoing.is_empty();
        if news.is_empty() && !repeats {
            memory.forget_unwanted(&news);
            continue;
        }
        // Alertmanager groups and silences alerts itself.
        let is_free = target.kind == NotifyTargetKind::Alertmanager;
        if !is_free && !memory.may_send(now, target.per_hour) {
            memory.record_failure(&news, true);
            let (name, most) = (&target.name, target.per_hour);
            notes.push(format!("{name}: held back, it had its {most} messages of this hour"));
            continue;
        }
        memory.delivering_until = Some(now + within + GRACE_S);
        let payload = build_payload(target.kind, &news, telling);
        begun.push(PendingMessage { target, news, payload });
    }
    (begun, busy)
}

/// Seconds after its time limit from which a sending process counts as dead.
const GRACE_S: i64 = 2;

/// Records the results of deliveries.
fn record_results(
    all: Vec<(PendingMessage<'_>, Result<delivery::Delivery, delivery::DeliveryError>)>,
    notified: &mut DeliveryState,
    now: i64,
    notes: &mut Vec<String>,
) {
    for (PendingMessage { target, news, .. }, sent) in all {
        let memory = notified.targets.entry(target.name.clone()).or_default();
        memory.delivering_until = None;
        match sent {
            Ok(_) => memory.record_delivery(&news, now),
            Err(error) => {
                memory.record_failure(&news, false);
                notes.push(format!("{}: {error}", target.name));
            }
        }
        memory.forget_unwanted(&news);
    }
}

/// Waits for all futures concurrently.
async fn join_all<T>(all: Vec<impl Future<Output = T>>) -> Vec<T> {
    let mut waiting: Vec<_> = all.into_iter().map(Box::pin).collect();
    let mut done = Vec::new();
    std::future::poll_fn(|context| {
        waiting.retain_mut(|one| match one.as_mut().poll(context) {
            std::task::Poll::Ready(value) => {
                done.push(value);
                false
            }
            std::task::Poll::Pending => true,
        });
        if waiting.is_empty() { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
    done
}

/// The body of a message.
fn build_payload(
    kind: NotifyTargetKind,
    news: &NoticeChanges,
    telling: &NotifyRequest<'_>,
) -> Value {
    let NotifyRequest { settings: notify, occasion, now, .. } = telling;
    let about = MessageContext {
        site: notify.site.as_deref(),
        at: &now.at,
        run: occasion.run.as_deref(),
        profile: occasion.profile.as_deref(),
        folder: occasion.folder.as_deref(),
        is_test: false,
        is_simulated: occasion.simulated,
    };
    build_body(kind, news, &about, now, notify)
}

/// The body of a message about an occasion.
pub fn build_body(
    kind: NotifyTargetKind,
    news: &NoticeChanges,
    about: &MessageContext<'_>,
    now: &ClockStamp,
    notify: &NotifySettings,
) -> Value {
    match kind {
        NotifyTargetKind::Generic => serde_json::to_value(build_notice(news, about))
            .expect("a message is made of structs, lists and numbers"),
        NotifyTargetKind::Slack => slack::build_payload(&build_notice(news, about)),
        NotifyTargetKind::Alertmanager => {
            let stands = i64::try_from(notify.resolve_after.as_secs()).unwrap_or(i64::MAX);
            alertmanager::build_payload(news, about, now.unix, stands)
        }
    }
}

#[cfg(test)]
#[path = "notify_tests.rs"]
mod tests;
