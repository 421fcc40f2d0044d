//! Slurm through slurmrestd.
//!
//! The token is read from its file for every call, because tokens expire, and appears in
//! no message. `readers::claims::slurm::live_nodes` parses the answers: slurmrestd and
//! `scontrol` use the same node format.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};

use super::request_validation;
use super::scheduler::{Scheduler, SchedulerError, SchedulerFuture};
use super::scontrol::ScontrolScheduler;
use crate::sources::http::ServerAddress;
use crate::sources::slurmrestd as source;
use crate::sources::slurmrestd::{SlurmrestdClient, SlurmrestdProblem};
use model::id::NodeName;
use model::node_update::{NodeStateChange, NodeUpdate};
use model::scheduler_snapshot::SchedulerSnapshot;
use model::source_report::SourceProblemKind;
use model::text::clean;
use readers::claims::slurm::live_nodes;

/// The first API version that returns the configuration, which contains the controller's
/// start time.
const BOOT_TIME_API_VERSION: u32 = 45;

/// A [`Scheduler`] that reaches slurmctld through slurmrestd.
#[derive(Clone, Debug)]
pub struct SlurmrestdScheduler {
    /// `http://host:6820`, `https://host:6820`, or `unix:/run/slurmrestd.sock`.
    pub address: ServerAddress,
    /// The file with the JSON web token, as `scontrol token` prints it.
    pub token_file: Option<PathBuf>,
    /// The token's user, if the token does not contain it.
    pub user: Option<String>,
    /// Time limit of one call. Slurm's MessageTimeout defaults to 10 s.
    pub limit: Duration,
}

impl Scheduler for SlurmrestdScheduler {
    fn name(&self) -> String {
        format!("slurmrestd at {}", self.address)
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

    /// The `scontrol` equivalents: operators do not use tokens in commands.
    fn command_lines(&self, nodes: &[NodeName], change: &NodeUpdate) -> Vec<Vec<String>> {
        ScontrolScheduler::default().command_lines(nodes, change)
    }
}

impl SlurmrestdScheduler {
    /// A client and the agreed API version. The controller behind slurmrestd has
    /// answered.
    async fn connect(&self) -> Result<(SlurmrestdClient, String), SchedulerError> {
        let token = match &self.token_file {
            None => None,
            Some(file) => Some(std::fs::read_to_string(file).map_err(|error| {
                let message = format!("the token cannot be read: {}: {error}", file.display());
                SchedulerError::new(SourceProblemKind::Missing, message)
            })?),
        };
        let Self { address, user, limit, .. } = self.clone();
        let rest = source::SlurmrestdClientConfig { address, token, user, limit };
        let line =
            SlurmrestdClient::new(&rest, source::MAX_ANSWER_BYTES).map_err(to_scheduler_error)?;
        let version = line.agree_on_version().await.map_err(to_scheduler_error)?;
        Ok((line, version))
    }

    async fn query_nodes(&self, nodes: &[NodeName]) -> Result<SchedulerSnapshot, SchedulerError> {
        request_validation::check_node_names(nodes)?;
        let (line, version) = self.connect().await?;
        // Never node by node: in 26.05 the answer for a single node is as old as the last
        // query for all nodes, and lacks the CPUs of jobs started since.
        let answer = line.query(format!("slurm/{version}/nodes/")).await;
        let text = answer.text.map_err(to_scheduler_error)?;
        let mut live = live_nodes::read(&answer.place, &text);
        if live.nodes.is_empty() && !live.troubles.is_empty() {
            return Err(SchedulerError::new(
                SourceProblemKind::Incomplete,
                clean(&live.troubles.join("; ")),
            ));
        }
        if !nodes.is_empty() {
            let named: BTreeSet<&NodeName> = nodes.iter().collect();
            live.nodes.retain(|name, _| named.contains(name));
        }
        Ok(live)
    }

    /// `BOOT_TIME` from the metadata of the configuration; `diag` only has the start of
    /// its statistics.
    async fn query_boot_time(&self) -> Result<Option<String>, SchedulerError> {
        let (line, version) = self.connect().await?;
        if parse_api_version(&version).is_none_or(|number| number < BOOT_TIME_API_VERSION) {
            return Ok(None);
        }
        let answer = line.query(format!("slurm/{version}/conf/")).await;
        let document: Value = serde_json::from_str(&answer.text.map_err(to_scheduler_error)?)
            .map_err(|error| {
                SchedulerError::new(SourceProblemKind::Malformed, error.to_string())
            })?;
        let at = document["slurm_conf_meta"]["BOOT_TIME"].as_i64().filter(|at| 0 < *at);
        Ok(at.map(|at| at.to_string()))
    }

