//! Consistency of Slurm's own views: the file with the topology in force, a node's override with
//! both, and the plugin that blocks require.

use std::collections::{BTreeMap, BTreeSet};

use super::context::ReconcileContext;
use super::groupings::Grouping;
use super::messages::{count_of, list_nodes, list_some, new_disagreement};
use model::disagreement::{Disagreement, DisagreementSeverity};
use model::disagreement_class::DisagreementClass;
use model::id::NodeName;
use model::source_report::{ClaimBasis, NodeGroupKind, SourceKind};

/// Name of the set that contains a node in a grouping.
fn set_name_of_node<'s>(grouping: &Grouping<'s>, node: &NodeName) -> Option<&'s str> {
    grouping.set_by_node.get(node).map(|set| grouping.sets[*set].name)
}

/// A unit of a topology: the grouping, and the index of its set.
type TopologyUnit<'v, 's> = (&'v Grouping<'s>, usize);

/// The `Topology=` values of single nodes: by node, a unit of each topology.
fn node_overrides<'v, 's>(
    view: &'v ReconcileContext<'s>,
) -> BTreeMap<&'s NodeName, Vec<TopologyUnit<'v, 's>>> {
    let own = view.groupings.iter().filter(|g| g.source == SourceKind::SlurmNodes);
    let own = own.filter(|g| matches!(g.kind, NodeGroupKind::Domain | NodeGroupKind::Leaf));
    let mut overrides: BTreeMap<&NodeName, Vec<TopologyUnit<'_, '_>>> = BTreeMap::new();
    for (grouping, (node, set)) in own.flat_map(|g| g.set_by_node.iter().map(move |of| (g, of))) {
        overrides.entry(*node).or_default().push((grouping, *set));
    }
    overrides
}

/// Whether both may be the same topology: files name theirs, 24.11's controller does not.
fn is_same_topology(one: &Grouping<'_>, other: &Grouping<'_>) -> bool {
    let name = |g: &Grouping<'_>| g.sets.first().and_then(|s| s.groups[0].1.topology.clone());
    name(one).zip(name(other)).is_none_or(|(one, other)| one == other)
}

/// `file-not-in-force`: the controller's topology differs from its file.
pub(super) fn check_file_against_controller(
    view: &ReconcileContext<'_>,
    found: &mut Vec<Disagreement>,
) {
    let overridden = node_overrides(view);
    let files = [SourceKind::SlurmTopologyYaml, SourceKind::SlurmTopologyConf];
    for file in view.groupings.iter().filter(|g| files.contains(&g.source)) {
        let same_kind =
            |g: &&Grouping<'_>| g.source == SourceKind::SlurmTopology && g.kind == file.kind;
        let mut live = view.groupings.iter().filter(same_kind);
        let Some(live) = live.find(|live| is_same_topology(file, live)) else { continue };
        if !matches!(file.kind, NodeGroupKind::Domain | NodeGroupKind::Leaf) {
            continue;
        }
        let all: BTreeSet<&NodeName> =
            file.set_by_node.keys().chain(live.set_by_node.keys()).copied().collect();
        let differ: Vec<&NodeName> = all
            .into_iter()
            .filter(|node| set_name_of_node(file, node) != set_name_of_node(live, node))
            .filter(|node| {
                let own = overridden.get(node).into_iter().flatten();
                let mut own = own.filter(|(g, _)| is_same_topology(g, file));
                !own.any(|(g, set)| Some(g.sets[*set].name) == set_name_of_node(live, node))
            })
            .collect();
        let Some(first) = differ.first() else { continue };
        let placement = |grouping: &Grouping<'_>| {
            let noun = grouping.noun();
            match set_name_of_node(grouping, first) {
                Some(name) => format!("{first} in {noun} {name}"),
                None => format!("{first} in no {noun}"),
            }
        };
        let set = |grouping: &Grouping<'_>| grouping.set_by_node.get(first).copied().unwrap_or(0);
        let summary = format!(
            "{} and the topology in force differ about {}: the file was edited without \
             reconfiguring Slurm, or nodes were moved with scontrol and will move back",
            file.source.label(),
            list_nodes(differ.iter().copied())
        );
        let disagreement = new_disagreement(
            DisagreementClass::FileNotInForce,
            DisagreementSeverity::Contradiction,
            summary,
        )
        .with_nodes(differ.iter().copied())
        .with_side(file.to_side(view.reports, set(file), placement(file)))
        .with_side(live.to_side(view.reports, set(live), placement(live)))
        .with_remedy("run scontrol reconfigure, or update the file");
        let domain = view.domain_of(first);
        found.push(domain.into_iter().fold(disagreement, Disagreement::in_domain));
    }
}

