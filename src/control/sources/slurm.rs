//! Asks Slurm's controller through `scontrol` and `sinfo`.
//!
//! Puts the questions, all of them in bounded time, and tells an answer from
//! none: `scontrol` ends well where it could not reach the controller, prints
//! errors where answers are expected, and takes ten seconds to say that nobody
//! is there. What an answer means, `inventory::slurm` says.

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

/// How the controller is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlurmClientConfig {
    /// The program `scontrol`, with words in front where it is reached through
    /// something (`["ssh", "head", "scontrol"]`).
    pub scontrol: Vec<String>,
    /// The program `sinfo`, likewise.
    pub sinfo: Vec<String>,
    /// How long one question may take.
    pub limit: Duration,
    /// Whether a shell elsewhere reads the words behind them; found out where absent.
    pub remote_shell: Option<bool>,
}

impl Default for SlurmClientConfig {
    fn default() -> Self {
        // Slurm's own MessageTimeout is 10 s: shorter, and an answer that is on
        // its way is taken for none.
        Self {
            scontrol: vec!["scontrol".to_owned()],
            sinfo: vec!["sinfo".to_owned()],
            remote_shell: None,
            limit: Duration::from_secs(15),
        }
    }
}

/// Asks for topology, nodes, partitions and configuration, at the same time and
/// once each, after a ping: a controller that is down says so there within
/// milliseconds, and everywhere else after ten seconds. Ends within three times
/// the limit and the few seconds it takes to end what hangs. One answer a
/// source; where the controller is out of reach, one answer that says so.
pub async fn fetch_claims(slurm: &SlurmClientConfig) -> Vec<SourceReport> {
    fetch_with_capture(slurm, exec::CAPTURE).await
}

async fn fetch_with_capture(slurm: &SlurmClientConfig, capture: usize) -> Vec<SourceReport> {
    let desk = SlurmClient { config: slurm, capture };
    if let Some((place, lack)) = desk.ping().await {
        let mut silent = SourceReport::new(SourceKind::SlurmTopology, place);
        silent.push_problem(lack.kind, None, lack.message);
        return vec![silent];
    }
    let (topology, yaml, nodes, partitions, config, sinfo) = tokio::join!(
        desk.query_scontrol(&["show", "topology"]),
        desk.query_scontrol(&["show", "topoconf"]),
        desk.query_json_or_text(
            SlurmProgram::Scontrol,
            &["show", "node", "--json"],
            &["show", "node", "-o"]
        ),
        desk.query_json_or_text(
            SlurmProgram::Scontrol,
            &["show", "partition", "--json"],
            &["show", "partition", "-o"],
        ),
        desk.query_scontrol(&["show", "config"]),
        desk.query_json_or_text(SlurmProgram::Sinfo, &["--json"], &[]),
    );
    let mut topology = topology_report(topology, &yaml, &config);
    let yaml = match &yaml.text {
        // Neither is a fault: Slurm 24.11 has no such question, and 26.05 has
        // nothing to say to it where there is no topology.yaml.
        Err(lack) if lack.kind == SourceProblemKind::Unsupported => {
            let note = "this scontrol has no `show topoconf`: topologies besides the one in \
                        force are not seen";
            topology.notes.push(note.to_owned());
            None
        }
        Ok(text) if has_no_topology_kind(text) => {
            let note = "`show topoconf` is empty, as it is where topology.conf is read";
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

/// What one question came to.
#[derive(Debug)]
pub(crate) struct SlurmAnswer {
    /// The question, as it can be typed again.
    pub(crate) place: String,
    /// What was printed, or why that is no answer.
    pub(crate) text: Result<String, SlurmAnswerFailure>,
    /// What must be known about the text.
    notes: Vec<String>,
}

/// Why there is no answer.
#[derive(Clone, Debug)]
pub(crate) struct SlurmAnswerFailure {
    pub(crate) kind: SourceProblemKind,
    pub(crate) message: String,
    /// It ended well and printed nothing at all, on neither stream.
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

/// Where questions are put.
pub(crate) struct SlurmClient<'s> {
    pub(crate) config: &'s SlurmClientConfig,
    /// Bytes of an answer that are kept.
    pub(crate) capture: usize,
}

impl SlurmClient<'_> {
    /// What is wrong with the controller, before ten questions find out: the
    /// question, and why it has no answer.
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
                // Words that are not understood here: the questions will tell.
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

    /// Asks for JSON, and for text where this Slurm writes none, or more of it
    /// than is kept: text is a fifth as long.
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
            // Whoever does not answer or refuses does so again.
            Err(_) => return answer,
        };
        let note = format!("`{}` was of no use, so text was asked for: {why}", answer.place);
        answer = self.query(program, text).await;
        answer.notes.push(note);
        answer
    }

    pub(crate) async fn query(&self, program: SlurmProgram, question: &[&str]) -> SlurmAnswer {
        // All: what is hidden from users by its partition is there all the same.
        let (place, finished) = self.run(program, &[&["--all"], question].concat()).await;
        let mut notes = Vec::new();
        let text = self.check_output(finished).map(|bytes| {
            // Slurm keeps and prints any bytes as a reason or comment.
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
        let (_nobody, stop) = watch::channel(false);
        let request = ProcessRequest { argv, limit: self.config.limit, capture: self.capture };
        (place, exec::run(&request, stop).await)
    }

    /// Tells the controller something. Slurm says nothing where it did so.
    pub(crate) async fn send_command(&self, order: &[&str]) -> Result<(), SlurmAnswerFailure> {
        self.check_exit(self.run(SlurmProgram::Scontrol, order).await.1).map(drop)
    }

    /// What was told, if it was told. The exit code alone says too little:
    /// `scontrol show topology` ends with 0 whatever went wrong.
    fn check_output(
        &self,
        finished: Result<FinishedProcess, ExecError>,
    ) -> Result<Vec<u8>, SlurmAnswerFailure> {
        let finished = self.check_exit(finished)?;
        if finished.stdout.bytes.iter().all(u8::is_ascii_whitespace) {
            let complaint = clean(&String::from_utf8_lossy(&finished.stderr.bytes));
            let is_silence = complaint.is_empty();
            let told = if is_silence { "nothing was printed" } else { &complaint };
            return Err(SlurmAnswerFailure {
                is_silence,
                ..new_failure(classify_complaint(&complaint), told)
            });
        }
        if 0 < finished.stdout.dropped {
            let most = format!("more was printed than the {} bytes that are kept", self.capture);
            return Err(SlurmAnswerFailure::new(SourceProblemKind::Incomplete, most));
        }
        Ok(finished.stdout.bytes)
    }

    /// Whether it was started and says itself that all went well.
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
                let said = if complaint.is_empty() { clean(printed) } else { complaint };
                let kind = match classify_complaint(&said) {
                    // What ssh ends with where it does not get there.
                    SourceProblemKind::Incomplete
                        if *ending == ProcessEnding::Exited { code: 255 } =>
                    {
                        SourceProblemKind::Unreachable
                    }
                    kind => kind,
                };
                return Err(new_failure(kind, &join_complaint(&ending.to_string(), &said)));
            }
        }
        Ok(finished)
    }
}

