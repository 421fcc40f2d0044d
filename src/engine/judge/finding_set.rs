//! The intermediate results of the judge: findings, unknowns, and notes.
//!
//! Every stage of the judge writes here; `node_verdicts` reads it at the end. A large failure
//! produces as many findings as nodes, so the findings of a node or a domain are indexed.

use std::collections::{BTreeMap, BTreeSet};

use super::confirm_readings::ReferenceLevels;
use super::peel;
use model::hostlist;
use model::id::{DomainName, GpuId, NodeName};
use model::unit::Unit;
use model::unknown_subject::UnknownSubject;
use model::verdict::{Finding, Locus, MeasuredScope, Outcome, UnknownEntry};

/// The intermediate results for one case.
#[derive(Debug, Default)]
pub(super) struct FindingSet {
    /// In the order they were found; `None` for a removed finding.
    slots: Vec<Option<Finding>>,
    /// The slot of each finding, by ID.
    positions: BTreeMap<String, usize>,
    /// A GPU finding's summary without the GPU's name, by finding ID.
    gpu_summaries: BTreeMap<String, String>,
    locus_index: LocusIndex,
    /// In the order they were added.
    pub(super) unknown: Vec<UnknownEntry>,
    unknown_set: BTreeSet<UnknownEntry>,
    pub(super) notes: Vec<String>,
    /// Reasons why a node cannot pass, most important first.
    pub(super) doubts: BTreeMap<NodeName, Vec<String>>,
    /// The smallest detectable degradation of a node.
    pub(super) detectable: BTreeMap<NodeName, f64>,
    /// The smallest detectable loss of a node's whole fabric.
    pub(super) detectable_overall: BTreeMap<NodeName, f64>,
    /// The same over the scale-out network: the rail that could hide the largest loss.
    pub(super) detectable_over_rails: BTreeMap<NodeName, (Option<String>, f64)>,
    /// Whether any reading of a node was compared with an expectation.
    pub(super) compared: BTreeMap<NodeName, bool>,
    /// Which boundaries of its claim each node's measurements crossed.
    pub(super) measured_boundaries: BTreeMap<NodeName, MeasuredBoundaries>,
    /// Files of network pairs without a usable result.
    pub(super) unusable: BTreeSet<String>,
    pub(super) levels: ReferenceLevels,
}

/// The boundaries that a node's measurements crossed.
#[derive(Clone, Debug, Default)]
pub(super) struct MeasuredBoundaries {
    /// Links inside the node were measured.
    pub(super) inside: bool,
    /// The other nodes of its NVLink domain that took part in its measurements.
    pub(super) domain: BTreeSet<NodeName>,
    /// The nodes that it was measured with over the network.
    pub(super) network: BTreeSet<NodeName>,
    /// The named rails that it was measured over.
    pub(super) rails: BTreeSet<String>,
}

impl MeasuredBoundaries {
    pub(super) fn to_scope(&self) -> MeasuredScope {
        let list = |nodes: &BTreeSet<NodeName>| {
            (!nodes.is_empty()).then(|| hostlist::fold(nodes.iter().map(NodeName::as_str)))
        };
        MeasuredScope {
            inside: self.inside,
            domain: list(&self.domain),
            network: list(&self.network),
            rails: self.rails.iter().cloned().collect(),
        }
    }
}

impl FindingSet {
    /// Adds a finding. If the same part already has a finding of the same class, the evidence is
    /// merged into that one.
    ///
    /// A finding never blames a part with a number that is as expected: such a finding becomes
    /// unknown here, whichever rule created it.
    pub(super) fn add(&mut self, finding: Finding) {
        self.insert(finding, None);
    }

    /// Adds a finding about one GPU; `short_summary` omits the GPU's name.
    pub(super) fn add_of_gpu(&mut self, gpu: &GpuId, finding: Finding, short_summary: &str) {
        let finding = finding.with_summary(format!("GPU {gpu}: {short_summary}"));
        self.insert(finding, Some(short_summary.to_owned()));
    }

    /// A GPU finding's summary without the GPU's name.
    pub(super) fn gpu_summary<'l>(&'l self, finding: &'l Finding) -> &'l str {
        self.gpu_summaries.get(&finding.id).unwrap_or(&finding.summary)
    }

