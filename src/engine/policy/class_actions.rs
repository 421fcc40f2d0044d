//! The action that a class of findings justifies (a drain at any cost, a drain if it pays, or a
//! mark), and how certain a finding is.
//!
//! Pure. The judge sets the class of a finding; a class that this version does not know counts
//! by its outcome alone.

use std::collections::{BTreeMap, BTreeSet};

use model::claims::{ClaimedDomain, Claims, GroupAssertion};
use model::finding_class::FindingClass;
use model::id::NodeName;
use model::source_report::{ClaimBasis, NodeGroupKind};
use model::verdict::{Finding, Outcome};

/// The kind of statement that a class makes about a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ClassMeaning {
    /// A rate and nothing else: a transient cause (heat, power, another process) has the same
    /// effect.
    Level,
    /// A driver's report about its own state: one of several votes (algorithms, section 6.2).
    /// Without a measurement that agrees, it triggers no action.
    DriverState,
    /// Something is broken or not as claimed.
    Fault,
}

/// The evidence that confirms a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ConfirmationSource {
    /// Only the confirm stage, which measures the part a second time with other partners
    /// (`judge::confirm`).
    Partners,
    /// Two outputs that agree are enough as well.
    Outputs,
}

fn class_meaning(class: &FindingClass) -> (ClassMeaning, ConfirmationSource) {
    match class {
        FindingClass::NvlinkLow
        | FindingClass::P2pLow
        | FindingClass::PcieP2pLow
        | FindingClass::NicLow => (ClassMeaning::Level, ConfirmationSource::Partners),
        FindingClass::HostLinkLow
        | FindingClass::LocalCopyLow
        | FindingClass::PathLow
        | FindingClass::CollectiveLow
        | FindingClass::Unstable
        | FindingClass::Drifting
        | FindingClass::BelowOwnHistory => (ClassMeaning::Level, ConfirmationSource::Outputs),
        FindingClass::NvlinkAbsent
        | FindingClass::WrongDomain
        | FindingClass::ToolError
        | FindingClass::NicUnreachable
        | FindingClass::DataCorruption => (ClassMeaning::Fault, ConfirmationSource::Partners),
        FindingClass::NvlinkInactive | FindingClass::NvlinkRate | FindingClass::FabricHealth => {
            (ClassMeaning::DriverState, ConfirmationSource::Outputs)
        }
        FindingClass::GpuMissing
        | FindingClass::DiagnosticFailed
        | FindingClass::LeafLow
        | FindingClass::NetworkLow
        | FindingClass::FabricState
        | FindingClass::AllLowAlike
        | FindingClass::MnnvlOff
        | FindingClass::NvlsOff
        | FindingClass::MatrixContradicted
        | FindingClass::StaleClique
        | FindingClass::MergedCliques
        | FindingClass::ClaimedApart
        | FindingClass::CliqueShared
        | FindingClass::NoisyEverywhere
        | FindingClass::FabricConfiguration
        | FindingClass::FabricNotConfigured
        | FindingClass::SplitNode
        | FindingClass::SplitDomain
        | FindingClass::MultiNodeNvlinkOff
        | FindingClass::CliqueMixed
        | FindingClass::ImexPeerMissing
        | FindingClass::ImexDomain
        | FindingClass::PlaneLow
        | FindingClass::DomainLow
        | FindingClass::AboveNominal
        | FindingClass::CollectiveFallback
        | FindingClass::ClaimLabelContradicted
        | FindingClass::ClaimBeliefBeyondMeasured
        | FindingClass::Claim(_)
        | FindingClass::Other(_) => (ClassMeaning::Fault, ConfirmationSource::Outputs),
    }
}

/// Readings of healthy parts dip by up to 40 % (`judge::host`). A part that delivers less than
/// the remaining 60 % is broken.
const DEEP_LOSS_RATIO: f64 = 0.6;

