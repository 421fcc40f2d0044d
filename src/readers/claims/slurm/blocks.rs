//! Checks the blocks of one topology, from any input format, and converts them into groups.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::host_list_budget::{fold_nodes, list_some};
use model::id::NodeName;
use model::source_report::{ClaimBasis, NodeGroup, NodeGroupKind, SourceProblemKind, SourceReport};

/// Limit for pairs of blocks with common nodes that are named individually.
const MAX_PAIRS: usize = 100;

/// The setting with the sizes of all levels of the topology in force, the base block size first.
pub const BLOCK_SIZES: &str = "block_sizes";

/// One block, as written in the source.
#[derive(Debug)]
pub(super) struct SlurmBlock {
    pub(super) name: String,
    /// `None` if its list is invalid; empty if it has none.
    pub(super) nodes: Option<Vec<NodeName>>,
    /// The base block size in its entry.
    pub(super) size: Option<u32>,
    pub(super) basis: ClaimBasis,
    pub(super) at: String,
}

/// The common properties of one topology's blocks.
#[derive(Debug)]
pub(super) struct SlurmBlockTopology<'t> {
    pub(super) topology: Option<&'t str>,
    pub(super) in_force: bool,
    /// The base block size and the sizes of aggregates above it, as written.
    pub(super) sizes: Vec<u32>,
    pub(super) sizes_at: Option<String>,
}

