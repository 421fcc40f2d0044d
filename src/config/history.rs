//! `[history]` of the configuration: the file of the history, and the retention of its points.
//!
//! Checks the text of the section and opens nothing.

use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::Deserialize;
use toml::Spanned;

use crate::config::ConfigMistake;

/// A year: the default retention of every point, in days.
const KEEP_DAYS: u32 = 365;
/// Three years: the default retention of one point per day, in days.
const THIN_AFTER_DAYS: u32 = 1_095;
/// A century, in days: no run is older.
const MOST_DAYS: u32 = 36_500;

/// `[history]` of the configuration.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct HistorySection {
    /// Whether every completed run is added. Default: true, and false if the fabric is simulated or
    /// replayed and nothing else is in this section.
    enabled: Option<bool>,
    /// The SQLite file. Default: next to the folder of run folders, with the same name and
    /// `-history.sqlite` appended.
    path: Option<PathBuf>,
    /// Days for which every point is kept, 1 to 36500. Older points are thinned to one per day by
    /// `fabricgate history --compact`; findings, alarms and changes stay. Default: 365.
    #[schemars(with = "Option<u32>")]
    keep_days: Option<Spanned<u32>>,
    /// Days after which points are thinned from one per day to one per week; not below `keep_days`.
    /// Default: 1095, or `keep_days` if that is greater.
    #[schemars(with = "Option<u32>")]
    thin_after_days: Option<Spanned<u32>>,
    /// Days after which `fabricgate history prune` may remove a run folder without references, 1 to
    /// 36500. Without it, none is ever removed.
    #[schemars(with = "Option<u32>")]
    keep_runs_days: Option<Spanned<u32>>,
}

/// The history, as configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistoryConfig {
    /// Whether every run is added.
    pub enabled: bool,
    /// Whether the configuration has the section.
    pub explicit: bool,
    /// The configured file.
    pub path: Option<PathBuf>,
    /// Days for which every point is kept.
    pub keep_days: u32,
    /// Days for which one point a day is kept.
    pub thin_after_days: u32,
    /// Days for which run folders are kept; forever if absent.
    pub keep_runs_days: Option<u32>,
}

impl Default for HistoryConfig {
    fn default() -> Self {
        Self {
            enabled: true,
            explicit: false,
            path: None,
            keep_days: KEEP_DAYS,
            thin_after_days: THIN_AFTER_DAYS,
            keep_runs_days: None,
        }
    }
}

impl HistoryConfig {
    /// The path of the history for runs in this folder.
    pub fn path_for(&self, runs: &Path) -> PathBuf {
        self.path.clone().unwrap_or_else(|| default_history_path(runs))
    }
}

/// The default file next to a folder of run folders: not inside it, where every entry is a run.
pub fn default_history_path(runs: &Path) -> PathBuf {
    let runs = match runs.file_name() {
        Some(_) => runs.to_owned(),
        // `.` or `..`: the operating system resolves its name.
        None => std::fs::canonicalize(runs).unwrap_or_else(|_| runs.join("runs")),
    };
    let mut name = runs.file_name().unwrap_or_default().to_owned();
    name.push("-history.sqlite");
    runs.with_file_name(name)
}

/// Reads `[history]`.
pub fn parse_history(
    section: Option<HistorySection>,
    base: &Path,
) -> Result<HistoryConfig, ConfigMistake> {
    let Some(section) = section else { return Ok(HistoryConfig::default()) };
    let keep_days = parse_days("keep_days", section.keep_days.as_ref(), 1)?.unwrap_or(KEEP_DAYS);
    let thin_after_days =
        parse_days("thin_after_days", section.thin_after_days.as_ref(), keep_days)?;
    Ok(HistoryConfig {
        enabled: section.enabled.unwrap_or(true),
        explicit: true,
        path: section.path.map(|path| base.join(path)),
        keep_days,
        thin_after_days: thin_after_days.unwrap_or(THIN_AFTER_DAYS.max(keep_days)),
        keep_runs_days: parse_days("keep_runs_days", section.keep_runs_days.as_ref(), 1)?,
    })
}

/// Parses a number of days, from this minimum to a century.
fn parse_days(
    key: &str,
    days: Option<&Spanned<u32>>,
    least: u32,
) -> Result<Option<u32>, ConfigMistake> {
    let Some(days) = days else { return Ok(None) };
    let value = *days.get_ref();
    if !(least..=MOST_DAYS).contains(&value) {
        let message = format!("{key} {value}, expected {least} to {MOST_DAYS} days");
        return Err((days.span().start, message));
    }
    Ok(Some(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<HistoryConfig, String> {
        let section: HistorySection = toml::from_str(text).map_err(|e| e.message().to_owned())?;
        parse_history(Some(section), Path::new("/etc/fg"))
            .map_err(|(at, message)| format!("{at}: {message}"))
    }

    #[test]
    fn days_and_paths_are_checked() {
        let all = read("path = \"h.sqlite\"\nkeep_days = 30\nkeep_runs_days = 90\n").expect("read");
        assert_eq!(all.path.as_deref(), Some(Path::new("/etc/fg/h.sqlite")));
        assert_eq!((all.keep_days, all.thin_after_days, all.keep_runs_days), (30, 1_095, Some(90)));
        assert_eq!(read("keep_days = 2000").map(|k| k.thin_after_days), Ok(2_000));
        for (text, complaint) in [
            ("keep_days = 0", "12: keep_days 0, expected 1 to 36500 days"),
            ("thin_after_days = 10", "18: thin_after_days 10, expected 365 to 36500 days"),
            ("keep_runs_days = 40000", "17: keep_runs_days 40000, expected 1 to 36500 days"),
        ] {
            assert_eq!(read(text), Err(complaint.to_owned()));
        }
        assert!(read("days = 1").is_err_and(|e| e.contains("unknown field `days`")));
    }

    #[test]
    fn the_file_is_next_to_the_runs_by_default() {
        let usual = HistoryConfig::default();
        assert_eq!(usual.path_for(Path::new("/x/runs")), Path::new("/x/runs-history.sqlite"));
        assert_eq!(usual.path_for(Path::new("runs/")), Path::new("runs-history.sqlite"));
        assert!(usual.enabled && !usual.explicit);
    }
}
