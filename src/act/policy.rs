//! From verdicts to an action plan, inside a blast-radius budget.
//!
//! Pure. A node is proposed for a drain only where a finding names it as the
//! part at fault. Findings about a domain, plane, leaf, rail, pair or the
//! instrument never drain anybody: the nodes there are the ones that suffer.
//! Unknown never acts. Whatever is not proposed is listed with its reason.

use std::collections::BTreeMap;
use std::collections::BTreeSet;

use schemars::JsonSchema;
use serde::Deserialize;
use serde::Serialize;

use super::ledger::Ledger;
use super::marks::MarkNames;
use super::situation::Coverage;
use super::situation::Now;
use super::situation::RunSeen;
use super::situation::Situation;
use crate::model::action::ACTIONS_FORMAT;
use crate::model::action::Action;
use crate::model::action::ActionKind;
use crate::model::action::ActionPlan;
use crate::model::action::Withheld;
use crate::model::claims::Claims;
use crate::model::id::DomainName;
use crate::model::id::NodeName;
use crate::model::verdict::Finding;
use crate::model::verdict::LocusKind;
use crate::model::verdict::Outcome;
use crate::model::verdict::Verdicts;

/// Longest reason that is written: `sinfo -R` and other tools' tables cut or
/// break on long ones, and ours is an id, not a report.
const LONGEST_REASON: usize = 100;

/// Below this share of planned steps that came back, the instrument is in
/// doubt and not the nodes.
const LEAST_COVERAGE: f64 = 0.8;

/// What may be done. The defaults are deliberately small.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Policy {
    /// Most nodes of one domain that are proposed at a time.
    pub per_domain: usize,
    /// This many suspects in one domain are a common cause, not bad nodes.
    pub freeze_domain: usize,
    /// This share of all claimed nodes, likewise. In a small fleet it still
    /// takes `freeze_domain` suspects.
    pub freeze_fleet: f64,
    /// Propose what no second measurement has confirmed yet.
    pub propose_unconfirmed: bool,
    /// Complete runs under `recertify` or `burn-in` that a node which we drained
    /// must pass before it is given back.
    pub clean_sweeps: u32,
    /// Days that a pass counts. A week is our own choice: no vendor names a
    /// figure for fabric, and it lets a fleet be measured in turns.
    pub certificate_days: u32,
    /// The site's names for what is said on nodes.
    pub marks: MarkNames,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            per_domain: 2,
            freeze_domain: 3,
            freeze_fleet: 0.05,
            propose_unconfirmed: true,
            clean_sweeps: 2,
            certificate_days: 7,
            marks: MarkNames::default(),
        }
    }
}

/// The findings that accuse one node, worst first.
#[derive(Debug)]
struct Suspect<'a> {
    node: &'a NodeName,
    domain: Option<&'a DomainName>,
    findings: Vec<&'a Finding>,
}

/// What verdicts alone ask for: nobody was asked how the nodes stand, and
/// nothing is known of earlier actions. A plan to read, not to carry out.
pub fn of_verdicts(
    verdicts: &Verdicts,
    fleet: &Claims,
    policy: &Policy,
    coverage: Option<Coverage>,
    run: &RunSeen,
) -> ActionPlan {
    let situation = Situation {
        verdicts,
        fleet,
        coverage,
        run,
        live: None,
        ledger: &Ledger::default(),
        controls: &BTreeSet::new(),
        drivers: &BTreeMap::new(),
        now: &Now::default(),
    };
    propose(&situation, policy)
}

/// Proposes actions. Nothing is carried out by this.
pub fn propose(situation: &Situation<'_>, policy: &Policy) -> ActionPlan {
    let Situation { verdicts, fleet: claims, coverage, .. } = *situation;
    let mut withheld = Vec::new();
    let suspects = suspects(verdicts, claims, &mut withheld);
    let stop = Stop::of(verdicts, claims, policy, coverage, &suspects);
    let mut proposed: BTreeMap<Option<&DomainName>, usize> = BTreeMap::new();
    let mut actions = Vec::new();
    for suspect in &suspects {
        let count = proposed.entry(suspect.domain).or_default();
        let refusal = stop
            .reason(suspect)
            .or_else(|| not_drainable(suspect.node))
            .or_else(|| unconfirmed(suspect, policy))
            .or_else(|| over_budget(suspect, *count, policy));
        match refusal {
            Some(why) => {
                withheld.push(Withheld { what: suspect.node.to_string(), why, budget: false });
            }
            None => {
                *count += 1;
                actions.push(drain(suspect));
            }
        }
    }
    actions.sort_by(|a, b| a.node.cmp(&b.node));
    ActionPlan {
        format: ACTIONS_FORMAT.to_owned(),
        dry_run: true,
        frozen: None,
        actions,
        withheld,
        records: Vec::new(),
    }
}

