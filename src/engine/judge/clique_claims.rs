//! The fabric assertion: compares the driver's cliques and the claimed domains with measured
//! reachability.
//!
//! Schedulers and NCCL key on `ClusterUUID.CliqueId`; a clique can be stale, hold nodes that do not
//! reach each other, or hide that two claimed domains are one. Other modules judge speed; this one
//! judges membership only.

use std::collections::{BTreeMap, BTreeSet};

use super::class_traits::traits_of;
use super::component_state::is_unknown_value;
use super::domain_recordings::DomainRecordings;
use super::fabric::FabricJudgement;
use super::fabric_group::FabricGroup;
use super::finding::{domain_locus, format_rate, new_finding, node_locus};
use super::finding_set::FindingSet;
use super::host_index::HostIndex;
use super::{fabric_group, membership};
use crate::thresholds::{MeasurementConditions, Platform};
use model::finding_class::FindingClass;
use model::finding_rule::{FindingRule, RuleKind};
use model::gpu_facts::is_null_cluster_uuid;
use model::id::{DomainName, NodeName};
use model::stats;
use model::tool_facts::GpuFabric;
use model::unit::Unit;
use model::unknown_subject::UnknownSubject;
use model::verdict::{Finding, Locus, LocusKind, Outcome};

/// The rule behind every finding about one clique.
const RULE: FindingRule = FindingRule::fixed(
    RuleKind::Clique,
    "all nodes of a domain share one ClusterUUID and CliqueId",
);

/// The cliques that the nodes of one domain report, with node and file.
type CliqueMembers<'d> = BTreeMap<String, Vec<(&'d NodeName, &'d str)>>;

