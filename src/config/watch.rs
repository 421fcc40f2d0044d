//! `[watch]` of the configuration: the measurements of the standing gate, their intervals, and the
//! address of its metrics.

use std::net::SocketAddr;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use serde::de::{Deserializer, Error};
use toml::Spanned;

use crate::config::ConfigMistake;
use crate::config::bounded::{
    BoundedCount, BoundedNumber, Hours, PositiveNumber, Seconds, read_checked,
};
use crate::config::gate::{GateBackend, GateConfig};
use control::gate::watch::WatchIntervals;
use engine::policy::action_policy::Policy;
use engine::policy::schedule::ScheduleSettings;
use engine::policy::{certificate, clean, repeat_confirmation};
use model::profile::Profile;
use model::renamed_keys::RenamedKey;

/// Keys of `[watch]` that have another name now.
pub(crate) const RENAMED_KEYS: &[RenamedKey] =
    &[RenamedKey { tables: &["watch"], old: "together", new: "min_nodes" }];

/// `[watch]` of the configuration.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct WatchConfig {
    /// Seconds between two checks without a trigger, from 1. Default: 60.
    interval_s: BoundedNumber<1_000, 86_400_000>,
    /// Seconds between two queries of the sources for claims. Default: 300.
    claims_s: Seconds,
    /// Domains that are measured concurrently, 1 to 1000. Default: 1.
    at_once: BoundedCount<1, 1_000>,
    /// Most nodes of one job, 1 to 10000. Default: 72.
    nodes: BoundedCount<1, 10_000>,
    /// Least nodes of one job if that many are idle, 1 to 10000: a single node has no partner.
    /// Default: 4.
    #[serde(alias = "together")]
    min_nodes: BoundedCount<1, 10_000>,
    /// Whether to probe across NVLink domains in which tenants use memory across nodes, which may
    /// disturb them. Default: false.
    pub even_if_tenants: bool,
    /// Hours before its end at which a certificate is renewed, 0 to 8784. Default: 6.
    #[schemars(with = "Hours")]
    expire_ahead_h: Spanned<Hours>,
    /// Hours after which an unmeasured node is audited; 0 disables audits. Default: 0.
    audit_every_h: Hours,
    /// Hours for which a drained node without any change rests. Default: 24.
    cool_down_h: Hours,
    /// The rest of a node after an attempt.
    backoff: WatchBackoff,
    /// The profile for each cause.
    profiles: WatchProfiles,
    /// Seconds that jobs may take to conclude after the watch received a stop request. Default: 60.
    conclude_s: Seconds,
    /// Number of job logs to keep, 1 to 100000. Default: 50.
    logs: BoundedCount<1, 100_000>,
    /// `ADDRESS:PORT` of /healthz, /readyz and /metrics. Without it, these are not served.
    #[serde(deserialize_with = "read_listen")]
    #[schemars(with = "Option<String>")]
    pub listen: Option<SocketAddr>,
    /// The Lease that makes one of several pods the active instance, on Kubernetes only. Without
    /// it, only the lock of the state folder does.
    #[schemars(with = "Option<LeaseConfig>")]
    lease: Option<Spanned<LeaseConfig>>,
    /// The treatment of marks whose certificate has expired. Default: `condition`.
    #[schemars(with = "ExpiredMarkAction")]
    expired: Spanned<ExpiredMarkAction>,
}

impl Default for WatchConfig {
    fn default() -> Self {
        Self {
            interval_s: 60.0.into(),
            // Racks are built by the day.
            claims_s: 300.0.into(),
            at_once: 1.into(),
            // A rack.
            nodes: 72.into(),
            // One that is due, and the partners that the confirmation of a suspicion takes.
            min_nodes: 4.into(),
            even_if_tenants: false,
            // A night.
            expire_ahead_h: unplaced(6.0.into()),
            audit_every_h: 0.0.into(),
            cool_down_h: 24.0.into(),
            backoff: WatchBackoff::default(),
            profiles: WatchProfiles::default(),
            // A change takes up to 26 s to be made, seen and kept (limit_s, settle_s), and pods or
            // jobs are taken back after.
            conclude_s: 60.0.into(),
            logs: 50.into(),
            listen: None,
            lease: None,
            expired: unplaced(ExpiredMarkAction::default()),
        }
    }
}

/// A default has no place in a file.
fn unplaced<T>(value: T) -> Spanned<T> {
    Spanned::new(0..0, value)
}

/// The place of the first of two values, or of the other if the first is a default.
fn place_of<A, B>(first: &Spanned<A>, other: &Spanned<B>) -> usize {
    if first.span().is_empty() { other.span().start } else { first.span().start }
}

#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
struct WatchBackoff {
    /// Rest after the first attempt in seconds, above 0; doubled after each attempt without a
    /// change. Default: 300.
    #[schemars(with = "PositiveNumber<86_400>")]
    first_s: Spanned<PositiveNumber<86_400>>,
    /// Longest rest in seconds, at least `first_s`. Default: 21600.
    #[schemars(with = "Seconds")]
    most_s: Spanned<Seconds>,
}

