//! What runs left behind in a cluster whose process is no more: found by the
//! journal, and by labels where the journal is another or was lost.
//!
//! A process of which nothing can be known keeps what it made until nobody can
//! need that any more: every object says when that is.

use std::time::Duration;

use super::end::{Process, owner_unless, remedy};
use crate::gate::journal::{Journal, JournalError};
use crate::gate::pods::Objects;
use crate::gate::{pods, stamp};
use crate::launch::kubernetes::KubernetesLauncher;
use engine::policy::journal_state::OpenAllocation;
use model::journal::{HoldKind, JournalEvent};
use model::text::clean as cleaned;

/// How much longer than it says something is left alone: clocks differ.
const SLACK_S: i64 = 300;

/// Removes what is left of runs whose process is no more; whether nothing of
/// them is there any more.
pub(super) async fn clean(
    kubernetes: &KubernetesLauncher,
    limit: Duration,
    holds: &[(String, OpenAllocation)],
    gone: Option<&str>,
    journal: &mut Journal,
    say: &mut dyn FnMut(&str),
) -> Result<bool, JournalError> {
    let looked = match Objects::of(kubernetes, limit).await {
        Ok(objects) => pods::left(&objects).await.map(|left| (objects, left)),
        Err(why) => Err(why),
    };
    let (objects, mut left) = match looked {
        Ok(looked) => looked,
        Err(why) => {
            say(&format!("what earlier runs left in the cluster is not known: {why}"));
            return Ok(false);
        }
    };
    let now = stamp::stamp().unix;
    let mut are_gone = true;
    for (run, hold) in holds.iter().filter(|(_, hold)| hold.kind == HoldKind::Pods) {
        let there = left.remove(run);
        let until = there.as_ref().and_then(|it| it.until);
        let may = match owner_unless(hold, gone) {
            Process::Lives => continue,
            // Nothing that a process that may live could still need.
            Process::Elsewhere => there.is_none() || is_over(until, now),
            Process::Gone => true,
        };
        if !may {
            are_gone = false;
            say(&format!(
                "pods of run {run} are needed by process {} on {}, of which nothing is known here; {}",
                hold.pid,
                cleaned(&hold.host),
                remedy(&hold.host)
            ));
            continue;
        }
        match pods::remove(&objects, run, now).await {
            Ok(detail) => {
                say(&format!("left behind by process {}: run {run}: {detail}", hold.pid));
                journal.write(JournalEvent::Freed { name: run.clone(), detail })?;
            }
            Err(why) => {
                are_gone = false;
                say(&format!("pods of run {run} cannot be freed now, the next turn tries: {why}"));
            }
        }
    }
    for (run, there) in left {
        let shown = cleaned(&run);
        let what = there.told();
        let by = there.owner.as_ref().map(|it| (it.pid, cleaned(&it.host)));
        let process = there.owner.map(|it| {
            let hold = OpenAllocation {
                kind: HoldKind::Pods,
                stamp: it.stamp,
                nodes: Vec::new(),
                drained: Vec::new(),
                host: it.host,
                pid: it.pid,
            };
            owner_unless(&hold, gone)
        });
        match process {
            Some(Process::Lives) => continue,
            Some(Process::Gone) => {}
            Some(Process::Elsewhere) | None if is_over(there.until, now) => {}
            Some(Process::Elsewhere) | None => {
                let then = by.as_ref().map(|(_, host)| format!("; {}", remedy(host)));
                let by = by.map_or("somebody".to_owned(), |(pid, host)| {
                    format!("process {pid} on {host}")
                });
                are_gone = false;
                say(&format!(
                    "{what} of run {shown} are needed by {by}, of which nothing is known here{}",
                    then.unwrap_or_default()
                ));
                continue;
            }
        }
        match pods::remove(&objects, &run, now).await {
            Ok(detail) => {
                say(&format!("left behind, and in no journal here: run {shown}: {detail}"));
            }
            Err(why) => {
                are_gone = false;
                say(&format!("{what} of run {shown} cannot be removed now: {why}"));
            }
        }
    }
    Ok(are_gone)
}

/// Whether nobody needs it any more.
fn is_over(until: Option<i64>, now: i64) -> bool {
    until.is_some_and(|until| until.saturating_add(SLACK_S) < now)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_say_when_it_is_over_never_is() {
        assert!(is_over(Some(1_000), 1_000 + SLACK_S + 1));
        assert!(!is_over(Some(1_000), 1_000 + SLACK_S) && !is_over(None, i64::MAX));
    }
}
