//! The state of nodes, runs and the gate as gauges for Prometheus.
//!
//! Values in, families out. A node without a verdict is exported as unknown, never as a pass; if
//! too many nodes exist, a gauge counts those left out.

pub mod definitions;
pub mod exposition;
pub mod inputs;
pub mod levels;

use std::collections::BTreeMap;

use crate::policy::budget::BudgetShare;
use definitions as of;
use exposition::MetricFamily;
use levels::PathClass;
use model::certificate::Certificate;
use model::finding_class::FindingClass;
use model::id::{DomainName, NodeName};
use model::trend::OpenAlarm;
use model::verdict::{Outcome, Verdicts};

/// All outcomes, in display order.
const OUTCOMES: [Outcome; 4] =
    [Outcome::Pass, Outcome::Unknown, Outcome::Degraded, Outcome::Failed];

/// The validity of a certificate, from its file alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CertificateValidity {
    /// When its run was made, in seconds since 1970.
    pub issued: i64,
    /// When it expires, in seconds since 1970.
    pub expires: i64,
    /// Whether it was declared void.
    pub is_void: bool,
}

impl From<&Certificate> for CertificateValidity {
    fn from(it: &Certificate) -> Self {
        Self { issued: it.issued_unix, expires: it.expires_unix, is_void: it.voided.is_some() }
    }
}

impl CertificateValidity {
    fn state(&self, now: i64) -> &'static str {
        if self.is_void {
            "void"
        } else if self.expires <= now {
            "expired"
        } else {
            "counting"
        }
    }
}

/// The state of a node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeMetricsState {
    /// Its domain.
    pub domain: Option<DomainName>,
    /// The verdict of the newest run that judged it.
    pub outcome: Option<Outcome>,
    /// When that run was made, in seconds since 1970.
    pub measured: Option<i64>,
    /// The smallest degradation that this run could detect on it.
    pub detectable: Option<f64>,
    /// Its worst shares of the expected values.
    pub worst: BTreeMap<PathClass, f64>,
    /// Its certificate.
    pub certificate: Option<CertificateValidity>,
    /// Its active drift alarms.
    pub alarms: Vec<OpenAlarm>,
}

impl NodeMetricsState {
    fn verdict(&self) -> Outcome {
        self.outcome.unwrap_or(Outcome::Unknown)
    }

    /// Whether it is listed even if there is no room for all nodes.
    fn is_notable(&self, now: i64) -> bool {
        self.verdict() != Outcome::Pass
            || !self.alarms.is_empty()
            || self.certificate.is_some_and(|it| it.state(now) != "counting")
    }
}

/// The state of the runs of one profile.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ProfileMetricsState {
    /// When the last one was made, in seconds since 1970.
    pub at: i64,
    /// Its duration; absent if it did not complete.
    pub seconds: Option<f64>,
    /// Whether every step of its plan was tried.
    pub is_complete: bool,
    /// Its verdict.
    pub outcome: Option<Outcome>,
    /// Its nodes, by verdict.
    pub nodes: BTreeMap<Outcome, usize>,
    /// Its findings, by class and verdict.
    pub findings: BTreeMap<(FindingClass, Outcome), usize>,
    /// Number of its unknowns.
    pub unknowns: usize,
    /// The largest detectable loss over its nodes.
    pub detectable: Option<f64>,
    /// Whether it proposed nothing, for a reason that concerns more than one node.
    pub is_frozen: bool,
    /// When the last complete run with a verdict other than unknown was made.
    pub conclusive: Option<i64>,
    /// When the last complete run that passed was made.
    pub passed: Option<i64>,
}

impl ProfileMetricsState {
    /// Records the verdicts of the last run.
    pub fn record_verdicts(&mut self, verdicts: &Verdicts) {
        self.outcome = Some(verdicts.outcome);
        self.unknowns = verdicts.unknown.len();
        self.nodes.clear();
        self.findings.clear();
        for node in &verdicts.nodes {
            *self.nodes.entry(node.outcome).or_default() += 1;
        }
        for it in &verdicts.findings {
            *self.findings.entry((it.class.clone(), it.outcome)).or_default() += 1;
        }
        let seen = verdicts.nodes.iter().filter_map(|node| node.detectable);
        self.detectable = seen.reduce(f64::max);
    }
}

