//! The output of `scontrol show topology`, from 23.11 (no block sizes) to 26.05 (aggregated
//! blocks).
//!
//! On every error it exits with 0 and prints nothing, so an empty output never means an empty
//! topology.

use std::collections::BTreeSet;

use super::blocks::{BLOCK_SIZES, SlurmBlock, SlurmBlockTopology};
use super::host_list_budget::{HostListBudget, SlurmTextPosition, list_some, strip_bom};
use super::key_value::{KeyValueEntry, parse_entries};
use super::switch_tree::{SlurmSwitch, SlurmSwitchTree};
use crate::claims::reader_util::{limit_notes, sanitize_text};
use model::source_report::{ClaimBasis, SourceKind, SourceProblemKind, SourceReport};

/// Whether a text is the output of `scontrol show topology`.
pub fn recognises(text: &str) -> bool {
    let Some(line) = strip_bom(text).lines().find(|line| !line.trim().is_empty()) else {
        return false;
    };
    let (found, _) = parse_entries(line);
    let begins = |key: &str| found.first().is_some_and(|entry| entry.has_key(key));
    let has = |key: &str| found.iter().any(|entry| entry.has_key(key));
    (begins("BlockName") && has("BlockIndex"))
        || (begins("AggregatedBlock") && has("BlockIndex"))
        || (begins("SwitchName") && has("Level"))
        || (begins("RingName") && has("RingSize"))
}

/// Parses the output. `place` is its name in messages.
pub fn read(place: &str, text: &str) -> SourceReport {
    let mut report = SourceReport::new(SourceKind::SlurmTopology, place);
    let mut listed = HostListBudget::new();
    let mut blocks = Vec::new();
    let mut switches = Vec::new();
    let mut aggregates = Vec::new();
    let mut sizes = BTreeSet::new();
    let mut others = Vec::new();
    for (index, line) in strip_bom(text).lines().enumerate() {
        if line.trim().is_empty() {
            continue;
        }
        let (found, _) = parse_entries(line);
        let spot = |offset: usize| {
            let column = line.get(..offset).map_or(0, |text| text.chars().count()) + 1;
            SlurmTextPosition::new(place, index + 1, column)
        };
        let find = |key: &str| found.iter().find(|entry| entry.has_key(key));
        let Some(first) = found.first() else {
            report_unexpected_line(&mut report, spot(0), line);
            continue;
        };
        let name = first.value.to_owned();
        let at = spot(0).to_string();
        if first.has_key("AggregatedBlock") {
            aggregates.push(name);
            sizes.extend(find("BlockSize").and_then(|entry| entry.value.parse::<u32>().ok()));
        } else if first.has_key("BlockName") {
            let nodes = expand_list(find("Nodes"), |entry| {
                listed.expand_nodes(&mut report, spot(entry.offset), entry.value)
            });
            let size = find("BlockSize").and_then(|entry| entry.value.parse().ok());
            blocks.push(SlurmBlock { name, nodes, size, basis: ClaimBasis::Asserted, at });
        } else if first.has_key("SwitchName") {
            // The nodes of a switch above leaves repeat those below it.
            let below = expand_list(find("Switches"), |entry| {
                listed.expand_names(&mut report, spot(entry.offset), entry.value)
            });
            let nodes = expand_list(find("Nodes"), |entry| {
                listed.expand_nodes(&mut report, spot(entry.offset), entry.value)
            });
            switches.push(SlurmSwitch { name, nodes, below, at });
        } else if first.key.ends_with("Name") {
            others.push(format!("{} {name}", first.key.trim_end_matches("Name")));
        } else {
            report_unexpected_line(&mut report, spot(0), line);
        }
    }
    if blocks.is_empty() && switches.is_empty() && others.is_empty() {
        let message = "no blocks and no switches: the topology is flat, or the controller did \
                       not answer (scontrol does not signal it by its exit code)";
        report.push_problem(SourceProblemKind::Incomplete, None, message);
        return limit_notes(report);
    }
    if !aggregates.is_empty() {
        report.notes.push(format!(
            "aggregates of blocks are not domains: {}",
            list_some(aggregates.iter().map(String::as_str))
        ));
    }
    if !others.is_empty() {
        report.notes.push(format!("not read: {}", list_some(others.iter().map(String::as_str))));
    }
    // From 24.11 on: base blocks have one size, and aggregates reveal the levels.
    let bases: BTreeSet<Option<u32>> = blocks.iter().map(|block| block.size).collect();
    if let Some(Some(base)) = bases.first().filter(|_| bases.len() == 1) {
        let above = sizes.iter().filter(|size| *base < **size);
        let sizes: Vec<String> = std::iter::once(base).chain(above).map(u32::to_string).collect();
        report.settings.insert(BLOCK_SIZES.to_owned(), sizes.join(","));
    }
    if !blocks.is_empty() {
        SlurmBlockTopology { topology: None, in_force: true, sizes: Vec::new(), sizes_at: None }
            .add_to_report(&mut report, blocks);
    }
    if !switches.is_empty() {
        SlurmSwitchTree { topology: None, in_force: true }.add_to_report(&mut report, switches);
    }
    limit_notes(report)
}

