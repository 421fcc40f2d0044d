//! The sentence that opens every report: outcome, place, matter.
//!
//! Text only; the judge has decided the outcome.

use std::collections::{BTreeMap, BTreeSet};

use super::class_text;
use super::plain_text::{clip, count_noun, list_names, relative_to_source};
use model::finding_class::FindingClass;
use model::id::DomainName;
use model::run::Run;
use model::text::format_percent;
use model::verdict::{Direction, Finding, LocusKind, NodeVerdict, Outcome};

/// Outcome, place and matter of a run.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Headline {
    pub(super) outcome: Outcome,
    /// The domains concerned.
    pub(super) place: String,
    /// The matter, in a clause.
    pub(super) what: String,
}

impl Headline {
    pub(super) fn outcome_word(&self) -> String {
        self.outcome.as_str().to_uppercase()
    }

    /// Place and matter without the outcome.
    pub(super) fn without_outcome(&self) -> String {
        if self.place.is_empty() {
            self.what.clone()
        } else {
            format!("{}: {}", self.place, self.what)
        }
    }
}

pub(super) fn build_headline(run: &Run) -> Headline {
    let verdicts = &run.verdicts;
    let outcome = verdicts.outcome;
    let blamed: Vec<&Finding> = match outcome {
        Outcome::Pass => Vec::new(),
        _ => verdicts.findings.iter().filter(|f| f.outcome == outcome).collect(),
    };
    let domains: BTreeSet<&DomainName> = match outcome {
        Outcome::Pass => measured_domains(run),
        // If nodes have unknown outcomes, the headline names their domains.
        Outcome::Unknown if blamed.is_empty() => verdicts
            .nodes
            .iter()
            .filter(|n| n.outcome == outcome)
            .filter_map(|n| n.domain.as_ref())
            .collect(),
        _ => blamed.iter().filter_map(|f| f.locus.domain.as_ref()).collect(),
    };
    let what = match outcome {
        Outcome::Pass => describe_pass(run),
        Outcome::Unknown if blamed.is_empty() => describe_unknown(run),
        _ => describe_findings(run, &blamed, &domains),
    };
    Headline { outcome, place: describe_place(run, &domains, &blamed), what }
}

fn measured_domains(run: &Run) -> BTreeSet<&DomainName> {
    let claimed = run.claims.domains.iter().map(|d| &d.name);
    claimed.chain(run.verdicts.nodes.iter().filter_map(|n| n.domain.as_ref())).collect()
}

fn describe_place(run: &Run, concerned: &BTreeSet<&DomainName>, blamed: &[&Finding]) -> String {
    let names: Vec<&str> = concerned.iter().map(|d| d.as_str()).collect();
    let all = measured_domains(run).len();
    let (place, platform) = match names.as_slice() {
        [] => {
            let nodes: BTreeSet<&str> = if blamed.is_empty() {
                run.verdicts.nodes.iter().map(|n| n.node.as_str()).collect()
            } else {
                blamed.iter().filter_map(|f| f.locus.node.as_ref()).map(|n| n.as_str()).collect()
            };
            (list_names(&nodes.into_iter().collect::<Vec<_>>(), 3), None)
        }
        [one] => {
            let claimed = run.claims.domains.iter().find(|d| d.name.as_str() == *one);
            (clip(one, 60), claimed.and_then(|d| d.platform.as_deref()))
        }
        few if few.len() <= 3 => (list_names(few, 3), None),
        many if many.len() == all => (format!("all {all} domains"), None),
        many => (format!("{} of {all} domains", many.len()), None),
    };
    match platform.or(run.verdicts.platform.as_deref()) {
        Some(platform) if !place.is_empty() => format!("{place} ({})", clip(platform, 40)),
        Some(platform) => clip(platform, 40),
        None => place,
    }
}

fn describe_pass(run: &Run) -> String {
    let gpus = total_gpus(run, &measured_domains(run));
    let mut parts = vec![count_noun(run.verdicts.nodes.len(), "node", "nodes")];
    if 0 < gpus {
        parts.push(count_noun(gpus, "GPU", "GPUs"));
    }
    let verb = if run.verdicts.nodes.len() == 1 { "is" } else { "are" };
    let mut what = format!("{} {verb} as expected", parts.join(" with "));
    if let Some(worst) = worst_detectable(run) {
        what.push_str(&format!("; a loss of {} or more was detectable", format_percent(worst)));
        if let Some(together) = worst_together(run) {
            what.push_str(&format!(", of all parts together {}", format_percent(together)));
        }
    }
    what
}