impl Default for WatchBackoff {
    fn default() -> Self {
        Self { first_s: unplaced(300.0.into()), most_s: unplaced(21_600.0.into()) }
    }
}

#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
struct WatchProfiles {
    /// For nodes with the start-up taint. Default: `admit`.
    unverified: WatchProfile,
    /// For nodes that the gate drained and that were repaired; not `admit`. Default: `recertify`.
    #[schemars(with = "WatchProfile")]
    repaired: Spanned<WatchProfile>,
    /// For nodes whose certificate has expired or will expire soon. Default: `recertify`.
    expired: WatchProfile,
    /// For nodes that never had a certificate. Default: `admit`.
    missing: WatchProfile,
}

impl Default for WatchProfiles {
    fn default() -> Self {
        Self {
            unverified: WatchProfile::Admit,
            repaired: unplaced(WatchProfile::Recertify),
            expired: WatchProfile::Recertify,
            missing: WatchProfile::Admit,
        }
    }
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

/// `[watch.lease]`: a Lease of Kubernetes.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct LeaseConfig {
    /// Its namespace. Default: that of the pod.
    #[serde(deserialize_with = "read_object_name")]
    pub namespace: Option<String>,
    /// Its name. Default: `fabricgate-watch`.
    #[serde(deserialize_with = "read_object_name")]
    #[schemars(with = "String")]
    name: Option<String>,
    /// Validity in seconds without renewal, at least twice `renew_s`. Default: 15.
    #[schemars(with = "BoundedNumber<1_000, 86_400_000>")]
    duration_s: Spanned<BoundedNumber<1_000, 86_400_000>>,
    /// Seconds between renewals. Default: 5.
    #[schemars(with = "Seconds")]
    renew_s: Spanned<Seconds>,
    /// The holder's identity. Default: the pod's name, or host and process.
    #[serde(deserialize_with = "read_holder")]
    pub holder: Option<String>,
}

impl Default for LeaseConfig {
    fn default() -> Self {
        Self {
            namespace: None,
            name: None,
            duration_s: unplaced(15.0.into()),
            renew_s: unplaced(5.0.into()),
            holder: None,
        }
    }
}

impl LeaseConfig {
    /// Its name.
    pub fn name(&self) -> &str {
        self.name.as_deref().unwrap_or("fabricgate-watch")
    }

    /// Validity without renewal.
    pub fn duration(&self) -> Duration {
        self.duration_s.get_ref().duration()
    }

    /// Interval of renewals.
    pub fn renewal(&self) -> Duration {
        self.renew_s.get_ref().duration()
    }

    fn check(&self) -> Result<(), ConfigMistake> {
        let renewal = self.renewal();
        if renewal < Duration::from_millis(100) || self.duration() < renewal * 2 {
            let message = "the Lease: expected renew_s of 0.1 at least, and duration_s of twice it";
            return Err((place_of(&self.duration_s, &self.renew_s), message.to_owned()));
        }
        Ok(())
    }
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

impl WatchConfig {
    /// A section of the file, checked against the policy and the scheduler that is gated.
    pub fn from_section(
        self,
        policy: &Policy,
        gate: Option<&GateConfig>,
    ) -> Result<Self, ConfigMistake> {
        let on_kubernetes =
            gate.is_some_and(|gate| matches!(gate.backend, GateBackend::Kubernetes(_)));
        if let Some(lease) = &self.lease {
            if !on_kubernetes {
                let message = "lease: only for [gate] through = \"kubernetes\"; elsewhere the lock \
                               of the state folder ensures a single instance";
                return Err((lease.span().start, message.to_owned()));
            }
            lease.get_ref().check()?;
        }
        let WatchBackoff { first_s, most_s } = &self.backoff;
        if most_s.get_ref().get() < first_s.get_ref().get() {
            let message = "most_s is less than first_s".to_owned();
            return Err((place_of(most_s, first_s), message));
        }
        let profiles = &self.profiles;
        if *profiles.repaired.get_ref() == WatchProfile::Admit {
            let message = "repaired = \"admit\": only full runs release a node, expected \
                           \"recertify\", \"burn-in\" or \"off\"";
            return Err((profiles.repaired.span().start, message.to_owned()));
        }
        if *self.expired.get_ref() == ExpiredMarkAction::Taint
            && profiles.unverified == WatchProfile::Off
        {
            let message = "expired = \"taint\" with profiles.unverified = \"off\": the taint \
                           would never be removed";
            return Err((self.expired.span().start, message.to_owned()));
        }
        self.check_renewal(policy)?;
        Ok(self)
    }

    /// Refuses a renewal that would follow immediately after each certificate.
    fn check_renewal(&self, policy: &Policy) -> Result<(), ConfigMistake> {
        let Some(profile) = self.profiles.expired.profile() else { return Ok(()) };
        let days = certificate::certificate_days(profile, policy);
        let ahead = self.expire_ahead_h.get_ref();
        if days == 0 || ahead.hours_in_seconds() < i64::from(days) * 86_400 {
            return Ok(());
        }
        let message = format!(
            "expire_ahead_h {} is not less than the {days} days that a pass under {profile} \
             counts: every node would be measured without end",
            ahead.get()
        );
        Err((self.expire_ahead_h.span().start, message))
    }