    fn insert(&mut self, mut finding: Finding, mut short_summary: Option<String>) {
        if contradicts_itself(&finding) {
            const BLAMES_NOTHING: &str = "; that ratio is as expected, so nothing is blamed";
            finding.outcome = Outcome::Unknown;
            finding.summary.push_str(BLAMES_NOTHING);
            short_summary
                .iter_mut()
                .for_each(|short_summary| short_summary.push_str(BLAMES_NOTHING));
            if let Some(node) = finding.locus.node.clone() {
                self.add_doubt(&node, finding.summary.clone());
            }
        }
        let place = self.positions.get(&finding.id);
        if let Some(known) = place.and_then(|at| self.slots[*at].as_mut()) {
            let outcome = known.outcome.max(finding.outcome);
            // A measurement carries more information than a reported state.
            let mut second = finding;
            if known.measured.is_none() && second.measured.is_some() {
                std::mem::swap(known, &mut second);
                record_gpu_summary(&mut self.gpu_summaries, &known.id, short_summary);
            }
            known.outcome = outcome;
            for evidence in second.evidence {
                if !known.evidence.contains(&evidence) {
                    known.evidence.push(evidence);
                }
            }
            return;
        }
        record_gpu_summary(&mut self.gpu_summaries, &finding.id, short_summary);
        self.positions.insert(finding.id.clone(), self.slots.len());
        self.locus_index.add(self.slots.len(), &finding.locus);
        self.slots.push(Some(finding));
    }

    /// All findings, in the order they were found.
    pub(super) fn findings(&self) -> impl Iterator<Item = &Finding> {
        self.slots.iter().flatten()
    }

    /// Findings whose locus or peer is this node.
    pub(super) fn findings_of_node(&self, node: &NodeName) -> impl Iterator<Item = &Finding> {
        self.locus_index.of_node(node.as_str()).iter().filter_map(|at| self.slots[*at].as_ref())
    }

    /// Findings whose locus is in this domain.
    pub(super) fn findings_of_domain(&self, domain: &DomainName) -> impl Iterator<Item = &Finding> {
        self.locus_index.of_domain(domain).iter().filter_map(|at| self.slots[*at].as_ref())
    }

    /// Updates every finding; the locus must not change.
    pub(super) fn update(&mut self, change: impl FnMut(&mut Finding)) {
        self.slots.iter_mut().flatten().for_each(change);
    }

    /// Updates the findings that name this node; the locus must not change.
    pub(super) fn update_of_node(&mut self, node: &NodeName, change: impl FnMut(&mut Finding)) {
        let places = self.locus_index.of_node(node.as_str());
        update_at(&mut self.slots, places, change);
    }

    /// Updates the findings that name this domain; the locus must not change.
    pub(super) fn update_of_domain(&mut self, name: &DomainName, change: impl FnMut(&mut Finding)) {
        let places = self.locus_index.of_domain(name);
        update_at(&mut self.slots, places, change);
    }

    /// Removes the findings that name this node and match the filter.
    pub(super) fn take_of_node(
        &mut self,
        node: &NodeName,
        is_wanted: impl Fn(&Finding) -> bool,
    ) -> Vec<Finding> {
        take_at(&mut self.slots, self.locus_index.of_node(node.as_str()), is_wanted)
    }

    /// Removes the findings that name this domain and match the filter.
    pub(super) fn take_of_domain(
        &mut self,
        name: &DomainName,
        is_wanted: impl Fn(&Finding) -> bool,
    ) -> Vec<Finding> {
        take_at(&mut self.slots, self.locus_index.of_domain(name), is_wanted)
    }

    /// Removes all findings that match the filter.
    pub(super) fn take(&mut self, is_wanted: impl Fn(&Finding) -> bool) -> Vec<Finding> {
        let all: Vec<usize> = (0..self.slots.len()).collect();
        take_at(&mut self.slots, &all, is_wanted)
    }

    pub(super) fn add_unknown(&mut self, what: UnknownSubject, why: impl Into<String>) {
        let unknown = UnknownEntry { what, why: why.into() };
        if self.unknown_set.insert(unknown.clone()) {
            self.unknown.push(unknown);
        }
    }