/// The smallest degradation that was detectable on every node.
pub(super) fn worst_detectable(run: &Run) -> Option<f64> {
    worst_over_nodes(run, |node| node.detectable)
}

/// The smallest loss of all parts together that was detectable on every node.
pub(super) fn worst_together(run: &Run) -> Option<f64> {
    worst_over_nodes(run, |node| node.detectable_together)
}

/// The largest value over all nodes; `None` if one node has none.
fn worst_over_nodes(run: &Run, of: impl Fn(&NodeVerdict) -> Option<f64>) -> Option<f64> {
    let each: Option<Vec<f64>> = run.verdicts.nodes.iter().map(of).collect();
    each?.into_iter().reduce(f64::max)
}

fn describe_unknown(run: &Run) -> String {
    let measured = run.cells.iter().any(|c| c.value.is_some());
    let all = run.verdicts.nodes.len();
    let nodes: Vec<_> =
        run.verdicts.nodes.iter().filter(|n| n.outcome == Outcome::Unknown).collect();
    let reasons: BTreeSet<&str> = nodes.iter().map(|n| n.reason.as_str()).collect();
    match nodes.as_slice() {
        [] if !measured => "nothing was measured".to_owned(),
        [] => match run.verdicts.unknown.first() {
            Some(first) => {
                let first = format!("{}: {}", first.what, first.why);
                let first = relative_to_source(&first, &run.info.source);
                format!("the run is incomplete; {}", clip(&first, 160))
            }
            None => "the run is incomplete".to_owned(),
        },
        [node] => {
            let of = if all == 1 { String::new() } else { format!(" (1 of {all} nodes)") };
            let (name, why) = (
                clip(node.node.as_str(), 60),
                clip(&relative_to_source(&node.reason, &run.info.source), 160),
            );
            format!("{name}{of} could not be verified: {why}")
        }
        [first, rest @ ..] => {
            let subject = if rest.len() + 1 == all {
                format!("none of {all} nodes could be verified")
            } else {
                let names: Vec<&str> = nodes.iter().map(|n| n.node.as_str()).collect();
                let names = list_names(&names, 3);
                format!("{names} ({} of {all} nodes) could not be verified", nodes.len())
            };
            match reasons.len() {
                1 => format!(
                    "{subject}: {}",
                    clip(&relative_to_source(&first.reason, &run.info.source), 160)
                ),
                n => format!("{subject}, for {n} different reasons"),
            }
        }
    }
}

fn describe_findings(run: &Run, blamed: &[&Finding], domains: &BTreeSet<&DomainName>) -> String {
    let outcome = run.verdicts.outcome;
    let mut groups: BTreeMap<(LocusKind, &FindingClass), BTreeSet<String>> = BTreeMap::new();
    let mut order: Vec<&Finding> = Vec::new();
    for finding in blamed {
        let key = (finding.locus.kind, &finding.class);
        if !groups.contains_key(&key) {
            order.push(finding);
        }
        // Tx and rx of one GPU, or its two tests, are still one GPU.
        let locus = &finding.locus;
        let part = match locus.kind {
            LocusKind::Gpu | LocusKind::Node | LocusKind::Domain => format!(
                "{}/{}/{}",
                locus.domain.as_ref().map_or("", |d| d.as_str()),
                locus.node.as_ref().map_or("", |n| n.as_str()),
                locus.gpu.map(|g| g.to_string()).unwrap_or_default()
            ),
            _ => finding.id.clone(),
        };
        groups.entry(key).or_default().insert(part);
    }
    let clauses: Vec<String> = order
        .iter()
        .take(2)
        .map(|first| {
            let kind = first.locus.kind;
            let count = groups.get(&(kind, &first.class)).map_or(0, BTreeSet::len);
            let whole = total_parts(run, kind, domains);
            let subject = match (count, whole) {
                (1, 2..) => format!("{} (1 of {whole})", name_single_part(first, domains)),
                (1, _) => name_single_part(first, domains),
                (_, whole) if count < whole => format!("{} of {whole}", count_parts(kind, count)),
                _ => count_parts(kind, count),
            };
            format!("{subject} {}", class_text::class_predicate(&first.class, outcome, count == 1))
        })
        .collect();
    let mut what = if clauses.is_empty() {
        let nodes = run.verdicts.nodes.iter().filter(|n| n.outcome == outcome).count();
        format!("{} {outcome}", count_noun(nodes, "node is", "nodes are"))
    } else {
        clauses.join("; ")
    };
    if 2 < order.len() {
        what.push_str(&format!("; and {} more", count_noun(order.len() - 2, "kind", "kinds")));
    }
    let lesser = run.verdicts.findings.len() - blamed.len();
    if 0 < lesser && outcome == Outcome::Failed {
        let lesser = count_noun(lesser, "lesser finding", "lesser findings");
        what.push_str(&format!("; also {lesser}"));
    }
    what
}

