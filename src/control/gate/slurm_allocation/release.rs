//! The end of what holds nodes: jobs first, then the drains that were lifted,
//! then the reservation, so that nobody gets a node in between.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::slurm_commands::{SlurmCommands, fold_nodes};
use super::{SlurmAllocation, SlurmAllocationContext, orphans};
use crate::gate::clock::age_s;
use crate::gate::journal::{Journal, JournalError};
use crate::gate::scheduler::Scheduler;
use crate::gate::timeouts::SchedulerTimeouts;
use crate::gate::{clock, journal};
use crate::launch::kubernetes::KubernetesLauncher;
use crate::launch::slurm::SlurmPrograms;
use engine::policy::journal_state::{JournalState, OpenAllocation};
use model::id::NodeName;
use model::journal::{HoldKind, JournalEvent};
use model::node_update::{NodeStateChange, NodeUpdate};
use model::scheduler_snapshot::SchedulerSnapshot;
use model::text::clean as cleaned;

/// How long a cancelled job may take to go: Slurm's KillWait is 30 s.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(60);

/// How often that is looked at.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// How long whoever has the journal is waited for.
const JOURNAL_TIMEOUT: Duration = Duration::from_secs(60);

/// What processes left behind that are no more.
#[expect(missing_debug_implementations, reason = "it lends whom to tell")]
pub struct OrphanCleanup<'a> {
    /// Where it is written down.
    pub journal: &'a mut Journal,
    /// Who is told to drain again.
    pub scheduler: &'a dyn Scheduler,
    /// Slurm's programs, where the launcher has them.
    pub programs: Option<&'a SlurmPrograms>,
    /// How pods are wanted, where the launcher makes some.
    pub pods: Option<&'a KubernetesLauncher>,
    /// How patiently.
    pub timeouts: SchedulerTimeouts,
    /// A machine of which a person says that its processes are gone.
    pub gone_host: Option<&'a str>,
    /// Whom to tell what is done.
    pub log: &'a mut dyn FnMut(&str),
}

/// Ends every hold whose process is no more: cancels its jobs, drains again
/// what it had resumed, removes its reservation; deletes its pods. A hold of which the
/// scheduler shows nothing any more is over, whoever made it. What cannot be
/// ended now is told and stays in the journal for the next turn. Whether nothing
/// of them is left.
pub async fn clean_up_orphans(cleaning: OrphanCleanup<'_>) -> Result<bool, JournalError> {
    let OrphanCleanup {
        journal,
        scheduler,
        programs,
        pods,
        timeouts: pace,
        gone_host: gone,
        log: say,
    } = cleaning;
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
            orphans::clean_up_pods(kubernetes, pace.limit, &holds, gone, journal, &mut *say).await?
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
        let ends = SlurmRelease {
            calls: SlurmCommands { programs, limit: pace.limit },
            scheduler,
            timeouts: pace,
        };
        let is_young = age_s(&hold.stamp, &clock::now()) < pace.in_flight.as_secs_f64();
        let process = find_owner_unless_gone(&hold, gone);
        let is_over = match (process, hold.kind) {
            (AllocationOwner::Gone, _) => true,
            // Its own process sees to it.
            (AllocationOwner::Running, HoldKind::Job | HoldKind::Pods) => continue,
            // What was announced a moment ago may yet come to be.
            _ if is_young => false,
            _ => ends.is_released(&name, hold.kind).await,
        };
        if !is_over {
            if process == AllocationOwner::OtherHost {
                are_gone = false;
                say(&format!(
                    "{name} is held by process {} on {}, of which nothing is known here; {}; to look: \
                     `{}`",
                    hold.pid,
                    cleaned(&hold.host),
                    describe_remedy(&hold.host),
                    inspection_command(&name, hold.kind)
                ));
            }
            continue;
        }
        let done = match hold.kind {
            HoldKind::Reservation => ends.remove_reservation(&name, &hold.drained, is_young).await,
            HoldKind::Job | HoldKind::Pods => ends.cancel_jobs(&name).await,
        };
        match done {
            Ok(detail) => {
                say(&format!("left behind by process {}: {name}: {detail}", hold.pid));
                journal.append(JournalEvent::Freed { name, detail })?;
            }
            Err(why) => {
                are_gone = false;
                say(&format!("{name} cannot be freed now, the next turn tries: {why}"));
            }
        }
    }
    if !others.is_empty() {
        are_gone = false;
        say(&format!(
            "{} may still hold nodes; a configuration with the launcher that made them frees them",
            others.join(", ")
        ));
    }
    Ok(are_gone)
}

