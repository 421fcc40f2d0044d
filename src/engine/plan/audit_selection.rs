//! Selects the nodes of an audit: those with the oldest measurement, as many as time and footprint
//! allow, so that the whole fleet takes turns.
//!
//! Pure: takes claims, the known state of each node, a budget, a cost and a seed; returns the
//! selected nodes, and the reason for each deferred node. Selects only useful measurements: across
//! a domain a node needs partners.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use model::claims::{ClaimedDomain, Claims};
use model::id::{DomainName, NodeName};
use model::seeded_rng::SeededRng;
use model::time_format::format_rfc3339;

/// Nodes of a domain that are measured together, if the limits allow: a suspect and three partners,
/// of which two must agree (`Limits::partners`).
pub const DOMAIN_GROUP_SIZE: usize = 4;

/// The minimum: a measurement across a domain needs two.
const MIN_GROUP_SIZE: usize = 2;

/// After this many consecutive failed attempts, a node waits for its next turn like a measured one:
/// a node that is always busy would block the others. From then on it is tried once per turn; with
/// two tries, nodes that serve as partners would always come first.
const MAX_MISSES: u32 = 2;

/// The budget of an audit.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct AuditBudget {
    /// Estimated time from start to end, in seconds; unlimited if absent.
    pub seconds: Option<f64>,
    /// Number of nodes; unlimited if absent.
    pub nodes: Option<usize>,
    /// Share of all claimed nodes, at least two nodes; unlimited if absent.
    pub share: Option<f64>,
    /// Share of the nodes of each domain, at least two nodes; unlimited if absent.
    pub share_of_domain: Option<f64>,
}

impl AuditBudget {
    /// Whether no limit is set.
    pub fn is_unlimited(&self) -> bool {
        *self == Self::default()
    }

    /// The maximum number of nodes of a fleet.
    fn max_nodes(&self, fleet: usize) -> usize {
        let share = self.share.map(|share| count_share(share, fleet));
        [self.nodes, share].into_iter().flatten().min().unwrap_or(usize::MAX)
    }

    /// The maximum number of nodes of a domain.
    fn max_domain_nodes(&self, domain: &ClaimedDomain) -> usize {
        self.share_of_domain.map_or(usize::MAX, |share| count_share(share, domain.nodes.len()))
    }
}

/// A share of a count, rounded down, but at least the minimum group.
fn count_share(share: f64, of: usize) -> usize {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "a share of a fleet is neither negative nor beyond it, and fleets are small"
    )]
    let part = (of as f64 * share).floor().max(0.0) as usize;
    part.max(MIN_GROUP_SIZE)
}

/// The known state of a node. Times are seconds since 1970.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuditNodeState {
    /// Time of the last measurement with a result; `None` for never.
    pub measured: Option<i64>,
    /// Time of the last attempt, with or without a result.
    pub tried: Option<i64>,
    /// Number of consecutive attempts without a result.
    pub misses: u32,
    /// When its certificate was issued.
    pub certified: Option<i64>,
    /// Whether a run found it slow and a second run must confirm that before a drain: it comes
    /// before all others.
    pub suspected: bool,
    /// Why it cannot be measured now.
    pub unfit: Option<String>,
}

impl AuditNodeState {
    /// Start of its wait: the oldest measurement comes first.
    fn waiting_since(&self) -> Option<i64> {
        if MAX_MISSES <= self.misses { self.measured.max(self.tried) } else { self.measured }
    }
}

/// The input of a selection.
pub struct AuditSelectionRequest<'a> {
    /// The claims: every claimed node may be selected.
    pub claims: &'a Claims,
    /// The known states; a missing node has no known state.
    pub known: &'a BTreeMap<NodeName, AuditNodeState>,
    /// The limits of the audit.
    pub budget: AuditBudget,
    /// Seed for the order of nodes with equal waiting time.
    pub seed: u64,
    /// The estimated time to measure these nodes, in seconds.
    pub cost: &'a dyn Fn(&Claims) -> f64,
}

