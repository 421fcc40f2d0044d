//! What `scontrol show topology` prints, from 23.11 (no block sizes) to 26.05
//! (aggregated blocks).
//!
//! It exits with 0 on every error and then prints nothing, so an empty answer
//! is never an empty topology.

use std::collections::BTreeSet;

use super::blocks::BLOCK_SIZES;
use super::blocks::Block;
use super::blocks::Blocks;
use super::entries::Entry;
use super::entries::entries;
use super::listed::Listed;
use super::listed::Spot;
use super::listed::some;
use super::listed::without_mark;
use super::tree::Switch;
use super::tree::Tree;
use crate::claims::reading::bounded;
use crate::claims::reading::plain;
use model::said::Basis;
use model::said::ProblemKind;
use model::said::Said;
use model::said::SourceKind;

/// Whether a text looks like one.
pub fn recognises(text: &str) -> bool {
    let Some(line) = without_mark(text).lines().find(|line| !line.trim().is_empty()) else {
        return false;
    };
    let (found, _) = entries(line);
    let begins = |key: &str| found.first().is_some_and(|entry| entry.is(key));
    let has = |key: &str| found.iter().any(|entry| entry.is(key));
    (begins("BlockName") && has("BlockIndex"))
        || (begins("AggregatedBlock") && has("BlockIndex"))
        || (begins("SwitchName") && has("Level"))
        || (begins("RingName") && has("RingSize"))
}

/// Reads it. `place` is its name in messages.
pub fn read(place: &str, text: &str) -> Said {
    let mut said = Said::nothing(SourceKind::SlurmTopology, place);
    let mut listed = Listed::new();
    let mut blocks = Vec::new();
    let mut switches = Vec::new();
    let mut aggregates = Vec::new();
    let mut sizes = BTreeSet::new();
    let mut others = Vec::new();
    for (index, line) in without_mark(text).lines().enumerate() {
        if line.trim().is_empty() {
            continue;
        }
        let (found, _) = entries(line);
        let spot = |offset: usize| {
            let column = line.get(..offset).map_or(0, |text| text.chars().count()) + 1;
            Spot::at(place, index + 1, column)
        };
        let find = |key: &str| found.iter().find(|entry| entry.is(key));
        let Some(first) = found.first() else {
            complain(&mut said, spot(0), line);
            continue;
        };
        let name = first.value.to_owned();
        let at = spot(0).to_string();
        if first.is("AggregatedBlock") {
            aggregates.push(name);
            sizes.extend(find("BlockSize").and_then(|entry| entry.value.parse::<u32>().ok()));
        } else if first.is("BlockName") {
            let nodes = nodes_of(find("Nodes"), |entry| {
                listed.nodes(&mut said, spot(entry.offset), entry.value)
            });
            let size = find("BlockSize").and_then(|entry| entry.value.parse().ok());
            blocks.push(Block { name, nodes, size, basis: Basis::Asserted, at });
        } else if first.is("SwitchName") {
            // Nodes of a switch above leaves are those below it, said again.
            let below = nodes_of(find("Switches"), |entry| {
                listed.names(&mut said, spot(entry.offset), entry.value)
            });
            let nodes = nodes_of(find("Nodes"), |entry| {
                listed.nodes(&mut said, spot(entry.offset), entry.value)
            });
            switches.push(Switch { name, nodes, below, at });
        } else if first.key.ends_with("Name") {
            others.push(format!("{} {name}", first.key.trim_end_matches("Name")));
        } else {
            complain(&mut said, spot(0), line);
        }
    }
    if blocks.is_empty() && switches.is_empty() && others.is_empty() {
        let message = "it holds neither blocks nor switches: the topology is flat, or the \
                       controller did not answer (which scontrol does not tell by its exit code)";
        said.trouble(ProblemKind::Incomplete, None, message);
        return bounded(said);
    }
    if !aggregates.is_empty() {
        said.notes.push(format!(
            "aggregates of blocks are no domains: {}",
            some(aggregates.iter().map(String::as_str))
        ));
    }
    if !others.is_empty() {
        said.notes.push(format!("not read: {}", some(others.iter().map(String::as_str))));
    }
    // From 24.11 on: base blocks have one size, and levels show by their aggregates.
    let bases: BTreeSet<Option<u32>> = blocks.iter().map(|block| block.size).collect();
    if let Some(Some(base)) = bases.first().filter(|_| bases.len() == 1) {
        let above = sizes.iter().filter(|size| *base < **size);
        let sizes: Vec<String> = std::iter::once(base).chain(above).map(u32::to_string).collect();
        said.settings.insert(BLOCK_SIZES.to_owned(), sizes.join(","));
    }
    if !blocks.is_empty() {
        Blocks { topology: None, in_force: true, sizes: Vec::new(), sizes_at: None }
            .say(&mut said, blocks);
    }
    if !switches.is_empty() {
        Tree { topology: None, in_force: true }.say(&mut said, switches);
    }
    bounded(said)
}

