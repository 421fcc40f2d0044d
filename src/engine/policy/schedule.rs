//! Selects the nodes to measure now, with profile and reason; and gives the reason for every other
//! node.
//!
//! Pure, and a decision about measuring only: the gate's turn after the measurement decides about
//! the node. A node that is in use, left alone, or reserved is never selected, even if a
//! measurement is due.

pub mod attempts;
mod eligibility;
pub mod expiry;
mod profile;

use std::collections::{BTreeMap, BTreeSet};

use self::attempts::MeasurementAttempts;
pub use self::attempts::elapsed_s;
use self::profile::MeasurementWant;
use super::journal_state::JournalState;
use super::pause;
use model::certificate::Certificate;
use model::claims::Claims;
use model::hostlist;
use model::id::{DomainName, NodeName};
use model::journal::ClockStamp;
use model::profile::Profile;
use model::scheduler_snapshot::SchedulerSnapshot;
pub use model::watch::DueReason;

/// The input of the schedule.
#[derive(Clone, Copy, Debug)]
pub struct ScheduleInput<'a> {
    /// The scheduler's state of every node.
    pub live: &'a SchedulerSnapshot,
    /// The claims: only nodes of a domain can be measured.
    pub fleet: &'a Claims,
    /// The certificates that could be read.
    pub certificates: &'a BTreeMap<NodeName, Certificate>,
    /// Nodes whose certificate exists but cannot be read, and why.
    pub unreadable: &'a BTreeMap<NodeName, String>,
    /// The journal's state.
    pub ledger: &'a JournalState,
    /// Earlier attempts.
    pub attempts: &'a MeasurementAttempts,
    /// Measurements under way.
    pub running: &'a [RunningMeasurement],
}

/// A measurement job under way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunningMeasurement {
    /// The domain.
    pub domain: DomainName,
    /// Every node of the job, partners included.
    pub nodes: BTreeSet<NodeName>,
}

/// Limits and profiles of the watch.
#[derive(Clone, Debug, PartialEq)]
pub struct ScheduleSettings {
    /// Domains that are measured at the same time.
    pub concurrent_domains: usize,
    /// Most nodes of one job.
    pub nodes: usize,
    /// Least nodes measured together if their domain has enough idle ones: a single node has no
    /// partner across its domain.
    pub min_nodes: usize,
    /// The profile for a node with the start-up taint.
    pub unverified: Option<Profile>,
    /// The profile for a node that fabricgate drained, after a change or a rest.
    pub repaired: Option<Profile>,
    /// The profile for a node whose certificate no longer counts.
    pub expired: Option<Profile>,
    /// The profile for a node without a certificate.
    pub missing: Option<Profile>,
    /// Seconds before its end at which a certificate is renewed.
    pub ahead_s: i64,
    /// Interval of audits of idle nodes, in seconds; 0 disables them.
    pub audit_every_s: i64,
    /// Ages of the first run that found a node slow, in seconds, between which another run must
    /// confirm it.
    pub confirmation_ages_s: [i64; 2],
    /// Seconds for which a node that fabricgate drained is left alone while it shows no change.
    pub cool_down_s: i64,
    /// Rest of a node after an attempt, in seconds; doubled with each attempt without a change.
    pub rest_s: i64,
    /// The longest such rest, in seconds.
    pub rest_most_s: i64,
    /// Clean runs that a drained node must pass before its release.
    pub clean_sweeps: usize,
    /// Least seconds between two clean runs.
    pub clean_apart_s: i64,
}

/// Due measurements, most urgent first, and the reasons for all other nodes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MeasurementSchedule {
    /// Jobs to start now.
    pub jobs: Vec<MeasurementJob>,
    /// Nodes that are not measured now, and why, in order of name.
    pub not_due: BTreeMap<NodeName, String>,
}

/// Nodes of one domain to measure together.
#[derive(Clone, Debug, PartialEq)]
pub struct MeasurementJob {
    /// The domain.
    pub domain: DomainName,
    /// The profile to measure with.
    pub profile: Profile,
    /// The most urgent of its causes.
    pub cause: DueReason,
    /// The due nodes, each with the key of its want: an unchanged key after the job means that
    /// the job changed nothing.
    pub nodes: BTreeMap<NodeName, String>,
    /// Idle nodes of the domain that are measured as partners.
    pub partners: Vec<NodeName>,
    /// The reason, in one sentence.
    pub why: String,
}

impl MeasurementJob {
    /// Every node that is measured.
    pub fn all_nodes(&self) -> BTreeSet<NodeName> {
        self.nodes.keys().chain(&self.partners).cloned().collect()
    }
}

