//! Which nodes an audit measures: those that were not measured for longest, as
//! many as time and footprint allow, so that all of a fleet are in turn.
//!
//! Pure: claims, what is known of each node, a budget, a cost and a seed in; who
//! is measured, and in words why the others are not, out. Only nodes whose
//! measurement makes sense are chosen: across a domain that takes partners.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use model::claims::{ClaimedDomain, Claims};
use model::id::{DomainName, NodeName};
use model::seeded_rng::SeededRng;
use model::time_format::format_rfc3339;

/// Nodes of a domain that are measured together, where so many may be: a suspect
/// and three partners, of which two must agree (`Limits::partners`).
pub const DOMAIN_GROUP_SIZE: usize = 4;

/// Fewest: across a domain it takes two.
const MIN_GROUP_SIZE: usize = 2;

/// A node that could not be measured so often in a row waits for its next turn
/// like one that was: a node that is always busy would keep the others from
/// theirs. It is tried once in each turn from then on; twice would let nodes that
/// are tried as partners of others come first for ever.
const MAX_MISSES: u32 = 2;

/// What an audit may take.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct AuditBudget {
    /// Estimated time from start to end, in seconds; no limit where absent.
    pub seconds: Option<f64>,
    /// Nodes; likewise.
    pub nodes: Option<usize>,
    /// Share of all claimed nodes, at least two; likewise.
    pub share: Option<f64>,
    /// Share of the nodes of each domain, at least two; likewise.
    pub share_of_domain: Option<f64>,
}

impl AuditBudget {
    /// Whether nothing is limited.
    pub fn is_unlimited(&self) -> bool {
        *self == Self::default()
    }

    /// Most nodes of a fleet.
    fn max_nodes(&self, fleet: usize) -> usize {
        let share = self.share.map(|share| count_share(share, fleet));
        [self.nodes, share].into_iter().flatten().min().unwrap_or(usize::MAX)
    }

    /// Most nodes of a domain.
    fn max_domain_nodes(&self, domain: &ClaimedDomain) -> usize {
        self.share_of_domain.map_or(usize::MAX, |share| count_share(share, domain.nodes.len()))
    }
}

/// A share of so many, rounded down, and at least as many as it takes.
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

/// What is known of a node. Moments are seconds since 1970.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuditNodeState {
    /// When it was last measured with a result; `None` for never.
    pub measured: Option<i64>,
    /// When that was last tried, with a result or without.
    pub tried: Option<i64>,
    /// How often in a row there was none, until now.
    pub misses: u32,
    /// When its certificate was issued.
    pub certified: Option<i64>,
    /// A run found it slow, and another has to say so before it is drained: it comes
    /// before all others.
    pub suspected: bool,
    /// Why it cannot be measured now.
    pub unfit: Option<String>,
}

impl AuditNodeState {
    /// Since when it waits: what was measured earliest comes first.
    fn waiting_since(&self) -> Option<i64> {
        if MAX_MISSES <= self.misses { self.measured.max(self.tried) } else { self.measured }
    }
}

/// What is asked.
pub struct AuditSelectionRequest<'a> {
    /// What is claimed: every node of it may be chosen.
    pub claims: &'a Claims,
    /// What is known of nodes; nothing of those that are not in it.
    pub known: &'a BTreeMap<NodeName, AuditNodeState>,
    /// What may be taken.
    pub budget: AuditBudget,
    /// The order of nodes that wait equally long.
    pub seed: u64,
    /// How long the measurement of these nodes should take, in seconds.
    pub cost: &'a dyn Fn(&Claims) -> f64,
}

impl fmt::Debug for AuditSelectionRequest<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Question").field("budget", &self.budget).finish_non_exhaustive()
    }
}

/// Who is measured, and why nobody else is.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AuditSelection {
    /// The nodes, most urgent first.
    pub nodes: Vec<NodeName>,
    /// The others, and why.
    pub left_out: BTreeMap<NodeName, DeferredNode>,
    /// Estimated time from start to end, in seconds.
    pub estimate_s: f64,
}

