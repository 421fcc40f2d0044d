//! A job's assumptions about the fabric, from its description: its environment, its script, its
//! manifest.
//!
//! `script` reads `KEY=VALUE` lines, shell and sbatch scripts, `manifest` YAML and JSON; both
//! fill `settings`, and `beliefs` derives the assumptions. No script is run and nothing is looked
//! up.

mod beliefs;
mod manifest;
mod script;
mod settings;

use super::reader_util::check_text_size;
use model::source_report::{SourceKind, SourceReport};
use settings::JobSettingsCollector;

/// Characters that may follow a name in a document: the end of a quoted word or a key, of a line,
/// or of a word in `{name: NCCL_DEBUG, value: INFO}`.
const NAME_DELIMITERS: &[&str] = &["\"", "'", ":", "\n", "\r", ",", "}", " "];

/// Whether a text describes a job.
pub fn recognises(text: &str) -> bool {
    script::has_directives(text)
        || settings::mentions(text, &["="])
        || (manifest::is_manifest(text) && settings::mentions(text, NAME_DELIMITERS))
}

/// Parses a job description. `place` is its name in messages.
pub fn read(place: &str, text: &str) -> SourceReport {
    let mut report = SourceReport::new(SourceKind::Job, place);
    if !check_text_size(&mut report, text) {
        return report;
    }
    let text = text.trim_start_matches('\u{feff}');
    let mut settings = JobSettingsCollector::new(&mut report);
    if manifest::is_manifest(text) {
        manifest::read(&mut settings, text);
    } else {
        script::read(&mut settings, text, 1);
    }
    let settings = settings.finish();
    beliefs::add_beliefs(&mut report, &settings);
    report
}

#[cfg(test)]
mod tests;