/// The name of the only part in a clause.
fn name_single_part(finding: &Finding, domains: &BTreeSet<&DomainName>) -> String {
    let locus = &finding.locus;
    let node = locus.node.as_ref().map_or("", |n| n.as_str());
    let name = match locus.gpu {
        Some(gpu) => format!("{}:{gpu}", clip(node, 60)),
        None => clip(node, 60),
    };
    // The place at the beginning already names the only domain.
    let domain = match &locus.domain {
        Some(domain) if 1 < domains.len() => format!(" {}", clip(domain.as_str(), 60)),
        _ => String::new(),
    };
    let home = locus.domain.as_ref().is_some_and(|d| d.as_str() == node);
    let rail = locus.rail.as_deref().map(|r| format!(" {}", clip(r, 40))).unwrap_or_default();
    match locus.kind {
        LocusKind::Gpu => format!("GPU {name}"),
        LocusKind::Node if home && domains.len() < 2 => "the node".to_owned(),
        LocusKind::Node => name,
        LocusKind::Pair => {
            format!("the pair {name} and {}", clip(locus.peer.as_deref().unwrap_or("?"), 60))
        }
        LocusKind::Direction => match locus.direction {
            Some(Direction::Tx) => format!("GPU {name}, sending,"),
            Some(Direction::Rx) => format!("GPU {name}, receiving,"),
            _ => format!("one direction of {name}"),
        },
        LocusKind::Tray => format!("tray {name}"),
        // A rail ends at a node; the slow part there is its NIC.
        LocusKind::Rail if !node.is_empty() => match rail.trim() {
            "" => format!("the NIC of {name}"),
            rail => format!("{rail} of {name}"),
        },
        LocusKind::Rail => format!("rail{rail}"),
        LocusKind::Leaf => match locus.leaf.as_deref() {
            Some(leaf) => format!("leaf switch {}{rail}", clip(leaf, 60)),
            None => format!("a leaf switch{rail}"),
        },
        LocusKind::Plane if domain.is_empty() => "a switch plane".to_owned(),
        LocusKind::Plane => format!("a switch plane of{domain}"),
        LocusKind::Domain if domain.is_empty() => "the domain".to_owned(),
        LocusKind::Domain => format!("domain{domain}"),
        LocusKind::Instrument => "a measurement".to_owned(),
    }
}

/// For example `1 GPU` or `3 pairs`.
fn count_parts(kind: LocusKind, count: usize) -> String {
    let (one, many) = match kind {
        LocusKind::Gpu => ("GPU", "GPUs"),
        LocusKind::Node => ("node", "nodes"),
        LocusKind::Pair => ("pair", "pairs"),
        LocusKind::Direction => ("direction of a GPU", "directions of GPUs"),
        LocusKind::Tray => ("tray", "trays"),
        LocusKind::Rail => ("NIC", "NICs"),
        LocusKind::Leaf => ("leaf switch", "leaf switches"),
        LocusKind::Plane => ("switch plane", "switch planes"),
        LocusKind::Domain => ("domain", "domains"),
        LocusKind::Instrument => ("measurement", "measurements"),
    };
    count_noun(count, one, many)
}

/// The number of such parts, if known; otherwise 0.
fn total_parts(run: &Run, kind: LocusKind, domains: &BTreeSet<&DomainName>) -> usize {
    let within =
        |d: Option<&DomainName>| domains.is_empty() || d.is_some_and(|d| domains.contains(d));
    match kind {
        LocusKind::Gpu => total_gpus(run, domains),
        LocusKind::Node => run.verdicts.nodes.iter().filter(|n| within(n.domain.as_ref())).count(),
        _ => 0,
    }
}

