//! Slurm through `scontrol`.
//!
//! Readings begin with `scontrol ping`: if the controller is down, it fails within
//! milliseconds, other commands only after ten seconds.
//! `readers::claims::slurm::live_nodes` parses the answers.

use std::time::Duration;

use super::request_validation;
use super::scheduler::{Scheduler, SchedulerError, SchedulerFuture};
use crate::launch::remote_shell;
use crate::sources::slurm::{SlurmAnswerFailure, SlurmClient, SlurmClientConfig, SlurmProgram};
use engine::policy::topology_proposal::SlurmVersion;
use model::id::NodeName;
use model::node_update::{NodeStateChange, NodeUpdate};
use model::scheduler_snapshot::SchedulerSnapshot;
use model::source_report::SourceProblemKind;
use model::text::clean;
use readers::claims::slurm::live_nodes;

/// Maximum size of an answer in bytes: 10,000 nodes of Slurm 26.05 are 26 MB.
const MAX_ANSWER_BYTES: usize = 256 * 1024 * 1024;

/// A [`Scheduler`] that reaches slurmctld through `scontrol`.
#[derive(Clone, Debug)]
pub struct ScontrolScheduler {
    /// The program, with a prefix such as ssh if it runs elsewhere.
    pub argv: Vec<String>,
    /// Time limit of one call. Slurm's MessageTimeout defaults to 10 s.
    pub limit: Duration,
    /// Whether a remote shell parses the arguments; detected if `None`.
    pub remote_shell: Option<bool>,
}

impl Default for ScontrolScheduler {
    fn default() -> Self {
        let SlurmClientConfig { scontrol: argv, limit, remote_shell, .. } =
            SlurmClientConfig::default();
        Self { argv, limit, remote_shell }
    }
}

impl Scheduler for ScontrolScheduler {
    fn name(&self) -> String {
        self.argv.join(" ")
    }

    fn read_nodes<'a>(&'a self, nodes: &'a [NodeName]) -> SchedulerFuture<'a, SchedulerSnapshot> {
        Box::pin(self.query_nodes(nodes))
    }

    fn read_start_time(&self) -> SchedulerFuture<'_, Option<String>> {
        Box::pin(self.query_boot_time())
    }

    fn update_nodes<'a>(
        &'a self,
        nodes: &'a [NodeName],
        change: &'a NodeUpdate,
    ) -> SchedulerFuture<'a, ()> {
        Box::pin(self.send_update(nodes, change))
    }

    fn command_lines(&self, nodes: &[NodeName], change: &NodeUpdate) -> Vec<Vec<String>> {
        let argv = |order: &Vec<String>| {
            let quoted = remote_shell::quote_argv(&self.argv, self.remote_shell, &as_strs(order));
            // Commands that cannot be quoted are shown anyway; they are not sent.
            quoted.unwrap_or_else(|_| [self.argv.as_slice(), order].concat())
        };
        update_commands(nodes, change).iter().map(argv).collect()
    }
}

impl ScontrolScheduler {
    fn client_config(&self) -> SlurmClientConfig {
        SlurmClientConfig {
            scontrol: self.argv.clone(),
            sinfo: Vec::new(),
            limit: self.limit,
            remote_shell: self.remote_shell,
        }
    }

    async fn query_nodes(&self, nodes: &[NodeName]) -> Result<SchedulerSnapshot, SchedulerError> {
        request_validation::check_node_names(nodes)?;
        let slurm = self.client_config();
        let client = connect(&slurm).await?;
        if nodes.is_empty() {
            return query_listing(&client, &["show", "node", "--json"]).await;
        }
        let mut live = SchedulerSnapshot::default();
        for list in &request_validation::fold_host_lists(nodes) {
            let part = query_listing(&client, &["show", "node", list, "--json"]).await?;
            live.nodes.extend(part.nodes);
            live.troubles.extend(part.troubles);
        }
        Ok(live)
    }

