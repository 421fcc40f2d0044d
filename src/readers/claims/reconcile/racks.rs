//! Racks and slots: two sources compared, one with itself, and racks compared with NVLink
//! domains.
//!
//! One source may use a chassis serial number and another a floor position: the names of racks
//! are not compared, only the sets of nodes.

use std::collections::BTreeMap;

use super::context::ReconcileContext;
use super::grouping_comparison::compare_groupings;
use super::messages::{is_or_are, list_nodes, list_some, new_disagreement};
use model::disagreement::{Disagreement, DisagreementSeverity, DisagreementSide};
use model::disagreement_class::DisagreementClass;
use model::id::NodeName;
use model::source_report::{ClaimBasis, NodeGroupKind, SourceKind};

/// The racks of one kind of source.
struct SourceRacks<'s> {
    kind: SourceKind,
    names: Vec<&'s str>,
    position_by_node: BTreeMap<&'s NodeName, (usize, usize)>,
    slots: BTreeMap<&'s NodeName, &'s str>,
}

fn racks_by_source<'s>(view: &ReconcileContext<'s>) -> Vec<SourceRacks<'s>> {
    let mut kinds: BTreeMap<SourceKind, (SourceRacks<'s>, BTreeMap<&'s str, usize>)> =
        BTreeMap::new();
    let mut enter = |source: usize, node: &'s NodeName, rack: &'s str, slot: Option<&'s str>| {
        let kind = view.reports[source].source.kind;
        let (racks, known) = kinds.entry(kind).or_insert_with(|| {
            (
                SourceRacks {
                    kind,
                    names: vec![],
                    position_by_node: BTreeMap::new(),
                    slots: BTreeMap::new(),
                },
                BTreeMap::new(),
            )
        });
        let at = *known.entry(rack).or_insert_with(|| {
            racks.names.push(rack);
            racks.names.len() - 1
        });
        racks.position_by_node.entry(node).or_insert((at, source));
        if let Some(slot) = slot {
            racks.slots.entry(node).or_insert(slot);
        }
    };
    for (source, node, node_report) in view.node_reports() {
        if let Some(rack) = &node_report.rack {
            enter(source, node, rack, node_report.slot.as_deref());
        }
    }
    for grouping in view.groupings.iter().filter(|g| g.kind == NodeGroupKind::Rack) {
        for set in &grouping.sets {
            for node in &set.nodes {
                enter(set.groups[0].0, node, set.name, None);
            }
        }
    }
    kinds.into_values().map(|(racks, _)| racks).collect()
}

impl SourceRacks<'_> {
    fn to_side(
        &self,
        view: &ReconcileContext<'_>,
        node: &NodeName,
        statement: String,
    ) -> DisagreementSide {
        let basis = match self.kind {
            SourceKind::NodeFacts => ClaimBasis::Reported,
            _ => ClaimBasis::Asserted,
        };
        view.source_side(self.position_by_node[node].1, None, basis, statement)
    }
}

/// `rack-disagrees` between sources; `rack-against-domain` where a domain of a rack-scale
/// platform has nodes in another rack.
pub(super) fn check_racks(view: &ReconcileContext<'_>, found: &mut Vec<Disagreement>) {
    let racks = racks_by_source(view);
    for (at, one) in racks.iter().enumerate() {
        for other in &racks[at + 1..] {
            // A rack of one source that the other splits is visible from one side only.
            if !compare_racks(view, one, other, found) {
                compare_racks(view, other, one, found);
            }
        }
    }
    for one in &racks {
        let a = |node: &NodeName| {
            view.placement.domain_of(node).filter(|at| view.spans_nodes(*at) == Some(true))
        };
        let b = |node: &NodeName| one.position_by_node.get(node).map(|(rack, _)| *rack);
        for strays in compare_groupings(one.position_by_node.keys().copied(), a, b).strays {
            let Some(main) = strays.main else { continue };
            let nodes: Vec<&NodeName> =
                strays.elsewhere.values().flat_map(|n| n.iter().copied()).collect();
            let names = list_nodes(nodes.iter().copied());
            let domain = view.domain_name(strays.set);
            let there = list_some(strays.elsewhere.keys().map(|rack| one.names[*rack]));
            let summary = format!(
                "{names} of {domain} {} in rack {there} by {}, most of {domain} is in {}",
                is_or_are(nodes.len()),
                one.kind.label(),
                one.names[main]
            );
            let disagreement = new_disagreement(
                DisagreementClass::RackAgainstDomain,
                DisagreementSeverity::Doubt,
                summary,
            )
            .in_domain(domain)
            .with_side(one.to_side(view, nodes[0], format!("{names} in rack {there}")))
            .with_nodes(nodes)
            .with_remedy(
                "NVLink ends at the rack on such platforms: find the location of these nodes",
            );
            let claim = view.claim_side(strays.set, format!("{names} in {domain}"));
            found.push(claim.into_iter().fold(disagreement, Disagreement::with_side));
        }
    }
}

