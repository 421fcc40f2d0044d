//! Allocations of processes that have ended, found in the journal. In Kubernetes also by labels, in
//! case they are in another journal or the journal was lost.
//!
//! The objects of a process whose state is unknown (another host) stay until they expire: every
//! object has an annotation with the end of its run's need.

use std::time::Duration;

use super::AllocationContext;
use crate::gate::clock::age_s;
use crate::gate::gate_event::{GateEvent, OrphanRetry};
use crate::gate::journal::{Journal, JournalError};
use crate::gate::pod_allocation::PodObjectClient;
use crate::gate::scheduler::Scheduler;
use crate::gate::scheduler::SchedulerTimeouts;
use crate::gate::slurm_allocation::SlurmRelease;
use crate::gate::{clock, journal, pod_allocation};
use crate::launch::kubernetes::KubernetesLauncher;
use crate::launch::slurm::SlurmPrograms;
use engine::policy::journal_state::{JournalState, OpenAllocation};
use model::journal::{HoldKind, JournalEvent};
use model::text::clean as cleaned;

/// Margin on the expiry of an object in seconds: clocks differ.
const CLOCK_SKEW_S: i64 = 300;

/// The input of [`clean_up_orphans`].
#[expect(missing_debug_implementations, reason = "a callback has no Debug")]
pub struct OrphanCleanup<'a> {
    /// The journal that lists the allocations.
    pub journal: &'a mut Journal,
    /// The scheduler that drains nodes again.
    pub scheduler: &'a dyn Scheduler,
    /// Slurm's commands, if the launcher is Slurm.
    pub programs: Option<&'a SlurmPrograms>,
    /// The Kubernetes launcher, if pods hold nodes.
    pub pods: Option<&'a KubernetesLauncher>,
    /// Time limits of the scheduler.
    pub timeouts: SchedulerTimeouts,
    /// A host whose processes have ended, as stated by the operator.
    pub gone_host: Option<&'a str>,
    /// Receives the event of each step.
    pub log: &'a mut dyn FnMut(&GateEvent),
}

/// Ends every allocation whose process has ended: cancels its jobs, drains the nodes
/// again that it had resumed, removes its reservation, deletes its pods. An allocation
/// that the scheduler no longer lists is over, whichever process made it. What cannot be
/// ended now is logged and stays in the journal for the next turn. Returns whether
/// nothing is left.
pub async fn clean_up_orphans(cleaning: OrphanCleanup<'_>) -> Result<bool, JournalError> {
    let OrphanCleanup { journal, scheduler, programs, pods, timeouts, gone_host, log } = cleaning;
    let mut holds: Vec<(String, OpenAllocation)> = journal
        .state()
        .allocations
        .iter()
        .map(|(name, hold)| (name.clone(), hold.clone()))
        .collect();
    // Jobs before the reservations that they run in.
    holds.sort_by_key(|(name, hold)| (hold.kind, name.clone()));
    let mut others: Vec<String> = Vec::new();
    let mut are_gone = match pods {
        Some(kubernetes) => {
            clean_up_pods(kubernetes, timeouts.limit, &holds, gone_host, journal, &mut *log).await?
        }
        None => true,
    };
    for (name, hold) in holds {
        let programs = match (hold.kind, programs) {
            (HoldKind::Pods, _) if pods.is_some() => continue,
            (HoldKind::Job | HoldKind::Reservation, Some(programs)) => programs,
            (HoldKind::Pods | HoldKind::Job | HoldKind::Reservation, _) => {
                others.push(name);
                continue;
            }
        };
        let release = SlurmRelease::new(programs, scheduler, timeouts);
        let is_young = age_s(&hold.stamp, &clock::now()) < timeouts.in_flight.as_secs_f64();
        let owner = find_owner_unless_gone(&hold, gone_host);
        let is_over = match (owner, hold.kind) {
            (AllocationOwner::Gone, _) => true,
            // Its own process ends it.
            (AllocationOwner::Running, HoldKind::Job | HoldKind::Pods) => continue,
            // The scheduler may still create what was requested a moment ago.
            _ if is_young => false,
            _ => release.is_released(&name, hold.kind).await,
        };
        if !is_over {
            if owner == AllocationOwner::OtherHost {
                are_gone = false;
                let inspection = inspection_command(&name, hold.kind);
                let remedy = describe_remedy(&hold.host);
                log(&GateEvent::OrphanOwnerUnknown {
                    subject: format!("{name} is held"),
                    owner: format!("process {} on {}", hold.pid, cleaned(&hold.host)),
                    remedy: format!("; {remedy}; to inspect: `{inspection}`"),
                });
            }
            continue;
        }
        let done = match hold.kind {
            HoldKind::Reservation => {
                release.remove_reservation(&name, &hold.drained, is_young).await
            }
            HoldKind::Job | HoldKind::Pods => release.cancel_jobs(&name).await,
        };
        match done {
            Ok(detail) => {
                let (subject, pid) = (name.clone(), Some(hold.pid));
                log(&GateEvent::OrphanFreed { subject, pid, detail: detail.clone() });
                journal.append(JournalEvent::Freed { name, detail })?;
            }
            Err(why) => {
                are_gone = false;
                let when = OrphanRetry::NextTurn;
                log(&GateEvent::OrphanKept { subject: name, when, why });
            }
        }
    }
    if !others.is_empty() {
        are_gone = false;
        log(&GateEvent::OrphansOfOtherLauncher { names: others.join(", ") });
    }
    Ok(are_gone)
}

