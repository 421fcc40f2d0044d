//! Text that users leave around an output: command lines, and marks where they cut.
//!
//! This module reads no results.

use crate::outputs::text::OutputLine;

/// The options on a command line that runs nvbandwidth; `None` for any other line that mentions it.
pub(super) fn parse_command_options(text: &str) -> Option<Vec<&str>> {
    let is_program = |word: &str| word.rsplit('/').next() == Some("nvbandwidth");
    let mut words = text.split_whitespace().skip_while(|word| !is_program(word));
    let program = words.next()?;
    let options: Vec<&str> = words.collect();
    let is_command =
        program.contains('/') || text.starts_with(['$', '#', '>']) || text.contains("$ ");
    let are_options = options.first().is_none_or(|option| option.starts_with('-'))
        && options.iter().all(|option| option.bytes().all(|b| b.is_ascii_graphic()));
    (is_command && are_options).then_some(options)
}

/// Whether a user cut text out here, beyond a bare ellipsis.
pub(super) fn is_elision_mark(line: &OutputLine<'_>, text: &str) -> bool {
    if line.is_elision() {
        return true;
    }
    let inner = text.trim_start_matches(['#', '/', '-', '*', ' ']);
    let inner = inner.trim_start_matches(['[', '(', '<', '{']);
    inner.starts_with("...")
        || inner.starts_with('…')
        || ["snip", "truncated", "output truncated", "omitted", "output omitted"]
            .iter()
            .any(|word| inner.len() < 60 && inner.to_ascii_lowercase().starts_with(word))
}
