//! Calls of Slurm's programs that create, find and end jobs and reservations.
//!
//! Each has a time limit. A failed call may have had its effect; the caller checks for the object
//! if that matters.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::sleep;

use crate::launch::remote_shell;
use crate::launch::slurm::{IMMEDIATE_S, SlurmJobRequest, SlurmLauncher, SlurmPrograms};
use model::hostlist;
use model::id::NodeName;
use model::raw_result::ProcessEnding;
use model::scheduler_snapshot::{SchedulerNode, SchedulerSnapshot};
use model::text::clean;
use node::exec;
use node::exec::ProcessRequest;
use readers::claims::slurm::nodes;

/// How much longer than Slurm's own limit a program may take: it detects a hanging controller after
/// MessageTimeout, 10 s.
const SLACK: Duration = Duration::from_secs(20);

/// The interval between polls of a job that does not start.
const POLL_INTERVAL: Duration = Duration::from_secs(3);

/// The text before the job number in salloc's output.
const GRANTED_PREFIX: &str = "Granted job allocation ";

/// Slurm's messages about nodes that are not free now and may be later (seen on 26.05 and 24.11).
/// salloc reports a connection timeout after waiting as long as `--immediate` allows; another
/// reading finds out if the controller answers.
const BUSY_MESSAGES: &[&str] = &[
    "nodes are busy",
    "node not available",
    "nodes required for job are down",
    "unable to allocate resources: connection timed out",
];

/// The failure of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SlurmCommandFailure {
    /// The program's message, cleaned for display.
    pub(super) message: String,
    /// The nodes are not free; there is no other problem.
    pub(super) is_busy: bool,
}

/// Slurm's commands, with the time limit of a call.
#[derive(Clone, Copy, Debug)]
pub(super) struct SlurmCommands<'a> {
    pub(super) programs: &'a SlurmPrograms,
    pub(super) limit: Duration,
}