impl fmt::Debug for AuditSelectionRequest<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Question").field("budget", &self.budget).finish_non_exhaustive()
    }
}

/// The selected nodes, and why the others are deferred.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AuditSelection {
    /// The nodes, most urgent first.
    pub nodes: Vec<NodeName>,
    /// The deferred nodes, and why.
    pub left_out: BTreeMap<NodeName, DeferredNode>,
    /// Estimated time from start to end, in seconds.
    pub estimate_s: f64,
}

/// A node that is not measured in this audit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeferredNode {
    /// Time of its last measurement, Unix seconds.
    pub measured: Option<i64>,
    /// Why it is deferred.
    pub why: String,
}

impl fmt::Display for DeferredNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.measured {
            Some(at) => write!(f, "measured {}; {}", format_rfc3339(at), self.why),
            None => write!(f, "never measured; {}", self.why),
        }
    }
}

impl AuditSelection {
    /// The claims restricted to the selected nodes.
    pub fn restrict_claims(&self, of: &Claims) -> Claims {
        of.with_nodes(|node| self.nodes.contains(node))
    }
}

/// Selects the nodes of an audit.
pub fn select_nodes(question: &AuditSelectionRequest<'_>) -> AuditSelection {
    let mut choosing = AuditSelector::new(question);
    choosing.apply_footprint();
    choosing.apply_time_limit();
    choosing.into_selection()
}

type AuditGroup<'a> = Vec<&'a NodeName>;

struct AuditSelector<'a> {
    request: &'a AuditSelectionRequest<'a>,
    /// Eligible nodes, the most urgent first, with their domain.
    order: Vec<(&'a NodeName, &'a ClaimedDomain)>,
    groups: Vec<AuditGroup<'a>>,
    left_out: BTreeMap<&'a NodeName, String>,
    estimate_s: f64,
}

impl<'a> AuditSelector<'a> {
    fn new(request: &'a AuditSelectionRequest<'a>) -> Self {
        let mut left_out = BTreeMap::new();
        let mut order: Vec<(&NodeName, &ClaimedDomain)> = Vec::new();
        for domain in &request.claims.domains {
            for node in &domain.nodes {
                match request.known.get(node).and_then(|known| known.unfit.as_ref()) {
                    Some(why) => drop(left_out.insert(node, why.clone())),
                    None => order.push((node, domain)),
                }
            }
        }
        order.sort_by_key(|(node, _)| *node);
        SeededRng::new(request.seed, "stalest").shuffle(&mut order);
        let waits = |node: &NodeName| {
            let known = request.known.get(node);
            let never = known.is_none_or(|it| it.measured.is_none());
            // With equal waiting time, a node without a certificate comes first, then the one with
            // the older certificate.
            let suspected = known.is_some_and(|it| it.suspected);
            let since = known.and_then(AuditNodeState::waiting_since);
            (Reverse(suspected), since, Reverse(never), known.and_then(|it| it.certified))
        };
        // A stable sort: equal nodes keep their random order.
        order.sort_by_key(|(node, _)| waits(node));
        Self { request, order, groups: Vec::new(), left_out, estimate_s: 0.0 }
    }

