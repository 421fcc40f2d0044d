//! An operator's cabling or asset file: the location of each node, and the leaf port of each of
//! its NICs.
//!
//! A file written by hand is only a claim. `csv_format` reads CSV, `toml_format` TOML; `builder`
//! checks the lines against each other. `docs/cabling.md` describes both formats.

mod builder;
mod csv_format;
mod toml_format;

use super::reader_util::check_text_size;
use model::source_report::{SourceKind, SourceReport};

/// Whether a text is a cabling file.
pub fn recognises(text: &str) -> bool {
    let text = strip_bom(text);
    toml_format::recognises(text) || csv_format::recognises(text)
}

/// Parses a cabling file. `place` is its name in messages.
pub fn read(place: &str, text: &str) -> SourceReport {
    let mut report = SourceReport::new(SourceKind::Cabling, place);
    if !check_text_size(&mut report, text) {
        return report;
    }
    let text = strip_bom(text);
    if toml_format::recognises(text) {
        toml_format::read(&mut report, text);
    } else {
        csv_format::read(&mut report, text);
    }
    report
}

/// The text without the byte order mark that spreadsheets prepend.
fn strip_bom(text: &str) -> &str {
    text.strip_prefix('\u{feff}').unwrap_or(text)
}

#[cfg(test)]
mod tests;