/// Groups findings by the node they accuse; what accuses none is withheld.
fn suspects<'a>(
    verdicts: &'a Verdicts,
    claims: &'a Claims,
    withheld: &mut Vec<Withheld>,
) -> Vec<Suspect<'a>> {
    let mut by_node: BTreeMap<&NodeName, Vec<&Finding>> = BTreeMap::new();
    for finding in &verdicts.findings {
        if !matches!(finding.outcome, Outcome::Degraded | Outcome::Failed) {
            continue;
        }
        match accused(finding) {
            Ok(node) => by_node.entry(node).or_default().push(finding),
            Err(why) => {
                let what = format!("{} ({})", finding.locus, finding.class);
                withheld.push(Withheld { what, why: why.to_owned(), budget: false });
            }
        }
    }
    let mut suspects: Vec<Suspect<'a>> = by_node
        .into_iter()
        .map(|(node, mut findings)| {
            findings.sort_by(|a, b| worse(a, b));
            let domain = claims.domain_of(node).map(|d| &d.name);
            Suspect { node, domain, findings }
        })
        .collect();
    // The worst come first into the budget; names break ties.
    suspects.sort_by(|a, b| worse(a.findings[0], b.findings[0]).then(a.node.cmp(b.node)));
    suspects
}

fn worse(a: &Finding, b: &Finding) -> std::cmp::Ordering {
    let ratio = |f: &Finding| f.ratio.unwrap_or(0.0);
    b.outcome.cmp(&a.outcome).then(ratio(a).total_cmp(&ratio(b))).then_with(|| a.id.cmp(&b.id))
}

/// The node a finding accuses, or why it accuses none.
fn accused(finding: &Finding) -> Result<&NodeName, &'static str> {
    if finding.class == "stale-clique" {
        return Err(
            "the node sits where it is claimed and its clique is stale; a drain corrects no label",
        );
    }
    match finding.locus.kind {
        LocusKind::Node | LocusKind::Gpu | LocusKind::Direction | LocusKind::Tray => {
            finding.locus.node.as_ref().ok_or("the finding names no node")
        }
        LocusKind::Pair => Err("either end of a pair may be at fault; a drain would be a guess"),
        // A node's own end of a rail is the node's; the rail as such is shared.
        LocusKind::Rail if finding.locus.node.is_some() => {
            finding.locus.node.as_ref().ok_or("the finding names no node")
        }
        LocusKind::Rail | LocusKind::Leaf | LocusKind::Plane | LocusKind::Domain => {
            Err("a shared part is at fault; draining the nodes that suffer from it repairs nothing")
        }
        LocusKind::Instrument => Err("the measurement itself is in doubt"),
    }
}

/// Reasons to propose nothing in a domain, or nothing at all.
struct Stop {
    everywhere: Option<String>,
    domains: BTreeMap<DomainName, String>,
}

