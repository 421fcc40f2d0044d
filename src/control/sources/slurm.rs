//! Queries Slurm's controller through `scontrol` and `sinfo`.
//!
//! All queries are limited in time, and failures are recognised: `scontrol` exits with 0 when
//! it could not reach the controller, prints errors in place of answers, and takes ten seconds
//! to report an unreachable controller. `readers::claims::slurm` interprets the answers.

use std::time::Duration;

use tokio::sync::watch;

use crate::launch::remote_shell;
use model::raw_result::ProcessEnding;
use model::shell_quote;
use model::source_report::{SourceKind, SourceProblemKind, SourceReport};
use model::text::clean;
use node::exec;
use node::exec::{ExecError, FinishedProcess, ProcessRequest};
use readers::claims::slurm;

/// How to query the controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlurmClientConfig {
    /// The program `scontrol`, with preceding arguments if it is reached through another
    /// command (`["ssh", "head", "scontrol"]`).
    pub scontrol: Vec<String>,
    /// The program `sinfo`, with such arguments.
    pub sinfo: Vec<String>,
    /// Time limit of one query.
    pub limit: Duration,
    /// Whether a remote shell parses the arguments; detected if absent.
    pub remote_shell: Option<bool>,
}

impl Default for SlurmClientConfig {
    fn default() -> Self {
        // Slurm's own MessageTimeout is 10 s: with a shorter limit, an answer on its way would
        // count as missing.
        Self {
            scontrol: vec!["scontrol".to_owned()],
            sinfo: vec!["sinfo".to_owned()],
            remote_shell: None,
            limit: Duration::from_secs(15),
        }
    }
}

/// Queries topology, nodes, partitions and configuration, at the same time and once each, after
/// a ping: a controller that is down is reported by the ping within milliseconds, by all other
/// queries after ten seconds. Takes at most three times the limit, plus a few seconds for
/// ending processes that hang. One report per source; if the controller is unreachable, one
/// report with that problem.
pub async fn fetch_claims(slurm: &SlurmClientConfig) -> Vec<SourceReport> {
    fetch_with_capture(slurm, exec::CAPTURE).await
}

async fn fetch_with_capture(slurm: &SlurmClientConfig, capture: usize) -> Vec<SourceReport> {
    let client = SlurmClient { config: slurm, capture };
    if let Some((place, lack)) = client.ping().await {
        let mut silent = SourceReport::new(SourceKind::SlurmTopology, place);
        silent.push_problem(lack.kind, None, lack.message);
        return vec![silent];
    }
    let (topology, yaml, nodes, partitions, config, sinfo) = tokio::join!(
        client.query_scontrol(&["show", "topology"]),
        client.query_scontrol(&["show", "topoconf"]),
        client.query_json_or_text(
            SlurmProgram::Scontrol,
            &["show", "node", "--json"],
            &["show", "node", "-o"]
        ),
        client.query_json_or_text(
            SlurmProgram::Scontrol,
            &["show", "partition", "--json"],
            &["show", "partition", "-o"],
        ),
        client.query_scontrol(&["show", "config"]),
        client.query_json_or_text(SlurmProgram::Sinfo, &["--json"], &[]),
    );
    let mut topology = topology_report(topology, &yaml, &config);
    let yaml = match &yaml.text {
        // Neither is an error: Slurm 24.11 has no such query, and 26.05 prints nothing if there is
        // no topology.yaml.
        Err(lack) if lack.kind == SourceProblemKind::Unsupported => {
            let note = "this scontrol has no `show topoconf`: topologies other than the one in \
                        force are not seen";
            topology.notes.push(note.to_owned());
            None
        }
        Ok(text) if has_no_topology_kind(text) => {
            let note = "`show topoconf` is empty, as expected with a topology.conf";
            topology.notes.push(note.to_owned());
            None
        }
        _ => Some(read_answer(yaml, SourceKind::SlurmTopologyYaml, slurm::topology_yaml::read)),
    };
    let mut all = vec![topology];
    all.extend(yaml);
    all.push(read_answer(nodes, SourceKind::SlurmNodes, slurm::nodes::read));
    all.push(read_answer(partitions, SourceKind::SlurmPartitions, slurm::partitions::read));
    all.push(read_answer(config, SourceKind::SlurmConfig, slurm::config::read));
    all.push(read_answer(sinfo, SourceKind::Sinfo, slurm::sinfo::read));
    all
}