/// What dead processes may have left, before anything new is held.
#[expect(missing_debug_implementations, reason = "it lends whom to tell")]
pub struct StartupCleanup<'a> {
    /// The folder of the record.
    pub folder: &'a Path,
    /// Who is told to drain nodes again.
    pub scheduler: &'a dyn Scheduler,
    /// Slurm's programs, where it holds nodes.
    pub programs: Option<&'a SlurmPrograms>,
    /// Where pods hold nodes.
    pub pods: Option<&'a KubernetesLauncher>,
    /// How patiently.
    pub timeouts: SchedulerTimeouts,
    /// Whom to tell.
    pub log: &'a mut dyn FnMut(&str),
}

/// [Ends](clean) it, and gives the journal back to whoever wants it next: making
/// jobs and pods takes long. How the record stands then.
pub async fn clean_up_at_start(left: StartupCleanup<'_>) -> Result<JournalState, JournalError> {
    let StartupCleanup { folder, scheduler, programs, pods, timeouts: pace, log: say } = left;
    // Where nothing is to be ended, nothing is written: what is in a cluster is known
    // by its labels, what Slurm has by this record.
    let ledger = journal::read_state(folder)?;
    if pods.is_none() && ledger.allocations.is_empty() {
        return Ok(ledger);
    }
    let mut journal = Journal::open(folder)?;
    for note in journal.notes() {
        say(note);
    }
    let gone = None;
    clean_up_orphans(OrphanCleanup {
        journal: &mut journal,
        scheduler,
        programs,
        pods,
        timeouts: pace,
        gone_host: gone,
        log: say,
    })
    .await?;
    Ok(journal.state().clone())
}

/// Frees what is held. What could not be freed is told, and stays in the
/// journal for the next turn.
pub async fn free_allocation(
    holder: &mut SlurmAllocationContext<'_>,
    holding: &mut SlurmAllocation,
) -> Vec<String> {
    let mut troubles = Vec::new();
    let mut freed = Vec::new();
    {
        let calls =
            SlurmCommands { programs: &holder.slurm.programs, limit: holder.timeouts.limit };
        let ends = SlurmRelease { calls, scheduler: holder.scheduler, timeouts: holder.timeouts };
        if let Some(name) = holding.jobs.take() {
            match ends.cancel_jobs(&name).await {
                Ok(detail) => freed.push(JournalEvent::Freed { name, detail }),
                Err(why) => troubles.push(format!("job {name} may still be there: {why}")),
            }
        }
        if let Some(name) = holding.reservation.take() {
            match ends.remove_reservation(&name, &holding.drained, false).await {
                Ok(detail) => freed.push(JournalEvent::Freed { name, detail }),
                Err(why) => troubles.push(format!("reservation {name} is still there: {why}")),
            }
        }
    }
    if let Err(error) = append_events(holder.folder, freed).await {
        troubles.push(format!("the gate's journal: {error}"));
    }
    troubles
}

/// Writes lines, after whoever has the journal now.
pub(in crate::gate) async fn append_events(
    folder: &Path,
    events: Vec<JournalEvent>,
) -> Result<(), JournalError> {
    if events.is_empty() {
        return Ok(());
    }
    let start = Instant::now();
    let mut journal = loop {
        match Journal::open(folder) {
            Err(JournalError::Locked { .. }) if start.elapsed() < JOURNAL_TIMEOUT => {
                sleep(POLL_INTERVAL).await;
            }
            opened => break opened?,
        }
    };
    events.into_iter().try_for_each(|event| journal.append(event))
}

/// What ends holds.
struct SlurmRelease<'a> {
    calls: SlurmCommands<'a>,
    scheduler: &'a dyn Scheduler,
    timeouts: SchedulerTimeouts,
}

