//! What a job takes for granted about the fabric, by the description of it that
//! somebody gave: its environment, its script, its manifest.
//!
//! `script` reads `KEY=VALUE` lines, shell and sbatch scripts, `manifest` YAML and
//! JSON; both tell `settings`, and `beliefs` says what these mean. No script is run
//! and nothing is looked up.

mod beliefs;
mod manifest;
mod script;
mod settings;

use super::reading::fits;
use model::said::Said;
use model::said::SourceKind;
use settings::Settings;

/// What stands behind a name in a document: the end of a word that is quoted or a
/// key, of a line, or of a word in `{name: NCCL_DEBUG, value: INFO}`.
const ENDS: &[&str] = &["\"", "'", ":", "\n", "\r", ",", "}", " "];

/// Whether a text looks like one.
pub fn recognises(text: &str) -> bool {
    script::has_directives(text)
        || settings::mentions(text, &["="])
        || (manifest::looks_like(text) && settings::mentions(text, ENDS))
}

/// Reads it. `place` is its name in messages.
pub fn read(place: &str, text: &str) -> Said {
    let mut said = Said::nothing(SourceKind::Job, place);
    if !fits(&mut said, text) {
        return said;
    }
    let text = text.trim_start_matches('\u{feff}');
    let mut settings = Settings::new(&mut said);
    if manifest::looks_like(text) {
        manifest::read(&mut settings, text);
    } else {
        script::read(&mut settings, text, 1);
    }
    let settings = settings.finish();
    beliefs::believe(&mut said, &settings);
    said
}

#[cfg(test)]
mod tests;