    async fn send_update(
        &self,
        nodes: &[NodeName],
        change: &NodeUpdate,
    ) -> Result<(), SchedulerError> {
        request_validation::check_node_names(nodes)?;
        request_validation::check_update(change)?;
        let lists = request_validation::fold_host_lists(nodes);
        if lists.is_empty() || change.is_empty() {
            return Ok(());
        }
        let (line, version) = self.connect().await?;
        for list in lists {
            let result = line
                .send_update(&format!("slurm/{version}/nodes/"), &update_body(&list, change))
                .await;
            result.map_err(update_error)?;
        }
        Ok(())
    }
}

/// The number in a version such as `v0.0.45`.
fn parse_api_version(version: &str) -> Option<u32> {
    version.rsplit('.').next()?.parse().ok()
}

fn to_scheduler_error(trouble: SlurmrestdProblem) -> SchedulerError {
    SchedulerError::new(trouble.kind, trouble.message)
}

/// The error of a failed change. Nodes may have been changed nevertheless.
fn update_error(trouble: SlurmrestdProblem) -> SchedulerError {
    let SlurmrestdProblem { kind, message } = trouble;
    let remedy = match kind {
        SourceProblemKind::Denied => {
            "; nodes are changed with tokens of root, SlurmUser and users with \
             AdminLevel=Administrator"
        }
        _ => "",
    };
    let message = format!("{message}{remedy}; the nodes are read again to see the effect");
    SchedulerError::new(kind, message)
}

/// The request body for one list of nodes.
fn update_body(list: &str, change: &NodeUpdate) -> Value {
    let mut body = json!({ "name": [list] });
    match &change.state {
        Some(NodeStateChange::Drain { reason }) => {
            body["state"] = json!(["DRAIN"]);
            body["reason"] = json!(reason);
        }
        Some(NodeStateChange::Resume) => body["state"] = json!(["RESUME"]),
        None => {}
    }
    for (key, list) in
        [("features", &change.available_features), ("features_act", &change.active_features)]
    {
        match list.as_deref() {
            None => {}
            // Slurm ignores an empty list; one empty name clears the field.
            Some([]) => body[key] = json!([""]),
            Some(list) => body[key] = json!(list),
        }
    }
    for (key, text) in [("extra", &change.extra), ("comment", &change.comment)] {
        if let Some(text) = text {
            body[key] = json!(text);
        }
    }
    body
}

#[cfg(test)]
mod tests {
    use wiremock::matchers::path;
    use wiremock::{Mock, MockServer, ResponseTemplate};

    use super::*;

    #[tokio::test]
    async fn the_start_time_of_the_controller_is_read_if_the_api_has_it() {
        let meta = json!({"BOOT_TIME": 1_795_479_364, "SLURM_VERSION": "26.05.5"});
        let config = json!({"slurm_conf": {}, "slurm_conf_meta": meta});
        let with = |at: Value| json!({"slurm_conf_meta": {"BOOT_TIME": at}});
        for (version, conf, expected) in [
            (45, config.clone(), Ok(Some("1795479364"))),
            (45, json!({"slurm_conf_meta": {}}), Ok(None)),
            (45, with(json!(0)), Ok(None)),
            (45, with(json!("yesterday")), Ok(None)),
            (45, json!([]), Ok(None)),
            // 25.11 and earlier do not have this document.
            (44, config, Ok(None)),
            (45, Value::Null, Err(())),
        ] {
            let server = MockServer::start().await;
            let at = |name: &str| path(format!("/slurm/v0.0.{version}/{name}/"));
            let up = json!({"pings": [{"hostname": "c", "responding": true, "pinged": "UP"}]});
            let up = ResponseTemplate::new(200).set_body_json(up);
            Mock::given(at("ping")).respond_with(up).mount(&server).await;
            let answer = match &conf {
                Value::Null => ResponseTemplate::new(500),
                conf => ResponseTemplate::new(200).set_body_json(conf),
            };
            Mock::given(at("conf")).respond_with(answer).mount(&server).await;
            let rest = SlurmrestdScheduler {
                address: server.uri().into(),
                token_file: None,
                user: None,
                limit: Duration::from_secs(20),
            };
            let started = rest.read_start_time().await.map_err(|_| ());
            assert_eq!(started, expected.map(|it| it.map(str::to_owned)), "{version}: {conf}");
        }
    }

    #[test]
    fn the_request_contains_only_the_change() {
        let change = NodeUpdate {
            state: Some(NodeStateChange::Drain { reason: "say \"é\"".to_owned() }),
            active_features: Some(Vec::new()),
            comment: Some(String::new()),
            ..NodeUpdate::default()
        };
        let expected = json!({
            "name": ["n[1-2]"], "state": ["DRAIN"], "reason": "say \"é\"",
            "features_act": [""], "comment": "",
        });
        assert_eq!(update_body("n[1-2]", &change), expected);
        let resume = NodeUpdate { state: Some(NodeStateChange::Resume), ..NodeUpdate::default() };
        assert_eq!(update_body("n1", &resume), json!({ "name": ["n1"], "state": ["RESUME"] }));
    }
}
