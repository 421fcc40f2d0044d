//! Leaves of the scale-out network: a leaf whose pairs with all other leaves are low, while its
//! internal pairs are normal, has slow uplinks.
//!
//! Judged before the nodes: in a sweep most partners of a node sit under other leaves, so every
//! node of such a leaf would look faulty.

use std::collections::{BTreeMap, BTreeSet};

use super::finding::new_finding;
use super::rail_readings::{RailReadings, order_pair};
use model::claim_index::ClaimIndex;
use model::claims::Claims;
use model::finding_class::FindingClass;
use model::finding_rule::RuleKind;
use model::id::NodeName;
use model::stats;
use model::text::format_percent;
use model::verdict::{Finding, Locus, LocusKind, Outcome};

/// Flows that share an uplink by chance read lower: with two hosts per leaf, 5 % of healthy pairs
/// are below 0.95 and almost none below this.
const MIN_EFFECT: f64 = 0.12;

/// Fewer cells are not enough to judge a leaf.
const FEWEST_CELLS: usize = 4;

/// The result for the leaves of a rail.
#[derive(Debug, Default)]
pub(super) struct LeafJudgement {
    pub(super) findings: Vec<Finding>,
    pub(super) doubts: Vec<(NodeName, String)>,
    /// Pairs whose low readings the leaves explain.
    pub(super) explained: BTreeSet<(usize, usize)>,
}

/// Whether nearly all nodes of a leaf are low with other leaves. Uplinks are shared, so if some
/// nodes of a leaf read normally across leaves, the low ones have slow NICs and the uplinks are
/// healthy. `across` holds each node's readings with other leaves.
fn are_nearly_all_low<'v>(across: impl Iterator<Item = &'v Vec<f64>>) -> bool {
    const NEARLY_ALL: f64 = 0.75;
    // Half of a node's partners may be slow themselves.
    const MOST: f64 = 0.75;
    let upper = across.filter_map(|values| stats::quantile(&mut values.clone(), MOST));
    let (mut all, mut low) = (0.0, 0.0);
    for share in upper {
        all += 1.0;
        low += if share < 1.0 - MIN_EFFECT { 1.0 } else { 0.0 };
    }
    NEARLY_ALL * all <= low
}

/// The summary about a low leaf: alone, with `peer`, or all leaves over the `spine`.
fn describe_low_leaf(
    rail: &RailReadings<'_>,
    leaf: &str,
    peer: Option<&str>,
    spine: bool,
    share: &str,
) -> String {
    let suffix = rail.sentence_suffix();
    match peer {
        _ if spine => format!(
            "all pairs between leaves{suffix} are {share} low, and those inside are normal: the \
             spine or all uplinks are slow; check the error counters of the leaves' uplink ports"
        ),
        Some(peer) => format!(
            "pairs between leaves {leaf} and {peer}{suffix} are {share} low, and those inside are \
             normal: the uplinks of one of the two are slow; measure pairs of each with a third \
             leaf"
        ),
        None => format!(
            "all pairs between leaf {leaf} and others{suffix} are {share} low, and those inside it \
             are normal: its uplinks are slow"
        ),
    }
}

