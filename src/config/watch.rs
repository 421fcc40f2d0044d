//! `[watch]` of the configuration: the measurements of the standing gate, their intervals, and the
//! address of its metrics.
//!
//! Checks the text of the section and opens nothing.

use std::net::SocketAddr;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use toml::Spanned;

use crate::config::gate::{GateBackend, GateConfig};
use crate::config::{ConfigMistake, parse_duration};
use control::gate::watch::WatchIntervals;
use engine::policy::action_policy::Policy;
use engine::policy::schedule::ScheduleSettings;
use engine::policy::{certificate, clean, repeat_confirmation};
use model::profile::Profile;

/// Default interval of its checks without a trigger.
const INTERVAL: Duration = Duration::from_secs(60);
/// Default interval of queries for claims: racks take days to build.
const CLAIMS: Duration = Duration::from_secs(300);
/// Default time for jobs to conclude: a change takes up to 26 s to be made, seen and kept (limit_s,
/// settle_s), and pods or jobs are released after that.
const CONCLUDE: Duration = Duration::from_secs(60);
/// Hours before its end at which a certificate is renewed: a night.
const AHEAD_H: f64 = 6.0;
/// Hours that a drained node without any change rests.
const COOL_DOWN_H: f64 = 24.0;
/// Rest after an attempt in seconds: the first, and the longest.
const REST: (f64, f64) = (300.0, 21_600.0);
/// Nodes of one job: a rack.
const NODES: u32 = 72;
/// Nodes measured together: a due node and the partners of a second measurement.
const DEFAULT_NODES_PER_SWEEP: u32 = 4;
const LOGS: u32 = 50;