/// Ends the orphans before a new allocation, and closes the journal: making jobs and
/// pods takes long. Returns the state of the journal after that.
pub async fn clean_up_at_start(
    context: &mut AllocationContext<'_>,
) -> Result<JournalState, JournalError> {
    // Without anything to end nothing is written: Kubernetes objects are found by their
    // labels, Slurm's by this journal.
    let state = journal::read_state(context.folder)?;
    if context.backend.kubernetes().is_none() && state.allocations.is_empty() {
        return Ok(state);
    }
    let mut journal = Journal::open(context.folder)?;
    for note in journal.notes() {
        (context.log)(&GateEvent::JournalNote(note.clone()));
    }
    clean_up_orphans(OrphanCleanup {
        journal: &mut journal,
        scheduler: context.scheduler,
        programs: context.backend.slurm().map(|slurm| &slurm.programs),
        pods: context.backend.kubernetes(),
        timeouts: context.timeouts,
        gone_host: None,
        log: &mut *context.log,
    })
    .await?;
    Ok(journal.state().clone())
}

/// Deletes the objects of runs whose process has ended. Returns whether none is left.
async fn clean_up_pods(
    kubernetes: &KubernetesLauncher,
    limit: Duration,
    holds: &[(String, OpenAllocation)],
    gone_host: Option<&str>,
    journal: &mut Journal,
    log: &mut dyn FnMut(&GateEvent),
) -> Result<bool, JournalError> {
    let listed = match PodObjectClient::connect(kubernetes, limit).await {
        Ok(objects) => pod_allocation::list_run_objects(&objects).await.map(|left| (objects, left)),
        Err(why) => Err(why),
    };
    let (objects, mut left) = match listed {
        Ok(listed) => listed,
        Err(why) => {
            log(&GateEvent::OrphansUnknown { why });
            return Ok(false);
        }
    };
    let now = clock::now().unix;
    let mut are_gone = true;
    for (run, hold) in holds.iter().filter(|(_, hold)| hold.kind == HoldKind::Pods) {
        let there = left.remove(run);
        let until = there.as_ref().and_then(|it| it.until);
        let may = match find_owner_unless_gone(hold, gone_host) {
            AllocationOwner::Running => continue,
            // Never an object that a live process may still need.
            AllocationOwner::OtherHost => there.is_none() || is_expired(until, now),
            AllocationOwner::Gone => true,
        };
        if !may {
            are_gone = false;
            log(&GateEvent::OrphanOwnerUnknown {
                subject: format!("pods of run {run} are needed"),
                owner: format!("process {} on {}", hold.pid, cleaned(&hold.host)),
                remedy: format!("; {}", describe_remedy(&hold.host)),
            });
            continue;
        }
        match pod_allocation::delete_run_objects(&objects, run, now).await {
            Ok(detail) => {
                let (subject, pid) = (format!("run {run}"), Some(hold.pid));
                log(&GateEvent::OrphanFreed { subject, pid, detail: detail.clone() });
                journal.append(JournalEvent::Freed { name: run.clone(), detail })?;
            }
            Err(why) => {
                are_gone = false;
                let (subject, when) = (format!("pods of run {run}"), OrphanRetry::NextTurn);
                log(&GateEvent::OrphanKept { subject, when, why });
            }
        }
    }
    for (run, there) in left {
        let shown = cleaned(&run);
        let what = there.describe_counts();
        let by = there.owner.as_ref().map(|it| (it.pid, cleaned(&it.host)));
        let owner = there.owner.map(|it| {
            let hold = OpenAllocation {
                kind: HoldKind::Pods,
                stamp: it.stamp,
                nodes: Vec::new(),
                drained: Vec::new(),
                host: it.host,
                pid: it.pid,
            };
            find_owner_unless_gone(&hold, gone_host)
        });
        match owner {
            Some(AllocationOwner::Running) => continue,
            Some(AllocationOwner::Gone) => {}
            Some(AllocationOwner::OtherHost) | None if is_expired(there.until, now) => {}
            Some(AllocationOwner::OtherHost) | None => {
                let then = by.as_ref().map(|(_, host)| format!("; {}", describe_remedy(host)));
                let by = by.map_or("an unknown process".to_owned(), |(pid, host)| {
                    format!("process {pid} on {host}")
                });
                are_gone = false;
                log(&GateEvent::OrphanOwnerUnknown {
                    subject: format!("{what} of run {shown} are needed"),
                    owner: by,
                    remedy: then.unwrap_or_default(),
                });
                continue;
            }
        }
        match pod_allocation::delete_run_objects(&objects, &run, now).await {
            Ok(detail) => {
                let subject = format!("run {shown}");
                log(&GateEvent::OrphanFreed { subject, pid: None, detail });
            }
            Err(why) => {
                are_gone = false;
                let (subject, when) = (format!("{what} of run {shown}"), OrphanRetry::Later);
                log(&GateEvent::OrphanKept { subject, when, why });
            }
        }
    }
    Ok(are_gone)
}