/// What a list holds: nothing where there is no list.
fn nodes_of<'e, 'l, T>(
    entry: Option<&'e Entry<'l>>,
    list: impl FnOnce(&'e Entry<'l>) -> Option<Vec<T>>,
) -> Option<Vec<T>> {
    entry.map_or_else(|| Some(Vec::new()), list)
}

/// A line that is no part of such an answer. `Unable to contact slurm
/// controller` and the like go to the error output, which may be mixed in.
fn complain(said: &mut Said, spot: Spot<'_>, line: &str) {
    let words = line.to_ascii_lowercase();
    let kind = if words.contains("unable to contact") || words.contains("timed out") {
        ProblemKind::Unreachable
    } else if words.contains("error")
        || words.contains("contains no")
        || words.contains("not available")
    {
        ProblemKind::Incomplete
    } else {
        ProblemKind::Malformed
    };
    said.trouble(kind, spot.to_string(), format!("no line of a topology: {}", plain(line)));
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::hostlist;
    use model::id::NodeName;
    use model::said::GroupKind;

    fn told(said: &Said) -> Vec<String> {
        let line = |g: &model::said::Group| {
            let nodes = hostlist::fold(g.nodes.iter().map(NodeName::as_str));
            format!("{:?} {} {nodes} {:?}", g.kind, g.name, g.size)
        };
        said.groups.iter().map(line).collect()
    }

    #[test]
    fn blocks_of_every_version_are_read_and_aggregates_are_no_domains() {
        let text = "BlockName=a BlockIndex=0 Nodes=n[01-18] BlockSize=18\n\
                    BlockName=b BlockIndex=1 Nodes=n[19-36] BlockSize=18\n\
                    BlockName=spare BlockIndex=2 BlockSize=18\n\
                    BlockName=other BlockIndex=3 Nodes= BlockSize=18\n\
                    AggregatedBlock=[a,b] BlockIndex=4 Nodes=n[01-36] BlockSize=36\n";
        assert!(recognises(text));
        let said = read("scontrol", text);
        assert_eq!(
            told(&said),
            [
                "Domain a n[01-18] Some(18)",
                "Domain b n[19-36] Some(18)",
                "Domain spare  Some(18)",
                "Domain other  Some(18)",
            ]
        );
        assert!(said.problems.is_empty(), "{:?}", said.problems);
        assert_eq!(said.settings.get(BLOCK_SIZES).map(String::as_str), Some("18,36"));
        assert_eq!(said.groups[2].at.as_deref(), Some("scontrol:3:1"));
        let old = read("scontrol", "BlockName=a BlockIndex=0 Nodes=n[1-2]");
        assert_eq!(told(&old), ["Domain a n[1-2] None"]);
        assert_eq!(old.settings.get(BLOCK_SIZES), None);
    }

    #[test]
    fn a_tree_is_read_and_upper_switches_say_their_nodes_again() {
        let text = "SwitchName=l1 Level=0 LinkSpeed=1 Nodes=n[1-2]\n\
                    SwitchName=l2 Level=0 LinkSpeed=1 Nodes=n3\n\
                    SwitchName=top Level=1 LinkSpeed=1 Nodes=n[1-3] Switches=l[1-2]\n";
        assert!(recognises(text));
        let said = read("scontrol", text);
        assert_eq!(
            told(&said),
            ["Leaf l1 n[1-2] None", "Leaf l2 n3 None", "Switch top n[1-3] None"]
        );
        assert!(said.problems.is_empty() && said.notes.is_empty(), "{said:?}");
    }

    #[test]
    fn an_empty_answer_is_incomplete_whatever_the_exit_code_was() {
        for text in ["", "\n \n", "AggregatedBlock=x BlockIndex=0\n"] {
            let said = read("scontrol", text);
            assert_eq!(said.problems[0].kind, ProblemKind::Incomplete, "{text:?}");
        }
        let said = read("scontrol", "slurm_load_topo error: Unable to contact slurm controller\n");
        assert_eq!(said.problems[0].kind, ProblemKind::Unreachable);
    }

    #[test]
    fn rings_are_named_and_a_bad_list_costs_only_its_block() {
        let text = "RingName=r Nodes=n[1-4] RingSize=4\n";
        assert!(recognises(text));
        assert_eq!(read("scontrol", text).notes, ["not read: Ring r"]);
        let said = read(
            "scontrol",
            "BlockName=a BlockIndex=0 Nodes=n[1 BlockSize=2\nBlockName=b BlockIndex=1 Nodes=n2\n",
        );
        assert_eq!(told(&said), ["Domain b n2 None"]);
        assert_eq!(said.problems[0].at.as_deref(), Some("scontrol:1:33"));
        assert_eq!(said.groups[0].kind, GroupKind::Domain);
    }
}