/// The state of the gate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GateMetricsState {
    /// Whether the breaker has tripped.
    pub is_tripped: bool,
    /// Whether a user has paused it.
    pub is_paused: bool,
    /// fabricgate's drains in force.
    pub drains: usize,
    /// Actions without a result.
    pub open: usize,
    /// The rest of the budgets; empty if the size of the fleet is not configured.
    pub budgets: Vec<BudgetShare>,
}

/// All exported state.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MetricsState {
    /// When it was collected, in seconds since 1970.
    pub now: i64,
    /// The known nodes.
    pub nodes: BTreeMap<NodeName, NodeMetricsState>,
    /// The runs, by profile.
    pub profiles: BTreeMap<String, ProfileMetricsState>,
    /// The gate, if there is one.
    pub gate: Option<GateMetricsState>,
    /// Active drift alarms of domains.
    pub drifting: BTreeMap<DomainName, Vec<OpenAlarm>>,
    /// Whether the history could be read, or does not exist: alarms that are missing here have
    /// ended.
    pub is_history_read: bool,
    /// Number of files that could not be read.
    pub problems: usize,
    /// Whether the runs measured a simulated fabric, or replayed stored ones.
    pub is_simulated: bool,
}

/// The state as gauges. At most `most` nodes have series of their own: if there are more, healthy
/// nodes are left out.
pub fn build_families(state: &MetricsState, most: usize) -> Vec<MetricFamily> {
    let mut all = Vec::from(fleet_families(state));
    all.extend(node_families(state, most));
    all.push(drift_families(state, most));
    all.extend(certificate_families(state));
    all.extend(profile_families(state));
    all.extend(state.gate.as_ref().map(gate_families).into_iter().flatten());
    all
}

fn fleet_families(state: &MetricsState) -> [MetricFamily; 5] {
    let [mut written, mut simulated, mut version, mut counts, mut troubles] =
        [&of::WRITTEN, &of::SIMULATED, &of::VERSION, &of::NODES, &of::TROUBLES]
            .map(MetricFamily::new);
    simulated.add([], f64::from(u8::from(state.is_simulated)));
    written.add([], unix_to_float(state.now));
    version.add([env!("CARGO_PKG_VERSION")], 1.0);
    for outcome in OUTCOMES {
        let count = state.nodes.values().filter(|it| it.verdict() == outcome).count();
        counts.add([outcome.as_str()], to_float(count));
    }
    troubles.add([], to_float(state.problems));
    [written, simulated, version, counts, troubles]
}

fn node_families(state: &MetricsState, most: usize) -> [MetricFamily; 9] {
    let is_cut = most < state.nodes.len();
    let mut shown: Vec<(&NodeName, &NodeMetricsState)> = state.nodes.iter().collect();
    if is_cut {
        shown.retain(|(_, it)| it.is_notable(state.now));
        // The worst first; a stable sort otherwise keeps the order of nodes.
        shown.sort_by_key(|(_, it)| std::cmp::Reverse(it.verdict()));
        shown.truncate(most);
        shown.sort_by_key(|(name, _)| *name);
    }
    let [
        mut left_out,
        mut verdict,
        mut measured,
        mut worst,
        mut detectable,
        mut issued,
        mut expires,
        mut void,
        mut alarms,
    ] = [
        &of::LEFT_OUT,
        &of::VERDICT,
        &of::MEASURED,
        &of::WORST,
        &of::DETECTABLE,
        &of::ISSUED,
        &of::EXPIRES,
        &of::VOID,
        &of::ALARMS,
    ]
    .map(MetricFamily::new);
    left_out.add([], to_float(state.nodes.len() - shown.len()));
    for (name, it) in shown {
        let node = name.as_str();
        let domain = it.domain.as_ref().map_or("", DomainName::as_str);
        verdict.add([node, domain, it.verdict().as_str()], 1.0);
        if let Some(at) = it.measured {
            measured.add([node], unix_to_float(at));
        }
        for (class, share) in &it.worst {
            worst.add([node, class.as_str()], *share);
        }
        if let Some(share) = it.detectable {
            detectable.add([node], share);
        }
        if let Some(certificate) = &it.certificate {
            issued.add([node], unix_to_float(certificate.issued));
            expires.add([node], unix_to_float(certificate.expires));
            void.add([node], f64::from(u8::from(certificate.is_void)));
        }
        if !it.alarms.is_empty() {
            alarms.add([node], to_float(it.alarms.len()));
        }
    }
    [left_out, verdict, measured, worst, detectable, issued, expires, void, alarms]
}