impl SlurmCommands<'_> {
    /// Runs a command to its end, and returns the output on both streams.
    async fn run_command(
        &self,
        argv: Vec<String>,
        limit: Duration,
    ) -> Result<(String, String), SlurmCommandFailure> {
        let at = argv.iter().position(|word| is_program(word)).unwrap_or(0);
        let name = argv.get(at);
        let name = name.map_or("", |word| word.rsplit('/').next().unwrap_or(word)).to_owned();
        let failed = |what: String| SlurmCommandFailure {
            is_busy: {
                let lower = what.to_lowercase();
                BUSY_MESSAGES.iter().any(|words| lower.contains(words))
            },
            message: format!("{name}: {what}"),
        };
        // Comments and node lists contain names from other sources.
        let (program, words) = argv.split_at(argv.len().min(at + 1));
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let argv = remote_shell::quote_argv(program, self.programs.remote_shell, &words)
            .map_err(&failed)?;
        let (_sender, stop) = watch::channel(false);
        let request = ProcessRequest { argv, limit, capture: exec::CAPTURE };
        let finished = exec::run(&request, stop).await.map_err(|error| {
            let source = std::error::Error::source(&error).map(|source| format!(": {source}"));
            failed(format!("{error}{}", source.unwrap_or_default()))
        })?;
        let stderr = String::from_utf8_lossy(&finished.stderr.bytes).into_owned();
        match finished.ending {
            ProcessEnding::Exited { code: 0 } => {
                Ok((String::from_utf8_lossy(&finished.stdout.bytes).into_owned(), stderr))
            }
            ProcessEnding::TimedOut => Err(failed(format!("no answer within {:.0?}", limit))),
            ending => Err(failed(match error_lines(&stderr) {
                Some(output) => output,
                None => ending.to_string(),
            })),
        }
    }

    /// Creates a job and returns its number.
    pub(super) async fn allocate(
        &self,
        slurm: &SlurmLauncher,
        job: &SlurmJobRequest<'_>,
    ) -> Result<String, SlurmCommandFailure> {
        let wait = job.immediate.unwrap_or(slurm.wait_s).max(IMMEDIATE_S);
        let limit = Duration::from_secs(wait) + SLACK;
        let mut pending = None;
        let made = {
            let mut making = std::pin::pin!(self.run_command(slurm.salloc_argv(job), limit));
            loop {
                tokio::select! {
                    made = &mut making => break made,
                    () = sleep(POLL_INTERVAL) => {}
                }
                // Queried in parallel: salloc itself does not report the reason of the wait.
                tokio::select! {
                    made = &mut making => break made,
                    why = self.pending_reason(job.name) => pending = why.or(pending),
                }
            }
        };
        let (_, stderr) = made.map_err(|complaint| match pending {
            Some(why) => SlurmCommandFailure {
                is_busy: complaint.is_busy && is_about_nodes(&why),
                message: format!("{}, it was pending for {why}", complaint.message),
            },
            None => complaint,
        })?;
        let number = stderr.lines().find_map(|line| {
            let (_, rest) = line.split_once(GRANTED_PREFIX)?;
            let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
            (!digits.is_empty()).then_some(digits)
        });
        number.ok_or_else(|| SlurmCommandFailure {
            message: format!("salloc did not report the number of its job: {}", clean(&stderr)),
            is_busy: false,
        })
    }

    /// The number and state of every unfinished job of this name.
    pub(super) async fn list_jobs(
        &self,
        name: &str,
    ) -> Result<Vec<(String, String)>, SlurmCommandFailure> {
        let mut argv = self.programs.squeue.clone();
        argv.extend(["--noheader".to_owned(), "--all".to_owned(), format!("--name={name}")]);
        argv.extend(["--format=%A %T".to_owned()]);
        let (listed, _) = self.run_command(argv, self.limit).await?;
        let jobs = listed.lines().filter_map(|line| line.trim().split_once(' '));
        Ok(jobs.map(|(number, state)| (number.to_owned(), state.trim().to_owned())).collect())
    }

    /// The reason why the job of this name has not started.
    async fn pending_reason(&self, name: &str) -> Option<String> {
        let mut argv = self.programs.squeue.clone();
        argv.extend(["--noheader".to_owned(), "--all".to_owned(), format!("--name={name}")]);
        argv.extend(["--states=PENDING".to_owned(), "--format=%r".to_owned()]);
        let (listed, _) = self.run_command(argv, self.limit).await.ok()?;
        let why = listed.lines().map(clean).find(|why| !why.is_empty())?;
        (why != "None").then_some(why)
    }

    /// Cancels the jobs of this name.
    pub(super) async fn cancel(&self, name: &str) -> Result<(), SlurmCommandFailure> {
        let mut argv = self.programs.scancel.clone();
        argv.push(format!("--name={name}"));
        self.run_command(argv, self.limit).await.map(drop)
    }

    /// Creates a maintenance reservation of so many minutes.
    pub(super) async fn reserve(
        &self,
        name: &str,
        nodes: &[NodeName],
        minutes: u64,
        user: &str,
    ) -> Result<(), SlurmCommandFailure> {
        let mut argv = self.programs.scontrol.clone();
        argv.extend(["create".to_owned(), "reservation".to_owned()]);
        argv.push(format!("ReservationName={name}"));
        argv.push(format!("Nodes={}", fold_nodes(nodes)));
        argv.push("StartTime=now".to_owned());
        argv.push(format!("Duration={minutes}"));
        argv.push(format!("Users={user}"));
        argv.push("Flags=MAINT,IGNORE_JOBS".to_owned());
        self.run_command(argv, self.limit).await.map(drop)
    }

    /// Sets the end of a reservation to so many minutes from now.
    pub(super) async fn renew(&self, name: &str, minutes: u64) -> Result<(), SlurmCommandFailure> {
        let mut argv = self.programs.scontrol.clone();
        argv.extend(["update".to_owned(), "reservation".to_owned()]);
        argv.extend([format!("ReservationName={name}"), format!("EndTime=now+{minutes}minutes")]);
        self.run_command(argv, self.limit).await.map(drop)
    }

    /// Whether a reservation of this name exists.
    pub(super) async fn is_reserved(&self, name: &str) -> Result<bool, SlurmCommandFailure> {
        let mut argv = self.programs.scontrol.clone();
        argv.extend(["show", "reservation", "--oneliner"].map(str::to_owned));
        let (listed, _) = self.run_command(argv, self.limit).await?;
        let own = format!("ReservationName={name}");
        Ok(listed.lines().any(|line| line.split_whitespace().next() == Some(&own)))
    }

    pub(super) async fn unreserve(&self, name: &str) -> Result<(), SlurmCommandFailure> {
        let mut argv = self.programs.scontrol.clone();
        argv.extend(["delete".to_owned(), format!("ReservationName={name}")]);
        self.run_command(argv, self.limit).await.map(drop)
    }

    /// The number of GPUs of these nodes as Slurm reports it; nodes without a report are absent.
    pub(super) async fn read_gpu_counts(&self, wanted: &[NodeName]) -> BTreeMap<NodeName, u32> {
        let mut argv = self.programs.scontrol.clone();
        argv.extend([
            "show".to_owned(),
            "node".to_owned(),
            fold_nodes(wanted),
            "--json".to_owned(),
        ]);
        let Ok((text, _)) = self.run_command(argv, self.limit).await else {
            return BTreeMap::new();
        };
        let listing = nodes::read("scontrol show node", &text);
        listing.nodes.into_iter().filter_map(|(name, node)| Some((name, node.gpus?))).collect()
    }
}

