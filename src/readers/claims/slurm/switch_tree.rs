//! Checks the switches of one tree, from any input format, and converts them into groups: leaves,
//! and the switches above.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use super::host_list_budget::{fold_nodes, list_some};
use model::id::NodeName;
use model::source_report::{NodeGroup, NodeGroupKind, SourceProblemKind, SourceReport};

/// Limit for nodes repeated in the switches above leaves. A tree of 100,000 nodes that is 20
/// levels deep (Slurm's own limit) stays below.
const MAX_REPEATED_NODES: usize = 2_000_000;

/// One switch, as written in the source.
#[derive(Debug)]
pub(super) struct SlurmSwitch {
    pub(super) name: String,
    /// Nodes attached to it. `None` if its list is invalid.
    pub(super) nodes: Option<Vec<NodeName>>,
    /// Child switches. `None` if their list is invalid.
    pub(super) below: Option<Vec<String>>,
    pub(super) at: String,
}

impl SlurmSwitch {
    fn is_leaf(&self) -> bool {
        self.below.as_ref().is_some_and(Vec::is_empty)
    }
}

/// The common properties of one tree's switches.
#[derive(Debug)]
pub(super) struct SlurmSwitchTree<'t> {
    pub(super) topology: Option<&'t str>,
    pub(super) in_force: bool,
}

/// The links between switches, by index.
struct SwitchLinks {
    below: Vec<Vec<usize>>,
    above: Vec<Vec<usize>>,
}

