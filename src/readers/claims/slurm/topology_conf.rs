//! Slurm's `topology.conf`: blocks, or switches.
//!
//! The caller opens included files. `LinkSpeed` is ignored, as in Slurm itself. Since Slurm 25.05
//! a `topology.yaml` in the same folder overrides it; its existence is not known here.

use super::blocks::{SlurmBlock, SlurmBlockTopology};
use super::host_list_budget::{HostListBudget, SlurmTextPosition, list_some, strip_bom};
use super::key_value::{ConfigLine, KeyValueEntry, parse_entries, read_lines};
use super::switch_tree::{SlurmSwitch, SlurmSwitchTree};
use crate::claims::reader_util::limit_notes;
use model::id::NodeName;
use model::source_report::{ClaimBasis, SourceKind, SourceProblemKind, SourceReport};

/// Limits for nested includes, and for included files in total. Slurm needs only a few; a cycle
/// through different paths ends here.
const MAX_INCLUDE_DEPTH: usize = 10;
const MAX_FILES: usize = 100;

/// The longest excerpt of an unknown word in messages, in characters.
const MAX_SHOWN: usize = 80;

/// Keys at the start of a line of this file.
const LINE_KEYS: [&str; 4] = ["SwitchName", "BlockName", "BlockSizes", "RingName"];

/// Keys that only the controller's answer contains (`scontrol show topology`).
const CONTROLLER_KEYS: [&str; 4] = ["BlockIndex", "BlockSize", "Level", "RingSize"];

/// Whether a text is a `topology.conf`, even if all its lines are commented out.
pub fn recognises(text: &str) -> bool {
    let begins = |text: &str| {
        let (found, _) = parse_entries(text);
        let first =
            found.first().is_some_and(|entry| LINE_KEYS.iter().any(|key| entry.has_key(key)));
        let is_answer =
            found.iter().any(|entry| CONTROLLER_KEYS.iter().any(|key| entry.has_key(key)));
        (first, is_answer)
    };
    let mut found = false;
    for line in read_lines(strip_bom(text)) {
        let (first, is_answer) = if line.is_blank() {
            begins(line.comment.as_deref().unwrap_or_default())
        } else {
            begins(line.text())
        };
        if is_answer || (!first && !line.is_blank() && parse_include(&line).is_none()) {
            return false;
        }
        found |= first;
    }
    found
}

/// Opens a file named by an `Include`; the error is the reason why it cannot.
pub type IncludeOpener<'o> = dyn FnMut(&str) -> Result<String, String> + 'o;

/// Parses the file. `place` is its name in messages, `include` opens included files.
pub fn read(place: &str, text: &str, include: &mut IncludeOpener<'_>) -> SourceReport {
    let mut reader = TopologyConfReader {
        report: SourceReport::new(SourceKind::SlurmTopologyConf, place),
        host_lists: HostListBudget::new(),
        blocks: Vec::new(),
        switches: Vec::new(),
        rings: Vec::new(),
        commented: Vec::new(),
        sizes: Vec::new(),
        sizes_at: None,
        guids: None,
        open_files: vec![place.to_owned()],
        files: 1,
    };
    reader.read_file(place, text, include);
    limit_notes(reader.finish())
}

/// The file that a line includes, and the position of its name.
fn parse_include(line: &ConfigLine) -> Option<(usize, &str)> {
    let text = line.text();
    let start = text.len() - text.trim_start().len();
    let (word, rest) = text[start..].split_once(char::is_whitespace)?;
    let file = rest.trim();
    let offset = text.len() - rest.trim_start().len();
    (word.eq_ignore_ascii_case("Include") && !file.is_empty() && !file.starts_with('='))
        .then_some((offset, file))
}

struct TopologyConfReader {
    report: SourceReport,
    host_lists: HostListBudget,
    blocks: Vec<SlurmBlock>,
    switches: Vec<SlurmSwitch>,
    rings: Vec<String>,
    /// Commented-out blocks and switches, with their locations.
    commented: Vec<String>,
    sizes: Vec<u32>,
    sizes_at: Option<String>,
    /// Location of ports given by GUID instead of nodes.
    guids: Option<String>,
    /// Open files, outermost first.
    open_files: Vec<String>,
    files: usize,
}

impl TopologyConfReader {
    fn read_file(&mut self, place: &str, text: &str, include: &mut IncludeOpener<'_>) {
        let mut above: Option<BlockOrigin> = None;
        for line in read_lines(strip_bom(text)) {
            if line.is_blank() {
                above = match &line.comment {
                    Some(comment) if !self.note_commented_entry(place, &line, comment) => {
                        parse_origin(comment).or(above)
                    }
                    _ => None,
                };
                continue;
            }
            let origin = above.take();
            if let Some((offset, file)) = parse_include(&line) {
                let (number, column) = line.position(offset);
                let at = SlurmTextPosition::new(place, number, column).to_string();
                self.read_include(at, file, include);
                continue;
            }
            self.read_line(place, &line, origin.as_ref());
        }
    }

