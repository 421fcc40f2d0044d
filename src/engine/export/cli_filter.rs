//! A `cli_filter.lua` for Slurm: advises users on `--segment`, or refuses segments that no block
//! can hold, based on measured capacity.
//!
//! It has two numbers per block: verified nodes, and nodes that are not known to be bad. Advice
//! uses the first, a refusal only the second: a missing measurement must not stop a job.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::{ExportFile, ExportOptions, ExportOutput, ExportRefusal, ExportTarget, refuse};
use crate::place::map::VerifiedMap;
use model::verdict::Outcome;

pub(super) const TARGET: ExportTarget = ExportTarget {
    name: "slurm-cli-filter",
    about: "a cli_filter.lua for Slurm that advises on --segment, or enforces it",
    takes: &["mode"],
    write,
};

/// The constant part of the script. Lua 5.1 to 5.4: Debian builds Slurm with 5.1, so the script
/// uses nothing newer.
const SCRIPT: &str = include_str!("cli_filter.lua");

fn write(map: &VerifiedMap, options: &ExportOptions) -> Result<ExportOutput, ExportRefusal> {
    let mut blocks: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
    for domain in map.domains.iter().filter(|domain| 1 < domain.nodes().len()) {
        let members = domain.nodes();
        let members = || members.iter().filter_map(|node| Some((*node, map.members.get(*node)?)));
        let verified =
            members().filter(|(node, it)| it.is_verified() && domain.measured.contains(*node));
        let possible = members().filter(|(_, it)| it.outcome < Outcome::Degraded);
        blocks.insert(&domain.name, (verified.count(), possible.count()));
    }
    if blocks.is_empty() {
        return refuse(
            "no domain of this run has two nodes or more: segments are parts of domains that span \
             nodes",
        );
    }
    let mut remarks = Vec::new();
    if blocks.values().all(|(verified, _)| *verified == 0) {
        remarks.push(
            "the run verified no node: the filter advises by the possible capacity".to_owned(),
        );
    }
    let mode = if options.enforce { "enforce" } else { "advise" };
    let mut text = map.comment_lines("--");
    text.push('\n');
    let _ = writeln!(text, "local MODE = {}", quote_lua(mode));
    let _ = writeln!(text, "local RUN = {}", quote_lua(&map.run.id));
    text.push_str("-- verified: measured and as expected; possible: no known fault.\n");
    text.push_str("local BLOCKS = {\n");
    for (name, (verified, possible)) in blocks {
        let _ = writeln!(
            text,
            "  {{ name = {}, verified = {verified}, possible = {possible} }},",
            quote_lua(name)
        );
    }
    text.push_str("}\n\n");
    text.push_str(SCRIPT);
    Ok(ExportOutput { files: vec![ExportFile::text("cli_filter.lua", text)], remarks })
}

/// Quotes a string for every Lua version: escapes all but plain characters as decimals.
fn quote_lua(text: &str) -> String {
    let mut word = "\"".to_owned();
    for byte in text.bytes() {
        match byte {
            b'"' | b'\\' => {
                word.push('\\');
                word.push(char::from(byte));
            }
            b' '..=b'~' => word.push(char::from(byte)),
            _ => {
                let _ = write!(word, "\\{byte:03}");
            }
        }
    }
    word.push('"');
    word
}