/// An answer read, with what must be known about it.
fn read_answer(
    answer: SlurmAnswer,
    kind: SourceKind,
    read: fn(&str, &str) -> SourceReport,
) -> SourceReport {
    let mut said = match answer.text {
        Ok(text) => read(&answer.place, &text),
        Err(lack) => {
            let mut said = SourceReport::new(kind, answer.place);
            said.push_problem(lack.kind, None, lack.message);
            said
        }
    };
    said.notes.extend(answer.notes);
    said
}

/// The topology in force. Where all nodes are equal nothing is printed, which
/// must be told from nothing being known.
fn topology_report(
    mut topology: SlurmAnswer,
    yaml: &SlurmAnswer,
    config: &SlurmAnswer,
) -> SourceReport {
    if topology.text.as_ref().is_err_and(|lack| lack.is_silence) {
        // Beside a topology.yaml, TopologyPlugin means nothing and may say block.
        let plugin = config.text.as_ref().ok().and_then(|text| topology_plugin(text));
        // `default` is what `flat` was called until 24.11.
        let is_flat = |it: &&str| it.ends_with("/flat") || it.ends_with("/default");
        if let Some(plugin) = plugin.filter(is_flat) {
            let note = format!("no blocks and no switches: TopologyPlugin is {}", clean(plugin));
            topology.notes.push(note);
            topology.text = Ok(String::new());
        } else if yaml.text.as_ref().is_ok_and(|text| !has_no_topology_kind(text)) {
            let note = "nothing was printed; what there is, `show topoconf` tells";
            topology.notes.push(note.to_owned());
            topology.text = Ok(String::new());
        }
    }
    if topology.text.as_ref().is_ok_and(String::is_empty) {
        let mut said = SourceReport::new(SourceKind::SlurmTopology, topology.place);
        said.notes = topology.notes;
        return said;
    }
    read_answer(topology, SourceKind::SlurmTopology, slurm::show_topology::read)
}

/// Whether a topology.yaml holds topologies of no kind at all.
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

/// What kind of trouble these words of Slurm's (or ssh's) are. Those of Slurm
/// as its 24.11 and 26.05 print them.
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

fn new_failure(kind: SourceProblemKind, came: &str) -> SlurmAnswerFailure {
    let remedy = remedy(kind);
    let message = if remedy.is_empty() { came.to_owned() } else { format!("{came}; {remedy}") };
    SlurmAnswerFailure::new(kind, message)
}

/// What to do about it.
fn remedy(kind: SourceProblemKind) -> &'static str {
    match kind {
        SourceProblemKind::Missing => {
            "Slurm's commands must be installed here, or be reached through a command such as ssh"
        }
        SourceProblemKind::Unreachable => {
            "see whether slurmctld runs and answers `scontrol ping` from this machine"
        }
        SourceProblemKind::Denied => {
            "ask as a user whom the controller knows, with a working munge key or token"
        }
        _ => "",
    }
}

fn join_complaint(what: &str, complaint: &str) -> String {
    if complaint.is_empty() { what.to_owned() } else { format!("{what}: {complaint}") }
}

/// As far as it is UTF-8.
fn utf8_prefix(bytes: &[u8]) -> &str {
    match std::str::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => std::str::from_utf8(&bytes[..error.valid_up_to()]).unwrap_or(""),
    }
}

#[cfg(test)]
mod tests;