impl SlurmRelease<'_> {
    /// Ends the jobs of this name and waits until they are gone.
    async fn cancel_jobs(&self, name: &str) -> Result<String, String> {
        // That it could not be told to end is found out below.
        let told = self.calls.cancel(name).await;
        let start = Instant::now();
        loop {
            let jobs = self.calls.list_jobs(name).await;
            if jobs.as_ref().is_ok_and(Vec::is_empty) {
                return Ok("its jobs are gone".to_owned());
            }
            if let Err(complaint) = told {
                return Err(complaint.message);
            }
            let jobs = jobs.map_err(|complaint| complaint.message)?;
            if CANCEL_TIMEOUT <= start.elapsed() {
                if jobs.iter().all(|(_, state)| state == "COMPLETING") {
                    return Ok("its jobs are ending".to_owned());
                }
                let left: Vec<&str> = jobs.iter().map(|(number, _)| number.as_str()).collect();
                return Err(format!("job {} does not end", left.join(", ")));
            }
            sleep(POLL_INTERVAL).await;
        }
    }

    /// Whether the scheduler shows nothing of a hold any more. Where it does not say, it
    /// may be there.
    async fn is_released(&self, name: &str, kind: HoldKind) -> bool {
        match kind {
            HoldKind::Reservation => self.calls.is_reserved(name).await.is_ok_and(|is| !is),
            HoldKind::Job => self.calls.list_jobs(name).await.is_ok_and(|jobs| jobs.is_empty()),
            HoldKind::Pods => false,
        }
    }

    /// Drains again what was resumed inside a reservation, and removes it. Where a killed
    /// process resumed it a moment ago (`may_land`), that may be carried out yet: until
    /// then the reservation keeps users away.
    async fn remove_reservation(
        &self,
        name: &str,
        drained: &[(NodeName, String)],
        may_land: bool,
    ) -> Result<String, String> {
        if !drained.is_empty() {
            self.restore_drains(drained).await?;
            // A drain that was acknowledged may yet be lost, and the reservation is
            // all that keeps users off these nodes then.
            sleep(self.timeouts.persist).await;
            self.restore_drains(drained).await?;
            if may_land {
                return Err(format!(
                    "its nodes are drained again, and what its process sent before it ended may be \
                     carried out for {} s; until then the reservation stays",
                    self.timeouts.in_flight.as_secs()
                ));
            }
        }
        let told = self.calls.unreserve(name).await;
        match (self.calls.is_reserved(name).await, told) {
            (Ok(false), _) if drained.is_empty() => Ok("the reservation is gone".to_owned()),
            (Ok(false), _) => {
                let nodes: Vec<NodeName> = drained.iter().map(|(node, _)| node.clone()).collect();
                Ok(format!("{} drained again, the reservation is gone", fold_nodes(&nodes)))
            }
            (Ok(true), Ok(())) => Err("it was removed and is still there".to_owned()),
            (Ok(true), Err(complaint)) | (Err(complaint), _) => Err(complaint.message),
        }
    }

    /// Drains nodes again that nobody has drained since, and waits until that
    /// shows: an error is never taken for "not done", nor an answer for "done".
    async fn restore_drains(&self, drained: &[(NodeName, String)]) -> Result<(), String> {
        let nodes: Vec<NodeName> = drained.iter().map(|(node, _)| node.clone()).collect();
        let start = Instant::now();
        let mut said = None;
        loop {
            let live =
                self.scheduler.read_nodes(&nodes).await.map_err(|error| error.to_string())?;
            let open = undrained_nodes(drained, &live);
            if open.is_empty() {
                return Ok(());
            }
            if self.timeouts.settle.max(CANCEL_TIMEOUT) <= start.elapsed() {
                let left: Vec<NodeName> = open.into_values().flatten().collect();
                let said = said.unwrap_or_else(|| "it does not show".to_owned());
                return Err(format!("{} cannot be drained again: {said}", fold_nodes(&left)));
            }
            for (reason, nodes) in open {
                let reason = reason.to_owned();
                let state = Some(NodeStateChange::Drain { reason });
                let change = NodeUpdate { state, ..NodeUpdate::default() };
                if let Err(error) = self.scheduler.update_nodes(&nodes, &change).await {
                    said = Some(error.to_string());
                }
            }
            sleep(POLL_INTERVAL).await;
        }
    }
}

