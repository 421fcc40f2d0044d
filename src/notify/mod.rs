//! Telling people, over webhooks: Slack, Alertmanager, or a receiver of one's own.
//!
//! A shell around `report::notice`, which says what is news and how it reads. Every
//! message has a bound in time, so that a receiver that hangs keeps nobody waiting,
//! and no address or token is in any text that leaves this module.

pub mod aside;
pub mod memory;
pub mod secret;
pub mod send;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;

use self::memory::Store;
use self::secret::Where;
use crate::model::journal::Stamp;
use crate::report::notice::Event;
use crate::report::notice::Occasion;
use crate::report::notice::alertmanager;
use crate::report::notice::generic::About;
use crate::report::notice::generic::notice;
use crate::report::notice::news::News;
use crate::report::notice::slack;

/// What a receiver takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// One JSON document (`fabricgate.notice/1`).
    Generic,
    /// A Slack webhook's blocks.
    Slack,
    /// Alertmanager's API, version 2.
    Alertmanager,
}

/// One receiver.
#[derive(Clone, Debug)]
pub struct Target {
    /// Its name in messages and in the memory.
    pub name: String,
    /// What it takes.
    pub kind: Kind,
    /// Where it is.
    pub address: Where,
    /// A token that lets us in, where it asks for one.
    pub bearer: Option<Where>,
    /// Certificates of authorities that it is trusted by, besides the system's.
    pub ca_file: Option<PathBuf>,
    /// What it hears.
    pub on: BTreeSet<Event>,
    /// How long one attempt may take.
    pub timeout: Duration,
    /// How often a message is tried.
    pub attempts: u32,
    /// How many messages it gets an hour.
    pub per_hour: usize,
}

/// All receivers, and what they share.
#[derive(Clone, Debug)]
pub struct Notify {
    /// What the cluster is called in messages.
    pub site: Option<String>,
    /// The receivers.
    pub targets: Vec<Target>,
    /// How long all of it may take.
    pub within: Duration,
    /// For how long Alertmanager shows what nobody said again.
    pub stands: Duration,
}

/// What there is to tell, and when.
#[derive(Clone, Copy, Debug)]
pub struct Telling<'a> {
    /// The receivers.
    pub notify: &'a Notify,
    /// What there is to tell.
    pub occasion: &'a Occasion,
    /// The present moment.
    pub now: &'a Stamp,
    /// A number that differs between processes, for the order of attempts.
    pub seed: u64,
}

/// Tells all receivers what is news to them, and remembers what arrived. What did
/// not work comes back as notes.
pub async fn tell(telling: &Telling<'_>, store: &Store) -> Vec<String> {
    let Telling { notify, occasion, now, .. } = telling;
    let mut notes = Vec::new();
    let mut taken = match store.take(notify.within).await {
        Ok(taken) => taken,
        Err(why) => return vec![format!("nobody is told: {why}")],
    };
    notes.extend(taken.note.take());
    let deadline = tokio::time::Instant::now() + notify.within;
    let mut sending = Vec::new();
    let mut is_changed = false;
    for target in &notify.targets {
        let memory = taken.notified.targets.entry(target.name.clone()).or_default();
        let news = memory.news(occasion, &target.on);
        let repeats = target.kind == Kind::Alertmanager && !news.standing.is_empty();
        if news.is_none() && !repeats {
            is_changed |= memory.forget(&news);
            continue;
        }
        // Alertmanager groups and silences by itself.
        let is_free = target.kind == Kind::Alertmanager;
        if !is_free && !memory.may_send(now.unix, target.per_hour) {
            memory.missed(&news, true);
            is_changed = true;
            let (name, most) = (&target.name, target.per_hour);
            notes.push(format!("{name}: held back, it had its {most} messages of this hour"));
            continue;
        }
        let payload = payload(target.kind, &news, telling);
        sending.push(async move {
            let sent = send::send(target, &payload, deadline, telling.seed).await;
            (target, news, sent)
        });
    }
    let all = side_by_side(sending).await;
    for (target, news, sent) in all {
        let memory = taken.notified.targets.entry(target.name.clone()).or_default();
        is_changed = true;
        match sent {
            Ok(_) => memory.arrived(&news, now.unix),
            Err(error) => {
                memory.missed(&news, false);
                notes.push(format!("{}: {error}", target.name));
            }
        }
        memory.forget(&news);
    }
    if is_changed && let Err(error) = store.put(&taken) {
        notes.push(format!("it is not kept who was told what, and may be told again: {error}"));
    }
    notes
}

/// Waits for all of them, side by side.
async fn side_by_side<T>(all: Vec<impl Future<Output = T>>) -> Vec<T> {
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
fn payload(kind: Kind, news: &News, telling: &Telling<'_>) -> Value {
    let Telling { notify, occasion, now, .. } = telling;
    let about = About {
        site: notify.site.as_deref(),
        at: &now.at,
        run: occasion.run.as_deref(),
        profile: occasion.profile.as_deref(),
        folder: occasion.folder.as_deref(),
        is_test: false,
    };
    body(kind, news, &about, now, notify)
}

/// The body of a message about this.
pub fn body(kind: Kind, news: &News, about: &About<'_>, now: &Stamp, notify: &Notify) -> Value {
    match kind {
        Kind::Generic => serde_json::to_value(notice(news, about))
            .expect("a message is made of structs, lists and numbers"),
        Kind::Slack => slack::payload(&notice(news, about)),
        Kind::Alertmanager => {
            let stands = i64::try_from(notify.stands.as_secs()).unwrap_or(i64::MAX);
            alertmanager::payload(news, about, now.unix, stands)
        }
    }
}