/// Whether these findings only mean that a node is slow at the moment, without a driver state, an
/// error or a deep loss. `all` holds every finding about the node: a driver's report alone triggers
/// no action, but together with a confirmed measurement it shows that the loss is not transient.
pub(super) fn is_possibly_transient(findings: &[&Finding], all: &[&Finding]) -> bool {
    if all.iter().any(|f| is_passive(f) || has_driver_state(f)) {
        return false;
    }
    let is_level = |f: &&Finding| class_meaning(&f.class).0 == ClassMeaning::Level;
    let is_deep = |f: &&Finding| f.deciding_share().is_some_and(|ratio| ratio < DEEP_LOSS_RATIO);
    findings.iter().all(|f| is_level(f) && !is_deep(f))
}

/// The worst meaning of the findings about a node.
#[derive(Clone, Copy, Debug)]
pub(super) enum Accusation<'a> {
    /// The node cannot be used as claimed.
    Hard(&'a Finding),
    /// The node works, in another domain than claimed.
    Elsewhere(&'a Finding),
    /// The node works below the rate that it must deliver.
    Soft(&'a Finding),
}

impl<'a> Accusation<'a> {
    pub(super) fn finding(self) -> &'a Finding {
        match self {
            Self::Hard(finding) | Self::Elsewhere(finding) | Self::Soft(finding) => finding,
        }
    }
}

/// The worst of these findings, which are sorted worst first.
pub(super) fn worst_accusation<'a>(findings: &[&'a Finding]) -> Option<Accusation<'a>> {
    let elsewhere = findings.iter().find(|f| f.class == FindingClass::WrongDomain);
    let is_hard = |f: &&&Finding| {
        // A misplaced node fails to import memory from a domain that it is not in.
        let symptom = elsewhere.is_some() && f.class == FindingClass::ToolError;
        f.outcome == Outcome::Failed && f.class != FindingClass::WrongDomain && !symptom
    };
    if let Some(hard) = findings.iter().find(is_hard) {
        return Some(Accusation::Hard(hard));
    }
    match elsewhere {
        Some(found) => Some(Accusation::Elsewhere(found)),
        None => findings.first().map(|found| Accusation::Soft(found)),
    }
}

/// The findings about a node that count as confirmed. A state that the driver reports counts if
/// a confirmed measurement blames the same node.
pub(super) fn confirmed_findings<'a>(findings: &[&'a Finding]) -> Vec<&'a Finding> {
    let own: Vec<&Finding> = findings.iter().copied().filter(|f| is_confirmed(f)).collect();
    let is_seen = own.iter().any(|f| !is_passive(f));
    own.into_iter().filter(|f| f.confirmed || is_seen || !is_passive(f)).collect()
}

/// Whether a driver's report about links is part of the evidence: the judge merges it with low
/// measurements on the same GPU (`judge::common_cause`).
fn has_driver_state(finding: &Finding) -> bool {
    let mut classes = finding.evidence.iter().filter_map(|it| it.class.as_ref());
    classes.any(|class| class_meaning(class).0 == ClassMeaning::DriverState)
}

fn is_passive(finding: &Finding) -> bool {
    class_meaning(&finding.class).0 == ClassMeaning::DriverState
}

/// Whether a second measurement agreed. A fault that no second measurement can show (a missing
/// GPU, a failed diagnostic) is certain if two outputs report it.
fn is_confirmed(finding: &Finding) -> bool {
    if finding.confirmed {
        return true;
    }
    let outputs: BTreeSet<&str> = finding.evidence.iter().map(|e| e.file.as_str()).collect();
    class_meaning(&finding.class).1 == ConfirmationSource::Outputs && 1 < outputs.len()
}

/// Which nodes were measured together, and which domains claim which nodes.
///
/// Built once and read for each suspect: with thousands of suspects, searching all claims for
/// each would be quadratic.
#[derive(Debug)]
pub(super) struct MeasuredGroups<'c> {
    domains: &'c [ClaimedDomain],
    /// The domains that claim each node, as indices in their order.
    homes: BTreeMap<&'c NodeName, Vec<usize>>,
    /// The measured groups of each node, in their order.
    groups: BTreeMap<&'c NodeName, Vec<&'c GroupAssertion>>,
}