    /// Records a comment that is a commented-out block or switch.
    fn note_commented_entry(&mut self, place: &str, line: &ConfigLine, comment: &str) -> bool {
        let (found, _) = parse_entries(comment);
        let taken_out =
            found.first().filter(|entry| entry.has_key("BlockName") || entry.has_key("SwitchName"));
        if let Some(entry) = taken_out {
            self.commented.push(format!("{} ({place}:{})", entry.value, line.line_number()));
        }
        taken_out.is_some()
    }

    fn read_include(&mut self, at: String, file: &str, include: &mut IncludeOpener<'_>) {
        if self.open_files.iter().any(|open| open == file) {
            let message = format!("{file} includes itself: {}", self.open_files.join(" includes "));
            self.report.push_problem(SourceProblemKind::Contradictory, at, message);
        } else if MAX_INCLUDE_DEPTH < self.open_files.len() || MAX_FILES <= self.files {
            let message = format!(
                "{file} is not opened: more than {MAX_INCLUDE_DEPTH} nested includes, or \
                 {MAX_FILES} files in total"
            );
            self.report.push_problem(SourceProblemKind::Unsupported, at, message);
        } else {
            self.files += 1;
            match include(file) {
                Ok(text) => {
                    self.open_files.push(file.to_owned());
                    self.read_file(file, &text, include);
                    self.open_files.pop();
                }
                Err(why) => {
                    let message = format!("{file} cannot be included: {why}");
                    self.report.push_problem(SourceProblemKind::Missing, at, message);
                }
            }
        }
    }

    fn read_line(&mut self, place: &str, line: &ConfigLine, origin: Option<&BlockOrigin>) {
        let spot = |offset: usize| {
            let (line, column) = line.position(offset);
            SlurmTextPosition::new(place, line, column)
        };
        let (found, strange) = parse_entries(line.text());
        // One remark per line: repeated column counting would be slow on an extremely long line.
        if let Some((offset, word)) = strange.first() {
            let word: String = word.chars().take(MAX_SHOWN).collect();
            let message = format!("{word:?} is not Key=Value");
            self.report.push_problem(
                SourceProblemKind::Malformed,
                spot(*offset).to_string(),
                message,
            );
        }
        let Some(first) = found.first() else { return };
        let at = spot(first.offset).to_string();
        let rest = &found[1..];
        let known: &[&str] = if first.has_key("SwitchName") {
            self.read_switch(first.value, &at, rest, spot);
            &["Nodes", "Switches", "LinkSpeed"]
        } else if first.has_key("BlockName") {
            self.read_block(first.value, &at, rest, spot, origin);
            &["Nodes"]
        } else if first.has_key("BlockSizes") {
            self.read_sizes(first, &at);
            &[]
        } else if first.has_key("RingName") {
            self.rings.push(first.value.to_owned());
            &["Nodes"]
        } else {
            let message = format!(
                "{} is not a key of topology.conf; expected SwitchName, BlockName or BlockSizes",
                first.key
            );
            self.report.push_problem(SourceProblemKind::Unsupported, at, message);
            return;
        };
        let is_known = |entry: &&KeyValueEntry<'_>| known.iter().any(|key| entry.has_key(key));
        if let Some(entry) = rest.iter().find(|entry| !is_known(entry)) {
            let message = format!("{} is unknown next to {}", entry.key, first.key);
            let at = spot(entry.offset).to_string();
            self.report.push_problem(SourceProblemKind::Unsupported, at, message);
        }
    }

    fn read_block<'p>(
        &mut self,
        name: &str,
        at: &str,
        rest: &[KeyValueEntry<'_>],
        spot: impl Fn(usize) -> SlurmTextPosition<'p>,
        origin: Option<&BlockOrigin>,
    ) {
        if name.is_empty() {
            self.report.push_problem(
                SourceProblemKind::Malformed,
                at.to_owned(),
                "a block without a name",
            );
            return;
        }
        let nodes = match rest.iter().find(|entry| entry.has_key("Nodes")) {
            Some(entry) => {
                self.host_lists.expand_nodes(&mut self.report, spot(entry.offset), entry.value)
            }
            None => Some(Vec::new()),
        };
        self.blocks.push(SlurmBlock {
            name: name.to_owned(),
            nodes,
            size: None,
            basis: origin.map_or(ClaimBasis::Asserted, |origin| origin.basis_of(name)),
            at: at.to_owned(),
        });
    }