/// The result of one query.
#[derive(Debug)]
pub(crate) struct SlurmAnswer {
    /// The query as a command line.
    pub(crate) place: String,
    /// The output, or why it is not an answer.
    pub(crate) text: Result<String, SlurmAnswerFailure>,
    /// Remarks about the text.
    notes: Vec<String>,
}

/// Why a query has no answer.
#[derive(Clone, Debug)]
pub(crate) struct SlurmAnswerFailure {
    pub(crate) kind: SourceProblemKind,
    pub(crate) message: String,
    /// It exited with 0 and printed nothing on either stream.
    is_silence: bool,
}

impl SlurmAnswerFailure {
    fn new(kind: SourceProblemKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), is_silence: false }
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum SlurmProgram {
    Scontrol,
    Sinfo,
}

pub(crate) struct SlurmClient<'s> {
    pub(crate) config: &'s SlurmClientConfig,
    /// Most bytes kept of an answer.
    pub(crate) capture: usize,
}

impl SlurmClient<'_> {
    /// The controller's problem, found before ten queries fail: the query, and why it has no
    /// answer.
    pub(crate) async fn ping(&self) -> Option<(String, SlurmAnswerFailure)> {
        let (place, finished) = self.run(SlurmProgram::Scontrol, &["--all", "ping"]).await;
        let printed = finished.as_ref().map_or("", |it| utf8_prefix(&it.stdout.bytes)).to_owned();
        let lack = if printed.contains(" is UP") {
            return None;
        } else if let Some(down) = printed.lines().find(|line| line.contains(" is DOWN")) {
            SlurmAnswerFailure::new(
                SourceProblemKind::Unreachable,
                format!("{}; {}", clean(down), remedy(SourceProblemKind::Unreachable)),
            )
        } else {
            match self.check_output(finished) {
                // An unknown text: the queries themselves will show the problem.
                Ok(_) => return None,
                Err(lack)
                    if matches!(
                        lack.kind,
                        SourceProblemKind::Unsupported | SourceProblemKind::Incomplete
                    ) =>
                {
                    return None;
                }
                Err(lack) => lack,
            }
        };
        Some((place, lack))
    }

    async fn query_scontrol(&self, question: &[&str]) -> SlurmAnswer {
        self.query(SlurmProgram::Scontrol, question).await
    }

    /// Queries JSON, and text if this Slurm writes no JSON or more of it than is kept: text is
    /// a fifth as long.
    async fn query_json_or_text(
        &self,
        program: SlurmProgram,
        json: &[&str],
        text: &[&str],
    ) -> SlurmAnswer {
        let mut answer = self.query(program, json).await;
        let why = match &answer.text {
            Ok(text) if text.trim_start().starts_with('{') => return answer,
            Ok(_) => "it is not JSON".to_owned(),
            Err(lack)
                if matches!(
                    lack.kind,
                    SourceProblemKind::Unsupported | SourceProblemKind::Incomplete
                ) =>
            {
                lack.message.clone()
            }
            // A refusal or a timeout would only repeat.
            Err(_) => return answer,
        };
        let note = format!("`{}` gave no usable answer, so text was queried: {why}", answer.place);
        answer = self.query(program, text).await;
        answer.notes.push(note);
        answer
    }

    pub(crate) async fn query(&self, program: SlurmProgram, question: &[&str]) -> SlurmAnswer {
        // `--all`: nodes of hidden partitions exist as well.
        let (place, finished) = self.run(program, &[&["--all"], question].concat()).await;
        let mut notes = Vec::new();
        let text = self.check_output(finished).map(|bytes| {
            // Slurm stores and prints any bytes as a reason or comment.
            String::from_utf8(bytes).unwrap_or_else(|error| {
                notes.push("bytes that are not UTF-8 were replaced".to_owned());
                String::from_utf8_lossy(error.as_bytes()).into_owned()
            })
        });
        SlurmAnswer { place, text, notes }
    }

    async fn run(
        &self,
        program: SlurmProgram,
        question: &[&str],
    ) -> (String, Result<FinishedProcess, ExecError>) {
        let program = match program {
            SlurmProgram::Scontrol => &self.config.scontrol,
            SlurmProgram::Sinfo => &self.config.sinfo,
        };
        let argv = match remote_shell::quote_argv(program, self.config.remote_shell, question) {
            Ok(argv) => argv,
            Err(why) => {
                let program = program.join(" ");
                let source = std::io::Error::other(why);
                return (program.clone(), Err(ExecError::Refused { program, source }));
            }
        };
        let place = shell_quote::join_quoted(&argv);
        let (_sender, stop) = watch::channel(false);
        let request = ProcessRequest { argv, limit: self.config.limit, capture: self.capture };
        (place, exec::run(&request, stop).await)
    }

    /// Sends the controller a command. Slurm prints nothing on success.
    pub(crate) async fn send_command(&self, order: &[&str]) -> Result<(), SlurmAnswerFailure> {
        self.check_exit(self.run(SlurmProgram::Scontrol, order).await.1).map(drop)
    }

    /// The output, if it is an answer. The exit code alone is not enough: `scontrol show
    /// topology` exits with 0 on every error.
    fn check_output(
        &self,
        finished: Result<FinishedProcess, ExecError>,
    ) -> Result<Vec<u8>, SlurmAnswerFailure> {
        let finished = self.check_exit(finished)?;
        if finished.stdout.bytes.iter().all(u8::is_ascii_whitespace) {
            let complaint = clean(&String::from_utf8_lossy(&finished.stderr.bytes));
            let is_silence = complaint.is_empty();
            let message = if is_silence { "nothing was printed" } else { &complaint };
            return Err(SlurmAnswerFailure {
                is_silence,
                ..new_failure(classify_complaint(&complaint), message)
            });
        }
        if 0 < finished.stdout.dropped {
            let most = format!("the output is longer than the limit of {} bytes", self.capture);
            return Err(SlurmAnswerFailure::new(SourceProblemKind::Incomplete, most));
        }
        Ok(finished.stdout.bytes)
    }

    /// Whether it was started and reports success.
    fn check_exit(
        &self,
        finished: Result<FinishedProcess, ExecError>,
    ) -> Result<FinishedProcess, SlurmAnswerFailure> {
        let finished = finished.map_err(|error| match &error {
            ExecError::Refused { source, .. } => {
                SlurmAnswerFailure::new(SourceProblemKind::Denied, format!("{error}: {source}"))
            }
            ExecError::Empty | ExecError::Missing { .. } => {
                new_failure(SourceProblemKind::Missing, &error.to_string())
            }
        })?;
        let complaint = clean(&String::from_utf8_lossy(&finished.stderr.bytes));
        let printed = utf8_prefix(&finished.stdout.bytes).trim();
        match finished.ending {
            ProcessEnding::TimedOut => {
                let waited = format!("no answer within {:.0?}", self.config.limit);
                return Err(new_failure(SourceProblemKind::Unreachable, &waited));
            }
            ref ending if ending.is_unreachable() => {
                return Err(new_failure(
                    SourceProblemKind::Missing,
                    &join_complaint(&ending.to_string(), &complaint),
                ));
            }
            ProcessEnding::Exited { code: 0 } => {}
            ref ending => {
                let output = if complaint.is_empty() { clean(printed) } else { complaint };
                let kind = match classify_complaint(&output) {
                    // ssh's exit code when it cannot connect.
                    SourceProblemKind::Incomplete
                        if *ending == ProcessEnding::Exited { code: 255 } =>
                    {
                        SourceProblemKind::Unreachable
                    }
                    kind => kind,
                };
                return Err(new_failure(kind, &join_complaint(&ending.to_string(), &output)));
            }
        }
        Ok(finished)
    }
}