impl SlurmBlockTopology<'_> {
    fn note_prefix(&self) -> String {
        self.topology.map_or_else(String::new, |name| format!("topology {name}: "))
    }

    fn base_size(&self) -> Option<u32> {
        self.sizes.first().copied().filter(|size| *size != 0)
    }

    /// Adds the groups of these blocks, and remarks about them.
    pub(super) fn add_to_report(&self, report: &mut SourceReport, blocks: Vec<SlurmBlock>) {
        let begin = self.note_prefix();
        if self.check_sizes(report) && self.in_force && !self.sizes.is_empty() {
            let sizes: Vec<String> = self.sizes.iter().map(u32::to_string).collect();
            report.settings.insert(BLOCK_SIZES.to_owned(), sizes.join(","));
        }
        let mut names = HashSet::new();
        let mut kept = Vec::new();
        for block in blocks {
            if names.insert(block.name.clone()) {
                kept.push(block);
            } else {
                let message = format!(
                    "{begin}block {} is defined twice; Slurm rejects that, the first one is used",
                    block.name
                );
                report.push_problem(SourceProblemKind::Contradictory, block.at, message);
            }
        }
        if kept.is_empty() {
            report.push_problem(
                SourceProblemKind::Incomplete,
                self.sizes_at.clone(),
                format!("{begin}no block is defined"),
            );
            return;
        }
        self.add_notes(report, &kept);
        self.add_overlaps(report, &kept);
        for block in kept {
            let Some(nodes) = block.nodes else { continue };
            let mut group = NodeGroup::new(NodeGroupKind::Domain, "block", block.name, nodes);
            group.topology = self.topology.map(str::to_owned);
            group.in_force = self.in_force;
            group.size = block.size.or_else(|| self.base_size());
            group.basis = block.basis;
            group.at = Some(block.at);
            report.groups.push(group);
        }
    }

    /// Whether each further size is the base size times a power of two.
    fn check_sizes(&self, report: &mut SourceReport) -> bool {
        let Some(base) = self.sizes.first() else { return true };
        let fits =
            |size: &u32| size.checked_rem(*base) == Some(0) && (size / base).is_power_of_two();
        let wrong: Vec<String> =
            self.sizes.iter().filter(|size| !fits(size)).map(u32::to_string).collect();
        if !wrong.is_empty() {
            let message = if *base == 0 {
                format!("{}a base block size of 0 is invalid", self.note_prefix())
            } else {
                format!(
                    "{}block size {} is not {base} times a power of two; Slurm rejects that",
                    self.note_prefix(),
                    wrong.join(", ")
                )
            };
            report.push_problem(SourceProblemKind::Contradictory, self.sizes_at.clone(), message);
        }
        wrong.is_empty()
    }

    /// Adds remarks about empty blocks, incomplete blocks, and spare nodes.
    fn add_notes(&self, report: &mut SourceReport, blocks: &[SlurmBlock]) {
        let begin = self.note_prefix();
        if 1 < self.sizes.len() {
            let sizes: Vec<String> = self.sizes[1..].iter().map(u32::to_string).collect();
            report.notes.push(format!(
                "{begin}aggregates of {} nodes are for scheduling, they are not domains",
                sizes.join(", ")
            ));
        }
        let mut empty = Vec::new();
        let mut fewer: BTreeMap<u32, Vec<String>> = BTreeMap::new();
        let mut more: BTreeMap<u32, Vec<String>> = BTreeMap::new();
        for block in blocks {
            let Some(count) = block.nodes.as_ref().map(Vec::len) else { continue };
            let Some(size) = block.size.or_else(|| self.base_size()) else {
                if count == 0 {
                    empty.push(block.name.as_str());
                }
                continue;
            };
            let sized_name = format!("{} ({count})", block.name);
            match u64::from(size).cmp(&(count as u64)) {
                _ if count == 0 => empty.push(&block.name),
                std::cmp::Ordering::Greater => fewer.entry(size).or_default().push(sized_name),
                std::cmp::Ordering::Less => more.entry(size).or_default().push(sized_name),
                std::cmp::Ordering::Equal => {}
            }
        }
        if !empty.is_empty() {
            report.notes.push(format!("{begin}blocks without nodes: {}", list_some(empty)));
        }
        for (size, blocks) in fewer {
            report.notes.push(format!(
                "{begin}fewer nodes than the base block size {size}: {}",
                list_some(blocks.iter().map(String::as_str))
            ));
        }
        for (size, blocks) in more {
            report.notes.push(format!(
                "{begin}spare nodes above the base block size {size}: {}",
                list_some(blocks.iter().map(String::as_str))
            ));
        }
    }

    /// Reports nodes in two blocks.
    fn add_overlaps(&self, report: &mut SourceReport, blocks: &[SlurmBlock]) {
        let mut owners: HashMap<&NodeName, usize> = HashMap::new();
        let mut shared: BTreeMap<(usize, usize), Vec<&NodeName>> = BTreeMap::new();
        for (index, block) in blocks.iter().enumerate() {
            for node in block.nodes.iter().flatten() {
                match owners.get(node) {
                    Some(first) => shared.entry((*first, index)).or_default().push(node),
                    None => {
                        owners.insert(node, index);
                    }
                }
            }
        }
        for ((first, second), nodes) in shared.into_iter().take(MAX_PAIRS) {
            let are = if nodes.len() == 1 { "is" } else { "are" };
            let message = format!(
                "{}{} {are} in two blocks, {} and {}",
                self.note_prefix(),
                fold_nodes(nodes),
                blocks[first].name,
                blocks[second].name
            );
            report.push_problem(
                SourceProblemKind::Contradictory,
                blocks[second].at.clone(),
                message,
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::hostlist;
    use model::source_report::SourceKind;

    fn block(name: &str, list: &str) -> SlurmBlock {
        let nodes = if list.is_empty() {
            Vec::new()
        } else {
            hostlist::expand(list).expect("good").into_iter().map(NodeName::from).collect()
        };
        SlurmBlock {
            name: name.to_owned(),
            nodes: Some(nodes),
            size: None,
            basis: ClaimBasis::Asserted,
            at: format!("f:{name}"),
        }
    }

    fn report_of(sizes: &[u32], blocks: Vec<SlurmBlock>) -> SourceReport {
        let mut report = SourceReport::new(SourceKind::SlurmTopologyConf, "f");
        let sizes_at = Some("f:sizes".to_owned());
        SlurmBlockTopology { topology: None, in_force: true, sizes: sizes.to_vec(), sizes_at }
            .add_to_report(&mut report, blocks);
        report
    }

    #[test]
    fn empty_short_and_long_blocks_are_distinguished() {
        let report = report_of(
            &[3, 6],
            vec![block("a", "n[1-3]"), block("b", "n[4-7]"), block("c", "n8"), block("d", "")],
        );
        assert_eq!(
            report.notes,
            [
                "aggregates of 6 nodes are for scheduling, they are not domains",
                "blocks without nodes: d",
                "fewer nodes than the base block size 3: c (1)",
                "spare nodes above the base block size 3: b (4)",
            ]
        );
        assert!(report.problems.is_empty());
        assert!(report.groups.iter().all(|g| g.size == Some(3) && g.kind == NodeGroupKind::Domain));
        assert_eq!(report.groups.iter().map(|g| g.nodes.len()).collect::<Vec<_>>(), [3, 4, 1, 0]);
    }

    #[test]
    fn the_sizes_of_all_levels_are_kept() {
        let of = |sizes: &[u32]| report_of(sizes, Vec::new()).settings.get(BLOCK_SIZES).cloned();
        assert_eq!(of(&[6, 12]).as_deref(), Some("6,12"));
        assert_eq!(of(&[6]).as_deref(), Some("6"));
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[6, 13]), None, "Slurm refuses that");
    }

    #[test]
    fn sizes_that_slurm_refuses_are_a_contradiction_and_cost_no_block() {
        for (sizes, refused) in [
            (&[4, 16][..], false),
            (&[18, 36], false),
            (&[4, 12], true),
            (&[18, 54], true),
            (&[16, 4], true),
            (&[0, 4], true),
        ] {
            let report = report_of(sizes, vec![block("a", "n1")]);
            let found = report.problems.iter().any(|p| p.kind == SourceProblemKind::Contradictory);
            assert_eq!(found, refused, "{sizes:?}: {:?}", report.problems);
            assert_eq!(report.groups.len(), 1);
        }
    }

    #[test]
    fn a_node_in_two_blocks_stays_in_both_and_is_named() {
        let report = report_of(&[], vec![block("a", "n[1-19]"), block("b", "n[18-36]")]);
        assert_eq!(report.problems.len(), 1);
        assert_eq!(report.problems[0].message, "n[18-19] are in two blocks, a and b");
        assert_eq!(report.problems[0].at.as_deref(), Some("f:b"));
        assert_eq!(report.groups.iter().map(|g| g.nodes.len()).sum::<usize>(), 38);
    }

    #[test]
    fn the_first_of_two_blocks_of_one_name_counts() {
        let report = report_of(&[], vec![block("a", "n1"), block("a", "n2")]);
        assert_eq!(report.groups.len(), 1);
        assert_eq!(report.groups[0].nodes, [NodeName::from("n1")]);
        assert!(report.problems[0].message.contains("defined twice"));
    }

    #[test]
    fn no_block_at_all_is_incomplete() {
        assert_eq!(report_of(&[18], Vec::new()).problems[0].kind, SourceProblemKind::Incomplete);
    }
}