/// Judges the leaves of a rail. `levels` holds the levels of the groups.
pub(super) fn judge(rail: &RailReadings<'_>, claims: &Claims, levels: &[f64]) -> LeafJudgement {
    let mut out = LeafJudgement::default();
    let claim_index = ClaimIndex::from_claims(claims);
    let leaf_of: Vec<Option<usize>> =
        rail.nodes.iter().map(|node| claim_index.leaf_position_of(node)).collect();
    // The reference is the same test between pairs inside leaves.
    let reference = |group: usize| {
        let wanted = &rail.groups[group].testcase;
        let inside = rail
            .groups
            .iter()
            .zip(levels)
            .find(|(g, _)| !g.crosses_leaves && g.testcase == *wanted);
        inside.map(|(_, level)| *level).filter(|level| level.is_finite())
    };
    let mut inside: BTreeMap<usize, Vec<f64>> = BTreeMap::new();
    let mut across: BTreeMap<(usize, usize), Vec<f64>> = BTreeMap::new();
    let mut by_node: BTreeMap<usize, Vec<f64>> = BTreeMap::new();
    let mut ends: BTreeMap<(usize, usize), BTreeSet<usize>> = BTreeMap::new();
    for r in &rail.readings {
        let (Some(a), Some(b)) = (leaf_of[r.src], leaf_of[r.dst]) else { continue };
        let Some(level) = reference(r.group) else { continue };
        if a == b {
            inside.entry(a).or_default().push(r.value / level);
        } else {
            across.entry(order_pair(a, b)).or_default().push(r.value / level);
            for end in [r.src, r.dst] {
                by_node.entry(end).or_default().push(r.value / level);
            }
            ends.entry(order_pair(a, b)).or_default().extend([r.src, r.dst]);
        }
    }
    let shares: BTreeMap<(usize, usize), f64> = across
        .iter_mut()
        .filter(|(_, values)| FEWEST_CELLS <= values.len())
        .filter_map(|(pair, values)| Some((*pair, stats::median(values)?)))
        .collect();
    let is_low = |share: f64| share < 1.0 - MIN_EFFECT;
    let of = |leaf: usize| shares.iter().filter(move |((a, b), _)| *a == leaf || *b == leaf);
    let low: Vec<usize> = (0..claims.leaves.len())
        .filter(|leaf| of(*leaf).next().is_some() && of(*leaf).all(|(_, share)| is_low(*share)))
        .filter(|leaf| {
            let fine = |values: &Vec<f64>| {
                stats::median(&mut values.clone()).is_some_and(|share| !is_low(share))
            };
            inside.get(leaf).is_some_and(fine)
        })
        .filter(|leaf| {
            // A single node on either side could be the cause itself.
            let met: BTreeSet<usize> =
                of(*leaf).filter_map(|(pair, _)| ends.get(pair)).flatten().copied().collect();
            let here = met.iter().filter(|end| leaf_of[**end] == Some(*leaf)).count();
            1 < here && 1 < met.len() - here
        })
        .filter(|leaf| {
            let here = by_node.iter().filter(|(end, _)| leaf_of[**end] == Some(*leaf));
            are_nearly_all_low(here.map(|(_, values)| values))
        })
        .collect();
    let compared: BTreeSet<usize> = shares.keys().flat_map(|(a, b)| [*a, *b]).collect();
    let everywhere = low.len() == compared.len();
    for leaf in low.iter().take(if everywhere { 1 } else { low.len() }) {
        let claimed = &claims.leaves[*leaf];
        let mut values: Vec<f64> = of(*leaf).map(|(_, share)| *share).collect();
        let share = format_percent(1.0 - stats::median(&mut values).unwrap_or(1.0));
        // Between two leaves, the uplinks of either may be the cause.
        let other = low.iter().find(|l| *l != leaf).filter(|_| low.len() == 2 && everywhere);
        let others: Vec<&str> = low.iter().map(|l| claims.leaves[*l].name.as_str()).collect();
        let spine = everywhere && 2 < low.len();
        let peer = other.filter(|_| !spine).map(|other| claims.leaves[*other].name.clone());
        let summary = describe_low_leaf(rail, &claimed.name, peer.as_deref(), spine, &share);
        let name = if spine { others.join(",") } else { claimed.name.clone() };
        let locus = Locus {
            leaf: Some(name),
            peer,
            rail: rail.name.clone(),
            ..Locus::new(LocusKind::Leaf)
        };
        let rule = RuleKind::Leaf.with_terms(format!(
            "the median between every two leaves lies more than {} below the level inside leaves",
            format_percent(MIN_EFFECT)
        ));
        let mut found = new_finding(Outcome::Degraded, FindingClass::LeafLow, locus, &rule)
            .with_summary(summary.clone());
        let crossing = rail.files.iter().filter(|((a, b), _)| {
            leaf_of[*a] != leaf_of[*b]
                && (spine || [leaf_of[*a], leaf_of[*b]].contains(&Some(*leaf)))
        });
        for file in crossing.flat_map(|(_, files)| files).take(4) {
            found = found.with_evidence(file, None, "a pair between leaves");
        }
        out.findings.push(found);
        let affected = if everywhere { low.as_slice() } else { std::slice::from_ref(leaf) };
        for node in affected.iter().flat_map(|l| &claims.leaves[*l].nodes) {
            let reason = format!("no finding against this node, but {summary}");
            out.doubts.push((node.clone(), reason));
        }
    }
    for r in &rail.readings {
        let affected = |end: usize| leaf_of[end].is_some_and(|leaf| low.contains(&leaf));
        if leaf_of[r.src] != leaf_of[r.dst] && (affected(r.src) || affected(r.dst)) {
            out.explained.insert(order_pair(r.src, r.dst));
        }
    }
    out
}
