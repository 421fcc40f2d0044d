//! Selects partners for the named nodes: a node measured alone proves nothing about its domain or
//! its rails.
//!
//! Run folders and certificates determine the cleared nodes; `plan::partners` picks among them.

use std::collections::{BTreeMap, BTreeSet};

use crate::cli::audit_scope;
use crate::cli::past_runs::PastRuns;
use crate::cli::plan_scope;
use crate::cli::plan_scope::{NodeSelectionArgs, PlanScope};
use crate::cli::stdout::note;
use crate::config::Config;
use crate::exit::CommandError;
use control::gate::certificates;
use control::store::document_signature::SignatureTrust;
use control::sweep;
use engine::judge;
use engine::plan::partners as choosing;
use engine::plan::partners::{PartnerCandidates, PartnerDemand};
use engine::policy::certificate;
use engine::thresholds::PlatformCatalogue;
use model::claims::{ClaimedDomain, Claims};
use model::hostlist;
use model::id::{DomainName, NodeName};
use model::verdict::{Outcome, Verdicts};

/// Relative scatter of repeated readings of a copy between nodes, without other load.
const DEFAULT_SIGMA: f64 = 0.005;

/// The named nodes and their partners; prints the choice.
pub(crate) fn choose_partners(
    config: &Config,
    catalogue: &PlatformCatalogue,
    fleet: Claims,
    selection: &NodeSelectionArgs,
    past: &PastRuns,
) -> Result<PlanScope, CommandError> {
    let mut chosen = plan_scope::select_nodes(fleet, selection)?;
    let most = selection.partners;
    if chosen.named.is_empty() || selection.with_domain || most == Some(0) {
        return Ok(chosen);
    }
    let search = PartnerSearch {
        config,
        across: &plan_scope::find_nvlink_domains(
            &chosen.fleet,
            catalogue,
            config.platform.as_deref(),
        ),
        fleet: &chosen.fleet,
        named: &chosen.named,
        past,
        most,
    };
    let partners = find_partners(&search);
    for line in describe_partners(&partners, &chosen.named, config.readings) {
        note(&line);
    }
    let takes_part =
        |node: &NodeName| chosen.named.contains(node) || partners.nodes.contains_key(node);
    chosen.claims = chosen.fleet.with_nodes(takes_part);
    Ok(chosen)
}

/// Partners only support the named nodes: without a named node left, nothing is measured.
pub(crate) fn check_named_left(
    claims: &Claims,
    named: &BTreeSet<NodeName>,
) -> Result<(), CommandError> {
    let is_left = |node: &NodeName| claims.domain_of(node).is_some();
    match named.is_empty() || named.iter().any(is_left) {
        true => Ok(()),
        false => Err(CommandError::environment(
            "none of the named nodes can be measured now: see above why each is left out",
        )),
    }
}

/// The outcome of the named nodes, because partners take part only for their sake. Prints a note if
/// the outcome of all nodes is worse.
pub(crate) fn named_outcome(verdicts: &Verdicts, named: &BTreeSet<NodeName>) -> Outcome {
    let of_named = verdicts.nodes.iter().filter(|it| named.contains(&it.node));
    let outcome = of_named.map(|it| it.outcome).max().unwrap_or(verdicts.outcome);
    if outcome < verdicts.outcome {
        note(&format!(
            "the exit code is that of {}; the worst outcome of all nodes that took part is {}",
            hostlist::fold(named.iter().map(NodeName::as_str)),
            verdicts.outcome
        ));
    }
    outcome
}

/// The inputs of the search for partners.
#[derive(Clone, Copy, Debug)]
struct PartnerSearch<'a> {
    config: &'a Config,
    /// Domains whose platform connects nodes by NVLink.
    across: &'a BTreeSet<DomainName>,
    fleet: &'a Claims,
    named: &'a BTreeSet<NodeName>,
    past: &'a PastRuns,
    /// The number that the operator requests.
    most: Option<usize>,
}

/// Nodes that take part as partners.
#[derive(Debug, Default)]
struct PartnerNodes {
    /// Each partner, and whether it is cleared.
    nodes: BTreeMap<NodeName, bool>,
    /// Why a needed partner is missing.
    missing: Vec<String>,
}

