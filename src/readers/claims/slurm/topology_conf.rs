//! Slurm's `topology.conf`: blocks, or switches.
//!
//! What it includes is opened by the caller. `LinkSpeed` is read over: Slurm
//! itself makes no use of it. Since Slurm 25.05 a `topology.yaml` beside it
//! makes it void; whether there is one is not known here.

use super::blocks::Block;
use super::blocks::Blocks;
use super::entries::Entry;
use super::entries::Line;
use super::entries::entries;
use super::entries::lines;
use super::listed::Listed;
use super::listed::Spot;
use super::listed::some;
use super::listed::without_mark;
use super::tree::Switch;
use super::tree::Tree;
use crate::claims::reading::bounded;
use model::id::NodeName;
use model::said::Basis;
use model::said::ProblemKind;
use model::said::Said;
use model::said::SourceKind;

/// Includes in includes, and files in all, that are opened. Slurm has no use
/// for more than a few; a chain that names files by other paths ends here.
const DEEPEST: usize = 10;
const MOST_FILES: usize = 100;

/// So much of a strange word is shown.
const SHOWN: usize = 80;

/// Keys that begin a line of this file.
const FIRST: [&str; 4] = ["SwitchName", "BlockName", "BlockSizes", "RingName"];

/// Keys that only the controller's answer has (`scontrol show topology`).
const ANSWERED: [&str; 4] = ["BlockIndex", "BlockSize", "Level", "RingSize"];

/// Whether a text looks like one, also where all its lines are commented out.
pub fn recognises(text: &str) -> bool {
    let begins = |text: &str| {
        let (found, _) = entries(text);
        let first = found.first().is_some_and(|entry| FIRST.iter().any(|key| entry.is(key)));
        let answered = found.iter().any(|entry| ANSWERED.iter().any(|key| entry.is(key)));
        (first, answered)
    };
    let mut found = false;
    for line in lines(without_mark(text)) {
        let (first, answered) = if line.is_blank() {
            begins(line.comment.as_deref().unwrap_or_default())
        } else {
            begins(line.text())
        };
        if answered || (!first && !line.is_blank() && included(&line).is_none()) {
            return false;
        }
        found |= first;
    }
    found
}

/// Opens a file that an `Include` names, or says why not.
pub type Open<'o> = dyn FnMut(&str) -> Result<String, String> + 'o;

/// Reads it. `place` is its name in messages, `include` opens what it includes.
pub fn read(place: &str, text: &str, include: &mut Open<'_>) -> Said {
    let mut reader = Reader {
        said: Said::nothing(SourceKind::SlurmTopologyConf, place),
        listed: Listed::new(),
        blocks: Vec::new(),
        switches: Vec::new(),
        rings: Vec::new(),
        commented: Vec::new(),
        sizes: Vec::new(),
        sizes_at: None,
        guids: None,
        open: vec![place.to_owned()],
        files: 1,
    };
    reader.file(place, text, include);
    bounded(reader.finish())
}

/// The file that a line includes, and where its name stands.
fn included(line: &Line) -> Option<(usize, &str)> {
    let text = line.text();
    let start = text.len() - text.trim_start().len();
    let (word, rest) = text[start..].split_once(char::is_whitespace)?;
    let file = rest.trim();
    let offset = text.len() - rest.trim_start().len();
    (word.eq_ignore_ascii_case("Include") && !file.is_empty() && !file.starts_with('='))
        .then_some((offset, file))
}

struct Reader {
    said: Said,
    listed: Listed,
    blocks: Vec<Block>,
    switches: Vec<Switch>,
    rings: Vec<String>,
    /// Blocks and switches that are commented out, with their places.
    commented: Vec<String>,
    sizes: Vec<u32>,
    sizes_at: Option<String>,
    /// Where ports stand by their GUIDs instead of nodes.
    guids: Option<String>,
    /// The files that are being read, outermost first.
    open: Vec<String>,
    files: usize,
}

impl Reader {
    fn file(&mut self, place: &str, text: &str, include: &mut Open<'_>) {
        let mut above: Option<Origin> = None;
        for line in lines(without_mark(text)) {
            if line.is_blank() {
                above = match &line.comment {
                    Some(comment) if !self.was_a_line(place, &line, comment) => {
                        origin(comment).or(above)
                    }
                    _ => None,
                };
                continue;
            }
            let origin = above.take();
            if let Some((offset, file)) = included(&line) {
                let (number, column) = line.place(offset);
                let at = Spot::at(place, number, column).to_string();
                self.include(at, file, include);
                continue;
            }
            self.line(place, &line, origin.as_ref());
        }
    }