impl SlurmSwitchTree<'_> {
    fn note_prefix(&self) -> String {
        self.topology.map_or_else(String::new, |name| format!("topology {name}: "))
    }

    /// Adds the groups of these switches, and remarks about them.
    pub(super) fn add_to_report(&self, report: &mut SourceReport, switches: Vec<SlurmSwitch>) {
        let begin = self.note_prefix();
        let mut names = HashSet::new();
        let mut kept: Vec<SlurmSwitch> = Vec::new();
        for switch in switches {
            if names.insert(switch.name.clone()) {
                kept.push(switch);
            } else {
                let message = format!(
                    "{begin}switch {} is defined twice; Slurm rejects that, the first one is used",
                    switch.name
                );
                report.push_problem(SourceProblemKind::Contradictory, switch.at, message);
            }
        }
        if kept.is_empty() {
            report.push_problem(
                SourceProblemKind::Incomplete,
                None,
                format!("{begin}no switch is defined"),
            );
            return;
        }
        let links = self.resolve_links(report, &kept);
        let order = self.order_upwards(report, &kept, &links);
        self.note_separate_parts(report, &kept, &links);
        self.note_nodes_at_two_leaves(report, &kept);
        let all = self.nodes_below(report, &kept, &links, &order);
        for (index, switch) in kept.iter().enumerate() {
            let (kind, nodes) = if switch.is_leaf() {
                let Some(nodes) = &switch.nodes else { continue };
                (NodeGroupKind::Leaf, nodes.clone())
            } else {
                let Some(nodes) = all.get(index).and_then(Option::as_ref) else { continue };
                (NodeGroupKind::Switch, nodes.clone())
            };
            let mut group = NodeGroup::new(kind, "switch", switch.name.clone(), nodes);
            group.topology = self.topology.map(str::to_owned);
            group.in_force = self.in_force;
            group.above = links.above[index].iter().map(|up| kept[*up].name.clone()).collect();
            group.at = Some(switch.at.clone());
            report.groups.push(group);
        }
    }

    /// Resolves parents and children; reports undefined switches.
    fn resolve_links(&self, report: &mut SourceReport, switches: &[SlurmSwitch]) -> SwitchLinks {
        let index: HashMap<&str, usize> =
            switches.iter().enumerate().map(|(index, s)| (s.name.as_str(), index)).collect();
        let mut links = SwitchLinks {
            below: vec![Vec::new(); switches.len()],
            above: vec![Vec::new(); switches.len()],
        };
        for (up, switch) in switches.iter().enumerate() {
            let mut unknown = Vec::new();
            for name in switch.below.iter().flatten() {
                match index.get(name.as_str()) {
                    Some(down) => {
                        links.below[up].push(*down);
                        links.above[*down].push(up);
                    }
                    None => unknown.push(name.as_str()),
                }
            }
            if !unknown.is_empty() {
                let message = format!(
                    "{}switch {} has children that are not defined: {}",
                    self.note_prefix(),
                    switch.name,
                    list_some(unknown)
                );
                report.push_problem(SourceProblemKind::Contradictory, switch.at.clone(), message);
            }
        }
        links
    }

    /// All switches, children before parents. A link that would close a cycle is reported and
    /// ignored.
    fn order_upwards(
        &self,
        report: &mut SourceReport,
        switches: &[SlurmSwitch],
        links: &SwitchLinks,
    ) -> Vec<usize> {
        #[derive(Clone, Copy, PartialEq)]
        enum SwitchVisit {
            No,
            Open,
            Done,
        }
        let mut circles = 0usize;
        let mut seen = vec![SwitchVisit::No; switches.len()];
        let mut order = Vec::with_capacity(switches.len());
        for start in 0..switches.len() {
            if seen[start] != SwitchVisit::No {
                continue;
            }
            seen[start] = SwitchVisit::Open;
            let mut path = vec![(start, 0)];
            while let Some((at, next)) = path.last_mut() {
                let Some(down) = links.below[*at].get(*next).copied() else {
                    seen[*at] = SwitchVisit::Done;
                    order.push(*at);
                    path.pop();
                    continue;
                };
                *next += 1;
                match seen[down] {
                    SwitchVisit::Done => {}
                    SwitchVisit::No => {
                        seen[down] = SwitchVisit::Open;
                        path.push((down, 0));
                    }
                    SwitchVisit::Open if 0 < circles => circles += 1,
                    SwitchVisit::Open => {
                        circles = 1;
                        let from = path.iter().position(|(at, _)| *at == down).unwrap_or(0);
                        let mut circle: Vec<&str> = path[from..]
                            .iter()
                            .map(|(at, _)| switches[*at].name.as_str())
                            .collect();
                        circle.push(&switches[down].name);
                        let message = format!(
                            "{}switches form a cycle: {}",
                            self.note_prefix(),
                            list_some(circle)
                        );
                        let at = switches[down].at.clone();
                        report.push_problem(SourceProblemKind::Contradictory, at, message);
                    }
                }
            }
        }
        if 1 < circles {
            report.notes.push(format!("{}{circles} links close a cycle", self.note_prefix()));
        }
        order
    }

    /// Reports a topology without a common root.
    fn note_separate_parts(
        &self,
        report: &mut SourceReport,
        switches: &[SlurmSwitch],
        links: &SwitchLinks,
    ) {
        let mut part = vec![usize::MAX; switches.len()];
        let mut parts: Vec<usize> = Vec::new();
        for start in 0..switches.len() {
            if part[start] != usize::MAX {
                continue;
            }
            parts.push(start);
            let mut waiting = vec![start];
            while let Some(at) = waiting.pop() {
                if part[at] != usize::MAX {
                    continue;
                }
                part[at] = parts.len() - 1;
                waiting.extend(&links.below[at]);
                waiting.extend(&links.above[at]);
            }
        }
        let roots: Vec<usize> =
            (0..switches.len()).filter(|index| links.above[*index].is_empty()).collect();
        let name = |index: &usize| switches[*index].name.as_str();
        if 1 < parts.len() {
            let tops: BTreeMap<usize, &str> =
                roots.iter().rev().map(|root| (part[*root], name(root))).collect();
            report.notes.push(format!(
                "{}{} separate parts without a common switch, with {} at their tops",
                self.note_prefix(),
                parts.len(),
                list_some(tops.into_values())
            ));
        } else if 1 < roots.len() {
            report.notes.push(format!(
                "{}{} switches at the top level: {}",
                self.note_prefix(),
                roots.len(),
                list_some(roots.iter().map(name))
            ));
        }
    }

    /// Nodes at two leaves: Slurm accepts them (and only logs it), for nodes with several ports.
    fn note_nodes_at_two_leaves(&self, report: &mut SourceReport, switches: &[SlurmSwitch]) {
        let mut owners: HashMap<&NodeName, usize> = HashMap::new();
        let mut shared: BTreeMap<(usize, usize), Vec<&NodeName>> = BTreeMap::new();
        for (index, leaf) in switches.iter().enumerate().filter(|(_, s)| s.is_leaf()) {
            for node in leaf.nodes.iter().flatten() {
                match owners.get(node) {
                    Some(first) => shared.entry((*first, index)).or_default().push(node),
                    None => {
                        owners.insert(node, index);
                    }
                }
            }
        }
        for ((first, second), nodes) in shared {
            report.notes.push(format!(
                "{}{} at two leaves, {} and {} ({})",
                self.note_prefix(),
                fold_nodes(nodes),
                switches[first].name,
                switches[second].name,
                switches[second].at
            ));
        }
    }

    /// All nodes below each switch with children; `None` for leaves, and if they are unknown.
    fn nodes_below(
        &self,
        report: &mut SourceReport,
        switches: &[SlurmSwitch],
        links: &SwitchLinks,
        order: &[usize],
    ) -> Vec<Option<Vec<NodeName>>> {
        let mut all: Vec<Option<Vec<NodeName>>> = vec![None; switches.len()];
        let mut left = MAX_REPEATED_NODES;
        for index in order {
            let switch = &switches[*index];
            if switch.is_leaf() || switch.below.is_none() {
                continue;
            }
            let lists = || {
                let own = switch.nodes.as_deref().unwrap_or_default();
                let below = links.below[*index].iter().filter_map(|down| {
                    if switches[*down].is_leaf() {
                        switches[*down].nodes.as_deref()
                    } else {
                        all[*down].as_deref()
                    }
                });
                std::iter::once(own).chain(below)
            };
            let count = lists().map(<[NodeName]>::len).sum::<usize>() + links.below[*index].len();
            if left < count {
                let message = format!(
                    "{}the switches above leaves list more than {MAX_REPEATED_NODES} nodes; \
                     those from {} on are ignored",
                    self.note_prefix(),
                    switch.name
                );
                report.push_problem(SourceProblemKind::Unsupported, switch.at.clone(), message);
                break;
            }
            left -= count;
            let mut seen: BTreeSet<&NodeName> = BTreeSet::new();
            let nodes = lists().flatten().filter(|node| seen.insert(node)).cloned().collect();
            all[*index] = Some(nodes);
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::hostlist;
    use model::source_report::SourceKind;

    fn names(list: &str) -> Vec<String> {
        if list.is_empty() { Vec::new() } else { hostlist::expand(list).expect("good") }
    }

    fn switch(name: &str, nodes: &str, below: &str) -> SlurmSwitch {
        SlurmSwitch {
            name: name.to_owned(),
            nodes: Some(names(nodes).into_iter().map(NodeName::from).collect()),
            below: Some(names(below)),
            at: format!("f:{name}"),
        }
    }

    fn report_of(switches: Vec<SlurmSwitch>) -> SourceReport {
        let mut report = SourceReport::new(SourceKind::SlurmTopologyConf, "f");
        SlurmSwitchTree { topology: None, in_force: true }.add_to_report(&mut report, switches);
        report
    }

    fn group_lines(report: &SourceReport) -> Vec<String> {
        let list = |g: &NodeGroup| hostlist::fold(g.nodes.iter().map(NodeName::as_str));
        let line =
            |g: &NodeGroup| format!("{:?} {} {} ^{}", g.kind, g.name, list(g), g.above.join("+"));
        report.groups.iter().map(line).collect()
    }

    #[test]
    fn upper_switches_contain_all_nodes_below() {
        let report = report_of(vec![
            switch("root", "", "mid,c"),
            switch("mid", "", "a,b"),
            switch("a", "n[1-2]", ""),
            switch("b", "n[3-4]", ""),
            switch("c", "n5", ""),
        ]);
        assert_eq!(
            group_lines(&report),
            [
                "Switch root n[1-5] ^",
                "Switch mid n[1-4] ^root",
                "Leaf a n[1-2] ^mid",
                "Leaf b n[3-4] ^mid",
                "Leaf c n5 ^root",
            ]
        );
        assert!(report.problems.is_empty() && report.notes.is_empty(), "{report:?}");
    }

    #[test]
    fn two_spines_over_the_same_leaves_are_one_fabric() {
        let report = report_of(vec![
            switch("a", "n1", ""),
            switch("b", "n2", ""),
            switch("x", "", "a,b"),
            switch("y", "", "a,b"),
        ]);
        assert_eq!(report.groups[0].above, ["x", "y"]);
        assert_eq!(report.notes, ["2 switches at the top level: x, y"]);
    }

    #[test]
    fn separate_parts_are_reported_by_their_top_switches() {
        let report = report_of(vec![
            switch("x", "", "a,b"),
            switch("a", "n1", ""),
            switch("b", "n2", ""),
            switch("alone", "n3", ""),
        ]);
        assert_eq!(
            report.notes,
            ["2 separate parts without a common switch, with x, alone at their tops"]
        );
        assert!(report.problems.is_empty());
    }

    #[test]
    fn a_cycle_is_reported_and_the_switches_below_stay() {
        let report =
            report_of(vec![switch("x", "", "y"), switch("y", "", "x,a"), switch("a", "n1", "")]);
        assert_eq!(report.problems[0].message, "switches form a cycle: x, y, x");
        assert_eq!(group_lines(&report), ["Switch x n1 ^y", "Switch y n1 ^x", "Leaf a n1 ^y"]);
        assert_eq!(report_of(vec![switch("x", "", "x")]).problems.len(), 1);
    }

    #[test]
    fn unknown_and_duplicate_switches_are_contradictions() {
        let report = report_of(vec![
            switch("x", "", "a,gone"),
            switch("a", "n1", ""),
            switch("a", "n2", ""),
        ]);
        let messages: Vec<&str> = report.problems.iter().map(|p| p.message.as_str()).collect();
        assert!(messages[0].starts_with("switch a is defined twice"), "{messages:?}");
        assert_eq!(messages[1], "switch x has children that are not defined: gone");
        assert_eq!(group_lines(&report), ["Switch x n1 ^", "Leaf a n1 ^x"]);
    }

    #[test]
    fn a_node_at_two_leaves_gets_a_note() {
        let report = report_of(vec![switch("a", "n[1-3]", ""), switch("b", "n[3-4]", "")]);
        assert!(report.notes.contains(&"n3 at two leaves, a and b (f:b)".to_owned()));
        assert!(report.problems.is_empty());
    }

    #[test]
    fn a_deep_chain_and_a_dense_mesh_end() {
        let chain: Vec<SlurmSwitch> = (0..3000)
            .map(|n| switch(&format!("s{n}"), "", &format!("s{}", n + 1)))
            .chain([switch("s3000", "n[1-2000]", "")])
            .collect();
        let report = report_of(chain);
        assert_eq!(report.problems.len(), 1, "{:?}", report.problems);
        assert_eq!(report.problems[0].kind, SourceProblemKind::Unsupported);
        let mesh: Vec<SlurmSwitch> =
            (0..300).map(|n| switch(&format!("s{n}"), "", "s[0-299]")).collect();
        assert!(!report_of(mesh).problems.is_empty());
    }
}