/// `[watch]` of the configuration.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct WatchSection {
    /// Seconds between two checks without a trigger, from 1. Default: 60.
    #[schemars(with = "Option<f64>")]
    interval_s: Option<Spanned<f64>>,
    /// Seconds between two queries of the sources for claims. Default: 300.
    #[schemars(with = "Option<f64>")]
    claims_s: Option<Spanned<f64>>,
    /// Domains that are measured concurrently, 1 to 1000. Default: 1.
    #[schemars(with = "Option<u32>")]
    at_once: Option<Spanned<u32>>,
    /// Most nodes of one job, 1 to 10000. Default: 72.
    #[schemars(with = "Option<u32>")]
    nodes: Option<Spanned<u32>>,
    /// Least nodes of one job if that many are idle, 1 to 10000: a single node has no partner.
    /// Default: 4.
    #[schemars(with = "Option<u32>")]
    together: Option<Spanned<u32>>,
    /// Whether to probe across NVLink domains in which tenants use memory across nodes, which may
    /// disturb them. Default: false.
    even_if_tenants: bool,
    /// Hours before its end at which a certificate is renewed, 0 to 8784. Default: 6.
    #[schemars(with = "Option<f64>")]
    expire_ahead_h: Option<Spanned<f64>>,
    /// Hours after which an unmeasured node is audited; 0 disables audits. Default: 0.
    #[schemars(with = "Option<f64>")]
    audit_every_h: Option<Spanned<f64>>,
    /// Hours for which a drained node without any change rests. Default: 24.
    #[schemars(with = "Option<f64>")]
    cool_down_h: Option<Spanned<f64>>,
    /// The rest of a node after an attempt.
    backoff: WatchBackoffSection,
    /// The profile for each cause.
    profiles: WatchProfilesSection,
    /// Seconds that jobs may take to conclude after the watch received a stop request. Default: 60.
    #[schemars(with = "Option<f64>")]
    conclude_s: Option<Spanned<f64>>,
    /// Number of job logs to keep, 1 to 100000. Default: 50.
    #[schemars(with = "Option<u32>")]
    logs: Option<Spanned<u32>>,
    /// `ADDRESS:PORT` of /healthz, /readyz and /metrics. Without it, these are not served.
    #[schemars(with = "Option<String>")]
    listen: Option<Spanned<String>>,
    /// The Lease that makes one of several pods the active instance, on Kubernetes only. Without
    /// it, only the lock of the state folder does.
    #[schemars(with = "Option<WatchLeaseSection>")]
    lease: Option<Spanned<WatchLeaseSection>>,
    /// The treatment of marks whose certificate has expired. Default: `condition`.
    #[schemars(with = "Option<ExpiredMarkAction>")]
    expired: Option<Spanned<ExpiredMarkAction>>,
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
struct WatchBackoffSection {
    /// Rest after the first attempt in seconds, above 0; doubled after each attempt without a
    /// change. Default: 300.
    #[schemars(with = "Option<f64>")]
    first_s: Option<Spanned<f64>>,
    /// Longest rest in seconds, at least `first_s`. Default: 21600.
    #[schemars(with = "Option<f64>")]
    most_s: Option<Spanned<f64>>,
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
struct WatchProfilesSection {
    /// For nodes with the start-up taint. Default: `admit`.
    unverified: Option<WatchProfile>,
    /// For nodes that fabricgate drained and that were repaired; not `admit`. Default: `recertify`.
    #[schemars(with = "Option<WatchProfile>")]
    repaired: Option<Spanned<WatchProfile>>,
    /// For nodes whose certificate has expired or will expire soon. Default: `recertify`.
    #[schemars(with = "Option<WatchProfile>")]
    expired: Option<Spanned<WatchProfile>>,
    /// For nodes that never had a certificate. Default: `admit`.
    #[schemars(with = "Option<WatchProfile>")]
    missing: Option<Spanned<WatchProfile>>,
}

/// A profile, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
enum WatchProfile {
    /// `fabricgate admit`.
    Admit,
    /// `fabricgate burn-in`.
    BurnIn,
    /// `fabricgate recertify`.
    Recertify,
    /// None.
    Off,
}

impl WatchProfile {
    fn profile(self) -> Option<Profile> {
        match self {
            Self::Admit => Some(Profile::Admit),
            Self::BurnIn => Some(Profile::BurnIn),
            Self::Recertify => Some(Profile::Recertify),
            Self::Off => None,
        }
    }
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct WatchLeaseSection {
    /// Its namespace. Default: that of the pod.
    #[schemars(with = "Option<String>")]
    namespace: Option<Spanned<String>>,
    /// Its name. Default: `fabricgate-watch`.
    #[schemars(with = "Option<String>")]
    name: Option<Spanned<String>>,
    /// Validity in seconds without renewal, at least twice `renew_s`. Default: 15.
    #[schemars(with = "Option<f64>")]
    duration_s: Option<Spanned<f64>>,
    /// Seconds between renewals. Default: 5.
    #[schemars(with = "Option<f64>")]
    renew_s: Option<Spanned<f64>>,
    /// The holder's identity. Default: the pod's name, or host and process.
    #[schemars(with = "Option<String>")]
    holder: Option<Spanned<String>>,
}

/// The treatment of marks whose certificate has expired.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ExpiredMarkAction {
    /// The marks change to unknown.
    #[default]
    Condition,
    /// The marks change to unknown, and the start-up taint is set again.
    Taint,
}

/// The watch, as configured.
#[derive(Clone, Debug, PartialEq)]
pub struct WatchConfig {
    /// The schedule.
    pub settings: ScheduleSettings,
    /// Whether jobs probe across domains that tenants use.
    pub even_if_tenants: bool,
    /// Its intervals and timeouts.
    pub timeouts: WatchIntervals,
    /// The address of its HTTP endpoints.
    pub listen: Option<SocketAddr>,
    /// The required Lease, if configured.
    pub lease: Option<LeaseConfig>,
    /// The treatment of marks whose certificate has expired.
    pub expired: ExpiredMarkAction,
}

/// A Lease, as configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseConfig {
    /// Its namespace; that of the pod by default.
    pub namespace: Option<String>,
    /// Its name.
    pub name: String,
    /// Validity without renewal.
    pub duration: Duration,
    /// Interval of renewals.
    pub renew: Duration,
    /// The holder's identity, if it differs from this pod or process.
    pub holder: Option<String>,
}

impl Default for LeaseConfig {
    fn default() -> Self {
        Self {
            namespace: None,
            name: "fabricgate-watch".to_owned(),
            duration: Duration::from_secs(15),
            renew: Duration::from_secs(5),
            holder: None,
        }
    }
}

