//! The calls of Slurm's programs that make, find and end jobs and reservations.
//!
//! Each is bounded in time. One that fails may have done its work all the same;
//! whoever needs to know looks for what it should have made.

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

/// How much longer than Slurm itself a program may take: a controller that
/// hangs is noticed after MessageTimeout, 10 s.
const SLACK: Duration = Duration::from_secs(20);

/// How often a job that does not start is looked at.
const POLL_INTERVAL: Duration = Duration::from_secs(3);

/// What salloc says when it has a job, before its number.
const GRANTED_PREFIX: &str = "Granted job allocation ";

/// What Slurm says when nodes are not free now, and may be later
/// (seen on 26.05 and 24.11). A timed-out connection is what salloc tells when
/// it waited as long as `--immediate` says; whether the controller is there,
/// reading it again finds out.
const BUSY_MESSAGES: &[&str] = &[
    "nodes are busy",
    "node not available",
    "nodes required for job are down",
    "unable to allocate resources: connection timed out",
];

/// Why a program did not do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SlurmCommandFailure {
    /// What it said, as it can be shown.
    pub(super) message: String,
    /// The nodes are not free, and that is all.
    pub(super) is_busy: bool,
}

/// Slurm's programs, and how long one may take.
#[derive(Clone, Copy, Debug)]
pub(super) struct SlurmCommands<'a> {
    pub(super) programs: &'a SlurmPrograms,
    pub(super) limit: Duration,
}

impl SlurmCommands<'_> {
    /// Runs one to its end: what it printed on both streams.
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
        // Comments and lists of nodes hold names from elsewhere.
        let (program, words) = argv.split_at(argv.len().min(at + 1));
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let argv = remote_shell::quote_argv(program, self.programs.remote_shell, &words)
            .map_err(&failed)?;
        let (_nobody, stop) = watch::channel(false);
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
                Some(said) => said,
                None => ending.to_string(),
            })),
        }
    }

    /// Makes a job; its number.
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
                // Asked for beside it: salloc itself does not tell what it waits for.
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
            message: format!("salloc does not say which job it made: {}", clean(&stderr)),
            is_busy: false,
        })
    }

    /// The jobs of this name that are not over: number and state.
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

    /// What the job of this name that has not started is waiting for.
    async fn pending_reason(&self, name: &str) -> Option<String> {
        let mut argv = self.programs.squeue.clone();
        argv.extend(["--noheader".to_owned(), "--all".to_owned(), format!("--name={name}")]);
        argv.extend(["--states=PENDING".to_owned(), "--format=%r".to_owned()]);
        let (listed, _) = self.run_command(argv, self.limit).await.ok()?;
        let why = listed.lines().map(clean).find(|why| !why.is_empty())?;
        (why != "None").then_some(why)
    }

    /// Ends the jobs of this name.
    pub(super) async fn cancel(&self, name: &str) -> Result<(), SlurmCommandFailure> {
        let mut argv = self.programs.scancel.clone();
        argv.push(format!("--name={name}"));
        self.run_command(argv, self.limit).await.map(drop)
    }

    /// Makes a maintenance reservation, for so many minutes.
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

    /// Has a reservation end so many minutes from now.
    pub(super) async fn renew(&self, name: &str, minutes: u64) -> Result<(), SlurmCommandFailure> {
        let mut argv = self.programs.scontrol.clone();
        argv.extend(["update".to_owned(), "reservation".to_owned()]);
        argv.extend([format!("ReservationName={name}"), format!("EndTime=now+{minutes}minutes")]);
        self.run_command(argv, self.limit).await.map(drop)
    }

    /// Whether there is a reservation of this name.
    pub(super) async fn is_reserved(&self, name: &str) -> Result<bool, SlurmCommandFailure> {
        let mut argv = self.programs.scontrol.clone();
        argv.extend(["show", "reservation", "--oneliner"].map(str::to_owned));
        let (listed, _) = self.run_command(argv, self.limit).await?;
        let own = format!("ReservationName={name}");
        Ok(listed.lines().any(|line| line.split_whitespace().next() == Some(&own)))
    }

    /// Removes a reservation.
    pub(super) async fn unreserve(&self, name: &str) -> Result<(), SlurmCommandFailure> {
        let mut argv = self.programs.scontrol.clone();
        argv.extend(["delete".to_owned(), format!("ReservationName={name}")]);
        self.run_command(argv, self.limit).await.map(drop)
    }

    /// How many GPUs Slurm says these nodes have; nothing of nodes of which it
    /// says nothing.
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
        let said = nodes::read("scontrol show node", &text);
        said.nodes.into_iter().filter_map(|(name, node)| Some((name, node.gpus?))).collect()
    }
}

/// A host list of these nodes.
pub(super) fn fold_nodes(nodes: &[NodeName]) -> String {
    hostlist::fold(nodes.iter().map(NodeName::as_str))
}

/// Whether what a job waits for is that its nodes are not free (`squeue(1)`, JOB
/// REASON CODES): everything else is about the job and not about its nodes.
fn is_about_nodes(why: &str) -> bool {
    const NODES: &[&str] = &["Resources", "Priority", "Nodes", "ReqNodeNotAvail", "Reservation"];
    NODES.iter().any(|words| why.starts_with(words))
}

fn is_program(word: &str) -> bool {
    let name = word.rsplit('/').next().unwrap_or(word);
    ["srun", "salloc", "scancel", "squeue", "scontrol"].contains(&name)
}

/// The lines that say what is wrong, without those that tell of progress.
fn error_lines(stderr: &str) -> Option<String> {
    let lines: Vec<String> = stderr.lines().map(clean).filter(|line| !line.is_empty()).collect();
    let errors: Vec<&String> = lines.iter().filter(|line| line.contains("error")).collect();
    match errors.as_slice() {
        [] => lines.last().cloned(),
        [.., last] => Some((*last).clone()),
    }
}

/// Nodes that are not in the launcher's partition, and would keep all others from getting
/// a job. Where no node shows the partition it may be hidden, and nothing is known.
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
    fn a_job_may_wait_for_other_things_than_its_nodes() {
        let nodes = "ReqNodeNotAvail, UnavailableNodes:node0003";
        assert!(is_about_nodes("Resources") && is_about_nodes(nodes));
        assert!(!is_about_nodes("PartitionTimeLimit") && !is_about_nodes("AccountNotAllowed"));
    }

    #[test]
    fn what_is_wrong_is_told_without_the_progress_before() {
        let stderr = "salloc: Pending job allocation 3\nsalloc: error: Job submit/allocate failed: \
                      Invalid account\nsalloc: Job allocation 3 has been revoked.\n";
        let said = error_lines(stderr).expect("a line");
        assert_eq!(said, "salloc: error: Job submit/allocate failed: Invalid account");
        assert_eq!(error_lines(" \n"), None);
        assert_eq!(error_lines("sh: 1: x\n").as_deref(), Some("sh: 1: x"));
    }
}
