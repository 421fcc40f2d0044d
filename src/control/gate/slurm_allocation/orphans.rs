//! What runs left behind in a cluster whose process is no more: found by the
//! journal, and by labels where the journal is another or was lost.
//!
//! A process of which nothing can be known keeps what it made until nobody can
//! need that any more: every object says when that is.

use std::time::Duration;

use super::release::{AllocationOwner, describe_remedy, find_owner_unless_gone};
use crate::gate::journal::{Journal, JournalError};
use crate::gate::pod_allocation::PodObjectClient;
use crate::gate::{clock, pod_allocation};
use crate::launch::kubernetes::KubernetesLauncher;
use engine::policy::journal_state::OpenAllocation;
use model::journal::{HoldKind, JournalEvent};
use model::text::clean as cleaned;

/// How much longer than it says something is left alone: clocks differ.
const CLOCK_SKEW_S: i64 = 300;

/// Removes what is left of runs whose process is no more; whether nothing of
/// them is there any more.
pub(super) async fn clean_up_pods(
    kubernetes: &KubernetesLauncher,
    limit: Duration,
    holds: &[(String, OpenAllocation)],
    gone: Option<&str>,
    journal: &mut Journal,
    say: &mut dyn FnMut(&str),
) -> Result<bool, JournalError> {
    let looked = match PodObjectClient::connect(kubernetes, limit).await {
        Ok(objects) => pod_allocation::list_run_objects(&objects).await.map(|left| (objects, left)),
        Err(why) => Err(why),
    };
    let (objects, mut left) = match looked {
        Ok(looked) => looked,
        Err(why) => {
            say(&format!("what earlier runs left in the cluster is not known: {why}"));
            return Ok(false);
        }
    };
    let now = clock::now().unix;
    let mut are_gone = true;
    for (run, hold) in holds.iter().filter(|(_, hold)| hold.kind == HoldKind::Pods) {
        let there = left.remove(run);
        let until = there.as_ref().and_then(|it| it.until);
        let may = match find_owner_unless_gone(hold, gone) {
            AllocationOwner::Running => continue,
            // Nothing that a process that may live could still need.
            AllocationOwner::OtherHost => there.is_none() || is_expired(until, now),
            AllocationOwner::Gone => true,
        };
        if !may {
            are_gone = false;
            say(&format!(
                "pods of run {run} are needed by process {} on {}, of which nothing is known here; {}",
                hold.pid,
                cleaned(&hold.host),
                describe_remedy(&hold.host)
            ));
            continue;
        }
        match pod_allocation::delete_run_objects(&objects, run, now).await {
            Ok(detail) => {
                say(&format!("left behind by process {}: run {run}: {detail}", hold.pid));
                journal.append(JournalEvent::Freed { name: run.clone(), detail })?;
            }
            Err(why) => {
                are_gone = false;
                say(&format!("pods of run {run} cannot be freed now, the next turn tries: {why}"));
            }
        }
    }
    for (run, there) in left {
        let shown = cleaned(&run);
        let what = there.describe_counts();
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
            find_owner_unless_gone(&hold, gone)
        });
        match process {
            Some(AllocationOwner::Running) => continue,
            Some(AllocationOwner::Gone) => {}
            Some(AllocationOwner::OtherHost) | None if is_expired(there.until, now) => {}
            Some(AllocationOwner::OtherHost) | None => {
                let then = by.as_ref().map(|(_, host)| format!("; {}", describe_remedy(host)));
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
        match pod_allocation::delete_run_objects(&objects, &run, now).await {
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
fn is_expired(until: Option<i64>, now: i64) -> bool {
    until.is_some_and(|until| until.saturating_add(CLOCK_SKEW_S) < now)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_say_when_it_is_over_never_is() {
        assert!(is_expired(Some(1_000), 1_000 + CLOCK_SKEW_S + 1));
        assert!(!is_expired(Some(1_000), 1_000 + CLOCK_SKEW_S) && !is_expired(None, i64::MAX));
    }
}