    /// The version of the Slurm commands; `None` if unknown.
    pub async fn version(&self) -> Option<SlurmVersion> {
        let slurm = self.client_config();
        let client = SlurmClient { config: &slurm, capture: MAX_ANSWER_BYTES };
        let answer = client.query(SlurmProgram::Scontrol, &["--version"]).await;
        SlurmVersion::parse(&answer.text.ok()?)
    }

    async fn query_boot_time(&self) -> Result<Option<String>, SchedulerError> {
        let slurm = self.client_config();
        let answer = SlurmClient { config: &slurm, capture: MAX_ANSWER_BYTES }
            .query(SlurmProgram::Scontrol, &["show", "config"])
            .await;
        let text = answer.text.map_err(|lack| SchedulerError::new(lack.kind, lack.message))?;
        Ok(parse_boot_time(&text))
    }

    /// Sends no ping first: the caller has just read the nodes, and a delay gives other
    /// writers time.
    async fn send_update(
        &self,
        nodes: &[NodeName],
        change: &NodeUpdate,
    ) -> Result<(), SchedulerError> {
        request_validation::check_node_names(nodes)?;
        request_validation::check_update(change)?;
        let orders = update_commands(nodes, change);
        if orders.is_empty() {
            return Ok(());
        }
        let slurm = self.client_config();
        let client = SlurmClient { config: &slurm, capture: MAX_ANSWER_BYTES };
        for order in &orders {
            client.send_command(&as_strs(order)).await.map_err(|lack| update_error(&lack))?;
        }
        Ok(())
    }
}

/// `BOOT_TIME` of `scontrol show config`: the start time of slurmctld.
fn parse_boot_time(text: &str) -> Option<String> {
    let of = |line: &str| {
        let (key, value) = line.split_once('=')?;
        (key.trim() == "BOOT_TIME").then(|| clean(value.trim()))
    };
    text.lines().find_map(of).filter(|it| !it.is_empty())
}

fn as_strs(words: &[String]) -> Vec<&str> {
    words.iter().map(String::as_str).collect()
}

/// A client whose controller answers a ping.
async fn connect(slurm: &SlurmClientConfig) -> Result<SlurmClient<'_>, SchedulerError> {
    let client = SlurmClient { config: slurm, capture: MAX_ANSWER_BYTES };
    match client.ping().await {
        None => Ok(client),
        Some((_, lack)) => Err(SchedulerError::new(lack.kind, lack.message)),
    }
}

/// Reads a list of nodes. Slurm leaves out unknown nodes, so an empty list is valid,
/// unless it is empty because of a problem.
async fn query_listing(
    client: &SlurmClient<'_>,
    question: &[&str],
) -> Result<SchedulerSnapshot, SchedulerError> {
    let answer = client.query(SlurmProgram::Scontrol, question).await;
    let text = answer.text.map_err(|lack| {
        let remedy = match lack.kind {
            SourceProblemKind::Unsupported => {
                "; install Slurm's JSON serializer here, or use slurmrestd elsewhere"
            }
            _ => "",
        };
        SchedulerError::new(lack.kind, format!("{}{remedy}", lack.message))
    })?;
    let live = live_nodes::read(&answer.place, &text);
    if live.nodes.is_empty() && !live.troubles.is_empty() {
        return Err(SchedulerError::new(
            SourceProblemKind::Incomplete,
            clean(&live.troubles.join("; ")),
        ));
    }
    Ok(live)
}

/// The error of a failed change. Nodes may have been changed nevertheless.
fn update_error(lack: &SlurmAnswerFailure) -> SchedulerError {
    let remedy = match lack.kind {
        SourceProblemKind::Denied => {
            "; nodes are changed by root, SlurmUser and users with AdminLevel=Administrator"
        }
        SourceProblemKind::Unsupported => "; this version of Slurm does not support the request",
        _ => "",
    };
    let message = format!("{}{remedy}; the nodes are read again to see the effect", lack.message);
    SchedulerError::new(lack.kind, message)
}

