//! Slurm against itself: the file against the topology in force, a node's own
//! override against both, and a plugin that blocks need.

use std::collections::BTreeMap;
use std::collections::BTreeSet;

use super::groupings::Grouping;
use super::view::View;
use super::words::count;
use super::words::disagreement;
use super::words::listed;
use super::words::some;
use model::disagreement::Disagreement;
use model::disagreement::Severity;
use model::disagreement_class::DisagreementClass;
use model::id::NodeName;
use model::said::Basis;
use model::said::GroupKind;
use model::said::SourceKind;

/// Where a grouping has a node, by name.
fn place<'s>(grouping: &Grouping<'s>, node: &NodeName) -> Option<&'s str> {
    grouping.of.get(node).map(|set| grouping.sets[*set].name)
}

/// A unit of a topology: the grouping, and which of its sets.
type Unit<'v, 's> = (&'v Grouping<'s>, usize);

/// What `Topology=` of single nodes says: by node, a unit of each topology.
fn overrides<'v, 's>(view: &'v View<'s>) -> BTreeMap<&'s NodeName, Vec<Unit<'v, 's>>> {
    let own = view.groupings.iter().filter(|g| g.source == SourceKind::SlurmNodes);
    let own = own.filter(|g| matches!(g.kind, GroupKind::Domain | GroupKind::Leaf));
    let mut overrides: BTreeMap<&NodeName, Vec<Unit<'_, '_>>> = BTreeMap::new();
    for (grouping, (node, set)) in own.flat_map(|g| g.of.iter().map(move |of| (g, of))) {
        overrides.entry(*node).or_default().push((grouping, *set));
    }
    overrides
}

/// Whether both may be of one topology: files name theirs, 24.11's controller does not.
fn is_alike(one: &Grouping<'_>, other: &Grouping<'_>) -> bool {
    let name = |g: &Grouping<'_>| g.sets.first().and_then(|s| s.groups[0].1.topology.clone());
    name(one).zip(name(other)).is_none_or(|(one, other)| one == other)
}

/// `file-not-in-force`: the controller works by another topology than its file.
pub(super) fn file_against_controller(view: &View<'_>, found: &mut Vec<Disagreement>) {
    let overridden = overrides(view);
    let files = [SourceKind::SlurmTopologyYaml, SourceKind::SlurmTopologyConf];
    for file in view.groupings.iter().filter(|g| files.contains(&g.source)) {
        let same_kind =
            |g: &&Grouping<'_>| g.source == SourceKind::SlurmTopology && g.kind == file.kind;
        let mut live = view.groupings.iter().filter(same_kind);
        let Some(live) = live.find(|live| is_alike(file, live)) else { continue };
        if !matches!(file.kind, GroupKind::Domain | GroupKind::Leaf) {
            continue;
        }
        let all: BTreeSet<&NodeName> = file.of.keys().chain(live.of.keys()).copied().collect();
        let differ: Vec<&NodeName> = all
            .into_iter()
            .filter(|node| place(file, node) != place(live, node))
            .filter(|node| {
                let own = overridden.get(node).into_iter().flatten();
                let mut own = own.filter(|(g, _)| is_alike(g, file));
                !own.any(|(g, set)| Some(g.sets[*set].name) == place(live, node))
            })
            .collect();
        let Some(first) = differ.first() else { continue };
        let said = |grouping: &Grouping<'_>| {
            let noun = grouping.noun();
            match place(grouping, first) {
                Some(name) => format!("{first} in {noun} {name}"),
                None => format!("{first} in no {noun}"),
            }
        };
        let set = |grouping: &Grouping<'_>| grouping.of.get(first).copied().unwrap_or(0);
        let summary = format!(
            "{} and the topology in force differ about {}: the file was edited and Slurm not reconfigured, or \
             nodes were moved with scontrol and will move back",
            file.source.words(),
            listed(differ.iter().copied())
        );
        let told =
            disagreement(DisagreementClass::FileNotInForce, Severity::Contradiction, summary)
                .about(differ.iter().copied())
                .side(file.side(view.said, set(file), said(file)))
                .side(live.side(view.said, set(live), said(live)))
                .remedy("scontrol reconfigure, or bring the file up to date");
        let domain = view.domain_of(first);
        found.push(domain.into_iter().fold(told, Disagreement::in_domain));
    }
}

