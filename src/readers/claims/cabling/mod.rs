//! An operator's cabling or asset file: which node sits where, and which of its
//! NICs goes to which port of which leaf.
//!
//! A person wrote it, so nothing in it is more than a claim. `table` reads CSV,
//! `document` TOML; `entries` holds one line against the others. The two shapes
//! are described in `docs/cabling.md`.

mod document;
mod entries;
mod table;

use super::reading::fits;
use model::said::Said;
use model::said::SourceKind;

/// Whether a text looks like one.
pub fn recognises(text: &str) -> bool {
    let text = without_mark(text);
    document::recognises(text) || table::recognises(text)
}

/// Reads it. `place` is its name in messages.
pub fn read(place: &str, text: &str) -> Said {
    let mut said = Said::nothing(SourceKind::Cabling, place);
    if !fits(&mut said, text) {
        return said;
    }
    let text = without_mark(text);
    if document::recognises(text) {
        document::read(&mut said, text);
    } else {
        table::read(&mut said, text);
    }
    said
}

/// The text without the byte order mark that spreadsheets put in front.
fn without_mark(text: &str) -> &str {
    text.strip_prefix('\u{feff}').unwrap_or(text)
}

#[cfg(test)]
mod tests;
