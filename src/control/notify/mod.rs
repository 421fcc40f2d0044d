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
use engine::report::notice::Event;
use engine::report::notice::Occasion;
use engine::report::notice::alertmanager;
use engine::report::notice::generic::About;
use engine::report::notice::generic::notice;
use engine::report::notice::news::News;
use engine::report::notice::news::Notified;
use engine::report::notice::slack;
use model::journal::Stamp;

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

/// A message on its way.
struct Begun<'a> {
    target: &'a Target,
    news: News,
    payload: Value,
}

/// Tells all receivers what is news to them, and remembers what arrived. What did
/// not work comes back as notes.
///
/// The memory is taken twice, before and after, and is free while receivers are waited
/// for. Meanwhile it says of each who is told that somebody is at it, and until when at
/// most: who ends without a word keeps a receiver from hearing of things no longer.
pub async fn tell(telling: &Telling<'_>, store: &Store) -> Vec<String> {
    let Telling { notify, now, .. } = telling;
    let mut notes = Vec::new();
    let begun = tokio::time::Instant::now();
    let deadline = begun + notify.within;
    let mut left: Vec<&Target> = notify.targets.iter().collect();
    loop {
        let mut taken = match store.take(notify.within).await {
            Ok(taken) => taken,
            Err(why) => {
                notes.push(format!("nobody is told: {why}"));
                return notes;
            }
        };
        notes.extend(taken.note.take());
        let unix = now.unix + i64::try_from(begun.elapsed().as_secs()).unwrap_or(0);
        let before = taken.notified.clone();
        let (on_the_way, busy) = begin(telling, &left, &mut taken.notified, unix, &mut notes);
        if taken.notified != before {
            kept(store, &taken, &mut notes);
        }
        drop(taken);
        let sending = on_the_way.into_iter().map(|it| async move {
            let sent = send::send(it.target, &it.payload, deadline, telling.seed).await;
            (it, sent)
        });
        let all = side_by_side(sending.collect()).await;
        if !all.is_empty() {
            match store.take(notify.within).await {
                Ok(mut taken) => {
                    ended(all, &mut taken.notified, now.unix, &mut notes);
                    kept(store, &taken, &mut notes);
                }
                Err(why) => notes.push(format!("{AGAIN}: {why}")),
            }
        }
        left = busy;
        if left.is_empty() {
            return notes;
        }
        if deadline <= tokio::time::Instant::now() {
            let names = left.iter().map(|target| &target.name);
            notes.extend(names.map(|name| format!("{name}: another process is at it, too long")));
            return notes;
        }
        tokio::time::sleep(memory::TICK).await;
    }
}

/// What follows where nobody remembers.
const AGAIN: &str = "it is not kept who was told what, and may be told again";

fn kept(store: &Store, taken: &memory::Taken, notes: &mut Vec<String>) {
    if let Err(error) = store.put(taken) {
        notes.push(format!("{AGAIN}: {error}"));
    }
}

/// What is to be sent, and the receivers that another process is telling.
fn begin<'a>(
    telling: &Telling<'_>,
    targets: &[&'a Target],
    notified: &mut Notified,
    now: i64,
    notes: &mut Vec<String>,
) -> (Vec<Begun<'a>>, Vec<&'a Target>) {
    let Telling { notify, occasion, .. } = telling;
    let within = i64::try_from(notify.within.as_secs()).unwrap_or(0);
    let (mut begun, mut busy) = (Vec::new(), Vec::new());
    for target in targets.iter().copied() {
        let memory = notified.targets.entry(target.name.clone()).or_default();
        if memory.is_being_told(now) {
            busy.push(target);
            continue;
        }
        let news = memory.news(occasion, &target.on);
        let repeats = target.kind == Kind::Alertmanager && !news.standing.is_empty();
        if news.is_none() && !repeats {
            memory.forget(&news);
            continue;
        }
        // Alertmanager groups and silences by itself.
        let is_free = target.kind == Kind::Alertmanager;
        if !is_free && !memory.may_send(now, target.per_hour) {
            memory.missed(&news, true);
            let (name, most) = (&target.name, target.per_hour);
            notes.push(format!("{name}: held back, it had its {most} messages of this hour"));
            continue;
        }
        memory.being_told_until = Some(now + within + GRACE_S);
        let payload = payload(target.kind, &news, telling);
        begun.push(Begun { target, news, payload });
    }
    (begun, busy)
}

/// Seconds beyond its bound after which whoever began to tell is taken for gone.
const GRACE_S: i64 = 2;

/// Remembers what became of messages.
fn ended(
    all: Vec<(Begun<'_>, Result<send::Sent, send::SendError>)>,
    notified: &mut Notified,
    now: i64,
    notes: &mut Vec<String>,
) {
    for (Begun { target, news, .. }, sent) in all {
        let memory = notified.targets.entry(target.name.clone()).or_default();
        memory.being_told_until = None;
        match sent {
            Ok(_) => memory.arrived(&news, now),
            Err(error) => {
                memory.missed(&news, false);
                notes.push(format!("{}: {error}", target.name));
            }
        }
        memory.forget(&news);
    }
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
        is_simulated: occasion.simulated,
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

#[cfg(test)]
#[path = "tell_tests.rs"]
mod tests;