/// `topology-override`: a node's own `Topology=` contradicts the file.
pub(super) fn overrides_against_file(view: &View<'_>, found: &mut Vec<Disagreement>) {
    let files = [SourceKind::SlurmTopologyYaml, SourceKind::SlurmTopologyConf];
    type Moved<'v, 's> = (Vec<&'s NodeName>, Unit<'v, 's>);
    let mut moved: BTreeMap<(usize, Option<&str>, &str), Moved<'_, '_>> = BTreeMap::new();
    let overridden = overrides(view);
    for (at, file) in view.groupings.iter().enumerate() {
        let units = overridden.iter().filter(|_| files.contains(&file.source));
        let units = units.flat_map(|(node, units)| units.iter().map(move |unit| (node, unit)));
        for (node, (own, set)) in units {
            let (was, is) = (place(file, node), own.sets[*set].name);
            if own.kind == file.kind && is_alike(own, file) && was != Some(is) {
                moved.entry((at, was, is)).or_insert((Vec::new(), (*own, *set))).0.push(*node);
            }
        }
    }
    for ((at, was, is), (nodes, (own, set))) in moved {
        let file = &view.groupings[at];
        let names = listed(nodes.iter().copied());
        let noun = file.noun();
        let was = was.map_or_else(|| format!("no {noun}"), |name| format!("{noun} {name}"));
        let summary = format!(
            "{names}: the node itself is set to {noun} {is}, and {} has it in {was}",
            file.source.words()
        );
        let file_set = file.of.get(nodes[0]).copied().unwrap_or(0);
        let told = disagreement(DisagreementClass::TopologyOverride, Severity::Doubt, summary)
            .about(nodes.iter().copied())
            .side(own.side(view.said, set, format!("{names} in {noun} {is}")))
            .side(file.side(view.said, file_set, format!("{names} in {was}")))
            .remedy("what scontrol set is lost with the next reconfigure: write it into the file, or undo it");
        let domain = view.domain_of(nodes[0]);
        found.push(domain.into_iter().fold(told, Disagreement::in_domain));
    }
}

/// `imex-plugin-unset`: blocks of a rack, and Slurm gives jobs no IMEX channel.
pub(super) fn imex_plugin(view: &View<'_>, found: &mut Vec<Disagreement>) {
    const KEY: &str = "SwitchType";
    let config =
        view.sources(&[SourceKind::SlurmConfig]).find(|(_, said)| !said.settings.is_empty());
    let Some((source, said)) = config else { return };
    let value = said.settings.iter().find(|(key, _)| key.eq_ignore_ascii_case(KEY)).map(|(_, v)| v);
    if value.is_some_and(|value| value.to_lowercase().contains("nvidia_imex")) {
        return;
    }
    let racks: Vec<usize> = (0..view.placed.domains.len())
        .filter(|at| {
            let slurm = view.placed.origin[*at]
                .is_some_and(|(g, _)| super::blocks::is_slurm_topology(view.groupings[g].source));
            slurm && 1 < view.placed.domains[*at].nodes.len() && view.spans_nodes(*at) == Some(true)
        })
        .collect();
    let Some(first) = racks.first() else { return };
    let value = value.map_or("(not set)", String::as_str);
    let names = some(racks.iter().map(|at| view.domain(*at).as_str()));
    let summary = format!(
        "{} with NVLink between nodes ({names}), and Slurm's {KEY} is {value}: jobs get no IMEX channel from \
         Slurm",
        count(racks.len(), "block")
    );
    let told = disagreement(DisagreementClass::ImexPluginUnset, Severity::Note, summary)
        .side(view.source(source, Some(KEY), Basis::Asserted, format!("{KEY} = {value}")))
        .remedy("SwitchType=switch/nvidia_imex, unless channels are made otherwise (one for all users, by a prolog)");
    let claim = view.claim(*first, format!("{} is one domain", view.domain(*first)));
    found.push(claim.into_iter().fold(told, Disagreement::side));
}