impl<'c> MeasuredGroups<'c> {
    pub(super) fn from_claims(fleet: &'c Claims) -> Self {
        // A duplicate node in a list counts once; its first entry was pushed just before.
        let mut homes: BTreeMap<&NodeName, Vec<usize>> = BTreeMap::new();
        for (at, domain) in fleet.domains.iter().enumerate() {
            for node in &domain.nodes {
                let own = homes.entry(node).or_default();
                if own.last() != Some(&at) {
                    own.push(at);
                }
            }
        }
        let mut groups: BTreeMap<&NodeName, Vec<&GroupAssertion>> = BTreeMap::new();
        let is_measured = |assertion: &&GroupAssertion| {
            let group = &assertion.group;
            group.basis == ClaimBasis::Measured
                && group.kind == NodeGroupKind::Domain
                && group.in_force
        };
        for assertion in fleet.assertions.iter().filter(is_measured) {
            for node in &assertion.group.nodes {
                let own = groups.entry(node).or_default();
                if own.last().is_none_or(|last| !std::ptr::eq(*last, assertion)) {
                    own.push(assertion);
                }
            }
        }
        Self { domains: &fleet.domains, homes, groups }
    }

    fn domain_indices(&self, node: &NodeName) -> &[usize] {
        self.homes.get(node).map(Vec::as_slice).unwrap_or_default()
    }

    /// Whether the domain that claims `node` (the first, if several do) also claims `other`.
    pub(super) fn is_home_of(&self, node: &NodeName, other: &NodeName) -> bool {
        self.domain_indices(node)
            .first()
            .is_some_and(|home| self.domain_indices(other).contains(home))
    }

    /// Measured groups that contain this node with two or more nodes of another domain, and
    /// these domains. With only one such node, that node may be the misplaced one.
    pub(super) fn groups_elsewhere(
        &self,
        node: &NodeName,
    ) -> Vec<(&'c GroupAssertion, &'c ClaimedDomain)> {
        let domains = self.domains;
        let home = self.domain_indices(node).first().map(|at| &domains[*at].name);
        let mut found = Vec::new();
        for assertion in self.groups.get(node).into_iter().flatten().copied() {
            let mut met: BTreeMap<usize, usize> = BTreeMap::new();
            for other in assertion.group.nodes.iter().filter(|it| *it != node) {
                for at in self.domain_indices(other) {
                    *met.entry(*at).or_default() += 1;
                }
            }
            let several = met.into_iter().filter(|(_, count)| 1 < *count);
            let several = several.map(|(at, _)| &domains[at]);
            found.extend(several.filter(|it| Some(&it.name) != home).map(|it| (assertion, it)));
        }
        found
    }
}

