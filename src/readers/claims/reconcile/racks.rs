//! Racks and slots: two sources against each other, one against itself, and
//! racks against NVLink domains.
//!
//! One source writes a chassis serial where another writes a place in the hall:
//! names of racks are not compared, only who shares one.

use std::collections::BTreeMap;

use super::compare::compare;
use super::view::View;
use super::words::disagreement;
use super::words::is;
use super::words::listed;
use super::words::some;
use model::disagreement::Disagreement;
use model::disagreement::Severity;
use model::disagreement::Side;
use model::disagreement_class::DisagreementClass;
use model::id::NodeName;
use model::said::Basis;
use model::said::GroupKind;
use model::said::SourceKind;

/// The racks of one kind of source.
struct Racks<'s> {
    kind: SourceKind,
    names: Vec<&'s str>,
    of: BTreeMap<&'s NodeName, (usize, usize)>,
    slots: BTreeMap<&'s NodeName, &'s str>,
}

fn racks<'s>(view: &View<'s>) -> Vec<Racks<'s>> {
    let mut kinds: BTreeMap<SourceKind, (Racks<'s>, BTreeMap<&'s str, usize>)> = BTreeMap::new();
    let mut enter = |source: usize, node: &'s NodeName, rack: &'s str, slot: Option<&'s str>| {
        let kind = view.said[source].source.kind;
        let (racks, known) = kinds.entry(kind).or_insert_with(|| {
            (
                Racks { kind, names: vec![], of: BTreeMap::new(), slots: BTreeMap::new() },
                BTreeMap::new(),
            )
        });
        let at = *known.entry(rack).or_insert_with(|| {
            racks.names.push(rack);
            racks.names.len() - 1
        });
        racks.of.entry(node).or_insert((at, source));
        if let Some(slot) = slot {
            racks.slots.entry(node).or_insert(slot);
        }
    };
    for (source, node, said) in view.node_words() {
        if let Some(rack) = &said.rack {
            enter(source, node, rack, said.slot.as_deref());
        }
    }
    for grouping in view.groupings.iter().filter(|g| g.kind == GroupKind::Rack) {
        for set in &grouping.sets {
            for node in &set.nodes {
                enter(set.groups[0].0, node, set.name, None);
            }
        }
    }
    kinds.into_values().map(|(racks, _)| racks).collect()
}

impl Racks<'_> {
    fn side(&self, view: &View<'_>, node: &NodeName, says: String) -> Side {
        let basis = match self.kind {
            SourceKind::NodeFacts => Basis::Reported,
            _ => Basis::Asserted,
        };
        view.source(self.of[node].1, None, basis, says)
    }
}

/// `rack-disagrees` between sources; `rack-against-domain` where a domain of a
/// rack-scale platform has nodes in another rack.
pub(super) fn shared(view: &View<'_>, found: &mut Vec<Disagreement>) {
    let racks = racks(view);
    for (at, one) in racks.iter().enumerate() {
        for other in &racks[at + 1..] {
            // A rack of one that is split by the other shows from one side only.
            if !between(view, one, other, found) {
                between(view, other, one, found);
            }
        }
    }
    for one in &racks {
        let a =
            |node: &NodeName| view.placed.of(node).filter(|at| view.spans_nodes(*at) == Some(true));
        let b = |node: &NodeName| one.of.get(node).map(|(rack, _)| *rack);
        for strays in compare(one.of.keys().copied(), a, b).strays {
            let Some(main) = strays.main else { continue };
            let nodes: Vec<&NodeName> =
                strays.elsewhere.values().flat_map(|n| n.iter().copied()).collect();
            let names = listed(nodes.iter().copied());
            let domain = view.domain(strays.set);
            let there = some(strays.elsewhere.keys().map(|rack| one.names[*rack]));
            let summary = format!(
                "{names} of {domain} {} in rack {there} by {}, most of {domain} is in {}",
                is(nodes.len()),
                one.kind.words(),
                one.names[main]
            );
            let told = disagreement(DisagreementClass::RackAgainstDomain, Severity::Doubt, summary)
                .in_domain(domain)
                .side(one.side(view, nodes[0], format!("{names} in rack {there}")))
                .about(nodes)
                .remedy(
                    "NVLink ends at the rack on such platforms: find out where these nodes are",
                );
            let claim = view.claim(strays.set, format!("{names} in {domain}"));
            found.push(claim.into_iter().fold(told, Disagreement::side));
        }
    }
}