/// The arguments of `scontrol`, one list per call.
///
/// Both feature lists go into the same call: with only one of them, Slurm refuses to drop
/// an active feature.
fn update_commands(nodes: &[NodeName], change: &NodeUpdate) -> Vec<Vec<String>> {
    let mut fields = Vec::new();
    match &change.state {
        Some(NodeStateChange::Drain { reason }) => {
            fields.extend(["State=DRAIN".to_owned(), format!("Reason={}", quote_reason(reason))]);
        }
        Some(NodeStateChange::Resume) => fields.push("State=RESUME".to_owned()),
        None => {}
    }
    let features = |list: &Option<Vec<String>>| list.as_ref().map(|list| list.join(","));
    for (key, value) in [
        ("AvailableFeatures", features(&change.available_features)),
        ("ActiveFeatures", features(&change.active_features)),
        ("Extra", change.extra.clone()),
        ("Comment", change.comment.clone()),
    ] {
        fields.extend(value.map(|value| format!("{key}={value}")));
    }
    if fields.is_empty() {
        return Vec::new();
    }
    let order = |list| {
        let head = ["update".to_owned(), format!("NodeName={list}")];
        head.into_iter().chain(fields.iter().cloned()).collect()
    };
    request_validation::fold_host_lists(nodes).into_iter().map(order).collect()
}

/// Quotes a reason so that `scontrol` stores it unchanged: it drops a leading and a
/// trailing quotation mark independently.
fn quote_reason(reason: &str) -> String {
    if reason.starts_with('"') || reason.ends_with('"') {
        return format!("\"{reason}\"");
    }
    reason.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(range: std::ops::RangeInclusive<u32>) -> Vec<NodeName> {
        range.map(|i| NodeName::from(format!("n{i:02}"))).collect()
    }

    #[test]
    fn nodes_with_the_same_change_share_one_call() {
        let change = NodeUpdate {
            available_features: Some(vec!["gb200".to_owned(), "fabric_degraded".to_owned()]),
            active_features: Some(vec!["gb200".to_owned()]),
            extra: Some("{\"a\":1}".to_owned()),
            comment: Some(String::new()),
            ..NodeUpdate::drain("fabricgate:nvlink-low:r1 e7")
        };
        let expected = [
            "scontrol",
            "update",
            "NodeName=n[01-18]",
            "State=DRAIN",
            "Reason=fabricgate:nvlink-low:r1 e7",
            "AvailableFeatures=gb200,fabric_degraded",
            "ActiveFeatures=gb200",
            "Extra={\"a\":1}",
            "Comment=",
        ];
        assert_eq!(ScontrolScheduler::default().command_lines(&names(1..=18), &change), [expected]);
    }

    #[test]
    fn the_start_of_the_controller_is_read() {
        let text = "Configuration data as of x\nAccountingStorageHost = a\n\
                    BOOT_TIME               = 2026-11-23T11:00:00\nX = y\n";
        assert_eq!(parse_boot_time(text).as_deref(), Some("2026-11-23T11:00:00"));
        assert_eq!(parse_boot_time("BOOT_TIMES = 3\n"), None);
    }

    #[test]
    fn an_empty_change_makes_no_call() {
        let slurm = ScontrolScheduler::default();
        assert!(slurm.command_lines(&names(1..=18), &NodeUpdate::default()).is_empty());
        assert!(slurm.command_lines(&[], &NodeUpdate::drain("x")).is_empty());
    }

    #[test]
    fn a_reason_in_quotation_marks_keeps_them() {
        for (reason, written) in
            [("a", "a"), ("\"a\"", "\"\"a\"\""), ("say \"a\"", "\"say \"a\"\""), ("a\"b", "a\"b")]
        {
            assert_eq!(quote_reason(reason), written);
        }
    }

    #[test]
    fn arguments_over_ssh_survive_the_remote_shell() {
        let argv = vec!["/usr/bin/ssh".to_owned(), "head".to_owned(), "scontrol".to_owned()];
        let slurm = ScontrolScheduler { argv, ..ScontrolScheduler::default() };
        let words = slurm.command_lines(&names(1..=2), &NodeUpdate::drain("a b; $(x) e1"));
        assert_eq!(
            words[0][4..],
            ["NodeName=\"n[01-02]\"", "State=DRAIN", "Reason='a b; $(x) e1'"]
        );
    }
}