/// Compares the racks of nodes in two sources; returns whether they differ.
fn compare_racks(
    view: &ReconcileContext<'_>,
    one: &SourceRacks<'_>,
    other: &SourceRacks<'_>,
    found: &mut Vec<Disagreement>,
) -> bool {
    let a = |node: &NodeName| one.position_by_node.get(node).map(|(rack, _)| *rack);
    let b = |node: &NodeName| other.position_by_node.get(node).map(|(rack, _)| *rack);
    let comparison = compare_groupings(one.position_by_node.keys().copied(), a, b);
    for strays in &comparison.strays {
        let nodes: Vec<&NodeName> =
            strays.elsewhere.values().flat_map(|n| n.iter().copied()).collect();
        let names = list_nodes(nodes.iter().copied());
        let there = list_some(strays.elsewhere.keys().map(|rack| other.names[*rack]));
        let summary = format!(
            "{names} {} in rack {} by {}, and in {there} by {}, unlike the others of that rack",
            is_or_are(nodes.len()),
            one.names[strays.set],
            one.kind.label(),
            other.kind.label()
        );
        found.push(
            new_disagreement(
                DisagreementClass::RackDisagrees,
                DisagreementSeverity::Doubt,
                summary,
            )
            .with_side(one.to_side(view, nodes[0], format!("rack {}", one.names[strays.set])))
            .with_side(other.to_side(view, nodes[0], format!("rack {there}")))
            .with_nodes(nodes)
            .with_remedy("check the trays: one was moved, or one list is outdated"),
        );
    }
    !comparison.strays.is_empty()
}

/// The slots of a node in two sources that number slots.
struct SlotPair<'s> {
    rack: usize,
    ours: i64,
    theirs: i64,
    node: &'s NodeName,
}

impl SlotPair<'_> {
    fn shift(&self) -> i64 {
        self.theirs.saturating_sub(self.ours)
    }
}

/// Nodes whose slot differs in the second source, relative to the most common offset. Some
/// sources count slots from 0, some from 1, some count rack units, and some include the switch
/// trays (NVML's `slotNumber` does): those shift all slots above them equally and do not change
/// the order.
fn find_moved_nodes<'s>(places: &[SlotPair<'s>]) -> Vec<&'s NodeName> {
    let mut shifts: BTreeMap<i64, usize> = BTreeMap::new();
    let mut racks: BTreeMap<usize, Vec<&SlotPair<'_>>> = BTreeMap::new();
    for place in places {
        *shifts.entry(place.shift()).or_default() += 1;
        racks.entry(place.rack).or_default().push(place);
    }
    let usual = shifts.into_iter().find(|(_, nodes)| places.len() < 2 * nodes);
    let Some((usual, _)) = usual else { return Vec::new() };
    let is_turned = |place: &SlotPair<'_>| {
        let others = racks[&place.rack].iter().filter(|it| it.ours != place.ours);
        let mut turns = others.map(|it| (it.ours < place.ours) != (it.theirs < place.theirs));
        turns.any(|it| it)
    };
    let is_alone = |place: &SlotPair<'_>| {
        racks[&place.rack].iter().filter(|it| it.shift() == place.shift()).count() == 1
    };
    let differs = places.iter().filter(|place| place.shift() != usual);
    differs.filter(|place| is_alone(place) || is_turned(place)).map(|place| place.node).collect()
}

/// `slot-taken`: two nodes in one slot of one rack. `slot-disagrees`: a node in another slot,
/// relative to the offset of most nodes in its rack.
pub(super) fn check_slots(view: &ReconcileContext<'_>, found: &mut Vec<Disagreement>) {
    let racks = racks_by_source(view);
    for one in &racks {
        let mut places: BTreeMap<(usize, &str), Vec<&NodeName>> = BTreeMap::new();
        for (node, slot) in &one.slots {
            places.entry((one.position_by_node[node].0, slot)).or_default().push(node);
        }
        for ((rack, slot), nodes) in places.into_iter().filter(|(_, nodes)| 1 < nodes.len()) {
            let names = list_nodes(nodes.iter().copied());
            let rack = one.names[rack];
            let summary = format!(
                "{names} are in the same slot {slot} of rack {rack} by {}",
                one.kind.label()
            );
            found.push(
                new_disagreement(
                    DisagreementClass::SlotTaken,
                    DisagreementSeverity::Contradiction,
                    summary,
                )
                .with_side(one.to_side(view, nodes[0], format!("{names} in slot {slot} of {rack}")))
                .with_nodes(nodes)
                .with_remedy("one of the entries is wrong"),
            );
        }
    }
    for (at, one) in racks.iter().enumerate() {
        for other in &racks[at + 1..] {
            let places: Vec<SlotPair<'_>> = one
                .slots
                .iter()
                .filter_map(|(node, slot)| {
                    let (ours, theirs) = (slot.parse().ok()?, other.slots.get(node)?.parse().ok()?);
                    Some(SlotPair { rack: one.position_by_node[node].0, ours, theirs, node })
                })
                .collect();
            let nodes = find_moved_nodes(&places);
            let Some(first) = nodes.first() else { continue };
            let summary = format!(
                "{} {} in other slots by {} than by {}, unlike the rest",
                list_nodes(nodes.iter().copied()),
                is_or_are(nodes.len()),
                one.kind.label(),
                other.kind.label()
            );
            found.push(
                new_disagreement(
                    DisagreementClass::SlotDisagrees,
                    DisagreementSeverity::Doubt,
                    summary,
                )
                .with_side(one.to_side(
                    view,
                    first,
                    format!("{first} in slot {}", one.slots[first]),
                ))
                .with_side(other.to_side(
                    view,
                    first,
                    format!("{first} in slot {}", other.slots[first]),
                ))
                .with_nodes(nodes.iter().copied())
                .with_remedy("check the trays: two may be swapped"),
            );
        }
    }
}