/// Decides what is due now.
pub fn schedule_measurements(
    watched: &ScheduleInput<'_>,
    settings: &ScheduleSettings,
    now: &ClockStamp,
) -> MeasurementSchedule {
    let mut due = MeasurementSchedule::default();
    let under_test: BTreeSet<&NodeName> = watched.running.iter().flat_map(|it| &it.nodes).collect();
    let mut domains: BTreeMap<&DomainName, BTreeMap<&NodeName, MeasurementWant>> = BTreeMap::new();
    let mut idle: BTreeMap<&DomainName, Vec<&NodeName>> = BTreeMap::new();
    let mut claimed: BTreeSet<&NodeName> = BTreeSet::new();
    for domain in &watched.fleet.domains {
        for node in &domain.nodes {
            // A node claimed twice is measured in the first domain that names it.
            if !claimed.insert(node) {
                continue;
            }
            if under_test.contains(node) {
                due.not_due.insert(node.clone(), "it is being measured".to_owned());
                continue;
            }
            match choose_want(watched, settings, now, node, &domain.name) {
                Ok(want) => {
                    domains.entry(&domain.name).or_default().insert(node, want);
                }
                Err(why) => {
                    due.not_due.insert(node.clone(), why);
                }
            }
            if can_be_partner(watched, node) {
                idle.entry(&domain.name).or_default().push(node);
            }
        }
    }
    for (name, node) in &watched.live.nodes {
        if !claimed.contains(name)
            && let Some(why) = profile::explain_unclaimed(node, watched.ledger)
        {
            due.not_due.insert(name.clone(), why);
        }
    }
    let mut jobs: Vec<MeasurementJob> = domains
        .into_iter()
        .map(|(domain, wants)| {
            let idle = idle.get(domain).map_or(&[][..], Vec::as_slice);
            build_job(domain, &wants, idle, settings, &mut due.not_due)
        })
        .collect();
    // One domain after another, by name if equally urgent.
    jobs.sort_by(|a, b| (a.cause, &a.domain).cmp(&(b.cause, &b.domain)));
    let mut free = settings.concurrent_domains.saturating_sub(watched.running.len());
    for job in jobs {
        let is_running = watched.running.iter().any(|it| it.domain == job.domain);
        let why = if let Some(paused) = pause::active_pause(watched.ledger, now) {
            format!("due, and the gate is {}", pause::describe_pause(paused))
        } else if is_running {
            "due, and others of its domain are being measured".to_owned()
        } else if free == 0 {
            format!(
                "due, and waits: {} at a time",
                describe_domain_limit(settings.concurrent_domains)
            )
        } else {
            free -= 1;
            for partner in &job.partners {
                due.not_due.remove(partner);
            }
            due.jobs.push(job);
            continue;
        };
        due.not_due.extend(job.nodes.into_keys().map(|node| (node, why.clone())));
    }
    due
}

fn describe_domain_limit(count: usize) -> String {
    if count == 1 { "1 domain".to_owned() } else { format!("{count} domains") }
}

/// The want of a claimed node, or why it has none.
fn choose_want(
    watched: &ScheduleInput<'_>,
    settings: &ScheduleSettings,
    now: &ClockStamp,
    name: &NodeName,
    domain: &DomainName,
) -> Result<MeasurementWant, String> {
    if !name.is_one_node() {
        return Err(super::node_state::explain_not_one_node(name));
    }
    let Some(node) = watched.live.nodes.get(name) else {
        return Err("the scheduler does not know it".to_owned());
    };
    let want = profile::choose_profile(watched, settings, now, node, domain)?;
    // A want that cannot be met now is still listed, with its obstacle.
    eligibility::explain_ineligible(node, watched.ledger)
        .map_or(Ok(()), |why| Err(format!("due, and {why}")))?;
    match watched.attempts.explain_rest(name, &want, settings, now) {
        Some(why) => Err(format!("due, and {why}")),
        None => Ok(want),
    }
}

/// Whether a node may be measured as a partner of others: in service and idle.
fn can_be_partner(watched: &ScheduleInput<'_>, name: &NodeName) -> bool {
    name.is_one_node()
        && watched.live.nodes.get(name).is_some_and(eligibility::is_idle_in_service)
        && !watched.ledger.drains.contains_key(name)
}

/// The job of one domain; due nodes that do not fit go to `not_due`.
fn build_job(
    domain: &DomainName,
    wants: &BTreeMap<&NodeName, MeasurementWant>,
    idle: &[&NodeName],
    settings: &ScheduleSettings,
    not_due: &mut BTreeMap<NodeName, String>,
) -> MeasurementJob {
    let first = wants.values().min_by_key(|want| want.cause).expect("a domain has a want");
    let (profile, cause) = (first.profile, first.cause);
    let mut in_order: Vec<(&&NodeName, &MeasurementWant)> = wants.iter().collect();
    in_order.sort_by_key(|(name, want)| (want.cause, **name));
    let mut nodes: BTreeMap<NodeName, String> = BTreeMap::new();
    let mut whys: BTreeMap<(DueReason, &str), Vec<&str>> = BTreeMap::new();
    for (name, want) in in_order {
        if !covers(profile, want.profile) {
            let why = format!("due for {}, and waits for the {profile} of others", want.profile);
            not_due.insert((*name).clone(), why);
        } else if settings.nodes <= nodes.len() {
            let why = format!("due, and waits: {} nodes of a domain at a time", settings.nodes);
            not_due.insert((*name).clone(), why);
        } else {
            nodes.insert((*name).clone(), want.key.clone());
            whys.entry((want.cause, &want.why)).or_default().push(name.as_str());
        }
    }
    let missing = settings.min_nodes.min(settings.nodes).saturating_sub(nodes.len());
    let others = idle.iter().filter(|node| !nodes.contains_key(**node));
    let partners: Vec<NodeName> = others.take(missing).map(|node| (*node).clone()).collect();
    let why = whys.into_iter().map(|((_, why), names)| format!("{}: {why}", hostlist::fold(names)));
    let why = why.collect::<Vec<_>>().join("; ");
    MeasurementJob { domain: domain.clone(), profile, cause, nodes, partners, why }
}

/// Whether a run under `profile` replaces one under `other`: the profile that measures
/// everything and certifies for longest replaces all.
fn covers(profile: Profile, other: Profile) -> bool {
    let is_whole = matches!(profile, Profile::Recertify | Profile::BurnIn);
    profile == other || (is_whole && other != Profile::BurnIn)
}

#[cfg(test)]
#[path = "schedule/tests.rs"]
mod tests;
