//! `[audit]` of the configuration: the limits of one audit.

use schemars::JsonSchema;
use serde::Deserialize;
use toml::Spanned;

use crate::config::ConfigMistake;
use engine::plan::audit_selection::AuditBudget;

/// Longest audit, in minutes: a day.
const LONGEST_MIN: f64 = 1_440.0;

/// `[audit]` of the configuration.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct AuditSection {
    /// Longest planned duration of an audit in minutes, above 0 and at most 1440. Default: no
    /// limit.
    #[schemars(with = "Option<f64>")]
    minutes: Option<Spanned<f64>>,
    /// Most nodes that one audit measures, from 1. Default: no limit.
    #[schemars(with = "Option<u32>")]
    nodes_at_most: Option<Spanned<u32>>,
    /// Share of all claimed nodes that one audit measures at most, above 0 and at most 1, and at
    /// least two nodes. Default: no limit.
    #[schemars(with = "Option<f64>")]
    share: Option<Spanned<f64>>,
    /// Share of the nodes of each domain that one audit measures at most, in the same range.
    /// Default: no limit.
    #[schemars(with = "Option<f64>")]
    share_of_domain: Option<Spanned<f64>>,
}

/// Reads `[audit]`.
pub fn parse_audit(section: &AuditSection) -> Result<AuditBudget, ConfigMistake> {
    let wrong = |at: usize, why: Result<(), String>| why.map_err(|why| (at, why));
    if let Some(minutes) = &section.minutes {
        wrong(minutes.span().start, check_minutes(*minutes.get_ref()))?;
    }
    if let Some(nodes) = &section.nodes_at_most {
        wrong(nodes.span().start, check_node_count(*nodes.get_ref()))?;
    }
    for (key, share) in [("share", &section.share), ("share_of_domain", &section.share_of_domain)] {
        if let Some(share) = share {
            wrong(share.span().start, check_share(key, *share.get_ref()))?;
        }
    }
    Ok(AuditBudget {
        seconds: section.minutes.as_ref().map(|it| it.get_ref() * 60.0),
        nodes: section.nodes_at_most.as_ref().map(|it| *it.get_ref() as usize),
        share: section.share.as_ref().map(|it| *it.get_ref()),
        share_of_domain: section.share_of_domain.as_ref().map(|it| *it.get_ref()),
    })
}

pub(crate) fn check_minutes(minutes: f64) -> Result<(), String> {
    let fits = 0.0 < minutes && minutes <= LONGEST_MIN;
    if fits { Ok(()) } else { Err(format!("minutes {minutes}, expected more than 0, to 1440")) }
}

pub(crate) fn check_node_count(nodes: u32) -> Result<(), String> {
    if 0 < nodes { Ok(()) } else { Err("nodes_at_most 0, expected at least 1".to_owned()) }
}

pub(crate) fn check_share(key: &str, share: f64) -> Result<(), String> {
    let fits = 0.0 < share && share <= 1.0;
    if fits { Ok(()) } else { Err(format!("{key} {share}, expected more than 0, to 1")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn section(text: &str) -> Result<AuditBudget, ConfigMistake> {
        parse_audit(&toml::from_str(text).expect("a section"))
    }

    #[test]
    fn limits_are_in_their_range_or_named_with_their_place() {
        assert_eq!(section(""), Ok(AuditBudget::default()));
        let budget = section("minutes = 30\nnodes_at_most = 9\nshare = 0.05").expect("good");
        assert_eq!((budget.seconds, budget.nodes), (Some(1_800.0), Some(9)));
        for (text, at, why) in [
            ("minutes = 0", 10, "minutes 0, expected more than 0, to 1440"),
            ("minutes = nan", 10, "minutes NaN, expected more than 0, to 1440"),
            ("nodes_at_most = 0", 16, "nodes_at_most 0, expected at least 1"),
            ("share = 1.5", 8, "share 1.5, expected more than 0, to 1"),
            ("share_of_domain = 0", 18, "share_of_domain 0, expected more than 0, to 1"),
        ] {
            assert_eq!(section(text), Err((at, why.to_owned())));
        }
    }
}