fn is_expired(until: Option<i64>, now: i64) -> bool {
    until.is_some_and(|until| until.saturating_add(CLOCK_SKEW_S) < now)
}

/// The remedy for an operator who knows that a host is gone.
fn describe_remedy(host: &str) -> String {
    let host = cleaned(host);
    format!("if that host is gone: `fabricgate gate recover --gone {host} --why TEXT`")
}

/// The command that shows an allocation.
fn inspection_command(name: &str, kind: HoldKind) -> String {
    match kind {
        HoldKind::Reservation => format!("scontrol show reservation {name}"),
        HoldKind::Job | HoldKind::Pods => format!("squeue --name={name}"),
    }
}

/// [`find_owner`], with a host whose processes have ended as an operator states.
fn find_owner_unless_gone(hold: &OpenAllocation, gone: Option<&str>) -> AllocationOwner {
    match find_owner(hold) {
        AllocationOwner::OtherHost if gone == Some(hold.host.as_str()) => AllocationOwner::Gone,
        process => process,
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AllocationOwner {
    Running,
    Gone,
    /// On another host, where its state is unknown.
    OtherHost,
}

/// The state of the process that requested this allocation.
fn find_owner(hold: &OpenAllocation) -> AllocationOwner {
    if hold.host != clock::host_name() {
        return AllocationOwner::OtherHost;
    }
    let own = clock::now();
    if !hold.stamp.boot.is_empty() && hold.stamp.boot != own.boot {
        return AllocationOwner::Gone;
    }
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{}/stat", hold.pid)) else {
        return AllocationOwner::Gone;
    };
    match parse_start_time(&stat) {
        // Another process has its id now.
        Some(started) if hold.stamp.uptime_s + 1.0 < started => AllocationOwner::Gone,
        _ => AllocationOwner::Running,
    }
}

/// When a process was started, in seconds since boot: field 22 of `stat`, in
/// ticks of which Linux has 100 a second on every architecture that has GPUs
/// (proc_pid_stat(5)). A zombie has ended.
fn parse_start_time(stat: &str) -> Option<f64> {
    const TICKS: f64 = 100.0;
    let (_, rest) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    if fields.first() == Some(&"Z") {
        return Some(f64::INFINITY);
    }
    Some(fields.get(19)?.parse::<f64>().ok()? / TICKS)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hold(host: String, pid: u32) -> OpenAllocation {
        OpenAllocation {
            kind: HoldKind::Job,
            stamp: clock::now(),
            nodes: Vec::new(),
            drained: Vec::new(),
            host,
            pid,
        }
    }

    #[test]
    fn a_process_counts_as_ended_only_if_its_state_is_known() {
        let own = std::process::id();
        assert_eq!(find_owner(&hold(clock::host_name(), own)), AllocationOwner::Running);
        assert_eq!(find_owner(&hold(clock::host_name(), u32::MAX)), AllocationOwner::Gone);
        assert_eq!(find_owner(&hold("elsewhere".to_owned(), u32::MAX)), AllocationOwner::OtherHost);
        let mut before = hold(clock::host_name(), own);
        before.stamp.boot = "another".to_owned();
        assert_eq!(find_owner(&before), AllocationOwner::Gone);
        // Requested before the process with this id started.
        let mut reused = hold(clock::host_name(), own);
        reused.stamp.uptime_s = -10.0;
        assert_eq!(find_owner(&reused), AllocationOwner::Gone);
    }

    #[test]
    fn the_start_time_of_a_process_is_read_after_any_name() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 1234 0 0";
        assert_eq!(parse_start_time(stat), Some(12.34));
        assert_eq!(parse_start_time("7 (a) Z 1 7"), Some(f64::INFINITY));
        assert_eq!(parse_start_time("7"), None);
    }

    #[test]
    fn an_object_without_an_expiry_never_expires() {
        assert!(is_expired(Some(1_000), 1_000 + CLOCK_SKEW_S + 1));
        assert!(!is_expired(Some(1_000), 1_000 + CLOCK_SKEW_S) && !is_expired(None, i64::MAX));
    }
}
