//! What has been said so far: findings, what is not known, and remarks.
//!
//! Every stage of the judge writes here; `nodes` reads it at the end. On a bad day
//! there are as many findings as nodes: whoever asks for those of a node or a domain
//! gets them without looking at all others.

use std::collections::{BTreeMap, BTreeSet};

use super::confirm_readings::ReferenceLevels;
use super::peel;
use model::hostlist;
use model::id::{DomainName, GpuId, NodeName};
use model::unit::Unit;
use model::unknown_subject::UnknownSubject;
use model::verdict::{Finding, Locus, MeasuredScope, Outcome, UnknownEntry};

/// What has been said so far about one case.
#[derive(Debug, Default)]
pub(super) struct FindingSet {
    /// In the order they were found; nothing where one was taken out again.
    slots: Vec<Option<Finding>>,
    /// Where each is, by id.
    positions: BTreeMap<String, usize>,
    /// What the GPU of a finding shows, without the name of the GPU, by id.
    gpu_summaries: BTreeMap<String, String>,
    locus_index: LocusIndex,
    /// In the order they were told.
    pub(super) unknown: Vec<UnknownEntry>,
    unknown_set: BTreeSet<UnknownEntry>,
    pub(super) notes: Vec<String>,
    /// Why a node cannot pass, first reason first.
    pub(super) doubts: BTreeMap<NodeName, Vec<String>>,
    /// Smallest degradation that would have been seen on a node.
    pub(super) detectable: BTreeMap<NodeName, f64>,
    /// Smallest loss of all its fabric together that would have been seen on a node.
    pub(super) detectable_overall: BTreeMap<NodeName, f64>,
    /// The same over the scale-out network: the rail that could have hidden most.
    pub(super) detectable_over_rails: BTreeMap<NodeName, (Option<String>, f64)>,
    /// Whether anything of a node was compared with an expectation.
    pub(super) compared: BTreeMap<NodeName, bool>,
    /// Across which boundaries of its claim each node was measured.
    pub(super) measured_boundaries: BTreeMap<NodeName, MeasuredBoundaries>,
    /// Files of pairs over the network that gave nothing usable.
    pub(super) unusable: BTreeSet<String>,
    /// What readings were compared with.
    pub(super) levels: ReferenceLevels,
}

/// What the measurements of a node crossed.
#[derive(Clone, Debug, Default)]
pub(super) struct MeasuredBoundaries {
    /// Links inside the node were measured.
    pub(super) inside: bool,
    /// The other nodes of its NVLink domain that it was measured with.
    pub(super) domain: BTreeSet<NodeName>,
    /// The nodes that it was measured with over the network.
    pub(super) network: BTreeSet<NodeName>,
    /// The named rails that it was measured over.
    pub(super) rails: BTreeSet<String>,
}

impl MeasuredBoundaries {
    /// The same as documents have it.
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
    /// Adds a finding, unless the same part is already found guilty of the
    /// same; then its evidence joins the first.
    ///
    /// A finding that blames a part with a number that is as expected is never emitted:
    /// it becomes unknown here, whichever rule made it.
    pub(super) fn add(&mut self, finding: Finding) {
        self.insert(finding, None);
    }

    /// Adds a finding about one GPU; `shown` is its summary without the name of the GPU.
    pub(super) fn add_of_gpu(&mut self, gpu: &GpuId, finding: Finding, shown: &str) {
        let finding = finding.with_summary(format!("GPU {gpu}: {shown}"));
        self.insert(finding, Some(shown.to_owned()));
    }

    /// What the GPU of a finding shows, without the name of the GPU.
    pub(super) fn gpu_summary<'l>(&'l self, finding: &'l Finding) -> &'l str {
        self.gpu_summaries.get(&finding.id).unwrap_or(&finding.summary)
    }

    fn insert(&mut self, mut finding: Finding, mut shown: Option<String>) {
        if contradicts_itself(&finding) {
            const BLAMES_NOTHING: &str = "; that ratio is as expected, so nothing is blamed";
            finding.outcome = Outcome::Unknown;
            finding.summary.push_str(BLAMES_NOTHING);
            shown.iter_mut().for_each(|shown| shown.push_str(BLAMES_NOTHING));
            if let Some(node) = finding.locus.node.clone() {
                self.add_doubt(&node, finding.summary.clone());
            }
        }
        let place = self.positions.get(&finding.id);
        if let Some(known) = place.and_then(|at| self.slots[*at].as_mut()) {
            let outcome = known.outcome.max(finding.outcome);
            // What was measured says more than what was reported.
            let mut second = finding;
            if known.measured.is_none() && second.measured.is_some() {
                std::mem::swap(known, &mut second);
                record_gpu_summary(&mut self.gpu_summaries, &known.id, shown);
            }
            known.outcome = outcome;
            for evidence in second.evidence {
                if !known.evidence.contains(&evidence) {
                    known.evidence.push(evidence);
                }
            }
            return;
        }
        record_gpu_summary(&mut self.gpu_summaries, &finding.id, shown);
        self.positions.insert(finding.id.clone(), self.slots.len());
        self.locus_index.add(self.slots.len(), &finding.locus);
        self.slots.push(Some(finding));
    }

    /// All findings, in the order they were found.
    pub(super) fn findings(&self) -> impl Iterator<Item = &Finding> {
        self.slots.iter().flatten()
    }