    /// Selects the most urgent nodes and partners in their domains, as many as the footprint
    /// allows.
    fn apply_footprint(&mut self) {
        let fleet = self.request.claims.domains.iter().map(|domain| domain.nodes.len()).sum();
        let most = self.request.budget.max_nodes(fleet);
        let mut taken: BTreeMap<&DomainName, usize> = BTreeMap::new();
        let mut chosen: BTreeSet<&NodeName> = BTreeSet::new();
        for &(node, domain) in &self.order {
            if chosen.contains(node) {
                continue;
            }
            let of_domain = taken.entry(&domain.name).or_default();
            let room = self.request.budget.max_domain_nodes(domain).saturating_sub(*of_domain);
            let free = most.saturating_sub(chosen.len());
            let is_begun = 0 < *of_domain;
            let least = if is_begun || domain.nodes.len() == 1 { 1 } else { MIN_GROUP_SIZE };
            if room < least {
                let why = format!("{of_domain} others of {} have waited longer", domain.name);
                self.left_out.insert(node, format!("{why}, and the limit per domain is reached"));
                continue;
            }
            if free < least {
                let why =
                    format!("others have waited longer, and at most {most} nodes are measured");
                self.left_out.insert(node, why);
                continue;
            }
            let want = if is_begun { 1 } else { DOMAIN_GROUP_SIZE.min(room).min(free) };
            let rest = self.order.iter().filter(|(other, of)| {
                of.name == domain.name && *other != node && !chosen.contains(other)
            });
            let group: AuditGroup<'a> =
                std::iter::once(node).chain(rest.map(|(other, _)| *other)).take(want).collect();
            if group.len() < least {
                let why = format!("no other node of {} can be measured with it", domain.name);
                self.left_out.insert(node, why);
                continue;
            }
            *of_domain += group.len();
            chosen.extend(&group);
            self.groups.push(group);
        }
        // It was deferred before it became another node's partner.
        self.left_out.retain(|node, _| !chosen.contains(node));
    }

    /// Drops the least urgent nodes until the rest fits the time limit.
    fn apply_time_limit(&mut self) {
        let Some(seconds) = self.request.budget.seconds else {
            self.estimate_s = self.estimate_cost(&self.groups);
            return;
        };
        // More nodes never take less time, so a binary search finds the longest prefix that fits.
        // Even if that assumption fails, the result fits.
        let (mut fits, mut beyond) = (0, self.groups.len() + 1);
        while fits + 1 < beyond {
            let middle = usize::midpoint(fits, beyond);
            let takes = self.estimate_cost(&self.groups[..middle]);
            if takes <= seconds { fits = middle } else { beyond = middle }
        }
        let left = self.groups.split_off(fits);
        let mut smaller = None;
        if let Some(first) = left.first().filter(|_| fits == 0) {
            // Prefer two of the most urgent nodes over an audit that selects none every day.
            let least = MIN_GROUP_SIZE.min(first.len());
            smaller = (least..first.len())
                .rev()
                .map(|count| first[..count].to_vec())
                .find(|group| self.estimate_cost(std::slice::from_ref(group)) <= seconds);
        }
        self.groups.extend(smaller);
        self.estimate_s = self.estimate_cost(&self.groups);
        let chosen: BTreeSet<&NodeName> = self.groups.iter().flatten().copied().collect();
        let others = if chosen.is_empty() {
            "it takes longer than the limit of"
        } else {
            "others have waited longer and take the whole limit of"
        };
        let why = format!("{others} {:.0} min", seconds / 60.0);
        for node in left.into_iter().flatten().filter(|node| !chosen.contains(node)) {
            self.left_out.insert(node, why.clone());
        }
    }

    fn estimate_cost(&self, groups: &[AuditGroup<'_>]) -> f64 {
        let nodes: BTreeSet<&NodeName> = groups.iter().flatten().copied().collect();
        if nodes.is_empty() {
            return 0.0;
        }
        (self.request.cost)(&self.request.claims.with_nodes(|node| nodes.contains(node)))
    }

    fn into_selection(self) -> AuditSelection {
        let known = self.request.known;
        let left = self.left_out.into_iter().map(|(node, why)| {
            let measured = known.get(node).and_then(|known| known.measured);
            (node.clone(), DeferredNode { measured, why })
        });
        AuditSelection {
            left_out: left.collect(),
            nodes: self.groups.into_iter().flatten().cloned().collect(),
            estimate_s: self.estimate_s,
        }
    }
}

#[cfg(test)]
#[path = "audit_selection_tests.rs"]
mod tests;