    fn read_switch<'p>(
        &mut self,
        name: &str,
        at: &str,
        rest: &[KeyValueEntry<'_>],
        spot: impl Fn(usize) -> SlurmTextPosition<'p>,
    ) {
        if name.is_empty() {
            self.report.push_problem(
                SourceProblemKind::Malformed,
                at.to_owned(),
                "a switch without a name",
            );
            return;
        }
        let find = |key: &str| rest.iter().find(|entry| entry.has_key(key));
        let mut nodes = match find("Nodes") {
            Some(entry) => {
                self.host_lists.expand_nodes(&mut self.report, spot(entry.offset), entry.value)
            }
            None => Some(Vec::new()),
        };
        if nodes.as_ref().is_some_and(|nodes| !nodes.is_empty() && nodes.iter().all(is_port_guid)) {
            self.guids.get_or_insert_with(|| at.to_owned());
            nodes = None;
        }
        let below = match find("Switches") {
            Some(entry) => {
                self.host_lists.expand_names(&mut self.report, spot(entry.offset), entry.value)
            }
            None => Some(Vec::new()),
        };
        if find("Nodes").is_some() && find("Switches").is_some() {
            let message = format!("switch {name} has both nodes and switches; Slurm rejects that");
            self.report.push_problem(SourceProblemKind::Contradictory, at.to_owned(), message);
        }
        self.switches.push(SlurmSwitch { name: name.to_owned(), nodes, below, at: at.to_owned() });
    }

    fn read_sizes(&mut self, entry: &KeyValueEntry<'_>, at: &str) {
        if self.sizes_at.is_some() {
            let message = "BlockSizes is given twice; the first one is used";
            self.report.push_problem(SourceProblemKind::Contradictory, at.to_owned(), message);
            return;
        }
        self.sizes_at = Some(at.to_owned());
        match entry.value.split(',').map(|size| size.trim().parse()).collect() {
            Ok(sizes) => self.sizes = sizes,
            Err(_) => {
                let message = format!("BlockSizes {:?}: expected numbers of nodes", entry.value);
                self.report.push_problem(SourceProblemKind::Malformed, at.to_owned(), message);
            }
        }
    }

    fn finish(mut self) -> SourceReport {
        let mut report = self.report;
        if !self.rings.is_empty() {
            report.notes.push(format!(
                "rings are ignored: {}",
                list_some(self.rings.iter().map(String::as_str))
            ));
        }
        let commented = list_some(self.commented.iter().map(String::as_str));
        if self.blocks.is_empty() && self.switches.is_empty() {
            if !self.commented.is_empty() {
                let message =
                    format!("no block or switch is defined: all are commented out: {commented}");
                report.push_problem(SourceProblemKind::Incomplete, None, message);
            } else if self.rings.is_empty() {
                let message = "no block or switch is defined";
                report.push_problem(SourceProblemKind::Incomplete, self.sizes_at.take(), message);
            }
            return report;
        }
        if !self.commented.is_empty() {
            report.notes.push(format!("commented out: {commented}"));
        }
        if !self.blocks.is_empty() && !self.switches.is_empty() {
            report.notes.push(
                "both blocks and switches are defined; TopologyPlugin decides which are used"
                    .to_owned(),
            );
        }
        if !self.blocks.is_empty() || self.sizes_at.is_some() {
            let sizes_at = self.sizes_at.take();
            SlurmBlockTopology { topology: None, in_force: true, sizes: self.sizes, sizes_at }
                .add_to_report(&mut report, self.blocks);
        }
        if let Some(at) = self.guids {
            let message = "the switches list port GUIDs (as written for SHARP), not nodes: the \
                           nodes of a leaf are unknown";
            report.push_problem(SourceProblemKind::Unsupported, at, message);
        } else if !self.switches.is_empty() {
            SlurmSwitchTree { topology: None, in_force: true }
                .add_to_report(&mut report, self.switches);
        }
        report
    }
}

/// `0x155dfffd33ff7d`: a port GUID, which has up to 64 bits. Node names that begin with `0x`, if
/// any, are shorter than eight digits.
fn is_port_guid(node: &NodeName) -> bool {
    node.as_str().strip_prefix("0x").is_some_and(|digits| {
        (8..=16).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_hexdigit())
    })
}

/// The origin of a block, from a comment directly above it.
struct BlockOrigin {
    /// The block named in the comment.
    block: Option<String>,
    from: String,
}

impl BlockOrigin {
    fn basis_of(&self, block: &str) -> ClaimBasis {
        if self.block.as_deref().is_none_or(|name| name == block) {
            ClaimBasis::Copied { from: self.from.clone() }
        } else {
            ClaimBasis::Asserted
        }
    }
}

/// Parses a comment about the block below it: topograph writes `block=clique`, azslurm the
/// ClusterUUID.
fn parse_origin(comment: &str) -> Option<BlockOrigin> {
    let comment = comment.trim();
    if let Some((what, value)) = comment.split_once(": ")
        && what.to_ascii_lowercase().contains("clusteruuid")
    {
        let from = format!("ClusterUUID {}, according to a comment", value.trim());
        return Some(BlockOrigin { block: None, from });
    }
    let (name, value) = comment.split_once('=')?;
    let is_word = |text: &str| !text.is_empty() && !text.contains(char::is_whitespace);
    (is_word(name) && is_word(value)).then(|| BlockOrigin {
        block: Some(name.to_owned()),
        from: format!("{value}, according to a comment"),
    })
}

#[cfg(test)]
#[path = "topology_conf_tests.rs"]
mod tests;
