//! Compares the claims of a run (labels, framework beliefs, ranks) with the measurement, and
//! reports contradictions between sources.
//!
//! This module tests claims. If the measurement shows which source is right, the finding names it;
//! otherwise a contradiction leaves the run unknown. Nothing here counts against a node: this step
//! runs after every node has its verdict.

use std::collections::{BTreeMap, BTreeSet};

use super::class_traits::traits_of;
use super::component_state::is_unknown_value;
use super::domain_recordings::DomainRecordings;
use super::fabric::FabricJudgement;
use super::fabric_group::FabricGroup;
use super::finding::{domain_locus, new_finding};
use super::finding_set::FindingSet;
use super::membership;
use crate::thresholds::Platform;
use model::claims::Claims;
use model::disagreement::{Disagreement, DisagreementSeverity};
use model::disagreement_class::DisagreementClass;
use model::finding_class::FindingClass;
use model::finding_rule::{FindingRule, RuleKind};
use model::gpu_facts::is_null_cluster_uuid;
use model::id::{DomainName, NodeName};
use model::source_report::{ClaimBasis, FabricReport, JobAssumption};
use model::unit::Unit;
use model::unknown_subject::UnknownSubject;
use model::verdict::{Evidence, Finding, LocusKind, Outcome};

/// The part of a measurement that can settle a disagreement between sources.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DisagreementEvidence {
    /// Which nodes reach each other in the domain.
    Membership,
    /// The same for two claimed domains, taken from a finding.
    DomainsMeasured,
    /// A finding about a framework's belief.
    BeliefMeasured,
    Nothing,
}

fn evidence_for(class: &DisagreementClass) -> DisagreementEvidence {
    match class {
        DisagreementClass::BlockAgainstClique
        | DisagreementClass::DomainsDisagree
        | DisagreementClass::FabricNotAttached
        | DisagreementClass::FileNotInForce
        | DisagreementClass::GpusInTwoCliques
        | DisagreementClass::LabelWithoutAllGpus
        | DisagreementClass::NodeInTwoDomains
        | DisagreementClass::SentinelClique
        | DisagreementClass::SplitClique
        | DisagreementClass::StaleLabel => DisagreementEvidence::Membership,
        DisagreementClass::MergedCliques => DisagreementEvidence::DomainsMeasured,
        DisagreementClass::BeliefBeyondDomain => DisagreementEvidence::BeliefMeasured,
        DisagreementClass::DomainsNested
        | DisagreementClass::LabelMissing
        | DisagreementClass::TopologyOverride
        | DisagreementClass::ImexPluginUnset
        | DisagreementClass::ImexBeyondDomain
        | DisagreementClass::ImexAgainstClique
        | DisagreementClass::ReadyWithoutClique
        | DisagreementClass::ImexSize
        | DisagreementClass::DomainSize
        | DisagreementClass::NodeMissing
        | DisagreementClass::NodeExtra
        | DisagreementClass::UnknownToScheduler
        | DisagreementClass::InNoDomain
        | DisagreementClass::NoDomainClaimed
        | DisagreementClass::GpuCount
        | DisagreementClass::NicCount
        | DisagreementClass::ProductMixed
        | DisagreementClass::ProductAgainstClaim
        | DisagreementClass::DriverMixed
        | DisagreementClass::TopoRankDuplicate
        | DisagreementClass::TopoRankUnusable
        | DisagreementClass::TopoRankMissing
        | DisagreementClass::TopoRankOrder
        | DisagreementClass::BeliefMultiNodeNvlink
        | DisagreementClass::HostsSwapped
        | DisagreementClass::RailsSwapped
        | DisagreementClass::LeafMislabelled
        | DisagreementClass::LeafAgainstNeighbour
        | DisagreementClass::LeavesDisagree
        | DisagreementClass::SlotTaken
        | DisagreementClass::SlotDisagrees
        | DisagreementClass::RackDisagrees
        | DisagreementClass::RackAgainstDomain
        | DisagreementClass::AmbiguousName
        | DisagreementClass::OptedOut
        | DisagreementClass::OutOfService
        | DisagreementClass::Other(_) => DisagreementEvidence::Nothing,
    }
}

/// The nodes of a domain grouped by measured reachability, largest part first, and a file that
/// proves it.
struct MeasuredParts {
    parts: Vec<BTreeSet<NodeName>>,
    file: String,
}

impl MeasuredParts {
    /// The part that holds a node, if the node was measured against others.
    fn find_part(&self, node: &NodeName) -> Option<usize> {
        self.parts.iter().position(|part| part.contains(node))
    }
}