/// Rates between two claimed domains: share of the expectation, rate, and the
/// expectation, with the file.
type CrossDomainRates<'d> =
    BTreeMap<(&'d DomainName, &'d DomainName), Vec<(f64, f64, f64, &'d str)>>;

/// Compares the assertions with the measurement.
pub(super) fn judge(
    domains: &[DomainRecordings<'_>],
    judged: &[Vec<(FabricGroup<'_>, FabricJudgement)>],
    ledger: &mut FindingSet,
) {
    let cliques: Vec<CliqueMembers<'_>> =
        domains.iter().map(|domain| collect_cliques(domain, ledger)).collect();
    for ((domain, islands), cliques) in domains.iter().zip(judged).zip(&cliques) {
        let island = islands.iter().map(|(island, _)| island).find(|i| i.node.is_none());
        let parts = island.map(membership::connected_nodes).unwrap_or_default();
        judge_domain(domain, cliques, &parts, ledger);
    }
    judge_across_domains(domains, &cliques, ledger);
}

/// The cliques of a rack-scale domain, by clique ID.
fn collect_cliques<'d>(
    domain: &'d DomainRecordings<'_>,
    ledger: &mut FindingSet,
) -> CliqueMembers<'d> {
    let mut nodes = CliqueMembers::new();
    if !domain.platform.is_some_and(Platform::spans_nodes) {
        return nodes;
    }
    for (node, recordings) in &domain.per_node {
        for recording in recordings {
            let cliques = recording.parsed.facts.fabric.iter().filter_map(clique_id);
            let here: Vec<String> = cliques.collect::<BTreeSet<_>>().into_iter().collect();
            match here.as_slice() {
                [] => {}
                [one] => nodes.entry(one.clone()).or_default().push((node, &recording.file)),
                several => {
                    let summary = format!(
                        "the GPUs of {node} are in several cliques: {}",
                        several.join(", ")
                    );
                    let rule = RuleKind::Clique
                        .with_terms("all GPUs of a node share one ClusterUUID and CliqueId");
                    let found = new_finding(
                        Outcome::Failed,
                        FindingClass::CliqueMixed,
                        node_locus(&domain.name, node),
                        rule,
                    );
                    ledger.add(found.with_summary(summary.clone()).with_evidence(
                        &recording.file,
                        None,
                        summary,
                    ));
                }
            }
        }
    }
    nodes
}

fn clique_id(fabric: &GpuFabric) -> Option<String> {
    let (uuid, id) = (fabric.cluster_uuid.as_deref()?, fabric.clique_id.as_deref()?);
    let usable =
        !is_unknown_value(Some(uuid)) && !is_unknown_value(Some(id)) && !is_null_cluster_uuid(uuid);
    usable.then(|| format!("{uuid}.{id}"))
}

/// The clique that most nodes report.
fn find_main_clique<'s>(cliques: &'s CliqueMembers<'_>) -> Option<&'s str> {
    let all: usize = cliques.values().map(Vec::len).sum();
    let (main, members) = cliques.iter().max_by_key(|(_, members)| members.len())?;
    (all < members.len() * 2).then_some(main.as_str())
}

/// Compares the cliques of one claimed domain with its measured `parts`.
fn judge_domain(
    domain: &DomainRecordings<'_>,
    cliques: &CliqueMembers<'_>,
    parts: &[BTreeSet<NodeName>],
    ledger: &mut FindingSet,
) {
    let is_one = parts.len() == 1;
    if let Some((only, members)) = cliques.iter().next().filter(|_| cliques.len() == 1) {
        if 1 < parts.len() && 1 < members.len() {
            report_split_clique(domain, only, members, ledger);
        }
        return;
    }
    if cliques.len() < 2 || !domain.spans_nodes() {
        return;
    }
    let Some(main) = find_main_clique(cliques) else {
        let (class, summary) = if is_one {
            let what = "cliques, none of which holds most of its nodes, while its nodes reach each \
                        other at NVLink speed: the cliques are stale";
            (FindingClass::StaleClique, format!("{} spans {} {what}", domain.name, cliques.len()))
        } else {
            let what = "cliques, none of which holds most of its nodes";
            (FindingClass::SplitDomain, format!("{} spans {} {what}", domain.name, cliques.len()))
        };
        let locus = domain_locus(LocusKind::Domain, &domain.name);
        let found = new_finding(Outcome::Failed, class, locus, RULE).with_summary(summary);
        ledger.add(cliques.iter().fold(found, |found, (clique, members)| {
            let (node, file) = members[0];
            found.with_evidence(
                file,
                None,
                format!("{} outputs report {clique}, for example {node}", members.len()),
            )
        }));
        return;
    };
    // The part that holds most of the nodes that report the main clique, even if another part is
    // larger.
    let own = &cliques[main];
    let holds = |part: &&BTreeSet<NodeName>| {
        own.len() < own.iter().filter(|(node, _)| part.contains(*node)).count() * 2
    };
    let main_part = parts.iter().find(holds);
    let others = cliques.iter().filter(|(clique, _)| *clique != main);
    for (other, (node, file)) in others.flat_map(|(c, ms)| ms.iter().map(move |m| (c, m))) {
        let own_part = main_part.filter(|part| part.contains(node));
        let summary = format!("{node} is in clique {other}, the domain is {main}");
        let found = match own_part {
            Some(largest) => new_finding(
                Outcome::Failed,
                FindingClass::StaleClique,
                node_locus(&domain.name, node),
                RULE,
            )
            .with_summary(format!(
                "{summary}; in the measurement it reaches the other {} nodes of {} at NVLink \
                 speed: the clique is stale, and software that keys on it leaves the node out",
                largest.len() - 1,
                domain.name
            )),
            None => new_finding(
                Outcome::Failed,
                FindingClass::WrongDomain,
                node_locus(&domain.name, node),
                RULE,
            )
            .with_summary(summary.clone()),
        };
        ledger.add(found.with_evidence(file, None, summary));
    }
}

/// The driver reports one clique for nodes that the measurement separates: add that to the finding
/// about those nodes.
fn report_split_clique(
    domain: &DomainRecordings<'_>,
    clique: &str,
    members: &[(&NodeName, &str)],
    ledger: &mut FindingSet,
) {
    ledger.update_of_domain(&domain.name, |found| {
        let own = members.iter().find(|(node, _)| found.locus.node.as_ref() == Some(*node));
        let (node, file) = own.unwrap_or(&members[0]);
        let is_of_other_node = found.locus.node.is_some() && own.is_none();
        if is_of_other_node || !traits_of(&found.class).is_membership {
            return;
        }
        let detail = format!("{node} reports clique {clique}, like {} of its nodes", members.len());
        found.summary = format!(
            "{}; the driver disagrees: it reports all of them in clique {clique}",
            found.summary
        );
        *found = found.clone().with_evidence(file, None, detail);
    });
}

/// Compares claimed domains with each other.
fn judge_across_domains(
    domains: &[DomainRecordings<'_>],
    shown: &[CliqueMembers<'_>],
    ledger: &mut FindingSet,
) {
    let rates = collect_cross_domain_rates(domains, ledger);
    let cliques: Vec<Option<&str>> = shown.iter().map(find_main_clique).collect();
    for (first, second) in select_domain_pairs(domains, &cliques, &rates) {
        let (a, b) = (&domains[first], &domains[second]);
        let clique = cliques[first].filter(|clique| cliques[second] == Some(*clique));
        let read = rates.get(&(&a.name, &b.name)).or_else(|| rates.get(&(&b.name, &a.name)));
        let found = match read {
            Some(read) => domain_pair_finding(a, b, clique, read),
            None => Some(unmeasured_pair_finding(a, b, clique.unwrap_or(""))),
        };
        let Some(mut found) = found else { continue };
        for index in [first, second] {
            let Some((node, file)) = clique.and_then(|c| shown[index].get(c)?.first()) else {
                continue;
            };
            let detail = format!("{node} reports clique {}", clique.unwrap_or(""));
            found = found.with_evidence(file, None, detail);
        }
        if found.class == FindingClass::MergedCliques {
            let why = super::node_verdicts::no_pass_reason(&found.summary);
            b.nodes.iter().for_each(|node| ledger.add_doubt(node, why.clone()));
        }
        ledger.add(found);
    }
}

/// The pairs of domains, in order, that report one clique or have a reading between them: few of
/// all possible pairs.
fn select_domain_pairs(
    domains: &[DomainRecordings<'_>],
    cliques: &[Option<&str>],
    rates: &CrossDomainRates<'_>,
) -> BTreeSet<(usize, usize)> {
    let mut sharing: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (at, clique) in cliques.iter().enumerate() {
        sharing.entry((*clique).unwrap_or("")).or_default().push(at);
    }
    sharing.remove("");
    let same = sharing.values().flat_map(|all| {
        all.iter().enumerate().flat_map(|(i, a)| all[i + 1..].iter().map(|b| (*a, *b)))
    });
    let mut places: BTreeMap<&DomainName, Vec<usize>> = BTreeMap::new();
    for (at, domain) in domains.iter().enumerate() {
        places.entry(&domain.name).or_default().push(at);
    }
    let read = rates.keys().flat_map(|(a, b)| {
        let of = |name| places.get(name).map_or(&[][..], Vec::as_slice);
        of(*a).iter().flat_map(move |a| of(*b).iter().map(|b| (*a.min(b), *a.max(b))))
    });
    same.chain(read).collect()
}

/// Two claimed domains report one clique and have no reading between them. A site may claim several
/// blocks inside one fabric on purpose.
fn unmeasured_pair_finding(
    a: &DomainRecordings<'_>,
    b: &DomainRecordings<'_>,
    clique: &str,
) -> Finding {
    let locus =
        Locus { peer: Some(b.name.to_string()), ..domain_locus(LocusKind::Domain, &a.name) };
    let (a, b) = (&a.name, &b.name);
    let summary = format!(
        "{a} and {b} are claimed as separate domains, both report clique {clique}, and nothing was \
         measured between them: either two claims describe one domain, or two fabrics share a \
         clique; a copy between one node of each shows which"
    );
    let rule = RuleKind::Clique.with_terms(
        "nodes with one ClusterUUID and CliqueId form one domain; only a copy between them proves \
         it",
    );
    new_finding(Outcome::Unknown, FindingClass::CliqueShared, locus, rule).with_summary(summary)
}

/// The finding for two claimed domains: the clique they share and the rates read between them.
fn domain_pair_finding(
    a: &DomainRecordings<'_>,
    b: &DomainRecordings<'_>,
    clique: Option<&str>,
    read: &[(f64, f64, f64, &str)],
) -> Option<Finding> {
    let locus =
        Locus { peer: Some(b.name.to_string()), ..domain_locus(LocusKind::Domain, &a.name) };
    let (a, b) = (&a.name, &b.name);
    let mut shares: Vec<f64> = read.iter().map(|r| r.0).collect();
    let middle = stats::median(&mut shares)?;
    let typical =
        read.iter().min_by(|x, y| (x.0 - middle).abs().total_cmp(&(y.0 - middle).abs()))?;
    let numbers = format!("{} of {} GB/s", format_rate(typical.1), format_rate(typical.2));
    let reached = membership::OTHER_PATH <= middle;
    let (outcome, class, rule, summary) = match (reached, clique) {
        (true, clique) => {
            let by_clique = match clique {
                Some(clique) => format!("and the driver reports one clique, {clique}"),
                None => "regardless of their cliques".to_owned(),
            };
            let summary = format!(
                "{a} and {b} are claimed as separate domains but are one domain: copies between \
                 them run at {numbers}, {by_clique}"
            );
            // Nothing is broken: both work as claimed, but the domain of a tray is unknown.
            (
                Outcome::Unknown,
                FindingClass::ClaimedApart,
                RuleKind::Membership.with_terms(
                    "copies between separately claimed domains read below 30 % of NVLink speed",
                ),
                summary,
            )
        }
        (false, Some(clique)) => {
            let summary = format!(
                "{a} and {b} both report clique {clique} and do not reach each other at NVLink \
                 speed ({numbers}): software that keys on the clique merges them"
            );
            (
                Outcome::Failed,
                FindingClass::MergedCliques,
                RuleKind::Clique.with_terms(
                    "nodes of one ClusterUUID and CliqueId reach each other at NVLink speed",
                ),
                summary,
            )
        }
        (false, None) => return None,
    };
    let mut files: Vec<&str> = read.iter().map(|r| r.3).collect();
    files.dedup();
    let found = new_finding(outcome, class, locus, rule)
        .with_numbers(typical.1, typical.2, Unit::GigabytesPerSecond)
        .with_summary(summary);
    let of = |file: &&str| read.iter().filter(|r| r.3 == *file).count();
    let found = files.iter().take(4).fold(found, |found, file| {
        found.with_evidence(file, None, format!("{} copies between {a} and {b}", of(file)))
    });
    Some(found)
}

/// Rates between nodes of different claimed domains. Runs that measured only those are recorded
/// here.
fn collect_cross_domain_rates<'d>(
    domains: &'d [DomainRecordings<'_>],
    ledger: &mut FindingSet,
) -> CrossDomainRates<'d> {
    let mut rates = CrossDomainRates::new();
    let mut node_domains: HostIndex<usize> = HostIndex::default();
    for (at, domain) in domains.iter().enumerate() {
        domain.nodes.iter().for_each(|node| node_domains.add(node, at));
    }
    for holder in domains {
        let mut only_cross_domain = !holder.across_nodes.is_empty();
        for recording in &holder.across_nodes {
            let label = fabric_group::gpu_label_resolver(holder, recording, None);
            let end = |text: &str| {
                let node = label(text)?.node;
                let index = *node_domains.find(node.as_str())?.1;
                let spans = domains[index].platform.is_some_and(Platform::spans_nodes);
                spans.then_some((index, node))
            };
            let mut read = 0;
            let bytes = fabric_group::buffer_bytes(recording);
            for (matrix, name, shape) in fabric_group::pair_matrices(recording) {
                let ends = fabric_group::matrix_ends(matrix, shape, end);
                fabric_group::for_each_pair(matrix, shape, &ends, |(src, _), (dst, _), value| {
                    let (src, dst) = (&domains[*src], &domains[*dst]);
                    let expected = src
                        .platform
                        .and_then(|p| p.expectation(&MeasurementConditions::new(name, bytes)).ok());
                    let expected = expected.and_then(|e| e.value).filter(|v| 0.0 < *v);
                    let (Some(value), Some(expected)) = (value, expected) else { return };
                    if src.name == dst.name {
                        // No other module judges the same-domain pairs of such a run.
                        only_cross_domain = false;
                        return;
                    }
                    read += 1;
                    let (a, b) = (&src.name, &dst.name);
                    let key = if a < b { (a, b) } else { (b, a) };
                    let one = (value / expected, value, expected, recording.file.as_str());
                    rates.entry(key).or_default().push(one);
                });
            }
            only_cross_domain &= 0 < read;
        }
        if only_cross_domain && holder.nodes.is_empty() {
            ledger.remove_unknown(&UnknownSubject::domain(&holder.name));
        }
    }
    rates
}
