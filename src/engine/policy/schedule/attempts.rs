//! Earlier attempts, and how long a node rests after one.
//!
//! Pure. A time in the future counts as the present, and within one boot of this machine the
//! uptime counts: a clock that jumps neither starts a measurement nor forbids one for good.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::profile::MeasurementWant;
use super::{ScheduleSettings, profile};
use model::id::{DomainName, NodeName};
use model::journal::ClockStamp;
use model::time_format::format_rfc3339;
use model::watch::DueReason;

/// All attempts that are still remembered.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct MeasurementAttempts {
    /// The last attempt for each node.
    pub nodes: BTreeMap<NodeName, MeasurementAttempt>,
    /// When each domain was last audited.
    pub audited: BTreeMap<DomainName, ClockStamp>,
}

/// The last attempt for one node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MeasurementAttempt {
    /// The key of the node's want.
    pub want: String,
    /// How many attempts in a row had the same key.
    pub count: u32,
    /// When the last one ended.
    pub last: ClockStamp,
    /// Its exit code; `None` if it had none.
    #[serde(default)]
    pub code: Option<u8>,
}

/// Whether a job reached verdicts: it passed, the gate was closed, or a budget refused the
/// actions.
fn is_concluded(code: Option<u8>) -> bool {
    matches!(code, Some(0 | 3 | 6))
}

/// Seconds from then to now, at least 0.
pub fn elapsed_s(then: &ClockStamp, now: &ClockStamp) -> i64 {
    if !then.boot.is_empty() && then.boot == now.boot {
        let seconds = (now.uptime_s - then.uptime_s).max(0.0);
        #[expect(
            clippy::cast_possible_truncation,
            reason = "an uptime is far below 2^63 seconds"
        )]
        return seconds as i64;
    }
    now.unix.saturating_sub(then.unix).max(0)
}

impl MeasurementAttempts {
    /// Records the end of a job for these nodes, each with the key of its want.
    pub fn record_end(
        &mut self,
        domain: &DomainName,
        cause: DueReason,
        nodes: &BTreeMap<NodeName, String>,
        code: Option<u8>,
        now: &ClockStamp,
    ) {
        for (node, want) in nodes {
            let before = self.nodes.get(node).filter(|before| before.want == *want);
            let count = before.map_or(0, |before| before.count).saturating_add(1);
            let attempt = MeasurementAttempt { want: want.clone(), count, last: now.clone(), code };
            self.nodes.insert(node.clone(), attempt);
        }
        // A second measurement of one suspect does not count as an audit of its domain.
        let is_of_domain = nodes.values().any(|want| profile::is_idle_audit(want));
        if is_concluded(code) && cause == DueReason::Audit && is_of_domain {
            self.audited.insert(domain.clone(), now.clone());
        }
    }

    /// Forgets nodes and domains that are no longer claimed.
    pub fn forget(
        &mut self,
        is_node: impl Fn(&NodeName) -> bool,
        is: impl Fn(&DomainName) -> bool,
    ) {
        self.nodes.retain(|node, _| is_node(node));
        self.audited.retain(|domain, _| is(domain));
    }

    /// Sets times in the future to the present, once: a time written by a clock far ahead would
    /// otherwise block its node until then.
    pub fn clamp_future(&mut self, now: &ClockStamp) {
        let moments = self.nodes.values_mut().map(|attempt| &mut attempt.last);
        for moment in moments.chain(self.audited.values_mut()) {
            let same_boot = !moment.boot.is_empty() && moment.boot == now.boot;
            let is_ahead =
                if same_boot { now.uptime_s < moment.uptime_s } else { now.unix < moment.unix };
            if is_ahead {
                *moment = now.clone();
            }
        }
    }

    /// Why a node with this want rests; `None` if it does not.
    pub(super) fn explain_rest(
        &self,
        node: &NodeName,
        want: &MeasurementWant,
        settings: &ScheduleSettings,
        now: &ClockStamp,
    ) -> Option<String> {
        let attempt = self.nodes.get(node)?;
        let is_same = attempt.want == want.key;
        let doublings = if is_same { attempt.count.saturating_sub(1).min(40) } else { 0 };
        // A node whose wants change with every attempt rests, too.
        let rest = settings.rest_s.max(1).saturating_mul(1_i64 << doublings);
        let mut rest = rest.min(settings.rest_most_s.max(settings.rest_s).max(1));
        if is_same && want.cause == DueReason::Repaired && is_concluded(attempt.code) {
            rest = rest.max(settings.cool_down_s);
        }
        let passed = elapsed_s(&attempt.last, now);
        if rest <= passed {
            return None;
        }
        let again = format_rfc3339(attempt.last.unix.saturating_add(rest));
        let times = if is_same { attempt.count } else { 1 };
        let times = if times == 1 { "once".to_owned() } else { format!("{times} times") };
        let ended = match attempt.code {
            Some(0) => "it passed, but is not certified".to_owned(),
            Some(code) => format!("exit code {code}"),
            None => "it was terminated".to_owned(),
        };
        let ended = if is_same { ended } else { "something has changed since".to_owned() };
        Some(format!("tried {times} ({ended}); next from {again} on"))
    }

    /// Seconds since a domain was audited, if it was.
    pub(super) fn seconds_since_audit(&self, domain: &DomainName, now: &ClockStamp) -> Option<i64> {
        self.audited.get(domain).map(|then| elapsed_s(then, now))
    }
}