/// Compares the claims of a run with the measurement.
pub(super) fn judge(
    domains: &[DomainRecordings<'_>],
    judged: &[Vec<(FabricGroup<'_>, FabricJudgement)>],
    claims: &Claims,
    ledger: &mut FindingSet,
) {
    for read in &claims.sources {
        if let Some(problem) = read.unread_problem() {
            let what = UnknownSubject::Claims(read.source.to_string());
            ledger.add_unknown(what, problem.to_string());
        }
    }
    if claims.disagreements.is_empty() && claims.beliefs.is_empty() && claims.nodes.is_empty() {
        return;
    }
    let measured: Vec<Option<MeasuredParts>> = domains
        .iter()
        .zip(judged)
        .map(|(domain, islands)| find_measured_parts(domain, islands))
        .collect();
    for (domain, measured) in domains.iter().zip(&measured) {
        if let Some(measured) = measured {
            judge_labels(domain, measured, claims, ledger);
        }
    }
    for belief in &claims.beliefs {
        let of_job: BTreeSet<&NodeName> = belief.nodes.iter().collect();
        for ((domain, measured), islands) in domains.iter().zip(&measured).zip(judged) {
            judge_belief((belief, &of_job), domain, measured.as_ref(), islands, ledger);
        }
    }
    let members = DomainMembers::new(domains);
    for disagreement in &claims.disagreements {
        judge_disagreement(disagreement, domains, &measured, &members, ledger);
    }
}

/// Domain members indexed by position: a large fleet can have thousands of domains and as many
/// contradictions.
struct DomainMembers<'d> {
    domains: BTreeMap<&'d DomainName, usize>,
    nodes: BTreeSet<(&'d NodeName, usize)>,
}

impl<'d> DomainMembers<'d> {
    fn new(domains: &'d [DomainRecordings<'_>]) -> Self {
        let mut members = Self { domains: BTreeMap::new(), nodes: BTreeSet::new() };
        for (at, domain) in domains.iter().enumerate() {
            members.domains.entry(&domain.name).or_insert(at);
            members.nodes.extend(domain.nodes.iter().map(|node| (node, at)));
        }
        members
    }

    /// The first domain that a contradiction names.
    fn find_domain(&self, disagreement: &Disagreement) -> Option<usize> {
        let first = |node| self.nodes.range((node, 0)..=(node, usize::MAX)).next();
        match &disagreement.domain {
            Some(name) => self.domains.get(name).copied(),
            None if disagreement.nodes.is_empty() => self.domains.values().min().copied(),
            None => disagreement.nodes.iter().filter_map(first).map(|(_, at)| *at).min(),
        }
    }
}

fn find_measured_parts(
    domain: &DomainRecordings<'_>,
    islands: &[(FabricGroup<'_>, FabricJudgement)],
) -> Option<MeasuredParts> {
    let island = islands.iter().map(|(island, _)| island).find(|island| island.node.is_none())?;
    let parts = membership::connected_nodes(island);
    let file = domain.across_nodes.first().map(|recording| recording.file.clone())?;
    (!parts.is_empty()).then_some(MeasuredParts { parts, file })
}

/// The clique that labels and files give a node; `clique_claims` compares the driver's clique with
/// the measurement.
fn find_label<'c>(claims: &'c Claims, node: &NodeName) -> Option<(String, &'c FabricReport)> {
    let reports = claims.nodes.get(node)?.fabric.iter();
    reports
        .filter(|f| !matches!(f.basis, Some(ClaimBasis::Reported | ClaimBasis::Measured)))
        .find_map(|f| {
            let uuid = f.cluster_uuid.as_deref().filter(|uuid| !is_unknown_value(Some(uuid)))?;
            let id = f.clique_id.as_deref().filter(|id| !is_unknown_value(Some(id)))?;
            (!is_null_cluster_uuid(uuid)).then(|| (format!("{uuid}.{id}"), f))
        })
}

/// Describes the origin of a label for a report.
fn describe_origin(fabric: &FabricReport) -> String {
    let how = match &fabric.basis {
        Some(ClaimBasis::Copied { from }) => format!(", copied from {from}"),
        _ => String::new(),
    };
    format!("{}{how}", fabric.at.as_deref().unwrap_or("a label"))
}

fn list_nodes(nodes: &[&NodeName]) -> String {
    const MOST: usize = 4;
    let names: Vec<&str> = nodes.iter().take(MOST).map(|node| node.as_str()).collect();
    let more = nodes.len().saturating_sub(MOST);
    let names = names.join(", ");
    if more == 0 { names } else { format!("{names} and {more} more") }
}

/// Compares the labels of a domain with its measured parts.
fn judge_labels(
    domain: &DomainRecordings<'_>,
    measured: &MeasuredParts,
    claims: &Claims,
    ledger: &mut FindingSet,
) {
    /// Shared by both findings below.
    const RULE: FindingRule = FindingRule::fixed(
        RuleKind::Clique,
        "nodes with the same label reach each other at NVLink speed, and no other nodes",
    );
    let mut labelled: BTreeMap<String, Vec<&NodeName>> = BTreeMap::new();
    let mut first: Option<&FabricReport> = None;
    for node in &domain.nodes {
        if let (Some((clique, report)), Some(_)) =
            (find_label(claims, node), measured.find_part(node))
        {
            first.get_or_insert(report);
            labelled.entry(clique).or_default().push(node);
        }
    }
    let Some(first) = first else { return };
    let at = describe_origin(first);
    let main =
        labelled.iter().max_by_key(|(_, nodes)| nodes.len()).map(|(clique, _)| clique.clone());
    let Some(main) = main else { return };
    let main_part =
        most_common_part(labelled[&main].iter().filter_map(|node| measured.find_part(node)));
    let found = |summary: String, detail: String| {
        let parts = format!("{} reach each other", describe_parts(measured));
        new_finding(
            Outcome::Degraded,
            FindingClass::ClaimLabelContradicted,
            domain_locus(LocusKind::Domain, &domain.name),
            RULE,
        )
        .with_summary(summary)
        .with_evidence(&at, None, detail)
        .with_evidence(&measured.file, None, parts)
    };
    // Different labels, one measured part.
    for (clique, nodes) in labelled.iter().filter(|(clique, _)| **clique != main) {
        let here: Vec<&NodeName> =
            nodes.iter().copied().filter(|node| measured.find_part(node) == main_part).collect();
        if here.is_empty() {
            continue;
        }
        let summary = format!(
            "{} {} labelled clique {clique}, but the measurement shows that {} the nodes of {} \
             that are labelled {main} at NVLink speed: software that keys on the label splits one \
             domain",
            list_nodes(&here),
            if here.len() == 1 { "is" } else { "are" },
            if here.len() == 1 { "it reaches" } else { "they reach" },
            domain.name
        );
        let detail = format!("{} labelled {clique} ({at})", list_nodes(&here));
        // The first affected node reports for all of them.
        let mut is_known = false;
        ledger.update_of_domain(&domain.name, |f| {
            let is_here = here.iter().any(|n| f.locus.node.as_ref() == Some(*n));
            if !is_known && f.class == FindingClass::StaleClique && is_here {
                is_known = true;
                add_evidence(f, &at, detail.clone());
            }
        });
        if !is_known {
            ledger.add(found(summary, detail));
        }
    }
    // One label, several measured parts.
    for (clique, nodes) in &labelled {
        let main_part = most_common_part(nodes.iter().filter_map(|node| measured.find_part(node)));
        let away: Vec<&NodeName> =
            nodes.iter().copied().filter(|node| measured.find_part(node) != main_part).collect();
        if away.is_empty() {
            continue;
        }
        let detail = format!("{} nodes are labelled {clique} ({at})", nodes.len());
        let mut is_reported = false;
        ledger.update_of_domain(&domain.name, |known| {
            let own = known.locus.node.as_ref();
            if is_membership(known) && own.is_none_or(|node| away.contains(&node)) {
                add_evidence(known, &at, detail.clone());
                is_reported = true;
            }
        });
        if is_reported {
            continue;
        }
        let summary = format!(
            "{} {} labelled clique {clique} like {} others of {}, but the measurement shows that \
             {} them at NVLink speed: software that keys on the label joins separate domains",
            list_nodes(&away),
            if away.len() == 1 { "is" } else { "are" },
            nodes.len() - away.len(),
            domain.name,
            if away.len() == 1 { "it does not reach" } else { "they do not reach" },
        );
        ledger.add(found(summary, detail));
    }
}

fn most_common_part(parts: impl Iterator<Item = usize>) -> Option<usize> {
    let mut counts: BTreeMap<usize, usize> = BTreeMap::new();
    parts.for_each(|part| *counts.entry(part).or_default() += 1);
    counts
        .into_iter()
        .max_by_key(|(part, count)| (*count, std::cmp::Reverse(*part)))
        .map(|(p, _)| p)
}

fn add_evidence(known: &mut Finding, file: &str, detail: String) {
    let evidence = Evidence { file: file.to_owned(), testcase: None, detail, class: None };
    if !known.evidence.contains(&evidence) {
        known.evidence.push(evidence);
    }
}

/// Whether a finding is about domain membership.
fn is_membership(found: &Finding) -> bool {
    traits_of(&found.class).is_membership
}

/// Formats the sizes of the parts: `parts of 16 and 2 nodes`.
fn describe_parts(measured: &MeasuredParts) -> String {
    let sizes: Vec<String> = measured.parts.iter().map(|part| part.len().to_string()).collect();
    match sizes.split_last() {
        Some((last, [])) => format!("{last} nodes"),
        Some((last, rest)) => format!("parts of {} and {last} nodes", rest.join(", ")),
        None => String::new(),
    }
}

/// Compares a framework's belief with the GPUs that reach each other.
fn judge_belief(
    (belief, of_job): (&JobAssumption, &BTreeSet<&NodeName>),
    domain: &DomainRecordings<'_>,
    measured: Option<&MeasuredParts>,
    islands: &[(FabricGroup<'_>, FabricJudgement)],
    ledger: &mut FindingSet,
) {
    const RULE: FindingRule = FindingRule::fixed(
        RuleKind::Belief,
        "as many GPUs reach each other at NVLink speed as a framework assumes in one domain",
    );
    let Some(ranks) = belief.ranks_per_domain.filter(|ranks| 1 < *ranks) else { return };
    let is_of_job = |node: &&NodeName| of_job.is_empty() || of_job.contains(node);
    let nodes: BTreeSet<&NodeName> = domain.nodes.iter().filter(is_of_job).collect();
    if nodes.is_empty() {
        return;
    }
    let reached = if domain.platform.is_some_and(Platform::spans_nodes) && 1 < domain.nodes.len() {
        // With an unmeasured node, the part may be larger.
        let Some((measured, gpus)) = measured.zip(domain.gpus_per_node) else { return };
        if nodes.iter().any(|node| measured.find_part(node).is_none()) {
            return;
        }
        let in_part =
            |part: &BTreeSet<NodeName>| nodes.iter().filter(|n| part.contains(**n)).count();
        let largest = measured.parts.iter().map(in_part).max().unwrap_or(0);
        Some((largest * gpus as usize, measured.file.clone()))
    } else {
        // Servers: each node is its own domain.
        let own = islands.iter().map(|(island, _)| island).filter(|island| {
            island.node.as_ref().is_some_and(|n| nodes.contains(n)) && !island.directed.is_empty()
        });
        let largest = own.max_by_key(|island| island.gpus.len());
        largest.and_then(|island| {
            let file = domain.per_node.get(island.node.as_ref()?)?.first()?.file.clone();
            Some((island.gpus.len(), file))
        })
    };
    let Some((gpus, file)) = reached.filter(|(gpus, _)| *gpus < ranks as usize) else { return };
    // If the job names no nodes, it may run elsewhere.
    let certain = !belief.nodes.is_empty();
    let outcome = if certain { Outcome::Failed } else { Outcome::Unknown };
    let of_job = if certain { " of its nodes" } else { "" };
    let summary = format!(
        "{} assumes {ranks} ranks in one NVLink domain, but only {gpus} GPUs{of_job} in {} reach \
         each other at NVLink speed in the measurement",
        belief.subject, domain.name
    );
    let locus = domain_locus(LocusKind::Domain, &domain.name);
    let gpus = u32::try_from(gpus).unwrap_or(u32::MAX);
    let found = new_finding(outcome, FindingClass::ClaimBeliefBeyondMeasured, locus, RULE)
        .with_numbers(f64::from(gpus), f64::from(ranks), Unit::Count)
        .with_summary(summary)
        .with_evidence(belief.at.as_deref().unwrap_or(&belief.subject), None, belief.text.clone())
        .with_evidence(&file, None, format!("{gpus} GPUs reach each other"));
    ledger.add(found);
}

/// A contradiction between sources: settled by the measurement, or unknown.
fn judge_disagreement(
    disagreement: &Disagreement,
    domains: &[DomainRecordings<'_>],
    measured: &[Option<MeasuredParts>],
    members: &DomainMembers<'_>,
    ledger: &mut FindingSet,
) {
    let Some(at) = members.find_domain(disagreement) else { return };
    match disagreement.severity {
        DisagreementSeverity::Note => {}
        DisagreementSeverity::Doubt => {
            ledger.notes.push(format!("claims ({}): {}", disagreement.class, disagreement.summary));
        }
        DisagreementSeverity::Contradiction => {
            let is_member = |node: &NodeName| members.nodes.contains(&(node, at));
            match settle_disagreement(
                disagreement,
                &domains[at],
                (measured[at].as_ref(), is_member),
                ledger,
            ) {
                Some(by) => ledger.notes.push(format!(
                    "claims ({}): {}; settled: {by}",
                    disagreement.class, disagreement.summary
                )),
                None => report_unsettled(disagreement, &domains[at], ledger),
            }
        }
    }
}

/// The measured fact that shows which source is right, if one exists.
fn settle_disagreement(
    disagreement: &Disagreement,
    domain: &DomainRecordings<'_>,
    (measured, is_member): (Option<&MeasuredParts>, impl Fn(&NodeName) -> bool),
    ledger: &FindingSet,
) -> Option<String> {
    let by = evidence_for(&disagreement.class);
    if by == DisagreementEvidence::DomainsMeasured {
        let names = [FindingClass::ClaimedApart, FindingClass::MergedCliques];
        let here = |f: &&Finding| {
            let peer = f.locus.peer.as_deref() == Some(domain.name.as_str());
            names.contains(&f.class) && (peer || f.locus.domain.as_ref() == Some(&domain.name))
        };
        // With two domains, one is the finding's own domain and the other its peer.
        let peer = NodeName::from(domain.name.as_str());
        let mut named =
            ledger.findings_of_domain(&domain.name).chain(ledger.findings_of_node(&peer));
        return named.find(here).map(|f| f.summary.clone());
    }
    if by == DisagreementEvidence::BeliefMeasured {
        let mut here = ledger.findings_of_domain(&domain.name);
        return here
            .find(|f| f.class == FindingClass::ClaimBeliefBeyondMeasured)
            .map(|f| f.summary.clone());
    }
    if by != DisagreementEvidence::Membership {
        return None;
    }
    let measured = measured?;
    let mut nodes = disagreement.nodes.iter().filter(|node| is_member(node)).peekable();
    nodes.peek()?;
    if nodes.any(|node| measured.find_part(node).is_none()) {
        return None;
    }
    Some(if measured.parts.len() == 1 {
        format!("in the measurement, all nodes of {} reach each other at NVLink speed", domain.name)
    } else {
        format!("in the measurement, {} falls into {}", domain.name, describe_parts(measured))
    })
}

/// A contradiction that no measurement of this run settles.
fn report_unsettled(
    disagreement: &Disagreement,
    domain: &DomainRecordings<'_>,
    ledger: &mut FindingSet,
) {
    const RULE: FindingRule = FindingRule::fixed(
        RuleKind::Claims,
        "sources contradict each other, and no measurement shows which one is right",
    );
    let class = FindingClass::Claim(disagreement.class.clone());
    if disagreement.domain.is_none() {
        ledger.add_unknown(UnknownSubject::Other(class.to_string()), disagreement.summary.clone());
        return;
    }
    let locus = domain_locus(LocusKind::Domain, &domain.name);
    let summary = match describe_consequence(&disagreement.class) {
        Some(consequence) => format!("{}; {consequence}", disagreement.summary),
        None => disagreement.summary.clone(),
    };
    let found = new_finding(Outcome::Unknown, class, locus, RULE).with_summary(summary);
    ledger.add(disagreement.sides.iter().fold(found, |found, side| {
        let at = side.at.as_deref().map(|at| format!(", {at}")).unwrap_or_default();
        let copied = match &side.basis {
            ClaimBasis::Copied { from } => format!(" (copied from {from})"),
            _ => String::new(),
        };
        let detail = format!("{}{at}: {}{copied}", side.source.kind.label(), side.text);
        found.with_evidence(&side.source.place, None, detail)
    }));
}

/// The consequence for software that relies on the claim, where the summary omits it.
fn describe_consequence(class: &DisagreementClass) -> Option<&'static str> {
    Some(match class {
        DisagreementClass::TopoRankDuplicate => {
            "a framework that sorts by it places distant ranks next to each other, or starts two \
             on one GPU"
        }
        DisagreementClass::TopoRankUnusable => {
            "a framework that sorts by it leaves these nodes out or places them arbitrarily"
        }
        DisagreementClass::ImexBeyondDomain => "imports between its parts fail",
        DisagreementClass::ReadyWithoutClique => {
            "jobs there run without NVLink between nodes and get no warning"
        }
        _ => return None,
    })
}