    /// The settings of the schedule.
    pub fn schedule(&self, policy: &Policy) -> ScheduleSettings {
        let profiles = &self.profiles;
        ScheduleSettings {
            concurrent_domains: self.at_once.size(),
            nodes: self.nodes.size(),
            min_nodes: self.min_nodes.size(),
            unverified: profiles.unverified.profile(),
            repaired: profiles.repaired.get_ref().profile(),
            expired: profiles.expired.profile(),
            missing: profiles.missing.profile(),
            ahead_s: self.expire_ahead_h.get_ref().hours_in_seconds(),
            audit_every_s: self.audit_every_h.hours_in_seconds(),
            confirmation_ages_s: repeat_confirmation::confirmation_ages_s(policy),
            cool_down_s: self.cool_down_h.hours_in_seconds(),
            rest_s: whole_seconds(self.backoff.first_s.get_ref().get()),
            rest_most_s: whole_seconds(self.backoff.most_s.get_ref().get()),
            clean_sweeps: policy.clean_sweeps as usize,
            clean_apart_s: clean::min_clean_gap_s(policy),
        }
    }

    /// How often the watch acts, and how long it waits.
    pub fn intervals(&self) -> WatchIntervals {
        WatchIntervals {
            interval: self.interval(),
            claims_refresh: self.claims_s.duration(),
            job_grace: self.conclude_s.duration(),
            max_logs: self.logs.size(),
        }
    }

    /// Time between two turns.
    pub fn interval(&self) -> Duration {
        self.interval_s.duration()
    }

    /// The Lease, if one is configured.
    pub fn lease(&self) -> Option<&LeaseConfig> {
        self.lease.as_ref().map(Spanned::get_ref)
    }

    /// Whether a node whose certificate has expired gets the start-up taint again.
    pub fn taints_expired(&self) -> bool {
        *self.expired.get_ref() == ExpiredMarkAction::Taint
    }
}

fn read_listen<'de, D: Deserializer<'de>>(from: D) -> Result<Option<SocketAddr>, D::Error> {
    let text = String::deserialize(from)?;
    let address = text.parse().map_err(|_| {
        D::Error::custom(format!("{text:?}, expected ADDRESS:PORT such as 0.0.0.0:9464"))
    })?;
    Ok(Some(address))
}

/// The name of an object of Kubernetes (RFC 1123).
fn read_object_name<'de, D: Deserializer<'de>>(from: D) -> Result<Option<String>, D::Error> {
    let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-.".contains(c);
    let is_name = |text: &str| !text.is_empty() && text.chars().all(fits);
    read_checked(from, is_name, "a name of Kubernetes").map(Some)
}

fn read_holder<'de, D: Deserializer<'de>>(from: D) -> Result<Option<String>, D::Error> {
    let fits = |c: char| c.is_ascii_graphic() && c != '/';
    let is_holder = |text: &str| !text.is_empty() && text.chars().all(fits);
    read_checked(from, is_holder, "one word without /").map(Some)
}

/// Whole seconds, at least one.
fn whole_seconds(seconds: f64) -> i64 {
    #[expect(clippy::cast_possible_truncation, reason = "bounded by a day where it is read")]
    let whole = seconds.round() as i64;
    whole.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str, days: u32) -> Result<WatchConfig, ConfigMistake> {
        let section: WatchConfig = toml::from_str(text).expect("a section");
        section.from_section(&Policy { certificate_days: days, ..Policy::default() }, None)
    }

    #[test]
    fn a_certificate_is_not_renewed_immediately() {
        let (at, message) = read("expire_ahead_h = 30.0", 1).expect_err("it never ends");
        assert!(message.starts_with("expire_ahead_h 30 is not less than the 1 days"), "{message}");
        assert_eq!(at, 17);
        assert!(read("expire_ahead_h = 23.0", 1).is_ok());
        assert!(read("", 1).is_ok());
    }

    #[test]
    fn keys_that_exclude_each_other_are_a_mistake_with_its_place() {
        for (text, at, expected) in [
            ("[lease]\n", 0, "lease: only for [gate]"),
            ("[backoff]\nmost_s = 9", 19, "most_s is less than first_s"),
            ("[profiles]\nrepaired = \"admit\"", 22, "repaired = \"admit\": only full runs"),
            ("profiles.unverified = \"off\"\nexpired = \"taint\"", 38, "expired = \"taint\" with"),
        ] {
            let (place, message) = read(text, 7).expect_err(text);
            assert!(message.starts_with(expected), "{text}: {message}");
            assert_eq!(place, at, "{text}");
        }
        for text in ["listen = \"9464\"", "[lease]\nname = \"A\"", "[lease]\nholder = \"a/b\""] {
            assert!(toml::from_str::<WatchConfig>(text).is_err(), "{text}");
        }
    }
}