/// The other domain that this node was measured to reach, and the source.
pub(super) fn describe_other_domain(
    node: &NodeName,
    fleet: &Claims,
    met: &MeasuredGroups<'_>,
) -> Option<String> {
    let (assertion, domain) = met.groups_elsewhere(node).into_iter().next()?;
    let source = fleet.sources.get(assertion.source);
    let place = source.map_or("a run", |read| read.source.place.as_str());
    Some(format!("{}, as {place} measured", domain.name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::finding_rule::FindingRule;
    use model::source_report::NodeGroup;
    use model::verdict::{Evidence, Locus, LocusKind};

    fn found(class: &str, outcome: Outcome, files: &[&str], confirmed: bool) -> Finding {
        let evidence = |file: &&str| Evidence {
            file: (*file).to_owned(),
            testcase: None,
            detail: String::new(),
            class: None,
        };
        Finding {
            id: class.to_owned(),
            outcome,
            class: FindingClass::from_name(class),
            locus: Locus::new(LocusKind::Node),
            measured: None,
            expected: None,
            peers: None,
            own: None,
            ratio_to_peers: None,
            ratio_to_own: None,
            unit: None,
            ratio: None,
            confirmed,
            detectable: None,
            from_first_reading: false,
            rule: FindingRule::default(),
            summary: String::new(),
            evidence: files.iter().map(evidence).collect(),
        }
    }

    fn nodes(names: &[&str]) -> Vec<NodeName> {
        names.iter().map(|name| NodeName::from(*name)).collect()
    }

    fn domain(name: &str, names: &[&str]) -> ClaimedDomain {
        ClaimedDomain {
            name: name.into(),
            nodes: nodes(names),
            platform: None,
            gpus_per_node: None,
            nic: None,
        }
    }

    /// The result of `MeasuredGroups::groups_elsewhere`, computed without an index.
    fn searched<'c>(
        node: &NodeName,
        fleet: &'c Claims,
    ) -> Vec<(&'c GroupAssertion, &'c ClaimedDomain)> {
        let home = fleet.domain_of(node).map(|domain| &domain.name);
        let mut found = Vec::new();
        for assertion in &fleet.assertions {
            let group = &assertion.group;
            let is_measured =
                group.basis == ClaimBasis::Measured && group.kind == NodeGroupKind::Domain;
            if !is_measured || !group.in_force || !group.nodes.contains(node) {
                continue;
            }
            for domain in fleet.domains.iter().filter(|it| Some(&it.name) != home) {
                let met = group.nodes.iter().filter(|it| *it != node && domain.nodes.contains(it));
                if 1 < met.count() {
                    found.push((assertion, domain));
                }
            }
        }
        found
    }

    fn classes(findings: &[Finding]) -> Vec<&str> {
        let all: Vec<&Finding> = findings.iter().collect();
        confirmed_findings(&all).into_iter().map(|f| f.class.as_str()).collect()
    }

    #[test]
    fn classes_of_measurable_faults_need_the_confirm_stage() {
        use Outcome::Failed;
        let of = |class, files: &[&str], confirmed| {
            !classes(&[found(class, Failed, files, confirmed)]).is_empty()
        };
        assert!(!of("nvlink-low", &["a", "b"], false));
        assert!(of("nvlink-low", &["a"], true));
        assert!(!of("gpu-missing", &["a", "a"], false));
        assert!(of("gpu-missing", &["a", "b"], false));
        // A class that only a later version's judge sets.
        assert!(!of("brand-new", &["a"], false));
        assert!(of("brand-new", &["a", "b"], false));
    }

    #[test]
    fn a_driver_state_acts_only_with_a_measurement() {
        use Outcome::Degraded;
        let links = || found("nvlink-inactive", Degraded, &["a", "b"], false);
        assert!(classes(&[links()]).is_empty());
        assert!(classes(&[links(), found("nvlink-low", Degraded, &["c"], false)]).is_empty());
        let both = [links(), found("nvlink-low", Degraded, &["c"], true)];
        assert_eq!(classes(&both), ["nvlink-inactive", "nvlink-low"]);
    }

    #[test]
    fn a_hard_fault_outweighs_a_wrong_place_and_that_a_soft_one() {
        use Outcome::{Degraded, Failed};
        let place = found("wrong-domain", Failed, &[], true);
        let import = found("tool-error", Failed, &[], true);
        let wrong = found("data-corruption", Failed, &[], true);
        let low = found("nvlink-low", Degraded, &[], true);
        let of = |findings: &[&Finding]| match worst_accusation(findings) {
            Some(Accusation::Hard(f)) => format!("hard {}", f.class),
            Some(Accusation::Elsewhere(f)) => format!("elsewhere {}", f.class),
            Some(Accusation::Soft(f)) => format!("soft {}", f.class),
            None => "nothing".to_owned(),
        };
        assert_eq!(of(&[&place, &import, &low]), "elsewhere wrong-domain");
        assert_eq!(of(&[&import, &low]), "hard tool-error");
        assert_eq!(of(&[&place, &wrong]), "hard data-corruption");
        assert_eq!(of(&[&low]), "soft nvlink-low");
        assert_eq!(of(&[]), "nothing");
    }

    #[test]
    fn a_node_reaches_another_domain_where_two_of_its_nodes_were_measured_with_it() {
        let with = |measured: &[&str], basis: ClaimBasis| Claims {
            domains: vec![domain("a", &["a1", "a2", "a3"]), domain("b", &["b1", "b2"])],
            assertions: vec![GroupAssertion {
                source: 0,
                group: NodeGroup {
                    basis,
                    ..NodeGroup::new(NodeGroupKind::Domain, "measured domain", "x", nodes(measured))
                },
            }],
            ..Claims::default()
        };
        let of = |claims: &Claims| {
            describe_other_domain(
                &NodeName::from("a3"),
                claims,
                &MeasuredGroups::from_claims(claims),
            )
        };
        let there = with(&["a3", "b1", "b2"], ClaimBasis::Measured);
        assert_eq!(of(&there).as_deref(), Some("b, as a run measured"));
        assert_eq!(of(&with(&["a3", "b1"], ClaimBasis::Measured)), None);
        assert_eq!(of(&with(&["a1", "a2", "a3"], ClaimBasis::Measured)), None);
        assert_eq!(of(&with(&["a3", "b1", "b2"], ClaimBasis::Asserted)), None);
    }

    #[test]
    fn measured_groups_equal_those_of_a_plain_search() {
        let assertion = |kind, basis, in_force, names: &[&str]| GroupAssertion {
            source: 0,
            group: NodeGroup {
                basis,
                in_force,
                ..NodeGroup::new(kind, "measured domain", "x", nodes(names))
            },
        };
        let three = ["a1", "b1", "b2", "c1", "c2", "both", "both"];
        let claims = Claims {
            domains: vec![
                domain("a", &["a1", "a2", "both"]),
                domain("b", &["b1", "b2", "both", "b2"]),
                domain("c", &["c1", "c2"]),
                domain("a", &["c1", "c2"]),
            ],
            assertions: vec![
                assertion(NodeGroupKind::Domain, ClaimBasis::Measured, true, &three),
                assertion(
                    NodeGroupKind::Domain,
                    ClaimBasis::Measured,
                    true,
                    &["a2", "b1", "b1", "foreign"],
                ),
                assertion(NodeGroupKind::Domain, ClaimBasis::Measured, false, &three),
                assertion(NodeGroupKind::Domain, ClaimBasis::Asserted, true, &three),
                assertion(NodeGroupKind::Leaf, ClaimBasis::Measured, true, &three),
                assertion(
                    NodeGroupKind::Domain,
                    ClaimBasis::Measured,
                    true,
                    &["foreign", "both", "a1", "c2"],
                ),
            ],
            ..Claims::default()
        };
        let met = MeasuredGroups::from_claims(&claims);
        let all = nodes(&["a1", "a2", "b1", "b2", "c1", "c2", "both", "foreign", "unknown"]);
        for node in &all {
            assert_eq!(met.groups_elsewhere(node), searched(node, &claims), "{node}");
            let home = claims.domain_of(node);
            for other in &all {
                let is_there = home.is_some_and(|home| home.nodes.contains(other));
                assert_eq!(met.is_home_of(node, other), is_there, "{node} and {other}");
            }
        }
        let of = |node: &str| -> Vec<String> {
            let found = met.groups_elsewhere(&NodeName::from(node));
            found.into_iter().map(|(_, domain)| domain.name.to_string()).collect()
        };
        assert_eq!(of("both"), ["b", "c"]);
        assert_eq!(of("c1"), ["a", "b"]);
        assert_eq!(of("foreign"), ["b", "a"]);
        assert!(of("unknown").is_empty());
    }
}
