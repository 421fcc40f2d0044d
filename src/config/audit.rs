//! `[audit]` of the configuration: the limits of one audit.

use schemars::JsonSchema;
use serde::Deserialize;

use crate::config::bounded::{BoundedCount, PositiveNumber};
use engine::plan::audit_selection::AuditBudget;

/// Minutes of an audit, up to a day.
pub type AuditMinutes = PositiveNumber<1_440>;

/// Nodes of an audit.
pub type AuditNodeCount = BoundedCount<1, { u32::MAX }>;

/// A share of the nodes.
pub type AuditShare = PositiveNumber<1>;

/// `[audit]` of the configuration.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct AuditConfig {
    /// Longest planned duration of an audit in minutes, above 0 and at most 1440. Default: no
    /// limit.
    pub minutes: Option<AuditMinutes>,
    /// Most nodes that one audit measures, from 1. Default: no limit.
    pub nodes_at_most: Option<AuditNodeCount>,
    /// Share of all claimed nodes that one audit measures at most, above 0 and at most 1, and at
    /// least two nodes. Default: no limit.
    pub share: Option<AuditShare>,
    /// Share of the nodes of each domain that one audit measures at most, in the same range.
    /// Default: no limit.
    pub share_of_domain: Option<AuditShare>,
}

impl AuditConfig {
    /// The limits, as the selection of nodes takes them.
    pub fn budget(&self) -> AuditBudget {
        AuditBudget {
            seconds: self.minutes.map(|minutes| minutes.get() * 60.0),
            nodes: self.nodes_at_most.map(BoundedCount::size),
            share: self.share.map(PositiveNumber::get),
            share_of_domain: self.share_of_domain.map(PositiveNumber::get),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_budget_has_the_limits_of_the_section() {
        let budget = |text: &str| toml::from_str(text).map(|it: AuditConfig| it.budget());
        assert_eq!(budget(""), Ok(AuditBudget::default()));
        let limited = budget("minutes = 30\nnodes_at_most = 9\nshare = 0.05").expect("good");
        assert_eq!((limited.seconds, limited.nodes), (Some(1_800.0), Some(9)));
        assert!(budget("share_of_domain = 0").is_err());
    }
}
