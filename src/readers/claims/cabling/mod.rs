//! An operator's cabling or asset file: which node sits where, and which of its
//! NICs goes to which port of which leaf.
//!
//! A person wrote it, so nothing in it is more than a claim. `table` reads CSV,
//! `document` TOML; `entries` holds one line against the others. The two shapes
//! are described in `docs/cabling.md`.

mod builder;
mod csv_format;
mod toml_format;

use super::reader_util::check_text_size;
use model::source_report::{SourceKind, SourceReport};

/// Whether a text looks like one.
pub fn recognises(text: &str) -> bool {
    let text = strip_bom(text);
    toml_format::recognises(text) || csv_format::recognises(text)
}

/// Reads it. `place` is its name in messages.
pub fn read(place: &str, text: &str) -> SourceReport {
    let mut said = SourceReport::new(SourceKind::Cabling, place);
    if !check_text_size(&mut said, text) {
        return said;
    }
    let text = strip_bom(text);
    if toml_format::recognises(text) {
        toml_format::read(&mut said, text);
    } else {
        csv_format::read(&mut said, text);
    }
    said
}

/// The text without the byte order mark that spreadsheets put in front.
fn strip_bom(text: &str) -> &str {
    text.strip_prefix('\u{feff}').unwrap_or(text)
}

#[cfg(test)]
mod tests;