    /// Those that name this node as their own or as a peer.
    pub(super) fn findings_of_node(&self, node: &NodeName) -> impl Iterator<Item = &Finding> {
        self.locus_index.of_node(node.as_str()).iter().filter_map(|at| self.slots[*at].as_ref())
    }

    /// Those that name this domain as their own.
    pub(super) fn findings_of_domain(&self, domain: &DomainName) -> impl Iterator<Item = &Finding> {
        self.locus_index.of_domain(domain).iter().filter_map(|at| self.slots[*at].as_ref())
    }

    /// Changes all, and never what they are about.
    pub(super) fn update(&mut self, change: impl FnMut(&mut Finding)) {
        self.slots.iter_mut().flatten().for_each(change);
    }

    /// Changes those that name this node, and never what they are about.
    pub(super) fn update_of_node(&mut self, node: &NodeName, change: impl FnMut(&mut Finding)) {
        let places = self.locus_index.of_node(node.as_str());
        update_at(&mut self.slots, places, change);
    }

    /// Changes those that name this domain, and never what they are about.
    pub(super) fn update_of_domain(&mut self, name: &DomainName, change: impl FnMut(&mut Finding)) {
        let places = self.locus_index.of_domain(name);
        update_at(&mut self.slots, places, change);
    }

    /// Takes out those that name this node and are wanted.
    pub(super) fn take_of_node(
        &mut self,
        node: &NodeName,
        is_wanted: impl Fn(&Finding) -> bool,
    ) -> Vec<Finding> {
        take_at(&mut self.slots, self.locus_index.of_node(node.as_str()), is_wanted)
    }

    /// Takes out those that name this domain and are wanted.
    pub(super) fn take_of_domain(
        &mut self,
        name: &DomainName,
        is_wanted: impl Fn(&Finding) -> bool,
    ) -> Vec<Finding> {
        take_at(&mut self.slots, self.locus_index.of_domain(name), is_wanted)
    }

    /// Takes out all that are wanted.
    pub(super) fn take(&mut self, is_wanted: impl Fn(&Finding) -> bool) -> Vec<Finding> {
        let all: Vec<usize> = (0..self.slots.len()).collect();
        take_at(&mut self.slots, &all, is_wanted)
    }

    /// Something is not known.
    pub(super) fn add_unknown(&mut self, what: UnknownSubject, why: impl Into<String>) {
        let unknown = UnknownEntry { what, why: why.into() };
        if self.unknown_set.insert(unknown.clone()) {
            self.unknown.push(unknown);
        }
    }

    /// It is known after all.
    pub(super) fn remove_unknown(&mut self, what: &UnknownSubject) {
        self.unknown.retain(|unknown| unknown.what != *what);
        self.unknown_set.retain(|unknown| unknown.what != *what);
    }

    /// A node cannot pass, for this reason.
    pub(super) fn add_doubt(&mut self, node: &NodeName, why: impl Into<String>) {
        let why = why.into();
        let reasons = self.doubts.entry(node.clone()).or_default();
        if !reasons.contains(&why) {
            reasons.push(why);
        }
    }

    /// Something of this node was compared with an expectation.
    pub(super) fn mark_compared(&mut self, node: &NodeName) {
        self.compared.insert(node.clone(), true);
    }

    /// Something of this node was measured, whatever it was compared with.
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

    /// The worst degradation that this node could have hidden.
    pub(super) fn record_detectable(&mut self, node: &NodeName, detectable: f64) {
        let worst = self.detectable.entry(node.clone()).or_insert(detectable);
        *worst = worst.max(detectable);
    }

    /// The worst loss of all parts together that this node could have hidden.
    pub(super) fn record_detectable_overall(&mut self, node: &NodeName, detectable: f64) {
        let worst = self.detectable_overall.entry(node.clone()).or_insert(detectable);
        *worst = worst.max(detectable);
    }
}

/// Notes what the GPU of a finding shows, or that it is not told without its name.
fn record_gpu_summary(all: &mut BTreeMap<String, String>, id: &str, shown: Option<String>) {
    match shown {
        Some(shown) => _ = all.insert(id.to_owned(), shown),
        None => _ = all.remove(id),
    }
}

/// Whether the ratio that a finding prints contradicts its outcome: an effect that small
/// is inside the spread of healthy fabrics.
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

/// Where findings are, by what their loci name.
#[derive(Debug, Default)]
pub(super) struct LocusIndex {
    nodes: BTreeMap<String, Vec<usize>>,
    domains: BTreeMap<DomainName, Vec<usize>>,
}

impl LocusIndex {
    /// The finding at this place is about this part.
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

    /// Those that name this node as their own or as a peer, in order.
    pub(super) fn of_node(&self, node: &str) -> &[usize] {
        self.nodes.get(node).map_or(&[], Vec::as_slice)
    }

    /// Those that name this domain as their own, in order.
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
    fn a_finding_is_known_by_its_ends_and_its_domain_until_it_is_taken_out() {
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
        // What is found again after that is a finding again, behind the others.
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
        // A count has no such line.
        let mut ledger = FindingSet::default();
        ledger.add(pair("a", "b").with_numbers(8.0, 8.0, Unit::Count));
        assert_eq!(ledger.findings().next().map(|f| f.outcome), Some(Outcome::Degraded));
    }

    #[test]
    fn what_is_not_known_is_told_once() {
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