/// Parses an answer and adds the remarks about it.
fn read_answer(
    answer: SlurmAnswer,
    kind: SourceKind,
    read: fn(&str, &str) -> SourceReport,
) -> SourceReport {
    let mut report = match answer.text {
        Ok(text) => read(&answer.place, &text),
        Err(lack) => {
            let mut report = SourceReport::new(kind, answer.place);
            report.push_problem(lack.kind, None, lack.message);
            report
        }
    };
    report.notes.extend(answer.notes);
    report
}

/// The topology in force. If all nodes are equal, nothing is printed, which is distinguished
/// from a missing answer.
fn topology_report(
    mut topology: SlurmAnswer,
    yaml: &SlurmAnswer,
    config: &SlurmAnswer,
) -> SourceReport {
    if topology.text.as_ref().is_err_and(|lack| lack.is_silence) {
        // With a topology.yaml, TopologyPlugin has no effect and may be block.
        let plugin = config.text.as_ref().ok().and_then(|text| topology_plugin(text));
        // `default` is the name of `flat` up to 24.11.
        let is_flat = |it: &&str| it.ends_with("/flat") || it.ends_with("/default");
        if let Some(plugin) = plugin.filter(is_flat) {
            let note = format!("no blocks and no switches: TopologyPlugin is {}", clean(plugin));
            topology.notes.push(note);
            topology.text = Ok(String::new());
        } else if yaml.text.as_ref().is_ok_and(|text| !has_no_topology_kind(text)) {
            let note = "nothing was printed; `show topoconf` has the topologies";
            topology.notes.push(note.to_owned());
            topology.text = Ok(String::new());
        }
    }
    if topology.text.as_ref().is_ok_and(String::is_empty) {
        let mut report = SourceReport::new(SourceKind::SlurmTopology, topology.place);
        report.notes = topology.notes;
        return report;
    }
    read_answer(topology, SourceKind::SlurmTopology, slurm::show_topology::read)
}

