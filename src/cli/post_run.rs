//! Hooks after a run: certificates, history, metrics, notifications.
//!
//! The verdict is final before the first hook. A hook that fails prints a note with its
//! remedy; no hook changes an exit code or an action of the gate.

use std::cell::OnceCell;
use std::path::Path;

use crate::cli::stdout::note;
use crate::cli::{gate_apply, metrics_state, runtime};
use crate::config::Config;
use control::gate::certificates::FOLDER;
use control::gate::clock;
use control::notify::state::NotifyStateStore;
use control::notify::{NotifyRequest, send_notices};
use control::store::history::{DriftAlarms, RunHistory};
use control::store::run_folder::RunFolder;
use control::store::run_reader::StoredRun;
use control::store::{RecordError, file, run_reader};
use control::sweep::SweepResult;
use engine::report::metrics::levels::compute_levels;
use engine::report::metrics::{MetricsState, exposition};
use engine::report::notice::{occasion_from_run, occasion_from_state};
use engine::report::{metrics, trend};
use model::action::ActionPlan;
use model::hostlist;
use model::id::NodeName;
use model::run::Run;
use model::trend::Trend;

/// A run that ended. The first hook that needs the stored run reads it for all hooks.
#[derive(Debug)]
pub struct FinishedRun<'a> {
    /// The configuration of the run.
    pub config: &'a Config,
    /// The run's folder.
    pub folder: &'a Path,
    /// The judged run.
    pub run: &'a Run,
    /// The actions that were carried out; `None` without --apply.
    pub action_plan: Option<&'a ActionPlan>,
    /// Whether the run was interrupted.
    pub partial: bool,
    stored: OnceCell<Result<StoredRun, RecordError>>,
    /// The open drift alarms after this run, if the history has it.
    alarms: OnceCell<DriftAlarms>,
    state: OnceCell<MetricsState>,
}

impl<'a> FinishedRun<'a> {
    /// Prepares the hooks of a run.
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

    /// The stored run, or why it cannot be read.
    fn stored(&self) -> Result<&StoredRun, String> {
        let stored = self.stored.get_or_init(|| run_reader::open_run(self.folder));
        stored.as_ref().map_err(ToString::to_string)
    }

    /// The state of nodes, runs and the gate after this run. With --run-dir, the run's parent
    /// folder has other runs than the configured one.
    pub fn state(&self) -> &MetricsState {
        let runs = self.folder.parent().unwrap_or(&self.config.run_dir);
        let alarms = || {
            self.alarms
                .get()
                .cloned()
                .unwrap_or_else(|| metrics_state::read_alarms(self.config, runs))
        };
        self.state.get_or_init(|| metrics_state::collect_state(self.config, runs, &alarms()))
    }
}

/// Runs every hook that the configuration enables.
pub fn run_hooks(ended: &FinishedRun<'_>) {
    store_certificates(ended);
    add_to_history(ended);
    update_metrics(ended);
    // Last: it may take until its time limit.
    send_notifications(ended);
}

/// Adds the run to the history. After an error the next `fabricgate history` adds it: the
/// run folder is the truth.
fn add_to_history(ended: &FinishedRun<'_>) {
    let runs = ended.folder.parent().unwrap_or(Path::new("."));
    let Some(file) = ended.config.history_path(runs) else { return };
    let run = &ended.run.info.id;
    let added = ended.stored().and_then(|stored| {
        let mut history = RunHistory::open(&file).map_err(|error| error.to_string())?;
        if let Some((was, is)) = history.upgraded_versions() {
            note(&format!(
                "the history was upgraded from version {was} to {is}; run `fabricgate history` to \
                 read again the data that the run folders still have"
            ));
        }
        history.add_run(stored).map_err(|error| error.to_string())?;
        history.drift_summary(Some(run)).map_err(|error| error.to_string())
    });
    let open_alarms = added.map(|drifts| {
        let alarms = describe_alarms(&drifts.triggered, run);
        alarms.iter().for_each(|alarm| note(&format!("remark: {alarm}")));
        drifts.open
    });
    if let Err(error) = &open_alarms {
        note(&format!(
            "the history is unchanged, `fabricgate history` adds this run later: {error}"
        ));
    }
    // Read once, for the textfile and the notifications.
    drop(ended.alarms.set(DriftAlarms::from_result(open_alarms)));
}