    /// Whether a comment is a block or switch that somebody took out.
    fn was_a_line(&mut self, place: &str, line: &Line, comment: &str) -> bool {
        let (found, _) = entries(comment);
        let taken_out =
            found.first().filter(|entry| entry.is("BlockName") || entry.is("SwitchName"));
        if let Some(entry) = taken_out {
            self.commented.push(format!("{} ({place}:{})", entry.value, line.number()));
        }
        taken_out.is_some()
    }

    fn include(&mut self, at: String, file: &str, include: &mut Open<'_>) {
        if self.open.iter().any(|open| open == file) {
            let message = format!("{file} includes itself: {}", self.open.join(" includes "));
            self.said.trouble(ProblemKind::Contradictory, at, message);
        } else if DEEPEST < self.open.len() || MOST_FILES <= self.files {
            let message = format!(
                "{file} is not opened: more than {DEEPEST} includes inside each other, or \
                 {MOST_FILES} files in all"
            );
            self.said.trouble(ProblemKind::Unsupported, at, message);
        } else {
            self.files += 1;
            match include(file) {
                Ok(text) => {
                    self.open.push(file.to_owned());
                    self.file(file, &text, include);
                    self.open.pop();
                }
                Err(why) => {
                    let message = format!("{file} cannot be included: {why}");
                    self.said.trouble(ProblemKind::Missing, at, message);
                }
            }
        }
    }

    fn line(&mut self, place: &str, line: &Line, origin: Option<&Origin>) {
        let spot = |offset: usize| {
            let (line, column) = line.place(offset);
            Spot::at(place, line, column)
        };
        let (found, strange) = entries(line.text());
        // One remark a line: counting columns again and again takes long where
        // somebody made a book of one line.
        if let Some((offset, word)) = strange.first() {
            let word: String = word.chars().take(SHOWN).collect();
            let message = format!("{word:?} is no Key=Value");
            self.said.trouble(ProblemKind::Malformed, spot(*offset).to_string(), message);
        }
        let Some(first) = found.first() else { return };
        let at = spot(first.offset).to_string();
        let rest = &found[1..];
        let known: &[&str] = if first.is("SwitchName") {
            self.switch(first.value, &at, rest, spot);
            &["Nodes", "Switches", "LinkSpeed"]
        } else if first.is("BlockName") {
            self.block(first.value, &at, rest, spot, origin);
            &["Nodes"]
        } else if first.is("BlockSizes") {
            self.sizes(first, &at);
            &[]
        } else if first.is("RingName") {
            self.rings.push(first.value.to_owned());
            &["Nodes"]
        } else {
            let message = format!(
                "{} is no key of topology.conf; expected SwitchName, BlockName or BlockSizes",
                first.key
            );
            self.said.trouble(ProblemKind::Unsupported, at, message);
            return;
        };
        let is_known = |entry: &&Entry<'_>| known.iter().any(|key| entry.is(key));
        if let Some(entry) = rest.iter().find(|entry| !is_known(entry)) {
            let message = format!("{} is not known beside {}", entry.key, first.key);
            let at = spot(entry.offset).to_string();
            self.said.trouble(ProblemKind::Unsupported, at, message);
        }
    }

    fn block<'p>(
        &mut self,
        name: &str,
        at: &str,
        rest: &[Entry<'_>],
        spot: impl Fn(usize) -> Spot<'p>,
        origin: Option<&Origin>,
    ) {
        if name.is_empty() {
            self.said.trouble(ProblemKind::Malformed, at.to_owned(), "a block without a name");
            return;
        }
        let nodes = match rest.iter().find(|entry| entry.is("Nodes")) {
            Some(entry) => self.listed.nodes(&mut self.said, spot(entry.offset), entry.value),
            None => Some(Vec::new()),
        };
        self.blocks.push(Block {
            name: name.to_owned(),
            nodes,
            size: None,
            basis: origin.map_or(Basis::Asserted, |origin| origin.basis_of(name)),
            at: at.to_owned(),
        });
    }