    pub(super) fn remove_unknown(&mut self, what: &UnknownSubject) {
        self.unknown.retain(|unknown| unknown.what != *what);
        self.unknown_set.retain(|unknown| unknown.what != *what);
    }

    /// Records a reason why a node cannot pass.
    pub(super) fn add_doubt(&mut self, node: &NodeName, why: impl Into<String>) {
        let why = why.into();
        let reasons = self.doubts.entry(node.clone()).or_default();
        if !reasons.contains(&why) {
            reasons.push(why);
        }
    }

    /// A reading of this node was compared with an expectation.
    pub(super) fn mark_compared(&mut self, node: &NodeName) {
        self.compared.insert(node.clone(), true);
    }

    /// A reading of this node exists, with or without a reference.
    pub(super) fn mark_measured(&mut self, node: &NodeName) {
        self.compared.entry(node.clone()).or_insert(false);
    }

    /// The same over a rail of the scale-out network.
    pub(super) fn record_detectable_over_rail(
        &mut self,
        node: &NodeName,
        rail: Option<&str>,
        detectable: f64,
    ) {
        let worst = self.detectable_over_rails.entry(node.clone()).or_default();
        if worst.1 < detectable {
            *worst = (rail.map(str::to_owned), detectable);
        }
    }

    /// Records the largest degradation that this node could hide.
    pub(super) fn record_detectable(&mut self, node: &NodeName, detectable: f64) {
        let worst = self.detectable.entry(node.clone()).or_insert(detectable);
        *worst = worst.max(detectable);
    }

    /// Records the largest total loss that this node could hide.
    pub(super) fn record_detectable_overall(&mut self, node: &NodeName, detectable: f64) {
        let worst = self.detectable_overall.entry(node.clone()).or_insert(detectable);
        *worst = worst.max(detectable);
    }
}

/// Stores a GPU finding's summary without the GPU's name, or that none exists.
fn record_gpu_summary(all: &mut BTreeMap<String, String>, id: &str, short_summary: Option<String>) {
    match short_summary {
        Some(short_summary) => _ = all.insert(id.to_owned(), short_summary),
        None => _ = all.remove(id),
    }
}

/// Whether a finding's printed ratio contradicts its outcome: an effect that small lies within the
/// spread of healthy fabrics.
fn contradicts_itself(finding: &Finding) -> bool {
    /// Ratios are printed with four decimals.
    const ROUNDING: f64 = 5e-4;
    let is_rate = finding.unit.is_some_and(Unit::is_bandwidth);
    is_rate
        && Outcome::Unknown < finding.outcome
        && finding.deciding_share().is_some_and(|ratio| 1.0 - peel::MIN_EFFECT + ROUNDING < ratio)
}

fn update_at(
    found: &mut [Option<Finding>],
    places: &[usize],
    mut change: impl FnMut(&mut Finding),
) {
    for at in places {
        if let Some(finding) = &mut found[*at] {
            change(finding);
        }
    }
}

fn take_at(
    found: &mut [Option<Finding>],
    places: &[usize],
    is_wanted: impl Fn(&Finding) -> bool,
) -> Vec<Finding> {
    places.iter().filter_map(|at| found[*at].take_if(|finding| is_wanted(finding))).collect()
}

/// Indexes findings by the names in their loci.
#[derive(Debug, Default)]
pub(super) struct LocusIndex {
    nodes: BTreeMap<String, Vec<usize>>,
    domains: BTreeMap<DomainName, Vec<usize>>,
}

impl LocusIndex {
    /// Adds the finding at index `at`.
    pub(super) fn add(&mut self, at: usize, locus: &Locus) {
        let own = locus.node.as_ref().map(NodeName::as_str);
        let peer = locus.peer.as_deref();
        // The far end of a pair is a node, or `node:gpu`.
        let host = peer.and_then(|peer| peer.rsplit_once(':')).map(|(node, _)| node);
        let names: BTreeSet<&str> = [own, peer, host].into_iter().flatten().collect();
        for name in names {
            match self.nodes.get_mut(name) {
                Some(places) => places.push(at),
                None => _ = self.nodes.insert(name.to_owned(), vec![at]),
            }
        }
        if let Some(domain) = &locus.domain {
            self.domains.entry(domain.clone()).or_default().push(at);
        }
    }