/// Reads `[watch]`.
pub fn parse_watch(
    section: WatchSection,
    policy: &Policy,
    gate: Option<&GateConfig>,
) -> Result<WatchConfig, ConfigMistake> {
    let of_kubernetes = gate.is_some_and(|gate| matches!(gate.backend, GateBackend::Kubernetes(_)));
    if let (Some(lease), false) = (&section.lease, of_kubernetes) {
        let message = "lease: only for [gate] through = \"kubernetes\"; elsewhere the lock of the \
             state folder ensures a single instance";
        return Err((lease.span().start, message.to_owned()));
    }
    let seconds = |key: &str, value: &Option<Spanned<f64>>, usual: Duration| match value {
        None => Ok(usual),
        Some(value) => parse_duration(key, value),
    };
    let interval = seconds("interval_s", &section.interval_s, INTERVAL)?;
    if interval < Duration::from_secs(1) {
        let at = section.interval_s.as_ref().map_or(0, |it| it.span().start);
        return Err((at, "interval_s: expected 1 to 86400 seconds".to_owned()));
    }
    let hours = |key: &str, value: &Option<Spanned<f64>>, usual: f64| match value {
        None => Ok(whole_seconds(usual * 3_600.0)),
        Some(value) if (0.0..=8_784.0).contains(value.get_ref()) => {
            Ok(whole_seconds(value.get_ref() * 3_600.0))
        }
        Some(value) => {
            let message = format!("{key} {}, expected 0 to 8784 hours", value.get_ref());
            Err((value.span().start, message))
        }
    };
    let rest_s = seconds("first_s", &section.backoff.first_s, Duration::from_secs_f64(REST.0))?;
    let most_s = seconds("most_s", &section.backoff.most_s, Duration::from_secs_f64(REST.1))?;
    if rest_s.is_zero() {
        let at = section.backoff.first_s.as_ref().map_or(0, |it| it.span().start);
        let why = "first_s 0, expected more than 0: it would measure in a tight loop";
        return Err((at, why.to_owned()));
    }
    if most_s < rest_s {
        let at = section.backoff.most_s.as_ref().or(section.backoff.first_s.as_ref());
        let at = at.map_or(0, |it| it.span().start);
        return Err((at, "most_s is less than first_s".to_owned()));
    }
    let [repaired, expired, missing] = [
        ("repaired", &section.profiles.repaired, WatchProfile::Recertify),
        ("expired", &section.profiles.expired, WatchProfile::Recertify),
        ("missing", &section.profiles.missing, WatchProfile::Admit),
    ]
    .map(|(key, given, usual)| (key, given.as_ref().map_or(usual, |it| *it.get_ref()), given));
    if repaired.1 == WatchProfile::Admit {
        let at = repaired.2.as_ref().map_or(0, |it| it.span().start);
        let message = "repaired = \"admit\": only full runs release a node, expected \
             \"recertify\", \"burn-in\" or \"off\"";
        return Err((at, message.to_owned()));
    }
    let settings = ScheduleSettings {
        concurrent_domains: parse_count("at_once", &section.at_once, 1, 1..=1_000)?,
        nodes: parse_count("nodes", &section.nodes, NODES, 1..=10_000)?,
        min_nodes_together: parse_count(
            "together",
            &section.together,
            DEFAULT_NODES_PER_SWEEP,
            1..=10_000,
        )?,
        unverified: section.profiles.unverified.unwrap_or(WatchProfile::Admit).profile(),
        repaired: repaired.1.profile(),
        expired: expired.1.profile(),
        missing: missing.1.profile(),
        ahead_s: hours("expire_ahead_h", &section.expire_ahead_h, AHEAD_H)?,
        audit_every_s: hours("audit_every_h", &section.audit_every_h, 0.0)?,
        confirmation_ages_s: repeat_confirmation::confirmation_ages_s(policy),
        cool_down_s: hours("cool_down_h", &section.cool_down_h, COOL_DOWN_H)?,
        rest_s: whole_seconds(rest_s.as_secs_f64()).max(1),
        rest_most_s: whole_seconds(most_s.as_secs_f64()).max(1),
        clean_sweeps: policy.clean_sweeps as usize,
        clean_apart_s: clean::min_clean_gap_s(policy),
    };
    check_renewal(&section, &settings, policy)?;
    if let Some(given) =
        section.expired.as_ref().filter(|it| *it.get_ref() == ExpiredMarkAction::Taint)
        && settings.unverified.is_none()
    {
        let message = "expired = \"taint\" with profiles.unverified = \"off\": the taint would \
             never be removed";
        return Err((given.span().start, message.to_owned()));
    }
    let pace = WatchIntervals {
        interval,
        claims_refresh: seconds("claims_s", &section.claims_s, CLAIMS)?,
        job_grace: seconds("conclude_s", &section.conclude_s, CONCLUDE)?,
        max_logs: parse_count("logs", &section.logs, LOGS, 1..=100_000)?,
    };
    let listen = match section.listen {
        None => None,
        Some(listen) => Some(listen.get_ref().parse().map_err(|_| {
            let message = format!(
                "listen {:?}, expected ADDRESS:PORT such as 0.0.0.0:9464",
                listen.get_ref()
            );
            (listen.span().start, message)
        })?),
    };
    let lease = section.lease.map(|it| parse_lease(it.into_inner())).transpose()?;
    Ok(WatchConfig {
        settings,
        even_if_tenants: section.even_if_tenants,
        timeouts: pace,
        listen,
        lease,
        expired: section.expired.map(Spanned::into_inner).unwrap_or_default(),
    })
}