fn describe_partners(
    partners: &PartnerNodes,
    named: &BTreeSet<NodeName>,
    readings: u32,
) -> Vec<String> {
    let fold = |cleared: bool| {
        let nodes = partners.nodes.iter().filter(|(_, it)| **it == cleared);
        hostlist::fold(nodes.map(|(node, _)| node.as_str()))
    };
    let why = format!(
        "the claimed connections of {} cannot be verified without other nodes",
        hostlist::fold(named.iter().map(NodeName::as_str))
    );
    let mut lines = Vec::new();
    let has = |cleared: bool| partners.nodes.values().any(|it| *it == cleared);
    let count = partners.nodes.len();
    match (has(true), has(false)) {
        (true, false) => {
            lines.push(format!("measured against {}, which are cleared: {why}", fold(true)));
        }
        (false, true) => lines.push(format!(
            "measured against {}, none of them cleared, so {count} take part: {why}",
            fold(false)
        )),
        (true, true) => lines.push(format!(
            "measured against {}, which are cleared, and {}, which are not: {why}",
            fold(true),
            fold(false)
        )),
        (false, false) => {}
    }
    if 0 < count {
        let least = judge::detectable_loss(count, readings, DEFAULT_SIGMA);
        lines.push(format!(
            "if readings scatter by {:.1} %, a loss of {:.1} % of a GPU's rate is detectable",
            100.0 * DEFAULT_SIGMA,
            100.0 * least
        ));
    }
    lines.extend(partners.missing.iter().cloned());
    lines
}

/// The partners of the named nodes: in each domain that NVLink connects, and over the network if
/// rails are claimed.
fn find_partners(search: &PartnerSearch<'_>) -> PartnerNodes {
    let PartnerSearch { config, across, fleet, named, .. } = *search;
    // The code that issues certificates reports unreadable keys.
    let trust = config.certificates.read_keys().trust;
    let mut partners = PartnerNodes::default();
    let is_named = |domain: &&ClaimedDomain| domain.nodes.iter().any(|node| named.contains(node));
    for domain in fleet.domains.iter().filter(is_named) {
        let may_span = match domain.platform.as_deref().or(config.platform.as_deref()) {
            Some(_) => across.contains(&domain.name),
            None => domain.gpus_per_node != Some(0),
        };
        if may_span && 1 < domain.nodes.len() {
            let nodes: Vec<&NodeName> = domain.nodes.iter().collect();
            add_partners(search, &trust, &format!("domain {}", domain.name), &nodes, &mut partners);
        }
    }
    let over_network =
        !fleet.rails.is_empty() || fleet.domains.iter().any(|it| it.gpus_per_node == Some(0));
    if over_network && partners.nodes.is_empty() && partners.missing.is_empty() {
        // Prefer nodes under the same leaf: an uplink is not part of a node.
        let leaves: Vec<_> = fleet
            .leaves
            .iter()
            .filter(|leaf| leaf.nodes.iter().any(|it| named.contains(it)))
            .collect();
        let mut nodes: Vec<&NodeName> = leaves.iter().flat_map(|leaf| &leaf.nodes).collect();
        if nodes.iter().all(|node| named.contains(*node)) {
            nodes = fleet.domains.iter().flat_map(|domain| &domain.nodes).collect();
        }
        if 1 < nodes.len() {
            add_partners(search, &trust, "its rails", &nodes, &mut partners);
        }
    }
    partners
}