    /// Indices of findings whose locus or peer is this node, in order.
    pub(super) fn of_node(&self, node: &str) -> &[usize] {
        self.nodes.get(node).map_or(&[], Vec::as_slice)
    }

    /// Indices of findings whose locus is in this domain, in order.
    pub(super) fn of_domain(&self, domain: &DomainName) -> &[usize] {
        self.domains.get(domain).map_or(&[], Vec::as_slice)
    }
}

#[cfg(test)]
mod tests {
    use super::super::finding::{domain_locus, new_finding, node_locus};
    use super::*;
    use model::finding_class::FindingClass;
    use model::finding_rule::FindingRule;
    use model::verdict::LocusKind;

    fn pair(a: &str, peer: &str) -> Finding {
        let locus = node_locus(&"d".into(), &a.into());
        let locus = Locus { kind: LocusKind::Pair, peer: Some(peer.to_owned()), ..locus };
        new_finding(Outcome::Degraded, FindingClass::NvlinkLow, locus, FindingRule::default())
    }

    fn ids<'f>(findings: impl Iterator<Item = &'f Finding>) -> Vec<String> {
        findings.map(|f| f.locus.to_string()).collect()
    }

    #[test]
    fn a_finding_is_indexed_by_its_ends_and_domain_until_it_is_removed() {
        let mut ledger = FindingSet::default();
        let domain = new_finding(
            Outcome::Failed,
            FindingClass::SplitDomain,
            domain_locus(LocusKind::Domain, &"d".into()),
            FindingRule::default(),
        );
        for one in [pair("a", "b"), domain, pair("a", "c:3"), pair("b", "c")] {
            ledger.add(one.clone());
            ledger.add(one);
        }
        assert_eq!(ledger.findings().count(), 4);
        let of = |ledger: &FindingSet, node: &str| ids(ledger.findings_of_node(&node.into())).len();
        assert_eq!([of(&ledger, "a"), of(&ledger, "b"), of(&ledger, "c")], [2, 2, 2]);
        assert_eq!(ledger.findings_of_domain(&"d".into()).count(), 4);
        let taken = ledger.take_of_node(&"c".into(), |f| f.locus.node == Some("a".into()));
        assert_eq!(ids(taken.iter()), ["pair a - c:3"]);
        assert_eq!([of(&ledger, "a"), of(&ledger, "b"), of(&ledger, "c")], [1, 2, 1]);
        // A part that is found again later gets a new finding at the end.
        ledger.add(pair("a", "c:3"));
        assert_eq!(ids(ledger.findings_of_node(&"a".into())).len(), 2);
        assert_eq!(ids(ledger.findings()).last().map(String::as_str), Some("pair a - c:3"));
        ledger.update_of_domain(&"d".into(), |f| f.summary.push('!'));
        assert!(ledger.findings().all(|f| f.summary == "!"));
        assert_eq!(ledger.take(|f| f.class == FindingClass::SplitDomain).len(), 1);
        assert_eq!(ledger.findings().count(), 3);
    }

    #[test]
    fn a_finding_whose_own_ratio_is_as_expected_blames_no_part() {
        for (ratio, outcome) in
            [(0.9, Outcome::Degraded), (0.972, Outcome::Degraded), (1.0008, Outcome::Unknown)]
        {
            let mut ledger = FindingSet::default();
            let low = pair("a", "b").with_numbers(ratio * 400.0, 400.0, Unit::GigabytesPerSecond);
            ledger.add(low);
            assert_eq!(ledger.findings().next().map(|f| f.outcome), Some(outcome), "{ratio}");
            assert_eq!(ledger.doubts.len(), usize::from(outcome == Outcome::Unknown));
        }
        // A count has no such threshold.
        let mut ledger = FindingSet::default();
        ledger.add(pair("a", "b").with_numbers(8.0, 8.0, Unit::Count));
        assert_eq!(ledger.findings().next().map(|f| f.outcome), Some(Outcome::Degraded));
    }

    #[test]
    fn an_unknown_subject_is_listed_once() {
        let mut ledger = FindingSet::default();
        for at in 0..3 {
            ledger.add_unknown(
                UnknownSubject::Domain((at % 2).to_string().as_str().into()),
                "nothing was measured",
            );
        }
        assert_eq!(ledger.unknown.len(), 2);
    }
}