/// Which of these nodes are not drained again yet, by their reasons. A node that
/// Slurm no longer knows needs no drain; of one that could not be read nothing is
/// known.
fn undrained_nodes<'d>(
    drained: &'d [(NodeName, String)],
    live: &SchedulerSnapshot,
) -> BTreeMap<&'d str, Vec<NodeName>> {
    let mut open: BTreeMap<&str, Vec<NodeName>> = BTreeMap::new();
    for (node, reason) in drained {
        match live.nodes.get(node) {
            Some(live) if live.has_state("DRAIN") => {}
            None if live.troubles.is_empty() => {}
            _ => open.entry(reason).or_default().push(node.clone()),
        }
    }
    open
}

/// What a person does who knows that a machine is gone.
pub(super) fn describe_remedy(host: &str) -> String {
    let host = cleaned(host);
    format!("where that machine is gone: `fabricgate gate recover --gone {host} --why TEXT`")
}

/// The command that shows a hold.
fn inspection_command(name: &str, kind: HoldKind) -> String {
    match kind {
        HoldKind::Reservation => format!("scontrol show reservation {name}"),
        HoldKind::Job | HoldKind::Pods => format!("squeue --name={name}"),
    }
}

/// The same as [`owner`], but for a machine that a person says is gone.
pub(super) fn find_owner_unless_gone(hold: &OpenAllocation, gone: Option<&str>) -> AllocationOwner {
    match find_owner(hold) {
        AllocationOwner::OtherHost if gone == Some(hold.host.as_str()) => AllocationOwner::Gone,
        process => process,
    }
}

/// What is known of a process that held something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AllocationOwner {
    Running,
    Gone,
    /// On another machine.
    OtherHost,
}

/// Whether the process is still there that asked for this.
pub(super) fn find_owner(hold: &OpenAllocation) -> AllocationOwner {
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
        // Another one has its number now.
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
    use model::scheduler_snapshot::SchedulerNode;

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
    fn a_process_is_gone_only_where_that_can_be_known() {
        let own = std::process::id();
        assert_eq!(find_owner(&hold(clock::host_name(), own)), AllocationOwner::Running);
        assert_eq!(find_owner(&hold(clock::host_name(), u32::MAX)), AllocationOwner::Gone);
        assert_eq!(find_owner(&hold("elsewhere".to_owned(), u32::MAX)), AllocationOwner::OtherHost);
        let mut before = hold(clock::host_name(), own);
        before.stamp.boot = "another".to_owned();
        assert_eq!(find_owner(&before), AllocationOwner::Gone);
        // Asked for before the process of this number was started.
        let mut reused = hold(clock::host_name(), own);
        reused.stamp.uptime_s = -10.0;
        assert_eq!(find_owner(&reused), AllocationOwner::Gone);
    }

    #[test]
    fn a_node_that_could_not_be_read_is_not_taken_for_one_that_is_gone() {
        let drained: Vec<(NodeName, String)> =
            ["n1", "n2", "n3"].map(|node| (node.into(), "ours".to_owned())).to_vec();
        let nodes = [("n1", &["IDLE", "DRAIN"][..]), ("n2", &["IDLE"][..])];
        let nodes = nodes.map(|(node, state)| (node.into(), SchedulerNode::new(node, state)));
        let mut live = SchedulerSnapshot { nodes: nodes.into(), troubles: Vec::new() };
        assert_eq!(undrained_nodes(&drained, &live)["ours"], ["n2".into()]);
        live.troubles.push("nodes[2]: no name".to_owned());
        assert_eq!(undrained_nodes(&drained, &live)["ours"], ["n2".into(), "n3".into()]);
    }

    #[test]
    fn the_start_of_a_process_is_read_behind_any_name() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 1234 0 0";
        assert_eq!(parse_start_time(stat), Some(12.34));
        assert_eq!(parse_start_time("7 (a) Z 1 7"), Some(f64::INFINITY));
        assert_eq!(parse_start_time("7"), None);
    }
}