fn add_partners(
    search: &PartnerSearch<'_>,
    trust: &SignatureTrust,
    place: &str,
    nodes: &[&NodeName],
    partners: &mut PartnerNodes,
) {
    let PartnerSearch { config, fleet, named, past, most, .. } = *search;
    let cleared = |node: &NodeName| is_cleared(config, trust, node, past);
    let others: Vec<&NodeName> = nodes.iter().copied().filter(|it| !named.contains(*it)).collect();
    if others.is_empty() {
        return;
    }
    // Cleared nodes among the named ones serve as partners too.
    let cleared_named = nodes.iter().filter(|node| named.contains(**node) && cleared(node)).count();
    let idle = |node: &&NodeName| {
        let report = fleet.nodes.get(*node);
        past.passed_last(node).is_none()
            && report.is_none_or(|report| audit_scope::unfit_reason(node, report).is_none())
    };
    let (good, rest): (Vec<&NodeName>, Vec<&NodeName>) =
        others.iter().copied().partition(|node| cleared(node));
    let pool = PartnerCandidates { cleared: good, idle: rest.into_iter().filter(idle).collect() };
    let wanted = PartnerDemand { exactly: most, usual: config.limits.partners, cleared_named };
    let list = hostlist::fold(named.iter().map(NodeName::as_str));
    let chosen = choosing::choose_partners(&pool, wanted, &list);
    if chosen.is_empty() && cleared_named == 0 {
        partners.missing.push(format!(
            "{place}: no other node of it is idle and free of findings, so its nodes are measured \
             among themselves; --with-domain adds the others",
        ));
    }
    partners.nodes.extend(chosen);
}

/// Whether a node is known to be good: its last run passed, or it has a valid certificate and no
/// later run.
fn is_cleared(config: &Config, trust: &SignatureTrust, node: &NodeName, past: &PastRuns) -> bool {
    match past.passed_last(node) {
        Some(passed) => passed,
        None => has_certificate(config, trust, node),
    }
}

fn has_certificate(config: &Config, trust: &SignatureTrust, node: &NodeName) -> bool {
    let Some(gate) = &config.gate else { return false };
    let now = sweep::now().as_second();
    match certificates::read_trusted(&gate.folder, node, trust) {
        Ok(Some(certificate)) => certificate::explain_expiry(&certificate, now).is_none(),
        // An unreadable certificate, or one without a trusted signature, clears no node.
        Ok(None) | Err(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::config;
    use control::gate::certificates::CertificateSigning;
    use control::store::document_signature::SigningKey;
    use model::certificate::Certificate;

    /// The cleared partners of `n1` if `n2` has an unsigned certificate, under these
    /// `[certificates]` settings.
    fn find_test_partners(certificates: &str) -> Vec<NodeName> {
        let folder = tempfile::tempdir().expect("a folder");
        let (key, _) = SigningKey::generate().expect("a key");
        fs::write(folder.path().join("key.pub"), key.public().to_pem()).expect("written");
        let file = folder.path().join("fabricgate.toml");
        let text = format!("claims = \"c\"\n[gate]\n[certificates]\n{certificates}\n");
        fs::write(&file, text).expect("written");
        let now = sweep::now().as_second();
        let made = Certificate::unsigned("n2".into(), now, now + 3_600);
        let no_keys = SignatureTrust::default();
        let signing = CertificateSigning { key: Ok(None), trust: &no_keys };
        certificates::export_certificates(
            &folder.path().join("gate"),
            vec![made],
            Vec::new(),
            &signing,
        )
        .expect("written");
        let config = config::open(Some(&file)).expect("good");
        let domain = ClaimedDomain {
            name: "d".into(),
            nodes: ["n1".into(), "n2".into()].into(),
            platform: None,
            gpus_per_node: None,
            nic: None,
        };
        let fleet = Claims { domains: vec![domain], ..Claims::default() };
        let search = PartnerSearch {
            config: &config,
            across: &BTreeSet::new(),
            fleet: &fleet,
            named: &["n1".into()].into(),
            past: &PastRuns::default(),
            most: Some(3),
        };
        let partners = find_partners(&search).nodes.into_iter();
        partners.filter_map(|(node, cleared)| cleared.then_some(node)).collect()
    }

    #[test]
    fn a_certificate_clears_a_partner_only_where_its_signature_counts() {
        assert_eq!(find_test_partners(""), ["n2".into()]);
        assert_eq!(find_test_partners("public_keys = [\"key.pub\"]"), ["n2".into()]);
        let required = "public_keys = [\"key.pub\"]\nrequire_signature = true";
        assert_eq!(find_test_partners(required), Vec::<NodeName>::new());
    }
}
