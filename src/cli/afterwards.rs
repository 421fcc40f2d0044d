//! What is done with a run that ended, beside its report: it is kept in the history,
//! told to whoever wants to know, and shown to monitoring.
//!
//! The verdict stands before anything here begins. Trouble is a note with its remedy;
//! nothing here changes an exit code or keeps the gate from gating.

use std::path::Path;

use super::config::Config;
use super::metrics;
use super::notify;
use crate::model::action::ActionPlan;
use crate::model::run::Run;

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
    metrics::afterwards(ended);
    notify::afterwards(ended);
}