/// GPUs of these domains, or of all domains if none is named: as claimed, or as many as appear in
/// cells without a claim.
fn total_gpus(run: &Run, domains: &BTreeSet<&DomainName>) -> usize {
    let within =
        |d: Option<&DomainName>| domains.is_empty() || d.is_some_and(|d| domains.contains(d));
    let claimed: Option<Vec<usize>> = run
        .claims
        .domains
        .iter()
        .filter(|d| within(Some(&d.name)))
        .map(|d| Some(d.nodes.len() * usize::try_from(d.gpus_per_node?).ok()?))
        .collect();
    if let Some(claimed) = claimed.filter(|c| !c.is_empty()) {
        return claimed.iter().sum();
    }
    let mut seen = BTreeSet::new();
    for cell in run.cells.iter().filter(|c| within(c.domain.as_ref())) {
        for (node, gpu) in [(&cell.src_node, cell.src_gpu), (&cell.dst_node, cell.dst_gpu)] {
            if let (Some(node), Some(gpu)) = (node, gpu) {
                seen.insert((node, gpu));
            }
        }
    }
    seen.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::fixture;

    fn line(run: &Run) -> String {
        let headline = build_headline(run);
        format!("{}  {}", headline.outcome_word(), headline.without_outcome())
    }

    #[test]
    fn one_bad_gpu_of_a_rack_gives_one_sentence() {
        assert_eq!(
            line(&fixture::rack()),
            "DEGRADED  block01 (gb200-nvl72): GPU node0007:2 (1 of 72) is below what its NVLinks \
             must \
             deliver"
        );
    }

    #[test]
    fn not_knowing_names_the_node_and_the_reason() {
        assert_eq!(
            line(&fixture::hgx()),
            "UNKNOWN  su01 (hgx-h100): hgx0102 (1 of 2 nodes) could not be verified: \
             host_to_device_memcpy_ce was waived"
        );
        assert_eq!(line(&fixture::empty()), "UNKNOWN  nothing was measured");
    }

    #[test]
    fn a_pass_names_the_smallest_detectable_loss() {
        let mut run = fixture::rack();
        run.verdicts.outcome = Outcome::Pass;
        run.verdicts.findings.clear();
        assert_eq!(
            line(&run),
            "PASS  block01 (gb200-nvl72): 18 nodes with 72 GPUs are as expected; a loss of 3.1 % \
             or more was detectable"
        );
    }

    #[test]
    fn several_kinds_of_findings_are_counted_apart() {
        let mut run = fixture::rack();
        let mut other = run.verdicts.findings[0].clone();
        other.locus.gpu = Some(3);
        run.verdicts.findings.push(other.clone());
        other.class = FindingClass::from_name("no-path");
        other.locus.kind = LocusKind::Node;
        other.locus.gpu = None;
        run.verdicts.findings.push(other);
        assert_eq!(
            build_headline(&run).what,
            "2 GPUs of 72 are below what their NVLinks must deliver; node0007 (1 of 18) is \
             degraded \
             (no path)"
        );
    }

    #[test]
    fn a_finding_about_a_domain_names_the_domain() {
        let mut run = fixture::rack();
        run.verdicts.outcome = Outcome::Failed;
        let finding = &mut run.verdicts.findings[0];
        finding.outcome = Outcome::Failed;
        finding.class = FindingClass::SplitDomain;
        (finding.locus.kind, finding.locus.node, finding.locus.gpu) =
            (LocusKind::Domain, None, None);
        assert_eq!(
            line(&run),
            "FAILED  block01 (gb200-nvl72): the domain is split: its nodes reach each other over \
             NVLink only in groups"
        );
        let finding = &mut run.verdicts.findings[0];
        finding.class = FindingClass::AboveNominal;
        finding.locus.kind = LocusKind::Instrument;
        finding.outcome = Outcome::Unknown;
        run.verdicts.outcome = Outcome::Unknown;
        assert_eq!(
            build_headline(&run).what,
            "a measurement reads more than the links can carry",
            "an unknown finding is the headline of an unknown run"
        );
    }

    #[test]
    fn unknown_nodes_are_named_and_many_reasons_are_counted() {
        let mut run = fixture::rack();
        run.verdicts.outcome = Outcome::Unknown;
        run.verdicts.findings.clear();
        for (at, why) in [(1, "cut short"), (2, "waived")] {
            run.verdicts.nodes[at].outcome = Outcome::Unknown;
            run.verdicts.nodes[at].reason = why.to_owned();
        }
        assert_eq!(
            build_headline(&run).what,
            "node0002, node0003, node0012 (3 of 18 nodes) could not be verified, for 3 \
             different reasons"
        );
        for node in &mut run.verdicts.nodes {
            (node.outcome, node.reason) = (Outcome::Unknown, "cut short".to_owned());
        }
        assert_eq!(build_headline(&run).what, "none of 18 nodes could be verified: cut short");
    }
}