/// `topology-override`: a node's own `Topology=` contradicts the file.
pub(super) fn check_overrides_against_file(
    view: &ReconcileContext<'_>,
    found: &mut Vec<Disagreement>,
) {
    let files = [SourceKind::SlurmTopologyYaml, SourceKind::SlurmTopologyConf];
    type OverrideConflict<'v, 's> = (Vec<&'s NodeName>, TopologyUnit<'v, 's>);
    let mut moved: BTreeMap<(usize, Option<&str>, &str), OverrideConflict<'_, '_>> =
        BTreeMap::new();
    let overridden = node_overrides(view);
    for (at, file) in view.groupings.iter().enumerate() {
        let units = overridden.iter().filter(|_| files.contains(&file.source));
        let units = units.flat_map(|(node, units)| units.iter().map(move |unit| (node, unit)));
        for (node, (own, set)) in units {
            let (was, is) = (set_name_of_node(file, node), own.sets[*set].name);
            if own.kind == file.kind && is_same_topology(own, file) && was != Some(is) {
                moved.entry((at, was, is)).or_insert((Vec::new(), (*own, *set))).0.push(*node);
            }
        }
    }
    for ((at, was, is), (nodes, (own, set))) in moved {
        let file = &view.groupings[at];
        let names = list_nodes(nodes.iter().copied());
        let noun = file.noun();
        let was = was.map_or_else(|| format!("no {noun}"), |name| format!("{noun} {name}"));
        let summary = format!(
            "{names}: {noun} {is} in the setting of the node itself, but {} has it in {was}",
            file.source.label()
        );
        let file_set = file.set_by_node.get(nodes[0]).copied().unwrap_or(0);
        let disagreement = new_disagreement(
            DisagreementClass::TopologyOverride,
            DisagreementSeverity::Doubt,
            summary,
        )
        .with_nodes(nodes.iter().copied())
        .with_side(own.to_side(view.reports, set, format!("{names} in {noun} {is}")))
        .with_side(file.to_side(view.reports, file_set, format!("{names} in {was}")))
        .with_remedy(
            "a setting made with scontrol is lost at the next reconfigure: add it \
                to the file, or revert it",
        );
        let domain = view.domain_of(nodes[0]);
        found.push(domain.into_iter().fold(disagreement, Disagreement::in_domain));
    }
}

/// `imex-plugin-unset`: blocks of a rack, but Slurm does not assign IMEX channels to jobs.
pub(super) fn check_imex_plugin(view: &ReconcileContext<'_>, found: &mut Vec<Disagreement>) {
    const KEY: &str = "SwitchType";
    let config =
        view.sources(&[SourceKind::SlurmConfig]).find(|(_, report)| !report.settings.is_empty());
    let Some((source, report)) = config else { return };
    let value =
        report.settings.iter().find(|(key, _)| key.eq_ignore_ascii_case(KEY)).map(|(_, v)| v);
    if value.is_some_and(|value| value.to_lowercase().contains("nvidia_imex")) {
        return;
    }
    let racks: Vec<usize> = (0..view.placement.domains.len())
        .filter(|at| {
            let slurm = view.placement.origin[*at].is_some_and(|(g, _)| {
                super::grouping_conflicts::is_slurm_topology(view.groupings[g].source)
            });
            slurm
                && 1 < view.placement.domains[*at].nodes.len()
                && view.spans_nodes(*at) == Some(true)
        })
        .collect();
    let Some(first) = racks.first() else { return };
    let value = value.map_or("(not set)", String::as_str);
    let names = list_some(racks.iter().map(|at| view.domain_name(*at).as_str()));
    let summary = format!(
        "{} with NVLink between nodes ({names}), but Slurm's {KEY} is {value}: jobs get no IMEX \
         channel from Slurm",
        count_of(racks.len(), "block")
    );
    let disagreement =
        new_disagreement(DisagreementClass::ImexPluginUnset, DisagreementSeverity::Note, summary)
            .with_side(view.source_side(
                source,
                Some(KEY),
                ClaimBasis::Asserted,
                format!("{KEY} = {value}"),
            ))
            .with_remedy(
                "set SwitchType=switch/nvidia_imex, unless channels are created in another \
            way (one for all users, by a prolog)",
            );
    let claim = view.claim_side(*first, format!("{} is one domain", view.domain_name(*first)));
    found.push(claim.into_iter().fold(disagreement, Disagreement::with_side));
}
