//! A `cli_filter.lua` for Slurm: advises users on `--segment`, or refuses what no
//! block can hold, by the capacity that was measured.
//!
//! Two numbers per block: nodes that were verified, and nodes that are not known to
//! be bad. Advice is by the first, a refusal only by the second: that a node was not
//! measured must stop nobody's job.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::{ExportFile, ExportOptions, ExportOutput, ExportRefusal, ExportTarget, refuse};
use crate::place::map::VerifiedMap;
use model::verdict::Outcome;

/// `--to slurm-cli-filter`.
pub(super) const TARGET: ExportTarget = ExportTarget {
    name: "slurm-cli-filter",
    about: "a cli_filter.lua for Slurm that advises on --segment, or enforces it",
    takes: &["mode"],
    write,
};

/// The part that is the same for every run. Lua 5.1 to 5.4: Debian builds Slurm with
/// 5.1, and nothing here is newer.
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
            "no domain of this run has two nodes or more: segments are parts of domains that span nodes",
        );
    }
    let mut remarks = Vec::new();
    if blocks.values().all(|(verified, _)| *verified == 0) {
        remarks.push("the run verified no node: the filter advises by what is possible".to_owned());
    }
    let mode = if options.enforce { "enforce" } else { "advise" };
    let mut text = map.comment_lines("--");
    text.push('\n');
    let _ = writeln!(text, "local MODE = {}", quote_lua(mode));
    let _ = writeln!(text, "local RUN = {}", quote_lua(&map.run.id));
    text.push_str(
        "-- verified: measured, and as it must be; possible: nothing is known against it.\n",
    );
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

/// A string as every Lua reads it: what is no plain character in decimal.
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