impl Stop {
    fn of(
        verdicts: &Verdicts,
        claims: &Claims,
        policy: &Policy,
        coverage: Option<Coverage>,
        suspects: &[Suspect<'_>],
    ) -> Self {
        let mut stop = Self { everywhere: None, domains: BTreeMap::new() };
        let mut counts: BTreeMap<&DomainName, usize> = BTreeMap::new();
        for domain in suspects.iter().filter_map(|s| s.domain) {
            *counts.entry(domain).or_default() += 1;
        }
        for (domain, count) in counts {
            if policy.freeze_domain <= count {
                let why = format!(
                    "frozen: {count} nodes of {domain} are suspect at once (limit {}), which \
                     points at a common cause",
                    policy.freeze_domain
                );
                stop.domains.insert(domain.clone(), why);
            }
        }
        for finding in &verdicts.findings {
            if finding.locus.kind == LocusKind::Instrument {
                let why = format!("frozen: the measurement is in doubt ({})", finding.class);
                match &finding.locus.domain {
                    Some(domain) => {
                        stop.domains.entry(domain.clone()).or_insert(why);
                    }
                    None => stop.everywhere = Some(why),
                }
            }
        }
        let nodes: BTreeSet<&NodeName> = claims.domains.iter().flat_map(|d| &d.nodes).collect();
        let known = suspects.iter().filter(|s| s.domain.is_some()).count();
        #[expect(clippy::cast_precision_loss, reason = "fleets have far fewer than 2^52 nodes")]
        let share = if nodes.is_empty() { 0.0 } else { known as f64 / nodes.len() as f64 };
        if policy.freeze_domain <= known && policy.freeze_fleet <= share {
            stop.everywhere = Some(format!(
                "frozen: {known} of {} claimed nodes are suspect at once ({:.0} %, limit {:.0} %), \
                 which points at a common cause",
                nodes.len(),
                share * 100.0,
                policy.freeze_fleet * 100.0
            ));
        }
        if let Some(Coverage { planned, returned }) = coverage {
            #[expect(clippy::cast_precision_loss, reason = "plans have far fewer than 2^52 steps")]
            let enough = planned as f64 * LEAST_COVERAGE <= returned as f64;
            if !enough {
                stop.everywhere = Some(format!(
                    "frozen: only {returned} of {planned} steps came back, so the sweep itself is \
                     in doubt"
                ));
            }
        }
        stop
    }

    fn reason(&self, suspect: &Suspect<'_>) -> Option<String> {
        let of_domain = suspect.domain.and_then(|domain| self.domains.get(domain));
        self.everywhere.as_ref().or(of_domain).cloned().or_else(|| {
            suspect.domain.is_none().then(|| {
                "no domain claims this node, so the scheduler may know it by another name"
                    .to_owned()
            })
        })
    }
}

/// Names that `scontrol` would not read as exactly this one node. Its host
/// lists know brackets, commas and functions, and `ALL` drains the cluster.
fn not_drainable(node: &NodeName) -> Option<String> {
    let name = node.as_str();
    let plain = name.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_')
        && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-'));
    if plain && !name.eq_ignore_ascii_case("all") {
        return None;
    }
    Some(format!("{name:?} would not be read as the name of one node"))
}

fn unconfirmed(suspect: &Suspect<'_>, policy: &Policy) -> Option<String> {
    let confirmed = suspect.findings.iter().any(|f| f.confirmed);
    (!confirmed && !policy.propose_unconfirmed)
        .then(|| "not confirmed by a second, independent measurement".to_owned())
}

fn over_budget(suspect: &Suspect<'_>, proposed: usize, policy: &Policy) -> Option<String> {
    (policy.per_domain <= proposed).then(|| {
        let domain = suspect.domain.map_or("no domain", |d| d.as_str());
        format!("budget: {} nodes of {domain} are already proposed", policy.per_domain)
    })
}

fn drain(suspect: &Suspect<'_>) -> Action {
    let worst = suspect.findings[0];
    let mut why = format!("{} {}: {}", worst.locus, worst.outcome, worst.summary);
    if 1 < suspect.findings.len() {
        why.push_str(&format!(" (and {} more)", suspect.findings.len() - 1));
    }
    if !suspect.findings.iter().any(|f| f.confirmed) {
        why.push_str("; not confirmed by a second measurement yet");
    }
    Action {
        kind: ActionKind::Drain,
        node: suspect.node.clone(),
        command: vec![
            "scontrol".to_owned(),
            "update".to_owned(),
            format!("NodeName={}", suspect.node),
            "State=DRAIN".to_owned(),
            format!("Reason={}", reason(worst)),
        ],
        domain: suspect.domain.cloned(),
        leaf: None,
        reason: reason(worst),
        mark: None,
        findings: suspect.findings.iter().map(|f| f.id.clone()).collect(),
        ratio: worst.ratio,
        price: None,
        why,
    }
}

/// `fabricgate:<id>:<class>`. Slurm stores any byte and prints it raw, so only
/// harmless ones go in; ownership is recognised by the prefix, because Slurm
/// appends to reasons.
fn reason(finding: &Finding) -> String {
    let plain = |text: &str| -> String {
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        text.chars().map(|c| if allowed(c) { c } else { '-' }).collect()
    };
    let mut reason = format!("fabricgate:{}:{}", plain(&finding.id), plain(&finding.class));
    reason.truncate(LONGEST_REASON);
    reason
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