/// Domains with a drifting level, at most as many as nodes.
fn drift_families(state: &MetricsState, most: usize) -> MetricFamily {
    let mut alarms = MetricFamily::new(&of::DOMAIN_ALARMS);
    for (domain, it) in state.drifting.iter().take(most) {
        alarms.add([domain.as_str()], to_float(it.len()));
    }
    alarms
}

fn certificate_families(state: &MetricsState) -> [MetricFamily; 2] {
    let [mut first, mut counted] = [&of::FIRST_END, &of::COUNTED].map(MetricFamily::new);
    let all = || state.nodes.values().filter_map(|it| it.certificate);
    for kind in ["counting", "expired", "void"] {
        counted.add([kind], to_float(all().filter(|it| it.state(state.now) == kind).count()));
    }
    let ends = all().filter(|it| it.state(state.now) == "counting").map(|it| it.expires);
    if let Some(end) = ends.min() {
        first.add([], unix_to_float(end));
    }
    [first, counted]
}

fn profile_families(state: &MetricsState) -> [MetricFamily; 11] {
    let [
        mut at,
        mut took,
        mut verdict,
        mut complete,
        mut nodes,
        mut findings,
        mut unknowns,
        mut detectable,
        mut frozen,
        mut conclusive,
        mut passed,
    ] = [
        &of::RUN_AT,
        &of::RUN_TOOK,
        &of::RUN_VERDICT,
        &of::RUN_COMPLETE,
        &of::RUN_NODES,
        &of::RUN_FINDINGS,
        &of::RUN_UNKNOWNS,
        &of::RUN_DETECTABLE,
        &of::RUN_FROZEN,
        &of::CONCLUSIVE_AT,
        &of::PASSED_AT,
    ]
    .map(MetricFamily::new);
    for (profile, it) in &state.profiles {
        let profile = profile.as_str();
        at.add([profile], unix_to_float(it.at));
        if let Some(took_s) = it.seconds {
            took.add([profile], took_s);
        }
        // A run without a verdict counts as unknown.
        let outcome = it.outcome.unwrap_or(Outcome::Unknown);
        verdict.add([profile, outcome.as_str()], 1.0);
        complete.add([profile], f64::from(u8::from(it.is_complete)));
        for outcome in OUTCOMES {
            let count = it.nodes.get(&outcome).copied().unwrap_or_default();
            nodes.add([profile, outcome.as_str()], to_float(count));
        }
        for ((class, outcome), count) in &it.findings {
            findings.add([profile, class.as_str(), outcome.as_str()], to_float(*count));
        }
        unknowns.add([profile], to_float(it.unknowns));
        if let Some(share) = it.detectable {
            detectable.add([profile], share);
        }
        frozen.add([profile], f64::from(u8::from(it.is_frozen)));
        for (family, moment) in [(&mut conclusive, it.conclusive), (&mut passed, it.passed)] {
            if let Some(moment) = moment {
                family.add([profile], unix_to_float(moment));
            }
        }
    }
    [at, took, verdict, complete, nodes, findings, unknowns, detectable, frozen, conclusive, passed]
}

fn gate_families(gate: &GateMetricsState) -> [MetricFamily; 6] {
    let families =
        [&of::BUDGET_LEFT, &of::BUDGET_LIMIT, &of::BREAKER, &of::PAUSED, &of::DRAINS, &of::OPEN];
    let [mut left, mut limit, mut breaker, mut paused, mut drains, mut open] =
        families.map(MetricFamily::new);
    for budget in &gate.budgets {
        left.add([budget.name], to_float(budget.left));
        limit.add([budget.name], to_float(budget.limit));
    }
    breaker.add([], f64::from(u8::from(gate.is_tripped)));
    paused.add([], f64::from(u8::from(gate.is_paused)));
    drains.add([], to_float(gate.drains));
    open.add([], to_float(gate.open));
    [left, limit, breaker, paused, drains, open]
}

fn to_float(count: usize) -> f64 {
    u32::try_from(count).map_or(f64::from(u32::MAX), f64::from)
}

fn unix_to_float(unix: i64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "moments of this era are far below 2^52")]
    let seconds = unix as f64;
    seconds
}

#[cfg(test)]
mod tests;