/// Whether a topology.yaml contains no topology of a known kind.
fn has_no_topology_kind(yaml: &str) -> bool {
    const KINDS: [&str; 5] = ["block", "flat", "ring", "torus3d", "tree"];
    let kind = |line: &str| {
        let (key, value) = line.trim().split_once(':')?;
        KINDS.contains(&key).then(|| value.trim().to_owned())
    };
    let mut kinds = yaml.lines().filter_map(kind).peekable();
    kinds.peek().is_some() && kinds.all(|value| value == "{}")
}

/// `TopologyPlugin` of `scontrol show config`.
fn topology_plugin(config: &str) -> Option<&str> {
    config.lines().find_map(|line| {
        let (key, value) = line.split_once('=')?;
        (key.trim() == "TopologyPlugin").then(|| value.trim())
    })
}

/// Classifies an error message of Slurm (as 24.11 and 26.05 print it) or ssh.
pub(super) fn classify_complaint(complaint: &str) -> SourceProblemKind {
    const WORDS: &[(SourceProblemKind, &[&str])] = &[
        (
            SourceProblemKind::Unreachable,
            &[
                "unable to contact slurm controller",
                "socket timed out",
                "connect failure",
                "connection refused",
                "connection timed out",
                "communication connection failure",
                "no route to host",
                "could not resolve",
                "unable to resolve",
                "could not establish a configuration source",
            ],
        ),
        (
            SourceProblemKind::Denied,
            &[
                "permission denied",
                "invalid user id",
                "authentication",
                "authorization",
                "munge",
                "zero bytes were transmitted",
            ],
        ),
        (
            SourceProblemKind::Unsupported,
            &[
                "invalid entity",
                "unrecognized option",
                "invalid option",
                "unknown option",
                "invalid keyword",
                "serializer",
                "data_parser",
                "parameter is not supported",
            ],
        ),
    ];
    let complaint = complaint.to_lowercase();
    let found = WORDS.iter().find(|(_, words)| words.iter().any(|word| complaint.contains(word)));
    found.map_or(SourceProblemKind::Incomplete, |(kind, _)| *kind)
}

fn new_failure(kind: SourceProblemKind, problem: &str) -> SlurmAnswerFailure {
    let remedy = remedy(kind);
    let message =
        if remedy.is_empty() { problem.to_owned() } else { format!("{problem}; {remedy}") };
    SlurmAnswerFailure::new(kind, message)
}

fn remedy(kind: SourceProblemKind) -> &'static str {
    match kind {
        SourceProblemKind::Missing => {
            "Slurm's commands must be installed here, or be reached through a command such as ssh"
        }
        SourceProblemKind::Unreachable => {
            "check that slurmctld runs and answers `scontrol ping` from this machine"
        }
        SourceProblemKind::Denied => {
            "use a user that the controller knows, with a working munge key or token"
        }
        _ => "",
    }
}

fn join_complaint(what: &str, complaint: &str) -> String {
    if complaint.is_empty() { what.to_owned() } else { format!("{what}: {complaint}") }
}

/// The valid UTF-8 prefix.
fn utf8_prefix(bytes: &[u8]) -> &str {
    match std::str::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => std::str::from_utf8(&bytes[..error.valid_up_to()]).unwrap_or(""),
    }
}

#[cfg(test)]
mod tests;
