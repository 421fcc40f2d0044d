//! `[history]` of the configuration: the file of the history, and the retention of its points.

use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::Deserialize;
use toml::Spanned;

use crate::config::ConfigMistake;
use crate::config::bounded::BoundedCount;

/// Three years: one point a day is kept so long by default.
const THIN_AFTER_DAYS: u32 = 1_095;

/// Days, up to a century: no run is older.
pub type Days = BoundedCount<1, 36_500>;

/// `[history]` of the configuration.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct HistoryConfig {
    /// Whether every completed run is added. Default: true, and false if the fabric is simulated or
    /// replayed and the configuration has no such section.
    pub enabled: bool,
    /// Whether the configuration has the section.
    #[serde(skip)]
    pub explicit: bool,
    /// The SQLite file. Default: next to the folder of run folders, with the same name and
    /// `-history.sqlite` appended.
    pub path: Option<PathBuf>,
    /// Days for which every point is kept, 1 to 36500. Older points are thinned to one per day by
    /// `fabricgate history --compact`; findings, alarms and changes stay. Default: 365.
    pub keep_days: Days,
    /// Days after which points are thinned from one per day to one per week; not below `keep_days`.
    /// Default: 1095, or `keep_days` if that is greater.
    #[schemars(with = "Option<Days>")]
    thin_after_days: Option<Spanned<Days>>,
    /// Days after which `fabricgate history prune` may remove a run folder without references, 1 to
    /// 36500. Without it, none is ever removed.
    pub keep_runs_days: Option<Days>,
}

impl Default for HistoryConfig {
    fn default() -> Self {
        Self {
            enabled: true,
            explicit: false,
            path: None,
            keep_days: 365.into(),
            thin_after_days: None,
            keep_runs_days: None,
        }
    }
}

impl HistoryConfig {
    /// A section of the file, checked, with relative paths in this folder.
    pub fn from_section(self, base: &Path) -> Result<Self, ConfigMistake> {
        if let Some(days) = &self.thin_after_days
            && *days.get_ref() < self.keep_days
        {
            let message = format!(
                "thin_after_days: {}, expected keep_days ({}) or more",
                days.get_ref().get(),
                self.keep_days.get()
            );
            return Err((days.span().start, message));
        }
        Ok(Self { explicit: true, path: self.path.map(|path| base.join(path)), ..self })
    }

    /// Days for which one point a day is kept.
    pub fn thin_after_days(&self) -> u32 {
        let configured = self.thin_after_days.as_ref().map(|it| it.get_ref().get());
        configured.unwrap_or(THIN_AFTER_DAYS.max(self.keep_days.get()))
    }

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

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<HistoryConfig, String> {
        let section: HistoryConfig = toml::from_str(text).map_err(|e| e.message().to_owned())?;
        section
            .from_section(Path::new("/etc/fg"))
            .map_err(|(at, message)| format!("{at}: {message}"))
    }

    #[test]
    fn days_and_paths_are_checked() {
        let all = read("path = \"h.sqlite\"\nkeep_days = 30\nkeep_runs_days = 90\n").expect("read");
        assert_eq!(all.path.as_deref(), Some(Path::new("/etc/fg/h.sqlite")));
        assert_eq!((all.keep_days, all.keep_runs_days), (30.into(), Some(90.into())));
        assert_eq!(all.thin_after_days(), 1_095);
        assert_eq!(read("keep_days = 2000").map(|it| it.thin_after_days()), Ok(2_000));
        for (text, complaint) in [
            ("keep_days = 0", "0, expected 1 to 36500"),
            ("keep_runs_days = 40000", "40000, expected 1 to 36500"),
            ("thin_after_days = 10", "18: thin_after_days: 10, expected keep_days (365) or more"),
        ] {
            assert_eq!(read(text), Err(complaint.to_owned()));
        }
        assert!(read("days = 1").is_err_and(|e| e.contains("unknown field `days`")));
    }

    #[test]
    fn the_default_file_is_next_to_the_folder_of_runs() {
        let usual = HistoryConfig::default();
        assert_eq!(usual.path_for(Path::new("/x/runs")), Path::new("/x/runs-history.sqlite"));
        assert_eq!(usual.path_for(Path::new("runs/")), Path::new("runs-history.sqlite"));
        assert!(usual.enabled && !usual.explicit);
    }
}
