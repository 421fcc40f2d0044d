//! What is done with a run that ended, beside its report: it is kept in the history,
//! told to whoever wants to know, and shown to monitoring.
//!
//! The verdict stands before anything here begins. Trouble is a note with its remedy;
//! nothing here changes an exit code or keeps the gate from gating.

use std::path::Path;

use super::acting;
use super::config::Config;
use super::history;
use super::metrics;
use super::notify;
use super::stdout::note;
use super::stored;
use crate::gate::certificates::FOLDER;
use crate::inventory::hostlist;
use crate::launch::Launcher;
use crate::model::action::ActionPlan;
use crate::model::id::NodeName;
use crate::model::run::Run;
use crate::record;
use crate::record::history::History;
use crate::record::history::HistoryError;

/// A run that ended.
#[derive(Clone, Copy, Debug)]
pub struct Ended<'a> {
    /// What it ran under.
    pub config: &'a Config,
    /// Its folder.
    pub folder: &'a Path,
    /// Everything a report shows.
    pub run: &'a Run,
    /// What was carried out; absent where nothing was to be.
    pub acted: Option<&'a ActionPlan>,
    /// It was interrupted.
    pub partial: bool,
    /// The exit code to come.
    pub code: u8,
    /// How long it took, in seconds.
    pub seconds: f64,
}

/// Does all of it, each as far as the configuration asks for it.
pub fn afterwards(ended: &Ended<'_>) {
    certificates(ended);
    kept(ended);
    metrics::afterwards(ended);
    // Last: it may take as long as its bound allows.
    notify::afterwards(ended);
}

/// Adds the run to the history. What does not come in now comes in when somebody
/// next looks at it: the folder is the truth.
fn kept(ended: &Ended<'_>) {
    let (keeping, launcher) = (&ended.config.history, &ended.config.launcher);
    let is_real = !matches!(launcher, Launcher::Sim { .. } | Launcher::Replay { .. });
    if !keeping.enabled || !(is_real || keeping.asked) {
        return;
    }
    let runs = ended.folder.parent().unwrap_or(Path::new("."));
    let file = keeping.file(runs);
    let added = record::stored::open(ended.folder).map_err(HistoryError::from).and_then(|stored| {
        let mut history = History::open(&file)?;
        history.add(&stored)?;
        history::rung(&history, &ended.run.info.id)
    });
    match added {
        Ok(rung) => rung.iter().for_each(|alarm| note(&format!("remark: {alarm}"))),
        Err(error) => note(&format!(
            "the history is as it was, `fabricgate history` adds this run later: {error}"
        )),
    }
}

/// Keeps the certificates of a run that no gate acted on in its folder.
fn certificates(ended: &Ended<'_>) {
    if ended.partial || ended.acted.is_some() {
        return;
    }
    let kept = stored::open_quietly(ended.folder)
        .and_then(|stored| acting::keep(ended.config, &stored, ended.run));
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