    fn switch<'p>(
        &mut self,
        name: &str,
        at: &str,
        rest: &[Entry<'_>],
        spot: impl Fn(usize) -> Spot<'p>,
    ) {
        if name.is_empty() {
            self.said.trouble(ProblemKind::Malformed, at.to_owned(), "a switch without a name");
            return;
        }
        let find = |key: &str| rest.iter().find(|entry| entry.is(key));
        let mut nodes = match find("Nodes") {
            Some(entry) => self.listed.nodes(&mut self.said, spot(entry.offset), entry.value),
            None => Some(Vec::new()),
        };
        if nodes.as_ref().is_some_and(|nodes| !nodes.is_empty() && nodes.iter().all(is_guid)) {
            self.guids.get_or_insert_with(|| at.to_owned());
            nodes = None;
        }
        let below = match find("Switches") {
            Some(entry) => self.listed.names(&mut self.said, spot(entry.offset), entry.value),
            None => Some(Vec::new()),
        };
        if find("Nodes").is_some() && find("Switches").is_some() {
            let message = format!("switch {name} has both nodes and switches; Slurm refuses that");
            self.said.trouble(ProblemKind::Contradictory, at.to_owned(), message);
        }
        self.switches.push(Switch { name: name.to_owned(), nodes, below, at: at.to_owned() });
    }

    fn sizes(&mut self, entry: &Entry<'_>, at: &str) {
        if self.sizes_at.is_some() {
            let message = "BlockSizes are given twice; the first are used";
            self.said.trouble(ProblemKind::Contradictory, at.to_owned(), message);
            return;
        }
        self.sizes_at = Some(at.to_owned());
        match entry.value.split(',').map(|size| size.trim().parse()).collect() {
            Ok(sizes) => self.sizes = sizes,
            Err(_) => {
                let message = format!("BlockSizes {:?}: expected numbers of nodes", entry.value);
                self.said.trouble(ProblemKind::Malformed, at.to_owned(), message);
            }
        }
    }

    fn finish(mut self) -> Said {
        let mut said = self.said;
        if !self.rings.is_empty() {
            said.notes.push(format!(
                "rings are not read: {}",
                some(self.rings.iter().map(String::as_str))
            ));
        }
        let commented = some(self.commented.iter().map(String::as_str));
        if self.blocks.is_empty() && self.switches.is_empty() {
            if !self.commented.is_empty() {
                let message =
                    format!("no block or switch is defined: all are commented out: {commented}");
                said.trouble(ProblemKind::Incomplete, None, message);
            } else if self.rings.is_empty() {
                let message = "no block or switch is defined";
                said.trouble(ProblemKind::Incomplete, self.sizes_at.take(), message);
            }
            return said;
        }
        if !self.commented.is_empty() {
            said.notes.push(format!("commented out: {commented}"));
        }
        if !self.blocks.is_empty() && !self.switches.is_empty() {
            said.notes.push(
                "both blocks and switches are defined; TopologyPlugin says which are used"
                    .to_owned(),
            );
        }
        if !self.blocks.is_empty() || self.sizes_at.is_some() {
            let sizes_at = self.sizes_at.take();
            Blocks { topology: None, in_force: true, sizes: self.sizes, sizes_at }
                .say(&mut said, self.blocks);
        }
        if let Some(at) = self.guids {
            let message = "the switches name GUIDs of ports (as written for SHARP), not nodes: \
                           which nodes share a leaf cannot be told";
            said.trouble(ProblemKind::Unsupported, at, message);
        } else if !self.switches.is_empty() {
            Tree { topology: None, in_force: true }.say(&mut said, self.switches);
        }
        said
    }
}

/// `0x155dfffd33ff7d`: a port GUID, which has up to 64 bits. Node names that
/// begin with `0x` are shorter than eight digits, if there are any.
fn is_guid(node: &NodeName) -> bool {
    node.as_str().strip_prefix("0x").is_some_and(|digits| {
        (8..=16).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_hexdigit())
    })
}

/// Whom a block was taken from, as a comment right above it says.
struct Origin {
    /// The block it speaks of, where it names one.
    block: Option<String>,
    from: String,
}

impl Origin {
    fn basis_of(&self, block: &str) -> Basis {
        if self.block.as_deref().is_none_or(|name| name == block) {
            Basis::Copied { from: self.from.clone() }
        } else {
            Basis::Asserted
        }
    }
}

/// What a comment says of the block below it: topograph writes `block=clique`,
/// azslurm the ClusterUUID.
fn origin(comment: &str) -> Option<Origin> {
    let comment = comment.trim();
    if let Some((what, value)) = comment.split_once(": ")
        && what.to_ascii_lowercase().contains("clusteruuid")
    {
        let from = format!("ClusterUUID {}, by a comment", value.trim());
        return Some(Origin { block: None, from });
    }
    let (name, value) = comment.split_once('=')?;
    let is_word = |text: &str| !text.is_empty() && !text.contains(char::is_whitespace);
    (is_word(name) && is_word(value))
        .then(|| Origin { block: Some(name.to_owned()), from: format!("{value}, by a comment") })
}

#[cfg(test)]
#[path = "topology_conf_tests.rs"]
mod tests;