/// The content of a list, or `None` without a list.
fn expand_list<'e, 'l, T>(
    entry: Option<&'e KeyValueEntry<'l>>,
    list: impl FnOnce(&'e KeyValueEntry<'l>) -> Option<Vec<T>>,
) -> Option<Vec<T>> {
    entry.map_or_else(|| Some(Vec::new()), list)
}

/// Reports an unexpected line. `Unable to contact slurm controller` and similar messages go to
/// standard error, which may be mixed in.
fn report_unexpected_line(report: &mut SourceReport, spot: SlurmTextPosition<'_>, line: &str) {
    let words = line.to_ascii_lowercase();
    let kind = if words.contains("unable to contact") || words.contains("timed out") {
        SourceProblemKind::Unreachable
    } else if words.contains("error")
        || words.contains("contains no")
        || words.contains("not available")
    {
        SourceProblemKind::Incomplete
    } else {
        SourceProblemKind::Malformed
    };
    report.push_problem(
        kind,
        spot.to_string(),
        format!("not a line of a topology: {}", sanitize_text(line)),
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::hostlist;
    use model::id::NodeName;
    use model::source_report::NodeGroupKind;

    fn group_lines(report: &SourceReport) -> Vec<String> {
        let line = |g: &model::source_report::NodeGroup| {
            let nodes = hostlist::fold(g.nodes.iter().map(NodeName::as_str));
            format!("{:?} {} {nodes} {:?}", g.kind, g.name, g.size)
        };
        report.groups.iter().map(line).collect()
    }

    #[test]
    fn blocks_of_every_version_are_read_and_aggregates_are_not_domains() {
        let text = "BlockName=a BlockIndex=0 Nodes=n[01-18] BlockSize=18\n\
                    BlockName=b BlockIndex=1 Nodes=n[19-36] BlockSize=18\n\
                    BlockName=spare BlockIndex=2 BlockSize=18\n\
                    BlockName=other BlockIndex=3 Nodes= BlockSize=18\n\
                    AggregatedBlock=[a,b] BlockIndex=4 Nodes=n[01-36] BlockSize=36\n";
        assert!(recognises(text));
        let report = read("scontrol", text);
        assert_eq!(
            group_lines(&report),
            [
                "Domain a n[01-18] Some(18)",
                "Domain b n[19-36] Some(18)",
                "Domain spare  Some(18)",
                "Domain other  Some(18)",
            ]
        );
        assert!(report.problems.is_empty(), "{:?}", report.problems);
        assert_eq!(report.settings.get(BLOCK_SIZES).map(String::as_str), Some("18,36"));
        assert_eq!(report.groups[2].at.as_deref(), Some("scontrol:3:1"));
        let old = read("scontrol", "BlockName=a BlockIndex=0 Nodes=n[1-2]");
        assert_eq!(group_lines(&old), ["Domain a n[1-2] None"]);
        assert_eq!(old.settings.get(BLOCK_SIZES), None);
    }

    #[test]
    fn a_tree_is_read_and_upper_switches_repeat_their_nodes() {
        let text = "SwitchName=l1 Level=0 LinkSpeed=1 Nodes=n[1-2]\n\
                    SwitchName=l2 Level=0 LinkSpeed=1 Nodes=n3\n\
                    SwitchName=top Level=1 LinkSpeed=1 Nodes=n[1-3] Switches=l[1-2]\n";
        assert!(recognises(text));
        let report = read("scontrol", text);
        assert_eq!(
            group_lines(&report),
            ["Leaf l1 n[1-2] None", "Leaf l2 n3 None", "Switch top n[1-3] None"]
        );
        assert!(report.problems.is_empty() && report.notes.is_empty(), "{report:?}");
    }

    #[test]
    fn an_empty_answer_is_incomplete_whatever_the_exit_code_was() {
        for text in ["", "\n \n", "AggregatedBlock=x BlockIndex=0\n"] {
            let report = read("scontrol", text);
            assert_eq!(report.problems[0].kind, SourceProblemKind::Incomplete, "{text:?}");
        }
        let report =
            read("scontrol", "slurm_load_topo error: Unable to contact slurm controller\n");
        assert_eq!(report.problems[0].kind, SourceProblemKind::Unreachable);
    }

    #[test]
    fn rings_are_named_and_a_bad_list_costs_only_its_block() {
        let text = "RingName=r Nodes=n[1-4] RingSize=4\n";
        assert!(recognises(text));
        assert_eq!(read("scontrol", text).notes, ["not read: Ring r"]);
        let report = read(
            "scontrol",
            "BlockName=a BlockIndex=0 Nodes=n[1 BlockSize=2\nBlockName=b BlockIndex=1 Nodes=n2\n",
        );
        assert_eq!(group_lines(&report), ["Domain b n2 None"]);
        assert_eq!(report.problems[0].at.as_deref(), Some("scontrol:1:33"));
        assert_eq!(report.groups[0].kind, NodeGroupKind::Domain);
    }
}
