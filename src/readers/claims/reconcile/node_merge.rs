//! Merges the reports of all sources about each node.

use std::collections::BTreeMap;

use model::id::NodeName;
use model::source_report::{FabricReport, NicReport, NodeReport, SourceKind, SourceReport};

/// Merges the reports about single nodes. Where they differ, the node's own report has priority,
/// then the sources in their `order`.
pub(super) fn merge_nodes(
    reports: &[SourceReport],
    order: &[usize],
) -> BTreeMap<NodeName, NodeReport> {
    let is_own = |at: &&usize| reports[**at].source.kind == SourceKind::NodeFacts;
    let own = order.iter().filter(is_own);
    let others = order.iter().filter(|at| !is_own(at));
    let mut nodes: BTreeMap<NodeName, NodeReport> = BTreeMap::new();
    for source in own.chain(others).map(|at| &reports[*at]) {
        for (name, node) in &source.nodes {
            merge_node(nodes.entry(name.clone()).or_default(), node, source);
        }
    }
    nodes
}

fn merge_node(all: &mut NodeReport, node: &NodeReport, source: &SourceReport) {
    fn first<T: Clone>(known: &mut Option<T>, value: Option<&T>) {
        if known.is_none() {
            *known = value.cloned();
        }
    }
    fn add<T: Clone + PartialEq>(known: &mut Vec<T>, values: impl IntoIterator<Item = T>) {
        for one in values {
            if !known.contains(&one) {
                known.push(one);
            }
        }
    }
    first(&mut all.gpus, node.gpus.as_ref());
    first(&mut all.product, node.product.as_ref());
    first(&mut all.driver, node.driver.as_ref());
    first(&mut all.rack, node.rack.as_ref());
    first(&mut all.slot, node.slot.as_ref());
    first(&mut all.topo_rank, node.topo_rank.as_ref());
    first(&mut all.reason, node.reason.as_ref());
    first(&mut all.boot_id, node.boot_id.as_ref());
    // Idle in one scheduler does not mean idle in the others.
    all.busy = match (all.busy, node.busy) {
        (Some(one), Some(other)) => Some(one || other),
        (one, other) => one.or(other),
    };
    // The location shows which source a fabric or a cable comes from.
    let place = |at: Option<&String>| match at {
        Some(at) if at.contains(&source.source.place) => at.clone(),
        Some(at) => format!("{}, {at}", source.source),
        None => source.source.to_string(),
    };
    add(
        &mut all.fabric,
        node.fabric.iter().map(|f| {
            let at = Some(place(f.at.as_ref()));
            FabricReport { at, ..f.clone() }
        }),
    );
    add(
        &mut all.nics,
        node.nics.iter().map(|n| {
            let at = Some(place(n.at.as_ref()));
            NicReport { at, ..n.clone() }
        }),
    );
    add(&mut all.aliases, node.aliases.iter().cloned());
    add(&mut all.state, node.state.iter().cloned());
    add(&mut all.opt_out, node.opt_out.iter().cloned());
    for (mark, value) in &node.marks {
        all.marks.entry(mark.clone()).or_insert_with(|| value.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nodes_own_report_comes_first_and_no_value_is_lost() {
        let node = NodeName::from("n1");
        let mut slurm = SourceReport::new(SourceKind::SlurmNodes, "scontrol");
        slurm.node_mut(&node).gpus = Some(4);
        slurm.node_mut(&node).busy = Some(true);
        slurm.node_mut(&node).state = vec!["IDLE".to_owned()];
        let mut own = SourceReport::new(SourceKind::NodeFacts, "n1");
        own.node_mut(&node).gpus = Some(3);
        own.node_mut(&node).busy = Some(false);
        own.node_mut(&node).boot_id = Some("b".to_owned());
        own.node_mut(&node).fabric.push(FabricReport { gpu: Some(0), ..FabricReport::default() });
        let all = merge_nodes(&[slurm, own], &[0, 1]);
        let all = &all[&node];
        assert_eq!((all.gpus, all.busy, all.boot_id.as_deref()), (Some(3), Some(true), Some("b")));
        assert_eq!(all.state, ["IDLE"]);
        assert_eq!(all.fabric[0].at.as_deref(), Some("node facts (n1)"));
    }
}
