//! The end of a Slurm allocation: first the jobs, then the lifted drains, then
//! the reservation, so that no user gets a node in between.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::slurm_commands::{SlurmCommands, fold_nodes};
use crate::gate::scheduler::Scheduler;
use crate::gate::scheduler::SchedulerTimeouts;
use crate::launch::slurm::SlurmPrograms;
use model::id::NodeName;
use model::journal::HoldKind;
use model::node_update::{NodeStateChange, NodeUpdate};
use model::scheduler_snapshot::SchedulerSnapshot;

/// How long a cancelled job may take to end: Slurm's KillWait is 30 s.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(60);

const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Cancels jobs, restores drains and removes reservations.
pub(in crate::gate) struct SlurmRelease<'a> {
    commands: SlurmCommands<'a>,
    scheduler: &'a dyn Scheduler,
    timeouts: SchedulerTimeouts,
}

impl<'a> SlurmRelease<'a> {
    pub(in crate::gate) fn new(
        programs: &'a SlurmPrograms,
        scheduler: &'a dyn Scheduler,
        timeouts: SchedulerTimeouts,
    ) -> Self {
        let commands = SlurmCommands { programs, limit: timeouts.limit };
        Self { commands, scheduler, timeouts }
    }

    /// Cancels the jobs of this name and waits until they end.
    pub(in crate::gate) async fn cancel_jobs(&self, name: &str) -> Result<String, String> {
        // The list of jobs below shows whether the cancellation took effect.
        let cancelled = self.commands.cancel(name).await;
        let start = Instant::now();
        loop {
            let jobs = self.commands.list_jobs(name).await;
            if jobs.as_ref().is_ok_and(Vec::is_empty) {
                return Ok("its jobs are gone".to_owned());
            }
            if let Err(failure) = cancelled {
                return Err(failure.message);
            }
            let jobs = jobs.map_err(|failure| failure.message)?;
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

    /// Whether the scheduler no longer lists this allocation. A failed query does not prove that.
    pub(in crate::gate) async fn is_released(&self, name: &str, kind: HoldKind) -> bool {
        match kind {
            HoldKind::Reservation => self.commands.is_reserved(name).await.is_ok_and(|is| !is),
            HoldKind::Job => self.commands.list_jobs(name).await.is_ok_and(|jobs| jobs.is_empty()),
            HoldKind::Pods => false,
        }
    }

    /// Drains the nodes again that were resumed inside a reservation, and removes it. If a killed
    /// process sent the resumption recently (`may_land`), the controller may still apply it: until
    /// then the reservation keeps users off the nodes.
    pub(in crate::gate) async fn remove_reservation(
        &self,
        name: &str,
        drained: &[(NodeName, String)],
        may_land: bool,
    ) -> Result<String, String> {
        if !drained.is_empty() {
            self.restore_drains(drained).await?;
            // An acknowledged drain may still be lost, and then only the reservation keeps users
            // off these nodes.
            sleep(self.timeouts.persist).await;
            self.restore_drains(drained).await?;
            if may_land {
                return Err(format!(
                    "its nodes are drained again, and a request that its process sent before it \
                     ended may be carried out for {} s; until then the reservation stays",
                    self.timeouts.in_flight.as_secs()
                ));
            }
        }
        let removed = self.commands.unreserve(name).await;
        match (self.commands.is_reserved(name).await, removed) {
            (Ok(false), _) if drained.is_empty() => Ok("the reservation is gone".to_owned()),
            (Ok(false), _) => {
                let nodes: Vec<NodeName> = drained.iter().map(|(node, _)| node.clone()).collect();
                Ok(format!("{} drained again, the reservation is gone", fold_nodes(&nodes)))
            }
            (Ok(true), Ok(())) => Err("it was removed but still exists".to_owned()),
            (Ok(true), Err(failure)) | (Err(failure), _) => Err(failure.message),
        }
    }

    /// Drains the remaining nodes again, and waits until the drains are visible: an error does not
    /// mean "not done", and an answer does not mean "done".
    async fn restore_drains(&self, drained: &[(NodeName, String)]) -> Result<(), String> {
        let nodes: Vec<NodeName> = drained.iter().map(|(node, _)| node.clone()).collect();
        let start = Instant::now();
        let mut last_error = None;
        loop {
            let live =
                self.scheduler.read_nodes(&nodes).await.map_err(|error| error.to_string())?;
            let open = undrained_nodes(drained, &live);
            if open.is_empty() {
                return Ok(());
            }
            if self.timeouts.settle.max(CANCEL_TIMEOUT) <= start.elapsed() {
                let left: Vec<NodeName> = open.into_values().flatten().collect();
                let why = last_error.unwrap_or_else(|| "it is not visible".to_owned());
                return Err(format!("{} cannot be drained again: {why}", fold_nodes(&left)));
            }
            for (reason, nodes) in open {
                let reason = reason.to_owned();
                let state = Some(NodeStateChange::Drain { reason });
                let change = NodeUpdate { state, ..NodeUpdate::default() };
                if let Err(error) = self.scheduler.update_nodes(&nodes, &change).await {
                    last_error = Some(error.to_string());
                }
            }
            sleep(POLL_INTERVAL).await;
        }
    }
}

/// The nodes that are not drained again yet, by reason. A node that Slurm no longer lists needs no
/// drain; a node that could not be read may need one.
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

#[cfg(test)]
mod tests {
    use super::*;
    use model::scheduler_snapshot::SchedulerNode;

    #[test]
    fn an_unreadable_node_does_not_count_as_missing() {
        let drained: Vec<(NodeName, String)> =
            ["n1", "n2", "n3"].map(|node| (node.into(), "ours".to_owned())).to_vec();
        let nodes = [("n1", &["IDLE", "DRAIN"][..]), ("n2", &["IDLE"][..])];
        let nodes = nodes.map(|(node, state)| (node.into(), SchedulerNode::new(node, state)));
        let mut live = SchedulerSnapshot { nodes: nodes.into(), troubles: Vec::new() };
        assert_eq!(undrained_nodes(&drained, &live)["ours"], ["n2".into()]);
        live.troubles.push("nodes[2]: no name".to_owned());
        assert_eq!(undrained_nodes(&drained, &live)["ours"], ["n2".into(), "n3".into()]);
    }
}
