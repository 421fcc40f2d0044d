//! What our own copy-engine probe measured, as tables for people.

use std::fmt::Write as _;

use super::plain::plain;
use crate::model::copy::CopyDocument;

/// The whole account.
pub fn text(document: &CopyDocument) -> String {
    let mut text = format!("{}\n", plain(&document.node));
    for problem in &document.problems {
        let _ = writeln!(text, "  {}: {}", plain(&problem.class), plain(&problem.detail));
    }
    text
}
