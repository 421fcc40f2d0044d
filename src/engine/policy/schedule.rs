//! Which nodes are to be measured now, under which profile, and why; and of
//! every other node why not.
//!
//! Pure, and a decision about measuring only: what a measurement means for a
//! node, the gate's turn decides that follows it. A node that is in use, left
//! alone, or kept by somebody is never named, whatever is due there.

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

/// What is looked at.
#[derive(Clone, Copy, Debug)]
pub struct ScheduleInput<'a> {
    /// What the scheduler says of every node.
    pub live: &'a SchedulerSnapshot,
    /// What is claimed: only what is in a domain can be measured.
    pub fleet: &'a Claims,
    /// The certificates that could be read.
    pub certificates: &'a BTreeMap<NodeName, Certificate>,
    /// Nodes whose certificate is there and cannot be read, and why.
    pub unreadable: &'a BTreeMap<NodeName, String>,
    /// What we did before.
    pub ledger: &'a JournalState,
    /// What was tried before.
    pub attempts: &'a MeasurementAttempts,
    /// What is being measured now.
    pub running: &'a [RunningMeasurement],
}

/// A job that is under way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunningMeasurement {
    /// The domain.
    pub domain: DomainName,
    /// Every node of it, partners included.
    pub nodes: BTreeSet<NodeName>,
}

/// How eager the watch is.
#[derive(Clone, Debug, PartialEq)]
pub struct ScheduleSettings {
    /// Domains that are measured at the same time.
    pub concurrent_domains: usize,
    /// Nodes of one job at most.
    pub nodes: usize,
    /// Nodes that are measured together at least, where their domain has more
    /// that are idle: a node alone has no partner across its domain.
    pub min_nodes_together: usize,
    /// What a node with the start-up taint gets.
    pub unverified: Option<Profile>,
    /// What a node gets that we drained, once it changed or rested.
    pub repaired: Option<Profile>,
    /// What a node gets whose certificate counts no more.
    pub expired: Option<Profile>,
    /// What a node gets that never had one.
    pub missing: Option<Profile>,
    /// How long before its end a certificate is renewed, in seconds.
    pub ahead_s: i64,
    /// How often idle nodes are looked at, in seconds; 0 is never.
    pub audit_every_s: i64,
    /// Between which ages, in seconds, of the run that was the first to find a node
    /// slow another is to say so.
    pub confirmation_ages_s: [i64; 2],
    /// How long a node that we drained and that shows no change is left alone,
    /// in seconds.
    pub cool_down_s: i64,
    /// How long a node rests after an attempt, in seconds; doubled with each one
    /// that changed nothing.
    pub rest_s: i64,
    /// The longest such rest, in seconds.
    pub rest_most_s: i64,
    /// Clean runs that a drained node must pass before it is given back.
    pub clean_sweeps: usize,
    /// Least seconds between two of them.
    pub clean_apart_s: i64,
}

/// What is due, most urgent first, and why nothing else is.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MeasurementSchedule {
    /// To be started now.
    pub jobs: Vec<MeasurementJob>,
    /// Nodes that are not measured now, and why, in order of name.
    pub not_due: BTreeMap<NodeName, String>,
}

/// Nodes of one domain that are to be measured together.
#[derive(Clone, Debug, PartialEq)]
pub struct MeasurementJob {
    /// The domain.
    pub domain: DomainName,
    /// Under which profile.
    pub profile: Profile,
    /// The most urgent of its causes.
    pub cause: DueReason,
    /// The nodes it is for, each with what it wants: the same words again after
    /// the job mean that the job changed nothing.
    pub nodes: BTreeMap<NodeName, String>,
    /// Idle nodes of the domain that are measured with them.
    pub partners: Vec<NodeName>,
    /// Why, in one sentence.
    pub why: String,
}

impl MeasurementJob {
    /// Every node that is measured.
    pub fn all_nodes(&self) -> BTreeSet<NodeName> {
        self.nodes.keys().chain(&self.partners).cloned().collect()
    }
}

/// Decides what is due at this moment.
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
            // Who is claimed twice is measured where it is named first.
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
    // One domain after the other, in order of name where they are alike.
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

/// What one claimed node wants now, or why it gets nothing.
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
        return Err("the scheduler does not tell of it".to_owned());
    };
    let want = profile::choose_profile(watched, settings, now, node, domain)?;
    // A want that cannot be met now is still told with what is in its way.
    eligibility::explain_ineligible(node, watched.ledger)
        .map_or(Ok(()), |why| Err(format!("due, and {why}")))?;
    match watched.attempts.explain_rest(name, &want, settings, now) {
        Some(why) => Err(format!("due, and {why}")),
        None => Ok(want),
    }
}

/// Whether a node may be measured for others' sake: in service and idle.
fn can_be_partner(watched: &ScheduleInput<'_>, name: &NodeName) -> bool {
    name.is_one_node()
        && watched.live.nodes.get(name).is_some_and(eligibility::is_idle_in_service)
        && !watched.ledger.drains.contains_key(name)
}

/// The job of one domain; nodes that are due and not in it go to `not_due`.
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
    let missing = settings.min_nodes_together.min(settings.nodes).saturating_sub(nodes.len());
    let others = idle.iter().filter(|node| !nodes.contains_key(**node));
    let partners: Vec<NodeName> = others.take(missing).map(|node| (*node).clone()).collect();
    let why = whys.into_iter().map(|((_, why), names)| format!("{}: {why}", hostlist::fold(names)));
    let why = why.collect::<Vec<_>>().join("; ");
    MeasurementJob { domain: domain.clone(), profile, cause, nodes, partners, why }
}

/// Whether a run under `profile` does for a node what one under `other` would:
/// what measures everything and certifies for longest does for all.
fn covers(profile: Profile, other: Profile) -> bool {
    let is_whole = matches!(profile, Profile::Recertify | Profile::BurnIn);
    profile == other || (is_whole && other != Profile::BurnIn)
}

#[cfg(test)]
#[path = "schedule/tests.rs"]
mod tests;