/// A node that is not measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeferredNode {
    /// When it was measured last, Unix seconds.
    pub measured: Option<i64>,
    /// Why it is not measured now.
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
    /// The claims of those that were chosen.
    pub fn restrict_claims(&self, of: &Claims) -> Claims {
        of.with_nodes(|node| self.nodes.contains(node))
    }
}

/// Chooses.
pub fn select_nodes(question: &AuditSelectionRequest<'_>) -> AuditSelection {
    let mut choosing = AuditSelector::new(question);
    choosing.apply_footprint();
    choosing.apply_time_limit();
    choosing.into_selection()
}

/// Nodes that are taken together.
type AuditGroup<'a> = Vec<&'a NodeName>;

struct AuditSelector<'a> {
    request: &'a AuditSelectionRequest<'a>,
    /// Who may be chosen, the most urgent first, with their domain.
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
            // Of two that wait equally long the one without a certificate, then
            // the one with the older.
            let suspected = known.is_some_and(|it| it.suspected);
            let since = known.and_then(AuditNodeState::waiting_since);
            (Reverse(suspected), since, Reverse(never), known.and_then(|it| it.certified))
        };
        // Stable: those that are equal stay in their order of chance.
        order.sort_by_key(|(node, _)| waits(node));
        Self { request, order, groups: Vec::new(), left_out, estimate_s: 0.0 }
    }

    /// Takes the most urgent ones and partners in their domains, as many as the
    /// footprint allows.
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
                let why = format!("{of_domain} others of {} wait longer", domain.name);
                self.left_out
                    .insert(node, format!("{why}, and no more of it are measured at a time"));
                continue;
            }
            if free < least {
                let why = format!("others wait longer, and no more than {most} nodes are measured");
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
                let why = format!("nobody else of {} can be measured with it", domain.name);
                self.left_out.insert(node, why);
                continue;
            }
            *of_domain += group.len();
            chosen.extend(&group);
            self.groups.push(group);
        }
        // Told before it became somebody's partner.
        self.left_out.retain(|node, _| !chosen.contains(node));
    }

    /// Leaves out the least urgent until the rest fits the time.
    fn apply_time_limit(&mut self) {
        let Some(seconds) = self.request.budget.seconds else {
            self.estimate_s = self.estimate_cost(&self.groups);
            return;
        };
        // More nodes take longer, or as long: the longest beginning that fits is
        // searched by halving. Where that is not so, what is found still fits.
        let (mut fits, mut beyond) = (0, self.groups.len() + 1);
        while fits + 1 < beyond {
            let middle = usize::midpoint(fits, beyond);
            let takes = self.estimate_cost(&self.groups[..middle]);
            if takes <= seconds { fits = middle } else { beyond = middle }
        }
        let left = self.groups.split_off(fits);
        let mut smaller = None;
        if let Some(first) = left.first().filter(|_| fits == 0) {
            // Rather two of the most urgent than nobody, day after day.
            let least = MIN_GROUP_SIZE.min(first.len());
            smaller = (least..first.len())
                .rev()
                .map(|count| first[..count].to_vec())
                .find(|group| self.estimate_cost(std::slice::from_ref(group)) <= seconds);
        }
        self.groups.extend(smaller);
        self.estimate_s = self.estimate_cost(&self.groups);
        let chosen: BTreeSet<&NodeName> = self.groups.iter().flatten().copied().collect();
        let others =
            if chosen.is_empty() { "it takes longer than" } else { "others wait longer, and" };
        let why = format!("{others} {:.0} min are spent", seconds / 60.0);
        for node in left.into_iter().flatten().filter(|node| !chosen.contains(node)) {
            self.left_out.insert(node, why.clone());
        }
    }

    /// How long these would take.
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
#[path = "stalest_tests.rs"]
mod tests;