/// Stores the certificates of a run on which no gate acted in the run's folder.
fn store_certificates(ended: &FinishedRun<'_>) {
    if ended.partial || ended.action_plan.is_some() {
        return;
    }
    let issued_result = ended.stored().and_then(|stored| {
        gate_apply::store_run_certificates(ended.config, stored, ended.run)
            .map_err(|error| error.to_string())
    });
    match issued_result {
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
        Err(error) => note(&format!("certificates are not stored: {error}")),
    }
}

/// Descriptions of the drift alarms that a run triggered.
fn describe_alarms(trends: &[Trend], run: &str) -> Vec<String> {
    let of_run = trends.iter().flat_map(|trend| {
        trend.alarms.iter().filter(|alarm| alarm.run == run).map(move |alarm| (trend, alarm))
    });
    of_run.map(|(trend, alarm)| trend::describe_alarm(trend, alarm)).collect()
}

/// Writes the monitoring data of a run: its levels into its folder, and the textfile.
fn update_metrics(ended: &FinishedRun<'_>) {
    let folder = RunFolder::open(ended.folder);
    if let Err(error) = folder.write_json(file::LEVELS, &compute_levels(&ended.run.cells)) {
        note(&format!("metrics: {error}"));
    }
    let Some(textfile) = &ended.config.metrics.textfile else { return };
    if ended.config.launcher_from == "--sim" {
        note("metrics: a run with --sim measures no real nodes; the textfile is unchanged");
        return;
    }
    let families = metrics::build_families(ended.state(), ended.config.metrics.nodes.size());
    if let Err(error) =
        metrics_state::write_textfile(textfile, &exposition::render_classic(&families))
    {
        let file = textfile.display();
        note(&format!("metrics: {file}: {error}; does its folder exist, and is it writable?"));
    }
}

/// The store of sent notifications: in the gate's folder, else in the folder of the runs.
pub(crate) fn notification_store(config: &Config) -> NotifyStateStore {
    let folder = config.gate.as_ref().map_or(&config.run_dir, |gate| &gate.folder);
    NotifyStateStore { folder: folder.clone() }
}

/// Sends notifications about the results and actions of a run.
fn send_notifications(ended: &FinishedRun<'_>) {
    let Some(notify) = ended.config.notify.as_ref().filter(|it| !it.targets.is_empty()) else {
        return;
    };
    if ended.config.launcher_from == "--sim" {
        note("notify: a run with --sim does not concern real nodes; nothing is sent");
        return;
    }
    let folder = std::path::absolute(ended.folder).unwrap_or_else(|_| ended.folder.to_owned());
    let mut occasion = occasion_from_run(
        ended.run,
        ended.action_plan,
        &folder.display().to_string(),
        ended.partial,
    );
    occasion.limit_to_known(ended.run, ended.state());
    let state = occasion_from_state(ended.state());
    occasion.items.extend(state.items);
    occasion.healthy.extend(state.healthy);
    occasion.whole.extend(state.whole);
    let now = clock::now();
    let request = NotifyRequest {
        settings: notify,
        occasion: &occasion,
        now: &now,
        seed: runtime::random_number(),
    };
    let notes = match runtime::build_runtime() {
        Ok(runtime) => runtime.block_on(send_notices(&request, &notification_store(ended.config))),
        Err(error) => vec![error.to_string()],
    };
    for text in notes {
        note(&format!("notify: {text}"));
    }
}