/// Nodes that one source has in a rack with others, and the other source not;
/// whether there are any.
fn between(
    view: &View<'_>,
    one: &Racks<'_>,
    other: &Racks<'_>,
    found: &mut Vec<Disagreement>,
) -> bool {
    let a = |node: &NodeName| one.of.get(node).map(|(rack, _)| *rack);
    let b = |node: &NodeName| other.of.get(node).map(|(rack, _)| *rack);
    let comparison = compare(one.of.keys().copied(), a, b);
    for strays in &comparison.strays {
        let nodes: Vec<&NodeName> =
            strays.elsewhere.values().flat_map(|n| n.iter().copied()).collect();
        let names = listed(nodes.iter().copied());
        let there = some(strays.elsewhere.keys().map(|rack| other.names[*rack]));
        let summary = format!(
            "{names} {} in rack {} by {}, and in {there} by {}, unlike the others of that rack",
            is(nodes.len()),
            one.names[strays.set],
            one.kind.words(),
            other.kind.words()
        );
        found.push(
            disagreement(DisagreementClass::RackDisagrees, Severity::Doubt, summary)
                .side(one.side(view, nodes[0], format!("rack {}", one.names[strays.set])))
                .side(other.side(view, nodes[0], format!("rack {there}")))
                .about(nodes)
                .remedy("look at the trays: one was moved, or one list is old"),
        );
    }
    !comparison.strays.is_empty()
}

/// A node in a rack, by two sources that number slots.
struct Placed<'s> {
    rack: usize,
    ours: i64,
    theirs: i64,
    node: &'s NodeName,
}

impl Placed<'_> {
    fn shift(&self) -> i64 {
        self.theirs.saturating_sub(self.ours)
    }
}

/// Nodes that are in another place by the second source, where most of all have the same
/// difference. Some count slots from 0, some from 1, some rack units, and some the switch
/// trays too (NVML's `slotNumber` does): those shift all above them alike and change no order.
fn moved<'s>(places: &[Placed<'s>]) -> Vec<&'s NodeName> {
    let mut shifts: BTreeMap<i64, usize> = BTreeMap::new();
    let mut racks: BTreeMap<usize, Vec<&Placed<'_>>> = BTreeMap::new();
    for place in places {
        *shifts.entry(place.shift()).or_default() += 1;
        racks.entry(place.rack).or_default().push(place);
    }
    let usual = shifts.into_iter().find(|(_, nodes)| places.len() < 2 * nodes);
    let Some((usual, _)) = usual else { return Vec::new() };
    let is_turned = |place: &Placed<'_>| {
        let others = racks[&place.rack].iter().filter(|it| it.ours != place.ours);
        let mut turns = others.map(|it| (it.ours < place.ours) != (it.theirs < place.theirs));
        turns.any(|it| it)
    };
    let is_alone = |place: &Placed<'_>| {
        racks[&place.rack].iter().filter(|it| it.shift() == place.shift()).count() == 1
    };
    let differs = places.iter().filter(|place| place.shift() != usual);
    differs.filter(|place| is_alone(place) || is_turned(place)).map(|place| place.node).collect()
}

/// `slot-taken`: two nodes in one slot of one rack. `slot-disagrees`: a node in
/// another slot, counted from where most of its rack agree.
pub(super) fn slots(view: &View<'_>, found: &mut Vec<Disagreement>) {
    let racks = racks(view);
    for one in &racks {
        let mut places: BTreeMap<(usize, &str), Vec<&NodeName>> = BTreeMap::new();
        for (node, slot) in &one.slots {
            places.entry((one.of[node].0, slot)).or_default().push(node);
        }
        for ((rack, slot), nodes) in places.into_iter().filter(|(_, nodes)| 1 < nodes.len()) {
            let names = listed(nodes.iter().copied());
            let rack = one.names[rack];
            let summary = format!(
                "{names} are in the same slot {slot} of rack {rack} by {}",
                one.kind.words()
            );
            found.push(
                disagreement(DisagreementClass::SlotTaken, Severity::Contradiction, summary)
                    .side(one.side(view, nodes[0], format!("{names} in slot {slot} of {rack}")))
                    .about(nodes)
                    .remedy("one of the entries is wrong"),
            );
        }
    }
    for (at, one) in racks.iter().enumerate() {
        for other in &racks[at + 1..] {
            let places: Vec<Placed<'_>> = one
                .slots
                .iter()
                .filter_map(|(node, slot)| {
                    let (ours, theirs) = (slot.parse().ok()?, other.slots.get(node)?.parse().ok()?);
                    Some(Placed { rack: one.of[node].0, ours, theirs, node })
                })
                .collect();
            let nodes = moved(&places);
            let Some(first) = nodes.first() else { continue };
            let summary = format!(
                "{} {} in other slots by {} than by {}, unlike the rest",
                listed(nodes.iter().copied()),
                is(nodes.len()),
                one.kind.words(),
                other.kind.words()
            );
            found.push(
                disagreement(DisagreementClass::SlotDisagrees, Severity::Doubt, summary)
                    .side(one.side(view, first, format!("{first} in slot {}", one.slots[first])))
                    .side(other.side(
                        view,
                        first,
                        format!("{first} in slot {}", other.slots[first]),
                    ))
                    .about(nodes.iter().copied())
                    .remedy("look at the trays: two may be swapped"),
            );
        }
    }
}