/// Refuses a renewal that would follow immediately after each certificate.
fn check_renewal(
    section: &WatchSection,
    settings: &ScheduleSettings,
    policy: &Policy,
) -> Result<(), ConfigMistake> {
    let Some(profile) = settings.expired else { return Ok(()) };
    let days = certificate::certificate_days(profile, policy);
    if days == 0 || settings.ahead_s < i64::from(days) * 86_400 {
        return Ok(());
    }
    let at = section.expire_ahead_h.as_ref().map_or(0, |it| it.span().start);
    let hours = settings.ahead_s / 3_600;
    let message = format!(
        "expire_ahead_h {hours} is not less than the {days} days that a pass under {profile} \
         counts: every node would be measured continuously"
    );
    Err((at, message))
}

fn parse_lease(lease: WatchLeaseSection) -> Result<LeaseConfig, ConfigMistake> {
    let usual = LeaseConfig::default();
    for (key, value) in [("namespace", &lease.namespace), ("name", &lease.name)] {
        let Some(value) = value else { continue };
        // RFC 1123, as the API server requires.
        let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-.".contains(c);
        if value.get_ref().is_empty() || !value.get_ref().chars().all(fits) {
            let message = format!("{key} {:?}, expected a Kubernetes object name", value.get_ref());
            return Err((value.span().start, message));
        }
    }
    if let Some(holder) = &lease.holder {
        let fits = |c: char| c.is_ascii_graphic() && c != '/';
        if holder.get_ref().is_empty() || !holder.get_ref().chars().all(fits) {
            let message = format!("holder {:?}, expected a name without /", holder.get_ref());
            return Err((holder.span().start, message));
        }
    }
    let seconds = |key: &str, value: &Option<Spanned<f64>>, usual: Duration| match value {
        None => Ok(usual),
        Some(value) => parse_duration(key, value),
    };
    let duration = seconds("duration_s", &lease.duration_s, usual.duration)?;
    let renew = seconds("renew_s", &lease.renew_s, usual.renew)?;
    if renew < Duration::from_millis(100)
        || duration < Duration::from_secs(1)
        || duration < renew * 2
    {
        let at =
            lease.duration_s.as_ref().or(lease.renew_s.as_ref()).map_or(0, |it| it.span().start);
        let message = "the Lease: expected duration_s of at least a second and at least twice \
             renew_s";
        return Err((at, message.to_owned()));
    }
    Ok(LeaseConfig {
        namespace: lease.namespace.map(Spanned::into_inner),
        name: lease.name.map_or(usual.name, Spanned::into_inner),
        duration,
        renew,
        holder: lease.holder.map(Spanned::into_inner),
    })
}

fn parse_count(
    key: &str,
    value: &Option<Spanned<u32>>,
    usual: u32,
    within: std::ops::RangeInclusive<u32>,
) -> Result<usize, ConfigMistake> {
    match value {
        None => Ok(usual as usize),
        Some(value) if within.contains(value.get_ref()) => Ok(*value.get_ref() as usize),
        Some(value) => {
            let (value_is, from, to) = (value.get_ref(), within.start(), within.end());
            Err((value.span().start, format!("{key} {value_is}, expected {from} to {to}")))
        }
    }
}

/// Seconds without their fraction.
fn whole_seconds(seconds: f64) -> i64 {
    #[expect(clippy::cast_possible_truncation, reason = "bounded by a year where it is read")]
    let whole = seconds.round() as i64;
    whole
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certificates_are_not_renewed_as_soon_as_they_are_there() {
        let read = |ahead: &str, days: u32| {
            let section: WatchSection = toml::from_str(ahead).expect("a section");
            parse_watch(section, &Policy { certificate_days: days, ..Policy::default() }, None)
        };
        let (_, message) = read("expire_ahead_h = 30.0", 1).expect_err("it never ends");
        assert!(message.starts_with("expire_ahead_h 30 is not less than the 1 days"), "{message}");
        assert!(read("expire_ahead_h = 23.0", 1).is_ok());
        assert!(read("", 1).is_ok());
    }
}
