//! What is done with a run that ended, beside its report: it is kept in the history,
//! told to whoever wants to know, and shown to monitoring.
//!
//! The verdict stands before anything here begins. Trouble is a note with its remedy;
//! nothing here changes an exit code or keeps the gate from gating.

use std::cell::OnceCell;
use std::path::Path;

use crate::cli::commands::{history, metrics, notify};
use crate::cli::gate_apply;
use crate::cli::stdout::note;
use crate::config::Config;
use control::gate::certificates::FOLDER;
use control::store::history::{DriftAlarms, RunHistory};
use control::store::run_reader::StoredRun;
use control::store::{RecordError, run_reader};
use control::sweep::SweepResult;
use engine::report::metrics::MetricsState;
use model::action::ActionPlan;
use model::hostlist;
use model::id::NodeName;
use model::run::Run;

/// A run that ended. What several of those who follow need is read by the first
/// of them, and by nobody where nobody does.
#[derive(Debug)]
pub struct FinishedRun<'a> {
    /// What it ran under.
    pub config: &'a Config,
    /// Its folder.
    pub folder: &'a Path,
    /// Everything a report shows.
    pub run: &'a Run,
    /// What was carried out; absent where nothing was to be.
    pub action_plan: Option<&'a ActionPlan>,
    /// It was interrupted.
    pub partial: bool,
    stored: OnceCell<Result<StoredRun, RecordError>>,
    /// The drift alarms that stand since this run, where it was kept.
    alarms: OnceCell<DriftAlarms>,
    state: OnceCell<MetricsState>,
}

impl<'a> FinishedRun<'a> {
    /// A run, and what was carried out of it.
    pub fn new(
        config: &'a Config,
        done: &'a SweepResult,
        action_plan: Option<&'a ActionPlan>,
    ) -> Self {
        Self {
            config,
            folder: done.folder.path(),
            run: &done.run,
            action_plan,
            partial: done.partial,
            stored: OnceCell::new(),
            alarms: OnceCell::new(),
            state: OnceCell::new(),
        }
    }

    /// The run as its folder has it, or why it cannot be read.
    fn stored(&self) -> Result<&StoredRun, String> {
        let stored = self.stored.get_or_init(|| run_reader::open_run(self.folder));
        stored.as_ref().map_err(ToString::to_string)
    }

    /// The state of nodes, runs and the gate since this run. Under --run-dir other runs
    /// than the configured ones are beside it.
    pub fn state(&self) -> &MetricsState {
        let runs = self.folder.parent().unwrap_or(&self.config.run_dir);
        let alarms = || {
            self.alarms.get().cloned().unwrap_or_else(|| metrics::read_alarms(self.config, runs))
        };
        self.state.get_or_init(|| metrics::collect_state(self.config, runs, &alarms()))
    }
}

/// Does all of it, each as far as the configuration asks for it.
pub fn run_hooks(ended: &FinishedRun<'_>) {
    store_certificates(ended);
    add_to_history(ended);
    metrics::update_metrics(ended);
    // Last: it may take as long as its bound allows.
    notify::send_notifications(ended);
}

/// Adds the run to the history. What does not come in now comes in when somebody
/// next looks at it: the folder is the truth.
fn add_to_history(ended: &FinishedRun<'_>) {
    let runs = ended.folder.parent().unwrap_or(Path::new("."));
    let Some(file) = ended.config.history_path(runs) else { return };
    let run = &ended.run.info.id;
    let added = ended.stored().and_then(|stored| {
        let mut history = RunHistory::open(&file).map_err(|error| error.to_string())?;
        if let Some((was, is)) = history.upgraded_versions() {
            note(&format!(
                "the history was of version {was} and is of version {is} now; `fabricgate history` \
                 reads again what run folders still tell"
            ));
        }
        history.add_run(stored).map_err(|error| error.to_string())?;
        history.drift_summary(Some(run)).map_err(|error| error.to_string())
    });
    let standing = added.map(|drifts| {
        let rung = history::describe_alarms(&drifts.triggered, run);
        rung.iter().for_each(|alarm| note(&format!("remark: {alarm}")));
        drifts.open
    });
    if let Err(error) = &standing {
        note(&format!(
            "the history is as it was, `fabricgate history` adds this run later: {error}"
        ));
    }
    // Read once, for the textfile and for whoever is told.
    drop(ended.alarms.set(DriftAlarms::from_result(standing)));
}

/// Keeps the certificates of a run that no gate acted on in its folder.
fn store_certificates(ended: &FinishedRun<'_>) {
    if ended.partial || ended.action_plan.is_some() {
        return;
    }
    let kept = ended.stored().and_then(|stored| {
        gate_apply::store_run_certificates(ended.config, stored, ended.run)
            .map_err(|error| error.to_string())
    });
    match kept {
        Ok(issued) => {
            if !issued.nodes.is_empty() {
                let nodes = hostlist::fold(issued.nodes.iter().map(NodeName::as_str));
                let folder = ended.folder.join(FOLDER);
                note(&format!("certificates of {nodes} in {}", folder.display()));
            }
            for it in issued.withheld {
                note(&format!("{}: {}", it.what, it.why));
            }
        }
        Err(error) => note(&format!("no certificate is kept: {error}")),
    }
}