/// A host list of these nodes.
pub(super) fn fold_nodes(nodes: &[NodeName]) -> String {
    hostlist::fold(nodes.iter().map(NodeName::as_str))
}

/// Whether a job waits because its nodes are not free (`squeue(1)`, JOB REASON CODES): every other
/// reason concerns the job and not its nodes.
fn is_about_nodes(why: &str) -> bool {
    const NODES: &[&str] = &["Resources", "Priority", "Nodes", "ReqNodeNotAvail", "Reservation"];
    NODES.iter().any(|words| why.starts_with(words))
}

fn is_program(word: &str) -> bool {
    let name = word.rsplit('/').next().unwrap_or(word);
    ["srun", "salloc", "scancel", "squeue", "scontrol"].contains(&name)
}

/// The error lines, without those about progress.
fn error_lines(stderr: &str) -> Option<String> {
    let lines: Vec<String> = stderr.lines().map(clean).filter(|line| !line.is_empty()).collect();
    let errors: Vec<&String> = lines.iter().filter(|line| line.contains("error")).collect();
    match errors.as_slice() {
        [] => lines.last().cloned(),
        [.., last] => Some((*last).clone()),
    }
}

/// Nodes outside the launcher's partition, which would keep all others from getting a job. If no
/// node lists the partition, it may be hidden, and the result is empty.
pub(super) fn nodes_outside_partition(
    partition: Option<&str>,
    all: &[NodeName],
    live: &SchedulerSnapshot,
) -> BTreeMap<NodeName, String> {
    let Some(partition) = partition else { return BTreeMap::new() };
    let is_in = |node: &SchedulerNode| {
        partition.split(',').any(|one| node.partitions.iter().any(|shown| shown == one.trim()))
    };
    if !live.nodes.values().any(is_in) {
        return BTreeMap::new();
    }
    let nodes = all.iter().filter(|name| live.nodes.get(*name).is_some_and(|node| !is_in(node)));
    let why = format!("it is not in partition {partition}, which [launcher] names");
    nodes.map(|name| (name.clone(), why.clone())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_may_wait_for_reasons_other_than_its_nodes() {
        let nodes = "ReqNodeNotAvail, UnavailableNodes:node0003";
        assert!(is_about_nodes("Resources") && is_about_nodes(nodes));
        assert!(!is_about_nodes("PartitionTimeLimit") && !is_about_nodes("AccountNotAllowed"));
    }

    #[test]
    fn an_error_is_reported_without_the_progress_lines() {
        let stderr = "salloc: Pending job allocation 3\nsalloc: error: Job submit/allocate failed: \
                      Invalid account\nsalloc: Job allocation 3 has been revoked.\n";
        let message = error_lines(stderr).expect("a line");
        assert_eq!(message, "salloc: error: Job submit/allocate failed: Invalid account");
        assert_eq!(error_lines(" \n"), None);
        assert_eq!(error_lines("sh: 1: x\n").as_deref(), Some("sh: 1: x"));
    }
}
